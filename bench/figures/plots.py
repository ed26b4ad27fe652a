# SPDX-License-Identifier: Apache-2.0
"""Figures from reports of oasis-decode: accuracy, bytes moved, speed and memory, residency."""
import math

from svg import Drawing, Panel, WIDTH, coordinate


def of_summary(report, summary):
    return [c for c in report["configurations"] if c["options"]["summary"] == summary]


def thousands(values):
    return [(value, f"{value:,}") for value in values]


def accuracy(theme, spread, minmax):
    """Share of generated tasks whose answer is right in every token, with 95 % Wilson intervals, by attend budget."""
    series = [("spread2-int4", of_summary(spread, "spread2-int4"), theme.blue, "circle", None, 0.0),
              ("cuboid4-int4", of_summary(spread, "cuboid4-int4"), theme.green, "square", "7 4", -7.0),
              ("minmax16-f16", of_summary(minmax, "minmax16-f16"), theme.orange, "triangle", "2 4", 7.0)]
    out = Drawing(theme, 360, "Accuracy against the attend budget", [spread, minmax])
    budgets = sorted({c["options"]["attend_budget"] for _, configurations, *_ in series for c in configurations})
    panel = Panel(out, (64, 70, WIDTH - 84, 232), thousands(budgets), [(p, f"{p} %") for p in range(0, 101, 20)],
                  "tokens read per KV head at most (attend budget)", f"Answers exact in every token, of {spread['items']} tasks",
                  math.log2)
    dense = 100 * spread["dense"]["exact"] / spread["dense"]["items"]
    out.line(panel.left, panel.y(dense), panel.left + panel.width, panel.y(dense), theme.text, 1.5, "1 3")
    for _, configurations, colour, mark, dash, shift in series:
        panel.series([(c["options"]["attend_budget"], 100 * c["exact"] / c["items"], 100 * c["exact_low"], 100 * c["exact_high"])
                      for c in configurations], colour, mark, dash, shift)
    out.legend(24, 26, [(name, colour, mark, dash) for name, _, colour, mark, dash, _ in series])
    out.text(WIDTH - 20, 26, f"dotted: dense attention, {dense:.1f} %", "end")
    return out.done()


def token_bytes(report):
    """Bytes of K and V of one token in f32, all layers."""
    model = report["model"]
    return model["layers"] * model["kv_heads"] * model["head_dim"] * 2 * 4


def moved(theme, report):
    """Bytes fetched per step by size of the logically resident set, a line per fetch budget."""
    styles = [(theme.orange, "triangle", "2 4"), (theme.green, "square", "7 4"), (theme.blue, "circle", None)]
    fetches = sorted({c["options"]["fetch_budget"] for c in report["configurations"]}, reverse=True)
    lines = [[(c["options"]["logical_resident"], c["fetched_tokens"] * token_bytes(report) / 2**20)
              for c in report["configurations"] if c["options"]["fetch_budget"] == fetch] for fetch in fetches]
    top = math.ceil(max(y for line in lines for _, y in line))
    out = Drawing(theme, 340, "Bytes moved against the resident set", [report])
    panel = Panel(out, (64, 70, WIDTH - 84, 212), thousands([x for x, _ in lines[0]]),
                  [(y, f"{y:g}") for y in (top * i / 4 for i in range(5))], "logical_resident, tokens per KV head",
                  "MiB fetched per decode step")
    for line, (colour, mark, dash) in zip(lines, styles):
        panel.series(line, colour, mark, dash)
    attend = report["options"]["attend_budget"]
    out.legend(24, 26, [(f"fetch budget {fetch:,}" + (" (plain top-k)" if fetch == attend else ""), *style)
                        for fetch, style in zip(fetches, styles)])
    return out.done()


def nice_ticks(highest, fewest=4):
    """Ticks from 0 in steps of 1, 2 or 5 times a power of ten that end as little above `highest` as they can."""
    power = 10 ** math.floor(math.log10(highest / fewest))
    step, count = min(((m * power, n) for m in (1, 2, 5, 10) for n in range(fewest, fewest + 3) if m * power * n >= highest),
                      key=lambda pair: (pair[0] * pair[1], pair[1]))
    return [(step * i, f"{step * i:g}") for i in range(count + 1)]


