"""The kept result of a run, and the sum of the results of several workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.call_progress import Progress, no_progress
from autoscaler.lab.replay.case import Case, FleetScaler, RunOutcome, Scaler
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.run import run, run_fleet
from autoscaler.lab.replay.score import Score, compute_score, downsample

TIMELINE_ROWS = 1500  # most rows of a kept timeline


@dataclass(frozen=True)
class RunResult:
    """The kept result of one run."""

    score: Score
    timeline: FloatColumn
    ttft_s: npt.NDArray[np.float32]  # float32[N], seconds; empty for a single model, whose score has the quantiles


def run_case(case: Case, scaler: Scaler, *, keep_ttft: bool = False, progress: Progress = no_progress) -> RunResult:
    """Run one case and keep its result."""
    return _make_result(case, run(case, scaler, progress), keep_ttft)


def run_cases_together(
    cases: Sequence[Case], scalers: Sequence[Scaler] | FleetScaler, gpus: float, progress: Progress = no_progress
) -> list[RunResult]:
    """Run several cases that share GPUs, and keep the result of each."""
    outcomes = run_fleet(cases, scalers, GpuPool.for_cases(cases, gpus), progress)
    return [_make_result(case, outcome, len(cases) > 1) for case, outcome in zip(cases, outcomes, strict=True)]


def _make_result(case: Case, outcome: RunOutcome, keep_ttft: bool) -> RunResult:
    from_s = case.counted_from_s
    ttft_s = outcome.ttft_s[case.trace.arrival_s >= from_s] if keep_ttft else np.empty(0)
    timeline = outcome.timeline[outcome.timeline[:, 0] >= from_s] - (from_s, 0.0, 0.0, 0.0, 0.0)
    return RunResult(compute_score(case, outcome), downsample(timeline, TIMELINE_ROWS), ttft_s.astype(np.float32))


def sum_results(cases: Sequence[Case], played: Sequence[RunResult]) -> tuple[Score, FloatColumn]:
    """Combine several workloads: fractions weighted by requests, quantiles over all requests, sums of the rest."""
    if len(played) == 1:
        return played[0].score, played[0].timeline
    rows = [each.score for each in played]
    counts = np.array([(case.trace.arrival_s >= case.counted_from_s).sum() for case in cases], np.float64)
    ttft_s = np.concatenate([each.ttft_s for each in played]).astype(np.float64)
    p50_s, p95_s, p99_s = (float(np.quantile(ttft_s, q, method="inverted_cdf")) for q in (0.5, 0.95, 0.99))

    def mean(name: str) -> float:
        return float(np.average([getattr(score, name) for score in rows], weights=counts))

    def total(name: str) -> Any:
        return sum(getattr(score, name) for score in rows)

    score = Score(
        attainment=mean("attainment"),
        attainment_ttft=mean("attainment_ttft"),
        attainment_itl=mean("attainment_itl"),
        goodput_rps=total("goodput_rps"),
        goodput_tokens_per_s=total("goodput_tokens_per_s"),
        gpu_hours=total("gpu_hours"),
        breach_s=total("breach_s"),
        scale_ups=total("scale_ups"),
        scale_downs=total("scale_downs"),
        flaps=total("flaps"),
        unfinished=total("unfinished"),
        answered=total("answered"),
        output_tokens=total("output_tokens"),
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s,
    )
    return score, _sum_timelines([each.timeline for each in played])


def _sum_timelines(timelines: Sequence[FloatColumn]) -> FloatColumn:
    """Sum timelines at the times of the longest one; a timeline that ends keeps its last values."""
    longest = max(timelines, key=lambda timeline: float(timeline[-1, 0]))
    total = longest.copy()
    total[:, 1:] = 0.0
    for timeline in timelines:
        place = np.searchsorted(timeline[:, 0], longest[:, 0], side="right") - 1
        total[:, 1:] += timeline[np.maximum(place, 0), 1:]
    return total
