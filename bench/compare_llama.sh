#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Decoding and prefill of the example decoder beside llama.cpp: same file, same text, same number of threads.
#   bench/compare_llama.sh [OUT.json]        (default: bench/results/llama-summary.json)
# Installs llama-cpp-python into build/llama-venv (it compiles llama.cpp for this machine: some minutes), unless LLAMA_VENV
# names a virtual environment that has it.
# OASIS_DECODE: the program (default: build/example/examples/decoder/oasis-decode, see scripts/run_example.sh).
# MODEL: a GGUF file (default: what scripts/get_model.sh fetches). TEXT: default GPL-3. THREADS: default 2.
# K and V are f16, as llama.cpp has them.
# REPETITIONS: default 3. OPTIONS: of oasis-decode, instead of the default ones below.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck source=scripts/lib.sh
source "$root/scripts/lib.sh"
version=0.3.36
out="${1:-$root/bench/results/llama-summary.json}"
venv="${LLAMA_VENV:-$root/build/llama-venv}"
export OASIS_DECODE="${OASIS_DECODE:-$root/build/example/examples/decoder/oasis-decode}"
export MODEL="${MODEL:-$OASIS_MODEL}" TEXT="${TEXT:-/usr/share/common-licenses/GPL-3}"
export THREADS="${THREADS:-2}" REPETITIONS="${REPETITIONS:-3}"
export OPTIONS="${OPTIONS:---compute q8 --kv-dtype f16 --attend-budget 2048 --fetch-budget 1024}"
for file in "$OASIS_DECODE" "$MODEL" "$TEXT"; do
    [[ -e "$file" ]] || { echo "bench/compare_llama.sh: $file is not there; scripts/run_example.sh builds and fetches" >&2; exit 1; }
done
if ! "$venv/bin/python" -c 'import llama_cpp' 2>/dev/null; then # also after an installation that was interrupted
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "llama-cpp-python==$version"
fi
exec "$venv/bin/python" "$root/bench/compare_llama.py" "$out"
