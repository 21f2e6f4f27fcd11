"""Request by request: some hours of the dearest services, with the real counts and with those of this policy.

The fluid figures know no single requests. So the worst hour and an ordinary hour of some services are replayed on
simulated engines with the speed that was learned. With the real counts the replay shows the error of the simulation,
beside what the engines measured. With the policy's counts it shows the error of the fluid figure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autoscaler.adapters.prometheus.range.resample import WorkloadHistory
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.case import Case, Goal, Trace, View
from autoscaler.lab.replay.inputs.from_history import NoRequests, RecordedScaler, count_replicas, to_score, to_trace
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from autoscaler.ports import Unavailable
from autoscaler.report.columns import ACTUAL, POLICY
from autoscaler.report.fluid import Course
from autoscaler.report.past import ReadPast
from autoscaler.report.report import FleetReport
from autoscaler.report.sampled import Hour, find_doubt
from autoscaler.report.verdict import judged_services
from autoscaler.sim.engine.profiles import Profile

MOST_SERVICES = 5
MOST_S = 120.0
"""Time for the whole sample. Hours that do not fit are left out."""

HOUR_S, WARM_UP_S = 3600.0, 900.0
MOST_REQUESTS = 400_000
"""Requests of one hour that are replayed. An hour with more is left out."""

LONGEST_CONTEXT = 131_072


def sample(
    report: FleetReport, read: ReadPast, progress: Callable[[float], None] = lambda _: None, seed: int = 1
) -> FleetReport:
    """Replay some hours; return the report with them, and with the doubts that they raise."""
    began_s, hours, notes = time.monotonic(), list[Hour](), list[str]()
    wanted = _choose(report)
    for number, (row, kind, start_s) in enumerate(wanted):
        progress(number / len(wanted))
        if time.monotonic() - began_s > MOST_S:
            notes.append(f"{len(wanted) - number} of {len(wanted)} sampled hours were left out: time was up")
            break
        try:
            hours.append(_replay(report, read, row, kind, start_s, seed))
        except (Unavailable, ValueError) as error:
            notes.append(f"the {kind} hour of {report.services[row]} was not replayed: {error}")
    progress(1.0)
    doubts = list(report.doubts)
    for hour in hours:
        doubts[hour.row] = doubts[hour.row] or hour.doubt
    return replace(
        report,
        sampled=tuple(hours),
        doubts=tuple(doubts),
        modelled=report.modelled & np.array([not doubt for doubt in doubts], bool),
        notes=(*report.notes, *notes),
    )


def _choose(report: FleetReport) -> list[tuple[int, str, float]]:
    """Return row, kind and begin of the hours: the worst and an ordinary one of the dearest services."""
    was, load = report.entry(ACTUAL).outcome, report.load
    gpu_hours = np.where(judged_services(report), was.gpu_hours, 0.0)
    dearest = [row for row in np.argsort(-gpu_hours, kind="stable").tolist() if gpu_hours[row] > 0][:MOST_SERVICES]
    steps = round(HOUR_S / load.span.step_s)
    starts = np.arange(round(WARM_UP_S / load.span.step_s), load.span.steps - steps, steps)
    chosen = []
    for row in dearest:
        whole = np.array([load.seen[at : at + steps, row].all() for at in starts.tolist()], bool)
        asked = np.array([load.arrivals[at : at + steps, row].sum() for at in starts.tolist()])
        usable = np.flatnonzero(whole & (asked >= 1) & (asked <= MOST_REQUESTS))
        begins = starts[usable] - round(WARM_UP_S / load.span.step_s)
        unqueued = load.waiting[begins, row] <= np.maximum(load.pods[begins, row], 1)  # a replay begins without a queue
        usable = usable[unqueued] if unqueued.any() else usable
        if not len(usable):
            continue
        missed = report.entry(ACTUAL).course.missed
        lost = np.array([missed[at : at + steps, row].sum() for at in starts[usable].tolist()])
        worst = usable[np.argmax(np.where(lost > 0.5, lost * 1e6, 0.0) + asked[usable])]
        usual = usable[np.argsort(asked[usable])[len(usable) // 2]]
        at_s = load.span.start_s + starts * load.span.step_s
        chosen += [(row, "worst", float(at_s[worst])), (row, "ordinary", float(at_s[usual]))][: 1 + (usual != worst)]
    return chosen


def _replay(report: FleetReport, read: ReadPast, row: int, kind: str, start_s: float, seed: int) -> Hour:
    name = report.services[row]
    goal = _goal(report, row)
    past = read(name, start_s - WARM_UP_S, start_s + HOUR_S, goal)
    try:
        trace = to_trace(past, str(name), seed)
    except NoRequests as error:
        raise ValueError(str(error)) from error
    counted = past.since(WARM_UP_S)
    case = _case(report, row, goal, trace, past)
    scaler = RecordedScaler(past, case.cold_start_s)
    begin = int(max(count_replicas(past)[0], 1))  # the first moments may lie before the first scrape
    outcome = run(replace(case, start_replicas=begin), scaler)
    policy = report.entry(POLICY).course
    by_policy = run(_start_as(case, policy, report, row, start_s), _CourseScaler(policy, report, row, start_s))
    steps = slice(
        *(round((at_s - report.load.span.start_s) / report.load.span.step_s) for at_s in (start_s, start_s + HOUR_S))
    )
    arrivals, missed = report.load.arrivals[steps, row].sum(), policy.missed[steps, row].sum()
    hour = Hour(
        row=row,
        kind=kind,
        start_s=start_s,
        requests=int((trace.arrival_s >= WARM_UP_S).sum()),
        measured=to_score(counted, case.goal, 1.0, case.cold_start_s),
        replayed=compute_score(case, outcome),
        measured_itl_s=_mean_itl(report, row, steps),
        replayed_itl_s=_finite_mean(outcome.itl_s[trace.arrival_s >= WARM_UP_S]),
        measured_waiting=float(np.nanmean(counted.waiting)),
        replayed_waiting=_mean_waiting(outcome.timeline),
        fluid_attainment=float(1 - missed / max(arrivals, 1e-9)),
        policy_attainment=compute_score(case, by_policy).attainment,
        doubt="",
    )
    p = report.profiles
    work_s = float(p.work_s[row])
    late = float(p.max_queue_s[row]) / work_s * max(float(np.nanmean(counted.pods)), 1.0) if work_s > 0 else math.inf
    return replace(hour, doubt=find_doubt(hour, case.goal, late))


def _goal(report: FleetReport, row: int) -> Goal:
    spec = report.spec
    return Goal(float(spec.first_token_limit_s[row]), float(spec.itl_objective_s[row]), float(spec.attainment[row]))


def _case(report: FleetReport, row: int, goal: Goal, trace: Trace, past: WorkloadHistory) -> Case:
    profile = make_profile(report, row)
    longest = min(profile.max_model_len, profile.kv_capacity_tokens - profile.block_size)
    prompt = np.minimum(trace.prompt_tokens, longest - 1)
    output = np.minimum(trace.output_tokens, longest - prompt)
    most = max(int(np.nanmax(past.pods, initial=1)), int(report.entry(POLICY).course.wanted[:, row].max()), 1)
    return Case(
        trace=replace(trace, prompt_tokens=prompt, output_tokens=output),
        profile=profile,
        goal=goal,
        cold_start_s=float(report.profiles.cold_start_s[row]),
        max_replicas=most,
        counted_from_s=WARM_UP_S,
    )


def make_profile(report: FleetReport, row: int) -> Profile:
    """Return the simulated engine of a service, as far as its history shows it.

    The time of a generated token was learned with its context, so contexts cost nothing beyond it. The cache holds as
    many tokens as the running requests and their share of it suggest.
    """
    p, load = report.profiles, report.load
    idle_gap_s = float(p.idle_gap_s[row])
    output_s = _known(p.output_token_s[row], idle_gap_s / 110)
    slots = int(_known(p.slots[row], 256))
    used = (load.kv_usage[:, row] > 0.01) & (load.pods[:, row] > 0)
    served = max(float(load.arrivals[:, row].sum()), 1.0)
    context = (load.prompt_tokens[:, row].sum() + load.output_tokens[:, row].sum() / 2) / served
    capacity = LONGEST_CONTEXT * 8.0
    if used.any():
        per_pod = load.running[used, row] / load.pods[used, row]
        capacity = float(np.median(per_pod / load.kv_usage[used, row])) * context
    capacity = max(capacity, 4096.0)
    return Profile(
        step_s=max(idle_gap_s - output_s, 0.1 * idle_gap_s),
        sequence_s=output_s,
        kv_token_s=0.0,
        prompt_token_s=_known(p.prompt_token_s[row], idle_gap_s / 160),
        kv_capacity_tokens=int(capacity),
        max_num_seqs=slots,
        max_model_len=int(min(LONGEST_CONTEXT, capacity - 16)),
        max_batched_tokens=max(8192, slots + 1),
    )


class _CourseScaler:
    """A scaler that orders what a course did."""

    name = "course"
    period_s = 15.0

    def __init__(self, course: Course, report: FleetReport, row: int, start_s: float) -> None:
        self._wanted, self._span = course.wanted[:, row], report.load.span
        self._start_s = start_s - WARM_UP_S

    def decide(self, view: View) -> int:
        step = int((self._start_s + view.now_s - self._span.start_s) / self._span.step_s)
        return int(self._wanted[min(max(step, 0), len(self._wanted) - 1)])


def _start_as(case: Case, course: Course, report: FleetReport, row: int, start_s: float) -> Case:
    step = round((start_s - WARM_UP_S - report.load.span.start_s) / report.load.span.step_s)
    return replace(case, start_replicas=int(course.ready[max(step, 0), row]))


def _mean_itl(report: FleetReport, row: int, steps: slice) -> float:
    """Return the mean token gap that was measured, by the share of time that replicas were busy."""
    gaps = report.load.gap_s[steps, row]
    return float(np.nanmean(gaps)) if np.isfinite(gaps).any() else math.nan


def _mean_waiting(timeline: FloatColumn) -> float:
    inside = (timeline[:, 0] >= WARM_UP_S) & (timeline[:, 0] <= WARM_UP_S + HOUR_S)
    return float(timeline[inside, 4].mean()) if inside.any() else math.nan


def _finite_mean(values: FloatColumn) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _known(value: float, otherwise: float) -> float:
    return float(value) if math.isfinite(value) and value > 0 else otherwise
