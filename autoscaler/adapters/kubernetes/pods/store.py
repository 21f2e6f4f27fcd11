"""Pods as columns that change in place: a watch event touches one row, a snapshot copies what is alive.

With 80,000 pods a tick must not walk through them in Python. Rows are in the order in which pods were first seen, so
ids ascend. Who owns a pod is resolved when its owner is known, in whichever order pods and owners arrive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import compress
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from autoscaler.adapters.kubernetes.api.objects import Condition, ContainerStatus, Object, Waiting
from autoscaler.adapters.kubernetes.api.objects import Pod as SeenPod
from autoscaler.adapters.kubernetes.pods.template import engine_container, served_names
from autoscaler.adapters.kubernetes.scheduling import OF_THE_CONTROL_PLANE, Toleration
from autoscaler.catalog.engines import DEFAULT_PORT
from autoscaler.core.model.fleet import Blocked, Pod
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import Clock

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"  # annotation: pods of the group
LEADER = "0"

FINISHED = ("Succeeded", "Failed")  # holds no GPU and is replaced by its owner
WAITING = {
    "ImagePullBackOff": Blocked.IMAGE,
    "ErrImagePull": Blocked.IMAGE,
    "ErrImageNeverPull": Blocked.IMAGE,
    "InvalidImageName": Blocked.IMAGE,
    "ImageInspectError": Blocked.IMAGE,
    "RegistryUnavailable": Blocked.IMAGE,
    "CrashLoopBackOff": Blocked.CRASHING,
    "CreateContainerConfigError": Blocked.MISCONFIGURED,
    "CreateContainerError": Blocked.MISCONFIGURED,
    "RunContainerError": Blocked.MISCONFIGURED,
}
UNSCHEDULED = {"Unschedulable": Blocked.UNSCHEDULABLE, "SchedulingGated": Blocked.GATED}
FIRST_ROWS = 64
MOST_TOLERATIONS = 64  # of the pods of one owner
WORDS_LIMIT = 240  # characters of what the cluster says about an obstacle

Key = tuple[str, str]  # namespace, name
OwnerKey = Key  # namespace, and uid of a ReplicaSet or StatefulSet or name of a LeaderWorkerSet
Group = tuple[str, str, str]  # namespace, LeaderWorkerSet, index

_ROW = np.dtype(
    [
        ("alive", np.bool_),
        ("pod_id", np.int64),
        ("target_id", np.int64),  # -1: owner not known
        ("ready", np.bool_),
        ("terminating", np.bool_),
        ("blocked", np.int64),
        ("created_s", np.float64),
        ("scheduled_s", np.float64),
        ("started_s", np.float64),
        ("ready_s", np.float64),
        ("first_ready_s", np.float64),  # of this start of the engine
    ]
)


class PodRows(NamedTuple):
    """The pods of some targets, ready for a Fleet; the columns are those of `core.fleet.Fleet`."""

    pods: tuple[Pod, ...]
    pod_id: IntColumn
    target_id: IntColumn
    ready: BoolColumn
    terminating: BoolColumn
    blocked: IntColumn
    created_s: FloatColumn
    scheduled_s: FloatColumn
    started_s: FloatColumn
    ready_s: FloatColumn
    words: Mapping[int, str]  # by target: why one of its pods is blocked, as scheduler or kubelet say it


class _Member(NamedTuple):
    """A pod of a LeaderWorkerSet's group."""

    key: Key
    blocked: Blocked
    serves: bool  # ready, and not about to go
    ready_s: float
    scheduled_s: float
    size: int  # pods of its group


class Endpoint(NamedTuple):
    """Where the pods of a target serve metrics; the fields are those of `core.fleet.Pod`."""

    metrics_port: int = DEFAULT_PORT
    metrics_scheme: str = "http"
    metrics_path: str = ""


