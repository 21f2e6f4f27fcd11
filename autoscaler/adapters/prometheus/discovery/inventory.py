"""From what one look at the metrics saw to a Fleet: workloads and pods numbered once, and remembered for a while.

No query and no label is read here. What was seen is untrusted: how much of it is followed is bounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.adapters.prometheus.discovery.kube_state import Controllers, Name, PodFacts
from autoscaler.adapters.prometheus.owners import leaders_of, of_leader, of_model, owner_of
from autoscaler.core.model.fleet import Fleet, Obstacles, Pod, Pool, Workload, WorkloadRef

FORGET_S = 3600.0  # a workload of which nothing was seen for so long is gone
MISSED_S = 300.0  # a pod that an incomplete look left out stays for so long
MAX_WORKLOADS = 20_000
MAX_PODS = 200_000


@dataclass(frozen=True)
class Sighting:
    """What one look saw."""

    reporting: dict[Name, tuple[str, str]]  # pods from which an engine reports: engine and model
    pods: dict[Name, PodFacts]  # of kube-state-metrics; empty: it is not there
    controllers: Controllers
    gpus: dict[Name, Counter[Pool]]  # devices that each pod holds, by DCGM
    whole: bool  # nothing failed and nothing was partial: what was not seen is gone
    targets: frozenset[Name] = frozenset()  # of those that report, scrape targets, (job, instance): no pod is known


@dataclass
class _Found:
    """What is remembered of a workload."""

    number: int
    workload: Workload
    seen_s: float
    replicas: float = math.nan  # spec.replicas; NaN: not told
    gpus: float = math.nan
    pool: int = -1


@dataclass
class _Member:
    """What is remembered of a pod."""

    number: int
    ref: WorkloadRef
    facts: PodFacts
    seen_s: float


class Roster:
    """Everything found so far. Workloads and pods get ascending numbers that are never given twice."""

    def __init__(self) -> None:
        self._found: dict[WorkloadRef, _Found] = {}  # in ascending order of numbers, as all dicts here
        self._members: dict[Name, _Member] = {}
        self._pools: dict[Pool, int] = {}
        self._leaders: dict[Name, Name] = {}  # of workers, which are no replicas of their own
        self._workers: dict[Name, list[Name]] = {}  # likewise, by leader
        self._led: set[WorkloadRef] = set()  # LeaderWorkerSets whose workers were seen
        self._workloads: tuple[Workload, ...] = ()
        self._given = 0

    def full(self) -> bool:
        """Say whether something may have been left out because the bounds were reached."""
        return len(self._members) >= MAX_PODS or len(self._found) >= MAX_WORKLOADS

    def owner(self, name: Name) -> WorkloadRef | None:
        """Return the workload of a pod."""
        member = self._members.get(name)
        return member.ref if member else None

    def namespaces(self) -> set[str]:
        """Return where something was found."""
        return {ref.namespace for ref in self._found}

    def silent(self) -> list[WorkloadRef]:
        """Return the workloads that have no pod, of which nobody says that they should have none."""
        manned = {member.ref for member in self._members.values()}
        return [ref for ref, found in self._found.items() if ref not in manned and math.isnan(found.replicas)]

    def update(self, sighting: Sighting, now_s: float) -> None:
        """Take in what was seen at a time of the tick."""
        self._see_groups(sighting)
        for name, (engine, model) in sorted(sighting.reporting.items()):
            if name in self._leaders:
                continue
            facts = self._facts(name, sighting) or self._remembered(name, sighting) or PodFacts(ready=True)
            ref = self._ref(name, model, sighting)
            if self._saw_workload(ref, engine, model, now_s):
                self._saw_pod(name, ref, facts, now_s)
        for name, facts in sorted(
            sighting.pods.items()
        ):  # on their way: no engine is heard yet, but the owner is known
            if name in sighting.reporting or name in self._leaders:
                continue
            if (ref := self._ref(name, "", sighting)) in self._found:
                self._saw_pod(name, ref, facts, now_s)
        self._hear_replicas(sighting, now_s)
        self._hear_gpus(sighting)
        self._forget(sighting.whole, now_s)

    def fleet(self, now_s: float, tick_s: Callable[[float], float]) -> Fleet:
        """Return the snapshot; `tick_s` turns Unix times of the server into times of the tick."""
        rows = {ref: row for row, ref in enumerate(self._found)}
        found, members = list(self._found.values()), list(self._members.values())
        workloads = tuple(each.workload for each in found)
        if workloads != self._workloads:
            self._workloads = workloads  # the same object while nothing changes: who compares it is quick
        pod_workload = np.array([rows[member.ref] for member in members], dtype=np.int64)
        ready = np.array([member.facts.ready for member in members], dtype=bool)
        spec = np.array([each.replicas for each in found], dtype=np.float64)
        return Fleet(
            time_s=now_s,
            workloads=self._workloads,
            workload_id=np.array([each.number for each in found], dtype=np.int64),
            replicas=np.where(np.isnan(spec), np.bincount(pod_workload[ready], minlength=len(found)), spec),
            paused=np.zeros(len(found), dtype=bool),
            other_owner=("",) * len(found),
            gpus_per_replica=np.array([each.gpus for each in found], dtype=np.float64),
            pool=np.array([each.pool for each in found], dtype=np.int64),
            obstacles=Obstacles.none(len(found), listed=False),
            pods=tuple(Pod(namespace, name) for namespace, name in self._members),
            pod_id=np.array([member.number for member in members], dtype=np.int64),
            pod_workload=pod_workload,
            pod_ready=ready,
            pod_terminating=np.array([member.facts.terminating for member in members], dtype=bool),
            pod_blocked=np.array([member.facts.blocked for member in members], dtype=np.int64),
            pod_created_s=np.array([tick_s(member.facts.created_s) for member in members], dtype=np.float64),
            pod_scheduled_s=np.array([tick_s(member.facts.scheduled_s) for member in members], dtype=np.float64),
            pod_started_s=np.array([tick_s(member.facts.started_s) for member in members], dtype=np.float64),
            pod_ready_s=np.array(
                [tick_s(member.facts.ready_s) if member.facts.ready else math.nan for member in members],
                dtype=np.float64,
            ),
            pools=tuple(self._pools),
            pool_gpus=np.full(len(self._pools), np.nan),
        )

    def _ref(self, name: Name, model: str, sighting: Sighting) -> WorkloadRef:
        namespace, pod = name
        if name in sighting.targets:
            return of_model(namespace, model or namespace)
        facts = sighting.pods.get(name)
        controller = facts.controller if facts else ("", "")
        ref = owner_of(namespace, pod, model, controller, sighting.controllers.of_replica_set)
        if ref.kind == "StatefulSet" and (led := of_leader(namespace, pod)) in self._led:
            return led
        return ref

    def _see_groups(self, sighting: Sighting) -> None:
        """Find the workers of LeaderWorkerSets by their names."""
        pods = sighting.reporting.keys() | sighting.pods.keys() | sighting.gpus.keys()
        self._leaders = leaders_of(pods - sighting.targets)
        self._workers = {}
        for worker, leader in self._leaders.items():
            self._workers.setdefault(leader, []).append(worker)
        self._led = {of_leader(*leader) for leader in self._workers}

    def _facts(self, name: Name, sighting: Sighting) -> PodFacts | None:
        """Return what is known of a pod; of a leader, that it is as ready as the worst pod of its group."""
        facts = sighting.pods.get(name)
        if facts is None or not facts.ready:
            return facts
        workers = map(sighting.pods.get, self._workers.get(name, ()))
        return replace(facts, ready=all(worker is None or worker.ready for worker in workers))

    def _remembered(self, name: Name, sighting: Sighting) -> PodFacts | None:
        """Return what was known of a pod that an incomplete look says nothing about."""
        return self._members[name].facts if name in self._members and not sighting.whole else None

    def _saw_workload(self, ref: WorkloadRef, engine: str, model: str, now_s: float) -> bool:
        """Remember it; False: there are too many."""
        found = self._found.get(ref)
        if found is None:
            if len(self._found) >= MAX_WORKLOADS:
                return False
            workload = Workload(ref, model=model, engine=engine)
            found = self._found[ref] = _Found(self._number(), workload, now_s)
        elif found.seen_s < now_s and (found.workload.engine, found.workload.model) != (engine, model):
            found.workload = found.workload._replace(engine=engine, model=model)  # of its first pod; others may differ
        found.seen_s = now_s
        return True

    def _saw_pod(self, name: Name, ref: WorkloadRef, facts: PodFacts, now_s: float) -> None:
        member = self._members.get(name)
        if member is not None and (member.ref != ref or facts.created_s > member.facts.created_s):
            del self._members[name]  # another pod of the same name, as StatefulSets make them
            member = None
        if facts.ended:
            self._members.pop(name, None)
        elif member is not None:
            member.facts, member.seen_s = facts, now_s
        elif len(self._members) < MAX_PODS:
            self._members[name] = _Member(self._number(), ref, facts, now_s)

    def _hear_replicas(self, sighting: Sighting, now_s: float) -> None:
        for ref, found in self._found.items():
            kind = "StatefulSet" if ref.kind == "LeaderWorkerSet" else ref.kind  # that makes its leaders
            spec = sighting.controllers.replicas.get((ref.namespace, kind, ref.name), math.nan)
            if not math.isnan(spec):
                found.seen_s = now_s
            if sighting.whole or not math.isnan(spec):
                found.replicas = spec

    def _hear_gpus(self, sighting: Sighting) -> None:
        """Learn devices per replica and pool, from the pod that holds the most."""
        most: dict[WorkloadRef, tuple[int, Pool]] = {}
        for name, member in self._members.items():
            held = _held(name, member.facts, sighting)
            for worker in self._workers.get(name, ()):
                held += _held(worker, sighting.pods.get(worker), sighting)
            for pool, count in held.items():
                most[member.ref] = max(most.get(member.ref, (count, pool)), (count, pool))
        for ref, (count, pool) in most.items():
            found = self._found[ref]
            if not sighting.whole and count < found.gpus:
                continue  # those that hold more may have been left out
            found.pool = self._pools.setdefault(pool, len(self._pools))
            found.gpus = float(count)

    def _forget(self, whole: bool, now_s: float) -> None:
        for ref in [ref for ref, found in self._found.items() if now_s - found.seen_s > FORGET_S]:
            del self._found[ref]
        kept_s = 0.0 if whole else MISSED_S
        self._members = {
            name: member
            for name, member in self._members.items()
            if now_s - member.seen_s <= kept_s and member.ref in self._found
        }

    def _number(self) -> int:
        self._given += 1
        return self._given


def _held(name: Name, facts: PodFacts | None, sighting: Sighting) -> Counter[Pool]:
    """Return the devices of a pod: those that DCGM sees, else those that it requests."""
    requested = facts.gpus if facts is not None else {}
    return Counter(sighting.gpus.get(name) or {Pool(resource): count for resource, count in requested.items()})
