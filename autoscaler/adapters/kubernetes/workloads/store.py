"""Scale targets by number, and the owners of pods: pod to ReplicaSet to Deployment.

Objects arrive in any order. So a target gets its number when its uid is first mentioned, by itself or by an object that
it owns. The pods of custom kinds are found by label selectors, because their owners differ from kind to kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api import objects, target_objects
from autoscaler.adapters.kubernetes.api.text import one_line
from autoscaler.adapters.kubernetes.autoscalers.by_target import TargetKey
from autoscaler.adapters.kubernetes.manual_overrides import OverrideTracker
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.endpoint import Endpoint, Endpoints
from autoscaler.adapters.kubernetes.pods.label_sets import PodLookup
from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.adapters.kubernetes.pods.template import Facts
from autoscaler.adapters.kubernetes.workloads.targets import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    STATEFUL_SET,
    Target,
    controller_name,
    read_custom,
    read_leader_worker_set,
    read_refused,
    read_target,
    with_facts,
)
from autoscaler.catalog.scale_targets import BY_KIND, ScaleTarget
from autoscaler.config.findings import UNREADABLE

MAX_CONDITIONS = 100  # of one object that are read
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
        self._learned_version = -1  # of the facts that pods show
        self._next_id = 0
        self._ids: dict[Key, int] = {}  # by namespace and uid: an owner is in the namespace of its dependents
        self._uids: dict[TargetKey, str] = {}
        self._users: dict[
            TargetKey, dict[str, str]
        ] = {}  # by target: "Kind/name" of those that use its template, by uid
        self._replica_sets: dict[Key, tuple[str, str]] = {}  # by namespace and name: own uid, Deployment's uid
        self._replica_set_counts: Counter[Key] = Counter()  # by namespace and Deployment's uid
        self._foreign_replica_sets: dict[str, dict[str, _ForeignReplicaSet]] = {}  # by namespace, name

    def put(self, target: Target) -> None:
        ref, uid = target.ref, target.uid
        owner = ref.namespace, uid
        target_id = self._id_of(owner)
        before = self.targets.get(target_id)
        if before is not None and not target.states_pods:
            target = with_facts(target, before.facts)
        if before == target:
            return
        self._uids[target.key] = uid
        self._set_user(before, target)
        if before is None:
            self._manual_overrides.observe_new(uid, target.replicas, target.writer)
        else:
            self._observe_change(before, target)
        self._manual_overrides.state_end(uid, target.replicas, target.declared.zero_until_s)
        self.targets[target_id] = target
        if ref.kind == STATEFUL_SET.kind:
            self._pods.set_target(owner, target_id)
        elif ref.kind == LEADER_WORKER_SET.kind:
            self._pods.set_target((ref.namespace, ref.name), target_id)
        self._set_endpoint(target_id, target)
        self.version += 1

    def _observe_change(self, before: Target, target: Target) -> None:
        """Note who changed the count, and that a refused count may be allowed now."""
        default = BY_KIND[target.ref.kind].unset if target.ref.kind in BY_KIND else 1
        is_managed = before.declared.policy is not None
        if before.replicas != target.replicas and is_managed and not self._find_autoscaler(target.key):
            self._manual_overrides.observe_change(
                target.uid,
                target.replicas,
                target.writer,
                former=before.replicas,
                redeployed=before.template_digest != target.template_digest,
                default=default if before.writer.applied_manifest else None,
            )
        only_count = before._replace(replicas=target.replicas, writer=target.writer) == target
        self._writes.clear_refusal(target.uid, target.replicas if only_count else None)

    def select_pods(self, managed: Iterable[int]) -> None:
        """Find the pods of managed targets by their selectors, and read from them what no template states.

        A pod that a managed target selects belongs to it, even if it has an owner that is a target too.
        """
        queries = {}
        for target_id in managed:
            target = self.targets[target_id]
            if target.pod_selector is not None:
                learns = not target.states_pods
                queries[target_id] = PodLookup(
                    target.ref.namespace, target.pod_selector, target.pods_per_replica, learns
                )
        self._pods.select(queries)
        is_new = self._learned_version != self._pods.facts_version
        self._learned_version = self._pods.facts_version
        for target_id, query in queries.items():
            target = self.targets[target_id]
            facts = self._pods.facts(target_id) if query.learns and is_new else None
            if target.template_of is not None and (template := self.find(target.template_of)) is not None:
                facts = template.facts
            if facts is not None:
                self._set_facts(target_id, facts)

    def follow_pods(self, managed: Iterable[int]) -> None:
        """Let the pods of targets that are held back tell what a replica needs: a further one is like them.

        A controller makes no pod by the template of a paused Deployment, nor below the partition of a StatefulSet or
        LeaderWorkerSet. It scales the pods that there are.
        """
        for target_id in managed:
            target = self.targets[target_id]
            facts = self._pods.facts(target_id) if target.held_back else None
            if facts is not None and facts != target.facts:
                stated = target.facts.gpus, target.facts.resource
                self.targets[target_id] = target._replace(
                    follows_pods=target.follows_pods or stated != (facts.gpus, facts.resource)
                )
                self._set_facts(target_id, facts)

    def _set_facts(self, target_id: int, facts: Facts) -> None:
        if facts != self.targets[target_id].facts:
            self.targets[target_id] = with_facts(self.targets[target_id], facts)
            self._set_endpoint(target_id, self.targets[target_id])
            self.version += 1

    def find(self, key: TargetKey) -> Target | None:
        return self.targets.get(self._ids.get((key.namespace, self._uids.get(key, "")), -1))

    def describe_overlaps(self) -> dict[int, str]:
        """Return a message for each managed target whose pods another one selects as well, by target id."""
        found = {}
        for target_id, others in self._pods.overlaps().items():
            refs = [self.targets[other].ref for other in sorted(others)[:3] if other in self.targets]
            named = ", ".join(f"{ref.kind}/{ref.name}" for ref in refs)
            found[target_id] = f"its label selector matches pods of {named} as well; allowed: pods of its own"
        return found

    def _set_endpoint(self, target_id: int, target: Target) -> None:
        workload, declared, own = target.workload, target.declared, target.own_stated
        for_all = Endpoint(
            declared.metrics_port or own.get("metrics-port", 0),
            declared.metrics_scheme or own.get("metrics-scheme", ""),
            declared.metrics_path or own.get("metrics-path", ""),
            declared.engine or "",
            declared.weights,
        )
        otherwise = Endpoint(
            workload.metrics_port, workload.metrics_scheme, workload.metrics_path, weights=workload.weights
        )
        self._pods.set_endpoint(target_id, Endpoints(for_all, otherwise))

    def _set_user(self, before: Target | None, target: Target | None) -> None:
        """Note that a target uses the template of another one, and no longer that of before."""
        if before is not None and before.template_of is not None:
            users = self._users.get(before.template_of, {})
            users.pop(before.uid, None)
            if not users:
                self._users.pop(before.template_of, None)
        if target is not None and target.template_of is not None:
            users = self._users.setdefault(target.template_of, {})
            users[target.uid] = f"{target.ref.kind}/{target.ref.name}"

    def set_failure(self, target: Target, message: str) -> None:
        """Note why the controller of a target cannot create pods; "": it can."""
        target_id = self._id_of((target.ref.namespace, target.uid))
        if message:
            self.failures[target_id] = message
        else:
            self.failures.pop(target_id, None)

    def remove(self, key: TargetKey) -> None:
        uid = self._uids.pop(key, None)
        if uid is None:
            return
        namespace = key.namespace
        target_id = self._ids.pop((namespace, uid))
        self._set_user(self.targets.pop(target_id), None)
        self.failures.pop(target_id, None)
        self._pods.forget_target(target_id)
        self._pods.forget_owner((namespace, key.name if key.kind == LEADER_WORKER_SET.kind else uid))
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
        """Return the object that decides about a target or serves in place of it; "": none.

        An Argo Rollout that refers to a Deployment (`workloadRef`) uses it as template, and keeps its count or takes it
        to zero. A custom kind that can be scaled sets the count of the objects it creates. Flagger keeps a canary at
        zero, as does Argo: pods that match its selector, or those of its copy, then belong to another controller.
        """
        if target.key in self._users:
            return min(self._users[target.key].values())
        kind = target.controller.partition("/")[0]
        if kind in BY_KIND and not BY_KIND[kind].refusal and kind != target.ref.kind:
            return target.controller
        if target.replicas or not target.selector:
            return ""
        namespace = target.ref.namespace
        for replica_set in self._foreign_replica_sets.get(namespace, {}).values():
            labels = {**replica_set.labels, **self._pods.labels((namespace, replica_set.uid))}
            if all(labels.get(name) == value for name, value in target.selector):
                return replica_set.controller
        copy = self.find(target.key._replace(name=target.ref.name + PRIMARY_SUFFIX))
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

    def __init__(self, store: TargetStore, kind: ScaleTarget, refusal: str = "") -> None:
        """refusal: why objects of this kind cannot be scaled in this cluster; "": they can."""
        self._store = store
        self._kind = kind
        self._refusal = refusal or kind.refusal
        self._seen: set[tuple[str, str]] = set()

    def put(self, seen: Any, /) -> None:
        metadata = seen.metadata
        if metadata.deletion_timestamp is not None:
            self.remove(metadata.namespace, metadata.name)
            return
        if self._refusal:
            target = read_refused(self._kind, metadata, self._refusal)
        elif isinstance(seen, target_objects.LeaderWorkerSet):
            target = read_leader_worker_set(seen)
        elif isinstance(seen, target_objects.CustomTarget):
            target = read_custom(self._kind, seen)
        else:
            target = read_target(self._kind, seen)
        self._seen.add((metadata.namespace, metadata.name))
        self._store.put(target)
        self._store.set_failure(target, "" if self._refusal else _replica_failure(seen.status))

    def remove(self, namespace: str, name: str, /) -> None:
        self._seen.discard((namespace, name))
        self._store.remove(TargetKey(namespace, self._kind.group, self._kind.kind, name))

    def clear(self) -> None:
        """Remove all targets: the API server does not serve the kind any more."""
        for namespace, name in list(self._seen):
            self.remove(namespace, name)


class ReplicaSetStore:
    """Receives ReplicaSets. Only their owners are used."""

    def __init__(self, store: TargetStore) -> None:
        self._store = store

    def put(self, seen: objects.Object, /) -> None:
        self._store.put_replica_set(seen)

    def remove(self, namespace: str, name: str, /) -> None:
        self._store.remove_replica_set(namespace, name)


def _replica_failure(stated: object) -> str:
    """Return the controller's message if it cannot create pods; "": it can, or has no such condition."""
    try:
        status = (
            stated
            if isinstance(stated, target_objects.TargetStatus)
            else msgspec.convert(stated, target_objects.TargetStatus)
        )
    except UNREADABLE:
        return ""  # a custom kind with other conditions
    for condition in (status.conditions or ())[:MAX_CONDITIONS]:
        if condition.type == "ReplicaFailure" and condition.status == "True":
            return one_line(condition.reason or "", condition.message)
    return ""
