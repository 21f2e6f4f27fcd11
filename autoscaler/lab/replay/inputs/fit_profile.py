"""A replica profile from a recording: step time and capacity, from the engine's own metrics alone.

The time between two scrapes of a busy engine is the sum of its steps:

    seconds = step_s x steps + sequence_s x decoded tokens + kv_token_s x KV tokens read + prompt_token_s x prompts

Every interval gives one such equation. Least squares with non-negative unknowns, re-weighted against outliers, gives
the four constants. Two terms are not counted by the engine and are estimated. The KV tokens read follow from the usage
at both ends. The recomputed prompts of preempted requests follow from the requests that re-enter the batch.

Scrapes should lie at most 2 s apart and show light and heavy load. The KV estimate blurs with the distance, and a
single steady load determines only the sum of the terms. With longer intervals the error of the fit stays small while
the single constants become arbitrary.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.lab.replay.inputs.recording import Recording
from autoscaler.sim.engine.profiles import Profile

LEAST_INTERVALS = 12  # busy intervals; fewer equations do not determine four unknowns
GOOD_INTERVAL_S = 2.0  # recommended distance of busy scrapes
# Measured on the recorded CPU runs, thinned in every way. At 5 s a profile still replays the TTFT of the other run
# within 33 % (median). At 10 s the step time is 0.2 to 11 ms instead of 8 ms, and TTFT is off by up to four times.
MAX_INTERVAL_S = 5.0
INTERVAL_TOLERANCE = 1.1  # tolerated delay of a scrape, as a factor
ROUNDS = 20  # rounds of re-weighting; it settles within a few
TUNING = 1.345  # constant of Huber's weights: 95 % efficiency under normal noise
LEAST_BUDGET_TOKENS, MOST_BUDGET_TOKENS = 2048, 8192  # defaults of vLLM's server: on most GPUs, and on the largest
FREE_USAGE = 0.8  # below this cache usage, a queue waits for slots and not for memory


@dataclass(frozen=True)
class Fitted:
    """A profile, and how well it explains its recording."""

    profile: Profile
    steps_within_tokens: float | None  # as recorded; basis of the guessed token budget
    slots_known: bool  # whether the recording shows `max_num_seqs`; else it is given, or the largest batch seen
    intervals: int  # number of equations
    interval_s: float  # median length of their intervals, seconds
    error_fraction: float  # median of |seconds explained - seconds| / seconds
    cached_fraction: float  # fraction of prompt tokens from the prefix cache, which the equations leave out

    @property
    def warnings(self) -> list[str]:
        """Return reasons to distrust single constants, even where their sum explains the recording."""
        warnings = []
        if self.interval_s > GOOD_INTERVAL_S * INTERVAL_TOLERANCE:
            warnings.append(
                f"busy scrapes are {self.interval_s:.3g} s apart: single constants are unsure; "
                f"better {GOOD_INTERVAL_S:g} s or less"
            )
        if self.cached_fraction > 0:
            warnings.append(
                f"{100 * self.cached_fraction:.3g}% of the prompt tokens came from the prefix cache: prompt_token_s is "
                "that of the computed rest, and the simulator, which has no such cache, computes all"
            )
        warnings += [
            f"{name} is 0: the recording does not tell it from the other constants; more of light and heavy load would"
            for name in ("sequence_s", "kv_token_s", "prompt_token_s")
            if getattr(self.profile, name) == 0
        ]
        return warnings


def fit(recording: Recording, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None) -> Fitted:
    """Fit a profile to a recording.

    max_num_seqs: slots of the engine; None: estimated from the batches while requests wait for a slot.
    max_num_batched_tokens: token budget of a step; None: guessed from the largest step.

    Raises ValueError if the recording has too few busy intervals, scrapes that lie too far apart, or a constant load.
    """
    most = int(recording.running.max())
    if max_num_seqs is not None and max_num_seqs < most:
        raise ValueError(f"max_num_seqs is {max_num_seqs}, but {most} requests ran at once; allowed: {most} or more")
    capacity = recording.kv_cache_tokens - recording.block_size  # the engine reserves one block
    sequences = np.maximum(recording.running, 1.0)
    tokens = recording.kv_usage * capacity - recording.running * (recording.block_size - 1) / 2
    tokens = np.maximum(tokens, 0.0)
    reset = _find_restarts(recording)
    time_s, steps = np.diff(recording.time_s), np.diff(recording.steps)
    busy = (recording.running[1:] > 0) & (recording.running[:-1] > 0) & (steps > 0) & ~reset
    interval_s = float(np.median(time_s[busy])) if busy.any() else 0.0
    if interval_s > MAX_INTERVAL_S * INTERVAL_TOLERANCE:
        raise ValueError(
            f"busy scrapes are {interval_s:.3g} s apart; allowed: at most {MAX_INTERVAL_S:g} s, "
            f"better {GOOD_INTERVAL_S:g} s or less"
        )
    if busy.sum() < LEAST_INTERVALS:
        raise ValueError(f"{int(busy.sum())} intervals are busy from end to end, at least {LEAST_INTERVALS} are needed")
    decoded = np.diff(recording.generation_tokens) - np.diff(recording.first_tokens)
    prompts, cached = np.diff(recording.prompt_tokens), np.diff(recording.cached_prompt_tokens)
    computed = np.maximum(prompts - cached, 0.0) + _estimate_recomputed(recording, tokens / sequences, reset)
    terms = np.stack([steps, decoded, steps * (tokens[1:] + tokens[:-1]) / 2, computed], axis=1)[busy]
    constants = _solve(terms, time_s[busy])
    explained_s = terms @ constants
    slots = _find_slots(recording)
    batch = max_num_seqs or slots or most
    step_s, sequence_s, kv_token_s, prompt_token_s = (float(constant) for constant in constants)
    if not step_s > 0:
        raise ValueError("the load was too uniform to tell how long a step takes: record light and heavy load")
    profile = Profile(
        step_s=step_s,
        sequence_s=sequence_s,
        kv_token_s=kv_token_s,
        prompt_token_s=prompt_token_s,
        kv_capacity_tokens=capacity,
        max_num_seqs=batch,
        max_batched_tokens=max_num_batched_tokens or _guess_budget(recording.steps_within_tokens, batch),
        max_model_len=min(recording.max_model_len, capacity - recording.block_size),
        block_size=recording.block_size,
    )
    error = float(np.median(np.abs(explained_s - time_s[busy]) / time_s[busy]))
    from_cache = float(cached[~reset].sum() / max(prompts[~reset].sum(), 1.0))
    return Fitted(
        profile,
        recording.steps_within_tokens,
        slots is not None,
        int(busy.sum()),
        interval_s,
        error,
        min(from_cache, 1.0),
    )


def _find_restarts(recording: Recording) -> BoolColumn:
    """Return the intervals in which a counter decreased, bool[T-1]: the engine restarted."""
    counters = (
        recording.steps,
        recording.generation_tokens,
        recording.prompt_tokens,
        recording.cached_prompt_tokens,
        recording.first_tokens,
        recording.finished,
        recording.preemptions,
    )
    return np.asarray(np.any([np.diff(counter) < 0 for counter in counters], axis=0))


def _estimate_recomputed(recording: Recording, context_tokens: FloatColumn, reset: BoolColumn) -> FloatColumn:
    """Estimate the tokens recomputed after preemptions, float64[T-1].

    A request that enters the batch without a first token was preempted before. In total there are as many as
    preemptions. Intervals with a restart are left out. The context of such a request is taken as the mean of running
    requests while others wait.
    """
    preempted = np.where(reset, 0.0, np.diff(recording.preemptions))
    entered = np.diff(recording.running) + np.diff(recording.finished) + preempted
    back = np.where(reset, 0.0, np.maximum(entered - np.diff(recording.first_tokens), 0.0))
    preemptions = float(preempted.sum())
    if not preemptions > 0 or not back.any():
        return np.zeros_like(back)
    crowded = (recording.waiting > 0) & (recording.running > 0)
    context = float(context_tokens[crowded].mean()) if crowded.any() else float(context_tokens.max())
    return np.asarray(back * preemptions / back.sum() * context)


def _find_slots(recording: Recording) -> int | None:
    """Return the number of slots of the engine; None if the recording does not show it.

    While requests wait and memory is free, all slots are taken, so the batch is nearly always at its maximum.
    """
    short = (recording.waiting > 0) & (recording.kv_usage < FREE_USAGE)
    largest = float(recording.running.max())
    return int(largest) if short.any() and float(np.median(recording.running[short])) == largest else None


def _guess_budget(steps_within_tokens: float | None, max_num_seqs: int) -> int:
    """Guess the token budget of a step: the bucket bound that holds every step, clamped to the defaults of vLLM's
    server.

    A smaller bound says nothing, since short prompts fill no step. Neither does a larger one: vLLM counts a whole
    prompt in the step that ends it (`IterationStats` in vllm/v1/metrics/stats.py).
    """
    within = min(max(steps_within_tokens or 0.0, LEAST_BUDGET_TOKENS), MOST_BUDGET_TOKENS)
    return max(int(within), max_num_seqs + 1)


def _solve(terms: FloatColumn, values: FloatColumn) -> FloatColumn:
    """Return the robust non-negative solution of `terms @ x = values`, float64[4].

    terms: float64[n, 4]; values: float64[n], seconds.
    Source: iteratively re-weighted least squares with Huber's weights.
    """
    weights = np.ones(len(values))
    for _ in range(ROUNDS):
        solution = _non_negative(terms * weights[:, None], values * weights)
        off = np.abs(terms @ solution - values)
        scale = 1.4826 * float(np.median(off)) + 1e-12
        weights = np.sqrt(np.minimum(1.0, TUNING * scale / np.maximum(off, 1e-12)))
    return solution


def _non_negative(terms: FloatColumn, values: FloatColumn) -> FloatColumn:
    """Solve least squares with x >= 0 by trying all fifteen non-empty sets of positive unknowns."""
    unknowns = terms.shape[1]
    best, least = np.zeros(unknowns), float(values @ values)
    for size in range(1, unknowns + 1):
        for chosen in combinations(range(unknowns), size):
            part = np.linalg.lstsq(terms[:, chosen], values, rcond=None)[0]
            solution = np.zeros(unknowns)
            solution[list(chosen)] = part
            rest = terms @ solution - values
            if np.all(part >= 0) and float(rest @ rest) < least:
                best, least = solution, float(rest @ rest)
    return best
