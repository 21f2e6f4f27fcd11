"""Interfaces between the loop and the outside world. Adapters implement them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # commands that decide nothing, as those of weights, start without the core
    from autoscaler.core.gpu_totals import TickUse
    from autoscaler.core.model.fleet import Fleet, Pod, WorkloadRef
    from autoscaler.core.model.recent import PastTokens, RecentReadings
    from autoscaler.core.model.samples import Objectives, Samples
    from autoscaler.core.model.types import Decision, TickInput
    from autoscaler.core.snapshot import ManualOverride, Snapshot
    from autoscaler.core.state import Memory
    from autoscaler.core.table.columns import FloatColumn


class Unavailable(Exception):
    """The outside system cannot be read now. This is expected: the tick goes on without it, or is skipped."""


class CannotServe(Exception):
    """A server cannot start. The message names its address or certificate, and the reason."""


class Unwritable(ValueError):
    """Standard output takes no more, such as a file on a full disk: no decision would be visible."""


class Clock(Protocol):
    """Time. `now_s` never goes back and is what decisions compare; `wall_s` is for records, schedules and people."""

    def now_s(self) -> float: ...

    def wall_s(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...


class WorkloadSource(Protocol):
    """Lists the workloads and the state of their pods."""

    def fleet(self) -> Fleet:
        """Return the latest synced view, from memory. Raises Unavailable until the first sync."""
        ...


class SampleSource(Protocol):
    """Reads metrics. A partial answer is valid: missing values are NaN and counted in the report."""

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read metrics within `deadline_s` seconds. Never raises for a reading that failed.

        objectives: of the workloads of this fleet. They are needed to count the requests that met them in histograms.
        """
        ...


class HistorySource(Protocol):
    """Reads what was measured before this process started."""

    async def recent(self, fleet: Fleet, objectives: Objectives, span_s: float, deadline_s: float) -> RecentReadings:
        """Read the last `span_s` seconds within `deadline_s` seconds, the largest workloads first.

        objectives: of the workloads of this fleet. Raises Unavailable if nothing can be read.
        """
        ...

    async def past_tokens(
        self, fleet: Fleet, rows: Collection[int], step_s: float, steps: int, deadline_s: float
    ) -> PastTokens:
        """Read the tokens of some workloads in the last steps within `deadline_s` seconds, the largest first.

        rows: of `fleet`. step_s: whole seconds. Raises Unavailable if nothing can be read.
        """
        ...


class StateStore(Protocol):
    """Stores learned state between two processes."""

    async def load(self) -> Snapshot | None:
        """Return the last saved snapshot, or None if there is none. Raises Unavailable if it cannot be used."""
        ...

    async def save(self, snapshot: Snapshot) -> None:
        """Replace the saved snapshot. Raises Unavailable; the previous snapshot then stays."""
        ...


class ManualOverrides(Protocol):
    """Workloads that are not scaled for a while, because their count was changed by someone else."""

    def snapshot(self) -> tuple[ManualOverride, ...]:
        """Return the overrides that the next process must respect."""
        ...

    def restore(self, overrides: Sequence[ManualOverride]) -> None:
        """Respect the overrides of an earlier process for the rest of their time."""
        ...


@dataclass(frozen=True)
class Change:
    """One workload whose replica count should differ from the one in the cluster."""

    ref: WorkloadRef
    uid: str
    before: int
    after: int
    reason: str  # the sentence of the explanation, without the age of the metrics
    scale_down_until_s: float = inf  # after this moment its inputs are too old to scale down
    has_fresh_input: bool = True  # at least some pods were read lately
    victims: tuple[Pod, ...] = ()  # serving pods in the order in which they should leave; (): it does not shrink


class ChangeStatus(Enum):
    """The result of a change."""

    APPLIED = "applied"
    RECORDED = "recorded"  # dry-run
    PUBLISHED = "published"  # handed to KEDA
    CONFLICT = "conflict"  # the count was changed by someone else since it was read
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    change: Change
    status: ChangeStatus
    detail: str = ""


@dataclass(frozen=True)
class TickRecord:
    """One complete tick: the source of metrics, page, log, Events and the answers to KEDA."""

    number: int
    now_s: float
    wall_s: float  # Unix time, for people
    duration_s: float
    input: TickInput
    decision: Decision
    policies: tuple[str, ...]  # [W], name of the present policy
    outcomes: tuple[Outcome, ...]
    leading: bool
    late: bool = False  # it took longer than the period, so decisions follow demand late
    problems: Mapping[int, str] = field(default_factory=dict)  # by row: what is wrong with its declarations
    policy_problems: Mapping[int, str] = field(default_factory=dict)  # those about its policy or overrides
    device_prices: FloatColumn | None = None  # float64[G], of a device of each node group per hour; NaN: unknown
    memories: tuple[Memory, Memory] | None = None  # from which it was decided, and which it left; None: not kept

    @cached_property
    def use(self) -> TickUse:
        """The use of its GPUs; computed once for all recorders."""
        from autoscaler.core.gpu_totals import TickUse  # noqa: PLC0415  commands that decide nothing start without it

        return TickUse.of(self.input, self.decision)


class Actuator(Protocol):
    """Applies or publishes changes. Decisions leave the process only through it."""

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        """Apply the changes; one outcome each. Never raises for a change that failed."""
        ...


@dataclass(frozen=True)
class SleepOrder:
    """One pod that is to sleep, or to be awake."""

    ref: WorkloadRef
    pod: Pod
    sleeps: bool  # False: it is to wake
    level: int  # of the sleep: 1 or 2
    is_asleep: bool  # by its last reading
    is_ready: bool  # by Kubernetes, which then sends it requests


class Sleeper(Protocol):
    """Puts engines to sleep and wakes them."""

    def order(self, orders: Sequence[SleepOrder], present: Sequence[Pod]) -> None:
        """Begin what these orders ask for, and do not wait. They replace those of the last tick.

        present: all pods that there are, so that what was remembered of others can be forgotten.
        """
        ...


class Recorder(Protocol):
    """Stores or shows ticks. Must not wait and must not raise."""

    def record(self, tick: TickRecord) -> None: ...

    def failed(self, wall_s: float, error: BaseException) -> None:
        """Note a tick that ended with an error."""
        ...


class Leadership(Protocol):
    """Whether this process may act. At most one process leads; a single process always does."""

    @property
    def leading(self) -> bool: ...

    @property
    def has_other_leader(self) -> bool:
        """Whether another process is known to lead. False while no leader is known."""
        ...


class Wakeup(Protocol):
    """Ends the pause between two ticks early."""

    def set(self) -> None: ...


@dataclass(frozen=True)
class ScaledObjectFields:
    """The fields of a KEDA ScaledObject that the scaler reads; untrusted until its source has validated it."""

    namespace: str
    name: str
    target: WorkloadRef
    min_replicas: int  # as KEDA reads it: absent is 0
    max_replicas: int  # absent is 100
    tolerance_up: float | None  # of its HPA, else as the ScaledObject states; None: the controller's default (0.1)
    tolerance_down: float | None
    metadata: tuple[tuple[str, str], ...]  # of our trigger
    is_only_trigger: bool = True  # no other trigger or formula decides in addition to ours
    problem: str = ""  # why it cannot be used; "": it can


class ScaledObjects(Protocol):
    """Finds the ScaledObjects whose trigger names this scaler."""

    def scaled_object(self, namespace: str, name: str) -> ScaledObjectFields | None:
        """Return a ScaledObject from memory, or None if there is none. Raises Unavailable until the first sync."""
        ...
