"""What each team had, paid and reached, and what it would change first."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.money import Money
from autoscaler.lab.report.format import amount, share
from autoscaler.report.columns import ACTUAL, POLICY
from autoscaler.report.report import FleetReport
from autoscaler.report.verdict import judged_services

NO_TEAM = "no team"
MOST_TEAMS = 100
"""Teams with figures of their own; what all others had is one row."""

MOST_CHANGES = 3
LEAST_SAVED_H = 1.0
"""GPU-hours below which a change is not named."""


class TeamFigures(NamedTuple):
    """The figures of one team over the span, as it was."""

    team: str
    services: int
    gpu_hours: float
    cost: Money
    requests: float
    attainment: float  # 0..1, NaN: no request
    breach_min: float
    loaded_h: float  # replica-hours
    idle_h: float  # those of them in which a replica had nothing to compute
    changes: tuple[str, ...]  # what to change, the largest first


def team_figures(report: FleetReport) -> tuple[TeamFigures, ...]:
    """Return the figures of each team, the one with most GPU-hours first; (): no label names a team."""
    if not report.teams:
        return ()
    gpu_hours = np.nan_to_num(report.entry(ACTUAL).outcome.gpu_hours)
    rows: dict[str, list[int]] = {}
    for row, team in enumerate(report.teams):
        rows.setdefault(team or NO_TEAM, []).append(row)
    order = sorted(rows, key=lambda team: (-float(gpu_hours[rows[team]].sum()), team))
    found = [_figures(report, team, rows[team]) for team in order[:MOST_TEAMS]]
    if rest := order[MOST_TEAMS:]:
        found.append(_figures(report, f"{len(rest):,} more teams", [row for team in rest for row in rows[team]]))
    return tuple(found)


def _figures(report: FleetReport, team: str, rows: list[int]) -> TeamFigures:
    was = report.entry(ACTUAL).outcome
    counted = np.isin(np.arange(len(report.services)), rows) & (was.gpu_hours > 0)
    requests, missed = float(np.nansum(was.requests[rows])), float(np.nansum(was.missed[rows]))
    return TeamFigures(
        team=team,
        services=len(rows),
        gpu_hours=float(np.nansum(was.gpu_hours[rows])),
        cost=report.facts.money(report.services, was.usd, counted),
        requests=requests,
        attainment=1 - missed / requests if requests else math.nan,
        breach_min=float(np.nansum(was.breach_min[rows])),
        loaded_h=float(np.nansum(was.loaded_h[rows])),
        idle_h=float(np.nansum(was.idle_h[rows])),
        changes=_changes(report, rows),
    )


def _changes(report: FleetReport, rows: list[int]) -> tuple[str, ...]:
    """Return the changes with the largest replayed saving, then what nothing measures.

    Of a service that is not judged no replay is believed.
    """
    judged = judged_services(report)
    was, ours = report.entry(ACTUAL).outcome, report.entry(POLICY).outcome
    found: list[tuple[float, str]] = []
    for row in rows:
        name, saved = str(report.services[row]), float(was.gpu_hours[row] - ours.gpu_hours[row])
        kept, before = float(ours.attainment[row]), float(was.attainment[row])
        if not judged[row]:
            found.append((-1.0, f"{name}: not judged, so no saving is stated"))
        elif saved >= LEAST_SAVED_H and kept >= min(before, float(report.spec.attainment[row])) - 1e-9:
            found.append((saved, f"{name}: this policy, {amount(saved)} GPU-hours less at {share(kept)}"))
        elif kept > before and before < report.spec.attainment[row]:
            more = f"{amount(-saved)} GPU-hours more" if saved < 0 else "no more GPU-hours"
            found.append((math.inf, f"{name}: this policy, {share(kept)} in place of {share(before)} with {more}"))
        if report.gpus is not None:
            proposal, idle_h = report.gpus.proposals[row], float(report.gpus.hours.idle_h[row])
            if effect := proposal.effect:
                size = proposal.saved_gpu_hours if proposal.saved_gpu_hours > 0 else min(idle_h, 1.0) * 1e-6
                found.append((size, f"{name}: {proposal.change}; {effect}"))
    found.sort(key=lambda each: (-each[0], each[1]))
    return tuple(said for _, said in found[:MOST_CHANGES])
