"""Scale targets by number, and whose pods are whose: pod to ReplicaSet to Deployment, and the like.

Objects arrive in any order, so a number is given when a uid is first mentioned, by itself or by what it owns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.autoscalers.hpas import Hands, TargetKey
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.store import Endpoint, Key, PodTable, quoted
from autoscaler.adapters.kubernetes.workloads.targets import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    STATEFUL_SET,
    Row,
    ScaleKind,
    controller_name,
    read_group,
    read_target,
)

PRIMARY = "-primary"  # Flagger serves from a copy of this name, and keeps the original at zero


class _Elsewhere(NamedTuple):
    """A ReplicaSet that no Deployment controls."""

    uid: str
    controller: str
    labels: Mapping[str, str]


class TargetTable:
    """All scale targets, managed or not, numbered when first heard of; their owners' pods follow the number."""

    def __init__(self, pods: PodTable, hands: Hands, writes: OwnWrites, autoscaler: Callable[[TargetKey], str]) -> None:
        """autoscaler: names who else scales a target, "": nobody; what he writes is no hand's change."""
        self.version = 0
        self.rows: dict[int, Row] = {}  # by target id
        self._pods = pods
        self._hands = hands
        self._writes = writes
        self._autoscaler = autoscaler
        self.failures: dict[int, str] = {}  # by target id: why its controller cannot create pods
        self._next_id = 0
        self._id: dict[Key, int] = {}  # by namespace, uid: owners are in the namespace of what they own
        self._uid: dict[tuple[str, str, str], str] = {}  # by kind, namespace, name
        self._replica_sets: dict[Key, tuple[str, str]] = {}  # by namespace, name: own uid, Deployment's uid
        self._sets: Counter[Key] = Counter()  # ReplicaSets by namespace, Deployment's uid
        self._elsewhere: dict[str, dict[str, _Elsewhere]] = {}  # by namespace, name

    def put(self, row: Row) -> None:
        owner = row.ref.namespace, row.uid
        target_id = self._number(owner)
        before = self.rows.get(target_id)
        if before == row:
            return
        self._uid[row.ref.kind, row.ref.namespace, row.ref.name] = row.uid
        if before is None:
            self._hands.first_seen(row.uid, row.writer)
        elif before.replicas != row.replicas and before.declared.policy is not None and not self._autoscaler(row.key):
            self._hands.changed(row.uid, row.replicas, row.writer)
        if before is not None:
            self._writes.accepted(row.uid)  # another template, or other limits: what was refused may be allowed now
        self.rows[target_id] = row
        if row.ref.kind == STATEFUL_SET.kind:
            self._pods.own(owner, target_id)
        elif row.ref.kind == LEADER_WORKER_SET.kind:
            self._pods.own((row.ref.namespace, row.ref.name), target_id)
        workload = row.workload
        self._pods.set_endpoint(
            target_id, Endpoint(workload.metrics_port, workload.metrics_scheme, workload.metrics_path)
        )
        self.version += 1

    def fail(self, row: Row, words: str) -> None:
        """Note what the controller of a target says of pods that it cannot create; "": it can."""
        target_id = self._number((row.ref.namespace, row.uid))
        if words:
            self.failures[target_id] = words
        else:
            self.failures.pop(target_id, None)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        uid = self._uid.pop((kind, namespace, name), None)
        if uid is None:
            return
        target_id = self._id.pop((namespace, uid))
        del self.rows[target_id]
        self.failures.pop(target_id, None)
        self._pods.forget_target(target_id)
        self._pods.disown((namespace, name if kind == LEADER_WORKER_SET.kind else uid))
        self._hands.forget(uid)
        self._writes.forget(uid)
        self.version += 1

    def put_replica_set(self, seen: objects.Object) -> None:
        owner = seen.metadata.controller()
        if owner is None or owner.kind != DEPLOYMENT.kind:
            self._keep_elsewhere(seen, controller_name(seen.metadata))
            return
        namespace, uid = seen.metadata.namespace, seen.metadata.uid
        deployment = namespace, owner.uid
        key = namespace, seen.metadata.name
        if key not in self._replica_sets:
            self._replica_sets[key] = uid, owner.uid
            self._sets[deployment] += 1
        self._pods.own((namespace, uid), self._number(deployment))

    def served_by(self, row: Row) -> str:
        """Name what serves in place of a target that is kept at zero; "": nothing does.

        Argo Rollouts takes a Deployment for its template (`workloadRef`), and Flagger for its canary: both keep it at
        zero, and pods that its selector matches, or those of its copy, belong to another controller.
        """
        if row.replicas or not row.selector:
            return ""
        namespace = row.ref.namespace
        for elsewhere in self._elsewhere.get(namespace, {}).values():
            labels = {**elsewhere.labels, **self._pods.labels((namespace, elsewhere.uid))}
            if all(labels.get(name) == value for name, value in row.selector):
                return elsewhere.controller
        uid = self._uid.get((row.ref.kind, namespace, row.ref.name + PRIMARY), "")
        copy = self.rows.get(self._id.get((namespace, uid), -1))
        return copy.controller if copy is not None and copy.controller.startswith("Canary/") else ""

    def _keep_elsewhere(self, seen: objects.Object, controller: str) -> None:
        metadata = seen.metadata
        if not controller:
            return
        known = self._elsewhere.setdefault(metadata.namespace, {})
        found = _Elsewhere(metadata.uid, controller, metadata.labels or {})
        if known.get(metadata.name) != found:
            known[metadata.name] = found
            self.version += 1

    def remove_replica_set(self, namespace: str, name: str) -> None:
        if self._elsewhere.get(namespace, {}).pop(name, None) is not None:
            self.version += 1
        if (namespace, name) not in self._replica_sets:
            return
        uid, deployment_uid = self._replica_sets.pop((namespace, name))
        deployment = namespace, deployment_uid
        self._pods.disown((namespace, uid))
        self._sets[deployment] -= 1
        if not self._sets[deployment]:
            del self._sets[deployment]
            if self._id.get(deployment, -1) not in self.rows:  # its Deployment is gone already
                self._id.pop(deployment, None)

    def _number(self, owner: Key) -> int:
        if owner not in self._id:
            self._id[owner] = self._next_id
            self._next_id += 1
        return self._id[owner]


