"""The score of a run, and a timeline reduced to few rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.lab.replay.case import Case, Goal, RunOutcome

BREACH_S = 60.0  # attainment is computed per minute of arrival


@dataclass(frozen=True)
class Score:
    """Figures of one run; NaN: unknown. Fractions are of all counted requests; an unanswered request is a miss."""

    attainment: float  # fraction of requests within both objectives, 0..1
    attainment_ttft: float
    attainment_itl: float
    goodput_rps: float  # requests per second within both objectives
    goodput_tokens_per_s: float  # output tokens per second of these requests
    gpu_hours: float
    ttft_p50_s: float  # infinity: fewer requests than the quantile were answered
    ttft_p95_s: float
    ttft_p99_s: float
    scale_ups: int
    scale_downs: int
    flaps: int  # changes undone within one cold start
    breach_s: float  # seconds in minutes whose attainment is below the goal
    unfinished: float  # requests lost with a replica, abandoned, or never answered
    answered: float = math.nan  # requests that were answered to their end
    output_tokens: float = math.nan  # generated for these


def compute_score(case: Case, outcome: RunOutcome) -> Score:
    """Return the score of `outcome`, over the requests and changes since `counted_from_s`."""
    trace, goal = case.trace, case.goal
    counted = trace.arrival_s >= case.counted_from_s
    ttft_met, itl_met = (met[counted] for met in meets_objectives(goal, outcome.ttft_s, outcome.itl_s))
    met = ttft_met & itl_met
    duration_s = trace.duration_s - case.counted_from_s
    p50_s, p95_s, p99_s = (_quantile(outcome.ttft_s[counted], q) for q in (0.5, 0.95, 0.99))
    late = outcome.change_s >= case.counted_from_s
    steps = np.diff(outcome.change_to, prepend=case.start_replicas)
    ups, downs, flaps = count_changes(steps[late], outcome.change_s[late], case.cold_start_s)
    return Score(
        attainment=_share(met),
        attainment_ttft=_share(ttft_met),
        attainment_itl=_share(itl_met),
        goodput_rps=float(met.sum()) / duration_s,
        goodput_tokens_per_s=float(trace.output_tokens[counted][met].sum()) / duration_s,
        gpu_hours=outcome.paid_s(case.counted_from_s) * case.gpus_per_replica / 3600,
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s,
        scale_ups=ups,
        scale_downs=downs,
        flaps=flaps,
        breach_s=_breach_s(trace.arrival_s[counted], met.astype(np.float64), goal.attainment),
        unfinished=int(np.isinf(outcome.e2e_s[counted]).sum()),
        answered=int(np.isfinite(outcome.e2e_s[counted]).sum()),
        output_tokens=float(trace.output_tokens[counted][np.isfinite(outcome.e2e_s[counted])].sum()),
    )


def count_changes(steps: IntColumn, changed_s: FloatColumn, cold_start_s: float) -> tuple[int, int, int]:
    """Count scale-ups, scale-downs and flaps. A flap reverses a change that is younger than a cold start.

    steps: int64[C], changes of the desired count, never 0. changed_s: float64[C], their times in seconds.
    """
    turned = (steps[1:] * steps[:-1] < 0) & (np.diff(changed_s) < cold_start_s)
    return int((steps > 0).sum()), int((steps < 0).sum()), int(turned.sum())


def meets_objectives(goal: Goal, ttft_s: FloatColumn, itl_s: FloatColumn) -> tuple[BoolColumn, BoolColumn]:
    """Return the requests that meet the TTFT objective, and those that meet the ITL objective, bool[N] each.

    A TTFT objective of NaN is met with any first token, an ITL objective of NaN by any finished request.
    """
    ttft_met = ttft_s <= (np.finfo(np.float64).max if np.isnan(goal.ttft_s) else goal.ttft_s)
    itl_met = itl_s <= (np.finfo(np.float64).max if np.isnan(goal.itl_s) else goal.itl_s)
    return ttft_met, itl_met


def downsample(timeline: FloatColumn, columns: int) -> FloatColumn:
    """Reduce a timeline, float64[T, K] with time in column 0, to at most `columns` rows.

    Each row keeps the largest values of its interval, so peaks survive, and the first time.
    """
    rows = len(timeline)
    if rows <= columns:
        return timeline
    starts = np.linspace(0, rows, columns, endpoint=False).astype(np.int64)
    reduced = np.maximum.reduceat(timeline, starts, axis=0)
    reduced[:, 0] = timeline[starts, 0]
    return reduced


def _share(met: BoolColumn) -> float:
    """Return the fraction of requests that met an objective; 1 without requests."""
    return float(met.mean()) if len(met) else 1.0


def _breach_s(arrival_s: FloatColumn, met: FloatColumn, attainment: float) -> float:
    minute = (arrival_s // BREACH_S).astype(np.int64)
    asked, within = np.bincount(minute), np.bincount(minute, met)
    return float((within < attainment * asked - 1e-9).sum() * BREACH_S)


def _quantile(values: FloatColumn, q: float) -> float:
    """Return the smallest value that at least the fraction `q` of values does not exceed; NaN without values."""
    return float(np.quantile(values, q, method="inverted_cdf")) if len(values) else float("nan")
