#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Merges the results of the CUDA benchmarks into one flat file of headline numbers. What was not measured is left out.

    bench/make_h200_summary.py [--commit HASH] FOLDER_OR_FILE... OUT.json
"""
import argparse
import datetime
import json
import pathlib


def attend_keys():
    keys = {f"attend_bf16_us_b{batch}": ("attend", f"bf16/block16/batch{batch}", "us") for batch in (1, 4, 16, 64, 256)}
    return keys | {"attend_int8_us_b64": ("attend", "int8/block16/batch64", "us")}


# key: (benchmark, row, number); score and select are one row, resolve has its own.
KEYS = attend_keys() | {
    "score_hbm_share_b64_128k_q8": ("score", "spread2_b64_128k_q8", "hbm_share"),
    "score_hbm_share_b64_128k_q32": ("score", "spread2_b64_128k_q32", "hbm_share"),
    "resolve_us_b8_128k": ("resolve", "b8_128k_verify1_lookahead1", "resolve_us"),
    "resolve_us_b64_32k": ("resolve", "b64_32k_verify1_lookahead1", "resolve_us"),
    "score_select_us_b8_128k": ("score", "spread2_b8_128k_q8", "score_select_us"),
    "score_select_us_b64_32k": ("score", "spread2_b64_32k_q8", "score_select_us"),
    "select_us_64x8192": ("select", "64x8192", "select_us"),
    "select_us_512x2048": ("select", "512x2048", "select_us"),
    "select_us_512x8192": ("select", "512x8192", "select_us"),
    "fetch_gbps_4224_4cta": ("fetch", "gather/4224/4x1024", "gbps"),
    "fetch_gbps_8192_4cta": ("fetch", "gather/8192/4x1024", "gbps"),
    "fetch_gbps_beside": ("fetch", "gather/4224/8x512", "gbps_beside"),
    "beside_loss": ("fetch", "gather/4224/8x512", "hbm_loss"),
    "pin_gbps": ("pin", "pin/16GiB/huge/1GiB/8", "gbps"),
    "hbm_read_gbps": ("score", "hbm_read", "gbps"),
    "hbm_read_gbps_beside": ("fetch", "hbm_read", "gbps"), # of the kernel that runs beside the fetches
}


def read(paths):
    """{benchmark: (report, {row: numbers})} of every file cuda-<benchmark>.json."""
    files = [file for path in paths for file in (sorted(path.glob("cuda-*.json")) if path.is_dir() else [path])]
    found = {}
    for file in files:
        report = json.loads(file.read_text())
        found[file.stem.removeprefix("cuda-")] = (report, {row["name"]: row for row in report["results"]})
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="of the whole; default: each benchmark's own")
    parser.add_argument("inputs", nargs="+", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()

    found = read(arguments.inputs)
    each = {key: {name: report[key] for name, (report, _) in found.items()} for key in ("commit", "command")}
    machines = {report["machine"]["gpu"] for report, _ in found.values()}
    summary = {"commit": arguments.commit or each["commit"], "command": each["command"], "machine": ", ".join(sorted(machines)),
               "date": datetime.date.today().isoformat()}
    headlines = 0
    for key, (name, row, number) in KEYS.items():
        value = found.get(name, ({}, {}))[1].get(row, {}).get(number)
        if value is not None:
            summary[key] = value
            headlines += 1
    arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"wrote {arguments.out}: {headlines} of {len(KEYS)} numbers")


if __name__ == "__main__":
    main()
