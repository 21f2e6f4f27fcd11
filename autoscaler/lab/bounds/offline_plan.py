"""A schedule made with the whole trace in hand: what knowing the future is worth with these engines and this router.

It is an upper estimate of the best there is, as `clairvoyant` is a lower one: between the two lies what is not known.
Not the best schedule, only the cheapest found that met the goal in the simulator.

A schedule wants the work of the moment, averaged over some time, times a margin; over all of it that is a constant
count, for who starts no replica swamps none with what the others cannot take. Every average is run with several
margins over the whole trace, more of them where the goal begins to be met. That tells for each segment of the trace
what each of these options costs there, and how many requests miss. Then every segment gets its own: the options that
cost least in all for as many misses as are allowed, by a price per miss that is the same everywhere. What segments do
to their neighbours is not in that table, so the mix is run, the table corrected by what came out, and a new mix chosen,
some times over.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.case import Case, View
from autoscaler.lab.replay.request_cost import request_work_s
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import Row, summarize, within
from autoscaler.lab.replay.search import Call, Search, run_cost

BIN_S = 5.0
SEGMENT_S = 300.0  # that has one option
HALVINGS = 3  # of the step between the margins of which one meets the goal and the other does not
ROUNDS = 12  # of mixing, at most
WIDER = 1.6  # steps of the margin where no option meets the goal
MOST_MARGIN = 60.0
DEAREST_MISS_S = 1e6  # replica-seconds that a request within its objectives may cost, at most


class Option(NamedTuple):
    """One way to want replicas: the work averaged over so long around each moment, times a margin."""

    averaged_s: float
    margin: float


AVERAGED_S = (30.0, 120.0, 480.0, math.inf)
MARGINS = tuple(np.geomspace(0.7, 4.0, 7).tolist())
OPTIONS = tuple(Option(averaged_s, margin) for averaged_s in AVERAGED_S for margin in MARGINS)
RUNS = len(OPTIONS) + len(AVERAGED_S) * HALVINGS + ROUNDS  # for one case, at most where an option meets the goal


@dataclass(frozen=True)
class Timetable:
    """Replicas wanted over time."""

    bin_s: float
    replicas: IntColumn  # int64[T], from `bin_s` x index on; the last stands until the end


@dataclass(frozen=True)
class PlannedRun:
    """A schedule, and what became of it."""

    schedule: Timetable
    row: Row


class Planned:
    """Follows a schedule. Implements `case.Scaler`."""

    name = "planned"

    def __init__(self, schedule: Timetable) -> None:
        self.period_s = schedule.bin_s
        self._replicas = schedule.replicas

    def decide(self, view: View) -> int:
        place = round(view.now_s / self.period_s)
        return int(self._replicas[min(place, len(self._replicas) - 1)])


def planning(cases: Sequence[Case], place: int) -> Search[PlannedRun]:
    """Search a cheap schedule that meets the goal for one of the cases that the calls share, in about `RUNS` runs.

    It is planned as if it were alone. If no schedule meets the goal, the one with the best attainment is found.
    """
    cost = run_cost(cases[place])

    def rounds() -> Generator[list[Call], Any, PlannedRun]:
        attempts = yield [Call(_uniform, (place, option), cost) for option in range(len(OPTIONS))]
        (plan,) = yield [Call(_mixed, (place, attempts), cost * (RUNS - len(OPTIONS)))]
        return cast(PlannedRun, plan)

    return Search(rounds(), cost * RUNS)


@dataclass(frozen=True)
class _Attempt:
    """A run of one option per segment."""

    choice: IntColumn  # int64[segments], index of the option
    missed: FloatColumn  # float64[segments], requests by arrival
    wanted_s: FloatColumn  # float64[segments], replica-seconds asked for
    row: Row


def _uniform(cases: Sequence[Case], place: int, option: int) -> _Attempt:
    """Run one option over all of one case: what a worker does first."""
    search = _Search(cases[place])
    return search.attempt(np.full(search.segments, option))


def _mixed(cases: Sequence[Case], place: int, attempts: list[_Attempt]) -> PlannedRun:
    """Mix the options of one case: what a worker does then."""
    case = cases[place]
    search = _Search(case)
    attempts = [*attempts, *_finer(case, search, attempts)]
    best = attempts[0]
    for attempt in attempts[1:]:
        best = _better(case, attempt, best)
    while not _meets(case, best) and search.options[-1].margin * WIDER <= MOST_MARGIN:
        wider = search.everywhere(Option(AVERAGED_S[0], search.options[-1].margin * WIDER))
        attempts.append(wider)
        best = _better(case, wider, best)
        if best is not wider:  # still more replicas do not help
            break
    missed, wanted_s = (np.array([getattr(each, name) for each in attempts]) for name in ("missed", "wanted_s"))
    allowed = case.goal.may_miss(len(case.trace.arrival_s))
    aim, everywhere = float(allowed), np.arange(search.segments)
    ran: dict[bytes, _Attempt] = {}  # a mix that comes again comes out as it did
    for _ in range(ROUNDS):
        choice = _cheapest(missed, wanted_s, aim)
        attempt = ran.get(choice.tobytes()) or search.attempt(choice)
        ran[choice.tobytes()] = attempt
        best = _better(case, attempt, best)
        # Half of what was believed stays: what came out is due to the neighbours of this mix too.
        for believed, found in ((missed, attempt.missed), (wanted_s, attempt.wanted_s)):
            believed[attempt.choice, everywhere] = (believed[attempt.choice, everywhere] + found) / 2
        aim *= math.sqrt(min(max(allowed / max(float(attempt.missed.sum()), 1.0), 0.5), 2.0))
    return PlannedRun(search.schedule(best.choice), best.row)


def _finer(case: Case, search: _Search, attempts: Sequence[_Attempt]) -> list[_Attempt]:
    """Halve for each average the step of the margin at which the goal begins to be met, some times."""
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


def _cheapest(missed: FloatColumn, wanted_s: FloatColumn, may_miss: float) -> IntColumn:
    """Choose one option per segment: the cheapest in all, up to the last price, with at most so many misses.

    missed, wanted_s: float64[options, segments]. If there are more misses anyhow, the fewest there can be.
    """
    everywhere = np.arange(missed.shape[1])
    low, high = 1 / DEAREST_MISS_S, DEAREST_MISS_S
    for _ in range(50):
        price_s = math.sqrt(low * high)
        choice = np.argmin(wanted_s + price_s * missed, axis=0)
        low, high = (low, price_s) if missed[choice, everywhere].sum() <= may_miss else (price_s, high)
    cheapest: IntColumn = np.argmin(wanted_s + high * missed, axis=0)
    return cheapest


def _meets(case: Case, attempt: _Attempt) -> bool:
    return case.goal.met_by(attempt.row.attainment)


def _better(case: Case, one: _Attempt, other: _Attempt) -> _Attempt:
    """Return the cheaper of two that meet the goal, else the one that comes nearer to it."""
    if _meets(case, one) and _meets(case, other):
        return one if one.row.gpu_hours < other.row.gpu_hours else other
    return one if one.row.attainment > other.row.attainment else other


class _Search:
    """Makes schedules of one case out of options, and runs them."""

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

    def schedule(self, choice: IntColumn) -> Timetable:
        needed = np.zeros(self._bins, np.int64)
        for index in np.unique(choice).tolist():
            averaged_s, margin = self.options[index]
            here = choice[self._segment_of_bin] == index
            needed[here] = np.ceil(_mean(self._load, averaged_s / BIN_S) * margin - 1e-9)[here]
        return _in_time(self._case, needed)

    def everywhere(self, option: Option) -> _Attempt:
        """Run an option that is none of `OPTIONS` over all of the case; from now on it may be chosen."""
        self.options.append(option)
        return self.attempt(np.full(self.segments, len(self.options) - 1))

    def attempt(self, choice: IntColumn) -> _Attempt:
        schedule = self.schedule(choice)
        outcome = run(self._case, Planned(schedule))
        ttft_met, itl_met = within(self._case.goal, outcome.ttft_s, outcome.itl_s)
        missed = np.bincount(self._segment_of_request, ~(ttft_met & itl_met), self.segments).astype(np.float64)
        wanted_s = np.bincount(self._segment_of_bin, schedule.replicas * BIN_S, self.segments).astype(np.float64)
        return _Attempt(choice, missed, wanted_s, summarize(self._case, outcome))

    def _segments_of(self, time_s: FloatColumn) -> IntColumn:
        place: IntColumn = np.minimum((time_s / SEGMENT_S).astype(np.int64), self.segments - 1)
        return place


def _in_time(case: Case, needed: IntColumn) -> Timetable:
    """Ask for what is needed early enough, and keep it through short valleys. needed: int64[bins]."""
    # A start costs as much as a replica that idles for as long: shorter valleys are not worth leaving.
    valley = max(round(case.cold_start_s / BIN_S), 1)
    needed = -_highest(-_highest(needed, 0, valley), valley, 0)
    wanted = _highest(needed, 0, _lead(case, case.cold_start_s))
    if case.cold_start_uncached_s > case.cold_start_s:
        # More than ever before may need a node that was never used, where a start takes longer.
        before = np.maximum.accumulate(np.concatenate([[case.start_replicas], needed[:-1]]))
        first = np.where(needed > before, needed, 0)
        wanted = np.maximum(wanted, _highest(first, 0, _lead(case, case.cold_start_uncached_s)))
    return Timetable(BIN_S, np.minimum(wanted, case.max_replicas))


def _lead(case: Case, cold_start_s: float) -> int:
    """Return the bins that a late cold start takes: two standard deviations above the mean."""
    return math.ceil(cold_start_s * math.exp(2 * case.cold_start_spread) / BIN_S) + 1


def _highest(values: IntColumn, before: int, after: int) -> IntColumn:
    """Return the highest of each value, `before` ones before it and `after` ones after it."""
    padded = np.pad(values, (before, after), mode="edge")
    window = before + after + 1
    highest: IntColumn = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return highest


def _mean(values: FloatColumn, bins: float) -> FloatColumn:
    """Return the mean of each value and its neighbours, about `bins` in all; at the ends of those that exist."""
    if math.isinf(bins):
        return np.full(len(values), values.mean())
    kernel = np.ones(min(max(round(bins), 1), len(values)))
    total = np.convolve(values, kernel, mode="same")
    mean: FloatColumn = total / np.convolve(np.ones(len(values)), kernel, mode="same")
    return mean
