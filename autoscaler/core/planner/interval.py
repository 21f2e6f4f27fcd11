"""Interval statistics: the measurements of each workload between two updates of the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.core.planner.pod_work import WorkTotals
from autoscaler.core.table.columns import Columns, FloatColumn

MAX_WAIT_SHARE = 0.8
"""Share of the TTFT objective that a request may wait; its prompt takes the rest."""


class Interval(NamedTuple):
    """The time between two updates, as the real fleet and the shadow fleets serve it; float64[W] unless stated."""

    observed_s: FloatColumn  # length; 0 where the demand was not known
    demand: FloatColumn  # offered load, in busy replicas
    arrivals: FloatColumn  # requests
    miss_curve: FloatColumn  # float64[B, W], share of requests that misses, by bin of load
    batch_room_s: FloatColumn  # work that the batch of a replica takes in before a request waits


@dataclass(frozen=True)
class IntervalStats(Columns):
    """Measurements since the last update; every field but the first float64[W]."""

    totals: WorkTotals
    replicas: FloatColumn  # that serve now
    mean_replicas: FloatColumn  # that served on average: a pod that became ready half-way counts half
    waiting: FloatColumn  # requests that wait in them
    cold_start_s: FloatColumn
    ttft_objective_s: FloatColumn  # or the longest wait allowed; NaN: neither, and the planner has no opinion
    itl_objective_s: FloatColumn  # NaN: no objective
    budget_share: FloatColumn  # error budget: share of requests that may miss
    floor: FloatColumn  # replicas
    ceiling: FloatColumn  # replicas

    @property
    def max_wait_s(self) -> FloatColumn:
        """The longest wait for which a request still meets TTFT."""
        return MAX_WAIT_SHARE * self.ttft_objective_s
