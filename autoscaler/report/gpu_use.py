"""What GPUs were used for over a span, by namespace: from a record, from the daemon's series, or estimated."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autoscaler.adapters.prometheus.owners import name_in_pods
from autoscaler.adapters.prometheus.range.own_use import CAUSE, STATE, GpuUseRow
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.adapters.record.reader import Record
from autoscaler.adapters.record.rows import USE_S
from autoscaler.core.gpu_use import IDLE, GpuState, IdleCause
from autoscaler.core.model.money import Money, Price
from autoscaler.core.table.columns import or_zero
from autoscaler.report.history import Span
from autoscaler.report.report import FleetReport

USE_OF_DAEMON = "as the daemon counted it, tick by tick"
USE_ESTIMATED = (
    "estimated from the history of engines and DCGM, since no daemon counted it; what is ready beyond the load counts "
    "as serving where DCGM shows activity"
)
MOST_NAMESPACES = 20
MOST_CAUSES = 4
IDLE_STATES = {GpuState(state).published for state in IDLE}
TITLES = {cause.published: cause.title for cause in IdleCause}
QUERY = (
    "SELECT namespace, workloads.name, gpu_use.kind, gpu_use.name, sum(gpu_s), sum(usd), count(*) - count(usd) "
    "FROM gpu_use JOIN workloads ON id = workload WHERE from_s > ? AND from_s < ? "
    "GROUP BY workload, gpu_use.kind, gpu_use.name"
)


@dataclass
class NamespaceUse:
    """GPU-hours of one namespace."""

    states: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by published GpuState
    causes: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # of idle hours, by IdleCause
    usd: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # of idle hours, by workload; NaN: none

    @property
    def total_h(self) -> float:
        """GPU-hours that are paid for: `ordered` has no GPU yet."""
        return sum(hours for state, hours in self.states.items() if state != GpuState.ORDERED.published)

    @property
    def idle_h(self) -> float:
        return sum(self.states.get(state, 0.0) for state in IDLE_STATES)

    @property
    def unknown_h(self) -> float:
        return self.states.get(GpuState.UNKNOWN.published, 0.0)

    def idle_words(self, source: str) -> str:
        """Return how many hours were idle; "": not known. source: where the hours come from.

        None that were seen say nothing where the others are unknown or estimated: headroom counts as serving there.
        """
        is_estimate = source == USE_ESTIMATED
        if not self.idle_h and (self.unknown_h or is_estimate):
            return ""
        return f"{'at least ' if is_estimate else ''}{self.idle_h:,.1f}"

    @property
    def cost(self) -> Money:
        """Return what the idle hours cost."""
        return Money.sum((name, Price(paid)) for name, paid in sorted(self.usd.items()))


def by_namespace(rows: Iterable[GpuUseRow]) -> dict[str, NamespaceUse]:
    """Add up rows; the namespaces with the most idle GPU-hours come first."""
    found: dict[str, NamespaceUse] = defaultdict(NamespaceUse)
    for row in rows:
        use = found[row.namespace]
        sums = use.states if row.kind == STATE else use.causes
        sums[row.name] += row.gpu_s / 3600
        if row.kind == STATE and row.name in IDLE_STATES:
            use.usd[f"{row.namespace}/{row.workload}"] += row.usd
    return dict(sorted(found.items(), key=lambda each: (-each[1].idle_h, each[0])))


def read_use(record: Record, span: Span, namespaces: tuple[str, ...]) -> tuple[GpuUseRow, ...]:
    """Return what a record tells; (): nothing. namespaces: (): all."""
    rows = record.query(QUERY, span.start_s - USE_S, span.end_s)  # all that overlap the span
    return tuple(
        GpuUseRow(namespace, workload, kind, name, gpu_s, math.nan if unpriced or paid is None else paid)
        for _, (namespace, workload, kind, name, gpu_s, paid, unpriced) in rows
        if not namespaces or namespace in namespaces
    )


def of_services(
    rows: Iterable[GpuUseRow], services: Sequence[ServiceName], whole_namespaces: bool
) -> tuple[GpuUseRow, ...]:
    """Return the rows of some services.

    whole_namespaces: also those of workloads beside them that no engine reported of, as while they start or fail.
    """
    own = {(name.space, name.name) for name in services}
    spaces = {name.space for name in services} if whole_namespaces else set()
    return tuple(row for row in rows if row.namespace in spaces or (row.namespace, name_in_pods(row.workload)) in own)


def estimate_use(report: FleetReport) -> tuple[GpuUseRow, ...]:
    """Estimate the use from the history of engines and DCGM, where no daemon counted. The states add up to GPU-hours.

    Warming is what was ordered and did not report. Of what reported, the share that was loaded and idle where DCGM
    showed both counts for all of it; without DCGM this is unknown. Why a GPU was idle is known of starts alone.
    """
    load, facts, hours = report.load, report.facts, report.load.span.step_s / 3600
    seen = load.seen
    ordered, pods = (np.where(seen, or_zero(each), 0.0).astype(np.float64) for each in (load.ordered, load.pods))
    warming = np.maximum(ordered - pods, 0.0).sum(axis=0) * hours
    ready = np.minimum(pods, ordered).sum(axis=0) * hours
    story = report.gpus
    judged = np.zeros(len(report.services)) if story is None else story.hours.judged_h
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.full(len(judged), np.nan) if story is None else story.hours.idle_h / judged
    rows = []
    for row, name in enumerate(report.services):
        known = bool(judged[row] > 0)
        idle = ready[row] * share[row] if known else 0.0
        parts = {
            (STATE, GpuState.WARMING.published): warming[row],
            (STATE, GpuState.LOADED_IDLE.published): idle,
            (STATE, (GpuState.SERVING if known else GpuState.UNKNOWN).published): ready[row] - idle,
            (CAUSE, IdleCause.COLD_START.published): warming[row],
        }
        rate = float(facts.usd_per_hour[row])
        for (kind, state), replica_h in parts.items():
            if replica_h > 0:
                usd = replica_h * rate if kind == STATE else math.nan
                rows.append(GpuUseRow(name.space, name.name, kind, state, replica_h * facts.gpus[row] * 3600, usd))
    return tuple(rows)


def say_use(rows: Iterable[GpuUseRow], source: str) -> tuple[str, ...]:
    """Say for each namespace how many GPU-hours it had, how many were idle, what they cost, and what kept them.

    source: where the rows come from.
    """
    found = list(by_namespace(rows).items())
    said = [_say(*each, source) for each in found[:MOST_NAMESPACES]]
    if rest := found[MOST_NAMESPACES:]:
        least = "at least " if source == USE_ESTIMATED or any(use.unknown_h for _, use in rest) else ""
        idle_h = sum(use.idle_h for _, use in rest)
        said.append(f"idle GPUs of {len(rest)} more namespaces: {least}{idle_h:,.1f} GPU-hours")
    return tuple(said)


def _say(namespace: str, use: NamespaceUse, source: str) -> str:
    loaded_h = use.states.get(GpuState.LOADED_IDLE.published, 0.0)
    words = f"GPUs of {namespace}: {use.total_h:,.1f} GPU-hours"
    idle = use.idle_words(source)
    if not idle:
        return f"{words}; how many were idle is not known"
    words += f", of which {idle} idle"
    if loaded_h:
        words += f" ({loaded_h:,.1f} loaded, not active)"
    if use.unknown_h:
        words += f", and of {use.unknown_h:,.1f} it is not known"
    if not use.idle_h:
        return words
    largest = sorted(use.causes.items(), key=lambda each: (-each[1], each[0]))[:MOST_CAUSES]
    unnamed = use.idle_h - sum(use.causes.values())
    kept = [f"{TITLES.get(name, name)} {hours:,.1f}" for name, hours in largest]
    kept += [f"not known {unnamed:,.1f}"] if unnamed > 0.05 else []
    return f"{words}, {use.cost.say('workload')}; kept by: {', '.join(kept)}"
