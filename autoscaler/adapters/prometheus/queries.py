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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from autoscaler.adapters.prometheus.groups import Pairs, group_labels, grouped
from autoscaler.catalog import gpus
from autoscaler.catalog.engines import ENGINES, GAUGES, QUANTILES, START_TIME, WITHIN, Engine
from autoscaler.catalog.gateways import GATEWAYS, Gateway
from autoscaler.catalog.reporters import HOME_LABELS
from autoscaler.catalog.series import MOVED, POD_LABELS, Fold, Readings, Series, names_of
from autoscaler.catalog.spellings import PLAIN, Spelling, spelled
from autoscaler.core.observe.counter_falls import PROCESS_START

QUANTILE = 0.95
GPU_COLUMNS = frozenset({"fb_usage", *gpus.ACTIVITY})
GPU_WINDOW_S = 180.0  # DCGM collects each 30 s, so a short reply may leave a trace in one sample only
SLOW = frozenset({"max_running"})  # of the engine: set at its start
METRIC = "metric"  # label that keeps the name of a metric through functions that drop `__name__`

PART = "part"  # label that parts the series which are added to others
_REPLICA_LABELS = ("prometheus", "prometheus_replica", "replica", "receive_replica", "thanos_replica", "ha_replica")
_JOB_LABELS = ("job", "endpoint", "container", "instance")  # of who scraped

Where = tuple[tuple[str, tuple[str, ...]], ...]  # label and the values it may have
# The second is OpenTelemetry's; the others those that fleets of clusters give their metrics.
CLUSTER_LABELS = (
    "cluster",
    "k8s_cluster_name",
    "k8s_cluster",
    "kubernetes_cluster",
    "cluster_name",
    "cluster_id",
    "clusterID",
    "managed_cluster",
)
SCRAPE_LABELS = ("job", "exported_job", *CLUSTER_LABELS)  # of who scraped a pod: all of its engines have the same
Identity = tuple[str, ...]  # the labels that name a pod, and say who scraped it
POD: Identity = (*chain.from_iterable(POD_LABELS), *SCRAPE_LABELS)
TARGET: Identity = ("job", "instance", *CLUSTER_LABELS)  # of a plain scrape configuration, which knows no pods
NO_POD: Where = tuple((pod, ("",)) for _, pod in POD_LABELS)  # what passes names no pod
CONVENTIONS = "labels that name pods"  # what problems call the query for them


@dataclass(frozen=True)
class PodQuery:
    """One query that fills one column of PodSamples; its series carry the labels of a pod."""

    column: str
    expression: str
    slow: bool = False  # changes rarely, or is collected rarely: not asked at every tick
    models: tuple[str, ...] = ()  # of `models.Models`: it is about pods that report these beside others; (): all pods
    grouped: bool = False  # its series carry the labels of a group of pods instead


@dataclass(frozen=True)
class Quantiles:
    """How quantiles are asked for: over a window, of groups of pods or of each pod alone."""

    window_s: float
    pairs: Pairs | None = None  # what names pods, see `groups`; None: each pod alone


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


def gpu_queries(identity: Identity) -> tuple[PodQuery, ...]:
    """Return the queries that read the GPUs of all pods."""
    pod = by(*identity)
    device = by(*identity, *_DEVICE)
    used, free = (f"max {device} ({_device(_believable(name, name))})" for name in (gpus.FB_USED, gpus.FB_FREE))
    window = duration(GPU_WINDOW_S)

    def ratio(row: Series, reading: str) -> str:
        return f"clamp_max(max {pod} ({_believable(row.name, reading)}), 1)"

    usage = [f"max {pod} ({used} / ({used} + {free}))", *(ratio(row, row.name) for row in gpus.FB_RATIO)]
    return (
        PodQuery("gpu_time_s", either(f"max {pod} (timestamp({name}))" for name in _GPU_CLOCK), slow=True),
        PodQuery("fb_usage", either(usage), slow=True),
        *(
            PodQuery(column, either(ratio(row, f"max_over_time({row.name}[{window}])") for row in rows), slow=True)
            for column, rows in gpus.ACTIVITY.items()
        ),
    )


def devices_query() -> str:
    """Return the query that counts the GPUs, or MIG instances, that each pod holds, for each way to name the pod.

    A device that two exporters report has one UUID, whatever they call its host.
    """
    pool = ("modelName", "GPU_I_PROFILE")
    pod = tuple(dict.fromkeys((*chain.from_iterable(POD_LABELS), *pool)))
    whole = (f"max {by(*pod, *_DEVICE)} ({_device(name)})" for name in _GPU_CLOCK)
    return f"count {by(*pod)} ({either(whole)})"