def speed(theme, *runs):
    """Tokens per second and K and V in fast memory by length of the context, sparse beside dense."""
    points = sorted((run["configurations"][0]["prompt_tokens"], run["configurations"][0]) for run in runs)
    out = Drawing(theme, 340, "Speed and memory against the context", runs)
    ticks = thousands([tokens for tokens, _ in points])
    half = (WIDTH - 168) / 2
    pairs = [(64, "Tokens per second", lambda c: (c["tokens_per_second"], c["dense_tokens_per_second"])),
             (64 + half + 84, "MiB of KV in fast memory", lambda c: (c["fast_bytes"] / 2**20, c["dense_kv_bytes"] / 2**20))]
    sparse, dense = (theme.blue, "circle", None), (theme.orange, "triangle", "2 4")
    for left, label, values in pairs:
        highest = max(max(values(c)) for _, c in points)
        panel = Panel(out, (left, 70, half, 212), ticks, nice_ticks(highest), "tokens of context", label)
        panel.series([(tokens, values(c)[1]) for tokens, c in points], *dense)
        panel.series([(tokens, values(c)[0]) for tokens, c in points], *sparse)
    attend = points[0][1]["options"]["attend_budget"]
    out.legend(24, 26, [(f"sparse, attend budget {attend:,}", *sparse), ("dense", *dense)])
    return out.done()


def runs_of(values):
    """Runs of equal values: (value, begin, end)."""
    begin = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[begin]:
            yield values[begin], begin, end
            begin = end


def residency(theme, report):
    """Block by step: how many of a block's units are in fast memory. Below, what each step fetched."""
    grid = report["residency"]
    steps, units, block = grid["steps"], grid["units"], grid["block_tokens"]
    last = len(theme.ramp) - 1
    blocks = len(steps[-1]["resident"])
    out = Drawing(theme, 560, "Which blocks are in fast memory, step by step", [report])
    left, top, width, height = 64, 70, WIDTH - 84, 330
    cell, row = width / len(steps), height / blocks
    paths = [[] for _ in theme.ramp]
    for at in range(blocks):
        shades = [math.ceil(step["resident"][at] / units * last) if at < len(step["resident"]) else -1 for step in steps]
        y = top + height - (at + 1) * row
        for shade, begin, end in runs_of(shades):
            if shade >= 0:
                paths[shade].append(f"M{coordinate(left + begin * cell)} {coordinate(y)}h{coordinate((end - begin) * cell)}v{row:.2f}h-{coordinate((end - begin) * cell)}z")
    for shade, pieces in zip(theme.ramp, paths):
        out.shape("path", d="".join(pieces), fill=shade, shape_rendering="crispEdges")
    for tokens in range(0, steps[-1]["tokens"], 512):
        y = top + height - tokens / block * row
        out.line(left - 5, y, left, y, theme.grid)
        out.text(left - 8, y + 5, f"{tokens:,}", "end", theme.faint, 13)
    out.text(left - 40, top - 14, "Position in the text, tokens")
    x = WIDTH - 20 - 6 * 26 - 70
    out.text(x - 10, 26, f"of a block's {units} parts (layer, KV head) in fast memory:  none", "end")
    for shade in theme.ramp:
        out.rect(x, 12, 26, 18, shade)
        x += 26
    out.text(x + 10, 26, "all")
    bars(theme, out, report, (left, top + height + 44, width, 56))
    return out.done()


def bars(theme, out, report, box):
    grid = report["residency"]
    left, top, width, height = box
    unit_mib = token_bytes(report) * grid["block_tokens"] / grid["units"] / 2**20
    values = [step["demand"] * unit_mib for step in grid["steps"]]
    ticks = nice_ticks(sorted(values)[-2], 2)  # the first step fills the set: cut off
    cell = width / len(values)
    for value, words in ticks:
        y = top + height * (1 - value / ticks[-1][0])
        out.line(left, y, left + width, y, theme.grid)
        out.text(left - 8, y + 5, words, "end", theme.faint, 13)
    for at, value in enumerate(values):
        tall = min(value / ticks[-1][0], 1) * height
        out.rect(left + at * cell + 0.5, top + height - tall, cell - 1, tall, theme.orange)
    for step in range(0, len(values) + 1, 16):
        out.text(left + step * cell, top + height + 20, step, "middle", theme.faint, 13)
    out.text(left - 40, top - 14, "MiB fetched by the step")
    out.text(left + width / 2, top + height + 42, "decode step", "middle")
