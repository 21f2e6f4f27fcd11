"""Numbers as people say them. Sentences made of them are in `explain` and `outlook`."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Write a number: three digits, but never as a power of ten; less than a ten thousandth is none."""
    if not math.isfinite(value):
        return "an unknown number of"
    if abs(value) < 1e-4:
        return "0"
    return f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


def count(value: float, noun: str = "replica") -> str:
    said = number(value)
    return f"{said} {noun}" if said == "1" else f"{said} {noun}s"


def seconds(value: float) -> str:
    """Write a time: up to 10 min in seconds unless it is whole minutes, as 132 s and 4 min."""
    if math.isnan(value):
        return "an unknown time"
    if 0 < value < 0.9995:  # above, three digits make a whole second of it
        return f"{number(value * 1000)} ms"
    if value < 120 or (value < 600 and value % 60):
        return f"{number(value)} s"
    return f"{number(value / 60)} min" if value < 7200 else f"{number(value / 3600)} h"


def percent(share: float) -> str:
    """Write a share in percent; less than a millionth is none."""
    if math.isnan(share):
        return "an unknown share"
    return f"{number(100 * share)}%" if share >= 1e-6 else "0%"
