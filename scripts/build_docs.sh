#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the reference of the public headers, build/docs/html/index.html, and checks the links of it and of every Markdown
# file. Installs doxygen where it is missing. A public entity without documentation is an error.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_packages "${OASIS_PACKAGES_DOCS[@]}"
cd "$OASIS_ROOT"
mkdir -p build/docs
rm -rf build/docs/html
doxygen docs/Doxyfile || fail "the warnings of doxygen are errors: say what the entity is, see docs/Doxyfile"
python3 tests/check_links.py . --html build/docs/html
say "reference: $OASIS_ROOT/build/docs/html/index.html"
