"""The least engine time that requests cost, and the requests that can meet their objectives at all."""

from __future__ import annotations

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.lab.replay.case import Case


def request_work_s(case: Case) -> tuple[FloatColumn, FloatColumn]:
    """Return the least engine time of each request, in seconds: until its first token, and after it; float64[N] each.

    A step with B sequences, K KV tokens and C prompt tokens takes `step_s + sequence_s B + kv_token_s K +
    prompt_token_s C`. All terms but the first belong to single requests. The batch shares the first term.

    Every step is limited by three resources: `max_num_seqs`, the KV cache, and the token budget. Any schedule pays at
    least the shares that all requests take of any one of these. The resource with the largest total gives the tightest
    figure.
    """
    profile, trace = case.profile, case.trace
    prompt = trace.prompt_tokens.astype(np.float64)
    later = trace.output_tokens.astype(np.float64) - 1  # tokens after the first, one step each
    contexts = later * prompt + later * (later + 1) / 2  # KV tokens read by these steps
    spare = (profile.block_size - 1) / 2  # empty tokens in a sequence's last block, on average
    shares = (
        (np.full(len(prompt), 1 / profile.max_num_seqs), later / profile.max_num_seqs),
        (prompt / profile.kv_capacity_tokens, (contexts + spare * later) / profile.kv_capacity_tokens),
        (prompt / profile.max_batched_tokens, later / profile.max_batched_tokens),
    )
    first, after = max(shares, key=lambda share: float(share[0].sum() + share[1].sum()))
    prefill_s = profile.prompt_token_s * prompt + profile.step_s * first
    decode_s = profile.sequence_s * later + profile.kv_token_s * contexts + profile.step_s * after
    return prefill_s, decode_s


def idle_latencies_s(case: Case) -> tuple[FloatColumn, FloatColumn]:
    """Return TTFT and mean gap of each request on an otherwise idle engine, in seconds, float64[N] each."""
    profile, trace = case.profile, case.trace
    prompt = trace.prompt_tokens.astype(np.float64)
    steps = np.ceil(prompt / profile.max_batched_tokens)
    ttft_s = profile.step_s * steps + profile.prompt_token_s * prompt
    context = prompt + trace.output_tokens / 2
    itl_s = np.where(trace.output_tokens > 1, profile.step_s + profile.sequence_s + profile.kv_token_s * context, 0.0)
    return ttft_s, itl_s


def find_servable(case: Case) -> BoolColumn:
    """Return the requests that an otherwise idle engine serves within the objectives, bool[N]."""
    (ttft_s, itl_s), goal = idle_latencies_s(case), case.goal
    # An objective of NaN is not stated.
    return ~(ttft_s > goal.ttft_s) & ~(itl_s > goal.itl_s)


def attainable_share(case: Case) -> float:
    """Return the fraction of requests that meet the objectives if each is served on an idle engine, 0..1."""
    return float(find_servable(case).mean()) if len(case.trace.arrival_s) else 1.0