def convention_query(spellings: Sequence[Spelling]) -> str:
    """Return the query that tells which labels name pods in this backend, and how names are spelled.

    spellings: that names may have. See `read_conventions`.

    It has one series even where no engine and no GPU is known, so that its answer always tells the server's time.
    """
    everything = engines_presence(spelled(engine, spellings) for engine in ENGINES.values())
    way = f'label_replace({everything}, "{METRIC}", "engine/instance", "instance", ".+")'
    for _, pod in reversed(POD_LABELS):  # the first pair is written last: it decides
        way = f'label_replace({way}, "{METRIC}", "engine/{pod}", "{pod}", ".+")'
    whole = (row.name for engine in ENGINES.values() for row in _histogram_of(spelled(engine, spellings)))
    native = either(dict.fromkeys(whole))
    counts = {"gpu/pod": f"count({either(_GPU_CLOCK)})", "native": f"count({native})", "clock": "vector(1)"}
    counts |= {f"{_SPELLED}{spelling}": f"count({_presence(spelling)})" for spelling in spellings}
    others = (f'label_replace({count}, "{METRIC}", "{name}", "", "")' for name, count in counts.items())
    return either([*others, f"count by ({METRIC}) ({way})"])


def spellings_query(spellings: Sequence[Spelling]) -> str:
    """Return the query that tells how names are spelled; see `read_spellings`."""
    return either(
        f'label_replace(count({_presence(spelling)}), "{METRIC}", "{_SPELLED}{spelling}", "", "")'
        for spelling in spellings
    )


def read_spellings(found: Iterable[str]) -> tuple[Spelling, ...]:
    """Return how names are spelled, the shortest first; as the engines themselves do, where nothing is found.

    found: the labels `metric` of the answer to `spellings_query`.
    """
    texts = [name.removeprefix(_SPELLED) for name in found if name.startswith(_SPELLED)]
    read = (Spelling(text[:-1], text[-1]) for text in texts if text)
    return tuple(sorted(read, key=lambda spelling: (len(spelling.prefix), spelling))) or (PLAIN,)


_SPELLED = "spelled/"


def _presence(spelling: Spelling) -> str:
    """Return an expression that has a series wherever an engine's name is spelled so; without a colon none is."""
    named = ":" if spelling.colon != ":" else ""
    return engines_presence(
        spelled(engine, (spelling,))
        for engine in ENGINES.values()
        if any(named in row.name for row in clock_of(engine))
    )


@dataclass(frozen=True)
class Conventions:
    """Which labels name pods in a backend, as `convention_query` found it."""

    identities: tuple[Identity, ...] = (POD,)  # each is asked for; those of TARGET name scrape targets alone
    pod_labels: tuple[tuple[str, str], ...] = (("namespace", "pod"),)  # pairs of POD_LABELS that name engines' pods
    gpus: bool = False  # there are readings of GPUs
    nameless: float = 0.0  # series of engines that name no pod
    native: bool = False  # there are native histograms of engines, which have no buckets as series
    spellings: tuple[Spelling, ...] = (PLAIN,)  # of the names of engines' metrics


def read_conventions(found: Mapping[str, float]) -> Conventions:
    """Return what the answer to `convention_query` says: the value of each series by its label `metric`."""
    pods = tuple(pair for pair in POD_LABELS if f"engine/{pair[1]}" in found)
    nameless = "engine/instance" in found
    identities = ((POD,) if pods or not nameless else ()) + ((TARGET,) if nameless else ())
    return Conventions(
        identities=identities,
        pod_labels=pods or Conventions.pod_labels,
        gpus=any(name.startswith("gpu/") for name in found),
        nameless=found.get("engine/instance", 0.0),
        native="native" in found,
        spellings=read_spellings(found),
    )


def front_waiting_query() -> str:
    """Return the query for the requests that all gateways hold; label `metric` says which gauge a series is."""
    return either(_summed(gateway, {name: name for name in names_of(gateway.waiting)}) for gateway in _WAITING)


def front_arrivals_query(window_s: float) -> str:
    """Return the query for the requests per second that arrive at all gateways; label `metric` as above."""
    window = duration(window_s)
    return either(
        _summed(gateway, {name: f"rate({name}[{window}])" for name in names_of(gateway.arrivals)})
        for gateway in _ARRIVALS
    )


_WAITING = tuple(gateway for gateway in GATEWAYS.values() if gateway.waiting)
_ARRIVALS = tuple(gateway for gateway in GATEWAYS.values() if gateway.arrivals)


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


def in_namespaces(series: str) -> str:
    """Return an expression for the same series with their pods' namespaces under `namespace`, whatever named them."""
    for namespace, _ in reversed(POD_LABELS):
        if namespace != "namespace":
            series = f'label_replace({series}, "namespace", "$1", "{namespace}", "(.+)")'
    return series


def _histogram_of(engine: Engine) -> Readings:
    """Return the rows that name a histogram whole, as a native one is named, by which it is told that there are any."""
    return engine.readings.get("ttft_met") or engine.readings.get("itl_s", ())


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
        together = _apart([series, *(either(selectors(part, part.name)) for part in row.plus)]) if alike else series
        parted = (PART,) if row.plus and alike else ()
        expression = f"sum {pod} (max {by(*identity, *row.apart, *parted)} ({together}))"
    else:
        expression = f"max {pod} ({series})"
    if row.minus or not alike:
        parts = [expression, *(_values([part], identity) for part in row.plus if not alike)]
        parts += [f"0 - ({_values(readings, identity)})" for readings in row.minus]
        expression = f"sum {pod} ({_apart(parts)})"
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


