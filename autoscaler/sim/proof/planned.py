"""A schedule made with the whole trace in hand: what knowing the future is worth with these engines and this router.

It is an upper estimate of the best there is, as `clairvoyant` is a lower one: between the two lies what is not known.
Not the best schedule, only one that meets the goal in the simulator and was made cheaper until it nearly did not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autoscaler.core.columns import FloatColumn, IntColumn
from autoscaler.sim.study.case import Case, Outcome, View
from autoscaler.sim.study.run import run
from autoscaler.sim.study.score import Row, summarize
from autoscaler.sim.study.work import request_work_s

BIN_S = 5.0
SEGMENT_S = 300.0  # of one margin
AVERAGED_S = (5.0, 30.0, 120.0)
LEAST_MARGIN = 0.3
MOST_MARGIN = 8.0
HALVINGS = 7  # of the common margin
STEP = 1.12  # by which margins of single segments are changed


@dataclass(frozen=True)
class Schedule:
    """Replicas wanted over time."""

    bin_s: float
    replicas: IntColumn  # int64[T], from `bin_s` x index on; the last stands until the end


@dataclass(frozen=True)
class Plan:
    """A schedule, and what became of it."""

    schedule: Schedule
    row: Row


class Planned:
    """Follows a schedule. Implements `study.Scaler`."""

    name = "planned"

    def __init__(self, schedule: Schedule) -> None:
        self.period_s = schedule.bin_s
        self._replicas = schedule.replicas

    def decide(self, view: View) -> int:
        place = round(view.now_s / self.period_s)
        return int(self._replicas[min(place, len(self._replicas) - 1)])


def planned(case: Case, rounds: int = 8, progress: Callable[[float], None] | None = None) -> Plan:
    """Search a cheap schedule that meets the goal of `case`, in some 20 + `rounds` runs.

    First, for the work averaged over different times, one margin over it is halved in on for all the trace. Then single
    segments of the best get more where requests missed and less where none did. If no margin meets the goal, the plan
    with the best attainment is returned. progress: called with the done part, 0..1.
    """
    search = _Search(case, len(AVERAGED_S) * HALVINGS + rounds, progress)
    for averaged_s in AVERAGED_S:
        low, high = LEAST_MARGIN, MOST_MARGIN
        for _ in range(HALVINGS):
            middle = math.sqrt(low * high)
            attempt = search.attempt(averaged_s, np.full(search.segments, middle))
            low, high = (low, middle) if attempt.meets else (middle, high)
    allowed = 1 - case.goal.attainment
    tried = search.best
    for _ in range(rounds):
        margins = np.where(tried.missed > 2 * allowed, tried.margins * STEP, tried.margins)
        margins = np.where(tried.missed < allowed / 4, margins / STEP, margins)
        if not tried.meets:
            margins = margins * math.sqrt(STEP)
        tried = search.attempt(tried.averaged_s, np.maximum(margins, LEAST_MARGIN))
    return search.best.plan


@dataclass(frozen=True)
class _Attempt:
    averaged_s: float
    margins: FloatColumn  # float64[segments]
    missed: FloatColumn  # float64[segments], share of the requests
    plan: Plan
    meets: bool


class _Search:
    """Runs schedules and remembers the best."""

    def __init__(self, case: Case, runs: int, progress: Callable[[float], None] | None) -> None:
        self.segments = max(math.ceil(case.trace.duration_s / SEGMENT_S), 1)
        self._case, self._runs, self._progress = case, runs, progress
        self._done = 0
        self._best: _Attempt | None = None

    @property
    def best(self) -> _Attempt:
        assert self._best is not None
        return self._best

    def attempt(self, averaged_s: float, margins: FloatColumn) -> _Attempt:
        schedule = _schedule(self._case, averaged_s, margins)
        outcome = run(self._case, Planned(schedule))
        row = summarize(self._case, outcome)
        missed = _missed_share(self._case, outcome, self.segments)
        meets = row.attainment >= self._case.goal.attainment
        attempt = _Attempt(averaged_s, margins, missed, Plan(schedule, row), meets)
        if self._best is None or _better(attempt, self._best):
            self._best = attempt
        self._done += 1
        if self._progress:
            self._progress(min(self._done / self._runs, 1.0))
        return attempt


def _better(attempt: _Attempt, than: _Attempt) -> bool:
    """Whether an attempt is cheaper among those that meet the goal, else whether it comes nearer to it."""
    if attempt.meets and than.meets:
        return attempt.plan.row.gpu_hours < than.plan.row.gpu_hours
    return attempt.plan.row.attainment > than.plan.row.attainment


def _missed_share(case: Case, outcome: Outcome, segments: int) -> FloatColumn:
    missed = ~((outcome.ttft_s <= case.goal.ttft_s) & (outcome.itl_s <= case.goal.itl_s))
    place = np.minimum((case.trace.arrival_s / SEGMENT_S).astype(np.int64), segments - 1)
    asked = np.bincount(place, minlength=segments)
    share: FloatColumn = np.bincount(place, missed, minlength=segments) / np.maximum(asked, 1)
    return share


def _schedule(case: Case, averaged_s: float, margins: FloatColumn) -> Schedule:
    """Want as many replicas as the work takes, `margins` times; early enough, and kept through short valleys.

    The work is averaged over `averaged_s` around each bin; margins: float64[segments].
    """
    trace = case.trace
    bins = max(math.ceil(trace.duration_s / BIN_S), 1)
    place = np.minimum((trace.arrival_s / BIN_S).astype(np.int64), bins - 1)
    prefill_s, decode_s = request_work_s(case)
    load = np.bincount(place, prefill_s + decode_s, minlength=bins) / BIN_S
    load = _mean(load, round(averaged_s / BIN_S))
    segment = np.minimum((np.arange(bins) * BIN_S / SEGMENT_S).astype(np.int64), len(margins) - 1)
    needed = np.ceil(load * margins[segment] - 1e-9).astype(np.int64)
    # A start costs as much as a replica that idles for as long: shorter valleys are not worth leaving.
    valley = max(round(case.cold_start_s / BIN_S), 1)
    needed = -_highest(-_highest(needed, 0, valley), valley, 0)
    lead = math.ceil(case.cold_start_s * math.exp(2 * case.cold_start_spread) / BIN_S) + 1
    wanted = np.minimum(_highest(needed, 0, lead), case.max_replicas)
    return Schedule(BIN_S, wanted)


def _highest(values: IntColumn, before: int, after: int) -> IntColumn:
    """Return the highest of each value, `before` ones before it and `after` ones after it."""
    padded = np.pad(values, (before, after), mode="edge")
    window = before + after + 1
    highest: IntColumn = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return highest


def _mean(values: FloatColumn, bins: int) -> FloatColumn:
    """Return the mean of each value and its neighbours, `bins` in all; at the ends of those that exist."""
    kernel = np.ones(min(max(bins, 1), len(values)))
    total = np.convolve(values, kernel, mode="same")
    mean: FloatColumn = total / np.convolve(np.ones(len(values)), kernel, mode="same")
    return mean
