"""Warnings about a workload in addition to the decision: what a shrink cuts off, what a quota or an HPA does not do."""

from __future__ import annotations

import math

from autoscaler.core.explain import quotas
from autoscaler.core.explain.format import count, number, seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.types import Stage

RECENT_FLAP_S = 3600.0
"""Report a flap for this long."""

LONG = 3.0
"""Long generations over the average one. Lengths of answers scatter about like an exponential distribution, whose 95th
percentile is three times its mean."""


def warnings(row: TickRow) -> tuple[str, ...]:
    said = (_drain(row), quotas.not_limited(row), _unfollowed(row), _flap(row), _without_spot(row))
    return tuple(filter(None, said))


def _without_spot(row: TickRow) -> str:
    """Say that a preference for spot nodes has no effect."""
    variants = row.inp.variants
    if math.isnan(row.spec("on_demand_floor")):
        return ""
    if variants is None or variants.service[row.row] < 0:
        return "replicas.onDemandFloor has no effect, because the workload has no service with variants"
    if variants.may_be_spot is None:
        return ""
    spot = variants.may_be_spot[variants.service == variants.service[row.row]]
    if spot.any() and not spot.all():
        return ""
    which = "all variants are" if spot.any() else "no variant is known to be"
    return f"replicas.onDemandFloor has no effect, because {which} on spot nodes"


def _unfollowed(row: TickRow) -> str:
    """Say that the HPA does not move towards the answer, and which count holds GPUs."""
    for_s = float(row.decision.unfollowed_s[row.row])
    if math.isnan(for_s):
        return ""
    answer, present = row.after(Stage.OWNER), row.observed("replicas")
    kept = f"KEDA's HPA has kept {count(int(present))} for {seconds(for_s)}, although the answer is {number(answer)}"
    if answer > present:
        return f"{kept}, so other workloads may take the GPUs of the rest"
    return f"{kept}, so the GPUs of these are not free"


def _flap(row: TickRow) -> str:
    """Say that a change was undone before its replica could serve."""
    age_s, flaps = row.observed("flap_age_s"), int(row.observed("flaps"))
    if not age_s <= RECENT_FLAP_S:  # False without a flap
        return ""
    once = f"within one cold start ({seconds(row.observed('cold_start_s'))})"
    if flaps == 1:
        return f"1 change of its replicas was undone {once}, {seconds(age_s)} ago"
    return f"{flaps} changes of its replicas were undone {once}, the last one {seconds(age_s)} ago"


def _drain(row: TickRow) -> str:
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
