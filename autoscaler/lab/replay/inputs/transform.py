"""Transformations of traces: clip, thin, scale, truncate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autoscaler.core.table.columns import BoolColumn
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.inputs.trace_file import MOST_REQUESTS

LEAST_SHIFT_S, MOST_SHIFT_S = 60.0, 1800.0
SHIFT_SHARE = 1 / 48  # longest shift of a copy, as a share of the trace: half an hour of a day
JITTER_S = 1.0  # each request of a copy is shifted by at most this in addition


def clip(trace: Trace, from_s: float, to_s: float) -> Trace:
    """Return the requests from `from_s` to before `to_s`, seconds; `from_s` becomes 0."""
    if not 0 <= from_s < to_s <= trace.duration_s:
        raise ValueError(f"from {from_s:g} to {to_s:g} s: must be an interval within 0..{trace.duration_s:g} s")
    part = trace.select((trace.arrival_s >= from_s) & (trace.arrival_s < to_s))
    return replace(part, arrival_s=part.arrival_s - from_s, duration_s=to_s - from_s)


def clip_all(models: Sequence[Trace], from_s: float, to_s: float) -> list[Trace]:
    """Clip the traces of all models, and leave out models without requests."""
    return [each for each in (clip(model, from_s, to_s) for model in models) if len(each.arrival_s)]


def thin(trace: Trace, share: float, seed: int) -> Trace:
    """Keep each request with probability `share`, 0..1."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share:g}; it must be above 0 and at most 1")
    return trace.select(np.random.default_rng((seed, 1)).random(len(trace.arrival_s)) < share)


def scale(trace: Trace, factor: float, seed: int) -> Trace:
    """Multiply the load: superpose whole copies, and a thinned copy for the fraction; below 1, thin the trace.

    Each copy is shifted by up to `longest_shift_s`, so that bursts of minutes do not coincide, as those of independent
    users do not. The pattern of the day stays. Requests shifted past the end wrap around to the beginning.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"factor is {factor:g}; it must be a number above 0")
    if factor <= 1:
        return trace if factor == 1 else thin(trace, factor, seed)
    count = len(trace.arrival_s)
    if count * factor > MOST_REQUESTS:
        raise ValueError(f"{trace.name}: {count} requests x {factor:g} are more than {MOST_REQUESTS:,}, the limit")
    copies, rest = int(factor), factor - int(factor)
    kept = [np.ones(count, np.bool_)] * copies
    if rest > 0:
        kept.append(np.random.default_rng((seed, 1)).random(count) < rest)
    return _overlay(trace, kept, seed)


def longest_shift_s(trace: Trace) -> float:
    """Return by how much a copy of a trace is shifted at most, in seconds."""
    return min(max(SHIFT_SHARE * trace.duration_s, LEAST_SHIFT_S), MOST_SHIFT_S)


def truncate(trace: Trace, max_model_len: int) -> tuple[Trace, int]:
    """Shorten requests to `max_model_len` tokens: keep the end of the prompt, cut the output.

    Returns the trace and the number of shortened requests.
    """
    if max_model_len < 2:
        raise ValueError(f"max_model_len is {max_model_len}; it must be at least 2")
    prompt = np.minimum(trace.prompt_tokens, max_model_len - 1)
    output = np.minimum(trace.output_tokens, max_model_len - prompt)
    shorter = (prompt < trace.prompt_tokens) | (output < trace.output_tokens)
    return replace(trace, prompt_tokens=prompt, output_tokens=output), int(shorter.sum())


def _overlay(trace: Trace, copies: Sequence[BoolColumn], seed: int) -> Trace:
    """Superpose copies of a trace. copies: bool[N] each, the requests of a copy. The first copy is not shifted."""
    total = sum(int(kept.sum()) for kept in copies)
    if total > MOST_REQUESTS:
        raise ValueError(f"{trace.name}: {total} requests are more than {MOST_REQUESTS:,}, the limit")
    rng = np.random.default_rng((seed, 0))
    times, prompts, outputs = [], [], []
    for number, kept in enumerate(copies):
        part = trace.select(kept)
        moved = part.arrival_s
        if number:
            moved = moved + rng.uniform(0, longest_shift_s(trace)) + rng.uniform(-JITTER_S, JITTER_S, len(moved))
        times.append(moved % trace.duration_s if number else moved)
        prompts.append(part.prompt_tokens)
        outputs.append(part.output_tokens)
    arrival_s = np.concatenate(times)
    order = np.argsort(arrival_s, kind="stable")
    return replace(
        trace,
        arrival_s=arrival_s[order],
        prompt_tokens=np.concatenate(prompts)[order],
        output_tokens=np.concatenate(outputs)[order],
    )
