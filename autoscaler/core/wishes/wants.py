"""How many replicas of each workload should find their weights: now, soon, and at the peaks of recent days."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.allocate.further import limit_by_quotas
from autoscaler.core.model.chain import Cause, Chain, Link
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

AHEAD_S = 3600.0
"""Windows and rises that begin within this time count as begun: that is how long the weights of a large model take on a
slow network."""

SPARE_FRACTION = 0.25  # of the peak: a higher one, or nodes that others fill

BUCKETS, BUCKET_S = 12, 6 * 3600.0
"""Peaks are remembered for three days, in spans of six hours."""


def needed_replicas(inp: TickInput, decision: Decision) -> FloatColumn:
    """Return the replicas that run, are decided, that the load needs, and of windows that open soon. float64[W].

    Those that nothing has decided yet are within the quotas of their workloads.
    """
    schedule, chain, soon_s = inp.schedule, decision.chain, inp.now_s + AHEAD_S
    is_near = (schedule.start_s <= soon_s) & (schedule.until_s > inp.now_s)
    scheduled = np.where(is_near, schedule.replicas, 0.0).max(axis=1, initial=0.0)
    prepared = np.where(_is_due(chain, soon_s) & (chain.cause == Cause.WINDOW), chain.replicas, 0.0)
    wanted: FloatColumn = np.fmax.reduce(
        [
            inp.fleet.replicas,
            decision.replicas,
            np.where(np.isfinite(decision.base_replicas), np.ceil(decision.base_replicas), 0.0),
            inp.spec.min_replicas * (decision.replicas > 0),
            scheduled,
            prepared,
        ]
    )
    wanted = np.where(np.isfinite(wanted), wanted, 0.0)
    return limit_by_quotas(inp.fleet, inp.spec, np.fmax(inp.fleet.replicas, decision.replicas), wanted)


def add_expected(inp: TickInput, decision: Decision, needed: FloatColumn) -> FloatColumn:
    """Return the needed replicas, or those that a forecast expects where they are more, within quotas. float64[W]."""
    wanted = np.fmax(needed, expected_replicas(inp, decision))
    return limit_by_quotas(inp.fleet, inp.spec, needed, wanted)


def expected_replicas(inp: TickInput, decision: Decision) -> FloatColumn:
    """Return the replicas that the load of a day and of a week ago would need soon. float64[W].

    They are needed now, but are no peak to remember: on a holiday that load does not come.
    """
    chain, soon_s = decision.chain, inp.now_s + AHEAD_S
    expected = np.fmin(decision.plan.forecast.most_replicas(inp.now_s, soon_s), inp.spec.max_replicas)
    prepared = np.where(_is_due(chain, soon_s) & (chain.cause != Cause.WINDOW), chain.replicas, 0.0)
    return np.where(inp.spec.has_stated_capacity, 0.0, np.fmax(expected, prepared))


def _is_due(chain: Chain, soon_s: float) -> BoolColumn:
    """Return the workloads for whose next need weights are fetched by then; bool[W]."""
    return np.asarray(chain.starts_s[Link.WEIGHTS] <= soon_s)


def peak_of_copies(copies: FloatColumn) -> FloatColumn:
    """Return the peaks for which a plan may have had this many copies, each with one place. float64[W]."""
    return np.floor(copies / (1.0 + SPARE_FRACTION))


@dataclass(frozen=True)
class Peaks:
    """The most replicas of each workload in recent days."""

    workload_id: IntColumn  # int64[W], ascending
    bucket: int  # number of the present span
    replicas: FloatColumn  # float64[BUCKETS, W], by span modulo BUCKETS

    @classmethod
    def none(cls) -> Peaks:
        return cls(np.zeros(0, dtype=np.int64), 0, np.zeros((BUCKETS, 0)))

    def update(self, workload_id: IntColumn, replicas: FloatColumn, wall_s: float) -> Peaks:
        """Return the peaks with the present replicas. Workloads that are gone are forgotten."""
        bucket = int(wall_s // BUCKET_S)
        kept = np.zeros((BUCKETS, len(workload_id)))
        place = np.searchsorted(self.workload_id, workload_id)
        is_known = np.append(self.workload_id, -1)[place] == workload_id
        kept[:, is_known] = self.replicas[:, place[is_known]]
        for gone in range(self.bucket + 1, min(bucket, self.bucket + BUCKETS) + 1):
            kept[gone % BUCKETS] = 0.0
        kept[bucket % BUCKETS] = np.fmax(kept[bucket % BUCKETS], replicas)
        return Peaks(workload_id, bucket, kept)

    def spare(self, needed: FloatColumn) -> FloatColumn:
        """Return the replicas beyond those needed now that should find their weights too. float64[W]."""
        peak = np.fmax(self.replicas.max(axis=0, initial=0.0), needed)
        return np.asarray(peak + np.ceil(SPARE_FRACTION * peak) - needed)
