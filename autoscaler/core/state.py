"""The memory of a tick: the tables of all stages, which every tick takes and returns.

Rows change place here and nowhere else: `align` moves every table onto the rows of a new fleet, by id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.allocate.allocate import AllocateState
from autoscaler.core.chain.links import ChainState
from autoscaler.core.choose import ChoiceState
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.observe.pods import PodState
from autoscaler.core.observe.workloads import ObserveState
from autoscaler.core.planner.state import PlannerState
from autoscaler.core.reactive.capacity import LearnedCapacity
from autoscaler.core.stabilize.pipeline import StabilizeState
from autoscaler.core.table.columns import Columns, IntColumn, TimestampColumn, Transient, moved, replace


@dataclass(frozen=True)
class WorkloadState(Columns):
    """The tables of the stages that have a row per workload; [W]."""

    last_tick_s: Transient[TimestampColumn]  # time of the last tick that saw it
    observe: ObserveState
    capacity: LearnedCapacity
    choice: ChoiceState
    stabilize: StabilizeState
    allocate: AllocateState
    chain: ChainState


@dataclass(frozen=True)
class Memory:
    """Everything that is carried from tick to tick."""

    workload_id: IntColumn  # int64[W]
    pod_id: IntColumn  # int64[P]
    workloads: WorkloadState
    pods: PodState
    planner: PlannerState

    @classmethod
    def empty(cls) -> Memory:
        """Return the memory of a first start."""
        no_ids = np.empty(0, dtype=np.int64)
        return cls(no_ids, no_ids, WorkloadState.blank(0), PodState.blank(0), PlannerState.empty())


def align(memory: Memory, fleet: Fleet) -> Memory:
    """Put memory onto the rows of `fleet`: new rows are blank, and those that are gone are forgotten."""
    if memory.workload_id is fleet.workload_id and memory.pod_id is fleet.pod_id:
        return memory
    return replace(
        memory,
        workload_id=fleet.workload_id,
        pod_id=fleet.pod_id,
        workloads=moved(memory.workloads, memory.workload_id, fleet.workload_id),
        pods=moved(memory.pods, memory.pod_id, fleet.pod_id),
        planner=memory.planner.aligned(memory.workload_id, fleet.workload_id),
    )
