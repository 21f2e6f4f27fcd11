"""The JSON document of a report. Its keys are an interface, listed in docs/reference/report.md: add, never rename.

Unknown numbers are null.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from autoscaler.core.model.money import Money, UnitCosts
from autoscaler.report.outcome import ServiceFigures
from autoscaler.report.report import Entry, FleetReport
from autoscaler.report.sampled import Hour
from autoscaler.report.teams import team_figures
from autoscaler.report.verdict import judge, judged_services, needed_gpu_hours, sentence

VERSION = 1
"""Version of the keys; changed when a key is renamed or removed."""

SUMMED = (
    "gpu_hours",
    "usd",
    "output_tokens",
    "requests",
    "missed",
    "breach_min",
    "changes",
    "flaps",
    "cold_starts",
    "loaded_h",
    "idle_h",
)


def to_json(report: FleetReport) -> str:
    return json.dumps(document(report), indent=2, allow_nan=False) + "\n"


def document(report: FleetReport) -> dict[str, Any]:
    """Return the report as a mapping."""
    span, verdict = report.load.span, judge(report)
    return {
        "version": VERSION,
        "server": report.server,
        "start": moment(span.start_s),
        "end": moment(span.end_s),
        "step_s": report.step_s,
        "fine_step_s": span.step_s,
        "sentence": sentence(verdict),
        "verdict": {
            **{name: _plain(value) for name, value in vars(verdict).items() if not isinstance(value, Money | str)},
            "prices": verdict.prices,
            "spare_usd": _plain(verdict.spare.usd),
            "spare": verdict.spare.to_json(),
            "policy_saved": verdict.policy_saved.to_json(),
        },
        "columns": [
            {
                "name": entry.name,
                "title": entry.course.title,
                "total": total(entry.outcome) | {"cost": cost(report, entry).to_json()},
                "notes": list(entry.course.notes),
            }
            for entry in report.entries
        ],
        "services": [_service(report, row) for row in range(len(report.services))],
        "teams": [row_of(each._asdict()) | {"cost": each.cost.to_json()} for each in team_figures(report)],
        "gpu_use": {"from": report.use_from, "rows": [row_of(each._asdict()) for each in report.gpu_use]},
        "sample": [_hour(report, hour) for hour in report.sampled],
        "notes": list(report.notes),
    }


def cost(report: FleetReport, entry: Entry) -> Money:
    """Return what a column costs in all, and what this leaves out."""
    return report.facts.money(report.services, entry.outcome.usd, entry.outcome.gpu_hours > 0)


def total(outcome: ServiceFigures) -> dict[str, Any]:
    """Return the sums over the services that have them, and how many each sum leaves out."""
    sums = {name: float(np.nansum(getattr(outcome, name))) for name in SUMMED}
    priced = ~np.isnan(outcome.usd)
    told = priced & ~np.isnan(outcome.output_tokens)
    of_tokens, of_requests = (
        UnitCosts.of(*(float(each[those].sum()) for each in (outcome.usd, outcome.output_tokens, outcome.requests)))
        for those in (told, priced)
    )
    sums |= of_requests._replace(usd_per_million_tokens=of_tokens.usd_per_million_tokens)._asdict()
    sums["attainment"] = 1 - sums["missed"] / sums["requests"] if sums["requests"] else math.nan
    return {name: _plain(value) for name, value in sums.items()} | {
        "without_price": int((np.isnan(outcome.usd) & (outcome.gpu_hours > 0)).sum()),
        "without_tokens": int((priced & ~told).sum()),
        "without_counts": int(np.isnan(outcome.gpu_hours).sum()),
    }


def _service(report: FleetReport, row: int) -> dict[str, Any]:
    name, facts, profiles = report.services[row], report.facts, report.profiles
    return {
        "cluster": name.cluster,
        "namespace": name.namespace,
        "name": name.name,
        "model": facts.model[row],
        "policy": report.policies[row],
        "seen_share": _plain(report.seen_share[row]),
        "judged": bool(judged_services(report)[row]),
        "doubt": report.doubts[row],
        "assumed": assumptions(report, row),
        "gpus_per_replica": _plain(facts.gpus[row]),
        "usd_per_replica_hour": _plain(facts.usd_per_hour[row]),
        "price_reason": facts.reasons[row],
        "price_source": facts.sources[row] if facts.sources else "",
        "cold_start_s": _plain(profiles.cold_start_s[row]),
        "idle_gap_s": _plain(profiles.idle_gap_s[row]),
        "work_s": _plain(profiles.work_s[row]),
        "slots": _plain(profiles.slots[row]),
        "unavoidable": _plain(profiles.unavoidable[row]),
        "needed_gpu_hours": _plain(needed_gpu_hours(report)[row]),
        "team": report.teams[row] if report.teams else None,
        "gpus": gpus_of(report, row),
        "columns": {
            entry.name: {
                key: moment(float(values[row])) if key == "worst_s" else _plain(values[row])
                for key, values in entry.outcome.columns().items()
            }
            for entry in report.entries
        },
    }


def gpus_of(report: FleetReport, row: int) -> dict[str, Any] | None:
    """Return what the GPUs of a service did; None: DCGM showed none."""
    story = report.gpus
    if story is None or not story.sentence(row):
        return None
    hours, proposal = story.hours, story.proposals[row]
    return {
        "sentence": story.sentence(row),
        "replica_hours": row_of(dict(story.by_state(row))),
        "weak_h": _plain(hours.weak_h[row]),
        "loaded_h": _plain(hours.loaded_h[row]),
        "active_h": _plain(hours.active_h[row]),
        "idle_h": _plain(hours.idle_h[row]),
        "change": proposal.change,
        "effect": proposal.effect,
        "saved_gpu_hours": _plain(proposal.saved_gpu_hours),
        "attainment": _plain(proposal.attainment),
        "changes": [
            {
                "name": each.change.name,
                "change": each.change.words,
                "gpu_hours": _plain(each.gpu_hours),
                "asleep_gpu_hours": _plain(each.asleep_gpu_hours),
                "gpu_hours_today": _plain(each.gpu_hours_today),
                "attainment": _plain(each.attainment),
                "attainment_today": _plain(each.attainment_today),
                "offered": not each.refusal,
                "why_not": each.refusal,
            }
            for each in proposal.tried
        ],
    }


def row_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of which numbers have six significant digits, None where they are not finite."""
    return {name: _plain(value) if isinstance(value, float) else value for name, value in values.items()}


