"""The order in which the replicas of a shrinking workload should leave.

A removed replica cuts its running requests after its grace period, so the replica with the fewest leaves first. Among
equals it is the one on the emptiest node, which an autoscaler of nodes may then remove, then the dearest, then a spot
node's. Replicas that are not ready are not in the order: a ReplicaSet removes them before all others.

If a replica of another workload waits for GPUs, one leaves first whose GPUs it can use: on a node that has enough for
the whole replica then. No pod is ever moved, so a replica that leaves another node would be lost for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import QUEUED, SPOT, Fleet, Pod
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe.pending import count_pods, has_gpus
from autoscaler.core.supply.nodes import list_places
from autoscaler.core.supply.placing import Limit, OnNodes
from autoscaler.core.supply.running import PartsOnRows, Running, find_places, list_running, sum_gpus
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero

MOST_TRIED = 500
"""For at most this many replicas it finds out whether others wait for their GPUs. It bounds the time."""


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
    devices, nodes = _devices_by_node(fleet, of_rows), _NodePrices(fleet, group_price)
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
    if fleet.groups.of_node and found:
        found = _prefer_awaited(inp, replicas, found)
    return {row: tuple(fleet.pods[pod] for pod in pods) for row, pods in found.items()}


def _prefer_awaited(inp: TickInput, replicas: FloatColumn, victims: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return the victims with those first that leave others the GPUs for which these wait.

    Replicas stay that have a place beside those that wait: the ones with the most requests if as many stay then as
    should, or else the ones that come first in the order of the allocation.
    """
    fleet, spec = inp.fleet, inp.spec
    running, rows = list_running(fleet, has_gpus(fleet)), list(victims)
    most = {row: min(int(replicas[row]), len(victims[row])) for row in rows}
    promised = _list_promised(fleet, running, replicas, most)
    last = [pod for row in rows for pod in victims[row][len(victims[row]) - most[row] :]]
    if promised.hold(np.array(last, dtype=np.int64)):
        return victims
    group, node = find_places(fleet)
    rows.sort(key=lambda row: [len(set(place[victims[row]].tolist())) for place in (group, node)])
    number = dict(zip(running.pod.tolist(), running.number.tolist(), strict=True))
    by_requests = [(row, pod) for row in rows for pod in reversed(victims[row])]
    priority = or_zero(spec.priority)
    share = np.nan_to_num(fleet.gpus_per_replica) / np.where(spec.weight > 0, spec.weight, 1.0)
    by_rank = sorted(by_requests, key=lambda each: (-priority[each[0]], number.get(each[1], 0) * share[each[0]]))
    stay = max(
        (_find_staying(promised, tried, most) for tried in (by_requests, by_rank)),
        key=lambda kept: sum(map(len, kept.values())),
    )
    for row in rows:
        more = [pod for pod in reversed(victims[row]) if pod not in stay[row]]
        stay[row] += more[: most[row] - len(stay[row])]
    return {row: sorted(victims[row], key=stay[row].__contains__) for row in victims}


def _find_staying(promised: OnNodes, candidates: list[tuple[int, int]], most: dict[int, int]) -> dict[int, list[int]]:
    """Return the replicas that have a place beside those that wait, by row. candidates: row and pod, in order."""
    found = _try_each(candidates, most, lambda kept: not promised.limit.copy_with(kept)[1].any())
    if promised.hold(np.array([pod for pods in found.values() for pod in pods], dtype=np.int64)):
        return found
    return _try_each(candidates, most, promised.hold)


def _try_each(
    candidates: list[tuple[int, int]], most: dict[int, int], hold: Callable[[IntColumn], bool]
) -> dict[int, list[int]]:
    """Return the replicas that can stay beside all before them, by row."""
    stay: dict[int, list[int]] = {row: [] for row in most}
    kept: list[int] = []
    for row, pod in islice(candidates, MOST_TRIED):
        if len(stay[row]) < most[row] and hold(np.array([*kept, pod])):
            stay[row].append(pod)
            kept.append(pod)
    return stay


def _list_promised(fleet: Fleet, running: Running, replicas: FloatColumn, most: dict[int, int]) -> OnNodes:
    """Return what limits pods beside the replicas of workloads that do not shrink, and beside those that wait for GPUs.

    most: ready replicas that stay, by row of the workloads that shrink. Their replicas that are not ready leave first.
    """
    limited = np.isfinite(fleet.gpus_per_replica) & ~np.isnan(np.append(fleet.pool_gpus, np.nan)[fleet.pool])
    gpus = np.where(limited, fleet.gpus_per_replica, 0.0)[fleet.pod_workload]
    others = replicas - count_pods(fleet, *QUEUED)
    others[list(most)] = 0.0
    present = np.fmin(others, running.total)
    starting = np.concatenate(
        [
            running.pod[(running.row == row) & ~fleet.pod_ready[running.pod]][: max(int(replicas[row]) - ready, 0)]
            for row, ready in most.items()
        ]
    )
    places = list_places(fleet)
    row = np.full(len(fleet.pods), -1)
    row[running.pod] = running.find_rows(places, fleet.pool, running.row, running.number)
    parts = running.find_parts(places, fleet.pool, running.row, running.number)
    by_pod = np.argsort(running.pod[parts.replica], kind="stable")
    parts = PartsOnRows(running.pod[parts.replica][by_pod], parts.row[by_pod], parts.gpus[by_pod])
    limit = Limit(row, gpus, places.placement, parts)
    first = sum_gpus(fleet, running, present, limited, places)
    then = sum_gpus(fleet, running, others, limited, places, since=present)
    for needed in (first[0], limit.sum_gpus(starting), then[0]):
        limit.placement.place(needed)
    pods = first[1] + then[1] + OnNodes(places, fleet.pod_workload, limit, then[1], then[1] > 0).count_pods(starting)
    return OnNodes.of(places, fleet.pod_workload, limit, pods)


class _NodePrices:
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
