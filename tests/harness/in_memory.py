"""The ports of the loop in memory, for tests of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives, Samples
from autoscaler.core.snapshot import Snapshot
from autoscaler.ports import Change, ChangeStatus, Outcome, TickRecord, Unavailable


class LoopClock:
    """The clock of the running event loop, so that all parts of a test share its virtual time."""

    def __init__(self, wall_at_zero_s: float = 1_800_000_000.0) -> None:
        self._wall_at_zero_s = wall_at_zero_s

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return self._wall_at_zero_s + self.now_s()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


@dataclass
class MemoryCluster:
    """A cluster that consists of one Fleet: a WorkloadSource, and an Actuator that sets counts at once."""

    state: Fleet | None = None

    def fleet(self) -> Fleet:
        if self.state is None:
            raise Unavailable("the cluster has not been read yet")
        return self.state

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        state = self.fleet()
        row_of = {workload.ref: row for row, workload in enumerate(state.workloads)}
        replicas, outcomes = state.replicas.copy(), []
        for change in changes:
            row = row_of.get(change.ref)
            if row is None:
                outcomes.append(Outcome(change, ChangeStatus.FAILED, f"{change.ref} does not exist"))
            elif replicas[row] != change.before:
                outcomes.append(Outcome(change, ChangeStatus.CONFLICT, f"it has {replicas[row]:g} replicas now"))
            else:
                replicas[row] = change.after
                outcomes.append(Outcome(change, ChangeStatus.APPLIED))
        self.state = replace(state, replicas=replicas)
        return outcomes


@dataclass
class MemorySamples:
    """A SampleSource that answers from a function of the fleet."""

    read: Callable[[Fleet], Samples]

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        return self.read(fleet)


@dataclass
class MemoryState:
    """A StateStore that ends with its process."""

    saved: Snapshot | None = None

    async def load(self) -> Snapshot | None:
        return self.saved

    async def save(self, snapshot: Snapshot) -> None:
        self.saved = snapshot


@dataclass
class MemoryRecorder:
    """Keeps every tick in memory, so it is for tests and short runs only."""

    ticks: list[TickRecord] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)

    def record(self, tick: TickRecord) -> None:
        self.ticks.append(tick)

    def failed(self, wall_s: float, error: BaseException) -> None:
        self.failures.append(error)
