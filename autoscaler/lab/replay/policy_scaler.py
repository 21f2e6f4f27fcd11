"""The autoscaler's own decision as a scaler of replay runs: `core.tick`, fed from scrapes of the simulated replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from autoscaler.config.policy.compile import compile_specs
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.policy.schema import Policy
from autoscaler.core.allocate.victims import find_victims
from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, PendingCause, Pod, Pool, Workload, WorkloadRef
from autoscaler.core.model.phases import PodStarts
from autoscaler.core.model.samples import GatewaySamples, PodSamples, Samples
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.model.variants import Variants
from autoscaler.core.model.weights import PodCache, WeightPlaces, Weights
from autoscaler.core.planner.state import PHASES
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, replace
from autoscaler.core.tick import tick
from autoscaler.lab.replay.case import Case, ReplicaRows, View
from autoscaler.lab.replay.weight_wishes import WeightWishes

_READINGS = {each.name for each in fields(ReplicaRows)} & {each.name for each in fields(PodSamples)}
_STATUS = {each.name for each in fields(ReplicaRows)} - _READINGS
_UNREAD = {each.name for each in fields(PodSamples)} - _READINGS - {"asleep"}


class PolicyFleetScaler:
    """Decides for several workloads under their policies, in one tick.

    `decision` and `tick_input` are those of the last tick. gpus: number of GPUs that all replicas share; NaN: unknown,
    so no workload is limited by them. prices: of a replica of each case per hour, by which the variants of a service
    are chosen; by default that of its GPUs. may_be_spot: of each case, its replicas may be taken away at any time.
    names_victims: set deletion costs before a shrink, as the daemon does.
    """

    name = "ours"
    period_s = 5.0

    def __init__(
        self,
        cases: Sequence[Case],
        policies: Sequence[Policy],
        gpus: float = math.nan,
        prices: Sequence[float] | None = None,
        names_victims: bool = False,
        may_be_spot: Sequence[bool] | None = None,
    ) -> None:
        self._workloads = tuple(
            Workload(WorkloadRef("replay", _workload_name(case, row)), policy=policy.name, service=case.service)
            for row, (case, policy) in enumerate(zip(cases, policies, strict=True))
        )
        book = PolicyBook({policy.name: policy for policy in policies}, policies[0].name)
        rules = compile_specs(self._workloads, book)
        # All scalers of a case have the same ceiling: it is a matter of budget, not of the decision.
        ceiling = np.array([float(case.max_replicas) for case in cases])
        floor = np.fmin(rules.spec.min_replicas, ceiling)
        self._start_s = cases[0].trace.start_s
        self._rules = replace(rules, spec=replace(rules.spec, min_replicas=floor, max_replicas=ceiling))
        self._gpus_per_replica = np.array([case.gpus_per_replica for case in cases])
        self._slots = np.array([case.profile.stated_slots for case in cases])
        self._pools = (Pool("nvidia.com/gpu"),)
        self._groups = NodeGroups.of_pools(self._pools, np.array([gpus]))
        self._workload_id = np.arange(len(cases))
        cost = self._gpus_per_replica if prices is None else np.array(prices)
        self._variants = _variants(cases, cost, None if may_be_spot is None else np.array(may_be_spot))
        self._names_victims = names_victims
        self._weight_bytes = np.array([case.profile.weight_bytes for case in cases])
        self._knows_weights = not math.isnan(cases[0].weights_on) or cases[0].fetches_weights
        self._knows_nodes = self._knows_weights or cases[0].requests_nodes
        self._requests_nodes = np.array([case.requests_nodes for case in cases])
        self._wishes = WeightWishes(cases) if cases[0].fetches_weights else None
        self._memory = Memory.empty()
        self._observed: _Observed | None = None
        self._counts: Sequence[int] = ()
        self.tick_input: TickInput | None = None
        self.decision: Decision | None = None

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        """Return the desired replicas.

        A tick without new data is skipped; anything it could decide, such as the end of a window, waits for the next
        tick. No tick is skipped while a replica starts.
        """
        now_s = views[0].now_s
        if self._is_unchanged(views):
            return self._counts
        shown = self._observe([view.pods for view in views])
        front = GatewaySamples(
            time_s=np.array([view.totals.time_s for view in views]),
            waiting=np.array([view.totals.gateway_waiting for view in views]),
            arrivals_per_s=np.full(len(views), np.nan),
        )
        fleet = replace(shown.fleet, time_s=now_s, replicas=np.array([float(view.desired) for view in views]))
        self.tick_input = TickInput(
            now_s=now_s,
            fleet=self._with_nodes(fleet, views, shown) if self._knows_nodes else fleet,
            spec=self._rules.spec,
            schedule=self._rules.windows.at(self._start_s + now_s, now_s),
            samples=Samples(shown.samples, front),
            variants=self._variants,
            requests_nodes=self._requests_nodes if self._requests_nodes.any() else None,
            fetches_weights=self._wishes is not None,
        )
        self.decision, self._memory = tick(self.tick_input, self._memory)
        self._counts = self.decision.replicas.astype(np.int64).tolist()
        if self._names_victims:
            self._name_victims(views, self.tick_input, self.decision)
        if self.tick_input.requests_nodes is not None:
            for view, places in zip(views, np.ceil(self.decision.chain.places).tolist(), strict=True):
                view.request_nodes(int(places))
        if self._wishes is not None:
            self._wishes.update(self.tick_input, self.decision, views, self._start_s + now_s)
        return self._counts

    def _with_nodes(self, fleet: Fleet, views: Sequence[View], shown: _Observed) -> Fleet:
        """Return the fleet with what a cluster tells about its nodes, and about weights where they say so."""
        rows = np.arange(len(views))
        free, held, nodes_held, up_gpus, more_gpus = np.array([view.places for view in views], dtype=np.float64).T
        groups = replace(self._groups, allocatable=up_gpus[:1], can_add=more_gpus[:1])
        starts = replace(
            PodStarts.filled(len(fleet.pods)), node_created_s=shown.pods.column(shown.rows, "node_created_s")
        )
        fleet = replace(fleet, groups=groups, obstacles=replace(fleet.obstacles, room=free), starts=starts)
        if not self._knows_weights:
            return fleet
        places = WeightPlaces(rows, np.zeros_like(rows), free, held, free - held, nodes_held, nodes_held)
        of_pods = np.where(shown.pods.column(shown.rows, "weights_held"), int(PodCache.HELD), int(PodCache.ABSENT))
        sources = tuple(f"file:///weights/{row:04}" for row in rows)
        steered = np.ones(len(rows), dtype=bool)
        return replace(fleet, weights=Weights(sources, rows, self._weight_bytes, steered, places, of_pods))

    def _name_victims(self, views: Sequence[View], inp: TickInput, decision: Decision) -> None:
        """Give the replicas that should leave the lowest deletion costs, the first of them the lowest."""
        leaving = inp.fleet.replicas - decision.replicas
        unpriced = np.full(len(inp.fleet.groups.groups), np.nan)
        victims = find_victims(inp, unpriced, np.flatnonzero(leaving > 0).tolist(), decision.replicas)
        for row, pods in victims.items():
            count = int(leaving[row])
            ids = [int(pod.name) // len(views) for pod in pods[:count]]
            views[row].set_deletion_costs({pod: place - count for place, pod in enumerate(ids)})

    def _is_unchanged(self, views: Sequence[View]) -> bool:
        if self.tick_input is None or self._observed is None:
            return False
        return (
            all(view.pods is row for view, row in zip(views, self._observed.rows, strict=True))
            and all(view.desired == count for view, count in zip(views, self._counts, strict=True))
            and [view.totals.gateway_waiting for view in views] == self.tick_input.samples.gateways.waiting.tolist()
        )

    def _observe(self, rows: Sequence[ReplicaRows]) -> _Observed:
        """Return the pods and samples of each workload. Unchanged parts are reused, since few scrapes find a change of
        pods.
        """
        shown = self._observed
        if shown is None or any(map(_changed, rows, shown.rows)):
            pods = _Pods.of(rows)
            shown = _Observed(rows, pods, self._fleet(rows, pods), _samples(rows, pods))
        elif any(row is not before for row, before in zip(rows, shown.rows, strict=True)):
            shown = shown._replace(rows=rows, samples=_samples(rows, shown.pods))
        self._observed = shown
        return shown

    def _fleet(self, rows: Sequence[ReplicaRows], pods: _Pods) -> Fleet:
        """Return the fleet without time and replica counts, which the caller fills in."""
        ready_s = pods.column(rows, "ready_s")
        return Fleet(
            time_s=math.nan,
            workloads=self._workloads,
            workload_id=self._workload_id,
            replicas=np.full(len(self._workloads), np.nan),
            paused=np.zeros(len(self._workloads), dtype=bool),
            other_owner=("",) * len(self._workloads),
            gpus_per_replica=self._gpus_per_replica,
            pool=np.zeros(len(self._workloads), dtype=np.int64),
            obstacles=Obstacles.none(len(self._workloads)),
            pods=tuple(Pod("replay", str(number)) for number in pods.id.tolist()),
            pod_id=pods.id,
            pod_workload=pods.workload,
            pod_ready=~np.isnan(ready_s),
            pod_terminating=pods.column(rows, "terminating"),
            pod_pending=np.where(
                pods.column(rows, "unschedulable"), PendingCause.UNSCHEDULABLE, PendingCause.NONE
            ).astype(np.int64),
            pod_created_s=pods.column(rows, "created_s"),
            pod_scheduled_s=pods.column(rows, "scheduled_s"),
            pod_started_s=pods.column(rows, "started_s"),
            pod_ready_s=ready_s,
            pod_slots=self._slots[pods.workload],
            pools=self._pools,
            groups=self._groups,
        )


class PolicyBatchScaler(PolicyFleetScaler):
    """Decides for runs that have nothing in common in one tick, which costs little more than the tick of one.

    It ticks with every scrape and at no other time, and updates all strategies in one turn. So no run affects another.
    """

    def __init__(self, cases: Sequence[Case], policies: Sequence[Policy]) -> None:
        super().__init__(cases, policies)
        self._workload_id = self._workload_id * PHASES
        self._scraped_s = -math.inf

    def _is_unchanged(self, views: Sequence[View]) -> bool:
        before, self._scraped_s = self._scraped_s, views[0].totals.time_s
        return before == self._scraped_s


class PolicyScaler(PolicyFleetScaler):
    """Decides for one workload under one policy."""

    def __init__(self, case: Case, policy: Policy) -> None:
        super().__init__((case,), (policy,))

    def decide(self, view: View) -> int:
        return self.decide_all((view,))[0]


def _workload_name(case: Case, row: int) -> str:
    return f"{case.trace.name}-{row}" if case.service else case.trace.name


def _variants(cases: Sequence[Case], cost: FloatColumn, may_be_spot: BoolColumn | None) -> Variants | None:
    """Return which cases are variants of one service; None without any."""
    services = list(dict.fromkeys(case.service for case in cases if case.service))
    number = np.array([services.index(case.service) if case.service else -1 for case in cases])
    return Variants(number, cost, may_be_spot) if services else None


@dataclass(frozen=True)
class _Pods:
    """The pods of several workloads as rows of one table, by ascending id."""

    order: IntColumn  # int64[P], index of each row in the concatenation of all workloads
    id: IntColumn  # int64[P], unique over all workloads
    workload: IntColumn  # int64[P]

    @classmethod
    def of(cls, rows: Sequence[ReplicaRows]) -> _Pods:
        workload = np.repeat(np.arange(len(rows)), [len(each.id) for each in rows])
        ids = np.concatenate([each.id for each in rows]) * len(rows) + workload
        order = np.argsort(ids)
        return cls(order, ids[order], workload[order])

    def column(self, rows: Sequence[ReplicaRows], name: str) -> Any:
        if len(rows) == 1:
            return getattr(rows[0], name)  # already by ascending id
        return np.concatenate([getattr(each, name) for each in rows])[self.order]


class _Observed(NamedTuple):
    """The last status and samples of the pods of several workloads."""

    rows: Sequence[ReplicaRows]  # [W]
    pods: _Pods
    fleet: Fleet
    samples: PodSamples


def _changed(row: ReplicaRows, before: ReplicaRows) -> bool:
    """Return whether the status of a workload's pods changed. An unchanged column is the same object."""
    return any(getattr(row, name) is not getattr(before, name) for name in _STATUS)


def _samples(rows: Sequence[ReplicaRows], pods: _Pods) -> PodSamples:
    readings = {name: pods.column(rows, name) for name in _READINGS}
    unknown = dict.fromkeys(_UNREAD, np.full(len(pods.id), np.nan))
    return PodSamples(**readings, **unknown, asleep=np.zeros(len(pods.id)))
