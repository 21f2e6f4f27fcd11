"""How well a run went: the row of a study's table, and its timeline in few rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.lab.replay.case import Case, Goal, Outcome

FLAP_S = 600.0  # a change of direction sooner than that after the change before it is a flap
BREACH_S = 60.0  # attainment is judged minute by minute, by arrival


@dataclass(frozen=True)
class Row:
    """One run in numbers; NaN: not known. Shares are of all requests that count; who was never answered missed."""

    attainment: float  # share of requests within both objectives
    attainment_ttft: float
    attainment_itl: float
    goodput_rps: float  # requests per second within both
    goodput_tokens_per_s: float  # generated for those
    gpu_hours: float
    ttft_p50_s: float  # infinity: so many were never answered
    ttft_p95_s: float
    ttft_p99_s: float
    scale_ups: int
    scale_downs: int
    flaps: int  # changes against the direction of a change less than ten minutes before
    breach_s: float  # in minutes whose requests met the objective less often than promised
    unfinished: float  # requests lost with a replica, given up, or never answered


def summarize(case: Case, outcome: Outcome) -> Row:
    """Return the row of `outcome`: of the requests that came, and the changes made, since figures count."""
    trace, goal = case.trace, case.goal
    counted = trace.arrival_s >= case.counted_from_s
    ttft_met, itl_met = (met[counted] for met in within(goal, outcome.ttft_s, outcome.itl_s))
    met = ttft_met & itl_met
    duration_s = trace.duration_s - case.counted_from_s
    p50_s, p95_s, p99_s = (_quantile(outcome.ttft_s[counted], q) for q in (0.5, 0.95, 0.99))
    late = outcome.change_s >= case.counted_from_s
    steps = np.diff(outcome.change_to, prepend=case.start_replicas)
    ups, downs, flaps = changes(steps[late], outcome.change_s[late])
    return Row(
        attainment=_share(met),
        attainment_ttft=_share(ttft_met),
        attainment_itl=_share(itl_met),
        goodput_rps=float(met.sum()) / duration_s,
        goodput_tokens_per_s=float(trace.output_tokens[counted][met].sum()) / duration_s,
        gpu_hours=outcome.replica_s * case.gpus_per_replica / 3600,
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s,
        scale_ups=ups,
        scale_downs=downs,
        flaps=flaps,
        breach_s=_breach_s(trace.arrival_s[counted], met.astype(np.float64), goal.attainment),
        unfinished=int(np.isinf(outcome.e2e_s[counted]).sum()),
    )


def changes(steps: IntColumn, changed_s: FloatColumn) -> tuple[int, int, int]:
    """Count the times the wanted count was raised, was lowered, and turned too soon.

    steps: int64[C], by how much, never 0. changed_s: float64[C], when.
    """
    turned = (steps[1:] * steps[:-1] < 0) & (np.diff(changed_s) < FLAP_S)
    return int((steps > 0).sum()), int((steps < 0).sum()), int(turned.sum())


def within(goal: Goal, ttft_s: FloatColumn, itl_s: FloatColumn) -> tuple[BoolColumn, BoolColumn]:
    """Return bool[N] each: who met the TTFT objective, who the ITL objective.

    An objective that is NaN is met by whoever finished (TTFT: by whoever began).
    """
    ttft_met = ttft_s <= (np.finfo(np.float64).max if np.isnan(goal.ttft_s) else goal.ttft_s)
    itl_met = itl_s <= (np.finfo(np.float64).max if np.isnan(goal.itl_s) else goal.itl_s)
    return ttft_met, itl_met


def thin(timeline: FloatColumn, columns: int) -> FloatColumn:
    """Reduce a timeline, float64[T, K] with time first, to at most `columns` rows; each keeps its largest values.

    Peaks are what a reader looks for, so they survive; the time of a row is that of its first.
    """
    rows = len(timeline)
    if rows <= columns:
        return timeline
    starts = np.linspace(0, rows, columns, endpoint=False).astype(np.int64)
    reduced = np.maximum.reduceat(timeline, starts, axis=0)
    reduced[:, 0] = timeline[starts, 0]
    return reduced


def _share(met: BoolColumn) -> float:
    """Return the share of requests that met an objective; of none, none missed it."""
    return float(met.mean()) if len(met) else 1.0


def _breach_s(arrival_s: FloatColumn, met: FloatColumn, attainment: float) -> float:
    minute = (arrival_s // BREACH_S).astype(np.int64)
    asked, within = np.bincount(minute), np.bincount(minute, met)
    return float((within < attainment * asked - 1e-9).sum() * BREACH_S)


def _quantile(values: FloatColumn, q: float) -> float:
    """Return the smallest value that at least the share `q` does not exceed; NaN without values."""
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else float("nan")
