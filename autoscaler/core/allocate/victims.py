"""The order in which the replicas of a shrinking workload should leave.

A removed replica cuts its running requests after its grace period, so the replica with the fewest leaves first. Among
equals it is the one on the emptiest node, which an autoscaler of nodes may then remove, then the dearest, then a spot
node's. Replicas that are not ready are not in the order: a ReplicaSet removes them before all others.

If a replica of another workload waits for GPUs, one leaves first whose GPUs it can use. No pod is ever moved, so a
replica that leaves another node group would be lost for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import QUEUED, Fleet, Pod
from autoscaler.core.model.placement import Rows, divide_groups, place_pools
from autoscaler.core.model.running import find_groups, list_running, sum_gpus
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe.pending import count_pods, has_gpus
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero

SPOT = "spot"

MOST_AWAITED = 50
"""At most so many replicas leave first because others wait for their GPUs; it is as many as get a deletion cost."""


class Serving(NamedTuple):
    """The serving replicas of one workload; every field [C]."""

    requests: FloatColumn  # running and waiting in the engine; infinity: unknown
    node: IntColumn  # equal for replicas on one node
    node_devices: FloatColumn  # devices that replicas of managed workloads hold on the node; infinity: unknown node
    price: FloatColumn  # of a device of its node group
    is_spot: BoolColumn  # its node may be taken away at any time
    ready_s: FloatColumn  # moment at which it became ready


def order(serving: Serving) -> IntColumn:
    """Return the replicas in the order in which they should leave; the youngest first among equals. int64[C]."""
    keys = (
        -serving.ready_s,
        serving.node,  # the replicas of one node leave together
        ~serving.is_spot,
        -serving.price,
        serving.node_devices,
        serving.requests,
    )
    return np.lexsort(keys)


def find_victims(
    inp: TickInput, group_price: FloatColumn, rows: Iterable[int], replicas: FloatColumn
) -> dict[int, tuple[Pod, ...]]:
    """Return the serving pods of some workloads in the order in which they should leave, by row.

    group_price: float64[G], price of a device; NaN: unknown, which counts as the cheapest.
    replicas: float64[W], as decided.
    """
    fleet, samples, rows = inp.fleet, inp.samples.pods, list(rows)
    is_serving = fleet.pod_ready & ~fleet.pod_terminating
    of_rows = np.flatnonzero(is_serving & np.isin(fleet.pod_workload, rows))
    devices, nodes = _devices_by_node(fleet, of_rows), _Nodes(fleet, group_price)
    # A sleeping engine hides requests that its server still holds.
    requests = np.fmax(samples.running + or_zero(samples.waiting), samples.held)
    is_fresh = inp.now_s - samples.time_s <= inp.spec.max_input_age_s[fleet.pod_workload]  # False without a reading
    found: dict[int, list[int]] = {}
    for row in rows:
        pods = of_rows[fleet.pod_workload[of_rows] == row]
        names = [fleet.pods[pod].node for pod in pods]
        places = {name: place for place, name in enumerate(sorted(set(names)))}
        prices, spots = nodes.describe(row, names)
        serving = Serving(
            requests=np.nan_to_num(np.where(is_fresh[pods], requests[pods], inf), nan=inf),
            node=np.array([places[name] for name in names], dtype=np.int64),
            node_devices=np.array([devices.get(name, inf) for name in names], dtype=np.float64),
            price=prices,
            is_spot=spots,
            ready_s=or_zero(fleet.pod_ready_s[pods]),
        )
        found[row] = pods[order(serving)].tolist()
    if fleet.groups.of_node:
        found = _prefer_awaited(fleet, replicas, found)
    return {row: tuple(fleet.pods[pod] for pod in pods) for row, pods in found.items()}


def _prefer_awaited(fleet: Fleet, replicas: FloatColumn, victims: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return the victims with those first whose GPUs other replicas wait for, as many as these need."""
    pools, group = len(fleet.pools), find_groups(fleet)
    running, gpus = list_running(fleet, has_gpus(fleet)), fleet.gpus_per_replica
    limited = np.isfinite(gpus) & ~np.isnan(np.append(fleet.pool_gpus, np.nan)[fleet.pool])
    stay = np.fmin(replicas, running.total)
    stay[list(victims)] = running.total[list(victims)]
    blocks, groups = divide_groups(fleet), len(fleet.groups.gpus)
    row_of_pod = Rows(pools, groups).of_group(blocks.smallest[fleet.pod_workload], group)
    held = sum_gpus(fleet, running, stay, limited, blocks)
    awaited = sum_gpus(fleet, running, replicas - count_pods(fleet, *QUEUED), limited, blocks, since=stay).tolist()

    def find_short() -> set[int]:
        placement = place_pools(fleet.groups, range(pools), blocks.gpus)
        placement.place(held.tolist())
        return {block % groups for block in placement.groups(placement.place(awaited))}

    def leave(pod: int) -> None:
        if group[pod] >= 0:
            held[row_of_pod[pod]] -= gpus[fleet.pod_workload[pod]]

    present = ~fleet.pod_terminating & np.isin(fleet.pod_workload, list(victims))
    leaving = {row: int(np.count_nonzero(present & (fleet.pod_workload == row)) - replicas[row]) for row in victims}
    for pod in np.flatnonzero(present & ~fleet.pod_ready).tolist():
        row = int(fleet.pod_workload[pod])
        leaving[row] -= 1
        if leaving[row] >= 0:
            leave(pod)
    short, left = find_short(), MOST_AWAITED
    preferred: dict[int, list[int]] = {}
    for row in sorted(victims, key=lambda row: len({int(group[pod]) for pod in victims[row]})):
        pods = list(victims[row])
        first: list[int] = []
        while short and left > 0 and len(first) < leaving[row]:
            wanted = [pod for pod in pods if int(group[pod]) in short]
            if not wanted:
                break
            pods.remove(wanted[0])
            first.append(wanted[0])
            leave(wanted[0])
            short, left = find_short(), left - 1
        preferred[row] = first + pods
    return preferred


class _Nodes:
    """Price and capacity type of nodes, by the node groups that they are in."""

    def __init__(self, fleet: Fleet, group_price: FloatColumn) -> None:
        self._fleet = fleet
        self._price = or_zero(group_price)

    def describe(self, row: int, names: list[str]) -> tuple[FloatColumn, BoolColumn]:
        """Return the price of a device on each node, and whether it is a spot node, for the resource of a workload."""
        groups, pool = self._fleet.groups, int(self._fleet.pool[row])
        resource = self._fleet.pools[pool].resource if pool >= 0 else ""
        own = [
            next((line for line in groups.of_node.get(name, ()) if groups.groups[line].resource == resource), None)
            for name in names
        ]
        prices = [0.0 if line is None else float(self._price[line]) for line in own]
        spots = [line is not None and groups.groups[line].capacity_type == SPOT for line in own]
        return np.array(prices, dtype=np.float64), np.array(spots, dtype=bool)


def _devices_by_node(fleet: Fleet, pods: IntColumn) -> dict[str, float]:
    """Return the devices that replicas of managed workloads hold on the nodes of some pods."""
    names = {fleet.pods[pod].node for pod in pods.tolist()} - {""}
    held: Counter[str] = Counter()
    if names:
        devices = np.nan_to_num(fleet.gpus_per_replica, nan=1.0)[fleet.pod_workload].tolist()
        for pod, count in zip(fleet.pods, devices, strict=True):
            if pod.node in names:
                held[pod.node] += count
    return dict(held)
