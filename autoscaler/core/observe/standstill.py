"""Load that does not move, and beside which stuck pods other replicas are to serve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import StuckPods
from autoscaler.core.model.samples import GatewaySamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe.pods import GroupedPods
from autoscaler.core.readings import progress
from autoscaler.core.table.columns import Columns, FloatColumn, TimestampColumn, Transient, or_zero

GATEWAY_STUCK_S = 120.0
"""A queue at the gateway beside engines that do nothing for this long does not move: a gateway that holds requests back
for engines that are full would see them work."""

CHANCES = 2.0
"""Cold starts for which a replica stands in beside stuck ones when nothing shows that requests reach it."""


@dataclass(frozen=True)
class Standstill(Columns):
    """When load last moved around stuck pods; float64[W]."""

    last_beside_s: Transient[TimestampColumn]  # last moment at which other pods had work beside stuck ones; NaN: never
    last_gateway_moved_s: Transient[TimestampColumn]  # last moment without a queue at the gateway, or with work


def update(
    inp: TickInput, pods: GroupedPods, front: GatewaySamples, cold_start_s: FloatColumn, before: Standstill
) -> tuple[StuckPods, Standstill]:
    """Say which load does not move, and beside which stuck pods others are to serve.

    A stuck pod is replaced where there is work: other pods of its workload work, or more requests arrive. A single
    stuck pod with a queue gets a replica beside it for a while even without that. So do pods behind a gateway with a
    queue. Several stuck pods at once, with no other work, are more likely stale gauges of clients that left.
    """
    samples, pace, stuck_pods = pods.samples, pods.progress, pods.classes.stuck
    heard = inp.now_s - front.time_s <= inp.spec.max_input_age_s
    gateway_waits = heard & (front.waiting > 0)
    awake = pods.classes.reporting & ~(samples.asleep > 0)
    stuck, queueing, growing, works, serves, uncounted = pods.by_workload.count(
        [
            stuck_pods,
            stuck_pods & (samples.waiting > 0),
            stuck_pods & (inp.now_s - pace.last_grown_s <= progress.GROWING_S),
            pods.classes.counts & pods.worked,
            awake,
            awake & np.isnan(samples.gaps),
        ]
    )
    stuck_s = pods.by_workload.min(np.where(stuck_pods, inp.now_s - pace.last_moved_s, np.nan))
    (requests,) = pods.by_workload.sum_known([samples.running + samples.waiting], stuck_pods)
    comes = (works > 0) | (growing > 0) | (heard & (front.arrivals_per_s > 0))
    last_beside_s = np.where(stuck > 0, np.where(comes, inp.now_s, before.last_beside_s), np.nan)
    replaces = inp.now_s - last_beside_s <= progress.REPLACEMENT_S
    waits = (stuck_s <= chance_s(cold_start_s)) & (((stuck == 1) & (queueing > 0)) | gateway_waits)
    # From the moment at which all engines are stuck the queue in front of them is, too, until one of them works.
    moved_s = np.where((stuck > 0) & (stuck == serves), inp.now_s - GATEWAY_STUCK_S, inp.now_s)
    moved_s = np.fmin(before.last_gateway_moved_s, moved_s)
    stands = gateway_waits & (serves > 0) & (uncounted + works == 0)
    last_gateway_moved_s = np.where(stands, moved_s, inp.now_s)
    found = StuckPods(
        stuck=stuck,
        stuck_requests=or_zero(requests),
        stuck_s=stuck_s,
        stuck_replaced=np.where(replaces, stuck, 0.0),
        stuck_min_replicas=np.where(waits, stuck + 1, np.nan),
        gateway_stuck=(inp.now_s - last_gateway_moved_s >= GATEWAY_STUCK_S).astype(np.float64),
    )
    return found, Standstill(last_beside_s, last_gateway_moved_s)


def chance_s(cold_start_s: FloatColumn) -> FloatColumn:
    """Return for how long a replica stands in beside stuck ones without a sign that requests reach it; float64[W]."""
    return np.fmin(CHANCES * cold_start_s + GATEWAY_STUCK_S, progress.REPLACEMENT_S)
