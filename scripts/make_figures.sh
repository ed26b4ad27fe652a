#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the figures of the documentation (docs/images) from the results in bench/results/figures.
#   scripts/make_figures.sh [NAME...]             NAME: accuracy, moved, residency, speed, step-timeline, terminal
#   scripts/make_figures.sh --measure [NAME...]   measures first: minutes each, on a machine that does nothing else
# Measuring needs the build of scripts/run_example.sh, or OASIS_DECODE=PROGRAM, from a commit without changes: results
# name the commit they come from.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

results="$OASIS_ROOT/bench/results/figures"
text=/usr/share/common-licenses/GPL-3

# measure_accuracy ... measure_terminal: one figure's results each.
measure_accuracy() {
    local tasks=(eval "$OASIS_ROOT/tests/data/retrieval-14m" --generate all:4096:8 --sweep "attend-budget=256,512,1024,2048")
    "$decode" "${tasks[@]}" --sweep summary=spread2-int4,cuboid4-int4 --json "$results/accuracy.json"
    "$decode" "${tasks[@]}" --summary minmax16-f16 --reduce max --json "$results/accuracy-minmax.json"
}

measure_moved() {
    "$decode" compare "$OASIS_MODEL" --file "$text" --tokens 4096 --last 128 --rows 1 --measure-mass off --attend-budget 1024 \
        --sweep fetch-budget=256,512,1024 --sweep logical-resident=1024,1536,2048,3072,4096 --json "$results/moved.json"
}

measure_residency() {
    "$decode" run "$OASIS_MODEL" --file "$text" --tokens 3000 --max-tokens 97 --attend-budget 512 --dense-column off \
        --residency "$results/residency.json"
}

measure_speed() {
    local tokens
    for tokens in 1024 2048 4096 7168; do
        "$decode" run "$OASIS_MODEL" --file "$text" --tokens "$tokens" --max-tokens 64 --attend-budget 1024 \
            --json "$results/speed-$tokens.json"
    done
}

measure_step_timeline() {
    local work
    work="$(mktemp -d)"
    "$decode" run "$OASIS_ROOT/tests/data/retrieval-14m" --file "$text" --tokens 4096 --max-tokens 32 --attend-budget 512 \
        --fetch-budget 256 --draft mtp --draft-tokens 0 --draft-floor 0 --slow throttle:60MBps --dense-column off \
        --trace "$work/trace.json" --json "$work/report.json"
    "$OASIS_ROOT/bench/figures/timeline.py" "$work/trace.json" "$work/report.json" "$results/timeline.json"
    rm -rf "$work"
}

measure_terminal() {
    "$OASIS_ROOT/bench/figures/terminal.py" "$results/terminal.json" --program "$decode" --folder "$OASIS_MODEL_DIR" -- \
        run "$(basename "$OASIS_MODEL")" "${OASIS_EXAMPLE[@]}"
}

measure=false
if [[ "${1:-}" == --measure ]]; then
    measure=true
    shift
fi
names=("$@")
(($#)) || names=(accuracy moved residency speed step-timeline terminal)

if $measure; then
    decode="$(realpath -m -- "${OASIS_DECODE:-$OASIS_ROOT/build/example/examples/decoder/oasis-decode}")"
    [[ -x "$decode" ]] || fail "$decode is not there: run scripts/run_example.sh first, or set OASIS_DECODE"
    "$OASIS_ROOT/scripts/get_model.sh"
    for name in "${names[@]}"; do
        [[ "$(type -t "measure_${name//-/_}")" == function ]] || fail "there is no figure '$name'"
        say "measuring $name"
        "measure_${name//-/_}"
    done
fi
"$OASIS_ROOT/bench/figures/draw.py" "${names[@]}"
