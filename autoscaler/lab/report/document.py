"""The JSON document of a proof. Its keys are an interface, listed in docs/reference/simulate.md; add, never rename.

A number that does not exist (a quantile of requests that were never answered, a share that history cannot tell) is
null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from autoscaler.lab.compare.result import Before, Proof, Run

VERSION = 1
"""Of the keys: changed when one of them is renamed or removed."""


def document(proofs: Sequence[Proof]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return one mapping for one trace, a list of them for several."""
    documents = [_proof(proof) for proof in proofs]
    return documents[0] if len(documents) == 1 else documents


def to_json(proofs: Sequence[Proof]) -> str:
    return json.dumps(document(proofs), indent=2, allow_nan=False) + "\n"


def _proof(proof: Proof) -> dict[str, Any]:
    goal = proof.goal
    return {
        "version": VERSION,
        "trace": proof.trace,
        "profile": proof.profile,
        "seed": proof.seed,
        "scale": proof.scale,
        "models": proof.models,
        "gpus": _number(proof.gpus),
        "requests": proof.requests,
        "duration_s": _number(proof.duration_s),
        "learned_s": _number(proof.learned_s),
        "cold_start_s": _number(proof.cold_start_s),
        "cold_start_uncached_s": _number(proof.cold_start_uncached_s),
        "cold_start_spread": _number(proof.cold_start_spread),
        "crash_every_s": _number(proof.crash_every_s),
        "router": proof.router,
        "patience_s": _number(proof.patience_s),
        "drain_s": _number(proof.drain_s),
        "scrape_s": _number(proof.scrape_s),
        "objective": {
            "ttft_s": _number(goal.ttft_s),
            "itl_s": _number(goal.itl_s),
            "attainment": _number(goal.attainment),
        },
        "clairvoyant": {
            "gpu_hours": _number(proof.clairvoyant_gpu_hours),
            "estimate_gpu_hours": _number(proof.estimate_gpu_hours),
        },
        "planned": _planned(proof.planned),
        "policies": [_run(proof, run) for run in proof.runs],
        "notes": list(proof.notes),
    }


def _planned(run: Run | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {"gpu_hours": _number(run.row.gpu_hours), "attainment": _number(run.row.attainment)}


def _before(before: Before | None) -> dict[str, Any] | None:
    if before is None:
        return None
    return {"attainment": _number(before.attainment), "gpu_hours": _number(before.gpu_hours)}


def _run(proof: Proof, run: Run) -> dict[str, Any]:
    row = run.row
    return {
        "name": run.name,
        "tuned": run.tuned,
        "default": run.default,
        "before": _before(run.before),
        "params": dict(run.params),
        "attainment": _number(row.attainment),
        "attainment_ttft": _number(row.attainment_ttft),
        "attainment_itl": _number(row.attainment_itl),
        "goodput_rps": _number(row.goodput_rps),
        "goodput_tokens_per_s": _number(row.goodput_tokens_per_s),
        "gpu_hours": _number(row.gpu_hours),
        "clairvoyant_ratio": _number(proof.ratio(row.gpu_hours)),
        "ttft_p50_s": _number(row.ttft_p50_s),
        "ttft_p95_s": _number(row.ttft_p95_s),
        "ttft_p99_s": _number(row.ttft_p99_s),
        "scale_ups": row.scale_ups,
        "scale_downs": row.scale_downs,
        "flaps": row.flaps,
        "breach_s": _number(row.breach_s),
        "unfinished": int(row.unfinished) if math.isfinite(row.unfinished) else None,
    }


def _number(value: float) -> float | None:
    """Round to six digits that mean something; what is not finite is null."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
