"""The memory of the planner from tick to tick."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import Plan
from autoscaler.core.observe.pod_deltas import PodReadings
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, moved, replace


@dataclass(frozen=True)
class PlannerState:
    """Everything that the planner remembers. Rows are those of the fleet, but for `counted`."""

    strategies: StrategyState  # as of the last turn of each workload
    plan: Plan  # the recommendation, as of the last turn, or of the last reading of a late queue
    counted_id: IntColumn  # int64[P], pods of `counted`, ascending
    counted: PodReadings  # readings up to which the work of pods was counted at the last turn
    idle_timeouts: IdleTimeouts

    @classmethod
    def empty(cls) -> PlannerState:
        """Return the state without workloads, as after a first start."""
        no_ids = np.empty(0, dtype=np.int64)
        return cls(StrategyState.blank(0), Plan.blank(0), no_ids, PodReadings.blank(0), IdleTimeouts.blank(0))

    def aligned(self, before: IntColumn, after: IntColumn) -> PlannerState:
        """Return it on the rows of other workloads. before, after: int64[W], ids; removed workloads are forgotten."""
        return replace(
            self,
            strategies=moved(self.strategies, before, after),
            plan=moved(self.plan, before, after),
            idle_timeouts=moved(self.idle_timeouts, before, after),
        )

    @property
    def counts_itl(self) -> BoolColumn:
        """Whether the planner counts the requests that met the ITL objective; bool[W]."""
        return np.asarray(self.plan.itl_counted_requests > 0)

    @property
    def idle_after_s(self) -> FloatColumn:
        """Seconds without work after which the error budget allows zero replicas; float64[W], NaN: it does not."""
        return self.idle_timeouts.timeout_s