class PodTable:
    """Receives pods; `own` tells it which target the pods of an owner belong to."""

    def __init__(self, clock: Clock) -> None:
        self.version = 0
        self._clock = clock
        self._rows = np.zeros(FIRST_ROWS, dtype=_ROW)
        self._pods: list[Pod | None] = []  # by row; None: gone
        self._row: dict[Key, int] = {}
        self._next_id = 0
        self._owner: dict[Key, OwnerKey] = {}
        self._owned: dict[OwnerKey, set[Key]] = {}
        self._target: dict[OwnerKey, int] = {}
        self._labels: dict[OwnerKey, Mapping[str, str]] = {}  # of pods whose owner has no target
        self.strangers = 0  # grows when such an owner is first seen
        self._endpoint: dict[int, Endpoint] = {}
        self._workers: dict[Group, dict[Key, _Member]] = {}
        self._leader: dict[Group, _Member] = {}
        self._group: dict[Key, Group] = {}
        self._words: dict[Key, str] = {}  # of pods that are blocked
        self._tolerated: dict[OwnerKey, frozenset[Toleration]] = {}
        self.tolerances = 0  # grows when pods tolerate something more

    def put(self, seen: SeenPod, /) -> None:
        key = seen.metadata.namespace, seen.metadata.name
        owner = _owner(seen)
        if owner is None or seen.status.phase in FINISHED:
            self.remove(*key)
            return
        self._note_tolerations(owner, seen)
        blocked, words = _blocked(seen)
        if blocked is Blocked.NO or not words:
            self._words.pop(key, None)
        else:
            self._words[key] = words
        labels = seen.metadata.labels or {}
        group = (*owner, labels.get(LWS_GROUP, "")) if labels.get(LWS_NAME) else None
        if group is not None:
            self._group[key] = group
            if labels.get(LWS_WORKER) != LEADER:
                self._workers.setdefault(group, {})[key] = self._member(key, seen)
                self._judge_group(group)
                return
        if owner not in self._target and owner not in self._labels:
            self._labels[owner] = labels
            self.strangers += 1
        self._attach(key, owner)
        self._write(key, seen, blocked)
        if group is not None:
            self._leader[group] = self._member(key, seen)
            self._judge_group(group)

    def remove(self, namespace: str, name: str, /) -> None:
        key = namespace, name
        self._words.pop(key, None)
        owner = self._owner.pop(key, None)
        if owner is not None:
            self._owned[owner].discard(key)
            if not self._owned[owner]:
                del self._owned[owner]
                self._labels.pop(owner, None)
        group = self._group.pop(key, None)
        if group is not None:
            self._leave_group(key, group)
        row = self._row.pop(key, None)
        if row is not None:
            self._rows["alive"][row] = False
            self._pods[row] = None
            self.version += 1

    def own(self, owner: OwnerKey, target_id: int) -> None:
        """Say which target an owner's pods belong to. Known for good unless told anew."""
        if self._target.get(owner) == target_id:
            return
        self._target[owner] = target_id
        self._labels.pop(owner, None)
        for key in self._owned.get(owner, ()):
            self._attach(key, owner)

    def labels(self, owner: OwnerKey) -> Mapping[str, str]:
        """Return the labels of a pod of an owner that has no target; empty: none is known."""
        return self._labels.get(owner, {})

    def disown(self, owner: OwnerKey) -> None:
        """The owner is gone; pods that outlive it for a moment keep their target."""
        self._target.pop(owner, None)
        self._tolerated.pop(owner, None)

    def set_endpoint(self, target_id: int, endpoint: Endpoint) -> None:
        """Say where the pods of a target serve metrics."""
        if self._endpoint.get(target_id) == endpoint:
            return
        self._endpoint[target_id] = endpoint
        count = len(self._pods)
        for row in np.flatnonzero(self._rows["alive"][:count] & (self._rows["target_id"][:count] == target_id)):
            pod = self._pods[row]
            if pod is not None:
                self._pods[row] = pod._replace(**endpoint._asdict())
        self.version += 1

    def forget_target(self, target_id: int) -> None:
        self._endpoint.pop(target_id, None)

    def rows(self, targets: IntColumn) -> PodRows:
        """Copy out the pods of the given targets (ascending ids)."""
        table = self._rows[: len(self._pods)]
        taken = table["alive"] & np.isin(table["target_id"], targets)
        chosen = table[taken]
        pods = tuple(pod for pod in compress(self._pods, taken) if pod is not None)
        words: dict[int, str] = {}
        stuck = (chosen["blocked"] != Blocked.NO) & ~chosen["ready"] & ~chosen["terminating"]
        for row in np.flatnonzero(stuck).tolist():
            said = self._words_of((pods[row].namespace, pods[row].name))
            if said:
                words.setdefault(int(chosen["target_id"][row]), said)
        return PodRows(pods=pods, words=words, **{name: np.ascontiguousarray(chosen[name]) for name in _COPIED})

    def tolerations(self) -> dict[int, frozenset[Toleration]]:
        """Return what the pods of each target tolerate: an admission plugin may add to what their template says."""
        found: dict[int, frozenset[Toleration]] = {}
        for owner, tolerated in self._tolerated.items():
            target_id = self._target.get(owner, -1)
            found[target_id] = found.get(target_id, frozenset()) | tolerated
        return found

    def _note_tolerations(self, owner: OwnerKey, seen: SeenPod) -> None:
        known = self._tolerated.get(owner, frozenset())
        tolerated = known.union(
            Toleration(each.key, each.operator, each.value, each.effect)
            for each in (seen.spec.tolerations or ())[:MOST_TOLERATIONS]
            if not each.key.startswith(OF_THE_CONTROL_PLANE)
        )
        if known < tolerated and len(tolerated) <= MOST_TOLERATIONS:
            self._tolerated[owner] = tolerated
            self.tolerances += 1

    def _words_of(self, key: Key) -> str:
        """Return why a pod is blocked, or a worker of the group that it leads."""
        workers = self._workers.get(self._group[key], {}) if key in self._group else {}
        return next((self._words[each] for each in (key, *workers) if each in self._words), "")

    def _attach(self, key: Key, owner: OwnerKey) -> None:
        self._owner[key] = owner
        self._owned.setdefault(owner, set()).add(key)
        row = self._row.get(key)
        if row is not None:
            target_id = self._target.get(owner, -1)
            self._rows["target_id"][row] = target_id
            pod = self._pods[row]
            if pod is not None and target_id in self._endpoint:
                self._pods[row] = pod._replace(**self._endpoint[target_id]._asdict())
            self.version += 1

    def _write(self, key: Key, seen: SeenPod, blocked: Blocked) -> None:
        row = self._row.get(key)
        target_id = self._target.get(self._owner[key], -1)
        if row is None:
            row = self._row[key] = self._append()
            self._rows["target_id"][row] = target_id
        self._pods[row] = Pod(
            namespace=key[0],
            name=key[1],
            ip=seen.status.pod_ip or "",
            node=seen.spec.node_name or "",
            served=served_names(seen.spec),
            **self._endpoint.get(target_id, Endpoint())._asdict(),
        )
        line = self._rows[row]
        offset_s = self._offset_s()
        true = _true(seen)
        ready_s, (started_s, again) = _since_s(true.get("Ready"), offset_s), _started(seen, offset_s)
        if not math.isnan(ready_s):
            first_s = float(line["first_ready_s"])
            # A probe that fails for a moment moves the condition's time; when the engine began to serve has not moved.
            line["first_ready_s"] = ready_s if math.isnan(first_s) or started_s > first_s else first_s
        ready = "Ready" in true
        line["ready"] = ready
        line["terminating"] = _leaves(seen, true)
        line["blocked"] = blocked
        line["created_s"] = _at_s(seen.metadata.creation_timestamp, offset_s)
        line["scheduled_s"] = _since_s(true.get("PodScheduled"), offset_s)
        line["started_s"] = math.nan if again else started_s
        line["ready_s"] = line["first_ready_s"] if ready else math.nan
        self.version += 1

    def _member(self, key: Key, seen: SeenPod) -> _Member:
        offset_s, true = self._offset_s(), _true(seen)
        return _Member(
            key,
            _blocked(seen)[0],
            "Ready" in true and not _leaves(seen, true),
            _since_s(true.get("Ready"), offset_s),
            _since_s(true.get("PodScheduled"), offset_s),
            _size(seen),
        )

    def _offset_s(self) -> float:
        """Return what turns Unix times into those of the tick."""
        return self._clock.now_s() - self._clock.wall_s()

    def _append(self) -> int:
        dead = len(self._pods) - len(self._row)
        if dead > len(self._row) and dead > FIRST_ROWS:
            self._compact()
        row = len(self._pods)
        if row == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(row, dtype=_ROW)])
        self._rows[row] = np.zeros((), dtype=_ROW)
        self._rows["alive"][row] = True
        self._rows["pod_id"][row] = self._next_id
        self._rows["first_ready_s"][row] = math.nan
        self._next_id += 1
        self._pods.append(None)
        return row

    def _compact(self) -> None:
        """Close the gaps that dead rows left. Ids and their order stay. The caller's new pod has no row yet."""
        alive: npt.NDArray[np.bool_] = self._rows["alive"][: len(self._pods)]
        place = np.cumsum(alive) - 1
        kept = self._rows[: len(self._pods)][alive]
        self._rows = np.concatenate([kept, np.zeros(max(FIRST_ROWS, len(kept)), dtype=_ROW)])
        self._pods = list(compress(self._pods, alive))
        self._row = {key: int(place[row]) for key, row in self._row.items()}

    def _judge_group(self, group: Group) -> None:
        """A group serves through its leader and only as a whole: it is as ready, and as stuck, as its worst pod."""
        leader = self._leader.get(group)
        row = self._row.get(leader.key) if leader is not None else None
        if leader is None or row is None:
            return
        line, workers = self._rows[row], self._workers.get(group, {}).values()
        serves = leader.serves and all(worker.serves for worker in workers) and len(workers) + 1 >= leader.size
        # A leader that is about to go still counts as ready: then it is its row that leaves.
        line["ready"] = serves or (bool(line["terminating"]) and not math.isnan(leader.ready_s))
        line["blocked"] = Blocked.NO if serves else max([leader.blocked, *(worker.blocked for worker in workers)])
        line["scheduled_s"] = _last_s([leader.scheduled_s, *(worker.scheduled_s for worker in workers)])
        ready_s = _last_s([float(line["first_ready_s"]), *(worker.ready_s for worker in workers)])
        line["ready_s"] = ready_s if line["ready"] else math.nan
        self.version += 1

    def _leave_group(self, key: Key, group: Group) -> None:
        workers = self._workers.get(group, {})
        if workers.pop(key, None) is not None:
            self._judge_group(group)
        if not workers:
            self._workers.pop(group, None)
        if group in self._leader and self._leader[group].key == key:
            del self._leader[group]


