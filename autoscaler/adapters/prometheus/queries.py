"""The fixed list of queries: tables of metric names compiled to PromQL, for all workloads at once.

How many there are depends on the engines in use and on the policies' own expressions, never on how many workloads
there are. The text of a query holds no name of a workload or pod. Sending and reading them does not belong here.

Two Prometheus replicas behind one querier show each series twice, apart by a label of the operator's choice; so does
a pod scraped by two jobs. Hence `max by` the labels that tell engines apart, before anything is summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from autoscaler.config import gpus
from autoscaler.config.engines import QUANTILES, WITHIN, Engine
from autoscaler.config.gateways import GATEWAYS, Gateway
from autoscaler.config.series import DISTINCT, Fold, Readings, Series, names_of, renamed, underscored

QUANTILE = 0.95
GPU_COLUMNS = frozenset({"fb_usage", *gpus.ACTIVITY})
GPU_WINDOW_S = 180.0  # DCGM collects each 30 s, so a short reply may leave a trace in one sample only
SLOW = frozenset({"max_running"})  # of the engine: set at its start
_PART = "part"  # label that parts the series which are added to others
METRIC = "metric"  # label that keeps the name of a metric through functions that drop `__name__`

_REPLICA_LABELS = ("prometheus", "prometheus_replica", "replica", "receive_replica", "thanos_replica", "ha_replica")
_JOB_LABELS = ("job", "endpoint")  # of who scraped; two servers of one job differ by `instance`

Where = tuple[tuple[str, tuple[str, ...]], ...]  # label and the values it may have
Identity = tuple[str, str]  # the two labels that name a pod
POD: Identity = ("namespace", "pod")
EXPORTED: Identity = ("exported_namespace", "exported_pod")  # of federation without `honor_labels`: POD is the server
TARGET: Identity = ("job", "instance")  # of a plain scrape configuration, which knows no pods
CONVENTIONS = "labels that name pods"  # what problems call the query for them


@dataclass(frozen=True)
class PodQuery:
    """One query that fills one column of PodSamples; its series carry the labels of a pod."""

    column: str
    expression: str
    slow: bool = False  # changes rarely, or is collected rarely: not asked at every tick


def engine_queries(engine: Engine, identity: Identity, window_s: float) -> tuple[PodQuery, ...]:
    """Return the queries that read one engine on all pods: one for each column, and one for the time of the reading.

    Columns that depend on objectives are not among them: see `within`.
    identity: the labels that name a pod. window_s: range of the histogram quantiles.
    """
    engine = engine.renamed(underscored)
    queries = [PodQuery("time_s", _either(_time(row, identity) for row in _clock_of(engine)))]
    for column, readings in engine.readings.items():
        if column in WITHIN:
            continue
        window = window_s if column in QUANTILES else None
        queries.append(PodQuery(column, _values(readings, identity, window), column in SLOW))
    return tuple(queries)


def bounds_query(readings: Readings, most: int) -> str:
    """Return the query for the bounds of a histogram, the `most` commonest: how many series have each `le`.

    A histogram with more than `most` bounds is left out: it would crowd out those of all others.
    """
    buckets = _either(_selector(row, row.name + "_bucket") for row in renamed(readings, underscored))
    return f"topk({most}, count by (le) (({buckets}) unless ignoring (le) (count without (le) ({buckets}) > {most})))"


def bucket_expression(readings: Readings, spellings: Sequence[str], identity: Identity) -> str:
    """Return an expression for one cumulative bucket of a histogram, a series for each pod.

    spellings: of its bound; Prometheus 2 keeps that of the engine ("1"), Prometheus 3 writes its own ("1.0").
    """
    texts = tuple(spellings)
    if len(texts) > 1:  # then `_selector` takes them for regular expressions
        texts = tuple(text.replace(".", "[.]").replace("+", "[+]") for text in texts)
    rows = renamed(readings, underscored)
    return _values(
        (replace(row, name=f"{row.name}_bucket", where=(*row.where, ("le", texts)), scale=1.0) for row in rows),
        identity,
    )


def of_pods(engine: Engine, namespace: str, pods: Sequence[str]) -> Engine:
    """Return the engine as some pods of one namespace show it; `pods` are at least two expressions for their names."""
    return narrowed(engine, ((POD[0], (namespace,)), (POD[1], tuple(pods))))


def narrowed(engine: Engine, where: Where) -> Engine:
    """Return the engine as those of its series show it that pass `where`, beyond its own conditions.

    Of one value of a label the text counts, several are regular expressions; none may hold quotes or backslashes.
    """

    def only(row: Series) -> Series:
        return replace(row, where=(*row.where, *where))

    return replace(
        engine, readings={column: tuple(row.each(only) for row in rows) for column, rows in engine.readings.items()}
    )


def series_query(engine: Engine, column: str) -> str:
    """Return the query for each series of a column, apart, with the labels that tell engines apart: for history.

    What a row subtracts stays in: see `subtracted_query`.
    """
    rows = engine.renamed(underscored).readings[column]
    labels = _by(*POD, *DISTINCT, _PART)
    alternatives = [f"max {labels} ({_selector(row, row.name)})" for row in rows]
    # `or` drops a series whose labels its left side has, so what is added gets a label of its own.
    added = [
        f'max {labels} (label_replace({_selector(part, part.name)}, "{_PART}", "{number}", "", ""))'
        for number, part in enumerate(dict.fromkeys(part for row in rows for part in row.plus))
    ]
    return _either([*alternatives, *added])


def subtracted_query(engine: Engine, column: str) -> str:
    """Return the query for what is to be subtracted from the series of `series_query`; "": nothing is.

    Nothing either where a row without `minus` answers, which comes before those with it.
    """
    rows = engine.renamed(underscored).readings[column]
    whole = _either(f"max {_by(*POD)} ({_selector(row, row.name)})" for row in rows if not row.minus)
    parts = [
        f'label_replace({_selector(part, part.name)}, "{_PART}", "{number}", "", "")'
        for row in rows
        for number, readings in enumerate(row.minus)
        for part in readings
    ]
    if not parts:
        return ""
    parted = f"max {_by(*POD, *DISTINCT, _PART)} ({_either(dict.fromkeys(parts))})"
    return f"{parted} unless on ({', '.join(POD)}) ({whole})" if whole else parted


def sampled_query(engine: Engine) -> str:
    """Return the query for when each series of an engine was last scraped: Unix times."""
    rows = _clock_of(engine.renamed(underscored))
    times = _either(f"timestamp({_selector(row, row.name)})" for row in rows)
    return f"max {_by(*POD, *DISTINCT)} ({times})"


def latency_query(engine: Engine, column: str, window_s: float) -> str:
    """Return the query for a latency histogram of all pods of an engine together: how much each bucket grew."""
    rows = engine.renamed(underscored).readings[column]
    grown = (f"increase({_selector(row, row.name + '_bucket')}[{_duration(window_s)}])" for row in rows)
    return f"sum by (le) (max {_by('le', *POD, *DISTINCT)} ({_either(grown)}))"


def gpu_queries(identity: Identity) -> tuple[PodQuery, ...]:
    """Return the queries that read the GPUs of all pods; identity is the backend's label convention (`gpus`)."""
    held = f'{{{identity[1]}!=""}}'
    device, pod = _by(*identity, *gpus.DEVICE_LABELS), _by(*identity)
    used, free = (f"max {device} ({_believable(name, name + held)})" for name in (gpus.FB_USED, gpus.FB_FREE))
    named = [gpus.FB_USED, *(row.name for row in (*gpus.FB_RATIO, *gpus.ACTIVITY["tensor_active"]))]
    window = _duration(GPU_WINDOW_S)

    def ratio(row: Series, reading: str) -> str:
        return f"clamp_max(max {pod} ({_believable(row.name, reading)}), 1)"

    usage = [f"max {pod} ({used} / ({used} + {free}))", *(ratio(row, row.name + held) for row in gpus.FB_RATIO)]
    return (
        PodQuery("gpu_time_s", _either(f"max {pod} (timestamp({name}{held}))" for name in named), slow=True),
        PodQuery("fb_usage", _either(usage), slow=True),
        *(
            PodQuery(
                column, _either(ratio(row, f"max_over_time({row.name}{held}[{window}])") for row in rows), slow=True
            )
            for column, rows in gpus.ACTIVITY.items()
        ),
    )


