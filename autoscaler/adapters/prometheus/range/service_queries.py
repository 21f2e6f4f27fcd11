"""Range queries over all services of a backend at once: the server sums the pods of each service.

The server knows the service of a pod only by the pod's name without the suffix that a controller appends, as in
`promql.pod_groups`. Clusters and namespaces tell services apart. A pod that two jobs scrape counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np

from autoscaler.adapters.prometheus.decode import Vector
from autoscaler.adapters.prometheus.duplicates import cluster_of
from autoscaler.adapters.prometheus.pod_labels import NAMESPACES, TRUSTED, namespace_label, scrape_of
from autoscaler.adapters.prometheus.promql.conventions import convention_query, read_conventions
from autoscaler.adapters.prometheus.promql.engines import (
    Over,
    bounds_query,
    engine_presence,
    for_identity,
    over_query,
    presence_rows,
)
from autoscaler.adapters.prometheus.promql.expressions import by, in_namespaces, or_join, selectors
from autoscaler.adapters.prometheus.promql.gpus import MAX_DEVICES, POOL, devices_query, pool_of
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, METRIC, TARGET, Identity, names_pods
from autoscaler.adapters.prometheus.promql.matchers import add_matchers
from autoscaler.adapters.prometheus.promql.pod_groups import GROUP, LabelPairs, group_labels, with_group_label
from autoscaler.adapters.prometheus.promql.within_objective import (
    MAX_BOUNDS,
    Bounds,
    count_expression,
    read_bounds,
)
from autoscaler.adapters.prometheus.range.fair_query import query_fairly
from autoscaler.adapters.prometheus.range.reader import RangeReader, Rows
from autoscaler.catalog.engines import ENGINES, WITHIN, Engine
from autoscaler.catalog.series import POD_LABELS, Labels, Readings
from autoscaler.catalog.spellings import Spelling, engines_spelled, spelled
from autoscaler.config.findings import name_some
from autoscaler.core.model.fleet import Pool
from autoscaler.core.table.columns import FloatColumn

MOMENTS = 24
"""Evaluations of the queries for labels and names, which may change within the span."""

MOST_START_S = 7200.0
"""A pod that was ready later after its creation has probably been ready before."""

PODS = "pods"
MEANS = ("running", "waiting", "kv_usage")
GROWTHS = ("finished", "first_tokens", "prompt_tokens", "generation_tokens", "gap_s", "gaps", "itl_judged")
COUNTED_WITHIN = ("ttft_met", "itl_met")
ORDERED = "ordered"
COLUMNS = (PODS, *MEANS, *GROWTHS, *COUNTED_WITHIN, ORDERED)


class ServiceName(NamedTuple):
    """A service as its series name it."""

    cluster: str  # "": series name none
    namespace: str  # or the scrape job, if series name no pods
    name: str

    def __str__(self) -> str:
        return "/".join(filter(None, self))

    @property
    def space(self) -> str:
        """Return its namespace, with the cluster if series name one."""
        return "/".join(filter(None, self[:2]))


class ServiceQuery(NamedTuple):
    """A query with one series for each service."""

    column: str
    expression: str


class Objective(NamedTuple):
    """The limits within which requests are counted, seconds; NaN: none."""

    ttft_s: float
    itl_s: float


def service_queries(
    reader: RangeReader,
    found: FoundEngines,
    objectives: Sequence[Objective],
    span_s: tuple[float, float],
    step_s: float,
    namespaces: Sequence[str] = (),
) -> tuple[ServiceQuery, ...]:
    """Return the queries for all columns of the engines that were found in a span of Unix time.

    The value at a time is that of the step before it: the mean of a gauge, the growth of a counter. Raises Unavailable.
    objectives: each gives columns of its own; see `column_of`.
    namespaces: those that are wanted; none: all. Where several labels name namespaces, others are answered too.
    """
    queries: list[ServiceQuery] = []
    for engine, identity in found.engines:
        queries += _engine_queries(reader, engine, identity, found.pairs, objectives, span_s, step_s)
    if any(names_pods(identity) for _, identity in found.engines):
        present = {engine.name: engine for engine, _ in found.engines}
        queries.append(ServiceQuery(ORDERED, ordered_query(engine_presence(present.values()))))
    return tuple(_only(query, found, namespaces) for query in queries)


def _only(query: ServiceQuery, found: FoundEngines, namespaces: Sequence[str]) -> ServiceQuery:
    """Return the query for some namespaces alone, as far as one label names them in all its series."""
    labels = {label for label, _ in found.pairs} | ({"namespace"} if query.column == ORDERED else set())
    if not namespaces or len(labels) != 1 or not all(names_pods(identity) for _, identity in found.engines):
        return query
    return query._replace(expression=add_matchers(query.expression, f'{labels.pop()}=~"{"|".join(namespaces)}"'))


class FoundEngines(NamedTuple):
    """The engines that reported, and the labels that name their pods."""

    engines: tuple[tuple[Engine, Identity], ...]  # with the labels of their series
    pairs: LabelPairs
    spellings: tuple[Spelling, ...]  # of their metrics


def find_engines(reader: RangeReader, spellings: tuple[Spelling, ...], span_s: tuple[float, float]) -> FoundEngines:
    """Return the engines that reported within a span of Unix time. Raises Unavailable."""
    start_s, end_s = span_s
    step_s_of_labels = moments_s(span_s)
    asked = reader.query(convention_query(spellings), start_s, end_s, step_s_of_labels)
    conventions = read_conventions({row["metric"].get(METRIC, ""): float(row["values"][:, 1].max()) for row in asked})
    table = engines_spelled(conventions.spellings)
    present = _present_engines(reader, table.values(), start_s, end_s, step_s_of_labels)
    pairs = conventions.pod_labels
    pods: Identity = (*dict.fromkeys(label for pair in pairs for label in pair), "job", "exported_job", *CLUSTER_LABELS)
    engines = (
        (table[name], pods if names_pods(identity) else TARGET)
        for identity in conventions.identities
        for name in present
    )
    return FoundEngines(tuple(engines), pairs, conventions.spellings)


def ordered_query(present: str) -> str:
    """Return the query for the pods of each Deployment and StatefulSet beside engines, from kube-state-metrics.

    present: an expression with a series for each engine process. A pod that starts is ordered, and reports no engine.
    """
    place = by("namespace", *CLUSTER_LABELS, GROUP)
    return or_join(
        f'max {place} (label_replace({name}, "{GROUP}", "$1", "{label}", "(.+)")) '
        f"and on (namespace) (group by (namespace) ({in_namespaces(present)}))"
        for name, label in (
            ("kube_deployment_status_replicas", "deployment"),
            ("kube_statefulset_status_replicas", "statefulset"),
        )
    )


def read_scrape_interval(
    reader: RangeReader, spellings: tuple[Spelling, ...], span_s: tuple[float, float]
) -> float | None:
    """Return the usual time between two scrapes of an engine; None: no engine reported. Raises Unavailable.

    It is that of most namespaces, whatever the number of their engines.
    """
    window_s = 600.0
    rows = [row for engine in ENGINES.values() for row in presence_rows(spelled(engine, spellings))]
    counts = or_join(Over("count_over_time", window_s).apply(text) for row in rows for text in selectors(row, row.name))
    spaces = f"quantile {by(*NAMESPACES)} (0.25, {counts})"  # a pod may write of many, so each scrape counts once
    query = f"quantile(0.5, quantile {by(*TRUSTED)} (0.25, {spaces}))"
    asked = reader.query(query, *span_s, moments_s(span_s))
    return (
        float(window_s / max(np.median(np.concatenate([row["values"][:, 1] for row in asked])), 1.0)) if asked else None
    )


class Devices(NamedTuple):
    """The devices of a replica."""

    per_replica: float
    pool: Pool


def read_devices(
    reader: RangeReader, span_s: tuple[float, float], problems: dict[str, None]
) -> dict[ServiceName, Devices]:
    """Return the devices of each service, as DCGM reported them at any time of the span. Raises Unavailable.

    Of several pools the one that the most pods used at the latest time counts.
    """
    pod: Identity = (*chain.from_iterable(POD_LABELS), *CLUSTER_LABELS)
    grouped = with_group_label(devices_query(CLUSTER_LABELS), pod, POD_LABELS)
    labels = by(*group_labels(pod, POD_LABELS), *POOL)
    found: dict[ServiceName, tuple[float, Devices]] = {}
    rows = query_fairly(reader, f"max {labels} ({grouped})", *span_s, moments_s(span_s), problems)
    for name, row in believed(rows, lambda row: (row["values"][-1, 1], pool_of(row["metric"])), problems):
        at_s, count = row["values"][-1].tolist()
        if name.name and 1 <= count <= MAX_DEVICES:
            found[name] = max(
                found.get(name, (0.0, Devices(0, Pool("")))), (at_s, Devices(count, pool_of(row["metric"])))
            )
    return {name: devices for name, (_, devices) in found.items()}


def read_cold_starts(
    reader: RangeReader, spellings: tuple[Spelling, ...], span_s: tuple[float, float], problems: dict[str, None]
) -> dict[ServiceName, float]:
    """Return the median seconds from the creation of a pod until it was ready, of each service. Raises Unavailable.

    From kube-state-metrics, which names pods by `namespace` and `pod`. A pod that was ready, failed and is ready again
    shows a longer time than its start took, so the median over pods and times counts.
    """
    pair = (("namespace", "pod"),)
    pod: Identity = ("namespace", "pod", *CLUSTER_LABELS)
    rows = [row for engine in ENGINES.values() for row in presence_rows(spelled(engine, spellings))]
    present = or_join(text for row in rows for text in selectors(row, row.name))
    took, created = (f"max {by(*pod)} ({name})" for name in ("kube_pod_status_ready_time", "kube_pod_created"))
    of_engines = f"(({took}) - ({created})) and on (namespace, pod) (group by (namespace, pod) ({present}))"
    query = f"quantile {by(*group_labels(pod, pair))} (0.5, {with_group_label(of_engines, pod, pair)})"
    found: dict[ServiceName, list[FloatColumn]] = {}
    for row in query_fairly(reader, query, *span_s, moments_s(span_s), problems):
        seconds = row["values"][:, 1]
        found.setdefault(service_of(row["metric"]), []).append(seconds[(seconds > 0) & (seconds <= MOST_START_S)])
    medians = {name: np.concatenate(parts) for name, parts in found.items()}
    return {name: float(np.median(each)) for name, each in medians.items() if len(each)}


POLICY_LABEL = "annotation_vllm_autoscaler_io_policy"


def read_policy_names(
    reader: RangeReader, span_s: tuple[float, float], problems: dict[str, None]
) -> dict[ServiceName, str]:
    """Return the policy that each workload names in its annotation, the last one. Raises Unavailable.

    kube-state-metrics shows annotations that `--metric-annotations-allowlist` names.
    """
    by_label = by(*NAMESPACES, *CLUSTER_LABELS, GROUP, POLICY_LABEL)
    query = or_join(
        f'max {by_label} (label_replace({name}{{{POLICY_LABEL}!=""}}, "{GROUP}", "$1", "{label}", "(.+)"))'
        for name, label in (
            ("kube_deployment_annotations", "deployment"),
            ("kube_statefulset_annotations", "statefulset"),
        )
    )
    found: dict[ServiceName, tuple[float, str]] = {}
    rows = query_fairly(reader, query, *span_s, moments_s(span_s), problems)
    for name, row in believed(rows, lambda row: row["metric"][POLICY_LABEL], problems):
        last = (float(row["values"][-1, 0]), row["metric"][POLICY_LABEL])
        found[name] = max(found.get(name, last), last)
    return {name: policy for name, (_, policy) in found.items()}


def service_of(labels: Labels) -> ServiceName:
    """Return the service of a series of the answer to a query of `service_queries`."""
    cluster = cluster_of(labels)
    namespace = labels.get(namespace_label(labels), "")
    name = labels.get(GROUP, "")
    if not namespace and labels.get("job"):
        namespace, name = "", labels["job"]
    return ServiceName(cluster.name if cluster else "", namespace, name)


def believed(
    rows: Rows, value: Callable[[dict[str, Any]], Hashable], problems: dict[str, None]
) -> Iterator[tuple[ServiceName, dict[str, Any]]]:
    """Yield the rows of each service: those of its own scrape, else those of others. Of others that differ, none.

    value: what rows of one scrape are compared by. Contradictions are told in `problems`.
    """
    told: dict[ServiceName, dict[str, Rows]] = {}
    for row in rows:
        told.setdefault(service_of(row["metric"]), {}).setdefault(scrape_of(row["metric"]), []).append(row)
    odd: dict[str, list[str]] = {}
    for name, scrapes in told.items():
        chosen = [scrapes[""]] if "" in scrapes else [*scrapes.values()]
        if len({frozenset(map(value, of_scrape)) for of_scrape in chosen}) > 1:
            odd.setdefault(name_some(sorted(scrapes)), []).append(str(name))
            continue
        yield from ((name, row) for row in chain.from_iterable(chosen))
    for scrapes_of, names in odd.items():
        problems[f"pods of {scrapes_of} contradict each other about {name_some(names)}: none is believed"] = None


def pod_identity(identity: Identity) -> Identity:
    """Return the labels that name a pod without those of the scrape."""
    jobs = ("job", "exported_job") if names_pods(identity) else ()
    return tuple(label for label in identity if label not in jobs)


def _present_engines(
    reader: RangeReader, engines: Iterable[Engine], start_s: float, end_s: float, step_s: float
) -> tuple[str, ...]:
    query = or_join(
        f"label_replace(count({or_join(text for row in presence_rows(engine) for text in selectors(row, row.name))}), "
        f'"{METRIC}", "{engine.name}", "", "")'
        for engine in engines
    )
    found = {row["metric"].get(METRIC, "") for row in reader.query(query, start_s, end_s, step_s)}
    return tuple(name for name in ENGINES if name in found)


def _engine_queries(
    reader: RangeReader,
    engine: Engine,
    identity: Identity,
    pairs: LabelPairs,
    objectives: Sequence[Objective],
    span_s: tuple[float, float],
    step_s: float,
) -> Iterator[ServiceQuery]:
    def summed(function: str, expression: str) -> str:
        """Return the services of an expression with a series per pod; a pod that two jobs scrape counts once."""
        pod = pod_identity(identity)
        once = f"max {by(*pod)} ({expression})"
        return f"{function} {by(*group_labels(pod, pairs))} ({with_group_label(once, pod, pairs)})"

    mean, growth = Over("avg_over_time", step_s), Over("increase", step_s)
    yield ServiceQuery(PODS, summed("count", over_query(engine, "running", identity, Over("last_over_time", step_s))))
    for column in MEANS:
        if column in engine.readings:
            function = "avg" if column == "kv_usage" else "sum"
            yield ServiceQuery(column, summed(function, over_query(engine, column, identity, mean)))
    for column in GROWTHS:
        if column in engine.readings:
            yield ServiceQuery(column, summed("sum", over_query(engine, column, identity, growth)))
    engine = for_identity(engine, identity)
    for column in COUNTED_WITHIN:
        if column not in engine.readings:
            continue
        readings = engine.readings[column]
        bounds = _bounds(reader, readings, span_s)
        for number, objective in enumerate(objectives):
            limit_s = getattr(objective, WITHIN[column])
            if math.isnan(limit_s):
                continue
            if expression := count_expression(column, readings, identity, limit_s, bounds, growth):
                yield ServiceQuery(column_of(column, number), summed("sum", expression))


def column_of(column: str, number: int) -> str:
    """Return the name of a column of `COUNTED_WITHIN` for an objective by its number."""
    return f"{column}#{number}" if number else column


def _bounds(reader: RangeReader, readings: Readings, span_s: tuple[float, float]) -> Bounds:
    """Return the bounds of a histogram in any part of the span."""
    start_s, end_s = span_s
    rows: list[dict[str, Any]] = reader.query(bounds_query(readings, MAX_BOUNDS), start_s, end_s, moments_s(span_s))
    labels = [msgspec.json.encode(row["metric"]) for row in rows]
    counts = np.array([row["values"][:, 1].max() for row in rows], dtype=np.float64)
    return read_bounds(Vector(end_s, labels, counts), readings[0].scale)


def moments_s(span_s: tuple[float, float]) -> float:
    return max(math.ceil((span_s[1] - span_s[0]) / MOMENTS), 1.0)
