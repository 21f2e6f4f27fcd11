"""Keeps the workloads and pods found by discovery, with stable ids, and forgets them after a while.

This module reads no query results and no labels. Its input is untrusted, so workloads and pods are bounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.adapters.prometheus.discovery.kube_state import Controllers, Name, PodFacts
from autoscaler.adapters.prometheus.owners import leader_worker_set_of, leaders_of, model_workload, owner_of
from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, Pod, Pool, Workload, WorkloadRef
from autoscaler.core.model.phases import SKEW_S

FORGET_S = 3600.0  # a workload without any sign for this long is forgotten
MISSED_S = 300.0  # a pod missing from incomplete passes is kept this long
MAX_WORKLOADS = 20_000
MAX_PODS = 200_000
"""Most of each. Half of the room is for pods that are scraped: a pod may tell of as many others as it likes."""

MAX_POOLS = 256  # the memory for groups of nodes is the square of it


@dataclass(frozen=True)
class DiscoveryResult:
    """The result of one discovery pass."""

    reporting: dict[Name, tuple[str, str]]  # engine and model, by pod that reports
    pods: dict[Name, PodFacts]  # from kube-state-metrics; empty if it is not scraped
    controllers: Controllers
    gpus: dict[Name, Counter[Pool]]  # devices of each pod, from DCGM
    complete: bool  # no query failed or was partial, so anything missing is gone
    knows_ready: bool = True  # kube-state-metrics reports whether pods are ready
    targets: frozenset[Name] = frozenset()  # reporting scrape targets without a pod, (job, instance)
    told: frozenset[Name] = frozenset()  # reporting pods of which only other pods tell


@dataclass
class _KnownWorkload:
    """State kept about a workload."""

    id: int
    workload: Workload
    found_s: float
    replicas: float = math.nan  # spec.replicas; NaN if unknown
    gpus: float = math.nan
    pool: Pool | None = None
    is_scraped: bool = False  # a pod of it was scraped, so nobody else tells of its pods


@dataclass
class _KnownPod:
    """State kept about a pod."""

    id: int
    ref: WorkloadRef
    facts: PodFacts
    found_s: float


class DiscoveredWorkloads:
    """All workloads and pods found so far. Ids ascend and are never reused."""

    def __init__(self, gpus_per_replica: float = math.nan) -> None:
        """gpus_per_replica: whole GPUs of workloads of which no series tells."""
        self._gpus_per_replica = gpus_per_replica
        self._workloads_by_ref: dict[WorkloadRef, _KnownWorkload] = {}  # in ascending order of ids, as all dicts here
        self._pods: dict[Name, _KnownPod] = {}
        self._stated = None if math.isnan(gpus_per_replica) else Pool("nvidia.com/gpu")  # where no series tells
        self._is_full = False
        self._leaders: dict[Name, Name] = {}  # leader of each worker; workers are not replicas
        self._workers: dict[Name, list[Name]] = {}  # workers of each leader
        self._leader_worker_sets: set[WorkloadRef] = set()  # LeaderWorkerSets whose workers were found
        self._workloads: tuple[Workload, ...] = ()
        self._last_id = 0

    def is_full(self) -> bool:
        """Return whether a bound was reached in the last pass, so that workloads or pods were left out."""
        return self._is_full

    def owner(self, name: Name) -> WorkloadRef | None:
        """Return the workload of a pod."""
        member = self._pods.get(name)
        return member.ref if member else None

    def namespaces(self) -> set[str]:
        """Return the namespaces of all workloads."""
        return {ref.namespace for ref in self._workloads_by_ref}

    def workloads_without_pods(self) -> list[WorkloadRef]:
        """Return the workloads that have no pod and whose spec.replicas is unknown."""
        with_pods = {member.ref for member in self._pods.values()}
        return [
            ref for ref, found in self._workloads_by_ref.items() if ref not in with_pods and math.isnan(found.replicas)
        ]

    def update(self, result: DiscoveryResult, now_s: float) -> None:
        """Add the result of a pass. now_s: on the clock of the tick."""
        self._is_full = False
        self._update_groups(result)
        counted: set[Name] = set()
        for name in sorted(result.reporting, key=lambda name: (name in result.told, name)):
            if name in self._leaders:
                continue
            (engine, model), is_told = result.reporting[name], name in result.told
            facts = self._facts(name, result) or self._previous_facts(name, result) or PodFacts(ready=True)
            if facts.ready is None and not result.knows_ready:
                facts = replace(facts, ready=True)
            ref = self._ref(name, model, result)
            if self._update_workload(ref, engine, model, now_s, is_told=is_told):
                counted.add(name)
                self._update_pod(name, ref, facts, now_s, is_told=is_told)
        # Pods that start report no engine yet, but their owner is known.
        for name, facts in sorted(result.pods.items()):
            if name in counted or name in self._leaders:
                continue
            if (ref := self._ref(name, "", result)) in self._workloads_by_ref:
                self._update_pod(name, ref, facts, now_s, is_told=True)
        self._update_replicas(result, now_s)
        self._update_gpus(result)
        self._forget(result.complete, now_s)

    def fleet(self, now_s: float, tick_s: Callable[[float], float]) -> Fleet:
        """Return the snapshot. tick_s: converts Unix times of the server to times of the tick."""
        rows = {ref: row for row, ref in enumerate(self._workloads_by_ref)}
        found, members = list(self._workloads_by_ref.values()), list(self._pods.values())
        by_trust = sorted(found, key=lambda each: not each.is_scraped)
        used = [*dict.fromkeys(pool for each in by_trust if (pool := each.pool or self._stated))]
        pools: dict[Pool | None, int] = {pool: index for index, pool in enumerate(used[:MAX_POOLS])}
        workloads = tuple(each.workload for each in found)
        if workloads != self._workloads:
            self._workloads = workloads  # the same object while nothing changes, so comparisons are fast
        pod_workload = np.array([rows[member.ref] for member in members], dtype=np.int64)
        ready = np.array([member.facts.ready for member in members], dtype=bool)
        spec = np.array([each.replicas for each in found], dtype=np.float64)
        started_s, ready_s = (
            np.array([tick_s(at_s) for at_s in column], dtype=np.float64)
            for column in (
                [member.facts.started_s for member in members],
                [member.facts.ready_s if member.facts.ready else math.nan for member in members],
            )
        )
        # The clock of a node that is ahead teaches nothing: a start without a beginning is not learned.
        is_ahead = np.fmax(started_s, ready_s) > now_s + SKEW_S
        return Fleet(
            time_s=now_s,
            workloads=self._workloads,
            workload_id=np.array([each.id for each in found], dtype=np.int64),
            replicas=np.where(np.isnan(spec), np.bincount(pod_workload[ready], minlength=len(found)), spec),
            paused=np.zeros(len(found), dtype=bool),
            other_owner=("",) * len(found),
            gpus_per_replica=np.array(
                [self._gpus_per_replica if math.isnan(each.gpus) else each.gpus for each in found], dtype=np.float64
            ),
            pool=np.array([pools.get(each.pool or self._stated, -1) for each in found], dtype=np.int64),
            obstacles=Obstacles.none(len(found), listed=False),
            pods=tuple(Pod(namespace, name) for namespace, name in self._pods),
            pod_id=np.array([member.id for member in members], dtype=np.int64),
            pod_workload=pod_workload,
            pod_ready=ready,
            pod_terminating=np.array([member.facts.terminating for member in members], dtype=bool),
            pod_pending=np.array([member.facts.blocked for member in members], dtype=np.int64),
            pod_created_s=np.array([tick_s(member.facts.created_s) for member in members], dtype=np.float64),
            pod_scheduled_s=np.array([tick_s(member.facts.scheduled_s) for member in members], dtype=np.float64),
            pod_started_s=np.where(is_ahead, np.nan, started_s),
            pod_ready_s=np.minimum(ready_s, now_s),
            pools=tuple(used[:MAX_POOLS]),
            groups=NodeGroups.of_pools(used[:MAX_POOLS], np.full(len(pools), np.nan)),
        )

    def _ref(self, name: Name, model: str, result: DiscoveryResult) -> WorkloadRef:
        namespace, pod = name
        if name in result.targets:
            return model_workload(namespace, model or namespace)
        facts = result.pods.get(name)
        controller = facts.controller if facts else ("", "")
        ref = owner_of(namespace, pod, model, controller, result.controllers.replica_set_owners)
        if ref.kind == "StatefulSet" and (led := leader_worker_set_of(namespace, pod)) in self._leader_worker_sets:
            return led
        return ref

    def _update_groups(self, result: DiscoveryResult) -> None:
        """Find the workers of LeaderWorkerSets by their names."""
        pods = result.reporting.keys() | result.pods.keys() | result.gpus.keys()
        told = result.told - result.pods.keys() - result.gpus.keys()
        self._leaders = leaders_of(told) | leaders_of(pods - result.targets - told)
        self._workers = {}
        for worker, leader in self._leaders.items():
            self._workers.setdefault(leader, []).append(worker)
        self._leader_worker_sets = {leader_worker_set_of(*leader) for leader in self._workers}

    def _facts(self, name: Name, result: DiscoveryResult) -> PodFacts | None:
        """Return the facts about a pod. A leader is ready only if all its workers are."""
        facts = result.pods.get(name)
        if facts is None or not facts.ready:
            return facts
        workers = map(result.pods.get, self._workers.get(name, ()))
        return replace(facts, ready=all(worker is None or worker.ready is not False for worker in workers))

    def _previous_facts(self, name: Name, result: DiscoveryResult) -> PodFacts | None:
        """Return the previous facts about a pod if the pass is incomplete."""
        return self._pods[name].facts if name in self._pods and not result.complete else None

    def _update_workload(self, ref: WorkloadRef, engine: str, model: str, now_s: float, *, is_told: bool) -> bool:
        """Add or update a workload; return False if there are too many, or if others tell of one that is scraped."""
        found = self._workloads_by_ref.get(ref)
        if found is None:
            if len(self._workloads_by_ref) >= _most(MAX_WORKLOADS, is_told):
                self._is_full = True
                return False
            workload = Workload(ref, model=model, engine=engine)
            found = self._workloads_by_ref[ref] = _KnownWorkload(self._next_id(), workload, now_s)
        elif is_told and found.is_scraped:
            return False
        elif found.found_s < now_s and (found.workload.engine, found.workload.model) != (engine, model):
            found.workload = found.workload._replace(
                engine=engine, model=model
            )  # from its first pod; others may differ
        found.found_s = now_s
        found.is_scraped |= not is_told
        return True

    def _update_pod(self, name: Name, ref: WorkloadRef, facts: PodFacts, now_s: float, *, is_told: bool) -> None:
        member = self._pods.get(name)
        if member is not None and (member.ref != ref or facts.created_s > member.facts.created_s):
            del self._pods[name]  # another pod with the same name, as in StatefulSets
            member = None
        if facts.ended:
            self._pods.pop(name, None)
        elif member is not None:
            member.facts, member.found_s = facts, now_s
        elif len(self._pods) < _most(MAX_PODS, is_told):
            self._pods[name] = _KnownPod(self._next_id(), ref, facts, now_s)
        else:
            self._is_full = True

    def _update_replicas(self, result: DiscoveryResult, now_s: float) -> None:
        for ref, found in self._workloads_by_ref.items():
            kind = "StatefulSet" if ref.kind == "LeaderWorkerSet" else ref.kind  # which creates its leaders
            spec = result.controllers.replicas.get((ref.namespace, kind, ref.name), math.nan)
            if not math.isnan(spec):
                found.found_s = now_s
            if result.complete or not math.isnan(spec):
                found.replicas = spec

    def _update_gpus(self, result: DiscoveryResult) -> None:
        """Update devices per replica and pool from the pod with the most devices."""
        most: dict[WorkloadRef, tuple[int, Pool]] = {}
        for name, member in self._pods.items():
            devices = _devices(name, member.facts, result)
            for worker in self._workers.get(name, ()):
                devices += _devices(worker, result.pods.get(worker), result)
            for pool, count in devices.items():
                most[member.ref] = max(most.get(member.ref, (count, pool)), (count, pool))
        for ref, (count, pool) in most.items():
            found = self._workloads_by_ref[ref]
            if not result.complete and count < found.gpus:
                continue  # pods with more devices may be missing
            found.pool = pool
            found.gpus = float(count)

    def _forget(self, complete: bool, now_s: float) -> None:
        for ref in [ref for ref, found in self._workloads_by_ref.items() if now_s - found.found_s > FORGET_S]:
            del self._workloads_by_ref[ref]
        kept_s = 0.0 if complete else MISSED_S
        self._pods = {
            name: member
            for name, member in self._pods.items()
            if now_s - member.found_s <= kept_s and member.ref in self._workloads_by_ref
        }

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _most(most: int, is_told: bool) -> int:
    return most // 2 if is_told else most


def _devices(name: Name, facts: PodFacts | None, result: DiscoveryResult) -> Counter[Pool]:
    """Return the devices of a pod: those that DCGM reports, else those that it requests."""
    requested = facts.gpus if facts is not None else {}
    return Counter(result.gpus.get(name) or {Pool(resource): count for resource, count in requested.items()})
