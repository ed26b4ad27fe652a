#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of a trace (oasis-decode run --trace FILE): what computed, what was waited for, what came ahead.

  bench/figures/timeline.py TRACE.json REPORT.json OUT.json [--steps 2] [--from STEP]

keeps the spans of some steps, with the commit, machine and options of the run's report (--json). Without --from: of the
steps in which something was waited for, if any, those in which most was copied ahead. `draw.py` makes a figure of it.
"""
import argparse
import json
import pathlib

from svg import Drawing, WIDTH

LANE, GAP, TOP, LEFT = 22, 8, 66, 96
STAGES = {"score": "score", "select": "select", "resolve": "select", "prefetch": "select", "attend": "attend", "prefill": "attend"}


def spans_of(trace):
    events = trace["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
    spans = [{"lane": lanes[e["tid"]], "name": e["name"], "at": e["ts"], "us": e["dur"], "layer": e["args"]["layer"]} for e in events
             if e.get("ph") == "X" and lanes.get(e["tid"], "residency") != "residency"]
    return sorted(spans, key=lambda span: span["at"])


def worth(spans, begin, end):
    """Whether anything was waited for, then how much was copied ahead."""
    lanes = [s["lane"].split()[0] for s in spans if begin <= s["at"] < end]
    return "demand" in lanes, lanes.count("prefetch")


def keep(trace, report, steps, first):
    spans = spans_of(trace)
    starts = [s["at"] for s in spans if s["lane"] == "compute" and s["name"] == "append" and s["layer"] == 0]
    if len(starts) < steps + 2:
        raise SystemExit(f"the trace has {len(starts)} steps, too few to keep {steps}")
    if first is None:
        first = max(range(1, len(starts) - steps), key=lambda i: worth(spans, starts[i], starts[i + steps]))
    begin, end = starts[first], starts[first + steps]
    kept = {key: report[key] for key in ("schema_version", "program", "version", "commit", "command", "machine", "model", "options")}
    kept["first_step"] = first
    kept["step_starts_us"] = [round(at - begin, 1) for at in starts[first:first + steps + 1]]
    kept["spans"] = [[s["lane"], s["name"], round(s["at"] - begin, 1), round(s["us"], 1), s["layer"]]
                     for s in spans if s["at"] < end and s["at"] + s["us"] > begin]
    return kept


def draw(theme, timeline):
    starts, spans = timeline["step_starts_us"], timeline["spans"]
    order = ["compute", "demand", "prefetch"]
    lanes = sorted({lane for lane, *_ in spans}, key=lambda lane: (order.index(lane.split()[0]), lane))
    colours = {"score": theme.blue, "select": theme.sky, "attend": theme.green, "demand": theme.orange, "prefetch": theme.purple}
    bottom = TOP + len(lanes) * (LANE + GAP)
    out = Drawing(theme, bottom + 54, "Decode steps: stages, transfers waited for, transfers ahead", [timeline])
    width = WIDTH - LEFT - 20
    x = lambda at: LEFT + min(max(at / starts[-1], 0), 1) * width
    out.legend(24, 24, [("score", colours["score"], None, None), ("select, resolve", colours["select"], None, None),
                        ("attend", colours["attend"], None, None), ("append, seal", theme.grey, None, None),
                        ("waited for", colours["demand"], None, None), ("copied ahead", colours["prefetch"], None, None)])
    for i, at in enumerate(starts):
        out.line(x(at), TOP - 18, x(at), bottom, theme.grid)
        if at < starts[-1]:
            out.text(x(at) + 5, TOP - 8, f"step {timeline['first_step'] + i}", fill=theme.faint, size=13)
    for n, lane in enumerate(lanes):
        y = TOP + n * (LANE + GAP)
        out.text(LEFT - 8, y + 16, lane, "end")
        for _, name, at, us, layer in (span for span in spans if span[0] == lane):
            kind = STAGES.get(name) if lane.startswith("compute") else lane.split()[0]
            title = f"{name}, layer {layer}, {us:.0f} us" if lane.startswith("compute") else f"{name}, {us:.0f} us"
            out.rect(x(at), y, max(x(at + us) - x(at), 0.4), LANE, colours.get(kind, theme.grey), title)
    milliseconds = int(starts[-1] / 1000)
    for tick in range(0, milliseconds + 1, max(1, milliseconds // 8)):
        out.line(x(1000 * tick), bottom, x(1000 * tick), bottom + 5, theme.grid)
        out.text(x(1000 * tick), bottom + 20, tick, "middle", theme.faint, 13)
    out.text(LEFT + width / 2, bottom + 40, "time, ms (gaps in compute are the model's own work)", "middle")
    return out.done()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--from", dest="first", type=int)
    options = parser.parse_args()
    kept = keep(json.loads(options.trace.read_text()), json.loads(options.report.read_text()), options.steps, options.first)
    options.out.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
