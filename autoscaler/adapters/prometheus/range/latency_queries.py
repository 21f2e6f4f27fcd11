"""Histograms of all services over a span: the server sums the buckets of the pods, hour by hour.

An hour at a time, because a server loads all samples of a window at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.pod_labels import scrape_of
from autoscaler.adapters.prometheus.promql.engines import for_identity, if_beside
from autoscaler.adapters.prometheus.promql.expressions import duration, or_join, selectors, sum_by_group
from autoscaler.adapters.prometheus.promql.labels import Identity, names_pods
from autoscaler.adapters.prometheus.range.fair_query import query_fairly
from autoscaler.adapters.prometheus.range.reader import RangeQueryFailed, RangeReader, Rows
from autoscaler.adapters.prometheus.range.service_queries import FoundEngines, ServiceName, service_of
from autoscaler.catalog.engines import REQUEST_TIMES, Engine
from autoscaler.catalog.series import Readings, renamed
from autoscaler.catalog.spellings import Spelling
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import Histogram
from autoscaler.ports import Unavailable

WINDOW_S = 3600.0
PIECE_S = 86_400.0
MAX_BUCKETS = 200
TTFT, ITL, REQUEST = "ttft", "itl", "request"


Counts = dict[tuple[ServiceName, bool], dict[float, float]]
"""By the bound of a bucket, for each service and by whether another pod than its own wrote them."""


class LatencyQuery(NamedTuple):
    """A query with one series for each service and bucket."""

    kind: str  # TTFT, ITL or REQUEST
    expression: str
    scale: float  # seconds for each unit of the bounds


def latency_queries(found: FoundEngines) -> tuple[LatencyQuery, ...]:
    """Return the queries for the histograms of all engines; the value at a time is the growth of the hour before it."""
    queries: list[LatencyQuery] = []
    for engine, identity in found.engines:
        for kind, rows in _histograms(engine, found.spellings).items():
            queries += _queries(kind, rows, engine, identity, found)
    return tuple(queries)


def read_latencies(
    reader: RangeReader,
    queries: tuple[LatencyQuery, ...],
    span_s: tuple[float, float],
    progress: Callable[[float], None] = lambda _: None,
) -> tuple[Mapping[str, Mapping[ServiceName, Histogram]], tuple[str, ...]]:
    """Return the histograms by kind and service, over the whole span, and what could not be read, one line each.

    Where versions with other buckets served, each bound has what was counted up to it by those that had it or a lower
    one.
    """
    start_s, end_s = span_s
    days = [start_s + PIECE_S * number for number in range(math.ceil((end_s - start_s) / PIECE_S))]
    counts: dict[str, Counts] = {TTFT: {}, ITL: {}, REQUEST: {}}
    problems: dict[str, None] = {}
    for number, query in enumerate(queries):
        for day, begin_s in enumerate(days):
            until_s = min(begin_s + PIECE_S, end_s)
            try:
                first_s, told = min(begin_s + WINDOW_S, until_s), dict[str, None]()
                rows = query_fairly(reader, query.expression, first_s, until_s, WINDOW_S, told)
                problems |= {f"histograms of {query.kind}: {each}": None for each in told}
            except RangeQueryFailed as error:
                problems[f"histograms of {query.kind}: {error}"] = None
                continue
            except Unavailable as error:
                problems[f"histograms of {query.kind}: {error}"] = None
                break
            _add(counts[query.kind], rows, query.scale)
            progress((number + (day + 1) / len(days)) / len(queries))
    progress(1.0)
    found = {
        kind: MappingProxyType(
            {
                name: _histogram(by_bound)
                for (name, by_another), by_bound in services.items()
                if by_bound and not (by_another and (name, False) in services)
            }
        )
        for kind, services in counts.items()
    }
    return MappingProxyType(found), tuple(problems)


def _histograms(engine: Engine, spellings: tuple[Spelling, ...]) -> dict[str, Readings]:
    own = REQUEST_TIMES.get(engine.name, ())
    spelled = renamed(own, *(spelling.name for spelling in spellings))
    rows = {TTFT: engine.readings.get("ttft_s", ()), ITL: engine.readings.get("itl_s", ()), REQUEST: spelled}
    return {kind: readings for kind, readings in rows.items() if readings}


def _queries(kind: str, rows: Readings, engine: Engine, identity: Identity, found: FoundEngines) -> list[LatencyQuery]:
    own = for_identity(Engine(engine.name, MappingProxyType({kind: rows})), identity).readings[kind]
    jobs = ("job", "exported_job") if names_pods(identity) else ()
    pod = tuple(label for label in identity if label not in jobs)
    by_scale: dict[float, list[str]] = {}
    for row in own:
        by_scale.setdefault(row.scale, []).extend(
            if_beside(row, f"increase({text}[{duration(WINDOW_S)}])", identity)
            for text in selectors(row, row.name + "_bucket")
        )
    return [
        LatencyQuery(kind, sum_by_group(f"max {_by(pod, own)} ({or_join(parts)})", pod, found.pairs, "le"), scale)
        for scale, parts in by_scale.items()
    ]


def _by(pod: Identity, rows: Readings) -> str:
    distinct = dict.fromkeys(label for row in rows for label in row.distinct_labels)
    return f"by ({', '.join(dict.fromkeys((*pod, *distinct, 'le')))})"


def _add(counts: Counts, rows: Rows, scale: float) -> None:
    for row in rows:
        try:
            bound = float(row["metric"].get("le", "nan")) * scale
        except ValueError:
            continue
        grown = row["values"][:, 1]
        total = float(grown[np.isfinite(grown) & (grown > 0)].sum())
        of_service = counts.setdefault((service_of(row["metric"]), bool(scrape_of(row["metric"]))), {})
        if not math.isnan(bound) and (bound in of_service or len(of_service) < MAX_BUCKETS):
            of_service[bound] = of_service.get(bound, 0.0) + total


def _histogram(by_bound: dict[float, float]) -> Histogram:
    bounds: FloatColumn = np.array(sorted(by_bound), np.float64)
    counts = np.maximum.accumulate(np.array([by_bound[bound] for bound in bounds.tolist()], np.float64))
    return Histogram(bounds, counts)
