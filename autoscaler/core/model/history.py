"""What metrics tell of one workload over a stretch of time: history on an even grid, for replay. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero, replace
from autoscaler.core.table.histogram import increase


@dataclass(frozen=True)
class Latencies:
    """A latency histogram, window by window."""

    bounds: FloatColumn  # float64[B], seconds, ascending, +Inf last
    counts: FloatColumn  # float64[M, B], observations of each window, cumulative over the bounds; NaN: not known

    @classmethod
    def none(cls) -> Latencies:
        """Nothing is known."""
        return cls(np.array([np.inf]), np.empty((0, 1)))


@dataclass(frozen=True)
class Past:
    """One workload from `start_s` on, in T steps. Every column float64[T]; NaN: nobody reported in that step."""

    start_s: float  # Unix time
    step_s: float
    pods: FloatColumn  # that reported, averaged over the step
    pods_added: FloatColumn  # that began to report within the step, though others did before; never NaN
    running: FloatColumn  # requests, averaged over the step
    waiting: FloatColumn
    arrivals: FloatColumn  # requests that came within the step: those that ended, and what was added in flight
    finished: FloatColumn  # requests that ended within the step
    first_tokens: FloatColumn  # requests that got their first token within the step
    prompt_tokens: FloatColumn  # computed within the step
    generation_tokens: FloatColumn
    window_s: float  # of the latencies: window m begins at start_s + m x window_s
    ttft: Latencies
    itl: Latencies  # mean gap of each request; single gaps where the engine tells no more, which `problems` then says
    problems: tuple[str, ...] = ()  # holes, resets and the like, one line each

    @property
    def duration_s(self) -> float:
        return len(self.pods) * self.step_s

    def since(self, later_s: float) -> Past:
        """Return what came so many seconds after the start, from the next whole step and the next whole window on."""
        step, window = (math.ceil(later_s / each_s - 1e-9) for each_s in (self.step_s, self.window_s))
        columns = {name: getattr(self, name)[step:] for name in (*COLUMNS, *COUNTERS)}
        ttft, itl = (replace(each, counts=each.counts[window:]) for each in (self.ttft, self.itl))
        return replace(self, start_s=self.start_s + step * self.step_s, ttft=ttft, itl=itl, **columns)


@dataclass(frozen=True)
class EngineSeries:
    """What was scraped of one engine; every column float64[n], in the order of time, without repeated samples."""

    pod: str
    time_s: FloatColumn
    running: FloatColumn
    waiting: FloatColumn
    finished: FloatColumn  # counters, as they were read
    first_tokens: FloatColumn
    prompt_tokens: FloatColumn
    generation_tokens: FloatColumn


COLUMNS = ("pods", "pods_added", "running", "waiting", "arrivals")
COUNTERS = ("finished", "first_tokens", "prompt_tokens", "generation_tokens")
RESET_BY = ("finished", "first_tokens", "generation_tokens")  # one of them alone may be too young to go back
MOST_STEPS = 1_000_000  # of one past, for whoever reads it: `gather` holds some 100 bytes for each
MOST_GAP_S = 120.0  # a pod that was silent for longer did not report in between


def gather(start_s: float, end_s: float, step_s: float, engines: list[EngineSeries]) -> dict[str, FloatColumn]:
    """Lay the series of engines on one grid. Returns the columns of `Past`.

    A counter that went back was reset and counts from 0. What grew between two scrapes is spread evenly between them,
    over a hole too, so nothing is lost and nothing invented. An engine that begins to report after others did counts
    from 0, unless it had served before (`seen_late`); that and the first ones count from what they showed.
    Requests that came = what finished + what is held more, engine by engine and scrape by scrape; where that shrinks,
    clients left, and those are not taken back. What an engine held when its counters were reset died with it.
    """
    edges: FloatColumn = start_s + step_s * np.arange(max(round((end_s - start_s) / step_s), 1) + 1, dtype=np.float64)
    steps = len(edges) - 1
    sums = {name: np.zeros(steps) for name in (*COUNTERS, "arrivals", "running", "waiting")}
    present: dict[str, FloatColumn] = {}  # by pod, however many engines it has
    engines = [engine for engine in engines if len(engine.time_s)]
    later, served = _beginnings(start_s, engines)
    added_s: dict[str, float] = {}  # when each pod that came later did
    for engine, fresh in zip(engines, (later & ~served).tolist(), strict=True):
        if fresh:
            added_s.setdefault(engine.pod, float(engine.time_s[0]))
        time_s = engine.time_s
        lead_s = float(np.median(np.diff(time_s))) if len(time_s) > 1 else step_s
        gained = {name: _gained(getattr(engine, name), fresh) for name in COUNTERS}
        held = or_zero(engine.running) + or_zero(engine.waiting)
        before = np.concatenate([[0.0 if fresh else held[0]], held[:-1]])
        before[np.any([_went_back(getattr(engine, name)) for name in RESET_BY], axis=0)] = 0.0
        gained["arrivals"] = np.maximum(held - before + gained["finished"], 0.0)
        before_s = np.concatenate([[time_s[0] - lead_s], time_s])
        for name, values in gained.items():
            total = np.concatenate([[0.0], np.cumsum(values)])
            sums[name] += np.diff(np.interp(edges, before_s, total))
        covered = _covered(edges, time_s, lead_s)
        present[engine.pod] = np.maximum(present.get(engine.pod, 0.0), covered)
        middle = (edges[:-1] + edges[1:]) / 2
        for name in ("running", "waiting"):
            sums[name] += covered * np.interp(middle, time_s, or_zero(getattr(engine, name)))
    sums["pods"] = np.sum([*present.values(), np.zeros(steps)], axis=0)
    silent = sums["pods"] <= 0
    told = sums["arrivals"] + sum(sums[name] for name in COUNTERS)
    quiet = silent & (told <= 0)  # nobody reported, and nothing was told of it later
    unknown = {name: silent if name in ("pods", "running", "waiting") else quiet for name in sums}
    columns = {name: np.where(unknown[name], np.nan, values) for name, values in sums.items()}
    moments_s = np.minimum(list(added_s.values()), edges[-1])
    return {**columns, "pods_added": np.histogram(moments_s, edges)[0].astype(np.float64)}


def seen_late(start_s: float, engines: list[EngineSeries]) -> tuple[str, ...]:
    """Return what `problems` says of engines that had served before they were seen, though others were by then."""
    late = int(_beginnings(start_s, [engine for engine in engines if len(engine.time_s)])[1].sum())
    if not late:
        return ()
    return (
        f"{late} engine{'s' * (late > 1)}, seen later than others, had served long before: "
        "what came until then is left out",
    )


def _beginnings(start_s: float, engines: list[EngineSeries]) -> tuple[BoolColumn, BoolColumn]:
    """Return which engines began to report after others did, and which of those had served before; bool[n] each.

    An engine that starts is seen within MOST_GAP_S, if anybody is. So the first reading of one that is new is at most
    what the quickest engine of all would have finished in that time, and in the hole before it, if there is one. A
    target that was not scraped at first shows all that it served in weeks.
    """
    first_s = np.array([engine.time_s[0] for engine in engines], np.float64)
    later = first_s > max(first_s.min(initial=np.inf), start_s) + MOST_GAP_S
    if not later.any():
        return later, later
    seen_s = np.sort(np.concatenate([engine.time_s for engine in engines]))
    unseen_s = first_s - seen_s[np.maximum(np.searchsorted(seen_s, first_s - MOST_GAP_S, side="right") - 1, 0)]
    per_s = [_gained(engine.finished, False)[1:] / np.diff(engine.time_s) for engine in engines]
    shown = np.array([filled(engine.finished)[0] for engine in engines])
    return later, later & (shown > np.concatenate(per_s).max(initial=0.0) * unseen_s)


def silence(pods: FloatColumn, step_s: float, said: str) -> tuple[str, ...]:
    """Return what `problems` says of the steps in which nobody reported: `for 600 s no pod reported: …`; else nothing.

    pods: float64[T], the column of `Past`. said: what was not there.
    """
    silent_s = float(np.isnan(pods).sum()) * step_s
    if not silent_s:
        return ()
    taken = (
        "what counters grew meanwhile is spread evenly over as many replicas as before; "
        "where they did not grow, no replica and no request is assumed"
    )
    return (f"for {silent_s:,.0f} s {said}: {taken}",)


def _gained(values: FloatColumn, fresh: bool) -> FloatColumn:
    """Return what a counter grew from scrape to scrape, float64[n]; a reading that is absent repeats the one before."""
    whole = filled(values)
    first = whole[:1] if fresh else np.zeros(1)
    return np.concatenate([first, increase(whole[:-1], whole[1:])])


def _went_back(values: FloatColumn) -> BoolColumn:
    """Return at which scrapes a counter is lower than at the one before, bool[n]."""
    return np.diff(filled(values), prepend=-np.inf) < 0


def filled(values: FloatColumn) -> FloatColumn:
    """Return readings without holes, float64[n]: the one before, or the first one; zero if there is none."""
    known = ~np.isnan(values)
    if not known.any():
        return np.zeros(len(values))
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))
    return np.where(known[last], values[last], values[known][0])


def _covered(edges: FloatColumn, time_s: FloatColumn, lead_s: float) -> FloatColumn:
    """Return for how much of each step a pod was there, 0..1: between scrapes that are not too far apart."""
    longest_s = max(MOST_GAP_S, 3 * lead_s)
    starts = np.concatenate([[time_s[0] - lead_s], time_s[:-1]])
    present = np.where(time_s - starts <= longest_s, time_s - starts, 0.0)
    total = np.concatenate([[0.0], np.cumsum(present)])
    at = np.concatenate([[time_s[0] - lead_s], time_s])
    step_s = edges[1] - edges[0]
    return np.asarray(np.diff(np.interp(edges, at, total)) / step_s)
