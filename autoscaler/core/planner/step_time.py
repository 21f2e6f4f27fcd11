"""How fast a replica is, learned while it serves: its gap between tokens when idle, and what a token costs it.

An engine's step takes a fixed time, and more for each prompt token it computes and each token it writes. With P prompt
tokens and G generated tokens a second a step computes P x gap of the one and writes G x gap of the other, so

    gap = idle gap + (P x gap) x time of a prompt token + (G x gap) x time of a generated token.

A least squares over the readings of all pods of a workload finds the three, also of a fleet that is never idle. Tokens
a step and not a second: who is slow for another reason writes fewer a second, and thousands of readings of one load
would show that more tokens make an engine no slower. A queue in front of the engine does not show in it. The time of a
generated token includes reading its context.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn

SUMS = 9
"""Rows of the sums: of readings, of p, g, pp, pg, gg, of gaps, and of gaps times p, g; p and g in units a step."""

FADE_S = 6 * 3600.0
"""Time constant with which readings are forgotten: contexts get longer, engines are upgraded."""

FEWEST_READINGS = 4.0
"""Of single pods, before the line is believed."""

PROMPT_UNIT, OUTPUT_UNIT = 100.0, 10.0
"""Tokens a step, so that all sums are of one magnitude."""

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
    """Return what one reading of each pod adds to the sums; float64[SUMS, P]."""
    prompt, output = gap_s * prompt_per_s / PROMPT_UNIT, gap_s * output_per_s / OUTPUT_UNIT
    products = prompt, output, prompt**2, prompt * output, output**2, gap_s, gap_s * prompt, gap_s * output
    return np.array([np.ones_like(prompt), *products])


def shortest(known_s: FloatColumn, seen_s: FloatColumn, step_s: FloatColumn) -> FloatColumn:
    """Follow the shortest gap there ever was, letting it grow a little; float64[W], NaN: none seen."""
    drift = 1 + IDLE_GAP_DRIFT * np.minimum(step_s, DAY_S) / DAY_S
    return np.asarray(np.fmin(known_s * drift, seen_s))


def fit(sums: FloatColumn, readings: FloatColumn, shortest_gap_s: FloatColumn) -> Speed:
    """Draw the line through the readings.

    sums: float64[SUMS, W], of `lessons`, fading. readings: float64[W], how many taught them. shortest_gap_s:
    float64[W], of `shortest`; NaN: none seen.

    Belief counts like readings that say it, of an idle gap as belief alone would have it. Neither token takes less than
    no time: where a slope comes out that way, the other is drawn alone.
    """
    belief = PROMPT_SHARE * PROMPT_UNIT, OUTPUT_SHARE * OUTPUT_UNIT
    sure = [(NOISE / (DOUBTED * slope)) ** 2 for slope in belief]
    count, prompt, output, prompt2, cross, output2, gap, gap_prompt, gap_output = sums
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Around the means the intercept drops out, and two unknowns are left.
        guess = gap / (count + belief[0] * prompt + belief[1] * output)
        prompt2, output2 = prompt2 - prompt**2 / count + sure[0], output2 - output**2 / count + sure[1]
        cross = cross - prompt * output / count
        rises_prompt = gap_prompt - prompt * gap / count + sure[0] * belief[0] * guess
        rises_output = gap_output - output * gap / count + sure[1] * belief[1] * guess
        determinant = prompt2 * output2 - cross**2
        by_prompt = (rises_prompt * output2 - rises_output * cross) / determinant
        by_output = (rises_output * prompt2 - rises_prompt * cross) / determinant
        alone_prompt, alone_output = np.fmax(rises_prompt / prompt2, 0.0), np.fmax(rises_output / output2, 0.0)
        by_prompt, by_output = (
            np.where(by_prompt < 0, 0.0, np.where(by_output < 0, alone_prompt, by_prompt)),
            np.where(by_output < 0, 0.0, np.where(by_prompt < 0, alone_output, by_output)),
        )
        drawn_s = (gap - by_prompt * prompt - by_output * output) / count
        idle_gap_s = np.fmax(np.fmin(drawn_s, shortest_gap_s), SHORTEST_SHARE * shortest_gap_s)
        scale = idle_gap_s / np.fmax(drawn_s, idle_gap_s)
        known = readings >= FEWEST_READINGS
        return Speed(
            idle_gap_s=np.where(known, idle_gap_s, np.nan),
            prompt_token_s=np.where(known, by_prompt * scale / PROMPT_UNIT, np.nan),
            output_token_s=np.where(known, by_output * scale / OUTPUT_UNIT, np.nan),
        )


def prompt_share(sums: FloatColumn) -> FloatColumn:
    """Return which share of the time that tokens take goes to prompts, by what each is believed to take.

    sums: float64[SUMS, W], of `lessons`, fading. Returns float64[W]; NaN: not known. The line is no help: where prompts
    and outputs grow together it may give all of their time to one of them, and only the sum is right.
    """
    prompt, output = PROMPT_SHARE * PROMPT_UNIT * sums[1], OUTPUT_SHARE * OUTPUT_UNIT * sums[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(prompt / (prompt + output))


def running_at(gap_s: FloatColumn, learned: Speed) -> FloatColumn:
    """Return how many requests a replica runs where its gaps are so long, without a prompt; float64[W].

    Where the line shows no time of a generated token, what is believed of it stands.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        believed_s = OUTPUT_SHARE * learned.idle_gap_s
        token_s = np.where(learned.output_token_s > 0, learned.output_token_s, believed_s)
        return np.asarray((gap_s - learned.idle_gap_s) / token_s)
