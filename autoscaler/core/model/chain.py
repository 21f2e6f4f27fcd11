"""The chain of a pre-warm window, or of a rise that is forecast: what must begin when, so that replicas are in time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.table.columns import Columns, FloatColumn, IntColumn


class Link(PublishedEnum):
    """Links of a chain, in their order; the rows of `Chain.starts_s`. Each ends where the next one starts."""

    NODE = 0  # a node is requested, until a pod can be bound to it
    WEIGHTS = 1  # the weights are fetched to the nodes that get the replicas
    REPLICA = 2  # replicas are requested, until they serve


class Cause(PublishedEnum):
    """Why replicas will be needed."""

    WINDOW = 0  # a pre-warm window begins
    DAY_AGO = 1  # the load rose a day ago
    WEEK_AGO = 2  # the load rose a week ago


@dataclass(frozen=True)
class Chain(Columns):
    """The next need of each workload for which replicas are missing. NaN: there is none."""

    due_s: FloatColumn  # float64[W], begin of the window or of the rise, on the clock of the tick
    replicas: FloatColumn  # float64[W], replicas that must be ready then
    cause: IntColumn  # int64[W], Cause
    window: IntColumn  # int64[W], index into `Schedule.names`; -1: none
    # float64[L, W], start of each link; NaN: it is not needed, or the planner recommends the replicas of a forecast
    starts_s: FloatColumn
    lacking: FloatColumn  # float64[W], replicas of it that have no place on the present nodes
    lead_s: FloatColumn  # float64[L, W], of each link; 0: it is not needed
    places: FloatColumn  # float64[W], replicas for which places on nodes are requested now; 0: none

    @classmethod
    def none(cls, rows: int, lead_s: FloatColumn | None = None) -> Chain:
        """Return that no workload has a need to prepare for. lead_s: float64[L, W]; None: unknown."""
        unknown, links, none = np.full(rows, np.nan), np.full((len(Link), rows), np.nan), np.full(rows, -1)
        cause = np.full(rows, int(Cause.WINDOW))
        return cls(unknown, unknown, cause, none, links, unknown, links if lead_s is None else lead_s, np.zeros(rows))
