"""The step time of an engine: its token gap when idle, and the time of each prompt token and each generated token.

A step takes a fixed time, and more for each token that it computes. With P prompt tokens and G generated tokens per
second, a step handles P x gap and G x gap tokens:

    gap = idle gap + (P x gap) x time of a prompt token + (G x gap) x time of a generated token.

A recursive least-squares fit with forgetting, over the readings of all pods, finds the three constants. The fleet need
not be idle for that. Tokens are counted per step, not per second: an engine that is slow for another reason generates
fewer tokens per second, and many such readings would make tokens look free. A queue in front of the engine does not
affect the fit. The time of a generated token includes reading its context.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn, clip, or_zero

SUMS = 9
"""Sums of the least-squares fit, in this order: 1, p, g, pp, pg, gg, gap, gap p, gap g.
p and g are prompt and generated tokens per step, in the units below."""

FADE_S = 6 * 3600.0
"""Time constant with which readings fade: contexts get longer, engines are upgraded."""

MIN_READINGS = 4.0
"""Readings of single pods that the fit needs."""

PROMPT_UNIT, OUTPUT_UNIT = 100.0, 10.0
"""Tokens per step in one unit of p and g, so that all sums have the same magnitude."""

PRIOR_PROMPT_SHARE, PRIOR_OUTPUT_SHARE = 1 / 160, 1 / 110
"""Prior time of a token as a share of the idle gap, whatever the model and the device.

The idle gap is the time to read the weights, a token costs one computation with them. So the ratio is that of the
device's arithmetic to its bandwidth. In the profile table a prompt token takes 1/230 to 1/66, and a generated token
with a context of a thousand tokens 1/290 to 1/44.
"""

PRIOR_DEVIATION = 0.5
"""Relative standard deviation of these prior shares."""

READING_NOISE = 0.1
"""Relative deviation of a single gap from the fit. Readings outweigh the prior once they vary by more than this."""

IDLE_GAP_DRIFT = 0.02
"""Relative growth of the shortest gap per day, so that the estimate follows an engine that became slower."""


class StepTime(NamedTuple):
    """The three constants of the fit; float64[W] each, NaN: not known."""

    idle_gap_s: FloatColumn  # between two tokens of a replica that serves a single request
    prompt_token_s: FloatColumn  # by which a prompt token delays all requests of the batch
    output_token_s: FloatColumn  # likewise for a generated token, beyond its share of the idle gap


def compute_sums(gap_s: FloatColumn, prompt_per_s: FloatColumn, output_per_s: FloatColumn) -> FloatColumn:
    """Return what one reading of each pod adds to the sums of the fit; float64[SUMS, P]."""
    prompt, output = gap_s * prompt_per_s / PROMPT_UNIT, gap_s * output_per_s / OUTPUT_UNIT
    products = prompt, output, prompt**2, prompt * output, output**2, gap_s, gap_s * prompt, gap_s * output
    return np.array([np.ones_like(prompt), *products])


def update_shortest_gap(before_s: FloatColumn, measured_s: FloatColumn, interval_s: FloatColumn) -> FloatColumn:
    """Return the shortest gap ever seen, which grows slowly; float64[W], NaN: none seen."""
    return np.asarray(np.fmin(before_s * (1 + IDLE_GAP_DRIFT * interval_s / 86_400), measured_s))


def fit_step_time(sums: FloatColumn, readings: FloatColumn, shortest_gap_s: FloatColumn) -> StepTime:
    """Fit the three constants to the readings.

    sums: float64[SUMS, W], of `compute_sums`, fading. readings: float64[W], number of readings in them.
    shortest_gap_s: float64[W], of `update_shortest_gap`.

    The prior counts like readings that agree with it, at the idle gap that follows from the prior alone. Token times
    are never negative: where one of the two slopes would be, the other is fitted alone. A gap that was really seen
    bounds the idle gap, whatever an engine spends its time on.
    """
    prior = PRIOR_PROMPT_SHARE * PROMPT_UNIT, PRIOR_OUTPUT_SHARE * OUTPUT_UNIT
    weight = [(READING_NOISE / (PRIOR_DEVIATION * slope)) ** 2 for slope in prior]
    count, prompt, output, prompt2, cross, output2, gap, gap_prompt, gap_output = sums
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Centered on the means the intercept drops out, and two unknowns are left.
        prior_gap = gap / (count + prior[0] * prompt + prior[1] * output)
        prompt2, output2 = prompt2 - prompt**2 / count + weight[0], output2 - output**2 / count + weight[1]
        cross = cross - prompt * output / count
        gap_prompt = gap_prompt - prompt * gap / count + weight[0] * prior[0] * prior_gap
        gap_output = gap_output - output * gap / count + weight[1] * prior[1] * prior_gap
        determinant = prompt2 * output2 - cross**2
        prompt_slope = (gap_prompt * output2 - gap_output * cross) / determinant
        output_slope = (gap_output * prompt2 - gap_prompt * cross) / determinant
        prompt_alone, output_alone = np.fmax(gap_prompt / prompt2, 0.0), np.fmax(gap_output / output2, 0.0)
        prompt_slope, output_slope = (
            np.where(prompt_slope < 0, 0.0, np.where(output_slope < 0, prompt_alone, prompt_slope)),
            np.where(output_slope < 0, 0.0, np.where(prompt_slope < 0, output_alone, output_slope)),
        )
        intercept_s = (gap - prompt_slope * prompt - output_slope * output) / count
        idle_gap_s = clip(intercept_s, 0.0, shortest_gap_s)
        scale = idle_gap_s / np.fmax(intercept_s, idle_gap_s)
        known = readings >= MIN_READINGS
        return StepTime(
            idle_gap_s=np.where(known, idle_gap_s, np.nan),
            prompt_token_s=np.where(known, prompt_slope * scale / PROMPT_UNIT, np.nan),
            output_token_s=np.where(known, output_slope * scale / OUTPUT_UNIT, np.nan),
        )


def compute_prompt_share(sums: FloatColumn) -> FloatColumn:
    """Return the share of the time for tokens that prompts take, by the prior token times.

    sums: float64[SUMS, W], of `compute_sums`, fading. Returns float64[W]; NaN: not known. The fit is not used: where
    prompts and outputs grow together it may give all of the time to either of them, and only the sum is right.
    """
    prompt, output = PRIOR_PROMPT_SHARE * PROMPT_UNIT * sums[1], PRIOR_OUTPUT_SHARE * OUTPUT_UNIT * sums[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(prompt / (prompt + output))


def weigh_tokens(prompt_tokens: FloatColumn, output_tokens: FloatColumn) -> FloatColumn:
    """Return the work of these tokens, in idle gaps by the prior token times; same shape, NaN: neither is known."""
    work = PRIOR_PROMPT_SHARE * or_zero(prompt_tokens) + PRIOR_OUTPUT_SHARE * or_zero(output_tokens)
    return np.where(np.isnan(prompt_tokens) & np.isnan(output_tokens), np.nan, work)


def compute_running_at(gap_s: FloatColumn, fitted: StepTime) -> FloatColumn:
    """Return the requests that a replica runs at this token gap if it computes no prompt; float64[W].

    The prior stands in where the fit shows no time for a generated token.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        prior_s = PRIOR_OUTPUT_SHARE * fitted.idle_gap_s
        token_s = np.where(fitted.output_token_s > 0, fitted.output_token_s, prior_s)
        return np.asarray((gap_s - fitted.idle_gap_s) / token_s)
