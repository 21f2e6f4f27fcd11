"""What the requests of a case cost an engine at the least, and which of them anybody could serve in time."""

from __future__ import annotations

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.lab.replay.case import Case


def request_work_s(case: Case) -> tuple[FloatColumn, FloatColumn]:
    """Return the least engine time that each request costs, until its first token and after it; float64[N] each.

    A step takes `step_s + sequence_s B + kv_token_s K + prompt_token_s C`. All but the first term belong to single
    requests. The first is shared by those in the batch, and in no step can the batch hold more than `max_num_seqs`
    requests, the KV cache more than its tokens, or the step more tokens than its budget: so the shares of all requests
    in one of these, the one that costs most, are paid by any schedule.
    """
    profile, trace = case.profile, case.trace
    prompt = trace.prompt_tokens.astype(np.float64)
    later = trace.output_tokens.astype(np.float64) - 1  # tokens after the first: one step each
    contexts = later * prompt + later * (later + 1) / 2  # KV tokens that these steps read
    spare = (profile.block_size - 1) / 2  # of a sequence's last block
    shares = (
        (np.full(len(prompt), 1 / profile.max_num_seqs), later / profile.max_num_seqs),
        (prompt / profile.kv_capacity_tokens, (contexts + spare * later) / profile.kv_capacity_tokens),
        (prompt / profile.max_batched_tokens, later / profile.max_batched_tokens),
    )
    first, after = max(shares, key=lambda share: float(share[0].sum() + share[1].sum()))
    prefill_s = profile.prompt_token_s * prompt + profile.step_s * first
    decode_s = profile.sequence_s * later + profile.kv_token_s * contexts + profile.step_s * after
    return prefill_s, decode_s


def alone_s(case: Case) -> tuple[FloatColumn, FloatColumn]:
    """Return TTFT and mean gap of each request on an engine that has nothing else to do, float64[N] each."""
    profile, trace = case.profile, case.trace
    prompt = trace.prompt_tokens.astype(np.float64)
    steps = np.ceil(prompt / profile.max_batched_tokens)
    ttft_s = profile.step_s * steps + profile.prompt_token_s * prompt
    context = prompt + trace.output_tokens / 2
    itl_s = np.where(trace.output_tokens > 1, profile.step_s + profile.sequence_s + profile.kv_token_s * context, 0.0)
    return ttft_s, itl_s


def servable(case: Case) -> BoolColumn:
    """Return which requests an engine that has nothing else to do serves within the objectives, bool[N]."""
    (ttft_s, itl_s), goal = alone_s(case), case.goal
    # An objective that is NaN promises nothing.
    return ~(ttft_s > goal.ttft_s) & ~(itl_s > goal.itl_s)


def attainable(case: Case) -> float:
    """Return the share of the requests that are served within the objectives by who serves each of them alone, 0..1."""
    return float(servable(case).mean()) if len(case.trace.arrival_s) else 1.0