_COPIED = (
    "pod_id",
    "target_id",
    "ready",
    "terminating",
    "blocked",
    "created_s",
    "scheduled_s",
    "started_s",
    "ready_s",
)


def _owner(seen: Object) -> OwnerKey | None:
    """Return who makes such pods. A LeaderWorkerSet makes its pods through StatefulSets, so its label wins.

    An owner is in its pods' namespace, whatever uid they claim: the API server does not look.
    """
    labels = seen.metadata.labels or {}
    if labels.get(LWS_NAME):
        return seen.metadata.namespace, labels[LWS_NAME]
    controller = seen.metadata.controller()
    if controller is None or controller.kind not in ("ReplicaSet", "StatefulSet"):
        return None
    return seen.metadata.namespace, controller.uid


def _size(seen: SeenPod) -> int:
    """Return how many pods a group has; 1 where that is not told."""
    try:
        annotations = msgspec.json.decode(seen.metadata.annotations, type=dict[str, str] | None) or {}
    except msgspec.MsgspecError:
        return 1
    size = annotations.get(LWS_SIZE, "")
    return int(size) if size.isascii() and size.isdigit() and len(size) < 6 else 1


def _true(seen: SeenPod) -> dict[str, Condition]:
    """Return the conditions that hold, by type."""
    return {condition.type: condition for condition in seen.status.conditions or () if condition.status == "True"}


