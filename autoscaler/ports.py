"""What the loop needs from the outside world. Adapters implement these; `adapters.memory` has those of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Protocol

from autoscaler.core.model.fleet import Fleet, WorkloadRef
from autoscaler.core.model.recent import Recent
from autoscaler.core.model.samples import Objectives, Samples
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.snapshot import Hold, Snapshot


class Unavailable(Exception):
    """The outside system cannot be asked now. Expected trouble: the tick goes without, or does not happen."""


class Unwritable(ValueError):
    """Standard output takes no more, such as a file on a full disk: nothing that is decided would be seen."""


class Clock(Protocol):
    """Time. `now_s` never goes back and is what decisions compare; `wall_s` is for records, schedules and people."""

    def now_s(self) -> float: ...

    def wall_s(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...


class WorkloadSource(Protocol):
    """Knows which workloads exist and what their pods are doing."""

    def fleet(self) -> Fleet:
        """Return the latest synced snapshot, from memory. Raises Unavailable until the first sync."""
        ...


class SampleSource(Protocol):
    """Reads metrics. Partial answers are answers; what is missing is NaN and counted in the report."""

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read what can be read within `deadline_s` seconds. Never raises for a reading that failed.

        objectives: of the workloads of this very fleet, so that requests within them can be counted where the
        histograms are.
        """
        ...


class HistorySource(Protocol):
    """Knows what was measured before this process began."""

    async def recent(self, fleet: Fleet, objectives: Objectives, span_s: float, deadline_s: float) -> Recent:
        """Return what can be read within `deadline_s` seconds of the last `span_s`, the largest workloads first.

        objectives: of the workloads of this very fleet. Raises Unavailable where nothing can be read.
        """
        ...


class StateStore(Protocol):
    """Keeps what was learned while no process runs."""

    async def load(self) -> Snapshot | None:
        """Return what was saved last; None: nothing yet. Raises Unavailable for what cannot be used."""
        ...

    async def save(self, snapshot: Snapshot) -> None:
        """Save this from now on. Raises Unavailable; what was saved before then stands."""
        ...


class Holds(Protocol):
    """Knows which workloads are left alone since somebody else changed their count."""

    def kept(self) -> tuple[Hold, ...]:
        """Return what another process must know to leave them alone as well."""
        ...

    def recall(self, holds: Sequence[Hold]) -> None:
        """Leave alone what another process did, for the rest of the time."""
        ...


@dataclass(frozen=True)
class Change:
    """One workload whose count should differ from what stands in the cluster."""

    ref: WorkloadRef
    uid: str
    before: int
    after: int
    reason: str  # the sentence of the explanation
    until_s: float = inf  # moment after which its inputs are too old to shrink on
    heard: bool = True  # the inputs behind it are fresh, of some pods at least


class ChangeStatus(Enum):
    """What became of a change."""

    APPLIED = "applied"
    RECORDED = "recorded"  # dry-run
    PUBLISHED = "published"  # handed to KEDA
    CONFLICT = "conflict"  # somebody else changed the count since it was read
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    change: Change
    status: ChangeStatus
    detail: str = ""


@dataclass(frozen=True)
class TickRecord:
    """One tick, whole: what every recorder (metrics, page, log, events, KEDA's answers) is made from."""

    number: int
    now_s: float
    wall_s: float  # Unix time, for people
    duration_s: float
    input: TickInput
    decision: Decision
    policies: tuple[str, ...]  # [W], name of the policy in force
    outcomes: tuple[Outcome, ...]
    leading: bool
    problems: Mapping[int, str] = field(default_factory=dict)  # by row: what is wrong with its declarations
    policy_problems: Mapping[int, str] = field(default_factory=dict)  # of those, with its policy or overrides


class Actuator(Protocol):
    """Makes it so, or says so. The only way out for a decision."""

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        """Bring about the changes; one outcome each. Never raises for a change that failed."""
        ...


class Recorder(Protocol):
    """Keeps or shows what happened. Must not wait, must not raise."""

    def record(self, tick: TickRecord) -> None: ...

    def failed(self, wall_s: float, error: BaseException) -> None:
        """Note a tick that came to nothing."""
        ...


class Leadership(Protocol):
    """Whether this process may act. Exactly one does; without other replicas that is always so."""

    @property
    def leading(self) -> bool: ...

    @property
    def led_elsewhere(self) -> bool:
        """Whether another process is known to lead. Both are false while no process leads, or that is not known."""
        ...


class Wakeup(Protocol):
    """Interrupts the pause between two ticks: something happened that should not wait."""

    def set(self) -> None: ...


@dataclass(frozen=True)
class ScaledObject:
    """What KEDA's ScaledObject says, as far as it concerns us; untrusted until its source has validated it."""

    namespace: str
    name: str
    target: WorkloadRef
    min_replicas: int  # as KEDA reads it: absent is 0
    max_replicas: int  # absent is 100
    tolerance_up: float | None  # of its HPA, or as stated while that is not known; None: the controller's default (0.1)
    tolerance_down: float | None
    metadata: tuple[tuple[str, str], ...]  # of our trigger
    alone: bool = True  # no other trigger decides beside ours
    problem: str = ""  # why it cannot be used, in words; "": it can


class ScaledObjects(Protocol):
    """Knows the ScaledObjects whose trigger names this scaler."""

    def scaled_object(self, namespace: str, name: str) -> ScaledObject | None:
        """Return it from memory; None: there is none. Raises Unavailable until the first sync."""
        ...