def _hour(report: FleetReport, hour: Hour) -> dict[str, Any]:
    was, made = hour.measured, hour.replayed
    return {
        "service": str(report.services[hour.row]),
        "kind": hour.kind,
        "start": moment(hour.start_s),
        "requests": hour.requests,
        "measured": {
            "attainment_ttft": _plain(was.attainment_ttft),
            "ttft_p50_s": _plain(was.ttft_p50_s),
            "ttft_p95_s": _plain(was.ttft_p95_s),
            "itl_s": _plain(hour.measured_itl_s),
            "waiting": _plain(hour.measured_waiting),
        },
        "replayed": {
            "attainment_ttft": _plain(made.attainment_ttft),
            "ttft_p50_s": _plain(made.ttft_p50_s),
            "ttft_p95_s": _plain(made.ttft_p95_s),
            "itl_s": _plain(hour.replayed_itl_s),
            "waiting": _plain(hour.replayed_waiting),
        },
        "policy": {"fluid_attainment": _plain(hour.fluid_attainment), "attainment": _plain(hour.policy_attainment)},
        "doubt": hour.doubt,
    }


def assumptions(report: FleetReport, row: int) -> list[str]:
    """Return what of a service was not learned but assumed."""
    profiles = report.profiles
    said = (
        (
            profiles.assumed_speed[row],
            "speed of a replica: no engine reports token gaps, so that of its size, else of 8B",
        ),
        (profiles.assumed_misses[row], "misses by load: no engine reports histograms, so a usual curve"),
        (profiles.assumed_start[row], "cold start: nothing told its length, so that of the policy"),
        (report.facts.assumed_gpus[row], "GPUs of a replica: neither DCGM nor kube-state-metrics tells, so one"),
    )
    return [text for is_assumed, text in said if is_assumed]


def moment(time_s: float) -> str | None:
    """Format a Unix time; None: there is none."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if math.isfinite(time_s) else None


def _plain(value: float) -> Any:
    """Return a number with six significant digits; None for one that is not finite."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None
