"""The JSON document of a comparison. Its keys are an interface, listed in docs/reference/simulate.md: add, never
rename.

Unknown numbers are null: a quantile of unanswered requests, or a share that history does not show.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from autoscaler.lab.compare.result import Comparison, LearningResult, PolicyRun

VERSION = 1
"""Version of the keys; changed when a key is renamed or removed."""


def document(comparisons: Sequence[Comparison]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return a mapping for one trace, a list of mappings for several."""
    documents = [_comparison(comparison) for comparison in comparisons]
    return documents[0] if len(documents) == 1 else documents


def to_json(comparisons: Sequence[Comparison]) -> str:
    return json.dumps(document(comparisons), indent=2, allow_nan=False) + "\n"


def _comparison(comparison: Comparison) -> dict[str, Any]:
    goal = comparison.goal
    return {
        "version": VERSION,
        "trace": comparison.trace,
        "profile": comparison.profile,
        "seed": comparison.seed,
        "scale": comparison.scale,
        "models": comparison.models,
        "gpus": _number(comparison.gpus),
        "usd_per_gpu_hour": _number(comparison.gpu_price.usd),
        "price_note": comparison.gpu_price.why,
        "requests": comparison.requests,
        "duration_s": _number(comparison.duration_s),
        "learned_s": _number(comparison.learned_s),
        "cold_start_s": _number(comparison.cold_start_s),
        "cold_start_uncached_s": _number(comparison.cold_start_uncached_s),
        "weights_on": _number(comparison.weights_on),
        "cold_start_spread": _number(comparison.cold_start_spread),
        "crash_every_s": _number(comparison.crash_every_s),
        "router": comparison.router,
        "patience_s": _number(comparison.patience_s),
        "drain_s": _number(comparison.drain_s),
        "scrape_s": _number(comparison.scrape_s),
        "objective": {
            "ttft_s": _number(goal.ttft_s),
            "itl_s": _number(goal.itl_s),
            "attainment": _number(goal.attainment),
        },
        "lower_bound": {
            "gpu_hours": _number(comparison.lower_bound_gpu_hours),
            "estimate_gpu_hours": _number(comparison.estimate_gpu_hours),
        },
        "offline_plan": _offline_plan(comparison.offline_plan),
        "policies": [_run(comparison, run) for run in comparison.runs],
        "notes": list(comparison.notes),
    }


def _offline_plan(run: PolicyRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {"gpu_hours": _number(run.score.gpu_hours), "attainment": _number(run.score.attainment)}


def _before(before: LearningResult | None) -> dict[str, Any] | None:
    if before is None:
        return None
    return {"attainment": _number(before.attainment), "gpu_hours": _number(before.gpu_hours)}


def _run(comparison: Comparison, run: PolicyRun) -> dict[str, Any]:
    score = run.score
    usd, costs = comparison.cost(run)
    return {
        "name": run.name,
        "tuned": run.tuned,
        "default": run.default,
        "own": run.own,
        "before": _before(run.before),
        "params": dict(run.params),
        "attainment": _number(score.attainment),
        "attainment_ttft": _number(score.attainment_ttft),
        "attainment_itl": _number(score.attainment_itl),
        "goodput_rps": _number(score.goodput_rps),
        "goodput_tokens_per_s": _number(score.goodput_tokens_per_s),
        "gpu_hours": _number(score.gpu_hours),
        "usd": _number(usd),
        "usd_per_million_tokens": _number(costs.usd_per_million_tokens),
        "usd_per_thousand_requests": _number(costs.usd_per_thousand_requests),
        "lower_bound_ratio": _number(comparison.ratio(score.gpu_hours)),
        "ttft_p50_s": _number(score.ttft_p50_s),
        "ttft_p95_s": _number(score.ttft_p95_s),
        "ttft_p99_s": _number(score.ttft_p99_s),
        "scale_ups": score.scale_ups,
        "scale_downs": score.scale_downs,
        "flaps": score.flaps,
        "breach_s": _number(score.breach_s),
        "unfinished": int(score.unfinished) if math.isfinite(score.unfinished) else None,
    }


def _number(value: float) -> float | None:
    """Round to six significant digits; None for a value that is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
