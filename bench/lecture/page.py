# SPDX-License-Identifier: Apache-2.0
"""What a sweep comes to: prose, tables in markdown, descriptions of charts."""

MIB = 2.0 ** 20


class Section:
    def __init__(self, file, title, says):
        self.file, self.title, self.says = file, title, says
        self.blocks, self.charts = [], []

    def table(self, heads, rows):
        """heads: "what (measured)" or "what (simulated, on what)"."""
        lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
        self.blocks.append("\n".join(lines))

    def note(self, text):
        self.blocks.append(text)

    def lines(self, title, x, y, series, log=True):
        """series: (name, xs, ys) or (name, xs, ys, colour, points)."""
        keys = ("name", "x", "y", "colour", "points")
        self.charts.append({"file": f"{self.file}.svg", "title": title,
                            "x": {"label": x, "log": log}, "y": {"label": y},
                            "series": [dict(zip(keys, one)) for one in series]})

    def bars(self, title, value, rows, series):
        self.charts.append({"file": f"{self.file}.svg", "title": title, "value": {"label": value},
                            "rows": rows,
                            "series": [{"name": n, "values": v} for n, v in series]})

    def text(self, folder):
        """Markdown, with pictures in `folder`."""
        pictures = [f"![{chart['title']}]({folder}/{chart['file']})" for chart in self.charts]
        return "\n\n".join([f"### {self.title}", self.says, *self.blocks, *pictures])


def cell(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def percent(share):
    return None if share is None else f"{100 * share:.1f}"
