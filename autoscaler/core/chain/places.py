"""Count the replicas of future windows by place: free on the present nodes, or on nodes that can be created."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from autoscaler.core.allocate.further import Further, admit
from autoscaler.core.model.fleet import Fleet, NodeGroups
from autoscaler.core.model.spec import Spec
from autoscaler.core.observe.pending import has_gpus
from autoscaler.core.supply.nodes import list_places
from autoscaler.core.supply.placing import Limit, take
from autoscaler.core.supply.running import list_running, sum_gpus
from autoscaler.core.table.columns import BoolColumn, FloatColumn

MOST_EACH = 100
"""Most replicas of one workload that are placed."""


class Found(NamedTuple):
    """Further replicas of windows by the place that they find; float64[W, K] each. Others find none."""

    free: FloatColumn  # on the present nodes
    lacking: FloatColumn  # on nodes that an autoscaler can create
    admitted: FloatColumn  # here, there or nowhere: within the quotas of their workload


def find_places(fleet: Fleet, spec: Spec, decided: FloatColumn, more: FloatColumn, due_s: FloatColumn) -> Found:
    """Return which further replicas of windows find a free place, and which need a node to be created.

    decided: float64[W], replicas that have a place, or get one before all others. more: float64[W, K], replicas beyond
    them that each window needs, at `due_s`; NaN or 0: none. A window needs no place beside an earlier one of its
    workload. The earliest windows get places first, and then the highest priorities. Nodes are created only where an
    autoscaler may do so, within the limits that are known. Replicas beyond the quotas of their workload get nothing,
    nor do those of a workload whose pods or count the API server refuses.
    """
    wanted = np.where(_is_refused(fleet)[:, None], 0.0, np.nan_to_num(more))
    wanted = np.ceil(np.clip(wanted, 0.0, MOST_EACH))
    admitted = admit(fleet, decided, Further.of(wanted, due_s, spec))
    replicas = admitted.keep(((fleet.pool >= 0) & (fleet.gpus_per_replica > 0))[admitted.row])
    counts = np.zeros((len(Found._fields), len(fleet.workloads), int(wanted.max(initial=0.0)) + 1))
    np.add.at(counts[2], (admitted.row, admitted.number + 1), 1.0)
    if len(replicas.row):
        full = _lacks_place(fleet, decided, replicas)
        lacks = full & _can_grow(fleet)[fleet.pool[replicas.row]]
        lacks &= _fits_new_nodes(fleet, replicas, lacks)
        for count, found in zip(counts, (~full, lacks), strict=False):
            np.add.at(count, (replicas.row, replicas.number + 1), found)
    return Found(*(np.take_along_axis(count.cumsum(axis=1), wanted.astype(np.int64), axis=1) for count in counts))


def _is_refused(fleet: Fleet) -> BoolColumn:
    """Return the workloads of which the API server refuses pods, or a larger count; bool[W]."""
    obstacles = fleet.obstacles
    return np.asarray(obstacles.creation_failed | (obstacles.refused_replicas > fleet.replicas))


def _lacks_place(fleet: Fleet, decided: FloatColumn, replicas: Further) -> BoolColumn:
    """Return the replicas that have no place beside those that are decided, on the present nodes; bool[R]."""
    now = replace(fleet, groups=replace(fleet.groups, can_add=np.zeros(len(fleet.groups.can_add))))
    running, limited = list_running(now, has_gpus(now)), (fleet.pool >= 0) & (fleet.gpus_per_replica > 0)
    places = list_places(now)
    places.placement.place(sum_gpus(now, running, decided, limited, places)[0])
    row = places.rows.of_pool(places.smallest, np.fmax(fleet.pool, 0))[replicas.row]
    return ~take([Limit(row, fleet.gpus_per_replica[replicas.row], places.placement)])


def _can_grow(fleet: Fleet) -> BoolColumn:
    """Return the pools for which an autoscaler may create nodes; bool[N]."""
    may_add = (fleet.groups.admitted & (fleet.groups.can_add > 0)).any(axis=1)
    return np.asarray(may_add | np.array([bool(pool.grows) for pool in fleet.pools], dtype=bool))


def _fits_new_nodes(fleet: Fleet, replicas: Further, lacks: BoolColumn) -> BoolColumn:
    """Return the replicas that have a place on nodes that may still be created; bool[R].

    lacks: bool[R], those that need one. Pools whose limit is not known have none.
    """
    fits = np.ones(len(lacks), dtype=bool)
    unlimited = np.array([bool(pool.grows) for pool in fleet.pools], dtype=bool)
    unlimited |= (fleet.groups.admitted & np.isinf(fleet.groups.can_add)).any(axis=1)
    tried = np.flatnonzero(lacks & ~unlimited[fleet.pool[replicas.row]])
    if len(tried):
        rows = replicas.row[tried]
        placement = list_places(replace(fleet, groups=_new_nodes(fleet.groups))).placement
        fits[tried] = take([Limit(fleet.pool[rows], fleet.gpus_per_replica[rows], placement)])
    return fits


def _new_nodes(groups: NodeGroups) -> NodeGroups:
    """Return the node groups with nothing but the devices that may still be created."""
    none = np.zeros(len(groups.can_add))
    return replace(
        groups,
        allocatable=groups.can_add,
        used_by_others=none,
        used=none,
        can_add=none,
        closed=none.astype(bool),
        by_node=(),
    )
