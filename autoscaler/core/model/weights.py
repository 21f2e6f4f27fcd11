"""The weights of models: their sources, and the nodes that hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn

NO_SOURCE = -1


class PodCache(PublishedEnum):
    """Whether the node of a pod held the weights of its model when the pod was bound to it."""

    UNKNOWN = 0  # the pod is not bound, no source is known, or the node did not say
    ABSENT = 1
    HELD = 2


@dataclass(frozen=True)
class WeightPlaces(Columns):
    """Free places for pods of a workload on a node group. One row for each pair, by workload and then by group.

    A place is room for one pod beside all present pods. A replica of several pods needs several places. Only workloads
    with a known source and open node groups that admit them have rows. Places of nodes that do not say what they hold
    are in `free` only.
    """

    workload: IntColumn  # int64[K], row of the workload, ascending
    group: IntColumn  # int64[K], row of the fleet's node groups
    free: FloatColumn  # float64[K], places
    free_held: FloatColumn  # float64[K], those on nodes that hold the weights
    free_absent: FloatColumn  # float64[K], those on nodes that say what they hold, without these weights
    nodes: FloatColumn  # float64[K], nodes of the group
    nodes_held: FloatColumn  # float64[K], nodes that hold the weights

    @classmethod
    def none(cls) -> WeightPlaces:
        """Return no row."""
        rows, counts = np.zeros(0, dtype=np.int64), np.zeros(0)
        return cls(rows, rows, counts, counts, counts, counts, counts)


class FetchFailure(NamedTuple):
    """Why a node could not fetch some weights."""

    node: str
    cause: str  # one word
    text: str


class SourceStatus(NamedTuple):
    """The nodes of one source, by what their agents say, and by the plan."""

    held: int = 0
    waiting: int = 0
    fetching: int = 0
    failed: int = 0
    failures: tuple[FetchFailure, ...] = ()  # the first of them
    wished: int | None = None  # nodes that should hold it; None: nothing is planned
    missing: float = 0.0  # replicas that are needed, and have no place on such a node


class WishStatus(NamedTuple):
    """How the plan of weights is published."""

    is_published: bool  # False: in dry-run
    writes_last_hour: int
    writes: int  # since the start of the process
    problem: str = ""  # why it cannot be published; "": it can


@dataclass(frozen=True)
class Weights:
    """The weights of each workload, and where they are."""

    sources: tuple[str, ...]  # [M], distinct, ascending: "hf://org/name@revision"
    source: IntColumn  # int64[W], index into sources; `NO_SOURCE`: unknown
    size_bytes: FloatColumn  # float64[W]; NaN: unknown
    steered: BoolColumn  # bool[W], the scheduler prefers, or requires, nodes that hold them
    places: WeightPlaces
    pod_cache: IntColumn  # int64[P], PodCache
    status: tuple[SourceStatus, ...] = ()  # [M]
    nodes: int = 0  # that say what they hold
    budget_bytes: float = 0.0  # of all their disks
    wishes: WishStatus | None = None  # None: nothing is planned

    @classmethod
    def unknown(cls, rows: int, pods: int) -> Weights:
        """Return that no source is known. rows, pods: of the fleet."""
        nothing = np.full(rows, NO_SOURCE)
        unknown, steered = np.full(rows, np.nan), np.zeros(rows, dtype=bool)
        return cls((), nothing, unknown, steered, WeightPlaces.none(), np.full(pods, int(PodCache.UNKNOWN)))