def convention_query(engines: Iterable[Engine]) -> str:
    """Return the query that tells which labels name pods in this backend; see `read_conventions`.

    It has one series even where no engine and no GPU is known, so that its answer always tells the server's time.
    """
    engine_names = "|".join(sorted({row.name for engine in engines for row in _clock_of(engine.renamed(underscored))}))
    gpu_names = "|".join(sorted(gpus.metric_names()))
    asked = [("engine", engine_names, f'{POD[1]}!="",{EXPORTED[1]}=""', POD)]
    asked += [("engine", engine_names, f'{identity[1]}!=""', identity) for identity in (EXPORTED, TARGET)]
    asked += [("gpu", gpu_names, f'{identity[1]}!=""', identity) for identity in gpus.POD_LABELS]
    counts = {
        f"{kind}/{identity[1]}": f'count({{__name__=~"{names}",{held}}})' for kind, names, held, identity in asked
    }
    counts["clock"] = "vector(1)"
    return _either(f'label_replace({count}, "{METRIC}", "{name}", "", "")' for name, count in counts.items())


def read_conventions(found: Iterable[str]) -> tuple[Identity, Identity | None]:
    """Return the labels that name a pod on engine series and on GPU series, from the `metric` labels of the answer.

    The first convention that exists decides for the whole backend. None: no GPU series name any pod.
    """
    present = set(found)
    engine = next((identity for identity in (POD, EXPORTED, TARGET) if f"engine/{identity[1]}" in present), POD)
    gpu = next((identity for identity in gpus.POD_LABELS if f"gpu/{identity[1]}" in present), None)
    return engine, gpu


