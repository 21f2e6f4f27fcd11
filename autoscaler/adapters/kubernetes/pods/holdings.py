"""Devices, CPU and memory that pods hold on nodes, as columns that change in place.

Pods of all owners count, also those of no workload, from the moment at which they are bound to a node until they end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.api.pod_objects import PodObject
from autoscaler.adapters.kubernetes.pods.requests import requested_capacity, requested_devices
from autoscaler.adapters.kubernetes.pods.status import FINISHED, Key
from autoscaler.core.table.columns import FloatColumn, IntColumn

FIRST_ROWS = 64
FREE = -1
NO_DEVICE = ("", 0.0)
NO_CLAIM, SHARED = -1, -2  # instead of the number of a pod: the devices are of no claim, or of one that pods share
MOST_IMPORTANT = 2**31 - 1  # no pod has a higher priority
_ROW = np.dtype(
    [
        ("node", np.int64),
        ("target", np.int64),  # -1: none is known
        ("replica", np.int64),  # likewise
        ("resource", np.int64),
        ("priority", np.int64),
        ("devices", np.float64),
        ("cpu", np.float64),
        ("memory", np.float64),
    ]
)


class HeldRows(NamedTuple):
    """Rows of pods on nodes. A pod has one row for each kind of device, and its CPU and memory are in the first."""

    node: IntColumn  # places in `nodes`
    target: IntColumn  # ids of scale targets; -1: none is known
    replica: IntColumn  # ids of pods, the first one of those of a replica; -1: none is known
    resource: IntColumn  # places in `resources`
    priority: IntColumn  # of the pod: the scheduler evicts it for one of a higher priority
    claimant: IntColumn  # of devices of claims (DRA): a number of the pod; `SHARED`; `NO_CLAIM`: the pod requests them
    devices: FloatColumn
    cpu: FloatColumn  # cores
    memory: FloatColumn  # bytes
    nodes: list[str]
    resources: list[str]

    def plus(self, claimed: Sequence[ClaimedDevices]) -> HeldRows:
        """Return the rows with those of claims, whose CPU and memory are in the rows of their pods."""
        if not claimed:
            return self
        nodes, resources = list(self.nodes), list(self.resources)
        places = [{name: place for place, name in enumerate(names)} for names in (nodes, resources)]
        for each in claimed:
            for known, names, name in zip(places, (nodes, resources), (each.node, each.resource), strict=True):
                if name not in known:
                    known[name] = len(names)
                    names.append(name)
        node, resource = places
        none = np.zeros(len(claimed))
        return HeldRows(
            node=np.concatenate([self.node, [node[each.node] for each in claimed]]),
            target=np.concatenate([self.target, [each.holder.target for each in claimed]]),
            replica=np.concatenate([self.replica, [each.holder.replica for each in claimed]]),
            resource=np.concatenate([self.resource, [resource[each.resource] for each in claimed]]),
            priority=np.concatenate([self.priority, [each.priority for each in claimed]]),
            claimant=np.concatenate([self.claimant, [each.claimant for each in claimed]]),
            devices=np.concatenate([self.devices, [each.devices for each in claimed]]),
            cpu=np.concatenate([self.cpu, none]),
            memory=np.concatenate([self.memory, none]),
            nodes=nodes,
            resources=resources,
        )


class Holder(NamedTuple):
    """The owners and places of a pod; -1: none is known."""

    target: int  # id of a scale target
    replica: int  # id of the first pod of its replica


NO_HOLDER = Holder(-1, -1)


class ClaimedDevices(NamedTuple):
    """Devices of a node that a claim holds."""

    node: str
    resource: str
    devices: float
    holder: Holder
    priority: int
    claimant: int  # as in `HeldRows`


class _HoldingPod(NamedTuple):
    """The parts of a pod that its rows are made of."""

    node: str
    priority: int
    cpu: float
    memory: float
    devices: tuple[tuple[str, float], ...]


class Holdings:
    """The devices, CPU and memory that all pods hold on nodes."""

    def __init__(self) -> None:
        self.version = 0
        self._nodes, self._resources = _Numbers(), _Numbers()
        self._rows = np.zeros(0, dtype=_ROW)
        self._free: list[int] = []
        self._pods: dict[Key, tuple[_HoldingPod, tuple[int, ...]]] = {}  # with its rows
        self._marked: set[Key] = set()  # pods whose target must be looked up

    def put(self, key: Key, seen: PodObject) -> None:
        if not seen.spec.node_name or seen.status.phase in FINISHED:
            self.remove(key)
            return
        cpu, memory = requested_capacity(seen.spec)
        # Also those of unknown names, because a DeviceClass may serve them.
        known = tuple((name, count) for name, count in sorted(requested_devices(seen.spec).items()) if count > 0)
        pod = _HoldingPod(seen.spec.node_name, seen.spec.priority or 0, cpu, memory, known or (NO_DEVICE,))
        before = self._pods.get(key)
        if before is not None and before[0] == pod:
            return
        self.remove(key)
        self._pods[key] = pod, tuple(self._add_row(pod, place) for place in range(len(pod.devices)))
        self._marked.add(key)
        self.version += 1

    def mark(self, *keys: Key) -> None:
        """Note that pods may have another target."""
        self._marked.update(keys)
        self.version += 1

    def remove(self, key: Key) -> None:
        pod, rows = self._pods.pop(key, (None, ()))
        for row in rows:
            line = self._rows[row]
            self._nodes.drop(int(line["node"]))
            self._resources.drop(int(line["resource"]))
            line["node"] = FREE
            self._free.append(row)
        self.version += pod is not None

    def on_node(self, key: Key) -> tuple[str, Mapping[str, float]]:
        """Return the node of a pod and the devices that it holds there, without those of claims; "": it is on none."""
        pod = self._pods.get(key)
        return ("", {}) if pod is None else (pod[0].node, dict(pod[0].devices))

    def priority(self, key: Key) -> int:
        """Return the priority of a pod on a node. A pod that is on none counts as the most important."""
        pod = self._pods.get(key)
        return MOST_IMPORTANT if pod is None else pod[0].priority

    def held(self, holder_of: Callable[[Key], Holder]) -> HeldRows:
        """Copy the rows of all pods on nodes. holder_of: returns what a pod belongs to."""
        for key in self._marked & self._pods.keys():
            rows = list(self._pods[key][1])
            self._rows["target"][rows], self._rows["replica"][rows] = holder_of(key)
        self._marked.clear()
        rows = self._rows[self._rows["node"] != FREE]
        columns = {name: np.ascontiguousarray(rows[name]) for name in _ROW.names or ()}
        return HeldRows(
            **columns,
            claimant=np.full(len(rows), NO_CLAIM),
            nodes=self._nodes.names,
            resources=self._resources.names,
        )

    def _add_row(self, pod: _HoldingPod, place: int) -> int:
        if not self._free:
            count = len(self._rows)
            more = np.zeros(max(count, FIRST_ROWS), dtype=_ROW)
            more["node"] = FREE
            self._rows = np.concatenate([self._rows, more])
            self._free = list(range(count, len(self._rows)))
        row = self._free.pop()
        resource, devices = pod.devices[place]
        capacity = (pod.cpu, pod.memory) if place == 0 else (0.0, 0.0)
        node, number = self._nodes.take(pod.node), self._resources.take(resource)
        self._rows[row] = (node, *NO_HOLDER, number, pod.priority, devices, *capacity)
        return row


class _Numbers:
    """Small numbers for names that rows use. A number is used again when no row has it any more."""

    def __init__(self) -> None:
        self.names: list[str] = []  # by number; "": no row has it
        self._numbers: dict[str, int] = {}
        self._rows: list[int] = []  # by number
        self._free: list[int] = []

    def take(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            if not self._free:
                self._free.append(len(self.names))
                self.names.append("")
                self._rows.append(0)
            number = self._numbers[name] = self._free.pop()
            self.names[number] = name
        self._rows[number] += 1
        return number

    def drop(self, number: int) -> None:
        self._rows[number] -= 1
        if not self._rows[number]:
            del self._numbers[self.names[number]]
            self.names[number] = ""
            self._free.append(number)
