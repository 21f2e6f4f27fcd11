"""What was seen of workloads between two judgements of their rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.core.planner.pod_work import Tally
from autoscaler.core.table.columns import Columns, FloatColumn

TOLERATED = 0.8
"""Share of the TTFT objective that a wait may take; the prompt takes the rest."""


class Step(NamedTuple):
    """The time between two judgements, as real fleets and those on paper live through it; float64[W] unless stated."""

    lived_s: FloatColumn  # 0 where nothing is known of it
    demand: FloatColumn  # replicas that were kept busy
    arrivals: FloatColumn  # requests
    likely: FloatColumn  # float64[B, W], share that misses by bin of the load
    room_s: FloatColumn  # work that the batch of a replica takes up before a request waits


@dataclass(frozen=True)
class Seen(Columns):
    """What was seen since the rules were judged last; every field but the first float64[W]."""

    tally: Tally
    replicas: FloatColumn  # that serve
    served: FloatColumn  # that served in the mean since then: who came half way counts half
    waiting: FloatColumn  # requests that wait in them
    cold_start_s: FloatColumn
    ttft_objective_s: FloatColumn  # or as long as a request may wait; NaN: no promise, and no rule speaks
    itl_objective_s: FloatColumn  # NaN: no promise
    may_miss: FloatColumn  # share of requests
    floor: FloatColumn  # replicas
    ceiling: FloatColumn

    @property
    def patience_s(self) -> FloatColumn:
        """For how long a request may wait; who waits longer misses TTFT."""
        return TOLERATED * self.ttft_objective_s