def front_waiting_query() -> str:
    """Return the query for the requests that all gateways hold; label `metric` says which gauge a series is."""
    return _either(
        _named_sum(name, name, gateway) for gateway in GATEWAYS.values() for name in names_of(gateway.waiting)
    )


def front_arrivals_query(window_s: float) -> str:
    """Return the query for the requests per second that arrive at all gateways; label `metric` as above."""
    return _either(
        _named_sum(f"rate({name}[{_duration(window_s)}])", name, gateway)
        for gateway in GATEWAYS.values()
        for name in names_of(gateway.arrivals)
    )


def seen_engines_query(engines: Iterable[Engine], identity: Identity) -> str:
    """Return the query for every pod from which an engine reports; label `metric` holds the engine's name."""
    return _either(
        f"label_replace(count {_by(*identity, engine.model_label or 'model_name')} ({_selector(row, row.name)}), "
        f'"{METRIC}", "{engine.name}", "", "")'
        for engine in engines
        for row in _clock_of(engine.renamed(underscored))
    )


def engines_presence(engines: Iterable[Engine]) -> str:
    """Return an expression that has a series wherever any engine reports."""
    return _either(_selector(row, row.name) for engine in engines for row in _clock_of(engine.renamed(underscored)))


def devices_query(identity: Identity) -> str:
    """Return the query that counts the GPUs, or MIG instances, that each pod holds."""
    held = f'{{{identity[1]}!=""}}'
    pool = ("modelName", "GPU_I_PROFILE")
    device = f"max {_by(*identity, *pool, *(label for label in gpus.DEVICE_LABELS if label not in pool))}"
    named = [gpus.FB_USED, *(row.name for row in (*gpus.FB_RATIO, *gpus.ACTIVITY["tensor_active"]))]
    return f"count {_by(*identity, *pool)} ({device} ({_either(name + held for name in named)}))"


