"""What GPUs were used for in the span of a record: a sentence for each namespace."""

from __future__ import annotations

import math
from collections import defaultdict

from autoscaler.adapters.record.reader import Record
from autoscaler.adapters.record.rows import USE_S
from autoscaler.core.gpu_use import IDLE, GpuState, IdleCause
from autoscaler.core.model.money import Money, Price
from autoscaler.report.history import Span

MOST_NAMESPACES = 20
MOST_CAUSES = 4
IDLE_STATES = {GpuState(state).published for state in IDLE}
TITLES = {cause.published: cause.title for cause in IdleCause}
QUERY = (
    "SELECT namespace, workloads.name, gpu_use.kind, gpu_use.name, sum(gpu_s), sum(usd), count(*) - count(usd) "
    "FROM gpu_use JOIN workloads ON id = workload WHERE from_s > ? AND from_s < ? "
    "GROUP BY workload, gpu_use.kind, gpu_use.name"
)


def read_use(record: Record, span: Span, namespaces: tuple[str, ...]) -> tuple[str, ...]:
    """Say for each namespace how many GPU-hours it had, how many were idle, what they cost, and what kept them.

    The namespaces with the most idle GPU-hours come first; empty: nothing is recorded. namespaces: (): all.
    """
    hours: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # by namespace; by state
    causes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    usd: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # of idle hours; by workload
    rows = record.query(QUERY, span.start_s - USE_S, span.end_s)  # all that overlap the span
    for _, (namespace, workload, kind, name, gpu_s, paid, unpriced) in rows:
        if namespaces and namespace not in namespaces:
            continue
        (hours if kind == "state" else causes)[namespace][name] += gpu_s / 3600
        if kind == "state" and name in IDLE_STATES:
            usd[namespace][f"{namespace}/{workload}"] += math.nan if unpriced else paid
    idle = {name: sum(states[state] for state in IDLE_STATES) for name, states in hours.items()}
    order = sorted(hours, key=lambda name: (-idle[name], name))
    said = [_say(name, hours[name], idle[name], causes[name], usd[name]) for name in order[:MOST_NAMESPACES]]
    rest = order[MOST_NAMESPACES:]
    if rest:
        said.append(f"idle GPUs of {len(rest)} more namespaces: {sum(idle[name] for name in rest):,.1f} GPU-hours")
    return tuple(said)


def _say(
    namespace: str, states: dict[str, float], idle_h: float, causes: dict[str, float], usd: dict[str, float]
) -> str:
    total_h = sum(value for state, value in states.items() if state != GpuState.ORDERED.published)
    loaded_h = states[GpuState.LOADED_IDLE.published]
    words = f"GPUs of {namespace}: {total_h:,.1f} GPU-hours, of which {idle_h:,.1f} idle"
    if loaded_h:
        words += f" ({loaded_h:,.1f} loaded, not active)"
    if not idle_h:
        return words
    money = Money.sum((name, Price(paid)) for name, paid in sorted(usd.items()))
    largest = sorted(causes.items(), key=lambda each: (-each[1], each[0]))[:MOST_CAUSES]
    kept = ", ".join(f"{TITLES.get(name, name)} {value:,.1f}" for name, value in largest)
    return f"{words}, {money.say('workload')}; kept by: {kept}"
