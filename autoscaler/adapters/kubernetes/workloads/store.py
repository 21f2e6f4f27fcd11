"""Scale targets by number, and the owners of pods: pod to ReplicaSet to Deployment.

Objects arrive in any order. So a target gets its number when its uid is first mentioned, by itself or by an object that
it owns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.api.text import one_line
from autoscaler.adapters.kubernetes.autoscalers.by_target import TargetKey
from autoscaler.adapters.kubernetes.manual_overrides import OverrideTracker
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.adapters.kubernetes.pods.store import Endpoint, PodStore
from autoscaler.adapters.kubernetes.workloads.targets import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    STATEFUL_SET,
    ScaleKind,
    Target,
    controller_name,
    read_leader_worker_set,
    read_target,
)

PRIMARY_SUFFIX = "-primary"  # Flagger serves from a copy with this suffix, and keeps the original at zero


class _ForeignReplicaSet(NamedTuple):
    """A ReplicaSet that is not controlled by a Deployment."""

    uid: str
    controller: str
    labels: Mapping[str, str]


class TargetStore:
    """All scale targets, managed or not. Each has a number, and the pods of its owners have it too."""

    def __init__(
        self,
        pods: PodStore,
        manual_overrides: OverrideTracker,
        writes: OwnWrites,
        find_autoscaler: Callable[[TargetKey], str],
    ) -> None:
        """find_autoscaler: names another autoscaler of a target, "" if none. Its writes are not manual overrides."""
        self.version = 0
        self.targets: dict[int, Target] = {}  # by target id
        self.failures: dict[int, str] = {}  # by target id: why its controller cannot create pods
        self._pods = pods
        self._manual_overrides = manual_overrides
        self._writes = writes
        self._find_autoscaler = find_autoscaler
        self._next_id = 0
        self._ids: dict[Key, int] = {}  # by namespace and uid: an owner is in the namespace of its dependents
        self._uids: dict[tuple[str, str, str], str] = {}  # by kind, namespace, name
        self._replica_sets: dict[Key, tuple[str, str]] = {}  # by namespace and name: own uid, Deployment's uid
        self._replica_set_counts: Counter[Key] = Counter()  # by namespace and Deployment's uid
        self._foreign_replica_sets: dict[str, dict[str, _ForeignReplicaSet]] = {}  # by namespace, name

    def put(self, target: Target) -> None:
        ref, uid = target.ref, target.uid
        owner = ref.namespace, uid
        target_id = self._id_of(owner)
        before = self.targets.get(target_id)
        if before == target:
            return
        self._uids[ref.kind, ref.namespace, ref.name] = uid
        if before is None:
            self._manual_overrides.observe_new(uid, target.writer)
        else:
            is_managed = before.declared.policy is not None
            if before.replicas != target.replicas and is_managed and not self._find_autoscaler(target.key):
                self._manual_overrides.observe_change(uid, target.replicas, target.writer)
            self._writes.clear_refusal(uid)  # with another template or limits the count may be allowed now
        self.targets[target_id] = target
        if ref.kind == STATEFUL_SET.kind:
            self._pods.set_target(owner, target_id)
        elif ref.kind == LEADER_WORKER_SET.kind:
            self._pods.set_target((ref.namespace, ref.name), target_id)
        workload = target.workload
        self._pods.set_endpoint(
            target_id, Endpoint(workload.metrics_port, workload.metrics_scheme, workload.metrics_path)
        )
        self.version += 1

    def set_failure(self, target: Target, message: str) -> None:
        """Note why the controller of a target cannot create pods; "": it can."""
        target_id = self._id_of((target.ref.namespace, target.uid))
        if message:
            self.failures[target_id] = message
        else:
            self.failures.pop(target_id, None)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        uid = self._uids.pop((kind, namespace, name), None)
        if uid is None:
            return
        target_id = self._ids.pop((namespace, uid))
        del self.targets[target_id]
        self.failures.pop(target_id, None)
        self._pods.forget_target(target_id)
        self._pods.forget_owner((namespace, name if kind == LEADER_WORKER_SET.kind else uid))
        self._manual_overrides.forget(uid)
        self._writes.forget(uid)
        self.version += 1

    def put_replica_set(self, seen: objects.Object) -> None:
        owner = seen.metadata.controller()
        if owner is None or owner.kind != DEPLOYMENT.kind:
            self._put_foreign_replica_set(seen, controller_name(seen.metadata))
            return
        namespace, uid = seen.metadata.namespace, seen.metadata.uid
        deployment = namespace, owner.uid
        key = namespace, seen.metadata.name
        if key not in self._replica_sets:
            self._replica_sets[key] = uid, owner.uid
            self._replica_set_counts[deployment] += 1
        self._pods.set_target((namespace, uid), self._id_of(deployment))

    def find_replacement(self, target: Target) -> str:
        """Return the controller whose pods serve in place of a target at zero replicas; "": none.

        Argo Rollouts uses a Deployment as template (`workloadRef`), and Flagger as canary. Both keep it at zero. Pods
        that match its selector, or those of its copy, then belong to another controller.
        """
        if target.replicas or not target.selector:
            return ""
        namespace = target.ref.namespace
        for replica_set in self._foreign_replica_sets.get(namespace, {}).values():
            labels = {**replica_set.labels, **self._pods.labels((namespace, replica_set.uid))}
            if all(labels.get(name) == value for name, value in target.selector):
                return replica_set.controller
        uid = self._uids.get((target.ref.kind, namespace, target.ref.name + PRIMARY_SUFFIX), "")
        copy = self.targets.get(self._ids.get((namespace, uid), -1))
        return copy.controller if copy is not None and copy.controller.startswith("Canary/") else ""

    def _put_foreign_replica_set(self, seen: objects.Object, controller: str) -> None:
        metadata = seen.metadata
        if not controller:
            return
        known = self._foreign_replica_sets.setdefault(metadata.namespace, {})
        replica_set = _ForeignReplicaSet(metadata.uid, controller, metadata.labels or {})
        if known.get(metadata.name) != replica_set:
            known[metadata.name] = replica_set
            self.version += 1

    def remove_replica_set(self, namespace: str, name: str) -> None:
        if self._foreign_replica_sets.get(namespace, {}).pop(name, None) is not None:
            self.version += 1
        if (namespace, name) not in self._replica_sets:
            return
        uid, deployment_uid = self._replica_sets.pop((namespace, name))
        deployment = namespace, deployment_uid
        self._pods.forget_owner((namespace, uid))
        self._replica_set_counts[deployment] -= 1
        if not self._replica_set_counts[deployment]:
            del self._replica_set_counts[deployment]
            if self._ids.get(deployment, -1) not in self.targets:  # its Deployment is already deleted
                self._ids.pop(deployment, None)

    def _id_of(self, owner: Key) -> int:
        if owner not in self._ids:
            self._ids[owner] = self._next_id
            self._next_id += 1
        return self._ids[owner]


class TargetKindStore:
    """Receives one kind of target. A target that is being deleted is removed: its controller creates no more pods."""

    def __init__(self, store: TargetStore, kind: ScaleKind) -> None:
        self._store = store
        self._kind = kind

    def put(self, seen: objects.Target | objects.LeaderWorkerSet, /) -> None:
        if seen.metadata.deletion_timestamp is not None:
            self.remove(seen.metadata.namespace, seen.metadata.name)
            return
        if isinstance(seen, objects.LeaderWorkerSet):
            target = read_leader_worker_set(seen)
        else:
            target = read_target(self._kind, seen)
        self._store.put(target)
        self._store.set_failure(target, _replica_failure(seen.status))

    def remove(self, namespace: str, name: str, /) -> None:
        self._store.remove(self._kind.kind, namespace, name)


class ReplicaSetStore:
    """Receives ReplicaSets. Only their owners are used."""

    def __init__(self, store: TargetStore) -> None:
        self._store = store

    def put(self, seen: objects.Object, /) -> None:
        self._store.put_replica_set(seen)

    def remove(self, namespace: str, name: str, /) -> None:
        self._store.remove_replica_set(namespace, name)


def _replica_failure(status: objects.TargetStatus) -> str:
    """Return the controller's message if it cannot create pods; "": it can, or has no such condition."""
    for condition in status.conditions or ():
        if condition.type == "ReplicaFailure" and condition.status == "True":
            return one_line(condition.reason or "", condition.message)
    return ""
