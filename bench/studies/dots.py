"""Charts of many comparisons: rows of dots with their intervals; and any chart as a file of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import NamedTuple

from autoscaler.lab import report
from autoscaler.lab.compare.result import OURS
from autoscaler.lab.report.charts import RIGHT, WIDTH, css_classes, picture
from autoscaler.lab.report.format import amount
from autoscaler.lab.report.svg import Scale, element, text

STYLE = """
.whisker { stroke: var(--text); stroke-width: 1.5; }
.dot { fill: currentColor; stroke: currentColor; stroke-width: 1.6; }
.dot.hollow { fill: var(--card); }
"""


class Dot(NamedTuple):
    """A value with its interval; NaN: unknown. A hollow dot missed the goal."""

    value: float
    low: float = math.nan
    high: float = math.nan
    hollow: bool = False


def dots(title: str, rows: Mapping[str, Mapping[str, Dot]], unit: str) -> str:
    """Draw a row of dots for each case on one log axis: {row: {name: dot}}. Only positive values are drawn."""
    line, head, left = 18.0, 30.0, 300.0
    names = list(dict.fromkeys(name for each in rows.values() for name in each))
    classes = css_classes(names)
    known = [value for each in rows.values() for dot in each.values() for value in dot[:3] if 0 < value < math.inf]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    x = Scale(math.log10(low * 0.95), math.log10(high * 1.05), left, WIDTH - RIGHT)
    foot = head + line * len(rows) + 6
    ticks = [step * 10.0**power for power in range(-3, 7) for step in (1, 2, 5)]
    parts, legend = [], left
    for tick in (tick for tick in ticks if low * 0.95 <= tick <= high * 1.05):
        at = x(math.log10(tick))
        parts.append(element("line", class_="grid", x1=at, x2=at, y1=head - 6, y2=foot))
        parts.append(text(amount(tick), at, foot + 14, class_="label", text_anchor="middle"))
    for name in names:
        parts.append(element("circle", class_=f"dot {classes[name]}", cx=legend, cy=10.0, r=5.0))
        parts.append(text(name, legend + 9, 14.0, class_="label"))
        legend += 30 + 7.0 * len(name)
    for place, (row, each) in enumerate(rows.items()):
        middle = head + line * (place + 0.5)
        parts.append(text(row, left - 12, middle + 4, class_="label", text_anchor="end"))
        for name, dot in sorted(each.items(), key=lambda entry: entry[0] == OURS):  # ours on top
            parts.append(_dot(name, dot, f"{row}, {name}", classes[name], x, middle))
    parts.append(text(unit, WIDTH - RIGHT, foot + 30, class_="label", text_anchor="end"))
    return picture(title, foot + 38, parts)


def _dot(name: str, dot: Dot, said: str, css_class: str, x: Scale, middle: float) -> str:
    if not 0 < dot.value < math.inf:
        return ""
    drawn = []
    if 0 < dot.low < dot.high < math.inf:
        ends = x(math.log10(dot.low)), x(math.log10(dot.high))
        drawn.append(element("line", class_="whisker", x1=ends[0], x2=ends[1], y1=middle, y2=middle))
    title = f"<title>{escape(f'{said}: {dot.value:.2f}')}{', misses the goal' if dot.hollow else ''}</title>"
    shape = f"dot {css_class}{' hollow' if dot.hollow else ''}"
    drawn.append(element("circle", title, class_=shape, cx=x(math.log10(dot.value)), cy=middle, r=5.0))
    return "".join(drawn)


def standalone(svg: str) -> str:
    """Return a chart as a file of its own, with the colours of the page, for light and dark mode."""
    style = files(report).joinpath("page.css").read_text("utf-8") + STYLE
    head, closed, rest = svg.partition(">")
    return f"{head}{closed}<style>{escape(style, quote=False)}</style>{rest}\n"
