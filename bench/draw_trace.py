#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws some steps of a trace (oasis-decode run --trace FILE) as SVG: what computed, what was waited for, what came ahead.

  bench/draw_trace.py TRACE.json OUT.svg [--steps 2] [--from STEP]

Without --from: the steps in which most was copied ahead.
"""
import argparse
import json
from xml.sax.saxutils import escape

COMPUTE = {"append": "#8a8f98", "seal": "#8a8f98", "score": "#4c78a8", "select": "#72a0c1", "resolve": "#9ecae9",
           "prefetch": "#9ecae9", "fetch": "#f58518", "attend": "#54a24b", "prefill": "#54a24b"}
DEMAND, PREFETCH = "#e45756", "#b279a2"
LEFT, WIDTH, LANE, GAP, TOP = 90, 1000, 22, 8, 34


def spans_of(path):
    events = json.load(open(path, encoding="utf-8"))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
    spans = [(names[e["tid"]], e["name"], e["ts"], e["dur"], e.get("args", {})) for e in events
             if e.get("ph") == "X" and e["tid"] in names and names[e["tid"]] != "residency"]
    return sorted(spans, key=lambda s: s[2])


def step_starts(spans):
    return [ts for lane, name, ts, _, args in spans if lane == "compute" and name == "append" and args.get("layer") == 0]


def busiest(spans, starts, steps):
    ahead = [ts for lane, _, ts, _, _ in spans if lane.startswith("prefetch")]
    count = lambda i: sum(starts[i] <= ts < starts[i + steps] for ts in ahead)
    return max(range(1, len(starts) - steps), key=count)


def draw(spans, starts, first, steps):
    begin, end = starts[first], starts[first + steps]
    lanes = sorted({s[0] for s in spans if begin <= s[2] < end}, key=lambda n: (["compute", "demand", "prefetch"].index(n.split()[0]), n))
    height = TOP + len(lanes) * (LANE + GAP) + 46
    x = lambda ts: LEFT + (ts - begin) / (end - begin) * WIDTH
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" font-family="sans-serif" font-size="12">',
           "<style>text{fill:#24292f}.grid{stroke:#d0d7de}@media (prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#444c56}}</style>"]
    for i in range(first, first + steps):
        at = x(starts[i])
        out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 12}" y2="{height - 40}"/>')
        out.append(f'<text x="{at + 4:.1f}" y="{TOP - 14}">step {i}</text>')
    for n, lane in enumerate(lanes):
        y = TOP + n * (LANE + GAP)
        out.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(lane)}</text>')
        for name, ts, dur, args in [s[1:] for s in spans if s[0] == lane and s[2] < end and s[2] + s[3] > begin]:
            left, right = max(x(ts), LEFT), min(x(ts + dur), LEFT + WIDTH)
            colour = COMPUTE.get(name, "#8a8f98") if lane == "compute" else DEMAND if lane.startswith("demand") else PREFETCH
            layer = f" layer {args['layer']}" if "layer" in args and lane == "compute" else ""
            out.append(f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 0.4):.1f}" height="{LANE}" fill="{colour}"><title>{escape(name + layer)}, {dur:.0f} us</title></rect>')
    legend = [("score", COMPUTE["score"]), ("select, resolve", COMPUTE["select"]), ("attend", COMPUTE["attend"]), ("append, seal", COMPUTE["append"]),
              ("waited for", DEMAND), ("copied ahead", PREFETCH)]
    at = LEFT
    for text, colour in legend:
        out.append(f'<rect x="{at}" y="{height - 22}" width="12" height="12" fill="{colour}"/><text x="{at + 17}" y="{height - 12}">{text}</text>')
        at += 30 + 7 * len(text)
    out.append(f'<text x="{LEFT + WIDTH}" y="{height - 12}" text-anchor="end">{(end - begin) / 1000:.1f} ms; gaps in compute are the model\'s own work</text></svg>')
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--from", dest="first", type=int)
    options = parser.parse_args()
    spans = spans_of(options.trace)
    starts = step_starts(spans)
    if len(starts) < options.steps + 2:
        raise SystemExit(f"{options.trace}: {len(starts)} steps are too few to draw {options.steps}")
    first = busiest(spans, starts, options.steps) if options.first is None else options.first
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(draw(spans, starts, first, options.steps))


if __name__ == "__main__":
    main()
