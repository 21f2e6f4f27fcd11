"""The daemon's own metrics: kept per tick, rendered per scrape.

A tick keeps a reference to the record, and adds up what GPUs are used for. The series of workloads are built from
these on each scrape, one family at a time. `exported_metrics` lists the metrics.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from autoscaler.adapters.web import exported_metrics
from autoscaler.adapters.web.exported_metrics import BY_NAME, MAX_POOLS, MAX_SOURCES, MAX_WORKLOADS
from autoscaler.adapters.web.gpu_use import GpuUseRecorder
from autoscaler.adapters.web.metric_family import WORKLOAD_LABELS, Family
from autoscaler.adapters.web.node_groups import LABELS, by_labels
from autoscaler.adapters.web.quotas import COLUMNS, series
from autoscaler.adapters.web.quotas import LABELS as QUOTA_LABELS
from autoscaler.adapters.web.tick_values import (
    NONE,
    PENDING_CLASSES,
    RECOMMENDERS,
    SIGNALS,
    STAGES,
    NewChanges,
    binding_stage,
    bounded,
)
from autoscaler.adapters.web.workload_metrics import WORKLOADS
from autoscaler.core.model.chain import Cause, Link
from autoscaler.core.model.diagnosis import Diagnosis
from autoscaler.core.model.fleet import NodeGroups, Workload
from autoscaler.core.model.phases import NOT_STARTING, Phase
from autoscaler.core.model.quotas import Quotas
from autoscaler.core.model.weights import PodCache, Weights
from autoscaler.ports import Outcome, TickRecord

TICK_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OTHERS = "others"  # the label of sources past MAX_SOURCES
END = b"# EOF\n"  # ends an OpenMetrics answer
Labels = dict[str, str]


class Metrics:
    """Recorder of the metrics that Prometheus scrapes.

    `registry` takes further collectors of the process, such as the gRPC server's. mode: direct, keda, dry-run, demo.
    installation: name of the lease, "" without leader election.
    """

    def __init__(self, mode: str = "", installation: str = "") -> None:
        self.registry = CollectorRegistry()
        self._tick: TickRecord | None = None
        self.gpu_use = GpuUseRecorder()
        self._new_changes = NewChanges()
        self._sources: set[str] = set()

        self._ticks = self._counter("ticks_total")
        self._ticks.labels("ok")  # present from the start, so that a rate sees the first failure
        self._ticks.labels("failed")
        self._late_ticks = self._counter("late_ticks_total")
        self._tick_duration = self._histogram("tick_duration_seconds")
        self._queries = self._counter("source_queries_total")
        self._failures = self._counter("source_failures_total")
        self._source_duration = self._histogram("source_duration_seconds")
        self._changes = self._counter("changes_total")
        self._deletion_costs = self._counter("deletion_cost_patches_total")
        for outcome in ("written", "failed", "forbidden"):
            self._deletion_costs.labels(outcome)
        self._policy_problems = self._gauge("policy_problems")
        self._lost_ticks = self._counter("record_lost_ticks_total")
        self._stream_clients = self._gauge("stream_clients")
        self._state_saved_s = math.nan
        self.ticks = 0  # successful and failed ones; the rendered text changes with them
        self._gauge("info").labels(_version(), mode).set(1)
        ProcessCollector(registry=self.registry)
        self.registry.register(
            _TickCollector(installation, lambda: self._tick, lambda: self._state_saved_s, self.gpu_use)
        )

    def record(self, tick: TickRecord) -> None:
        self._tick = tick
        self.gpu_use.record(tick)
        self.ticks += 1
        self._ticks.labels("ok").inc()
        if tick.late:
            self._late_ticks.inc()
        self._tick_duration.observe(tick.duration_s)
        for report in tick.input.samples.reports:
            source = self._source(report.source)
            self._queries.labels(source).inc(report.queries)
            self._failures.labels(source).inc(report.failed)
            self._source_duration.labels(source).observe(report.duration_s)
        for outcome in self._new_changes.select(tick.outcomes):
            self._changes.labels(outcome.status.value, _direction(outcome)).inc()

    def failed(self, wall_s: float, error: BaseException) -> None:
        self.ticks += 1
        self._ticks.labels("failed").inc()

    def count_deletion_cost(self, outcome: str) -> None:
        """Count one patch of a pod's deletion cost."""
        self._deletion_costs.labels(outcome).inc()

    def count_lost_ticks(self, ticks: int) -> None:
        """Count ticks that could not be recorded. It may be called from any thread."""
        self._lost_ticks.inc(ticks)

    def set_policy_problems(self, count: int) -> None:
        """Set the number of errors in changed policy files; 0: none."""
        self._policy_problems.set(count)

    def set_stream_clients(self, count: int) -> None:
        self._stream_clients.set(count)

    def set_state_saved(self, wall_s: float) -> None:
        """Set the Unix time of the last saved state."""
        self._state_saved_s = wall_s

    def render(self, accept: str = "") -> tuple[str, AsyncIterator[bytes]]:
        """Return the content type that suits an Accept header, and the body in parts, one for each family.

        All series of workloads are of the same tick. Values are collected on the event loop; encoding them as text, the
        larger part of the work, runs in a thread.
        """
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version or a weight that is no number
            encode, content_type = choose_encoder("")
        return content_type, _parts(encode, self.registry)

    def _source(self, name: str) -> str:
        name = bounded(name)
        if name not in self._sources and len(self._sources) >= MAX_SOURCES:
            return OTHERS
        self._sources.add(name)
        return name

    def _counter(self, name: str) -> Counter:
        family = BY_NAME[name]
        return Counter(family.full_name, family.meaning, family.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        family = BY_NAME[name]
        return Gauge(family.full_name, family.meaning, family.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        family = BY_NAME[name]
        return Histogram(
            family.full_name, family.meaning, family.labels, buckets=TICK_BUCKETS_S, registry=self.registry
        )


class _TickCollector(Collector):
    """Collector of the series of the last tick."""

    def __init__(
        self,
        installation: str,
        last: Callable[[], TickRecord | None],
        saved_s: Callable[[], float],
        gpu_use: GpuUseRecorder,
    ) -> None:
        self._installation = {"installation": installation}
        self._last = last
        self._saved_s = saved_s
        self._gpu_use = gpu_use
        self._workloads: tuple[Workload, ...] | None = None
        self._listed: tuple[list[int], list[Labels]] = ([], [])

    def describe(self) -> list[Metric]:
        return []  # registering must not collect values

    def collect(self) -> Iterator[Metric]:
        tick = self._last()
        if tick is None:
            yield _family("leader", [(self._installation, 0.0)])
            return
        rows, labels = self._labels(tick.input.fleet.workloads)
        of_workloads, of_pools = self._gpu_use.of_workloads(rows, labels), [*self._gpu_use.of_pools()]
        yield _family("leader", [(self._installation, float(tick.leading))])  # another tick may come from here on
        yield _family("last_tick_timestamp_seconds", [({}, tick.wall_s)])
        yield _family("state_saved_timestamp_seconds", [({}, self._saved_s())])
        yield _family("workloads", [({}, float(len(tick.input.fleet.workloads)))])
        yield _family("unlisted_workloads", [({}, float(len(tick.input.fleet.workloads) - len(rows)))])
        yield _family("untrusted_workloads", [({}, float(np.count_nonzero(~tick.decision.trusted)))])
        yield _family("pods", [({}, float(len(tick.input.fleet.pods)))])
        yield _family("source_problems", _source_problems(tick))
        yield from _pools(tick)
        yield _family("pool_gpu_seconds_total", of_pools)
        yield from _node_groups(tick.input.fleet.groups)
        yield from _quotas(tick.input.fleet.quotas)
        yield from _weights(tick.input.fleet.weights)
        yield _family("workload_info", _infos(tick, rows, labels))
        yield _family("signal_recommended_replicas", _recommendations(tick, rows, labels))
        yield _family("recommender", _recommenders(tick, rows, labels))
        yield _family("pending_replicas", _pending(tick, rows, labels))
        yield _family("prewarm_forecast_timestamp_seconds", _forecasts(tick, rows, labels))
        yield _family("prewarm_link_timestamp_seconds", _links(tick, rows, labels))
        yield _family("cold_start_phase_seconds", _phases(tick, rows, labels))
        yield _family("cold_start_by_weights_seconds", _by_weights(tick, rows, labels))
        yield _family("starting_pods", _starting(tick, rows, labels))
        for name, samples in of_workloads.items():
            yield _family(name, samples)
        yield _family("limited_by", _bounds(tick, rows, labels))
        yield _family("gpu_diagnosis_replicas", _diagnoses(tick, rows, labels))
        yield _family("other_owner", _other_owners(tick, rows, labels))
        for family in WORKLOADS:
            if family.column is not None:
                values = np.asarray(family.column(tick), dtype=np.float64)[rows].tolist()
                yield _metric(family, zip(labels, values, strict=True))

    def _labels(self, workloads: tuple[Workload, ...]) -> tuple[list[int], list[Labels]]:
        """Return the listed rows and their labels, cached until the fleet changes.

        Two workloads with the same labels would fail the whole scrape, so the second one is left out.
        """
        if workloads is not self._workloads:
            listed: dict[tuple[str, ...], int] = {}
            for row, workload in enumerate(workloads[:MAX_WORKLOADS]):
                ref = workload.ref
                listed.setdefault((bounded(ref.namespace), bounded(ref.name), bounded(ref.kind)), row)
            labels = [dict(zip(WORKLOAD_LABELS, key, strict=True)) for key in listed]
            self._workloads, self._listed = workloads, (list(listed.values()), labels)
        return self._listed


def _infos(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    for row, label in zip(rows, labels, strict=True):
        service = bounded(tick.input.fleet.workloads[row].service)
        yield {**label, "policy": bounded(tick.policies[row]), "service": service}, 1.0


def _recommenders(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    for label, recommender in zip(labels, tick.decision.recommender[rows].tolist(), strict=True):
        yield {**label, "recommender": RECOMMENDERS[recommender]}, 1.0


def _recommendations(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    for signal, column in zip(SIGNALS, tick.decision.recommendations, strict=True):
        for label, value in zip(labels, column[rows].tolist(), strict=True):
            yield {**label, "signal": signal}, value


def _pending(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    for name, column in zip(PENDING_CLASSES, tick.decision.pending_by_class, strict=True):
        for label, value in zip(labels, column[rows].tolist(), strict=True):
            if value > 0:
                yield {**label, "class": name}, value


def _links(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    for link, column in zip(Link, tick.decision.chain.starts_s, strict=True):
        starts_s = np.round(column[rows] - tick.now_s + tick.wall_s).tolist()
        for label, value in zip(labels, starts_s, strict=True):
            if not math.isnan(value):
                yield {**label, "link": link.published}, value


def _forecasts(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    chain = tick.decision.chain
    due_s = np.round(chain.due_s[rows] - tick.now_s + tick.wall_s).tolist()
    for label, cause, value in zip(labels, chain.cause[rows].tolist(), due_s, strict=True):
        if cause != Cause.WINDOW and not math.isnan(value):
            yield {**label, "load": Cause(cause).published}, value


def _phases(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    starts = tick.decision.starts
    seen = [(row, label) for row, label in zip(rows, labels, strict=True) if starts.seen[row] > 0]
    for quantile, column in (("0.5", starts.p50_s), ("0.9", starts.p90_s)):
        for phase in Phase:
            for row, label in seen:
                yield {**label, "phase": phase.published, "quantile": quantile}, round(float(column[phase, row]), 3)


def _by_weights(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    starts = tick.decision.starts
    for row, label in zip(rows, labels, strict=True):
        if starts.cache[row] != PodCache.UNKNOWN:
            for state in (PodCache.ABSENT, PodCache.HELD):
                yield {**label, "weights": state.published}, round(float(starts.by_cache_p90_s[state, row]), 3)


def _starting(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    phase, workload = tick.decision.starts.pod_phase, tick.input.fleet.pod_workload
    starting = phase != NOT_STARTING
    pairs, counts = np.unique(np.stack([workload[starting], phase[starting]]), axis=1, return_counts=True)
    label_of = dict(zip(rows, labels, strict=True))
    for row, of_pods, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        if row in label_of:
            yield {**label_of[row], "phase": Phase(of_pods).published}, float(count)


def _bounds(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    for label, stage in zip(labels, binding_stage(tick.decision)[rows].tolist(), strict=True):
        if stage != NONE:
            yield {**label, "stage": STAGES[stage]}, 1.0


def _diagnoses(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    found = tick.decision.diagnosed
    for row, label in zip(rows, labels, strict=True):
        diagnosis = tuple(Diagnosis)[found.diagnosis[row]]
        if diagnosis.known:
            witness = "gpu_util" if found.weak[row] else "counters"
            yield {**label, "diagnosis": diagnosis.state, "witness": witness}, float(found.replicas[row])


def _other_owners(tick: TickRecord, rows: Sequence[int], labels: Sequence[Labels]) -> Iterator[tuple[Labels, float]]:
    for row, label in zip(rows, labels, strict=True):
        if tick.input.fleet.other_owner[row]:
            yield {**label, "owner": bounded(tick.input.fleet.other_owner[row])}, 1.0


def _source_problems(tick: TickRecord) -> Iterator[tuple[Labels, float]]:
    problems: dict[str, int] = {}
    for report in tick.input.samples.reports[:MAX_SOURCES]:
        source = bounded(report.source)
        problems[source] = problems.get(source, 0) + len(report.problems)
    for source, count in problems.items():
        yield {"source": source}, float(count)


def _pools(tick: TickRecord) -> Iterator[Metric]:
    fleet = tick.input.fleet
    named: dict[tuple[str, ...], int] = {}
    for index, pool in enumerate(fleet.pools[:MAX_POOLS]):
        named.setdefault((bounded(pool.resource), bounded(pool.product), bounded(pool.nodes)), index)
    labels = [dict(zip(("resource", "product", "nodes"), names, strict=True)) for names in named]
    gpus = tick.decision.replicas * fleet.gpus_per_replica
    counted = (fleet.pool >= 0) & ~np.isnan(gpus)
    desired = np.bincount(fleet.pool[counted], weights=gpus[counted], minlength=len(fleet.pools))
    for name, column in (("pool_gpus", fleet.pool_gpus), ("pool_desired_gpus", desired)):
        yield _family(name, zip(labels, column[list(named.values())].tolist(), strict=True))


def _node_groups(groups: NodeGroups) -> Iterator[Metric]:
    found = by_labels(groups, MAX_POOLS)
    labels = [dict(zip(LABELS, names, strict=True)) for names in found]
    columns = {
        "node_group_gpus": groups.allocatable,
        "node_group_used_gpus": groups.used,
        "node_group_others_gpus": groups.used_by_others,
        "node_group_addable_gpus": np.where(np.isinf(groups.can_add), np.nan, groups.can_add),
    }
    for name, column in columns.items():
        yield _family(name, zip(labels, (float(column[rows].sum()) for rows in found.values()), strict=True))


def _quotas(sources: Sequence[Quotas]) -> Iterator[Metric]:
    found = series(sources, MAX_POOLS)
    labels = [dict(zip(QUOTA_LABELS, names, strict=True)) for names in found]
    for column, family in zip(COLUMNS, exported_metrics.QUOTAS, strict=True):
        amounts = (row[column] for row in found.values())
        yield _metric(
            family,
            ((label, amount) for label, amount in zip(labels, amounts, strict=True) if amount < math.inf),
        )


def _weights(weights: Weights | None) -> Iterator[Metric]:
    if weights is None:
        return
    found = [(bounded(source), status) for source, status in zip(weights.sources, weights.status, strict=False)][
        :MAX_POOLS
    ]
    states = (
        ({"source": source, "state": state}, float(nodes))
        for source, status in found
        for state, nodes in (
            ("held", status.held),
            ("waiting", status.waiting),
            ("fetching", status.fetching),
            ("failed", status.failed),
            ("wished", status.wished),
        )
        if nodes is not None
    )
    yield _family("weights_nodes", states)
    if weights.wishes is not None:
        missing = (({"source": source}, float(status.missing)) for source, status in found)
        yield _family("weights_missing_replicas", missing)
        yield _family("weights_wish_writes_total", [({}, float(weights.wishes.writes))])


def _family(name: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    return _metric(BY_NAME[name], samples)


def _metric(family: Family, samples: Iterable[tuple[Labels, float]]) -> Metric:
    metric = Metric(family.full_name.removesuffix("_total"), family.meaning, family.type)
    for labels, value in samples:
        if not math.isnan(value):  # unknown values are absent
            metric.add_sample(family.full_name, labels, value)
    return metric


class _OneFamily(Collector):
    """Collector of one metric family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def _parts(encode: Callable[[Collector], bytes], registry: CollectorRegistry) -> AsyncIterator[bytes]:
    """Encode family by family: ten thousand workloads make some 35 MB, too much to hold at once."""
    ended = False
    for metric in registry.collect():
        part = await asyncio.to_thread(encode, _OneFamily(metric))
        ended = part.endswith(END)
        yield part.removesuffix(END)
    if ended:
        yield END


def _direction(outcome: Outcome) -> str:
    return "up" if outcome.change.after > outcome.change.before else "down"


def _version() -> str:
    try:
        return version("vllm-autoscaler")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"
