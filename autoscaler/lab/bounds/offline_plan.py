"""The offline plan: a replica schedule made with the whole trace known, with the engines and the router of the case.

Its cost is an upper estimate of the optimum, as `lower_bound` is a lower one. It is the cheapest schedule found that
met the goal in the simulator, not the cheapest possible.

An option is the work averaged over a time, times a margin; averaged over the whole trace it is a constant count.
Constant counts are useful because a fleet without starts is never swamped by a backlog.

1. Every average runs with several margins over the whole trace, with finer steps where the goal begins to be met. This
   gives the cost and the misses of each option in each segment.
2. A mix chooses one option per segment: the cheapest in total for the allowed misses, with one price per miss.
3. Segments affect their neighbours, which the table does not show. So the mix is run, the table corrected, and a new
   mix chosen, several times.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.case import Case, View
from autoscaler.lab.replay.parallel.search import Call, Search, run_cost
from autoscaler.lab.replay.request_cost import request_work_s
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import Score, compute_score, meets_objectives

BIN_S = 5.0
SEGMENT_S = 300.0  # length of a segment, which has one option
HALVINGS = 3  # halvings of the step between a margin that misses the goal and one that meets it
ROUNDS = 12  # most rounds of mixing
MARGIN_GROWTH = 1.6  # growth of the margin if no option meets the goal
MOST_MARGIN = 60.0
DEAREST_MISS_S = 1e6  # most replica-seconds for one more request within its objectives


class Option(NamedTuple):
    """One way to derive replicas: the work averaged over `averaged_s` around each time, times a margin."""

    averaged_s: float
    margin: float


AVERAGED_S = (30.0, 120.0, 480.0, math.inf)
MARGINS = tuple(np.geomspace(0.7, 4.0, 7).tolist())
OPTIONS = tuple(Option(averaged_s, margin) for averaged_s in AVERAGED_S for margin in MARGINS)
RUNS = len(OPTIONS) + len(AVERAGED_S) * HALVINGS + ROUNDS  # most runs for one case, if an option meets the goal


@dataclass(frozen=True)
class PlannedCounts:
    """Desired replicas over time."""

    bin_s: float
    replicas: IntColumn  # int64[T], from `bin_s` x index on; the last count holds until the end


@dataclass(frozen=True)
class OfflinePlan:
    """A schedule, and the score of its run."""

    schedule: PlannedCounts
    score: Score


class OfflinePlanScaler:
    """A scaler that follows a schedule. Implements `case.Scaler`."""

    name = "planned"

    def __init__(self, schedule: PlannedCounts) -> None:
        self.period_s = schedule.bin_s
        self._replicas = schedule.replicas

    def decide(self, view: View) -> int:
        place = round(view.now_s / self.period_s)
        return int(self._replicas[min(place, len(self._replicas) - 1)])


def search_offline_plan(cases: Sequence[Case], place: int) -> Search[OfflinePlan]:
    """Search a cheap schedule that meets the goal for the case at `place` of the shared cases, in about `RUNS` runs.

    The case is planned on its own. If no schedule meets the goal, the result is the one with the best attainment.
    """
    cost = run_cost(cases[place])

    def rounds() -> Generator[list[Call], Any, OfflinePlan]:
        attempts = yield [Call(_run_uniform, (place, option), cost) for option in range(len(OPTIONS))]
        (plan,) = yield [Call(_run_mixed, (place, attempts), cost * (RUNS - len(OPTIONS)))]
        return cast(OfflinePlan, plan)

    return Search(rounds(), cost * RUNS)


@dataclass(frozen=True)
class _Attempt:
    """A run with one option per segment."""

    choice: IntColumn  # int64[segments], index of the option
    missed: FloatColumn  # float64[segments], requests by arrival
    desired_s: FloatColumn  # float64[segments], replica-seconds asked for
    score: Score


def _run_uniform(cases: Sequence[Case], place: int, option: int) -> _Attempt:
    """Run one option over a whole case; the first task of a worker."""
    search = _Planner(cases[place])
    return search.attempt(np.full(search.segments, option))


def _run_mixed(cases: Sequence[Case], place: int, attempts: list[_Attempt]) -> OfflinePlan:
    """Mix the options of a case; the second task of a worker."""
    case = cases[place]
    search = _Planner(case)
    attempts = [*attempts, *_refine_margins(case, search, attempts)]
    best = attempts[0]
    for attempt in attempts[1:]:
        best = _choose_better(case, attempt, best)
    while not _meets(case, best) and search.options[-1].margin * MARGIN_GROWTH <= MOST_MARGIN:
        wider = search.everywhere(Option(AVERAGED_S[0], search.options[-1].margin * MARGIN_GROWTH))
        attempts.append(wider)
        best = _choose_better(case, wider, best)
        if best is not wider:  # more replicas do not help
            break
    missed, desired_s = (np.array([getattr(each, name) for each in attempts]) for name in ("missed", "desired_s"))
    allowed = case.goal.allowed_misses(len(case.trace.arrival_s))
    aim, everywhere = float(allowed), np.arange(search.segments)
    ran: dict[bytes, _Attempt] = {}  # results by mix, since a repeated mix gives the same result
    for _ in range(ROUNDS):
        choice = _choose_cheapest(missed, desired_s, aim)
        attempt = ran.get(choice.tobytes()) or search.attempt(choice)
        ran[choice.tobytes()] = attempt
        best = _choose_better(case, attempt, best)
        # Half of the old estimate stays, because the new values also reflect the neighbours in this mix.
        for believed, found in ((missed, attempt.missed), (desired_s, attempt.desired_s)):
            believed[attempt.choice, everywhere] = (believed[attempt.choice, everywhere] + found) / 2
        aim *= math.sqrt(min(max(allowed / max(float(attempt.missed.sum()), 1.0), 0.5), 2.0))
    return OfflinePlan(search.schedule(best.choice), best.score)


def _refine_margins(case: Case, search: _Planner, attempts: Sequence[_Attempt]) -> list[_Attempt]:
    """For each average, halve the margin step at which the goal begins to be met."""
    finer = []
    for place, averaged_s in enumerate(AVERAGED_S):
        meets = [_meets(case, each) for each in attempts[place * len(MARGINS) :][: len(MARGINS)]]
        if True not in meets[1:] or meets[0]:
            continue
        low, high = MARGINS[meets.index(True) - 1], MARGINS[meets.index(True)]
        for _ in range(HALVINGS):
            middle = math.sqrt(low * high)
            finer.append(search.everywhere(Option(averaged_s, middle)))
            low, high = (low, middle) if _meets(case, finer[-1]) else (middle, high)
    return finer


def _choose_cheapest(missed: FloatColumn, desired_s: FloatColumn, allowed_misses: float) -> IntColumn:
    """Choose one option per segment: the cheapest in total with at most `allowed_misses` misses.

    missed, desired_s: float64[options, segments], requests and replica-seconds. If the misses cannot be that few,
    choose the fewest.
    """
    everywhere = np.arange(missed.shape[1])
    low, high = 1 / DEAREST_MISS_S, DEAREST_MISS_S
    for _ in range(50):
        price_s = math.sqrt(low * high)
        choice = np.argmin(desired_s + price_s * missed, axis=0)
        low, high = (low, price_s) if missed[choice, everywhere].sum() <= allowed_misses else (price_s, high)
    cheapest: IntColumn = np.argmin(desired_s + high * missed, axis=0)
    return cheapest


def _meets(case: Case, attempt: _Attempt) -> bool:
    return case.goal.is_met_by(attempt.score.attainment)


def _choose_better(case: Case, one: _Attempt, other: _Attempt) -> _Attempt:
    """Return the cheaper of two attempts that meet the goal, else the one that comes closer."""
    if _meets(case, one) and _meets(case, other):
        return one if one.score.gpu_hours < other.score.gpu_hours else other
    return one if one.score.attainment > other.score.attainment else other


class _Planner:
    """Makes and runs schedules of one case."""

    def __init__(self, case: Case) -> None:
        self.segments = max(math.ceil(case.trace.duration_s / SEGMENT_S), 1)
        self.options = list(OPTIONS)
        self._case = case
        self._bins = max(math.ceil(case.trace.duration_s / BIN_S), 1)
        place = np.minimum((case.trace.arrival_s / BIN_S).astype(np.int64), self._bins - 1)
        prefill_s, decode_s = request_work_s(case)
        self._load = np.bincount(place, prefill_s + decode_s, minlength=self._bins) / BIN_S
        self._segment_of_bin = self._segments_of(np.arange(self._bins, dtype=np.float64) * BIN_S)
        self._segment_of_request = self._segments_of(case.trace.arrival_s)

    def schedule(self, choice: IntColumn) -> PlannedCounts:
        needed = np.zeros(self._bins, np.int64)
        for index in np.unique(choice).tolist():
            averaged_s, margin = self.options[index]
            here = choice[self._segment_of_bin] == index
            needed[here] = np.ceil(_windowed_mean(self._load, averaged_s / BIN_S) * margin - 1e-9)[here]
        return _ask_ahead(self._case, needed)

    def everywhere(self, option: Option) -> _Attempt:
        """Add an option to `options` and run it over the whole case."""
        self.options.append(option)
        return self.attempt(np.full(self.segments, len(self.options) - 1))

    def attempt(self, choice: IntColumn) -> _Attempt:
        schedule = self.schedule(choice)
        outcome = run(self._case, OfflinePlanScaler(schedule))
        ttft_met, itl_met = meets_objectives(self._case.goal, outcome.ttft_s, outcome.itl_s)
        missed = np.bincount(self._segment_of_request, ~(ttft_met & itl_met), self.segments).astype(np.float64)
        desired_s = np.bincount(self._segment_of_bin, schedule.replicas * BIN_S, self.segments).astype(np.float64)
        return _Attempt(choice, missed, desired_s, compute_score(self._case, outcome))

    def _segments_of(self, time_s: FloatColumn) -> IntColumn:
        place: IntColumn = np.minimum((time_s / SEGMENT_S).astype(np.int64), self.segments - 1)
        return place


def _ask_ahead(case: Case, needed: IntColumn) -> PlannedCounts:
    """Request replicas one lead time ahead, and keep them through short valleys. needed: int64[bins]."""
    # A start costs as much as a replica that idles for the same time, so shorter valleys are bridged.
    valley = max(round(case.cold_start_s / BIN_S), 1)
    needed = -_windowed_max(-_windowed_max(needed, 0, valley), valley, 0)
    desired = _windowed_max(needed, 0, _lead_bins(case, case.cold_start_s))
    if case.cold_start_uncached_s > case.cold_start_s:
        # A new maximum may need a fresh node, whose starts take longer.
        before = np.maximum.accumulate(np.concatenate([[case.start_replicas], needed[:-1]]))
        first = np.where(needed > before, needed, 0)
        desired = np.maximum(desired, _windowed_max(first, 0, _lead_bins(case, case.cold_start_uncached_s)))
    return PlannedCounts(BIN_S, np.minimum(desired, case.max_replicas))


def _lead_bins(case: Case, cold_start_s: float) -> int:
    """Return the duration of a late cold start in bins: two standard deviations above the mean."""
    return math.ceil(cold_start_s * math.exp(2 * case.cold_start_spread) / BIN_S) + 1


def _windowed_max(values: IntColumn, before: int, after: int) -> IntColumn:
    """Return the maximum of each value, the `before` values before it and the `after` values after it."""
    padded = np.pad(values, (before, after), mode="edge")
    window = before + after + 1
    highest: IntColumn = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return highest


def _windowed_mean(values: FloatColumn, bins: float) -> FloatColumn:
    """Return the mean over about `bins` values around each value; at the ends, over the existing ones."""
    if math.isinf(bins):
        return np.full(len(values), values.mean())
    kernel = np.ones(min(max(round(bins), 1), len(values)))
    total = np.convolve(values, kernel, mode="same")
    mean: FloatColumn = total / np.convolve(np.ones(len(values)), kernel, mode="same")
    return mean
