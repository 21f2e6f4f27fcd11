"""Shapes of plain traffic: random arrivals at a stated rate, uniform numbers of tokens.

A rate and a seed determine the requests of a shape, so a result can be reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.case import Trace

HOUR_S = 3600.0
PROMPT_TOKENS, OUTPUT_TOKENS = (200, 1500), (50, 400)
"""Shortest and longest request."""


def by_office_hours(hour: FloatColumn, night: float = 0.02) -> FloatColumn:
    """Return a shape that is busy from 9 to 17 h of each day, with the given share of that at night."""
    return np.where((hour % 24 >= 9) & (hour % 24 < 17), 1.0, night)


@dataclass(frozen=True)
class Shape:
    """The request rate over time."""

    words: str
    hours: float
    busiest_per_s: float  # requests per second at the peak
    share: Callable[[FloatColumn], FloatColumn]  # fraction of the peak rate, 0..1, by hour of the trace
    period_h: float = math.nan  # NaN: it does not repeat within its length


SHAPES = {
    "step": Shape(
        "three times the rate for ten minutes",
        *(0.5, 6.0, lambda hour: np.where((hour >= 1 / 6) & (hour < 1 / 3), 1.0, 1 / 3)),
    ),
    "days": Shape("busy from 9 to 17 h", 72, 6.0, lambda hour: by_office_hours(hour, 0.033), 24),
    "office": Shape("busy from 9 to 17 h", 72, 14.0, by_office_hours, 24),
    "week": Shape(
        "office hours on five days, then a weekend",
        *(168, 10.0, lambda hour: np.where(hour // 24 % 7 < 5, by_office_hours(hour), 0.05), 24),
    ),
    "sine": Shape("a wave each day", 72, 20.0, lambda hour: 0.55 - 0.45 * np.cos(hour * np.pi / 12), 24),
    "season": Shape(
        "busy for 80 minutes of each four hours",
        *(16, 14.0, lambda hour: np.where((hour % 4 >= 5 / 3) & (hour % 4 < 3), 1.0, 0.036), 4),
    ),
    "flat": Shape("a constant rate", 24, 12.0, np.ones_like),
    "bursts": Shape(
        "four times the rate for three minutes of each two hours",
        *(24, 20.0, lambda hour: np.where(hour % 2 > 1.95, 1.0, 0.25), 2),
    ),
    "launch": Shape("a ramp of eight hours", 24, 25.0, lambda hour: np.clip((hour - 2) / 8, 0.01, 1.0)),
    "level-3": Shape(
        "three times the rate, for good, after an hour", *(4, 24.0, lambda hour: np.where(hour < 1, 1 / 3, 1.0))
    ),
    "level-10": Shape(
        "ten times the rate, for good, after an hour", *(4, 80.0, lambda hour: np.where(hour < 1, 0.1, 1.0))
    ),
    "hill-3": Shape(
        "three times the rate for half an hour",
        *(4, 24.0, lambda hour: np.where((hour >= 1) & (hour < 1.5), 1.0, 1 / 3)),
    ),
    "hill-10": Shape(
        "ten times the rate for half an hour",
        *(4, 80.0, lambda hour: np.where((hour >= 1) & (hour < 1.5), 1.0, 0.1)),
    ),
    "sparse": Shape(
        "a request every 50 s from 8 to 20 h, none at night",
        *(72, 0.02, lambda hour: np.where((hour % 24 >= 8) & (hour % 24 < 20), 1.0, 0.0), 24),
    ),
}


def generate(name: str, seed: int, hours: float = math.inf, busiest_per_s: float = math.nan) -> Trace:
    """Generate the trace of a shape, or `hours` of its beginning.

    busiest_per_s: requests per second at the peak; NaN: those of the shape.
    """
    return draw(SHAPES[name], name, seed, hours, busiest_per_s)


def draw(shape: Shape, name: str, seed: int, hours: float = math.inf, busiest_per_s: float = math.nan) -> Trace:
    """Generate like `generate`, from a shape that has no name here."""
    random = np.random.default_rng(seed)
    duration_s = shape.hours * HOUR_S
    count = random.poisson((shape.busiest_per_s if math.isnan(busiest_per_s) else busiest_per_s) * duration_s)
    arrival_s = np.sort(random.uniform(0, duration_s, count))
    arrival_s = arrival_s[random.uniform(size=count) < shape.share(arrival_s / HOUR_S)]
    prompt, output = (
        random.integers(*bounds, len(arrival_s), endpoint=True) for bounds in (PROMPT_TOKENS, OUTPUT_TOKENS)
    )
    whole = Trace(name, arrival_s, prompt, output, duration_s)
    if hours >= shape.hours:
        return whole
    kept = whole.select(arrival_s < hours * HOUR_S)
    return Trace(name, kept.arrival_s, kept.prompt_tokens, kept.output_tokens, hours * HOUR_S)
