"""The fixed list of queries: tables of metric names compiled to PromQL, for all workloads at once.

How many there are depends on the engines in use and on the policies' own expressions, never on how many workloads
there are. The text of a query holds no name of a workload or pod. Sending and reading them does not belong here.

Two Prometheus replicas behind one querier show each series twice, apart by a label of the operator's choice. Hence
`max by` the labels that tell engines apart, before anything is summed. A pod that two jobs scrape has a sum of each,
and so has one that two clusters know: `join` takes the largest, and `doubles` tells.

Every selector has a name and no regular expression on it: managed backends refuse both. How the settings narrow all
queries is in `narrow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from autoscaler.adapters.prometheus.promql.expressions import (
    QUANTILE,
    Quantiles,
    by,
    duration,
    either,
    keep_all,
    pooled,
    scaled,
    selectors,
)
from autoscaler.adapters.prometheus.promql.labels import METRIC, NO_POD, PART, POD, TARGET, Identity, Where
from autoscaler.catalog.engines import GAUGES, QUANTILES, START_TIME, WITHIN, Engine
from autoscaler.catalog.series import MOVED, POD_LABELS, Fold, Readings, Series
from autoscaler.core.observe.counter_falls import PROCESS_START

SLOW = frozenset({"max_running"})  # of the engine: set at its start


@dataclass(frozen=True)
class PodQuery:
    """One query that fills one column of PodSamples; its series carry the labels of a pod."""

    column: str
    expression: str
    slow: bool = False  # changes rarely, or is collected rarely: not asked at every tick
    models: tuple[str, ...] = ()  # of `models.Models`: it is about pods that report these beside others; (): all pods
    grouped: bool = False  # its series carry the labels of a group of pods instead


def engine_queries(engine: Engine, identity: Identity, quantiles: Quantiles) -> tuple[PodQuery, ...]:
    """Return the queries that read one engine on all pods: one for each column, and first one for the readings' time.

    Columns that depend on objectives are not among them: see `within`.
    identity: the labels that name a pod.
    """
    engine = by_identity(engine, identity)
    queries = [PodQuery("time_s", either(_time(row, identity) for row in clock_of(engine)))]
    for column, readings in engine.readings.items():
        if column in WITHIN or column in QUANTILES:
            continue
        expression = _values(readings, identity)
        if column in GAUGES:
            expression = f"({expression}) unless on ({', '.join(identity)}) ({_negative(readings)})"
        queries.append(PodQuery(column, expression, column in SLOW))
    return (*queries, *quantile_queries(engine, identity, quantiles))


def quantile_queries(engine: Engine, identity: Identity, quantiles: Quantiles) -> tuple[PodQuery, ...]:
    """Return the queries for the quantiles of one engine."""
    engine = by_identity(engine, identity)
    return tuple(
        PodQuery(column, _values(engine.readings[column], identity, quantiles), grouped=quantiles.pairs is not None)
        for column in engine.readings
        if column in QUANTILES
    )


def process_start_query(engine: Engine, identity: Identity) -> PodQuery:
    """Return the query for when the youngest process of each pod started that shows metrics of the engine.

    Sidecars are other processes, and have another `instance`.
    """
    rows = clock_of(by_identity(engine, identity))
    clock = either(_believed(row, text, identity) for row in rows for text in selectors(row, row.name))
    of_pods = {*identity, *chain.from_iterable(POD_LABELS)}
    start = Series(START_TIME, where=tuple(each for each in rows[0].where if each[0] in of_pods))
    target = ", ".join(dict.fromkeys((*identity, "instance")))
    (started,) = selectors(start, START_TIME)
    return PodQuery(PROCESS_START, f"max {by(*identity)} ({started} and on ({target}) ({clock}))")


def models_query(engine: Engine, identity: Identity) -> str:
    """Return the query for the models that each pod reports, under the engine's own label."""
    rows = clock_of(by_identity(engine, identity))
    series = either(_believed(row, text, identity) for row in rows for text in selectors(row, row.name))
    return f"count {by(*identity, engine.served_label, MOVED + engine.served_label)} ({series})"


def by_identity(engine: Engine, identity: Identity) -> Engine:
    """Return the engine as its series show it that an identity names: a target is no pod that has a name."""
    return narrowed(engine, NO_POD) if identity == TARGET else engine


def bounds_query(readings: Readings, most: int) -> str:
    """Return the query for the bounds of a histogram, the `most` commonest: how many series have each `le`.

    A histogram with more than `most` bounds is left out: it would crowd out those of all others.
    """
    buckets = either(text for row in readings for text in selectors(row, row.name + "_bucket"))
    return f"topk({most}, count by (le) (({buckets}) unless ignoring (le) (count without (le) ({buckets}) > {most})))"


def bucket_expression(readings: Readings, spellings: Sequence[str], identity: Identity) -> str:
    """Return an expression for one cumulative bucket of a histogram, a series for each pod.

    spellings: of its bound; Prometheus 2 keeps that of the engine ("1"), Prometheus 3 writes its own ("1.0").
    """
    texts = tuple(spellings)
    if len(texts) > 1:  # then `_selector` takes them for regular expressions
        texts = tuple(text.replace(".", "[.]").replace("+", "[+]") for text in texts)
    return _values(
        (replace(row, name=f"{row.name}_bucket", where=(*row.where, ("le", texts)), scale=1.0) for row in readings),
        identity,
    )


