"""How fast a replica is, learned while it serves: its gap between tokens when idle, and what a token costs it.

An engine's step takes a fixed time, and more for each prompt token it computes and each token it writes. So the rate of
steps falls in a straight line with both token rates: with P prompt tokens and G generated tokens a second,

    1 / gap = 1 / idle gap x (1 - P x time of a prompt token - G x time of a generated token).

A weighted least squares over the readings of all pods of a workload finds the three, also of a fleet that is never
idle. A queue in front of the engine does not show in it. The time of a generated token includes reading its context.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.columns import FloatColumn

SUMS = 9
"""Rows of the sums: of weights, of weights times P, G, PP, PG, GG, and of weights times 1 / gap times 1, P, G."""

FADE_S = 6 * 3600.0
"""Time constant with which readings are forgotten: contexts get longer, engines are upgraded."""

FEWEST_READINGS = 4.0
"""Of single pods, before the line is believed."""

PROMPT_UNIT, OUTPUT_UNIT = 1e4, 1e3
"""Tokens a second, so that all sums are of one magnitude."""

PROMPT_SHARE, OUTPUT_SHARE = 1 / 160, 1 / 110
"""What a token is believed to take of the idle gap before much was read, whatever the model and the device: both times
grow with the weights, one as they are read and one as they are computed with, so their ratio is that of a device's
arithmetic to its bandwidth. In the profile table a prompt token takes 1/230 to 1/66, a generated one with a context of
a thousand 1/290 to 1/44."""

DOUBTED = 0.5
"""Share of these by which they may be wrong."""

NOISE = 0.1
"""Share by which the gap of a single reading is off the line: readings outweigh belief by how much they vary beyond."""

SHORTEST_SHARE = 0.3
"""The idle gap is at least this share of the shortest gap seen: no line is believed far beyond what was seen."""

IDLE_GAP_DRIFT = 0.02
"""By how much the shortest gap is let grow in a day, so that an engine that became slower is believed in time."""

DAY_S = 86_400.0


class Speed(NamedTuple):
    """What the line says; float64[W] each, NaN: not known."""

    idle_gap_s: FloatColumn  # between two tokens of the only request of a replica
    prompt_token_s: FloatColumn  # time that a prompt token takes from all others
    output_token_s: FloatColumn  # likewise of a generated one, beyond its share of the fixed time


def lessons(gap_s: FloatColumn, prompt_per_s: FloatColumn, output_per_s: FloatColumn) -> FloatColumn:
    """Return what one reading of each pod adds to the sums; float64[SUMS, P].

    Weights are the squared gaps: the error of a rate of steps is a share of it.
    """
    prompt, output, weight = prompt_per_s / PROMPT_UNIT, output_per_s / OUTPUT_UNIT, gap_s**2
    return np.stack(
        [
            weight,
            weight * prompt,
            weight * output,
            weight * prompt**2,
            weight * prompt * output,
            weight * output**2,
            gap_s,
            gap_s * prompt,
            gap_s * output,
        ]
    )


def shortest(known_s: FloatColumn, seen_s: FloatColumn, step_s: FloatColumn) -> FloatColumn:
    """Follow the shortest gap there ever was, letting it grow a little; float64[W], NaN: none seen."""
    drift = 1 + IDLE_GAP_DRIFT * np.minimum(step_s, DAY_S) / DAY_S
    return np.asarray(np.fmin(known_s * drift, seen_s))


def fit(sums: FloatColumn, readings: FloatColumn, shortest_gap_s: FloatColumn) -> Speed:
    """Draw the line through the readings.

    sums: float64[SUMS, W], of `lessons`, fading. readings: float64[W], how many taught them. shortest_gap_s:
    float64[W], of `shortest`; NaN: none seen.

    Belief counts like readings that say it. Neither token takes less than no time: where a slope comes out that way,
    the other is drawn alone.
    """
    belief = PROMPT_SHARE * PROMPT_UNIT, OUTPUT_SHARE * OUTPUT_UNIT
    sure = [(NOISE / (DOUBTED * slope)) ** 2 for slope in belief]
    weight, prompt, output, prompt2, cross, output2, rate, rate_prompt, rate_output = sums
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Around the means the intercept drops out, and two unknowns are left.
        prompt2, output2 = prompt2 - prompt**2 / weight + sure[0], output2 - output**2 / weight + sure[1]
        cross = cross - prompt * output / weight
        falls_prompt = prompt * rate / weight - rate_prompt + sure[0] * belief[0]
        falls_output = output * rate / weight - rate_output + sure[1] * belief[1]
        determinant = prompt2 * output2 - cross**2
        by_prompt = (falls_prompt * output2 - falls_output * cross) / determinant
        by_output = (falls_output * prompt2 - falls_prompt * cross) / determinant
        alone_prompt, alone_output = np.fmax(falls_prompt / prompt2, 0.0), np.fmax(falls_output / output2, 0.0)
        by_prompt, by_output = (
            np.where(by_prompt < 0, 0.0, np.where(by_output < 0, alone_prompt, by_prompt)),
            np.where(by_output < 0, 0.0, np.where(by_prompt < 0, alone_output, by_output)),
        )
        idle_rate = (rate + by_prompt * prompt + by_output * output) / weight
        drawn_s = np.where(idle_rate > 0, 1 / idle_rate, np.nan)
        idle_gap_s = np.fmax(np.fmin(drawn_s, shortest_gap_s), SHORTEST_SHARE * shortest_gap_s)
        known = readings >= FEWEST_READINGS
        return Speed(
            idle_gap_s=np.where(known, idle_gap_s, np.nan),
            prompt_token_s=np.where(known, by_prompt * idle_gap_s / PROMPT_UNIT, np.nan),
            output_token_s=np.where(known, by_output * idle_gap_s / OUTPUT_UNIT, np.nan),
        )
