#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, fetches the example's model, builds and runs the tests.
#   scripts/run_tests.sh [cpu|cuda|asan|tsan|fuzz|all]     (default: all)
# Debian 12 or Ubuntu 24.04, as root or with sudo. With CI=true warnings are errors. The stage cuda compiles the CUDA backend
# where nvcc is found; its tests skip where there is no GPU.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

stage="${1:-all}"
case "$stage" in
cpu | cuda | asan | tsan | fuzz) stages=("$stage") ;;
all) stages=(cpu cuda asan tsan fuzz) ;;
*) fail "unknown stage '$stage': expected cpu, cuda, asan, tsan, fuzz or all" ;;
esac

# can_run_sanitizer <flag> <prefix command...>: whether a program under this sanitizer starts on this kernel.
can_run_sanitizer() {
    local flag="$1" work status=0
    shift
    work="$(mktemp -d)"
    echo 'int main() { return 0; }' >"$work/probe.cpp"
    g++ "-fsanitize=$flag" "$work/probe.cpp" -o "$work/probe"
    for _ in 1 2 3 4 5; do
        "$@" "$work/probe" >/dev/null 2>&1 || status=1
    done
    rm -rf "$work"
    return "$status"
}

# sanitizer_prefix <flag>: sets `prefix` to what ctest must run under. High-entropy address layouts break the
# sanitizers of GCC 12 and 13; there ctest runs without address randomisation. Fails where even that is refused.
sanitizer_prefix() {
    prefix=()
    can_run_sanitizer "$1" && return
    prefix=(setarch "$(uname -m)" -R)
    can_run_sanitizer "$1" "${prefix[@]}"
}

# find_nvcc: prints the nvcc to use, if there is one that is new enough.
find_nvcc() {
    local nvcc version
    nvcc="$(PATH="$PATH:/usr/local/cuda/bin" command -v nvcc)" || return
    version="$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    [[ "$(printf '12.4\n%s\n' "$version" | sort -V | head -n 1)" == 12.4 ]] && echo "$nvcc"
}

# failures <folder>: the names of the tests that failed in its last run.
failures() {
    cut -d : -f 2- "$1/Testing/Temporary/LastTestsFailed.log" 2>/dev/null | paste -sd ' ' || true
}

# passes_alone <folder> <prefix command...>: whether what failed passes when nothing runs beside it. Some tests measure time,
# and a busy machine is no fault of theirs; what a sanitizer or fuzzer reported is one, however rarely it happens.
passes_alone() {
    local folder="$1"
    shift
    if grep -qE 'Sanitizer|libFuzzer|runtime error:' "$folder/Testing/Temporary/LastTest.log"; then return 1; fi
    "$@" ctest --test-dir "$folder" --rerun-failed --output-on-failure --no-tests=error
}

run_stage() {
    local preset="$1" nvcc
    local options=() targets=() prefix=() tests=() at_once="$jobs"
    [[ "${CI:-}" == true ]] && options+=(-DOASIS_WERROR=ON)
    case "$preset" in
    cpu-asan) sanitizer_prefix address || { skipped+=("$preset: $no_sanitizer"); return; } ;;
    cpu-tsan) sanitizer_prefix thread || { skipped+=("$preset: $no_sanitizer"); return; } ;;
    cuda)
        nvcc="$(find_nvcc)" || { skipped+=("cuda: no nvcc 12.4 or newer in PATH or /usr/local/cuda/bin"); return; }
        # What does not depend on CUDA is built and tested by the stage cpu; benchmarks are built where they run (gpu_check.sh).
        options+=(-DCMAKE_CUDA_COMPILER="$nvcc" -DOASIS_BUILD_EXAMPLES=OFF -DOASIS_BUILD_BENCH=OFF)
        targets=(--target cuda_all oasis_cuda_verify_interface_header_sets)
        tests=(--label-regex '^cuda$')
        ;;
    fuzz)
        options=() # clang warns of what GCC does not
        need_packages "${OASIS_PACKAGES_FUZZ[@]}"
        at_once=5 # a minute, all targets side by side
        ;;
    esac
    say "$preset: configure and build"
    cmake --preset "$preset" "${options[@]}"
    cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}"
    say "$preset: test"
    # Accuracy on real models is measured by the release build; under a sanitizer it would take minutes and show nothing new.
    [[ "$preset" != cpu-* ]] || tests=(--exclude-regex '^(Acceptance|.*Reference)\.')
    if "${prefix[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$at_once" "${tests[@]}"; then
        passed+=("$preset")
        return
    fi
    local names
    names="$(failures "build/$preset")"
    if [[ -n "$names" ]] && passes_alone "build/$preset" "${prefix[@]}"; then
        passed+=("$preset")
        unsteady+=("$preset: $names")
    else
        failed+=("$preset: $names")
    fi
}

need_packages "${OASIS_PACKAGES_BUILD[@]}" "${OASIS_PACKAGES_EXAMPLE[@]}" "${OASIS_PACKAGES_TEST[@]}" "${OASIS_PACKAGES_DOCS[@]}"
"$OASIS_ROOT/scripts/get_model.sh"
export OASIS_TEST_MODEL_DIR="$OASIS_MODEL_DIR"

cd "$OASIS_ROOT"
jobs="$(build_jobs)"
no_sanitizer="its sanitizer does not start on this kernel (see sysctl vm.mmap_rnd_bits)"
passed=()
failed=()
unsteady=()
skipped=()
for stage in "${stages[@]}"; do
    case "$stage" in
    cpu)
        run_stage cpu
        "$OASIS_ROOT/scripts/build_docs.sh" || failed+=("cpu: documentation")
        ;;
    cuda | fuzz) run_stage "$stage" ;;
    *) run_stage "cpu-$stage" ;;
    esac
done
for stage in "${skipped[@]}"; do
    say "skipped: $stage"
done
for tests in "${unsteady[@]}"; do
    say "failed beside other tests and passed alone, in $tests"
done
for tests in "${failed[@]}"; do
    say "failed in $tests"
done
((${#failed[@]} == 0)) || fail "tests failed"
say "passed: ${passed[*]}"
