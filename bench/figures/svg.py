# SPDX-License-Identifier: Apache-2.0
"""What the figures are drawn with: two themes, shapes, text, and a panel with axes. Colours are those of Okabe and Ito
(told apart by colour-blind readers), brighter on dark ground; lines differ by mark and dash as well."""
import dataclasses
from xml.sax.saxutils import escape

WIDTH = 820  # about the width of a README column, so that text keeps its size
SANS = "system-ui,-apple-system,'Segoe UI',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace"


@dataclasses.dataclass(frozen=True)
class Theme:
    name: str
    ground: str
    text: str
    faint: str  # text of less weight
    grid: str
    blue: str
    orange: str
    green: str
    purple: str
    sky: str
    grey: str
    ramp: tuple  # shades from nothing to everything


LIGHT = Theme("light", "#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#0072b2", "#d55e00", "#009e73", "#b0568b", "#56b4e9", "#8c959f",
              ("#f3f6f9", "#cfe1f0", "#9cc5e3", "#5fa3d1", "#2178b4", "#0b4778"))
DARK = Theme("dark", "#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#4ba3e3", "#ee8a3c", "#2fc49a", "#dc8fbf", "#8ccdf5", "#7d8590",
             ("#161b22", "#173450", "#1d5484", "#2d7cbd", "#6aaee3", "#cfe8ff"))
THEMES = (LIGHT, DARK)


def coordinate(value):
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def source(reports):
    machines = {f"{report['machine']['cpu']}, {report['machine']['cores']} cores" for report in reports}
    commits = {report["commit"] for report in reports}
    return f"oasis-decode of commit {', '.join(sorted(commits))} on {', '.join(sorted(machines))}"


def attributes(values):
    return "".join(f' {key.replace("_", "-")}="{coordinate(value) if isinstance(value, float) else value}"'
                   for key, value in values.items() if value is not None)


class Drawing:
    """A figure of `height`, below which stands where its results come from."""

    def __init__(self, theme, height, title, reports, width=WIDTH):
        self.theme = theme
        self.source, self.foot = source(reports), height + 10
        height += 22
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
                      f' font-family="{SANS}" font-size="14" role="img">',
                      f"<title>{escape(title)}</title>",
                      f'<rect width="{width}" height="{height}" rx="6" fill="{theme.ground}"/>']

    def shape(self, name, **values):
        self.parts.append(f"<{name}{attributes(values)}/>")

    def text(self, x, y, words, anchor="start", fill=None, size=None, weight=None, family=None, keep_spaces=False):
        values = attributes({"x": float(x), "y": float(y), "text_anchor": None if anchor == "start" else anchor,
                             "fill": fill or self.theme.text, "font_size": size, "font_weight": weight, "font_family": family,
                             "xml:space": "preserve" if keep_spaces else None})
        self.parts.append(f"<text{values}>{escape(str(words))}</text>")

    def line(self, x1, y1, x2, y2, stroke, width=1.0, dash=None):
        self.shape("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), stroke=stroke, stroke_width=float(width), stroke_dasharray=dash)

    def rect(self, x, y, width, height, fill, title=None):
        values = attributes({"x": float(x), "y": float(y), "width": float(width), "height": float(height), "fill": fill})
        self.parts.append(f"<rect{values}/>" if title is None else f"<rect{values}><title>{escape(title)}</title></rect>")

    def mark(self, kind, x, y, fill, size=5.0):
        if kind == "circle":
            self.shape("circle", cx=float(x), cy=float(y), r=size, fill=fill)
            return
        corners = {"square": [(-1, -1), (1, -1), (1, 1), (-1, 1)], "triangle": [(0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
                   "diamond": [(0, -1.35), (1.2, 0), (0, 1.35), (-1.2, 0)]}[kind]
        points = " ".join(f"{coordinate(x + dx * size)},{coordinate(y + dy * size)}" for dx, dy in corners)
        self.shape("polygon", points=points, fill=fill)

    def legend(self, x, y, entries):
        """Entries (text, colour, mark or None, dash): a piece of line with its mark, or a swatch where mark is None."""
        for words, colour, mark, dash in entries:
            if mark is None:
                self.rect(x, y - 11, 14, 14, colour)
                x += 20
            else:
                self.line(x, y - 5, x + 28, y - 5, colour, 2.0, dash)
                self.mark(mark, x + 14, y - 5, colour)
                x += 35
            self.text(x, y, words)
            x += 7.3 * len(words) + 22

    def done(self):
        self.text(24, self.foot, self.source, fill=self.theme.faint, size=12)
        return "\n".join(self.parts) + "\n</svg>\n"


class Panel:
    """A rectangle with axes: `x` and `y` take data to places. Ticks are (value, text)."""

    def __init__(self, drawing, box, x_ticks, y_ticks, x_label, y_label, scale=lambda value: value, y_range=None):
        self.drawing, self.scale = drawing, scale
        self.left, self.top, self.width, self.height = box
        self.x_low, self.x_high = scale(x_ticks[0][0]), scale(x_ticks[-1][0])
        self.y_low, self.y_high = y_range or (y_ticks[0][0], y_ticks[-1][0])
        theme = drawing.theme
        for value, words in y_ticks:
            drawing.line(self.left, self.y(value), self.left + self.width, self.y(value), theme.grid)
            drawing.text(self.left - 8, self.y(value) + 5, words, "end", theme.faint, 13)
        bottom = self.top + self.height
        for value, words in x_ticks:
            drawing.line(self.x(value), bottom, self.x(value), bottom + 5, theme.grid)
            drawing.text(self.x(value), bottom + 20, words, "middle", theme.faint, 13)
        drawing.text(self.left + self.width / 2, bottom + 42, x_label, "middle")
        drawing.text(self.left - 40, self.top - 14, y_label)

    def x(self, value):
        return self.left + 16 + (self.scale(value) - self.x_low) / (self.x_high - self.x_low) * (self.width - 32)

    def y(self, value):
        return self.top + (self.y_high - value) / (self.y_high - self.y_low) * self.height

    def series(self, points, colour, mark, dash=None, shift=0.0):
        """Points (x, y) or (x, y, low, high): a line with marks, and intervals. `shift` moves it aside, in pixels."""
        drawing = self.drawing
        places = [(self.x(point[0]) + shift, self.y(point[1])) for point in points]
        drawing.shape("polyline", points=" ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in places), fill="none",
                      stroke=colour, stroke_width=2.0, stroke_dasharray=dash)
        for (x, y), point in zip(places, points):
            for end in point[2:]:
                drawing.line(x, y, x, self.y(end), colour, 1.5)
                drawing.line(x - 4, self.y(end), x + 4, self.y(end), colour, 1.5)
            drawing.mark(mark, x, y, colour)
