"""Warnings about a workload that hold whatever was decided: what a shrink cuts off, which quotas cannot limit it."""

from __future__ import annotations

import math

from autoscaler.core.explain import quotas
from autoscaler.core.explain.format import seconds
from autoscaler.core.explain.row import Row

LONG = 3.0
"""Long generations over the average one. Lengths of answers scatter about like an exponential distribution, whose 95th
percentile is three times its mean."""


def warnings(row: Row) -> tuple[str, ...]:
    return tuple(filter(None, (_drain(row), quotas.not_limited(row))))


def _drain(row: Row) -> str:
    """Compare the time that a replica has when it leaves with the time that generations take."""
    known = row.inp.fleet.drain_s
    drain_s = math.nan if known is None else float(known[row.row])
    if drain_s == 0:
        return (
            "a replica that leaves cuts its requests off at once, because vLLM's --shutdown-timeout is 0 "
            "and no preStop hook sleeps"
        )
    generation_s = row.observed("output_tokens") * row.observed("itl_s")
    if not LONG * generation_s > drain_s:  # False if unknown
        return ""
    return (
        f"the requests of a replica that leaves may go on for {seconds(drain_s)}, but an average one takes about "
        f"{seconds(generation_s)} and a long one about {seconds(LONG * generation_s)}; allow more by "
        "terminationGracePeriodSeconds and vLLM's --shutdown-timeout"
    )
