"""The draft of a policy for each service: each line with its reason, replayed on the half of history it has not seen.

The lines follow from the first half. The replay on the second half is that of `report`: the planner under today's
policy, under the draft, and under the draft without each of its lines. A draft that costs attainment is not offered.
`idleAfter: auto` counts as if a gateway held requests, so that no draft is credited with what today's policy gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.config.values import show_duration
from autoscaler.core.measure.capacity import count_carrying
from autoscaler.core.model.spec import Spec
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.table.columns import FloatColumn, replace
from autoscaler.demand.shape import Hours, measure_concurrency, measure_queue
from autoscaler.demand.windows import JumpWindow, find_window
from autoscaler.report.columns import ConstantColumn, PolicyColumn, count_past_wake_ups, find_constant_counts
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.fluid import FleetView, follow
from autoscaler.report.history import Steps
from autoscaler.report.idle import Rest, find_rest
from autoscaler.report.load import FleetLoad, Profiles
from autoscaler.report.outcome import ServiceFigures, sum_up

MARGIN = 1.25
"""Ceiling over the highest demand that was seen for longer than a burst of noise."""

CEILING_S = 300.0
LEAST_SAVED = 0.01
"""Share of the GPU-hours that a draft must save, unless it keeps more of what the policy promises."""

TOLERANCE = 1e-4
"""Attainment that a draft may lose by rounding."""

LINES = ("replicas.min", "replicas.max", "scaleToZero", "prewarm", "queue.maxWait")


class Line(NamedTuple):
    """One line of a draft."""

    field: str  # one of LINES
    value: str  # as it is written
    today: str
    reason: str
    saved_gpu_hours: float  # that the draft uses less with this line than without; NaN: not replayed


class Half(NamedTuple):
    """One half of the history, with the speed of replicas as that half shows it."""

    load: FleetLoad
    profiles: Profiles
    hours: Hours


@dataclass(frozen=True)
class Draft:
    """The draft for one service."""

    lines: tuple[Line, ...]
    offered: bool
    refusal: str  # why it is not offered; "": it is
    gpu_hours_today: float  # of the second half, under the policy of today
    gpu_hours: float  # under the draft
    gpu_hours_constant: float  # of the least constant count; NaN: none keeps the attainment
    attainment_today: float
    attainment: float
    window: JumpWindow | None
    rest: Rest | None


@dataclass(frozen=True)
class _Plan:
    """The values of the lines; float64[W]. NaN: the line is left out."""

    floor: FloatColumn
    ceiling: FloatColumn
    idle_s: FloatColumn
    wait_s: FloatColumn
    windows: tuple[JumpWindow | None, ...]
    rests: tuple[Rest | None, ...]
    reasons: tuple[dict[str, str], ...]

    def without(self, field: str) -> _Plan:
        """Return the plan without one line."""
        none = np.full(len(self.floor), np.nan)
        column = {
            "replicas.min": "floor",
            "replicas.max": "ceiling",
            "scaleToZero": "idle_s",
            "queue.maxWait": "wait_s",
        }
        values = dict(vars(self))
        values |= {"windows": (None,) * len(none)} if field == "prewarm" else {column[field]: none}
        return _Plan(**values)

    def spec(self, today: Spec) -> Spec:
        def stated(values: FloatColumn, otherwise: FloatColumn) -> FloatColumn:
            return np.where(np.isnan(values), otherwise, values)

        return replace(
            today,
            min_replicas=stated(self.floor, today.min_replicas),
            max_replicas=stated(self.ceiling, today.max_replicas),
            idle_after_s=stated(self.idle_s, today.idle_after_s),
            max_wait_s=stated(self.wait_s, today.max_wait_s),
        )


class _DraftColumn:
    """The planner under a draft, with its windows as floors."""

    name, title = "draft", "the draft"

    def __init__(self, half: Half, spec: Spec, windows: Sequence[JumpWindow | None], past: IdleTimeouts) -> None:
        self._policy = PolicyColumn(half.load, half.profiles, spec, past)
        self._floors = _window_floors(half, windows)

    def decide(self, view: FleetView) -> FloatColumn:
        wanted = self._policy.decide(view)
        return np.asarray(np.fmax(wanted, self._floors[view.step]))


def make_drafts(
    first: Half,
    second: Half,
    spec: Spec,
    facts: ServiceFacts,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Draft]:
    """Return the draft of each service. first: it is made from. second: it is judged by."""
    plan = _plan(first, spec)
    load, profiles = second.load, second.profiles

    def judge(column: PolicyColumn | _DraftColumn | ConstantColumn, start: FloatColumn | None = None) -> ServiceFigures:
        return sum_up(follow(column, load, profiles, start=start), load, profiles, facts, spec)

    past = count_past_wake_ups(first.load, first.profiles)
    today = judge(PolicyColumn(load, profiles, spec, past))
    progress(0.2)
    counts = find_constant_counts(load, profiles, spec.attainment)
    constant = judge(ConstantColumn(counts), np.nan_to_num(counts))
    progress(0.4)
    whole = judge(_DraftColumn(second, plan.spec(spec), plan.windows, past))
    saved = {}
    for number, field in enumerate(LINES[:-1]):  # the time that a request may queue changes nothing in a fluid
        part = plan.without(field)
        saved[field] = judge(_DraftColumn(second, part.spec(spec), part.windows, past)).gpu_hours - whole.gpu_hours
        progress(0.5 + 0.5 * (number + 1) / len(LINES[:-1]))
    progress(1.0)
    return [_draft(plan, w, spec, today, whole, constant, saved) for w in range(load.shape[1])]


def _plan(half: Half, spec: Spec) -> _Plan:
    """Return the values that follow from a half of the history, with their reasons."""
    load, profiles, hours = half
    concurrency, queue = measure_concurrency(hours), measure_queue(load)
    services = load.shape[1]
    size = max(round(CEILING_S / load.span.step_s), 1)
    smooth = np.array(
        [np.convolve(load.demand[:, w], np.ones(size) / size, "valid").max(initial=0.0) for w in range(services)]
    )
    floor, ceiling, idle_s, wait_s = np.full((4, services), np.nan)
    windows: list[JumpWindow | None] = []
    rests: list[Rest | None] = []
    reasons: list[dict[str, str]] = []
    for w in range(services):
        said: dict[str, str] = {}
        rest = find_rest(load, w, float(profiles.cold_start_s[w]), float(spec.error_budget[w]))
        window = find_window(hours, w)
        if not np.isnan(concurrency.floor_replicas[w]):
            floor[w] = max(np.floor(count_carrying(concurrency.floor_replicas[w])), 1.0)
            said["replicas.min"] = (
                f"{concurrency.floor[w]:.3g} requests at once, or {concurrency.floor_replicas[w]:.3g} busy replicas, "
                "were reached in 95 % of the hours"
            )
            ceiling[w] = max(np.ceil(count_carrying(MARGIN * smooth[w])), floor[w], 1.0)
            said["replicas.max"] = (
                f"the highest 5 minutes kept {smooth[w]:.3g} replicas busy; a quarter more, for what was not yet seen"
            )
        if rest is not None:
            idle_s[w] = rest.idle_s
            said["scaleToZero"] = (
                f"{rest.wakes} gaps were longer; {rest.saved_h:.3g} replica-hours without work, and "
                f"{rest.missed_share:.2%} of requests would have waited for a start"
            )
        if window is not None:
            said["prewarm"] = (
                f"demand jumps to {window.demand:.3g} busy replicas at {window.first}:00, seen on {window.days} days"
            )
        breach_s = float(queue.breach_depth[w] * profiles.work_s[w])
        if breach_s < (spec.max_wait_s[w] if np.isnan(spec.ttft_objective_s[w]) else spec.first_token_limit_s[w]):
            wait_s[w] = max(round(breach_s, 3), 0.001)
            said["queue.maxWait"] = (
                f"from {queue.breach_depth[w]:.3g} waiting requests for each replica on, most requests missed"
            )
        windows.append(window)
        rests.append(rest)
        reasons.append(said)
    return _Plan(floor, ceiling, idle_s, wait_s, tuple(windows), tuple(rests), tuple(reasons))


def _draft(
    plan: _Plan,
    w: int,
    spec: Spec,
    today: ServiceFigures,
    whole: ServiceFigures,
    constant: ServiceFigures,
    saved: dict[str, FloatColumn],
) -> Draft:
    lines = tuple(
        Line(field, *_values(plan, field, w, spec), reason, float(saved[field][w]) if field in saved else np.nan)
        for field in LINES
        if (reason := plan.reasons[w].get(field)) and len(set(_values(plan, field, w, spec))) == 2
    )
    refusal = "" if lines else "the policy of today fits its shape, or less than a day was seen"
    if lines:
        refusal = _refuse(
            (float(today.gpu_hours[w]), float(today.attainment[w])),
            (float(whole.gpu_hours[w]), float(whole.attainment[w])),
            float(spec.attainment[w]),
        )
    return Draft(
        lines=lines,
        offered=not refusal,
        refusal=refusal,
        gpu_hours_today=float(today.gpu_hours[w]),
        gpu_hours=float(whole.gpu_hours[w]),
        gpu_hours_constant=float(constant.gpu_hours[w]),
        attainment_today=float(today.attainment[w]),
        attainment=float(whole.attainment[w]),
        window=plan.windows[w],
        rest=plan.rests[w],
    )


def _refuse(today: tuple[float, float], draft: tuple[float, float], promised: float) -> str:
    """Return why a draft is not offered; "": it is. today, draft: GPU-hours and attainment on the second half."""
    (gpu_hours, attainment), (draft_hours, draft_attainment) = today, draft
    if draft_attainment < min(attainment, promised) - TOLERANCE:
        return f"it would keep {draft_attainment:.3%} of requests within the objective, today's policy {attainment:.3%}"
    if draft_attainment > attainment + TOLERANCE and attainment < promised:
        return ""
    if draft_hours > (1 - LEAST_SAVED) * gpu_hours:
        return f"it would use {draft_hours:.1f} GPU-hours, today's policy {gpu_hours:.1f}: that policy fits its shape"
    return ""


def _values(plan: _Plan, field: str, w: int, spec: Spec) -> tuple[str, str]:
    """Return the value of a line and that of today."""
    if field == "replicas.min":
        return f"{plan.floor[w]:.0f}", f"{spec.min_replicas[w]:.0f}"
    if field == "replicas.max":
        return f"{plan.ceiling[w]:.0f}", f"{spec.max_replicas[w]:.0f}"
    if field == "scaleToZero":
        idle_s = float(spec.idle_after_s[w])
        today = "never" if np.isnan(idle_s) else "auto" if np.isinf(idle_s) else show_duration(idle_s)
        return show_duration(float(plan.idle_s[w])), today
    if field == "prewarm":
        window = plan.windows[w]
        assert window is not None
        return " until ".join(window.cron) + f": {window_replicas(window)}", "none"
    return show_duration(float(plan.wait_s[w])), show_duration(float(spec.max_wait_s[w]))


def window_replicas(window: JumpWindow) -> int:
    """Return the replicas that serve the first hour of a window."""
    return max(int(np.ceil(count_carrying(np.array([window.demand])).item())), 1)


def _window_floors(half: Half, windows: Sequence[JumpWindow | None]) -> Steps:
    """Return the replicas that windows ask for in each step, and one cold start before; NaN: none."""
    load, hours = half.load, half.hours
    floors = np.full(load.shape, np.nan, np.float32)
    starts = hours.starts
    lengths = np.diff([*starts, load.shape[0]])
    for w, window in enumerate(windows):
        if window is None:
            continue
        inside = [window.covers(*each) for each in zip(hours.hour.tolist(), hours.weekday.tolist(), strict=True)]
        steps = np.repeat(np.array(inside), lengths)
        lead = int(np.ceil(half.profiles.cold_start_s[w] / load.span.step_s))
        early = np.concatenate([steps[lead:], np.zeros(min(lead, len(steps)), bool)])[: len(steps)]
        floors[steps | early, w] = window_replicas(window)
    return floors
