#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the benchmarks and keeps their results with the machine, the commit and the command that made them.
#   bench/run.sh OUT.json [options of Google Benchmark...]
# BUILD_DIR: a release build with OASIS_BUILD_BENCH=ON (default: build/cpu). BENCHES: names of the executables (default: all).
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if (($# < 1)); then
    echo "usage: bench/run.sh OUT.json [options of Google Benchmark...]" >&2
    exit 2
fi
out="$1"
shift
build="${BUILD_DIR:-$root/build/cpu}"
options=(--benchmark_repetitions=5 --benchmark_report_aggregates_only=true "$@")
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
if [[ -z "${BENCHES:-}" ]]; then
    BENCHES="$(cd "$root/bench" && ls ./*_bench.cpp | sed 's|^\./||; s|\.cpp$||')"
fi
commit="$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)"
for bench in $BENCHES; do
    [[ -x "$build/bench/$bench" ]] || { echo "bench/run.sh: $build/bench/$bench is not there; build it first" >&2; exit 1; }
    "$build/bench/$bench" "${options[@]}" --benchmark_out="$work/$bench.json" --benchmark_out_format=json
done
[[ "$commit" == unknown || -z "$(git -C "$root" status --porcelain --untracked-files=no -- include src bench cmake CMakeLists.txt)" ]] || commit+="-dirty"
COMMIT="$commit" COMMAND="bench/run.sh $(basename "$out") ${options[*]}" python3 - "$work" "$out" <<'PYTHON'
import json, os, pathlib, platform, sys

work, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
result = {"commit": os.environ["COMMIT"], "command": os.environ["COMMAND"], "machine": {"cpu": cpu, "processors": os.cpu_count()}, "benchmarks": {}}
for path in sorted(work.glob("*.json")):
    report = json.loads(path.read_text())
    for key in ("mhz_per_cpu", "caches", "load_avg"):
        result["machine"].setdefault(key, report["context"].get(key))
    dropped = {"family_index", "per_family_instance_index", "run_name", "run_type", "repetitions", "repetition_index", "threads", "aggregate_unit"}
    result["benchmarks"][path.stem] = [{k: v for k, v in run.items() if k not in dropped} for run in report["benchmarks"]
                                       if run.get("aggregate_name") in (None, "median", "cv")]
out.parent.mkdir(parents=True, exist_ok=True)
out.write_text(json.dumps(result, indent=1) + "\n")
print(f"wrote {out}")
PYTHON
