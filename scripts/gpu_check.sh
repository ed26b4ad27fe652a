#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, tests and measures the CUDA backend on a machine with a GPU, and writes what it found as JSON.
#   scripts/gpu_check.sh build | test | sanitize | bench
# Run `build` first; the other stages use what it made. Each stage takes at most 8 minutes on 16 processors.
#   BUILD_DIR   where to build (default: build/cuda)
#   OUT         where results go (default: BUILD_DIR/results)
#   OASIS_DEPS  optional: a folder into which Debian packages were unpacked, for machines without them and without a network:
#                 apt-get download libhwy-dev libhwy1 libxxhash-dev libgtest-dev libgmock-dev libbenchmark-dev libbenchmark1debian
#                 for p in *.deb; do dpkg -x "$p" "$OASIS_DEPS"; done
#   COMMIT      what the results say they belong to (default: from git)
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$OASIS_ROOT"

stage="${1:-}"
build="${BUILD_DIR:-$OASIS_ROOT/build/cuda}"
out="${OUT:-$build/results}"
commit="${COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}"
limit=480
mkdir -p "$out"

# record <status> <seconds> <log>: the stage's own JSON, with the numbers of tests where there were any.
record() {
    STAGE="$stage" STATUS="$1" SECONDS_TAKEN="$2" LOG="$3" COMMIT="$commit" python3 - "$out/gpu-check-$stage.json" <<'PYTHON'
import json, os, re, subprocess, sys

def gpu():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""

log = open(os.environ["LOG"], errors="replace").read()
result = {"commit": os.environ["COMMIT"], "command": f"scripts/gpu_check.sh {os.environ['STAGE']}", "gpu": gpu(), "processors": os.cpu_count(),
          "passed": os.environ["STATUS"] == "0", "seconds": int(os.environ["SECONDS_TAKEN"])}
if tests := re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", log):
    result |= {"tests": int(tests[3]), "failed": int(tests[2]), "skipped": len(re.findall(r"\*\*\*Skipped", log))}
if errors := re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", log):
    result |= {"sanitizer_runs": len(errors), "sanitizer_errors": sum(int(a or b) for a, b in errors)}
json.dump(result, open(sys.argv[1], "w"), indent=1)
print(json.dumps(result))
PYTHON
}

find_tool() { PATH="$PATH:/usr/local/cuda/bin" command -v "$1" || fail "$1 is not in PATH or /usr/local/cuda/bin"; }

stage_build() {
    local options=(-DCMAKE_CUDA_COMPILER="$(find_tool nvcc)" -DOASIS_BUILD_EXAMPLES=OFF -DOASIS_CUDA=ON -DCMAKE_BUILD_TYPE=Release)
    [[ -z "${OASIS_DEPS:-}" ]] || options+=(-DCMAKE_PREFIX_PATH="$OASIS_DEPS/usr" -DOASIS_XXHASH_INCLUDE="$OASIS_DEPS/usr/include")
    cmake -S . -B "$build" -G Ninja "${options[@]}"
    cmake --build "$build" --target cuda_all --parallel "$(build_jobs)"
}

# Where no GPU can run the kernels every test skips, and nothing was checked.
need_gpu() {
    ! "$build/tests/cuda_memory_test" --gtest_filter=CudaMemory.CopiesAndFills | grep SKIPPED || fail "no GPU here runs the kernels: every test would skip"
}

stage_test() { need_gpu; ctest --test-dir "$build" -L '^cuda$' -LE consumer --output-on-failure --no-tests=error; }

# Everything once under memcheck is too slow: the plainest cases of each test, and races in shared memory.
stage_sanitize() {
    local sanitizer test
    local filter='*Stale*:*PREF_10*:*Slices*:Shapes/*.*/0:*CopiesAndFills*:*ATTN_02*:*ATTN_15*:*LateBlocks*:*SCORE_01*:*SCORE_02*:*SCORE_21*:*BatchAndRows*:Resolve.Long*:Resolve.ACell*'
    need_gpu
    sanitizer="$(find_tool compute-sanitizer)"
    for test in "$build"/tests/cuda_*_test; do
        "$test" --gtest_list_tests --gtest_filter="$filter" | grep '^  ' >/dev/null || fail "$(basename "$test"): the filter names none of its tests"
        "$sanitizer" --tool memcheck --error-exitcode 9 "$test" --gtest_brief=1 --gtest_filter="$filter"
        "$sanitizer" --tool racecheck --error-exitcode 9 "$test" --gtest_brief=1 --gtest_filter="$filter"
    done
}

stage_bench() {
    local bench name
    for bench in "$build"/bench/cuda_*_bench; do
        name="$(basename "$bench" _bench)"
        "$bench" --json "$out/${name/_/-}.json" --commit "$commit"
    done
    python3 bench/make_h200_summary.py --commit "$commit" "$out" "$out/h200-summary.json"
}

case "$stage" in
build | test | sanitize | bench) ;;
*) fail "usage: scripts/gpu_check.sh build | test | sanitize | bench" ;;
esac
export -f "stage_$stage" need_gpu find_tool fail build_jobs say
export build out commit OASIS_ROOT
[[ "$stage" == build || -f "$build/build.ninja" ]] || fail "$build is not built: run scripts/gpu_check.sh build first"
log="$out/gpu-check-$stage.log"
status=0
begin="$(date +%s)"
timeout "$limit" bash -euo pipefail -c "stage_$stage" 2>&1 | tee "$log" || status="${PIPESTATUS[0]}"
record "$status" "$(($(date +%s) - begin))" "$log"
exit "$status"
