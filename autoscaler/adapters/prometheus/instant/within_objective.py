"""Asks how many requests were within the objectives of their workloads: a query for each objective in force.

It remembers the bounds of the histograms, and nothing else. How the queries are made is in `within`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.instant.query_round import Sampling
from autoscaler.adapters.prometheus.promql.engines import bounds_query, by_identity
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.adapters.prometheus.promql.native_histograms import native_count
from autoscaler.adapters.prometheus.promql.within_objective import (
    MAX_BOUNDS,
    Bounds,
    commonest,
    count_expression,
    read_bounds,
)
from autoscaler.catalog.engines import UNCOUNTED, WITHIN, Engine
from autoscaler.catalog.series import Readings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives
from autoscaler.core.table.columns import BoolColumn, FloatColumn

BOUNDS_PERIOD_S = 300.0  # bounds change when an engine is upgraded or configured otherwise
NO_BOUNDS_PERIOD_S = 30.0  # nobody has reported yet, but somebody soon will


class Attained:
    """Fills the columns of `WITHIN`, for every engine of the table that has them."""

    def __init__(self) -> None:
        self._bounds: dict[Readings, tuple[Bounds, float]] = {}  # of each histogram, and when they were asked for

    async def read(
        self,
        sampling: Sampling,
        at_s: float,
        engines: Mapping[str, Engine],
        identities: Sequence[Identity],
        join: PodJoin,
        fleet: Fleet,
        objectives: Objectives,
        *,
        native: bool = False,
    ) -> dict[str, FloatColumn]:
        """Return the columns, float64[P]; NaN where a workload has no objective or its pod has no such histogram.

        native: there are native histograms, which fill what no buckets tell.
        """
        named = np.array([workload.engine for workload in fleet.workloads], dtype=object)
        columns = {column: np.full(len(fleet.pods), np.nan) for column in WITHIN}
        natively = dict(columns)

        async def count(into: dict[str, FloatColumn], column: str, expression: str, asks: BoolColumn) -> None:
            answer = await sampling.ask(column, expression, at_s) if expression else None
            if answer is not None:
                counted = np.where(asks[fleet.pod_workload], join.column(answer.vector), np.nan)
                into[column] = np.where(np.isnan(counted), into[column], counted)

        async with asyncio.TaskGroup() as group:
            for name, column in ((name, column) for name in sorted(set(named)) for column in WITHIN):
                if name not in engines or not (readings := engines[name].readings.get(column)):
                    continue
                limits_s = np.where(named == name, getattr(objectives, WITHIN[column]), np.nan)
                chosen, left_out = commonest(limits_s, len(fleet.pods))
                if left_out:
                    sampling.note(
                        column,
                        f"counted for the {len(chosen)} most common objectives; {left_out} workloads have others",
                    )
                bounds = await self._known(sampling, at_s, column, readings) if chosen else Bounds.none()
                for identity, objective_s in product(identities, chosen):
                    rows = by_identity(engines[name], identity).readings[column]
                    expression = count_expression(column, rows, identity, objective_s, bounds)
                    group.create_task(count(columns, column, expression, limits_s == objective_s))
                    if native:
                        expression = native_count(column, rows, identity, objective_s)
                        group.create_task(count(natively, column, expression, limits_s == objective_s))
        return {name: np.where(np.isnan(column), natively[name], column) for name, column in columns.items()}

    async def _known(self, sampling: Sampling, at_s: float, column: str, readings: Readings) -> Bounds:
        """Return the bounds of a histogram as they were asked for last, or now."""
        bounds, asked_s = self._bounds.get(readings, (Bounds.none(), -math.inf))
        if sampling.started_s - asked_s < (BOUNDS_PERIOD_S if len(bounds.values_s) else NO_BOUNDS_PERIOD_S):
            return bounds
        answer = await sampling.ask(f"bounds of {column}", bounds_query(readings, MAX_BOUNDS), at_s)
        if answer is not None and not (answer.vector.partial and len(bounds.values_s)):
            bounds = read_bounds(answer.vector, readings[0].scale)
        self._bounds[readings] = bounds, sampling.started_s
        return bounds


def tell_uncounted(
    sampling: Sampling, column: str, fleet: Fleet, objectives: Objectives, columns: Mapping[str, FloatColumn]
) -> None:
    """Say so where requests end that cannot be held against their objective."""
    aims = ~np.isnan(getattr(objectives, WITHIN[column]))[fleet.pod_workload]
    uncounted = fleet.pod_ready & aims & (columns["finished"] > 0) & np.isnan(columns[column])
    if uncounted.any():
        sampling.note(column, f"unknown on {uncounted.sum()} pods that finish requests: {UNCOUNTED[column]}")
