#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, fetches the model, builds the example decoder alone and runs it on a long text.
# Arguments, if any, replace those of the decoder: scripts/run_example.sh run MODEL --file TEXT ...
# Debian 12 or Ubuntu 24.04, as root or with sudo.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_packages "${OASIS_PACKAGES_BUILD[@]}" "${OASIS_PACKAGES_EXAMPLE[@]}"
"$OASIS_ROOT/scripts/get_model.sh"

build="$OASIS_ROOT/build/example"
say "building the example decoder"
cmake -S "$OASIS_ROOT" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOASIS_BUILD_TESTS=OFF -DOASIS_BUILD_BENCH=OFF
cmake --build "$build" --parallel "$(build_jobs)" --target oasis-decode

(($#)) || set -- run "$OASIS_MODEL" "${OASIS_EXAMPLE[@]}"
say "oasis-decode $*"
exec "$build/examples/decoder/oasis-decode" "$@"