def _since_s(condition: Condition | None, offset_s: float) -> float:
    """Say since when a condition has held; NaN: it does not."""
    return _at_s(condition.last_transition_time if condition is not None else None, offset_s)


def _leaves(seen: SeenPod, true: Mapping[str, Condition]) -> bool:
    return seen.metadata.deletion_timestamp is not None or "DisruptionTarget" in true


def _last_s(moments_s: Sequence[float]) -> float:
    """Return the latest of moments; NaN: one has not come yet."""
    return math.nan if any(map(math.isnan, moments_s)) else max(moments_s)


def _blocked(seen: SeenPod) -> tuple[Blocked, str]:
    """Say why waiting will not help, and in whose words; a ready pod is not blocked, whatever a sidecar does."""
    status = seen.status
    for condition in status.conditions or ():
        if condition.type == "Ready" and condition.status == "True":
            return Blocked.NO, ""
        if condition.type == "PodScheduled" and condition.status == "False":
            reason = condition.reason or ""
            return UNSCHEDULED.get(reason, Blocked.NO), quoted(reason, condition.message)
    states = _states([*(status.init_container_statuses or ()), *(status.container_statuses or ())])
    blocked = [(WAITING[waiting.reason], waiting) for waiting in states if waiting.reason in WAITING]
    why, waiting = max(blocked, key=lambda found: found[0], default=(Blocked.NO, Waiting()))
    return why, quoted(waiting.reason or "", waiting.message)


def _states(statuses: Iterable[ContainerStatus]) -> Iterable[Waiting]:
    for status in statuses:
        if status.state is not None and status.state.waiting is not None:
            yield status.state.waiting


def quoted(reason: str, message: str | None) -> str:
    """Write what the cluster says of an obstacle as one bounded line of printable text."""
    text = ": ".join(part for part in (reason, message or "") if part)
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * WORDS_LIMIT]).split())
    return text if len(text) <= WORDS_LIMIT else text[: WORDS_LIMIT - 3] + "..."


def _started(seen: SeenPod, offset_s: float) -> tuple[float, bool]:
    """Return when the engine's container began to run, and whether it ran before."""
    engine = engine_container(seen.spec)
    for status in (*(seen.status.container_statuses or ()), *(seen.status.init_container_statuses or ())):
        if engine is not None and status.name == engine.name:
            running = status.state.running if status.state is not None else None
            return _at_s(running.started_at if running is not None else None, offset_s), status.restart_count > 0
    return math.nan, False


def _at_s(moment: datetime | None, offset_s: float) -> float:
    """Put a time of the API server's on the clock of the tick; NaN: none."""
    return math.nan if moment is None else moment.timestamp() + offset_s
