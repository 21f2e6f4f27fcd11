"""The parts of a plan of weights: models, the demands for them, and nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

TieColumn = npt.NDArray[np.uint64]

MOST_COPIES = 64
"""Copies on one node. Nodes have a label for each."""


@dataclass(frozen=True)
class Models:
    """The models; every field [M]."""

    size_bytes: FloatColumn  # float64[M], > 0
    is_pinned: BoolColumn  # bool[M], they get nodes first, and take the room of others if they must
    priority: FloatColumn  # float64[M], the largest of its workloads
    tie: TieColumn  # uint64[M], a hash of its name


@dataclass(frozen=True)
class Demands:
    """The needs of workloads for their models; rows D. Several may share a model."""

    model: IntColumn  # int64[D], row of the model
    needed: FloatColumn  # float64[D], places for pods that run, are wanted, or soon will be
    spare: FloatColumn  # float64[D], further places, where there is room
    kind: IntColumn  # int64[D], kind of its pods: a row of `Nodes.free`
    tie: TieColumn  # uint64[D], a hash of the workload's name
    running: tuple[IntColumn, IntColumn, FloatColumn]  # rows, nodes, and pods that run there
    namespace: IntColumn  # int64[D], from 0


@dataclass(frozen=True)
class DiskNodes:
    """The nodes whose disks are known; N."""

    budget_bytes: FloatColumn  # float64[N], for all copies
    zone: IntColumn  # int64[N], failure domain, from 0
    is_open: BoolColumn  # bool[N], it takes new pods
    admits: BoolColumn  # bool[K, N], an empty node could run pods of each kind
    free: FloatColumn  # float64[K, N], pods of each kind that fit next to all present pods
    tie: TieColumn  # uint64[N], a hash of its name
