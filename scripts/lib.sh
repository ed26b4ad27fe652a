# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034  # the lists are used by the scripts that source this file
# Shared by the scripts of this folder; meant to be sourced under `set -euo pipefail`.

OASIS_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
OASIS_MODEL_DIR="$(realpath -m -- "${OASIS_MODEL_DIR:-$OASIS_ROOT/build/models}")"
OASIS_MODEL="$OASIS_MODEL_DIR/SmolLM2-135M-Instruct.Q4_1.gguf"
export OASIS_ROOT OASIS_MODEL_DIR OASIS_MODEL

# Packages of Debian 12 and Ubuntu 24.04 (the names are the same).
OASIS_PACKAGES_BUILD=(g++ cmake ninja-build ccache pkg-config libhwy-dev libxxhash-dev)
OASIS_PACKAGES_EXAMPLE=(libfmt-dev libcli11-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev liblzma-dev)
OASIS_PACKAGES_TEST=(libgtest-dev libgmock-dev libbenchmark-dev binutils python3)
OASIS_PACKAGES_FUZZ=(clang-19 libclang-rt-19-dev)
OASIS_PACKAGES_DOCS=(doxygen python3)
OASIS_PACKAGES_MODEL=(python3 python3-pip python3-venv unzip ca-certificates)

# What run_example.sh runs on the model: 6,000 tokens of a real text, then a question about it. Every step reads and keeps
# a small part of the context. The draft head guesses tokens, which are verified several at a time. All tiers are RAM
# here, so there is nothing to fetch ahead.
OASIS_EXAMPLE=(--chat --file /usr/share/common-licenses/GPL-3 --tokens 6000
    --prompt "Explain to a child what this text is about." --max-tokens 160 --attend-budget 1024
    --draft mtp --draft-window 64 --draft-floor 0.4 --lookahead none)

say() { printf '== %s\n' "$*"; }

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

is_installed() { [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]; }

# need_packages <package>...: installs what is missing; touches neither apt nor the network when nothing is.
need_packages() {
    local package missing=()
    command -v dpkg-query >/dev/null || fail "these scripts install packages with apt (Debian 12, Ubuntu 24.04);" \
        "elsewhere install the equivalents of: $*, and run cmake --workflow --preset cpu"
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    say "installing ${missing[*]}"
    local as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || fail "missing packages and neither root nor sudo: ${missing[*]}"
        as_root=(sudo)
    fi
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
}

# build_jobs: one job per processor, fewer where memory is short (1.5 GB each).
build_jobs() {
    local processors memory
    processors="$(nproc)"
    memory="$(awk '/MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo)"
    ((memory < 1)) && memory=1
    echo "$((processors < memory ? processors : memory))"
}
