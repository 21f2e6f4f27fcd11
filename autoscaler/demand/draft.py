"""The draft of a policy for each service: each line with its reason, replayed on the half of history it has not seen.

The lines follow from the first half. The replay on the second half is that of `report`: the planner under today's
policy, under the draft, and under the draft without each of its lines. A draft that costs attainment is not offered.
`idleAfter: auto` counts as if a gateway held requests, so that no draft is credited with what today's policy gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoscaler.config.values import show_duration
from autoscaler.core.measure.capacity import count_carrying
from autoscaler.core.model.spec import Spec
from autoscaler.core.planner.scale_to_zero import IdleTimeouts
from autoscaler.core.table.columns import FloatColumn, IntColumn, replace
from autoscaler.demand.halves import Half
from autoscaler.demand.shape import measure_concurrency, measure_queue
from autoscaler.demand.windows import JumpWindow, missing_windows, window_floors, window_replicas
from autoscaler.lab.report.format import count
from autoscaler.report.change_replay import CELLS
from autoscaler.report.columns import ConstantColumn, PolicyColumn, count_past_wake_ups, find_constant_counts
from autoscaler.report.facts import ServiceFacts
from autoscaler.report.fluid import FleetView, Reserve, follow
from autoscaler.report.history import Steps
from autoscaler.report.idle import Rest, find_rest
from autoscaler.report.outcome import ServiceFigures, sum_up

MARGIN = 1.25
"""Ceiling over the highest demand that was seen for longer than a burst of noise."""

CEILING_S = 300.0
LEAST_SAVED = 0.01
"""Share of the GPU-hours that a draft must save, unless it keeps more of what the policy promises."""

TOLERANCE = 1e-4
"""Attainment that a draft may lose by rounding."""

LINES = ("replicas.min", "replicas.max", "scaleToZero", "prewarm", "scaleDown.maxStep", "queue.maxWait")
KEPT = "kept"
"""Key of the reason for which a value of today stays."""

STABILIZATION_KEPT = (
    "scaleDown.stabilization stays: it does not apply to the planner, which holds its own peaks, so no replay judges it"
)


class Line(NamedTuple):
    """One line of a draft."""

    field: str  # one of LINES
    value: str  # as it is written
    today: str
    reason: str
    saved_gpu_hours: float  # that the draft uses less with this line than without; NaN: not replayed
    attainment_without: float  # of the draft without this line, 0..1; NaN: not replayed


@dataclass(frozen=True)
class Draft:
    """The draft for one service."""

    lines: tuple[Line, ...]
    kept: tuple[str, ...]  # why values of today stay, one sentence each
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
    step: FloatColumn  # share of the count that may go at once
    wait_s: FloatColumn
    windows: tuple[JumpWindow | None, ...]
    windows_today: tuple[str, ...]
    rests: tuple[Rest | None, ...]
    reasons: tuple[dict[str, str], ...]

    def without(self, field: str) -> _Plan:
        """Return the plan without one line of a value."""
        column = {
            "replicas.min": "floor",
            "replicas.max": "ceiling",
            "scaleToZero": "idle_s",
            "scaleDown.maxStep": "step",
        }.get(field)
        none = {} if column is None else {column: np.full(len(self.floor), np.nan)}
        return _Plan(**{**vars(self), **none})

    def spec(self, today: Spec) -> Spec:
        def stated(values: FloatColumn, otherwise: FloatColumn) -> FloatColumn:
            return np.where(np.isnan(values), otherwise, values)

        return replace(
            today,
            min_replicas=stated(self.floor, today.min_replicas),
            max_replicas=stated(self.ceiling, today.max_replicas),
            idle_after_s=stated(self.idle_s, today.idle_after_s),
            down_step_fraction=stated(self.step, today.down_step_fraction),
            max_wait_s=stated(self.wait_s, today.max_wait_s),
        )


class _Trial(NamedTuple):
    """A policy under which services are replayed."""

    services: IntColumn  # those that are
    spec: Spec  # [W]
    floors: Steps  # float32[T, W], of windows; NaN: none


class _TrialColumn:
    """The planner under a draft, with its windows as floors."""

    name, title = "draft", "the draft"

    def __init__(self, policy: PolicyColumn, floors: Steps) -> None:
        self._policy, self._floors = policy, floors

    def decide(self, view: FleetView) -> FloatColumn:
        wanted = self._policy.decide(view)
        return np.asarray(np.fmax(wanted, self._floors[view.step]))


def _replay(
    trials: Sequence[_Trial],
    half: Half,
    spec: Spec,
    facts: ServiceFacts,
    past: IdleTimeouts | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> list[ServiceFigures]:
    """Replay all trials in one table, and return the figures of each on its services. spec: it judges them.

    past: the wake-ups so far, with a gateway that holds requests. None: no gateway is known.
    """
    rows = np.concatenate([trial.services for trial in trials])
    tried = Spec.stack([trial.spec.take(trial.services) for trial in trials])
    floors = [trial.floors[:, row] for trial in trials for row in trial.services.tolist()]
    found: list[ServiceFigures] = []
    size = max(CELLS // max(half.load.shape[0], 1), 1)
    for begin in range(0, len(rows), size):
        part = slice(begin, begin + size)
        own, load, profiles = spec.take(rows[part]), half.load.only(rows[part].tolist()), half.profiles.take(rows[part])
        known = None if past is None else past.take(rows[part])
        policy = PolicyColumn(load, profiles, tried.take(np.arange(len(rows))[part]), known, holds=past is not None)
        course = follow(_TrialColumn(policy, np.array(floors[part]).T), load, profiles, reserve=Reserve.of(own))
        found.append(sum_up(course, load, profiles, facts.only(rows[part].tolist()), own))
        progress(min((begin + size) / len(rows), 1.0))
    figures = ServiceFigures.stack(found)
    edges = np.cumsum([0, *(len(trial.services) for trial in trials)])
    return [figures.take(np.arange(first, last)) for first, last in pairwise(edges.tolist())]


def make_drafts(
    first: Half,
    second: Half,
    spec: Spec,
    facts: ServiceFacts,
    progress: Callable[[float], None] = lambda _: None,
) -> list[Draft]:
    """Return the draft of each service. first: it is made from. second: it is judged by."""
    every = np.arange(second.load.shape[1])
    none = np.broadcast_to(np.float32(np.nan), first.load.shape)
    at_once = replace(spec, down_step_fraction=np.ones(len(every)))
    tried = _replay([_Trial(every, each, none) for each in (spec, at_once)], first, spec, facts)
    plan = _plan(first, spec, _Shrinking(*tried))
    progress(0.2)
    load, profiles = second.load, second.profiles
    counts = find_constant_counts(load, profiles, spec.attainment)
    course = follow(ConstantColumn(counts), load, profiles, start=np.nan_to_num(counts))
    constant = sum_up(course, load, profiles, facts, spec)
    progress(0.4)
    none, floors = np.broadcast_to(np.float32(np.nan), load.shape), window_floors(second, plan.windows)
    trials = [_Trial(every, spec, none), _Trial(every, plan.spec(spec), floors)]
    for field in LINES[:-1]:  # the time that a request may queue changes nothing in a fluid
        having = np.array([w for w in every.tolist() if _has_line(plan, field, w, spec)], np.int64)
        part = plan.without(field)
        trials.append(_Trial(having, part.spec(spec), none if field == "prewarm" else floors))
    past = count_past_wake_ups(first.load, first.profiles)
    replayed = _replay(trials, second, spec, facts, past, lambda done: progress(0.4 + 0.6 * done))
    today, whole, *without = replayed
    saved, kept = ({field: np.full(len(every), np.nan) for field in LINES} for _ in range(2))
    for field, trial, figures in zip(LINES, trials[2:], without, strict=False):
        saved[field][trial.services] = figures.gpu_hours - whole.gpu_hours[trial.services]
        kept[field][trial.services] = figures.attainment
    second_half = _SecondHalf(today, whole, constant, saved, kept)
    return [_draft(plan, w, spec, second_half) for w in every.tolist()]


class _SecondHalf(NamedTuple):
    """Figures of the second half."""

    today: ServiceFigures
    whole: ServiceFigures  # under the draft
    constant: ServiceFigures  # of the least constant count
    saved: dict[str, FloatColumn]  # GPU-hours that the draft uses less with a line than without, by field
    kept: dict[str, FloatColumn]  # attainment of the draft without a line, by field


class _Shrinking(NamedTuple):
    """Figures of the first half under the policy of today, and if all that is not needed might go at once."""

    today: ServiceFigures
    at_once: ServiceFigures

    def saved(self, w: int) -> float:
        """Return the share of the GPU-hours that shrinking at once saves; NaN: none were held."""
        held = float(self.today.gpu_hours[w])
        return 1 - float(self.at_once.gpu_hours[w]) / held if held > 0 else np.nan

    def keeps(self, w: int, promised: float) -> bool:
        return bool(self.at_once.attainment[w] >= min(float(self.today.attainment[w]), promised) - TOLERANCE)


def _plan(half: Half, spec: Spec, shrinking: _Shrinking) -> _Plan:
    """Return the values that follow from a half of the history, with their reasons."""
    load, profiles, hours, _ = half
    concurrency, queue = measure_concurrency(hours), measure_queue(load)
    services = load.shape[1]
    size = max(round(CEILING_S / load.span.step_s), 1)
    smooth = np.array(
        [np.convolve(load.demand[:, w], np.ones(size) / size, "valid").max(initial=0.0) for w in range(services)]
    )
    floor, ceiling, idle_s, step, wait_s = np.full((5, services), np.nan)
    windows = missing_windows(half)
    rests: list[Rest | None] = []
    reasons: list[dict[str, str]] = []
    for w, window in enumerate(windows):
        said: dict[str, str] = {}
        rest = find_rest(load, w, float(profiles.cold_start_s[w]), float(spec.error_budget[w]))
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
                f"{count(rest.wakes, 'gap')} longer than that; {rest.saved_h:.3g} replica-hours without work, and "
                f"{rest.missed_share:.2%} of requests would have waited for a start"
            )
        if window is not None:
            said["prewarm"] = (
                f"demand jumps to {window.demand:.3g} busy replicas at {window.first}:00, seen on {window.days} days"
            )
        saved, keeps = shrinking.saved(w), shrinking.keeps(w, float(spec.attainment[w]))
        if saved >= LEAST_SAVED and keeps:
            step[w] = 1.0
            said["scaleDown.maxStep"] = f"shrinking at once saved {saved:.1%} on the first half, at kept attainment"
        elif not np.isnan(saved):
            cost = "" if keeps else ", and lost attainment"
            said[KEPT] = f"scaleDown.maxStep stays: shrinking at once saved {saved:.1%} on the first half{cost}"
        breach_s = float(queue.breach_depth[w] * profiles.work_s[w])
        if breach_s < (spec.max_wait_s[w] if np.isnan(spec.ttft_objective_s[w]) else spec.first_token_limit_s[w]):
            wait_s[w] = max(round(breach_s, 3), 0.001)
            said["queue.maxWait"] = (
                f"from {queue.breach_depth[w]:.3g} waiting requests for each replica on, most requests missed"
            )
        rests.append(rest)
        reasons.append(said)
    windows_today = tuple("other windows" if number else "none" for number in half.windows)
    return _Plan(floor, ceiling, idle_s, step, wait_s, windows, windows_today, tuple(rests), tuple(reasons))


def _draft(plan: _Plan, w: int, spec: Spec, second_half: _SecondHalf) -> Draft:
    today, whole, constant, saved, kept = second_half
    lines = tuple(
        Line(
            field,
            *_values(plan, field, w, spec),
            plan.reasons[w][field],
            float(saved[field][w]),
            float(kept[field][w]),
        )
        for field in LINES
        if _has_line(plan, field, w, spec)
    )
    refusal = "the policy of today fits its shape"
    if np.isnan(plan.floor[w]):
        refusal = "it was seen for less than a day in the half of the history from which drafts are made"
    elif not today.requests[w] > 0:
        refusal = "no request came in the half of the history on which drafts are judged"
    elif lines:
        refusal = _refuse(
            (float(today.gpu_hours[w]), float(today.attainment[w])),
            (float(whole.gpu_hours[w]), float(whole.attainment[w])),
            float(spec.attainment[w]),
        )
    return Draft(
        lines=lines,
        kept=(*filter(None, (plan.reasons[w].get(KEPT),)), STABILIZATION_KEPT),
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


def _has_line(plan: _Plan, field: str, w: int, spec: Spec) -> bool:
    """Tell whether the draft of a service has a line: its value follows from the history, and is not that of today."""
    return field in plan.reasons[w] and len(set(_values(plan, field, w, spec))) == 2


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
    if field == "scaleDown.maxStep":
        fraction, count = float(spec.down_step_fraction[w]), float(spec.down_step_replicas[w])
        return "100%", f"{count:.0f}" if np.isnan(fraction) else f"{fraction:.0%}"
    if field == "prewarm":
        window = plan.windows[w]
        assert window is not None
        return " until ".join(window.cron) + f": {window_replicas(window)}", plan.windows_today[w]
    return show_duration(float(plan.wait_s[w])), show_duration(float(spec.max_wait_s[w]))
