#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, fetches the example's model, builds and runs the tests.
#   scripts/run_tests.sh [cpu|asan|tsan|all]     (default: all)
# Debian 12 or Ubuntu 24.04, as root or with sudo. With CI=true warnings are errors.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

stage="${1:-all}"
case "$stage" in
cpu | asan | tsan) stages=("$stage") ;;
all) stages=(cpu asan tsan) ;;
*) fail "unknown stage '$stage': expected cpu, asan, tsan or all" ;;
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

run_stage() {
    local preset="$1"
    local options=() prefix=()
    [[ "${CI:-}" == true ]] && options+=(-DOASIS_WERROR=ON)
    case "$preset" in
    cpu-asan) sanitizer_prefix address || { skipped+=("$preset"); return; } ;;
    cpu-tsan) sanitizer_prefix thread || { skipped+=("$preset"); return; } ;;
    esac
    say "$preset: configure and build"
    cmake --preset "$preset" "${options[@]}"
    cmake --build --preset "$preset" --parallel "$jobs"
    say "$preset: test"
    # Accuracy on real models is measured by the release build; under a sanitizer it would take minutes and show nothing new.
    local tests=()
    [[ "$preset" == cpu ]] || tests=(--exclude-regex '^(Acceptance|.*Reference)\.')
    if ! "${prefix[@]}" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$jobs" "${tests[@]}"; then
        failed+=("$preset")
    fi
}

need_packages "${OASIS_PACKAGES_BUILD[@]}" "${OASIS_PACKAGES_EXAMPLE[@]}" "${OASIS_PACKAGES_TEST[@]}"
"$OASIS_ROOT/scripts/get_model.sh"
export OASIS_TEST_MODEL_DIR="$OASIS_MODEL_DIR"

cd "$OASIS_ROOT"
jobs="$(build_jobs)"
failed=()
skipped=()
for stage in "${stages[@]}"; do
    case "$stage" in
    cpu) run_stage cpu ;;
    *) run_stage "cpu-$stage" ;;
    esac
done
for stage in "${skipped[@]}"; do
    say "$stage was skipped: its sanitizer does not start on this kernel (see sysctl vm.mmap_rnd_bits)"
done
((${#failed[@]} == 0)) || fail "tests failed in: ${failed[*]}"
say "all stages passed: ${stages[*]}"
