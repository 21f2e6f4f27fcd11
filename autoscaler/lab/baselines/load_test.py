"""Results of a load test of one replica: step times, and requests per second within the objectives.

Some rules need such a figure, and their documentation leaves it to a load test. The step model is that of the
simulator.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.case import Case, Goal
from autoscaler.sim.engine.profiles import Profile


def step_s(profile: Profile, prompt: FloatColumn, batch: FloatColumn, kv_tokens: FloatColumn) -> FloatColumn:
    """Return the duration of a step in seconds: `prompt` tokens of prefill, `batch` decoding sequences with `kv_tokens`
    in total.
    """
    decode_s = profile.sequence_s * batch + profile.kv_token_s * kv_tokens
    seconds: FloatColumn = profile.step_s + decode_s + profile.prompt_token_s * prompt
    return seconds


def ttft_s(profile: Profile, prompt: FloatColumn, batch: FloatColumn, kv_tokens: FloatColumn) -> FloatColumn:
    """Return the TTFT in seconds of `prompt` tokens in full chunks, each in a step with the same batch."""
    steps = np.maximum(np.ceil(prompt / profile.max_batched_tokens), 1)
    seconds: FloatColumn = profile.prompt_token_s * prompt + steps * step_s(profile, 0 * prompt, batch, kv_tokens)
    return seconds


def steady_prompt(profile: Profile, batch: FloatColumn, isl: float, osl: float) -> FloatColumn:
    """Return the prompt tokens of a step in steady state: a batch of b sequences admits b / osl requests per step."""
    tokens: FloatColumn = np.minimum(batch * isl / max(osl, 1.0), profile.max_batched_tokens)
    return tokens


def steady_itl_s(profile: Profile, batch: FloatColumn, isl: float, osl: float) -> FloatColumn:
    """Return the duration in seconds of a steady-state step with a batch of mean requests."""
    return step_s(profile, steady_prompt(profile, batch, isl, osl), batch, batch * (isl + osl / 2))


def engine_rps(profile: Profile, goal: Goal, isl: float, osl: float) -> float:
    """Return the requests per second of one engine at the largest batch that keeps both objectives.

    A batch of one is the minimum, even if it breaks an objective.
    """
    context = isl + osl / 2
    most = min(profile.max_num_seqs, int(profile.kv_capacity_tokens / max(context, 1.0)))
    most = min(most, int(osl * profile.max_batched_tokens / (isl + osl)))  # otherwise prompts would pile up
    batch = np.arange(1, max(most, 1) + 1, dtype=np.float64)
    itl_s = steady_itl_s(profile, batch, isl, osl)
    first_s = ttft_s(profile, np.floor(steady_prompt(profile, batch, isl, osl)) + isl, batch, batch * context)
    broken = (itl_s > goal.itl_s) | (first_s > goal.ttft_s)
    best = max(int(np.argmax(broken)) if broken.any() else len(batch), 1) - 1
    return float(batch[best] / (osl * itl_s[best]))


def mean_tokens(case: Case) -> tuple[float, float]:
    """Return the mean prompt and output tokens of a case; 1 each without requests."""
    if not len(case.trace.arrival_s):
        return 1.0, 1.0
    return float(case.trace.prompt_tokens.mean()), float(case.trace.output_tokens.mean())


def tested_rps(case: Case) -> float:
    """Return the requests per second of one replica within the objectives, at the mean lengths of the case."""
    return engine_rps(case.profile, case.goal, *mean_tokens(case))
