"""Queries for the history of one workload, with each series apart. `promql.engines` has the queries of ticks.

The pods of a workload are found by their names, whichever labels of the backend hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from autoscaler.adapters.prometheus.promql.engines import presence_rows, with_matchers
from autoscaler.adapters.prometheus.promql.expressions import by, duration, or_join, selectors
from autoscaler.adapters.prometheus.promql.labels import METRIC, NO_POD, PART, POD, SCRAPE_LABELS
from autoscaler.catalog.engines import Engine
from autoscaler.catalog.series import DISTINCT, POD_LABELS


def restrict_to_pods(engine: Engine, pair: tuple[str, str], namespace: str, pods: tuple[str, ...]) -> Engine:
    """Return the engine restricted to some pods of one namespace.

    pair: the pair of POD_LABELS that names them. pods: at least two regular expressions for their names.
    """
    before = NO_POD[: POD_LABELS.index(pair)]
    return with_matchers(engine, (*before, (pair[0], (namespace,)), (pair[1], pods)), own=True)


def naming_query(engine: Engine, namespace: str, pods: tuple[str, ...]) -> str:
    """Return the query for the labels that name the pods; see `read_naming`."""

    def found(pair: tuple[str, str]) -> str:
        rows = presence_rows(restrict_to_pods(engine, pair, namespace, pods))
        return f"count({or_join(text for row in rows for text in selectors(row, row.name))})"

    return or_join(f'label_replace({found(pair)}, "{METRIC}", "{pair[1]}", "", "")' for pair in POD_LABELS)


def read_naming(series: Iterable[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of POD_LABELS that name the pods. series: labels in the answer to `naming_query`."""
    found = {labels.get(METRIC, "") for labels in series}
    return tuple(pair for pair in POD_LABELS if pair[1] in found)


def neighbours_query(engine: Engine, namespace: str) -> str:
    """Return the query for all pods of an engine in a namespace. The label `metric` is the name of the pod."""

    def found(pair: tuple[str, str]) -> str:
        rows = presence_rows(with_matchers(engine, ((pair[0], (namespace,)),)))
        count = f"count {by(pair[1])} ({or_join(text for row in rows for text in selectors(row, row.name))})"
        return f'label_replace({count}, "{METRIC}", "$1", "{pair[1]}", "(.+)")'

    return or_join(found(pair) for pair in POD_LABELS)


def series_query(engine: Engine, column: str) -> str:
    """Return the query for each series of a column, with the labels that tell engines apart.

    Rows to subtract are not subtracted; see `subtracted_query`.
    """
    rows = engine.readings[column]
    labels = by(*POD, *DISTINCT, PART)
    alternatives = [f"max {labels} ({or_join(selectors(row, row.name))})" for row in rows]
    # `or` drops a series whose labels its left side has, so added series get a label of their own.
    added = [
        f'max {labels} (label_replace({or_join(selectors(part, part.name))}, "{PART}", "{number}", "", ""))'
        for number, part in enumerate(dict.fromkeys(part for row in rows for part in row.plus))
    ]
    return or_join([*alternatives, *added])


def subtracted_query(engine: Engine, column: str) -> str:
    """Return the query for the series to subtract from those of `series_query`; "" if there are none.

    It leaves out pods for which a row without `minus` has a series, because that row takes precedence.
    """
    rows = engine.readings[column]
    whole = or_join(f"max {by(*POD)} ({or_join(selectors(row, row.name))})" for row in rows if not row.minus)
    parts = [
        f'label_replace({or_join(selectors(part, part.name))}, "{PART}", "{number}", "", "")'
        for row in rows
        for number, readings in enumerate(row.minus)
        for part in readings
    ]
    if not parts:
        return ""
    subtracted = f"max {by(*POD, *DISTINCT, PART)} ({or_join(dict.fromkeys(parts))})"
    return f"{subtracted} unless on ({', '.join(POD)}) ({whole})" if whole else subtracted


def sampled_query(engine: Engine) -> str:
    """Return the query for the Unix time of the last scrape of each series of an engine."""
    rows = presence_rows(engine)
    times = or_join(f"timestamp({text})" for row in rows for text in selectors(row, row.name))
    return f"max {by(*POD, *DISTINCT)} ({times})"


def latency_query(engine: Engine, column: str, window_s: float) -> str:
    """Return the query for the growth of each bucket of a latency histogram, over all pods of an engine.

    A pod that several jobs scrape counts once.
    """
    rows = engine.readings[column]
    buckets = (replace(row, name=row.name + "_bucket") for row in rows)
    grown = or_join(f"increase({text}[{duration(window_s)}])" for row in buckets for text in selectors(row, row.name))
    pods = tuple(chain.from_iterable(POD_LABELS))
    per_job = f"sum {by('le', *pods, *SCRAPE_LABELS)} (max {by('le', *POD, *DISTINCT)} ({grown}))"
    return f"sum by (le) (max {by('le', *pods)} ({per_job}))"