class Targets:
    """Receives one kind of target. One that is being deleted is gone: its controller starts no pod for it any more."""

    def __init__(self, table: TargetTable, kind: ScaleKind) -> None:
        self._table = table
        self._kind = kind

    def put(self, seen: objects.Target | objects.LeaderWorkerSet, /) -> None:
        if seen.metadata.deletion_timestamp is not None:
            self.remove(seen.metadata.namespace, seen.metadata.name)
        else:
            row = read_group(seen) if isinstance(seen, objects.LeaderWorkerSet) else read_target(self._kind, seen)
            self._table.put(row)
            self._table.fail(row, _failure(seen.status))

    def remove(self, namespace: str, name: str, /) -> None:
        self._table.remove(self._kind.kind, namespace, name)


def _failure(status: objects.TargetStatus) -> str:
    """Return why pods cannot be created, as the controller says it; "": they can, or it says nothing."""
    for condition in status.conditions or ():
        if condition.type == "ReplicaFailure" and condition.status == "True":
            return quoted(condition.reason or "", condition.message)
    return ""


class ReplicaSets:
    """Receives ReplicaSets, of which only the owner matters."""

    def __init__(self, table: TargetTable) -> None:
        self._table = table

    def put(self, seen: objects.Object, /) -> None:
        self._table.put_replica_set(seen)

    def remove(self, namespace: str, name: str, /) -> None:
        self._table.remove_replica_set(namespace, name)
