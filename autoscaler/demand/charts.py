"""Pictures of the seven inputs. Colours are classes of page.css."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.report.charts import NARROW, NARROW_LEFT, RIGHT, draw_axis, picture, x_label
from autoscaler.lab.report.svg import Scale, element, nice_ticks, step_path, text
from autoscaler.report.charts import DAY_S, ChartLine, label_times, thin

TOP, TALL, LOW = 12.0, 110.0, 22.0
HEIGHT = TOP + TALL + LOW
POINTS = 500
BAR = 20.0
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def by_hour(title: str, unit: str, lines: Sequence[ChartLine]) -> str:
    """Draw values of the 24 hours of the day, float64[24] each; NaN: never seen."""
    marks = [(float(hour), f"{hour:02d}:00") for hour in range(0, 24, 4)]
    return _steps(title, unit, np.arange(24.0), 24.0, marks, lines)


def by_weekday(title: str, unit: str, lines: Sequence[ChartLine]) -> str:
    """Draw values of the days of the week, float64[7] each, Monday first; NaN: never seen."""
    marks = [(day + 0.5, name) for day, name in enumerate(WEEKDAYS)]
    return _steps(title, unit, np.arange(7.0), 7.0, marks, lines)


def course(title: str, unit: str, at_s: FloatColumn, line: ChartLine, limit: float = np.nan) -> str:
    """Draw values over the span. at_s: Unix times, ascending. limit: a dashed line; NaN: none."""
    at_s, lines = thin(at_s, [line], POINTS)
    x = Scale(float(at_s[0]), float(at_s[-1]) + 3600.0, NARROW_LEFT, NARROW - RIGHT)
    parts = _drawn(x, _y(lines, limit), at_s, unit, lines, limit)
    return picture(title, HEIGHT, [*parts, *label_times(x, HEIGHT - 5, DAY_S, "%d %b")], NARROW)


def dots(title: str, unit: str, points: Sequence[tuple[float, float]], limit: float) -> str:
    """Draw points of minutes and heights, and a line at the minutes `limit`."""
    points = [point for point in points if np.isfinite(point).all()][:POINTS]
    last = nice_ticks(0.0, max([minutes for minutes, _ in points] + [1.2 * limit, 1.0]), 4)[-1]
    x = Scale(0.0, last, NARROW_LEFT, NARROW - RIGHT)
    y = Scale(0.0, nice_ticks(0.0, max([height for _, height in points] + [1.0]), 4)[-1], TOP + TALL, TOP)
    parts = draw_axis(x, y, unit)
    line = element("line", class_="limit", x1=x(limit), x2=x(limit), y1=TOP, y2=TOP + TALL)
    parts += [line, text("cold start", x(limit) + 5, TOP + 10, class_="label limit-label")]
    parts += [element("circle", class_="point column-1", cx=x(at), cy=y(height), r=4.0) for at, height in points]
    parts += [x_label(x, at, HEIGHT - 5, f"{at:g} min") for at in nice_ticks(0.0, last, 4)]
    return picture(title, HEIGHT, parts, NARROW)


def bars(title: str, rows: Sequence[tuple[str, float, str]], limit: float = np.nan) -> str:
    """Draw bars: name, value and text of each; NaN: not known. limit: a dashed line; NaN: none."""
    high = max([value for _, value, _ in rows if np.isfinite(value)] + [0.0 if np.isnan(limit) else limit]) or 1.0
    x = Scale(0.0, 1.3 * high, NARROW_LEFT, NARROW - RIGHT)
    parts = []
    for number, (name, value, said) in enumerate(rows):
        y = TOP + number * (BAR + 6)
        wide = x(min(value, high)) - x.start_px if np.isfinite(value) else 0.0
        parts.append(text(name, x.start_px - 8, y + 14, class_="label", text_anchor="end"))
        parts.append(element("rect", class_="area column-1", x=x.start_px, y=y, width=max(wide, 0.0), height=BAR))
        parts.append(text(said, x.start_px + wide + 6, y + 14, class_="label"))
    end = TOP + len(rows) * (BAR + 6)
    if np.isfinite(limit):
        parts.append(element("line", class_="limit", x1=x(limit), x2=x(limit), y1=TOP - 4, y2=end))
    return picture(title, end + 6, parts, NARROW)


def _steps(
    title: str, unit: str, at: FloatColumn, end: float, marks: Sequence[tuple[float, str]], lines: Sequence[ChartLine]
) -> str:
    x = Scale(0.0, end, NARROW_LEFT, NARROW - RIGHT)
    parts = _drawn(x, _y(lines, np.nan), at, unit, lines, np.nan)
    return picture(title, HEIGHT, [*parts, *(x_label(x, *mark[:1], HEIGHT - 5, mark[1]) for mark in marks)], NARROW)


def _y(lines: Sequence[ChartLine], limit: float) -> Scale:
    highest = max((float(np.nanmax(values, initial=0.0)) for _, values in lines), default=0.0)
    return Scale(0.0, nice_ticks(0.0, max(highest, np.nan_to_num(limit), 1.0), 4)[-1], TOP + TALL, TOP)


def _drawn(x: Scale, y: Scale, at: FloatColumn, unit: str, lines: Sequence[ChartLine], limit: float) -> list[str]:
    parts = draw_axis(x, y, unit)
    px = [x(each) for each in (*at.tolist(), x.high)]
    for number, (css_class, values) in enumerate(lines):
        heights = [y(value) for value in (*values.tolist(), float(values[-1]))]
        if number == 0:
            parts.append(element("path", class_=f"area {css_class}", d=step_path(px, heights, y(0.0))))
        parts.append(element("path", class_=f"line {css_class}", d=step_path(px, heights)))
    if np.isfinite(limit):
        parts.append(element("line", class_="limit", x1=x.start_px, x2=x.end_px, y1=y(limit), y2=y(limit)))
    return parts