def narrowed(engine: Engine, where: Where, *, own: bool = False) -> Engine:
    """Return the engine as those of its series show it that pass `where`, beyond its own conditions.

    Of one value of a label the text counts, several are regular expressions; none may hold quotes or backslashes.
    own: what passes is pods of the engine, so that no other product's series have to be kept out.
    """

    def only(row: Series) -> Series:
        return replace(row, where=(*row.where, *where), foreign=None if own else row.foreign)

    return replace(
        engine, readings={column: tuple(row.each(only) for row in rows) for column, rows in engine.readings.items()}
    )


def seen_engines_query(engines: Iterable[Engine]) -> str:
    """Return the query for every pod, or nameless target, from which an engine reports.

    Label `metric` holds the engine's name.
    """
    labels = (*POD, "instance")

    def told(engine: Engine) -> str:
        model = engine.model_label or "model_name"
        return by(*labels, model, MOVED + model)

    return either(
        f'label_replace(count {told(engine)} ({_believed(row, text, labels)}), "{METRIC}", "{engine.name}", "", "")'
        for engine in engines
        for row in clock_of(engine)
        for text in selectors(row, row.name)
    )


def engines_presence(engines: Iterable[Engine]) -> str:
    """Return an expression that has a series wherever any engine reports."""
    rows = (row for engine in engines for row in clock_of(engine))
    return either(text for row in rows for text in selectors(row, row.name))


def clock_of(engine: Engine) -> Readings:
    """Return the rows whose presence shows that the engine answered: its running requests."""
    return engine.readings["running"]


def _values(rows: Iterable[Series], identity: Identity, quantiles: Quantiles | None = None) -> str:
    """Compile alternatives to an expression with one series per pod; as histograms, if quantiles are asked for.

    Alternatives that differ in name only share their aggregation: `or` keeps the first name of each series.
    """

    def compiled(row: Series, names: Sequence[str]) -> str:
        if quantiles is None:
            return _value(row, names, identity)
        return _quantile(row, names, identity, quantiles)

    alike: dict[Series, list[Series]] = {}
    for row in rows:
        alike.setdefault(row if row.plus else replace(row, name=""), []).append(row)
    return either(compiled(group[0], [row.name for row in group]) for group in alike.values())


def _value(row: Series, names: Sequence[str], identity: Identity) -> str:
    """Compile rows that differ in name only, in the order of steps that `Series` states."""
    pod = by(*identity)
    series = either(_believed(row, text, identity) for name in names for text in selectors(row, name))
    alike = all(_alike(part, row) for part in row.plus)
    if row.fold is Fold.SUM:
        together = keep_all([series, *(either(selectors(part, part.name)) for part in row.plus)]) if alike else series
        parted = (PART,) if row.plus and alike else ()
        expression = f"sum {pod} (max {by(*identity, *row.apart, *parted)} ({together}))"
    else:
        expression = f"max {pod} ({series})"
    if row.minus or not alike:
        parts = [expression, *(_values([part], identity) for part in row.plus if not alike)]
        parts += [f"0 - ({_values(readings, identity)})" for readings in row.minus]
        expression = f"sum {pod} ({keep_all(parts)})"
    if row.minus:
        expression = f"({expression} >= 0)"  # below it, or where there is nothing to subtract from, it is no count
    if row.inverted:
        expression = f"(1 - {expression})"
    return scaled(expression, row.scale)


def _negative(readings: Readings) -> str:
    """Return the series that show less than nothing: a sum or a largest of them would hide it."""
    rows = dict.fromkeys(part for row in readings for part in row.parts())
    return either(f"{text} < 0" for row in rows for text in selectors(row, row.name))


def _alike(part: Series, row: Series) -> bool:
    """Say whether the series of a part are summed as those of the row that adds it, so that one sum does for both."""
    plain = Series(part.name, where=part.where, foreign=part.foreign, repeated=row.repeated)
    return row.fold is Fold.SUM and part == plain


def _quantile(row: Series, names: Sequence[str], identity: Identity, quantiles: Quantiles) -> str:
    window = duration(quantiles.window_s)
    rates = either(
        _believed(row, f"rate({text}[{window}])", identity)
        for name in names
        for text in selectors(row, name + "_bucket")
    )
    return scaled(f"histogram_quantile({QUANTILE:g}, {pooled(rates, identity, quantiles.pairs, 'le')})", row.scale)


def _time(row: Series, identity: Identity) -> str:
    times = either(_believed(row, f"timestamp({text})", identity) for text in selectors(row, row.name))
    return f"max {by(*identity)} ({times})"


def _believed(row: Series, vector: str, identity: Identity) -> str:
    """Keep series of a shared name where the pod has the metric that only one product has."""
    return f"({vector} and on ({', '.join(identity)}) {row.beside})" if row.beside else vector
