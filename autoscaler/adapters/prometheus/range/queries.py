"""The queries that read the past of one workload, each series apart: `queries` has those of a tick.

A workload's pods are found by their names, whichever labels of the backend hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from autoscaler.adapters.prometheus.promql.engines import clock_of, narrowed
from autoscaler.adapters.prometheus.promql.expressions import by, duration, either, selectors
from autoscaler.adapters.prometheus.promql.labels import METRIC, NO_POD, PART, POD, SCRAPE_LABELS
from autoscaler.catalog.engines import Engine
from autoscaler.catalog.series import DISTINCT, POD_LABELS


def of_pods(engine: Engine, pair: tuple[str, str], namespace: str, pods: tuple[str, ...]) -> Engine:
    """Return the engine as some pods of one namespace show it.

    pair: the labels that name them, of POD_LABELS. pods: at least two expressions for their names.
    """
    before = NO_POD[: POD_LABELS.index(pair)]
    return narrowed(engine, (*before, (pair[0], (namespace,)), (pair[1], pods)), own=True)


def naming_query(engine: Engine, namespace: str, pods: tuple[str, ...]) -> str:
    """Return the query for the labels that name the pods; see `read_naming`."""

    def found(pair: tuple[str, str]) -> str:
        rows = clock_of(of_pods(engine, pair, namespace, pods))
        return f"count({either(text for row in rows for text in selectors(row, row.name))})"

    return either(f'label_replace({found(pair)}, "{METRIC}", "{pair[1]}", "", "")' for pair in POD_LABELS)


def read_naming(series: Iterable[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of POD_LABELS that name the pods, from the labels of the answer to `naming_query`."""
    found = {labels.get(METRIC, "") for labels in series}
    return tuple(pair for pair in POD_LABELS if pair[1] in found)


def neighbours_query(engine: Engine, namespace: str) -> str:
    """Return the query for all pods of an engine in a namespace; label `metric` holds their names."""

    def found(pair: tuple[str, str]) -> str:
        rows = clock_of(narrowed(engine, ((pair[0], (namespace,)),)))
        count = f"count {by(pair[1])} ({either(text for row in rows for text in selectors(row, row.name))})"
        return f'label_replace({count}, "{METRIC}", "$1", "{pair[1]}", "(.+)")'

    return either(found(pair) for pair in POD_LABELS)


def series_query(engine: Engine, column: str) -> str:
    """Return the query for each series of a column, apart, with the labels that tell engines apart.

    What a row subtracts stays in: see `subtracted_query`.
    """
    rows = engine.readings[column]
    labels = by(*POD, *DISTINCT, PART)
    alternatives = [f"max {labels} ({either(selectors(row, row.name))})" for row in rows]
    # `or` drops a series whose labels its left side has, so what is added gets a label of its own.
    added = [
        f'max {labels} (label_replace({either(selectors(part, part.name))}, "{PART}", "{number}", "", ""))'
        for number, part in enumerate(dict.fromkeys(part for row in rows for part in row.plus))
    ]
    return either([*alternatives, *added])


def subtracted_query(engine: Engine, column: str) -> str:
    """Return the query for what is to be subtracted from the series of `series_query`; "": nothing is.

    Nothing either where a row without `minus` answers, which comes before those with it.
    """
    rows = engine.readings[column]
    whole = either(f"max {by(*POD)} ({either(selectors(row, row.name))})" for row in rows if not row.minus)
    parts = [
        f'label_replace({either(selectors(part, part.name))}, "{PART}", "{number}", "", "")'
        for row in rows
        for number, readings in enumerate(row.minus)
        for part in readings
    ]
    if not parts:
        return ""
    parted = f"max {by(*POD, *DISTINCT, PART)} ({either(dict.fromkeys(parts))})"
    return f"{parted} unless on ({', '.join(POD)}) ({whole})" if whole else parted


def sampled_query(engine: Engine) -> str:
    """Return the query for when each series of an engine was last scraped: Unix times."""
    rows = clock_of(engine)
    times = either(f"timestamp({text})" for row in rows for text in selectors(row, row.name))
    return f"max {by(*POD, *DISTINCT)} ({times})"


def latency_query(engine: Engine, column: str, window_s: float) -> str:
    """Return the query for a latency histogram of all pods of an engine together: how much each bucket grew.

    A pod that several jobs scrape counts once.
    """
    rows = engine.readings[column]
    buckets = (replace(row, name=row.name + "_bucket") for row in rows)
    grown = either(f"increase({text}[{duration(window_s)}])" for row in buckets for text in selectors(row, row.name))
    pods = tuple(chain.from_iterable(POD_LABELS))
    of_job = f"sum {by('le', *pods, *SCRAPE_LABELS)} (max {by('le', *POD, *DISTINCT)} ({grown}))"
    return f"sum by (le) (max {by('le', *pods)} ({of_job}))"
