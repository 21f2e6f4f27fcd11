"""The JSON document of the model of demand. Its keys are an interface, listed in docs/reference/demand.md.

Unknown numbers are null.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from autoscaler.core.table.columns import Columns
from autoscaler.demand.draft import Draft
from autoscaler.demand.model import DemandModel
from autoscaler.demand.next_week import RATE
from autoscaler.demand.policy_file import policy_document, policy_names
from autoscaler.demand.shape import BANDS, bands
from autoscaler.demand.words import answers, verdict
from autoscaler.report.document import gpus_of, moment, row_of
from autoscaler.report.teams import team_figures

VERSION = 1
"""Version of the keys; changed when a key is renamed or removed."""


def to_json(demand: DemandModel, purchase: dict[str, Any]) -> str:
    return json.dumps(document(demand) | {"purchase": purchase}, indent=2, allow_nan=False) + "\n"


def document(demand: DemandModel) -> dict[str, Any]:
    """Return the model as a mapping."""
    report, span = demand.report, demand.report.load.span
    low, high = demand.excess.band
    return {
        "version": VERSION,
        "server": report.server,
        "start": moment(span.start_s),
        "end": moment(span.end_s),
        "timezone": demand.zone.key,
        "sentence": verdict(demand),
        "excess_gpus": {
            "least": plain(low),
            "most": plain(high),
            **_numbers(demand.excess._asdict() | {"week": None}),
            "week": _numbers(demand.excess.week._asdict() | {"rate": RATE}),
        },
        "tiers": [_numbers(tier._asdict()) for tier in demand.tiers],
        "services": [_service(demand, w, name) for w, name in enumerate(policy_names(demand.services))],
        "teams": [row_of(each._asdict()) | {"cost": each.cost.to_json()} for each in team_figures(report)],
        "gpu_use": {"from": report.use_from, "rows": [row_of(each._asdict()) for each in report.gpu_use]},
        "notes": [*report.notes, *demand.notes],
    }


def plain(value: Any) -> Any:
    """Return a number with six significant digits, None for one that is not finite, and anything else as it is."""
    if isinstance(value, (bool, str)) or value is None:
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in values.items()}


def _row(table: Columns, w: int) -> dict[str, Any]:
    return _numbers({name: column[w] for name, column in table.columns().items()})


def _service(demand: DemandModel, w: int, policy: str) -> dict[str, Any]:
    name, report = demand.services[w], demand.report
    draft = demand.drafts[w] if demand.drafts else None
    return {
        "cluster": name.cluster,
        "namespace": name.namespace,
        "name": name.name,
        "policy": report.policies[w],
        "seen_share": plain(report.seen_share[w]),
        "cold_start_s": plain(report.profiles.cold_start_s[w]),
        "answers": list(answers(demand, w)),
        "concurrency": {
            **_row(demand.concurrency, w),
            "by_hour": _bands(demand, w, demand.hours.hour, 24),
            "by_weekday": _bands(demand, w, demand.hours.weekday, 7),
        },
        "queue": _row(demand.queue, w),
        "bursts": {
            **_row(demand.burst_profile, w),
            "list": [_numbers(burst._asdict()) | {"start_s": moment(burst.start_s)} for burst in demand.bursts[w]],
        },
        "latency": _row(demand.tolerance, w),
        "mix": _row(demand.mix, w),
        "residency": _row(demand.residency, w),
        "gpus": gpus_of(report, w),
        "duration": _row(demand.durations, w),
        "draft": None if draft is None else _draft(demand, draft, w, policy),
    }


def _bands(demand: DemandModel, w: int, of: np.ndarray, kinds: int) -> dict[str, list[Any]]:
    """Return low, middle and high of the concurrency, one value for each kind of hour."""
    found = bands(demand.hours, demand.hours.concurrency[:, w : w + 1], of, kinds)[:, :, 0]
    return {f"p{round(q * 100)}": [plain(value) for value in row] for q, row in zip(BANDS, found, strict=True)}


def _draft(demand: DemandModel, draft: Draft, w: int, policy: str) -> dict[str, Any]:
    return {
        "offered": draft.offered,
        "refusal": draft.refusal,
        "lines": [_numbers(line._asdict()) for line in draft.lines],
        "kept": list(draft.kept),
        "gpu_hours": {
            "today": plain(draft.gpu_hours_today),
            "draft": plain(draft.gpu_hours),
            "constant": plain(draft.gpu_hours_constant),
        },
        "attainment": {"today": plain(draft.attainment_today), "draft": plain(draft.attainment)},
        "policy": policy_document(demand, w, policy) if draft.offered else None,
    }
