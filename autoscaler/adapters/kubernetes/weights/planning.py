"""The plan of weights for the nodes of a cluster: from the inventory and what workloads want, to wishes by node."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.inventory.pools import Layout
from autoscaler.adapters.kubernetes.inventory.usage import UsedOnNodes, count_on_nodes
from autoscaler.adapters.kubernetes.weights.kserve import WantedModel
from autoscaler.adapters.kubernetes.weights.reports import ReportStore
from autoscaler.adapters.kubernetes.weights.view import key_of
from autoscaler.config.weights.source import parse
from autoscaler.config.weights.wishes import Wish
from autoscaler.core.model.fleet import Workload, WorkloadRef
from autoscaler.core.model.weights import NO_SOURCE, Weights
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.wishes.parts import Demands, DiskNodes, Models, TieColumn
from autoscaler.core.wishes.plan import WishPlan, plan

UNKNOWN_BYTES = 150e9
"""Bytes of weights that nothing states and no node has reported yet: those of 70 billion parameters in 16 bits.

They count as half of the smallest disk at most, so that the first node can fetch them and report their size.
"""

Wishes = Mapping[str, tuple[Wish, ...]]


class SeenFleet(NamedTuple):
    """The fleet as of its last view."""

    workloads: tuple[Workload, ...]
    workload_id: IntColumn  # int64[W]
    weights: Weights
    layout: Layout
    held: UsedOnNodes
    pod_nodes: Sequence[str]  # [P], node of each pod; "": not bound
    pod_workload: IntColumn  # int64[P]
    nodes: Mapping[str, Mapping[str, str]]  # labels of all nodes of the cluster, by name
    of_kserve: BoolColumn  # bool[W], their pods are those of an InferenceService


class Wants(NamedTuple):
    """The needs of the workloads of an inventory; every field float64[W] unless it says otherwise."""

    needed: FloatColumn  # replicas
    spare: FloatColumn  # further replicas, where there is room
    priority: FloatColumn
    pinned: BoolColumn  # bool[W], they take the room of others if they must
    served: BoolColumn  # bool[W], their sources may be fetched for them
    served_to_all: BoolColumn  # bool[W], and for everybody


class PlannedWishes(NamedTuple):
    """The wishes of each node, and what could not be planned."""

    of_node: dict[str, tuple[Wish, ...]]  # in the order in which to fetch
    missing: dict[int, float]  # replicas that find no place with their weights, by row of the workload


def plan_wishes(seen: SeenFleet, wants: Wants, reports: ReportStore, before: Wishes) -> PlannedWishes:
    """Plan the wishes of all nodes whose agent reports a budget. before: the last wishes, by node."""
    names = sorted(
        name
        for name, said in reports.nodes.items()
        if said.report is not None and said.report.budget_bytes and name in seen.layout.place
    )
    sources = seen.weights.sources
    if not names or not sources:
        return PlannedWishes(dict.fromkeys(names, ()), {})
    planned = (seen.weights.source != NO_SOURCE) & wants.served
    rows = np.flatnonzero(planned & (np.array(seen.layout.template) >= 0))
    nodes, kind = _nodes(seen, names, rows, reports)
    models = _models(seen, wants, rows, min(UNKNOWN_BYTES, float(nodes.budget_bytes.min()) // 2))
    pods = _pods_of_replicas(seen.layout)[rows]
    demands = Demands(
        model=seen.weights.source[rows],
        needed=wants.needed[rows] * pods,
        spare=wants.spare[rows] * pods,
        kind=kind,
        tie=_ties([str(seen.workloads[row].ref) for row in rows.tolist()]),
        running=_running(seen, names, rows),
        namespace=_numbered([seen.workloads[row].ref.namespace for row in rows.tolist()]),
    )
    places = {source: place for place, source in enumerate(sources)}
    kept = np.zeros((len(sources), len(names)), dtype=bool)
    held = np.zeros_like(kept)
    column = {name: place for place, name in enumerate(names)}
    for name, place in column.items():
        for wish in before.get(name, ()):
            if str(wish.source) in places:
                kept[places[str(wish.source)], place] = True
    for source, model in places.items():
        held[model, [column[name] for name in reports.holders.get(key_of(source), ()) if name in column]] = True
    found = plan(models, demands, nodes, held, kept)
    missing = zip(rows.tolist(), (found.missing / pods).tolist(), strict=True)
    return PlannedWishes(
        _by_node(found, names, sources, models.is_pinned.tolist()),
        {row: replicas for row, replicas in missing if replicas > 0},
    )


def count_copies(seen: SeenFleet, wishes: Wishes, needed: FloatColumn) -> FloatColumn:
    """Return how many of these copies each workload of the inventory can use; float64[W].

    A copy counts once: of the workloads that share a model and fit on the node, for the one that needs most replicas.
    wishes: by node. needed: float64[W], replicas.
    """
    nodes: dict[str, set[str]] = {}
    for node, its in wishes.items():
        for wish in its:
            nodes.setdefault(str(wish.source), set()).add(node)
    layout, weights, copies = seen.layout, seen.weights, np.zeros(len(needed))
    for row in np.argsort(-needed, kind="stable").tolist():
        if weights.source[row] == NO_SOURCE or layout.template[row] < 0:
            continue
        admitted, left = layout.admitted[layout.template[row]], nodes.get(weights.sources[weights.source[row]], set())
        own = {node for node in left if node in layout.place and admitted[layout.group[layout.place[node]]]}
        copies[row] = len(own)
        left -= own
    return copies


def nodes_to_warm(seen: SeenFleet, wishes: Wishes, served: BoolColumn) -> dict[WorkloadRef, tuple[str, ...]]:
    """Return the nodes that are to hold the weights of each workload, and that admit its pods. wishes: by node.

    served: bool[W], their sources may be fetched for them.
    """
    layout, weights = seen.layout, seen.weights
    warmed = {}
    for row in np.flatnonzero((weights.source != NO_SOURCE) & served).tolist():
        if layout.template[row] < 0:
            continue
        source, admitted = weights.sources[weights.source[row]], layout.admitted[layout.template[row]]
        nodes = [
            node
            for node, its in wishes.items()
            if node in layout.place
            and admitted[layout.group[layout.place[node]]]
            and any(str(wish.source) == source for wish in its)
        ]
        if nodes:
            warmed[seen.workloads[row].ref] = tuple(sorted(nodes))
    return warmed


def models_of_kserve(seen: SeenFleet, wants: Wants) -> list[WantedModel]:
    """Return the weights of KServe's workloads: pinned ones first, then by priority.

    KServe gives its caches to all namespaces.
    """
    rows: dict[int, list[int]] = {}
    for row in np.flatnonzero((seen.weights.source != NO_SOURCE) & seen.of_kserve & wants.served_to_all).tolist():
        if seen.layout.template[row] >= 0:
            rows.setdefault(int(seen.weights.source[row]), []).append(row)
    found = []
    for source, own in rows.items():
        admitted: BoolColumn = np.any(seen.layout.admitted[[seen.layout.template[row] for row in own]], axis=0)
        nodes = frozenset(name for name, place in seen.layout.place.items() if admitted[seen.layout.group[place]])
        size = float(np.fmax.reduce(seen.weights.size_bytes[own]))
        rank = not wants.pinned[own].any(), -float(wants.priority[own].max()), source
        namespaces = frozenset(seen.workloads[row].ref.namespace for row in own)
        found.append((rank, WantedModel(parse(seen.weights.sources[source]), size, nodes, namespaces)))
    return [model for _, model in sorted(found, key=lambda each: each[0])]


def _by_node(
    found: WishPlan, names: Sequence[str], sources: Sequence[str], is_pinned: Sequence[bool]
) -> dict[str, tuple[Wish, ...]]:
    """Return the wishes of each node: pinned models, then needed ones, then spare ones."""
    wishes = [Wish(parse(source), pinned) for source, pinned in zip(sources, is_pinned, strict=True)]
    rank = np.empty(len(sources), dtype=np.int64)
    rank[found.order] = np.arange(len(sources))
    pinned = np.array(is_pinned, dtype=bool)
    of_node: dict[str, tuple[Wish, ...]] = {}
    for place, name in enumerate(names):
        copies = np.flatnonzero(found.copies[:, place])
        order = np.lexsort((rank[copies], ~found.is_needed[copies, place], ~pinned[copies]))
        of_node[name] = tuple(wishes[model] for model in copies[order].tolist())
    return of_node


def _models(seen: SeenFleet, wants: Wants, rows: IntColumn, unknown_bytes: float) -> Models:
    count = len(seen.weights.sources)
    size = np.zeros(count)
    priority = np.full(count, -np.inf)
    is_pinned = np.zeros(count, dtype=bool)
    own = seen.weights.source[rows]
    np.fmax.at(size, own, seen.weights.size_bytes[rows])
    np.fmax.at(priority, own, wants.priority[rows])
    is_pinned[own[wants.pinned[rows]]] = True
    return Models(np.where(size > 0, np.ceil(size), unknown_bytes), is_pinned, priority, _ties(seen.weights.sources))


def _nodes(seen: SeenFleet, names: Sequence[str], rows: IntColumn, reports: ReportStore) -> tuple[DiskNodes, IntColumn]:
    """Return the nodes, and the kind of the pods of each row. Rows with equal pods and node groups share a kind."""
    layout = seen.layout
    at = np.array([layout.place[name] for name in names])
    group = layout.group[at]
    is_open = np.array([not each.key.closed for each in layout.groups], dtype=bool)[group]
    kinds: dict[tuple[object, ...], int] = {}
    kind, admits, free = [], [], []
    for row in rows.tolist():
        template = layout.template[row]
        needs = layout.templates[template]
        same = needs.resource, needs.smallest, needs.cpu, needs.memory, layout.admitted[template].tobytes()
        if same not in kinds:
            kinds[same] = len(kinds)
            own = layout.admitted[template][group]
            pods = count_on_nodes(layout, seen.held, needs)[at] if needs.smallest > 0 else np.zeros(len(at))
            admits.append(own)
            free.append(np.where(own & is_open, pods, 0.0))
        kind.append(kinds[same])
    zones = [layout.groups[place].key.zone for place in group.tolist()]
    zone = {name: place for place, name in enumerate(dict.fromkeys(zones))}
    budgets = [reports.nodes[name].report for name in names]
    return (
        DiskNodes(
            budget_bytes=np.array([each.budget_bytes for each in budgets if each is not None], dtype=np.float64),
            zone=np.array([zone[each] for each in zones]),
            is_open=is_open,
            admits=np.array(admits, dtype=bool).reshape(len(kinds), len(names)),
            free=np.array(free, dtype=np.float64).reshape(len(kinds), len(names)),
            tie=_ties(names),
        ),
        np.array(kind, dtype=np.int64),
    )


def _pods_of_replicas(layout: Layout) -> FloatColumn:
    """Return the pods with devices of a replica of each workload, float64[W]; 1: unknown."""
    pods = [
        needs.total / needs.smallest if needs.smallest > 0 and needs.total > 0 else 1.0 for needs in layout.templates
    ]
    return np.array([*pods, 1.0])[np.array(layout.template, dtype=np.int64)]


def _running(seen: SeenFleet, names: Sequence[str], rows: IntColumn) -> tuple[IntColumn, IntColumn, FloatColumn]:
    """Return the pods that run: demand, node and count."""
    demand = np.full(len(seen.workloads), -1)
    demand[rows] = np.arange(len(rows))
    column = {name: place for place, name in enumerate(names)}
    node = np.array([column.get(name, -1) for name in seen.pod_nodes], dtype=np.int64)
    own = demand[seen.pod_workload]
    known = (node >= 0) & (own >= 0)
    cells, counts = np.unique(own[known] * len(names) + node[known], return_counts=True)
    return cells // len(names), cells % len(names), counts.astype(np.float64)


def _numbered(texts: Sequence[str]) -> IntColumn:
    """Return the same number for each text that is the same, from 0."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)


def _ties(texts: Sequence[str]) -> TieColumn:
    return np.array([_tie(text) for text in texts], dtype=np.uint64)


@lru_cache(maxsize=50_000)
def _tie(text: str) -> int:
    """Return a hash that is the same in each process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