def _clock_of(engine: Engine) -> Readings:
    """Return the rows whose presence shows that the engine answered: its running requests."""
    return engine.readings["running"]


def _values(rows: Iterable[Series], identity: Identity, quantile_window_s: float | None = None) -> str:
    """Compile alternatives to an expression with one series per pod; as histograms, if a window is given.

    Alternatives that differ in name only share their aggregation: `or` keeps the first name of each series.
    """

    def compiled(row: Series, names: Sequence[str]) -> str:
        if quantile_window_s is None:
            return _value(row, names, identity)
        return _quantile(row, names, identity, quantile_window_s)

    alike = groupby(rows, lambda row: row if row.plus else replace(row, name=""))
    return _either(compiled(group[0], [row.name for row in group]) for group in (list(rows) for _, rows in alike))


def _value(row: Series, names: Sequence[str], identity: Identity) -> str:
    """Compile rows that differ in name only, in the order of steps that `Series` states."""
    pod = _by(*identity)
    series = _either(_selector(row, name) for name in names)
    if row.fold is Fold.SUM:
        expression = f"sum {pod} (max {_by(*identity, *row.apart())} ({series}))"
    else:
        expression = f"max {pod} ({series})"
    if row.plus or row.minus:
        parts = [expression, *(_values([part], identity) for part in row.plus)]
        parts += [f"0 - ({_values(readings, identity)})" for readings in row.minus]
        expression = f"sum {pod} ({_apart(parts)})"
    if row.minus:
        expression = f"({expression} >= 0)"  # below it, or where there is nothing to subtract from, it is no count
    if row.inverted:
        expression = f"(1 - {expression})"
    return _scaled(expression, row.scale)


def _apart(vectors: Sequence[str]) -> str:
    """Join vectors so that all their series stay: `or` drops a series whose labels its left side has."""
    labelled = (f'label_replace({vector}, "{_PART}", "{number}", "", "")' for number, vector in enumerate(vectors[1:]))
    return _either([vectors[0], *labelled])


def _quantile(row: Series, names: Sequence[str], identity: Identity, window_s: float) -> str:
    window = _duration(window_s)
    rates = _either(f"rate({_selector(row, name + '_bucket')}[{window}])" for name in names)
    return _scaled(f"histogram_quantile({QUANTILE:g}, sum {_by(*identity, 'le')} ({rates}))", row.scale)


def _time(row: Series, identity: Identity) -> str:
    return f"max {_by(*identity)} (timestamp({_selector(row, row.name)}))"


def _named_sum(reading: str, name: str, gateway: Gateway) -> str:
    labels = dict.fromkeys((*gateway.labels(), "namespace", "exported_namespace"))
    once = f"max without ({', '.join((*_REPLICA_LABELS, *_JOB_LABELS))}) ({reading})"
    return f'label_replace(sum {_by(*labels)} ({once}), "{METRIC}", "{name}", "", "")'


def _selector(row: Series, name: str) -> str:
    matchers = [
        f'{label}="{allowed[0]}"' if len(allowed) == 1 else f'{label}=~"{"|".join(allowed)}"'
        for label, allowed in row.where
    ]
    return f"{name}{{{','.join(matchers)}}}" if matchers else name


def _scaled(expression: str, scale: float) -> str:
    return expression if scale == 1 else f"({expression} * {scale!r})"


def _by(*labels: str) -> str:
    return f"by ({', '.join(labels)})"


def _either(alternatives: Iterable[str]) -> str:
    return " or ".join(alternatives)


def _believable(name: str, reading: str) -> str:
    """Leave out the series of a GPU metric whose reading no GPU can show."""
    return f"{reading} >= 0 <= {gpus.most(name):g}"


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
