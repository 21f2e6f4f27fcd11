"""The surroundings of the KEDA adapter, in memory: a clock, a lease, ScaledObjects and ticks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.adapters.keda.answers import Answers
from autoscaler.adapters.keda.service import KedaService
from autoscaler.config.policy.parse import load
from autoscaler.core.model.chain import Chain
from autoscaler.core.model.diagnosis import Diagnosed
from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, PendingClass, Workload, WorkloadRef
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.samples import Samples
from autoscaler.core.model.spec import Schedule, Spec
from autoscaler.core.model.types import Capacity, Decision, Plan, Recommender, Signal, SleepOrders, Stage, TickInput
from autoscaler.ports import Change, Outcome, ScaledObjectFields, TickRecord, Unavailable

MAX_AGE_S = 60.0
METADATA = {"scalerAddress": "vllm-autoscaler-keda.vllm-autoscaler:6000", "policy": "interactive"}


@dataclass
class ManualClock:
    """A clock that only a test moves."""

    time_s: float = 1000.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return 1.7e9 + self.time_s

    async def sleep(self, duration_s: float) -> None:
        self.time_s += duration_s


@dataclass
class Lease:
    leading: bool = True
    has_other_leader: bool = False


@dataclass
class Cluster:
    """ScaledObjects by namespace and name."""

    objects: dict[tuple[str, str], ScaledObjectFields] = field(default_factory=dict)
    synced: bool = True

    def scaled_object(self, namespace: str, name: str) -> ScaledObjectFields | None:
        if not self.synced:
            raise Unavailable("the cluster is not known yet: the first list is not complete")
        return self.objects.get((namespace, name))

    def add(self, scaled_object: ScaledObjectFields) -> None:
        self.objects[scaled_object.namespace, scaled_object.name] = scaled_object


@dataclass
class Row:
    """One workload in a tick: its present state and the decision."""

    name: str
    desired: float
    current: float = 1
    id: int = 0
    trusted: bool = True
    age_s: float = 0.0  # NaN: no pods to read
    max_age_s: float = MAX_AGE_S
    active: bool | None = None  # None: if `desired` is above zero
    pods: float | None = None  # that are not leaving; None: equal to current
    blocked: float = 0.0  # of those, without a GPU


def ref(name: str) -> WorkloadRef:
    return WorkloadRef("prod", name)


def scaled_object(name: str, **changes: object) -> ScaledObjectFields:
    """Return a ScaledObject named like its target, with both tolerances 0."""
    plain = ScaledObjectFields("prod", name, ref(name), 0, 100, 0.0, 0.0, tuple(METADATA.items()))
    return replace(plain, **changes)


def tick(rows: Sequence[Row], now_s: float, view_age_s: float = 0.0, leading: bool = True) -> TickRecord:
    """Return the record of a tick with these workloads, whose pods are only counted."""
    count = len(rows)
    none = np.empty(0)
    fleet = Fleet(
        time_s=now_s - view_age_s,
        workloads=tuple(Workload(ref(row.name)) for row in rows),
        workload_id=np.array([row.id for row in rows], dtype=np.int64),
        replicas=np.array([float(row.current) for row in rows]),
        paused=np.zeros(count, dtype=bool),
        other_owner=("",) * count,
        gpus_per_replica=np.ones(count),
        pool=np.full(count, -1),
        obstacles=Obstacles.none(count),
        pods=(),
        pod_id=np.empty(0, dtype=np.int64),
        pod_workload=np.empty(0, dtype=np.int64),
        pod_ready=np.empty(0, dtype=bool),
        pod_terminating=np.empty(0, dtype=bool),
        pod_pending=np.empty(0, dtype=np.int64),
        pod_created_s=none,
        pod_scheduled_s=none,
        pod_started_s=none,
        pod_ready_s=none,
        pools=(),
        groups=NodeGroups.of_pools((), none),
    )
    desired = np.array([float(row.desired) for row in rows])
    active = np.array([row.desired > 0 if row.active is None else row.active for row in rows], dtype=bool)
    decision = Decision(
        observation=replace(
            Observation.filled(count),
            age_s=np.array([row.age_s for row in rows]),
            replicas=fleet.replicas,
            ready=np.array([float(row.current if row.pods is None else row.pods) - row.blocked for row in rows]),
            asleep=np.zeros(count),
            starting=np.zeros(count),
            pending=np.array([row.blocked for row in rows]),
        ),
        starts=Starts.unknown(count, 0),
        capacity=Capacity.filled(count),
        recommender=np.full(count, Recommender.REACTIVE),
        recommendations=np.full((len(Signal), count), np.nan),
        stages=np.full((len(Stage), count), np.nan),
        replicas=desired,
        sleep_orders=SleepOrders(*[np.zeros(0, dtype=bool)] * 3),
        active=active,
        trusted=np.array([row.trusted for row in rows], dtype=bool),
        idle_after_s=np.full(count, np.nan),
        unfollowed_s=np.full(count, np.nan),
        kept_for_s=np.full(count, np.nan),
        kept_window_s=np.full(count, np.nan),
        idle_s=np.full(count, np.nan),
        base_replicas=desired,
        pending_by_class=np.zeros((len(PendingClass), count)),
        plan=Plan.blank(count),
        diagnosed=Diagnosed.none(count),
        chain=Chain.none(count),
    )
    spec = replace(Spec.filled(count), max_input_age_s=np.array([row.max_age_s for row in rows]))
    schedule = Schedule(*(np.empty((count, 0)),) * 4)
    return TickRecord(
        number=1,
        now_s=now_s,
        wall_s=1.7e9 + now_s,
        duration_s=0.1,
        input=TickInput(now_s, fleet, spec, schedule, Samples.unknown(count, 0)),
        decision=decision,
        policies=("interactive",) * count,
        outcomes=(),
        leading=leading,
    )


class World:
    """One daemon in KEDA mode without its server: `llama` is known, and three replicas are desired."""

    def __init__(self, resend_s: float = 10.0) -> None:
        self.clock = ManualClock()
        self.lease = Lease()
        self.cluster = Cluster()
        self.answers = Answers(self.clock, self.lease)
        self.book = load()
        self.service = KedaService(self.answers, self.cluster, lambda: self.book, resend_s=resend_s)
        self.cluster.add(scaled_object("llama"))

    def decide(self, *rows: Row, view_age_s: float = 0.0) -> None:
        """Record a tick at the clock's time."""
        self.answers.record(tick(rows or (Row("llama", 3),), self.clock.time_s, view_age_s, self.lease.leading))

    async def publish(self, name: str, after: int, has_fresh_input: bool = True) -> list[Outcome]:
        """Publish a change from one replica, like the loop."""
        return await self.answers.apply(
            [Change(ref(name), name, 1, after, "because", has_fresh_input=has_fresh_input)], 1.0
        )
