"""Queries for engines: tables of metric names compiled to PromQL, for all workloads at once.

The number of queries depends on the engines in use and on the policies' own expressions, but not on the number of
workloads. Queries never contain the name of a workload or pod.

Two Prometheus replicas behind one querier show each series twice, with a label of the operator's choice. So `max by`
the labels that tell engines apart comes before any sum. A pod scraped by two jobs, or known to two clusters, has one
sum for each; `PodJoin` takes the largest, and `duplicates` reports it.

Each selector has a metric name and no regular expression on it, because managed backends refuse both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from autoscaler.adapters.prometheus.promql.expressions import (
    QUANTILE,
    QuantileQuery,
    by,
    duration,
    keep_all,
    or_join,
    scaled,
    selectors,
    sum_by_group,
)
from autoscaler.adapters.prometheus.promql.labels import METRIC, NO_POD, PART, POD, Identity, Matchers, names_pods
from autoscaler.catalog.engines import GAUGES, QUANTILES, START_TIME, WITHIN, Engine
from autoscaler.catalog.series import MOVED, POD_LABELS, Aggregation, Readings, Series
from autoscaler.core.readings.counter_falls import PROCESS_START

SLOW = frozenset({"max_running"})  # of the engine: set at its start


@dataclass(frozen=True)
class SampleQuery:
    """A query that fills one column of PodSamples. Its series have the labels of a pod."""

    column: str
    expression: str
    slow: bool = False  # changes or is collected rarely, so it is not queried at every tick
    models: tuple[str, ...] = ()  # only for pods that report these models and foreign ones; (): all pods
    grouped: bool = False  # its series have the labels of a group of pods instead


class Over(NamedTuple):
    """A function over the samples of a window, such as the growth of a counter."""

    function: str
    window_s: float

    def apply(self, selector: str) -> str:
        return f"{self.function}({selector}[{duration(self.window_s)}])"


def engine_queries(
    engine: Engine, identity: Identity, quantiles: QuantileQuery, apart: Identity = ()
) -> tuple[SampleQuery, ...]:
    """Return the queries for one engine on all pods: first the time of the readings, then one query per column.

    Columns that depend on objectives are in `within_objective`. identity: labels that name a pod. apart: labels that
    tell the sources of a pod apart, each of which then has a series, except in quantiles.
    """
    engine = for_identity(engine, identity)
    source = (*identity, *apart)
    queries = [SampleQuery("time_s", or_join(_time(row, source) for row in presence_rows(engine)))]
    for column, readings in engine.readings.items():
        if column in WITHIN or column in QUANTILES:
            continue
        expression = _values(readings, source)
        if column in GAUGES:
            expression = f"({expression}) unless on ({', '.join(identity)}) ({_negative(readings)})"
        queries.append(SampleQuery(column, expression, column in SLOW))
    return (*queries, *quantile_queries(engine, identity, quantiles))


def quantile_queries(engine: Engine, identity: Identity, quantiles: QuantileQuery) -> tuple[SampleQuery, ...]:
    """Return the queries for the quantiles of one engine."""
    engine = for_identity(engine, identity)
    return tuple(
        SampleQuery(column, _values(engine.readings[column], identity, quantiles), grouped=quantiles.pairs is not None)
        for column in engine.readings
        if column in QUANTILES
    )


def process_start_query(engine: Engine, identity: Identity) -> SampleQuery:
    """Return the query for the start time of the youngest engine process of each pod."""
    return SampleQuery(PROCESS_START, process_query(START_TIME, engine, identity))


def process_query(name: str, engine: Engine, identity: Identity) -> str:
    """Return the query for the largest value of a metric of the engine processes of each pod.

    Sidecars have another `instance` and do not count.
    """
    rows = presence_rows(for_identity(engine, identity))
    clock = or_join(if_beside(row, text, identity) for row in rows for text in selectors(row, row.name))
    of_pods = {*identity, *chain.from_iterable(POD_LABELS)}
    row = Series(name, where=tuple(each for each in rows[0].where if each[0] in of_pods))
    target = ", ".join(dict.fromkeys((*identity, "instance")))
    (series,) = selectors(row, name)
    return f"max {by(*identity)} ({series} and on ({target}) ({clock}))"


def growth_query(engine: Engine, column: str, identity: Identity, window_s: float) -> str:
    """Return the query for the growth of a counter of each pod within a window, across resets."""
    return over_query(engine, column, identity, Over("increase", window_s))


def over_query(engine: Engine, column: str, identity: Identity, over: Over) -> str:
    """Return the query for a column of each pod, with a function over a window in place of the last samples."""
    return _values(for_identity(engine, identity).readings[column], identity, over=over)


def models_query(engine: Engine, identity: Identity) -> str:
    """Return the query for the models that each pod reports in the label of the engine."""
    rows = presence_rows(for_identity(engine, identity))
    series = or_join(if_beside(row, text, identity) for row in rows for text in selectors(row, row.name))
    return f"count {by(*identity, engine.served_label, MOVED + engine.served_label)} ({series})"


def for_identity(engine: Engine, identity: Identity) -> Engine:
    """Return the engine restricted to series that an identity can name: targets only name series without a pod."""
    return engine if names_pods(identity) else with_matchers(engine, NO_POD)


BOUND = "[0-9.eE+-]{1,24}"
"""Texts of bounds that may become part of a query, as a regular expression."""

PER_NAMESPACE = 10**9
"""Weight of a namespace in the answer for each bound that it has; a series adds one."""


def bounds_query(readings: Readings, most: int) -> str:
    """Return the query for the bounds of a histogram that most namespaces have, and most series: the number of both.

    A tenant with many pods displaces none of the bounds that several others have. A histogram with more than `most`
    bounds is left out, because it would displace the bounds of all others, and so are texts that are no bounds.
    """
    rows = [replace(row, where=(*row.where, ("le", (BOUND, "[+]Inf")))) for row in readings]
    buckets = or_join(text for row in rows for text in selectors(row, row.name + "_bucket"))
    usual = f"({buckets}) unless ignoring (le) (count without (le) ({buckets}) > {most})"
    counts = f"count {by('le', *(namespace for namespace, _ in POD_LABELS))} ({usual})"
    return f"topk({most}, sum by (le) ({counts} + {PER_NAMESPACE}))"


def bucket_expression(
    readings: Readings, spellings: Sequence[str], identity: Identity, over: Over | None = None
) -> str:
    """Return an expression for one cumulative bucket of a histogram, a series for each pod.

    spellings: texts of its bound. Prometheus 2 keeps the engine's text ("1"), Prometheus 3 normalizes it ("1.0").
    """
    texts = tuple(spellings)
    if len(texts) > 1:  # `selectors` matches several values as regular expressions
        texts = tuple(text.replace(".", "[.]").replace("+", "[+]") for text in texts)
    return _values(
        (replace(row, name=f"{row.name}_bucket", where=(*row.where, ("le", texts)), scale=1.0) for row in readings),
        identity,
        over=over,
    )


def with_matchers(engine: Engine, where: Matchers, *, own: bool = False) -> Engine:
    """Return the engine restricted to series that match `where` in addition to its own conditions.

    One value of a label is matched as text, several as regular expressions; none may contain quotes or backslashes.
    own: only pods of the engine match, so series of other products need not be excluded.
    """

    def only(row: Series) -> Series:
        return replace(row, where=(*row.where, *where), foreign=None if own else row.foreign)

    return replace(
        engine, readings={column: tuple(row.each(only) for row in rows) for column, rows in engine.readings.items()}
    )


def reporting_pods_query(engines: Iterable[Engine]) -> str:
    """Return the query for the running requests of every pod that reports an engine, or target without a pod.

    Label `metric` is the engine.
    """
    labels = (*POD, "instance")

    def grouping(engine: Engine) -> str:
        model = engine.model_label or "model_name"
        return by(*labels, model, MOVED + model)

    return or_join(
        f'label_replace(sum {grouping(engine)} ({if_beside(row, text, labels)}), "{METRIC}", "{engine.name}", "", "")'
        for engine in engines
        for row in presence_rows(engine)
        for text in selectors(row, row.name)
    )


def engine_presence(engines: Iterable[Engine]) -> str:
    """Return an expression with a series for each engine process that reports."""
    rows = (row for engine in engines for row in presence_rows(engine))
    return or_join(text for row in rows for text in selectors(row, row.name))


def presence_rows(engine: Engine) -> Readings:
    """Return the rows whose presence shows that the engine reports: its running requests."""
    return engine.readings["running"]


def _values(
    rows: Iterable[Series],
    identity: Identity,
    quantiles: QuantileQuery | None = None,
    over: Over | None = None,
) -> str:
    """Compile alternatives to an expression with one series per pod; to a quantile if `quantiles` is given.

    over: what the value is of the samples of a window; None: it is the last sample.

    Alternatives that differ only in name share one aggregation, because `or` keeps the first name of each series.
    """

    def compiled(row: Series, names: Sequence[str]) -> str:
        if quantiles is None:
            return _value(row, names, identity, over)
        return _quantile(row, names, identity, quantiles)

    alike: dict[Series, list[Series]] = {}
    for row in rows:
        alike.setdefault(row if row.plus else replace(row, name=""), []).append(row)
    return or_join(compiled(group[0], [row.name for row in group]) for group in alike.values())


def _value(row: Series, names: Sequence[str], identity: Identity, over: Over | None) -> str:
    """Compile rows that differ only in name, with the steps in the order that `Series` states."""

    def read(part: Series, name: str) -> Iterator[str]:
        for text in selectors(part, name):
            yield text if over is None else over.apply(text)

    pod = by(*identity)
    series = or_join(if_beside(row, text, identity) for name in names for text in read(row, name))
    one_sum = all(_same_aggregation(part, row) for part in row.plus)
    if row.aggregation is Aggregation.SUM:
        together = keep_all([series, *(or_join(read(part, part.name)) for part in row.plus)]) if one_sum else series
        parted = (PART,) if row.plus and one_sum else ()
        expression = f"sum {pod} (max {by(*identity, *row.distinct_labels, *parted)} ({together}))"
    else:
        expression = f"max {pod} ({series})"
    if row.minus or not one_sum:
        parts = [expression, *(_values([part], identity, None, over) for part in row.plus if not one_sum)]
        parts += [f"0 - ({_values(readings, identity, None, over)})" for readings in row.minus]
        whole, expression = expression, f"sum {pod} ({keep_all(parts)})"
        if row.again:
            parts.append(f"({_values(row.again, identity, None, over)}) - ({whole}) > 0")
            expression = f"min {pod} ({keep_all([f'sum {pod} ({keep_all(parts)})', whole])})"
    if row.minus:
        expression = f"({expression} >= 0)"  # a negative count, or one without a minuend, is unknown
    if row.inverted:
        expression = f"(1 - {expression})"
    return scaled(expression, row.scale)


def _negative(readings: Readings) -> str:
    """Return the series with negative values, which a sum or maximum would hide."""
    rows = dict.fromkeys(part for row in readings for part in row.parts())
    return or_join(f"{text} < 0" for row in rows for text in selectors(row, row.name))


def _same_aggregation(part: Series, row: Series) -> bool:
    """Return whether one sum can cover the series of a row and of a part that it adds."""
    plain = Series(part.name, where=part.where, foreign=part.foreign, repeated=row.repeated)
    return row.aggregation is Aggregation.SUM and part == plain


def _quantile(row: Series, names: Sequence[str], identity: Identity, quantiles: QuantileQuery) -> str:
    window = duration(quantiles.window_s)
    rates = or_join(
        if_beside(row, f"rate({text}[{window}])", identity)
        for name in names
        for text in selectors(row, name + "_bucket")
    )
    return scaled(
        f"histogram_quantile({QUANTILE:g}, {sum_by_group(rates, identity, quantiles.pairs, 'le')})", row.scale
    )


def _time(row: Series, identity: Identity) -> str:
    times = or_join(if_beside(row, f"timestamp({text})", identity) for text in selectors(row, row.name))
    return f"max {by(*identity)} ({times})"


def if_beside(row: Series, vector: str, identity: Identity) -> str:
    """Keep series with a shared name only for pods that also have the metric `row.beside`."""
    return f"({vector} and on ({', '.join(identity)}) {row.beside})" if row.beside else vector