def summed(row: Series, series: str, identity: Identity) -> str:
    """Add up the series of each pod, those once that repeat one number."""
    return f"sum {by(*identity)} (max {by(*identity, *row.apart)} ({series}))"


def _apart(vectors: Sequence[str]) -> str:
    """Join vectors so that all their series stay: `or` drops a series whose labels its left side has."""
    labelled = (f'label_replace({vector}, "{PART}", "{number}", "", "")' for number, vector in enumerate(vectors[1:]))
    return either([vectors[0], *labelled])


def _quantile(row: Series, names: Sequence[str], identity: Identity, quantiles: Quantiles) -> str:
    window = duration(quantiles.window_s)
    rates = either(
        _believed(row, f"rate({text}[{window}])", identity)
        for name in names
        for text in selectors(row, name + "_bucket")
    )
    return scaled(f"histogram_quantile({QUANTILE:g}, {pooled(rates, identity, quantiles.pairs, 'le')})", row.scale)


def pooled(vector: str, identity: Identity, pairs: Pairs | None, *more: str) -> str:
    """Add up series for each group of pods, or for each pod. more: labels that keep series apart."""
    if pairs is None:
        return f"sum {by(*identity, *more)} ({vector})"
    return f"sum {by(*group_labels(identity, pairs), *more)} ({grouped(vector, identity, pairs)})"


def _time(row: Series, identity: Identity) -> str:
    times = either(_believed(row, f"timestamp({text})", identity) for text in selectors(row, row.name))
    return f"max {by(*identity)} ({times})"


def _believed(row: Series, vector: str, identity: Identity) -> str:
    """Keep series of a shared name where the pod has the metric that only one product has."""
    return f"({vector} and on ({', '.join(identity)}) {row.beside})" if row.beside else vector


def _device(name: str) -> str:
    """Return the series of a metric of GPUs with the UUID where newer exporters write it, and a place only without."""
    moved = f'label_replace({name}, "UUID", "$1", "uuid", "(.+)")'
    return f'label_replace(label_join({moved}, "{_PLACE}", "/", {_PLACES}), "{_PLACE}", "", "UUID", ".+")'


_PLACE = "place"  # label that tells devices without a UUID apart
_PLACES = ", ".join(f'"{label}"' for label in gpus.PLACE_LABELS)
_DEVICE = ("UUID", *gpus.SLICE_LABELS, _PLACE)
# Whose presence shows that a device was read.
_GPU_CLOCK = (gpus.FB_USED, *(row.name for row in (*gpus.FB_RATIO, *gpus.ACTIVITY["tensor_active"])))


def _summed(gateway: Gateway, readings: Mapping[str, str]) -> str:
    """Compile the sum over the pods of a gateway, for each metric; a pod counts once, whoever scrapes it how often.

    readings: by metric.
    """
    labels = (METRIC, *gateway.labels(), *HOME_LABELS, "exported_namespace", *CLUSTER_LABELS)
    series = either(f'label_replace({reading}, "{METRIC}", "{name}", "", "")' for name, reading in readings.items())
    # What is scraped in no pod differs by its address; of a pod the address is whatever a job calls it.
    parted = f'label_replace({series}, "{_PLACE}", "$1", "instance", "(.+)")'
    parted = f'label_replace({parted}, "{_PLACE}", "", "pod", ".+")'
    return f"sum {by(*labels)} (max without ({', '.join((*_REPLICA_LABELS, *_JOB_LABELS))}) ({parted}))"


def selectors(row: Series, name: str) -> tuple[str, ...]:
    """Return the selectors for the series of a row under one name; no series passes two of them."""
    matchers = [
        f'{label}="{allowed[0]}"' if len(allowed) == 1 else f'{label}=~"{"|".join(allowed)}"'
        for label, allowed in row.where
    ]
    ways = [matchers]
    if row.foreign is not None:
        mark, own = row.foreign
        ways = [[f'{own}!=""', *ways[0]], [f'{own}="",{mark}=""', *ways[0]]]
    return tuple(f"{name}{{{','.join(way)}}}" if way else name for way in ways)


def scaled(expression: str, scale: float) -> str:
    return expression if scale == 1 else f"({expression} * {scale!r})"


def by(*labels: str) -> str:
    return f"by ({', '.join(dict.fromkeys(labels))})"


def either(alternatives: Iterable[str]) -> str:
    return " or ".join(alternatives)


def _believable(name: str, reading: str) -> str:
    """Leave out the series of a GPU metric whose reading no GPU can show."""
    return f"{reading} >= 0 <= {gpus.most(name):g}"


def duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
