"""SVG building blocks: elements, scales, ticks, paths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

LABEL_PX = 80.0  # width of a time label
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
_TIME_STEPS_S = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800)


def element(tag: str, *children: str, **attributes: str | float) -> str:
    """Return one element. Attribute names lose a trailing underscore (`class_`); other underscores become hyphens.

    Children are markup; text goes through `text` or `escape`. Numbers have a precision of a tenth of a pixel.
    """
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}={quoteattr(value if isinstance(value, str) else number(value))}"
        for name, value in attributes.items()
    )
    return f"<{tag}{written}>{''.join(children)}</{tag}>" if children else f"<{tag}{written}/>"


def text(content: str, x: float, y: float, **attributes: str | float) -> str:
    """Return a text element; `content` is escaped."""
    return element("text", escape(content), x=x, y=y, **attributes)


def number(value: float) -> str:
    """Format a coordinate with a tenth of a pixel."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Scale:
    """A linear scale from values to pixels."""

    low: float
    high: float
    start_px: float  # pixel of `low`
    end_px: float  # pixel of `high`

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start_px + (value - self.low) / (span or 1.0) * (self.end_px - self.start_px)


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values from at most `low` to at least `high`, in steps of 1, 2 or 5 times a power of ten."""
    raw = max(high - low, 1e-9) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-12)
    count = max(math.ceil(high / step - 1e-12) - first, 1)
    return [(first + index) * step for index in range(count + 1)]


def time_ticks(duration_s: float, width_px: float) -> list[tuple[float, str]]:
    """Return times of a trace, in seconds since its start, at distances that fit their labels."""
    least_s = duration_s / max(width_px, 1.0) * LABEL_PX
    step_s = next((step for step in _TIME_STEPS_S if step >= least_s), math.ceil(least_s / DAY_S) * DAY_S)
    return [(index * step_s, moment(index * step_s, step_s)) for index in range(int(duration_s // step_s) + 1)]


def moment(time_s: float, step_s: float) -> str:
    """Format a time since the start in the unit of the steps: `3 d`, `6 h`, `30 min`, `20 s`."""
    for unit_s, word in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if step_s >= unit_s or (time_s and time_s % unit_s == 0):
            return f"{time_s / unit_s:g} {word}"
    return f"{time_s:g} s"


def step_path(x: Sequence[float], y: Sequence[float], base: float | None = None) -> str:
    """Draw a step function, with a gap where y is NaN. base: close it down to this line; None: leave it open."""
    parts: list[str] = []
    begun, last = "", ""  # x of the first point since the last gap; "": in a gap
    for at, (px, py) in enumerate(zip(map(number, x), map(number, y), strict=True)):
        known, ends = py != "nan", at == len(x) - 1
        if known and not begun:
            parts.append(f"M{px} {py}")
            begun = px
        elif known and py != last:
            parts.append(f"H{px}V{py}")
        elif begun and (ends or not known):
            parts.append(f"H{px}")
        if begun and (ends or not known):
            parts.append("" if base is None else f"V{number(base)}H{begun}Z")
            begun = ""
        last = py
    return "".join(parts)


def line_path(x: Sequence[float], y: Sequence[float]) -> str:
    """Join points by straight lines."""
    return "".join(
        f"{'L' if at else 'M'}{number(px)} {number(py)}" for at, (px, py) in enumerate(zip(x, y, strict=True))
    )


def area(path: str, x: Sequence[float], base: float) -> str:
    """Close a path down to a base line."""
    return f"{path}V{number(base)}H{number(x[0])}Z" if len(x) else ""
