"""Pods as columns that change in place: a watch event updates one row, and a view copies the rows of live pods.

A tick must not loop over 80,000 pods in Python. Rows are in the order in which pods were first seen, so ids ascend. The
target of a pod is set when its owner is known, or a selector matches its labels; pods, owners and selectors may arrive
in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.adapters.kubernetes.api.pod_objects import PodObject as SeenPod
from autoscaler.adapters.kubernetes.pods.endpoint import UNSTATED, Endpoint, Endpoints, stated_endpoint
from autoscaler.adapters.kubernetes.pods.holdings import HeldRows, Holder, Holdings
from autoscaler.adapters.kubernetes.pods.image_pulls import ImagePulls
from autoscaler.adapters.kubernetes.pods.label_sets import PodLookup, PodSelections
from autoscaler.adapters.kubernetes.pods.lost_starts import LostStarts
from autoscaler.adapters.kubernetes.pods.needs import CONTROL_PLANE_TAINTS, PodToleration
from autoscaler.adapters.kubernetes.pods.rows import BLANK, COPIED, ROW, PodRows, write_row
from autoscaler.adapters.kubernetes.pods.status import (
    FINISHED,
    Group,
    Key,
    OwnerKey,
    blocked_by,
    group_of,
    group_size,
    is_leaving,
    latest_s,
    owner_of,
    since_s,
    true_conditions,
)
from autoscaler.adapters.kubernetes.pods.template import (
    Facts,
    group_facts,
    served_names,
)
from autoscaler.core.model.fleet import PendingCause, Pod, PodPart
from autoscaler.core.table.columns import IntColumn
from autoscaler.ports import Clock

FIRST_ROWS = 64
MAX_TOLERATIONS = 64  # of the pods of one owner

SETS = ("ReplicaSet", "StatefulSet")  # controllers of pods whose labels may show what serves in place of a target


class _Member(NamedTuple):
    """A pod of a LeaderWorkerSet's group."""

    key: Key
    blocked: PendingCause
    serves: bool  # ready and not leaving
    ready_s: float
    scheduled_s: float
    group_size: int


