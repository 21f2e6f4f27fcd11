"""Reads how many requests met the objectives of their workloads, with one query for each different objective.

Only the bounds of histograms are kept between ticks. `promql.within_objective` builds the queries.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.promql.engines import bounds_query, for_identity
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.adapters.prometheus.promql.native_histograms import native_count
from autoscaler.adapters.prometheus.promql.within_objective import (
    MAX_BOUNDS,
    Bounds,
    count_expression,
    most_common,
    read_bounds,
)
from autoscaler.catalog.engines import ENGINES, UNCOUNTED, WITHIN, Engine
from autoscaler.catalog.series import Readings, names_of
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives
from autoscaler.core.table.columns import BoolColumn, FloatColumn, fill_unknown

BOUNDS_PERIOD_S = 300.0  # bounds change when an engine is upgraded or reconfigured
NO_BOUNDS_PERIOD_S = 30.0  # until the first pods report


class ObjectiveCounts:
    """Fills the columns of `WITHIN` for every engine that has them."""

    def __init__(self) -> None:
        self._bounds: dict[Readings, tuple[Bounds, float]] = {}  # and when they were queried, by histogram

    async def read(
        self,
        query_round: QueryRound,
        at_s: float,
        engines: Mapping[str, Engine],
        identities: Sequence[Identity],
        join: PodJoin,
        fleet: Fleet,
        objectives: Objectives,
        *,
        native: bool = False,
    ) -> dict[str, FloatColumn]:
        """Return the columns, float64[P]; NaN if a workload has no objective or its pod has no such histogram.

        native: native histograms exist and are used for pods without buckets.
        """
        named = np.array([workload.engine for workload in fleet.workloads], dtype=object)
        columns = {column: np.full(len(fleet.pods), np.nan) for column in WITHIN}
        natively = dict(columns)

        async def count(into: dict[str, FloatColumn], column: str, expression: str, has_objective: BoolColumn) -> None:
            answer = await query_round.query(column, expression, at_s) if expression else None
            if answer is not None:
                counted = np.where(has_objective[fleet.pod_workload], join.column(answer.vector), np.nan)
                into[column] = fill_unknown(counted, into[column])

        async with asyncio.TaskGroup() as group:
            for name, column in ((name, column) for name in sorted(set(named)) for column in WITHIN):
                if name not in engines or not (readings := engines[name].readings.get(column)):
                    continue
                limits_s = np.where(named == name, getattr(objectives, WITHIN[column]), np.nan)
                chosen, left_out = most_common(limits_s, len(fleet.pods))
                if left_out:
                    query_round.note(
                        column,
                        f"counted for the {len(chosen)} most common objectives; {left_out} workloads have others",
                    )
                bounds = await self._read_bounds(query_round, at_s, column, readings) if chosen else Bounds.none()
                for identity, objective_s in product(identities, chosen):
                    rows = for_identity(engines[name], identity).readings[column]
                    expression = count_expression(column, rows, identity, objective_s, bounds)
                    group.create_task(count(columns, column, expression, limits_s == objective_s))
                    if native:
                        expression = native_count(column, rows, identity, objective_s)
                        group.create_task(count(natively, column, expression, limits_s == objective_s))
        return {name: fill_unknown(column, natively[name]) for name, column in columns.items()}

    async def _read_bounds(self, query_round: QueryRound, at_s: float, column: str, readings: Readings) -> Bounds:
        """Return the bounds of a histogram; query them again after `BOUNDS_PERIOD_S`."""
        bounds, queried_s = self._bounds.get(readings, (Bounds.none(), -math.inf))
        if query_round.started_s - queried_s < (BOUNDS_PERIOD_S if len(bounds.values_s) else NO_BOUNDS_PERIOD_S):
            return bounds
        answer = await query_round.query(f"bounds of {column}", bounds_query(readings, MAX_BOUNDS), at_s)
        if answer is not None and not (answer.vector.partial and len(bounds.values_s)):
            bounds = read_bounds(answer.vector, readings[0].scale)
        self._bounds[readings] = bounds, query_round.started_s
        return bounds


def report_uncounted(
    query_round: QueryRound, column: str, fleet: Fleet, objectives: Objectives, columns: Mapping[str, FloatColumn]
) -> None:
    """Report pods that finish requests whose latency cannot be compared with the objective."""
    has_objective = ~np.isnan(getattr(objectives, WITHIN[column]))[fleet.pod_workload]
    uncounted = fleet.pod_ready & has_objective & (columns["finished"] > 0) & np.isnan(columns[column])
    if uncounted.any():
        engines = {fleet.workloads[row].engine for row in fleet.pod_workload[uncounted].tolist()}
        names = sorted({name for engine in engines for name in names_of(ENGINES[engine].readings.get(column, ()))})
        what = f"no buckets of the histogram {' or '.join(names)}, nor a native one, on {uncounted.sum()} pods"
        query_round.note(column, f"{what} that finish requests: {UNCOUNTED[column]}")
