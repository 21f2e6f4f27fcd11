"""Free places for the pods of workloads, and how many of them are on nodes that hold the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.inventory.pools import NO_GROUP, Layout
from autoscaler.adapters.kubernetes.inventory.usage import UsedOnNodes, count_on_nodes
from autoscaler.core.model.weights import NO_SOURCE, WeightPlaces
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


class TemplatePlaces(NamedTuple):
    """The open node groups that admit a template, and its free places on them."""

    lines: IntColumn  # int64[own], rows of the fleet's node groups, ascending
    groups: IntColumn  # int64[own], places in `Layout.groups`
    free: FloatColumn  # float64[own], pods that fit next to all present pods
    free_known: FloatColumn  # float64[own], those on nodes that say what they hold
    nodes: FloatColumn  # float64[own], nodes of each group
    on_nodes: FloatColumn  # float64[nodes], pods that fit next to all present pods, whether it admits them or not


def count_places(
    templates: Sequence[TemplatePlaces], layout: Layout, source: IntColumn, holders: Sequence[IntColumn]
) -> WeightPlaces:
    """Count the places of each workload with a known source.

    source: int64[W], `NO_SOURCE`: unknown. holders: by source, the nodes that hold it, as rows of the layout.
    """
    count = len(layout.groups)
    on_holders: dict[tuple[int, int], tuple[FloatColumn, FloatColumn]] = {}
    rows: list[int] = []
    found: list[tuple[TemplatePlaces, FloatColumn, FloatColumn]] = []
    for row, pair in enumerate(zip(layout.template, source.tolist(), strict=True)):
        place, model = pair
        if place < 0 or model == NO_SOURCE or not len(templates[place].lines):
            continue
        own = templates[place]
        if pair not in on_holders:
            nodes = holders[model]
            group = layout.group[nodes]
            on_holders[pair] = (
                np.bincount(group, own.on_nodes[nodes], count).astype(float)[own.groups],
                np.bincount(group, minlength=count).astype(float)[own.groups],
            )
        rows.append(row)
        found.append((own, *on_holders[pair]))
    if not rows:
        return WeightPlaces.none()
    held: FloatColumn = np.concatenate([each for _, each, _ in found])
    return WeightPlaces(
        workload=np.repeat(np.array(rows, dtype=np.int64), [len(own.lines) for own, _, _ in found]),
        group=np.concatenate([own.lines for own, _, _ in found]),
        free=np.concatenate([own.free for own, _, _ in found]),
        free_held=held,
        free_absent=np.concatenate([own.free_known for own, _, _ in found]) - held,
        nodes=np.concatenate([own.nodes for own, _, _ in found]),
        nodes_held=np.concatenate([each for _, _, each in found]),
    )


def places_of_templates(layout: Layout, held: UsedOnNodes, is_known: BoolColumn) -> list[TemplatePlaces]:
    """Return the places of each template. Templates with pods of one size share their count.

    is_known: bool[nodes], the node says what it holds.
    """
    count = len(layout.groups)
    is_open = np.array([not group.key.closed for group in layout.groups], dtype=bool)
    line_of = np.full((count, len(layout.resources)), -1)
    for row, line in enumerate(layout.lines):
        if line.group != NO_GROUP:
            line_of[line.group, line.resource] = row
    nodes = np.bincount(layout.group, minlength=count).astype(np.float64)
    by_size: dict[tuple[str, float, float, float], tuple[FloatColumn, FloatColumn, FloatColumn]] = {}
    found = []
    for place, needs in enumerate(layout.templates):
        if not needs.smallest > 0 or needs.resource not in layout.resources:
            found.append(_NO_PLACES)
            continue
        own = np.flatnonzero(layout.admitted[place] & is_open)
        lines = line_of[own, layout.resources.index(needs.resource)]
        own = own[lines >= 0][np.argsort(lines[lines >= 0])]
        size = needs.resource, needs.smallest, needs.cpu, needs.memory
        if size not in by_size:
            pods = count_on_nodes(layout, held, needs)
            free, known = (np.bincount(layout.group, each, count).astype(float) for each in (pods, pods * is_known))
            by_size[size] = pods, free, known
        pods, free, known = by_size[size]
        found.append(TemplatePlaces(np.sort(lines[lines >= 0]), own, free[own], known[own], nodes[own], pods))
    return found


_NO_ROWS, _NO_COUNTS = np.zeros(0, dtype=np.int64), np.zeros(0)
_NO_PLACES = TemplatePlaces(_NO_ROWS, _NO_ROWS, _NO_COUNTS, _NO_COUNTS, _NO_COUNTS, _NO_COUNTS)