class PodStore:
    """The pods of the cluster. `set_target` and `select` tell which target they belong to."""

    def __init__(self, clock: Clock) -> None:
        self.version = 0
        self.unowned_version = 0  # grows when an owner without a target is first seen
        self.tolerations_version = 0  # grows when pods have a new toleration
        self.holdings = Holdings()  # of all pods, also those without an owner that can be scaled
        self.image_pulls = ImagePulls(self._set_pulls)
        self.lost_starts = LostStarts(clock)
        self._clock = clock
        self._rows = np.zeros(FIRST_ROWS, dtype=ROW)
        self._pods: list[Pod | None] = []  # by row; None: deleted
        self._row: dict[Key, int] = {}
        self._next_id = 0
        self._grown_groups = 0  # groups of selected pods that got one more
        self._owner: dict[Key, OwnerKey] = {}
        self._owned: dict[OwnerKey, set[Key]] = {}
        self._target: dict[OwnerKey, int] = {}
        self._labels: dict[OwnerKey, Mapping[str, str]] = {}  # of pods whose owner has no target
        self._endpoints: dict[int, Endpoints] = {}
        self._stated: dict[Key, Endpoint] = {}  # by the pods themselves
        self._facts: dict[Key, Facts] = {}
        self._preempts: dict[int, float] = {}  # by target, as its last pod states
        self._selections = PodSelections()
        self._workers: dict[Group, dict[Key, _Member]] = {}
        self._leader: dict[Group, _Member] = {}
        self._group: dict[Key, Group] = {}
        self._messages: dict[Key, str] = {}  # of blocked pods
        self._tolerations: dict[OwnerKey, frozenset[PodToleration]] = {}

    @property
    def facts_version(self) -> int:
        """Grows when the pods of a target without template may show something new."""
        return self._selections.version + self._grown_groups

    def put(self, seen: SeenPod, /) -> None:
        key = seen.metadata.namespace, seen.metadata.name
        owner = owner_of(seen)
        self.holdings.put(key, seen)
        self.lost_starts.put(seen)
        if owner is None or seen.status.phase in FINISHED:
            self._remove(key)
            return
        self._add_tolerations(owner, seen)
        blocked, message = blocked_by(seen)
        if blocked is PendingCause.NONE or not message:
            self._messages.pop(key, None)
        else:
            self._messages[key] = message
        labels = seen.metadata.labels or {}
        self._set_labels(key, labels, seen)
        group, leads = group_of(key[0], labels) or (None, True)
        if group is not None:
            self._group[key] = group
            if not leads:
                workers = self._workers.setdefault(group, {})
                is_new = key not in workers
                workers[key] = self._read_member(key, seen)
                self._update_group(group, is_new)
                return
        controller = seen.metadata.controller()
        is_of_set = controller is not None and controller.kind in SETS
        if is_of_set and owner not in self._target and owner not in self._labels:
            self._labels[owner] = labels
            self.unowned_version += 1
        self._set_owner(key, owner)
        self._write(key, seen, blocked)
        if group is not None:
            self._leader[group] = self._read_member(key, seen)
            self._update_group(group)

    def select(self, queries: Mapping[int, PodLookup]) -> None:
        """Set the targets whose pods are found by selectors. They have precedence over the owners of pods."""
        pods, namespaces = self._selections.select(queries)
        for key in pods:
            self._assign(key)
        for group in [group for group in self._leader if group[0] in namespaces]:
            self._update_group(group)

    def facts(self, target_id: int) -> Facts | None:
        """Return what the newest replica of a target shows about all of them; None: it has no pod."""
        count = len(self._pods)
        rows = np.flatnonzero(self._rows["alive"][:count] & (self._rows["target_id"][:count] == target_id))
        pod = self._pods[rows[-1]] if len(rows) else None
        if pod is None:
            return None
        key = pod.namespace, pod.name
        leader, group = self._facts[key], self._group.get(key)
        if group is None:
            return leader
        workers = [self._facts[worker] for worker in self._workers.get(group, {})]
        absent = self._group_size(group) - 1 - len(workers)
        return group_facts(leader, [*((worker, 1) for worker in workers), ((workers or [leader])[0], absent)])

    def overlaps(self) -> dict[int, set[int]]:
        """Return by target the others whose selectors match some of its pods."""
        return self._selections.overlaps()

    def remove(self, namespace: str, name: str, /) -> None:
        self.holdings.remove((namespace, name))
        self.lost_starts.remove((namespace, name))
        self._remove((namespace, name))

    def set_target(self, owner: OwnerKey, target_id: int) -> None:
        """Set the target of an owner's pods, present and future."""
        if self._target.get(owner) == target_id:
            return
        self._target[owner] = target_id
        self._labels.pop(owner, None)
        for key in self._owned.get(owner, ()):
            self._set_owner(key, owner)

    def target_of(self, key: Key) -> int:
        """Return the target of a pod, which may be a worker of a group; -1: none is known."""
        leader = self._leader.get(self._group[key]) if key in self._group else None
        return self._target_of(leader.key if leader is not None else key)

    def holder_of(self, key: Key) -> Holder:
        """Return the target of a pod, which may be a worker of a group, and the replica that it is a part of."""
        leader = self._leader.get(self._group[key]) if key in self._group else None
        row = self._row.get(leader.key if leader is not None else key)
        return Holder(self.target_of(key), -1 if row is None else int(self._rows["pod_id"][row]))

    def deletion_cost(self, key: Key) -> float | None:
        """Return the deletion cost of a pod; None: it is gone, or no ReplicaSet controls it."""
        row = self._row.get(key)
        cost = math.nan if row is None else float(self._rows["deletion_cost"][row])
        return None if math.isnan(cost) else cost

    def members(self, key: Key) -> tuple[Key, ...]:
        """Return a pod, and the workers of the group that it leads."""
        return key, *(self._workers.get(self._group[key], ()) if key in self._group else ())

    def held(self) -> HeldRows:
        """Return what all pods hold on nodes, with their targets."""
        return self.holdings.held(self.holder_of)

    def labels(self, owner: OwnerKey) -> Mapping[str, str]:
        """Return the labels of a pod of an owner without a target; empty: no pod is known."""
        return self._labels.get(owner, {})

    def forget_owner(self, owner: OwnerKey) -> None:
        """Forget a deleted owner. Its remaining pods keep their target."""
        self._target.pop(owner, None)
        self._tolerations.pop(owner, None)

    def set_endpoint(self, target_id: int, endpoints: Endpoints) -> None:
        """Set the metrics endpoints of a target's pods."""
        if self._endpoints.get(target_id) == endpoints:
            return
        self._endpoints[target_id] = endpoints
        count = len(self._pods)
        for row in np.flatnonzero(self._rows["alive"][:count] & (self._rows["target_id"][:count] == target_id)):
            pod = self._pods[row]
            if pod is not None:
                self._pods[row] = pod._replace(**self._endpoint(pod.namespace, pod.name, target_id))
        self.version += 1

    def preempts(self, target_id: int) -> float:
        """Return the priority below which the scheduler evicts pods for those of a target; 0 until one was seen."""
        return self._preempts.get(target_id, 0.0)

    def forget_target(self, target_id: int) -> None:
        self._preempts.pop(target_id, None)
        self._endpoints.pop(target_id, None)

    def rows(self, targets: IntColumn) -> PodRows:
        """Copy the pods of the given targets (ascending ids)."""
        table = self._rows[: len(self._pods)]
        taken = table["alive"] & np.isin(table["target_id"], targets)
        chosen = table[taken]
        pods = tuple(pod for pod in compress(self._pods, taken) if pod is not None)
        columns = {name: np.ascontiguousarray(chosen[name]) for name in COPIED}
        return PodRows(pods=pods, **columns)

    def messages(self, rows: PodRows, causes: IntColumn) -> dict[int, str]:
        """Return by target why one of its pods is blocked, in the words of scheduler, kubelet or controller.

        causes: int64[P], PendingCause.
        """
        found: dict[int, str] = {}
        for row in np.flatnonzero(rows.waits & (causes != PendingCause.NONE)).tolist():
            key = rows.pods[row].namespace, rows.pods[row].name
            starts = self.lost_starts
            if message := self._message_of(key) or starts.brief_runs.words(key) or starts.words(key):
                found.setdefault(int(rows.target_id[row]), message)
        return found

    def parts(self, pod_id: IntColumn, resource: Callable[[int], str]) -> tuple[PodPart, ...]:
        """Return the pods with devices that are on nodes, of replicas that are groups of pods.

        pod_id: of the replicas, as in `rows`. resource: returns the resource that the workload of each requests.
        """
        found = []
        for leader in self._leader.values():
            row = self._row.get(leader.key)
            own = -1 if row is None else int(self._rows["pod_id"][row])
            place = int(np.searchsorted(pod_id, own))
            if place < len(pod_id) and pod_id[place] == own:
                held = [self.holdings.on_node(member) for member in self.members(leader.key)]
                found += [PodPart(place, node, devices.get(resource(place), 0.0)) for node, devices in held]
        return tuple(sorted(part for part in found if part.gpus > 0))

    def tolerations(self) -> dict[int, frozenset[PodToleration]]:
        """Return the tolerations of each target's pods. An admission plugin may add some that the template lacks."""
        by_target: dict[int, frozenset[PodToleration]] = {}
        for owner, tolerations in self._tolerations.items():
            pod = next(iter(self._owned.get(owner, ())), None)
            target_id = self._target_of(pod) if pod is not None else self._target.get(owner, -1)
            by_target[target_id] = by_target.get(target_id, frozenset()) | tolerations
        return by_target

    def _remove(self, key: Key) -> None:
        self._messages.pop(key, None)
        self._forget_labels(key)
        owner = self._owner.pop(key, None)
        if owner is not None:
            self._owned[owner].discard(key)
            if not self._owned[owner]:
                del self._owned[owner]
                self._labels.pop(owner, None)
        group = self._group.pop(key, None)
        if group is not None:
            self._remove_from_group(key, group)
        row = self._row.pop(key, None)
        if row is not None:
            self._rows["alive"][row] = False
            self._pods[row] = None
            self.image_pulls.forget(key)
            self.version += 1

    def _add_tolerations(self, owner: OwnerKey, seen: SeenPod) -> None:
        known = self._tolerations.get(owner, frozenset())
        tolerations = known.union(
            PodToleration(each.key, each.operator, each.value, each.effect)
            for each in (seen.spec.tolerations or ())[:MAX_TOLERATIONS]
            if not each.key.startswith(CONTROL_PLANE_TAINTS)
        )
        if known < tolerations and len(tolerations) <= MAX_TOLERATIONS:
            self._tolerations[owner] = tolerations
            self.tolerations_version += 1

    def _message_of(self, key: Key) -> str:
        """Return why a pod, or a worker of the group that it leads, is blocked."""
        return next((self._messages[each] for each in self.members(key) if each in self._messages), "")

    def _set_owner(self, key: Key, owner: OwnerKey) -> None:
        self._owner[key] = owner
        self._owned.setdefault(owner, set()).add(key)
        self._assign(key)

    def _assign(self, key: Key) -> None:
        """Set the target of a pod's row."""
        self.holdings.mark(*self.members(key))
        row = self._row.get(key)
        if row is not None:
            target_id = self._target_of(key)
            self._rows["target_id"][row] = target_id
            self._preempts[target_id] = float(self._rows["preempts"][row])
            pod = self._pods[row]
            if pod is not None:
                self._pods[row] = pod._replace(**self._endpoint(*key, target_id))
            self.version += 1

    def _target_of(self, key: Key) -> int:
        """Return the target that selects a pod, else that of its owner; -1: none is known."""
        selecting = self._selections.targets_of(key)
        return selecting[0] if selecting else self._target.get(self._owner.get(key, key), -1)

    def _endpoint(self, namespace: str, name: str, target_id: int) -> dict[str, Any]:
        """Return the fields of a pod about its metrics endpoint."""
        stated = self._stated.get((namespace, name), UNSTATED)
        return self._endpoints.get(target_id, Endpoints()).of_pod(stated)._asdict()

    def _set_labels(self, key: Key, labels: Mapping[str, str], seen: SeenPod) -> None:
        label_set = self._selections.put(key, labels)
        if label_set is not None:
            self._facts[key] = facts = label_set.facts_of(seen)
            self._stated[key] = stated_endpoint(seen, facts)

    def _forget_labels(self, key: Key) -> None:
        self._selections.forget(key)
        self._facts.pop(key, None)
        self._stated.pop(key, None)

    def _write(self, key: Key, seen: SeenPod, blocked: PendingCause) -> None:
        row = self._row.get(key)
        target_id, is_first = self._target_of(key), row is None
        if row is None:
            row = self._row[key] = self._append_row()
            self._rows["target_id"][row] = target_id
        self._pods[row] = Pod(
            namespace=key[0],
            name=key[1],
            ip=seen.status.pod_ip or "",
            node=seen.spec.node_name or "",
            served=served_names(seen.spec),
            **self._endpoint(*key, target_id),
        )
        write_row(self._rows[row], seen, blocked, is_first, self._clock)
        self._preempts[target_id] = float(self._rows["preempts"][row])
        self._set_pulls(key)

    def _set_pulls(self, key: Key) -> None:
        """Set what the kubelet says about the images of a pod."""
        row = self._row.get(key)
        if row is not None:
            line, offset_s = self._rows[row], self._offset_s()
            image_s, pulling_wall_s = self.image_pulls.of_pod(key, float(line["created_s"]) - offset_s)
            line["image_s"], line["pulling_since_s"] = image_s, pulling_wall_s + offset_s
            self.version += 1

    def _read_member(self, key: Key, seen: SeenPod) -> _Member:
        offset_s, conditions = self._offset_s(), true_conditions(seen)
        return _Member(
            key,
            blocked_by(seen)[0],
            "Ready" in conditions and not is_leaving(seen, conditions),
            min(since_s(conditions.get("Ready"), offset_s), self._clock.now_s()),  # NaN stays
            since_s(conditions.get("PodScheduled"), offset_s),
            group_size(seen),
        )

    def _offset_s(self) -> float:
        """Return the difference between the clock of the tick and Unix time."""
        return self._clock.now_s() - self._clock.wall_s()

    def _append_row(self) -> int:
        dead = len(self._pods) - len(self._row)
        if dead > len(self._row) and dead > FIRST_ROWS:
            self._compact()
        row = len(self._pods)
        if row == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(row, dtype=ROW)])
        self._rows[row] = BLANK
        self._rows["pod_id"][row] = self._next_id
        self._next_id += 1
        self._pods.append(None)
        return row

    def _compact(self) -> None:
        """Remove the rows of deleted pods. Ids and their order stay. The caller's new pod has no row yet."""
        alive: npt.NDArray[np.bool_] = self._rows["alive"][: len(self._pods)]
        new_row = np.cumsum(alive) - 1
        kept = self._rows[: len(self._pods)][alive]
        self._rows = np.concatenate([kept, np.zeros(max(FIRST_ROWS, len(kept)), dtype=ROW)])
        self._pods = list(compress(self._pods, alive))
        self._row = {key: int(new_row[row]) for key, row in self._row.items()}

    def _group_size(self, group: Group) -> int:
        """Return the number of pods of a complete group, as its pods or the template of its target state."""
        leader = self._leader[group]
        query = self._selections.query(self._target_of(leader.key))
        return max(leader.group_size, query.pods_per_replica if query is not None else 1)

    def _update_group(self, group: Group, has_new_worker: bool = False) -> None:
        """Update the leader's row. A group serves only as a whole: it is as ready and as blocked as its worst pod."""
        leader = self._leader.get(group)
        row = self._row.get(leader.key) if leader is not None else None
        if leader is None or row is None:
            return
        line, workers = self._rows[row], self._workers.get(group, {}).values()
        if has_new_worker and self._selections.query(int(line["target_id"])) is not None:
            self._grown_groups += 1
        is_complete = len(workers) + 1 >= self._group_size(group)
        serves = leader.serves and all(worker.serves for worker in workers) and is_complete
        # A leader that is terminating stays ready: its row counts as leaving already.
        line["ready"] = serves or (bool(line["terminating"]) and not math.isnan(leader.ready_s))
        line["blocked"] = (
            PendingCause.NONE if serves else max([leader.blocked, *(worker.blocked for worker in workers)])
        )
        line["scheduled_s"] = latest_s([leader.scheduled_s, *(worker.scheduled_s for worker in workers)])
        ready_s = latest_s([float(line["first_ready_s"]), *(worker.ready_s for worker in workers)])
        line["ready_s"] = ready_s if line["ready"] else math.nan
        self.version += 1

    def _remove_from_group(self, key: Key, group: Group) -> None:
        workers = self._workers.get(group, {})
        if workers.pop(key, None) is not None:
            self._update_group(group)
        if not workers:
            self._workers.pop(group, None)
        if group in self._leader and self._leader[group].key == key:
            del self._leader[group]
