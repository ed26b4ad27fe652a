#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the documentation from results: docs/images/NAME-light.svg and NAME-dark.svg of each.

  bench/figures/draw.py [--check] [NAME...]

With --check nothing is written: it is an error if a figure is not what its results give. Standard library alone."""
import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import plots  # noqa: E402
import terminal  # noqa: E402
import timeline  # noqa: E402
from svg import THEMES  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURES = {  # name: (what draws it, results)
    "accuracy": (plots.accuracy, ["accuracy", "accuracy-minmax"]),
    "moved": (plots.moved, ["moved"]),
    "residency": (plots.residency, ["residency"]),
    "speed": (plots.speed, ["speed-1024", "speed-2048", "speed-4096", "speed-7168"]),
    "step-timeline": (timeline.draw, ["timeline"]),
    "terminal": (terminal.draw, ["terminal"]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(FIGURES), metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    problems = 0
    for name in options.names:
        if name not in FIGURES:
            parser.error(f"there is no figure '{name}': expected {', '.join(FIGURES)}")
        function, files = FIGURES[name]
        results = [json.loads((ROOT / "bench/results/figures" / f"{file}.json").read_text(encoding="utf-8")) for file in files]
        for theme in THEMES:
            path = ROOT / "docs/images" / f"{name}-{theme.name}.svg"
            drawn = function(theme, *results)
            if not options.check:
                path.write_text(drawn, encoding="utf-8")
            elif not path.exists() or path.read_text(encoding="utf-8") != drawn:
                print(f"{path.relative_to(ROOT)} is not what its results give; run bench/figures/draw.py {name}")
                problems += 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
