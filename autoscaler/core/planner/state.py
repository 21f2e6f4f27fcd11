"""The memory of the planner from tick to tick."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import Plan
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.readings.pod_deltas import PodReadings
from autoscaler.core.table.blocks import Blocks
from autoscaler.core.table.columns import BoolColumn, IntColumn, moved, replace

PHASES = 6
"""Turns begin at this many moments of an interval, so that no tick has to update all workloads."""


def find_phase(workload_id: IntColumn) -> IntColumn:
    """Return the phase of each workload, 0..PHASES - 1. It depends on the id, so it never changes."""
    return workload_id % PHASES


@dataclass(frozen=True)
class PlannerState:
    """Everything that the planner remembers. Rows are those of the fleet, but for `counted`."""

    by_phase: Blocks[StrategyState]  # strategies as of the last turn: a turn copies those of no other phase
    plan: Plan  # the recommendation, as of the last turn, or of the last reading of a late queue
    counted_id: IntColumn  # int64[P], pods of `counted`, ascending
    counted: PodReadings  # readings up to which the work of pods was counted at the last turn
    idle_timeouts: IdleTimeouts

    @classmethod
    def empty(cls) -> PlannerState:
        """Return the state without workloads, as after a first start."""
        no_ids = np.empty(0, dtype=np.int64)
        strategies = Blocks.of(StrategyState.blank(0), no_ids, PHASES)
        return cls(strategies, Plan.blank(0), no_ids, PodReadings.blank(0), IdleTimeouts.blank(0))

    def aligned(self, before: IntColumn, after: IntColumn) -> PlannerState:
        """Return it on the rows of other workloads. before, after: int64[W], ids; removed workloads are forgotten."""
        return replace(
            self,
            by_phase=self.by_phase.moved(before, after, find_phase(after)),
            plan=moved(self.plan, before, after),
            idle_timeouts=moved(self.idle_timeouts, before, after),
        )

    @property
    def strategies(self) -> StrategyState:
        """The strategies of all workloads, in one table."""
        return self.by_phase.merged()

    def with_strategies(self, strategies: StrategyState) -> PlannerState:
        """Return it with other strategies of the same workloads."""
        return replace(self, by_phase=Blocks.of(strategies, self.by_phase.block, PHASES))

    @property
    def counts_itl(self) -> BoolColumn:
        """Whether the planner counts the requests that met the ITL objective; bool[W]."""
        return np.asarray(self.plan.itl_counted_requests > 0)
