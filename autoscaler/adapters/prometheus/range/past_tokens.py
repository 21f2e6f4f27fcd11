"""Reads the tokens of each workload in the steps of the last week, for a daemon that does not know its hours of load.

The server computes the growth of each counter within each step, so resets and pods that are gone count as in any
`increase()`. A query covers about a day: the last one first, then the oldest. A slow server thus returns first what the
planner looks at first, a day and a week ago.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from autoscaler.adapters.prometheus.pod_labels import Name, pod_name
from autoscaler.adapters.prometheus.promql.engines import growth_query
from autoscaler.adapters.prometheus.range.fleet_queries import Batch, FleetQueries
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.catalog.series import is_moved
from autoscaler.core.model.recent import PastTokens
from autoscaler.core.table.columns import FloatColumn, or_zero
from autoscaler.ports import Unavailable

QUERY_STEPS = 100  # per query: some more than the quarters of an hour in a day; Prometheus allows 11,000
MAX_TOKENS = 1e15  # beyond it floats do not hold every whole number
COLUMNS = PROMPT, GENERATED = "prompt_tokens", "generation_tokens"


def read_past_tokens(
    reader: RangeReader,
    queries: FleetQueries,
    rows: Collection[int],
    workloads: int,
    until_s: float,
    step_s: float,
    steps: int,
) -> PastTokens:
    """Return what could be read. Raises Unavailable if nothing was.

    rows: of the fleet, which has this many `workloads`. until_s: Unix time of the end of the last of `steps` steps.

    A batch that fails is not queried again, and after two failures in a row nothing is.
    """
    read = {column: np.full((steps, workloads), np.nan) for column in COLUMNS}
    failed: set[int] = set()
    failures, answers, problem = 0, 0, ""
    for first, last in _days(steps, QUERY_STEPS):
        for number, batch in enumerate(queries.batches(rows)):
            if number in failed:
                continue
            try:
                found = _read_batch(reader, queries, batch, until_s - first * step_s, step_s, last - first)
            except Unavailable as error:
                failed.add(number)
                failures, problem = failures + 1, str(error)
                if failures < 2:
                    continue
                if not answers:
                    raise
                return PastTokens(until_s, read[PROMPT], read[GENERATED], problem)
            failures, answers = 0, answers + 1
            for column, tokens in found.items():
                read[column][first:last, batch.rows] = tokens
    return PastTokens(until_s, read[PROMPT], read[GENERATED], problem)


def _days(steps: int, each: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of steps, counted from the last one: the last day, the oldest, the second oldest …."""
    days = [(first, min(first + each, steps)) for first in range(0, steps, each)]
    yield days[0]
    yield from reversed(days[1:])


def _read_batch(
    reader: RangeReader, queries: FleetQueries, batch: Batch, until_s: float, step_s: float, steps: int
) -> dict[str, FloatColumn]:
    """Return the tokens of a batch by column, float64[steps, R], the last step first. Raises Unavailable.

    Any scraped pod may write of others: that counts for workloads alone of which no pod was scraped itself.
    """
    pods: dict[str, dict[tuple[Name, bool], FloatColumn]] = {column: {} for column in COLUMNS}
    place = {row: number for number, row in enumerate(batch.rows)}
    for identity, engine in queries.narrowed_engines(batch):
        for column in COLUMNS:
            if column not in engine.readings:
                continue
            query = growth_query(engine, column, identity, step_s)
            for series in reader.query(query, until_s - (steps - 1) * step_s, until_s, step_s):
                key = pod_name(series["metric"]), is_moved(series["metric"])
                tokens = _tokens(series["values"], until_s, step_s, steps)
                known = pods[column].get(key)
                pods[column][key] = tokens if known is None else np.fmax(known, tokens)  # as in a tick
    read = {}
    for column, of_pods in pods.items():
        total, count = np.zeros((2, 2, steps, len(batch.rows)))
        for (name, moved), tokens in of_pods.items():
            row = queries.workload_of(name)
            if row in place:
                total[int(moved), :, place[row]] += or_zero(tokens)
                count[int(moved), :, place[row]] += ~np.isnan(tokens)
        own, others = np.where(count > 0, total, np.nan)
        read[column] = np.where(np.isnan(own).all(axis=0), others, own)
    return read


def _tokens(points: FloatColumn, until_s: float, step_s: float, steps: int) -> FloatColumn:
    """Return the values of points float64[n, 2] at the steps, the last first; NaN: no point, or no possible number."""
    at_s, read = points.T
    step = np.round((until_s - at_s) / step_s)
    fits = (step >= 0) & (step < steps) & (read >= 0) & (read <= MAX_TOKENS)
    values = np.full(steps, np.nan)
    values[step[fits].astype(np.int64)] = read[fits]
    return values
