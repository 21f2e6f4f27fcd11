"""Numbers, times and shares as text, with their units."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Write a number with three digits, never as a power of ten; below 0.0001 it is 0."""
    if not math.isfinite(value):
        return "an unknown number of"
    if abs(value) < 1e-4:
        return "0"
    return f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


def count(value: float, noun: str = "replica") -> str:
    """Write a number with its noun, in the plural unless it reads as 1."""
    text = number(value)
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def seconds(value: float) -> str:
    """Write a time in the unit that reads best: below 10 min in seconds, as in 132 s, unless it is whole minutes."""
    if math.isnan(value):
        return "an unknown time"
    if 0 < value < 0.9995:  # above, three digits round it to a second
        return f"{number(value * 1000)} ms"
    if value < 120 or (value < 600 and value % 60):
        return f"{number(value)} s"
    return f"{number(value / 60)} min" if value < 7200 else f"{number(value / 3600)} h"


def window(value_s: float) -> str:
    """Write the window of an error budget, as in "missed in a day"."""
    return "a day" if value_s == 86_400 else seconds(value_s)


def percent(share: float) -> str:
    """Write a share in percent; below 0.0001% it is 0%."""
    if math.isnan(share):
        return "an unknown share"
    return f"{number(100 * share)}%" if share >= 1e-6 else "0%"
