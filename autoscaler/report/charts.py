"""Charts of a report: GPUs by hour, and a day of one service with its counts and queues.

Colours are classes of page.css: `column-0` for the real counts, `column-1` for this policy, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.report.charts import LEFT, NARROW, NARROW_LEFT, RIGHT, WIDTH, draw_axis, picture, x_label
from autoscaler.lab.report.svg import LABEL_PX, Scale, element, nice_ticks, step_path

DAY_S, HOUR_S = 86_400.0, 3600.0
DAY_POINTS = 144
"""Drawn points of a day: one for ten minutes."""

HOUR_POINTS = 1000
"""Drawn points of the total."""


class ChartLine(NamedTuple):
    """A line of a chart."""

    css_class: str
    values: FloatColumn  # float64[n]; NaN: not known, so a gap


def gpus_by_hour(at_s: FloatColumn, lines: Sequence[ChartLine]) -> str:
    """Draw the GPUs of all services in each hour. at_s: float64[H], Unix times."""
    top, tall, low = 12.0, 200.0, 26.0
    at_s, lines = thin(at_s, lines, HOUR_POINTS)
    x = Scale(float(at_s[0]), float(at_s[-1]) + HOUR_S, LEFT, WIDTH - RIGHT)
    y = Scale(0.0, _top(lines), top + tall, top)
    parts = draw_axis(x, y, "GPUs")
    parts += _paths(x, y, at_s, x.high, lines)
    parts += label_times(x, top + tall + low - 6, DAY_S, "%a %d %b")
    return picture("GPUs by hour", top + tall + low, parts)


def day(at_s: FloatColumn, counts: Sequence[ChartLine], queues: Sequence[ChartLine]) -> str:
    """Draw a day of one service: replicas of each column, and below them its queues. at_s: float64[n], Unix times."""
    top, tall, gap, low, bottom = 10.0, 84.0, 14.0, 46.0, 22.0
    step_s = float(at_s[1] - at_s[0]) if len(at_s) > 1 else DAY_S
    shown_s, counts = thin(at_s, counts, DAY_POINTS)
    _, queues = thin(at_s, queues, DAY_POINTS)
    x = Scale(float(at_s[0]), float(at_s[-1]) + step_s, NARROW_LEFT, NARROW - RIGHT)
    replicas = Scale(0.0, _top(counts), top + tall, top)
    waiting = Scale(0.0, _top(queues), top + tall + gap + low, top + tall + gap)
    parts = [*draw_axis(x, replicas, "replicas"), *_paths(x, replicas, shown_s, x.high, counts)]
    parts += [*draw_axis(x, waiting, "waiting"), *_paths(x, waiting, shown_s, x.high, queues)]
    height = top + tall + gap + low + bottom
    parts += label_times(x, height - 5, HOUR_S, "%H:%M")
    return picture("A day: replicas and waiting requests", height, parts, NARROW)


def _paths(x: Scale, y: Scale, at_s: FloatColumn, end_s: float, lines: Sequence[ChartLine]) -> list[str]:
    at = [x(time_s) for time_s in (*at_s.tolist(), end_s)]
    drawn = []
    for number, (css_class, values) in enumerate(lines):
        heights = [y(value) for value in (*values.tolist(), float(values[-1]))]
        if number == 0:
            drawn.append(element("path", class_=f"area {css_class}", d=step_path(at, heights, y(0.0))))
        drawn.append(element("path", class_=f"line {css_class}", d=step_path(at, heights)))
    return drawn


def label_times(x: Scale, y_px: float, unit_s: float, written: str) -> list[str]:
    """Label times at multiples of a unit, UTC."""
    least_s = (x.high - x.low) / (x.end_px - x.start_px) * LABEL_PX
    every_s = unit_s * next(step for step in (1, 2, 3, 4, 6, 7, 12, 14, 28, 56, 112, 366) if step * unit_s >= least_s)
    first_s = -(-x.low // every_s) * every_s
    return [
        x_label(x, at_s, y_px, datetime.fromtimestamp(at_s, UTC).strftime(written))
        for at_s in np.arange(first_s, x.high, every_s).tolist()
    ]


def thin(at_s: FloatColumn, lines: Sequence[ChartLine], points: int) -> tuple[FloatColumn, list[ChartLine]]:
    """Reduce lines to at most this many points. Each keeps the highest value of its interval, so peaks survive."""
    if len(at_s) <= points:
        return at_s, list(lines)
    starts = np.linspace(0, len(at_s), points, endpoint=False).astype(np.int64)
    return at_s[starts], [ChartLine(name, np.fmax.reduceat(values, starts)) for name, values in lines]


def _top(lines: Sequence[ChartLine]) -> float:
    highest = max((float(np.nanmax(values, initial=0.0)) for _, values in lines), default=0.0)
    return nice_ticks(0.0, max(highest, 1.0), 4)[-1]
