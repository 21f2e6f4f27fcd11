"""History of one workload on an even time grid, for replay, built from the series of its engines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero, replace
from autoscaler.core.table.histogram import increase


@dataclass(frozen=True)
class LatencyHistograms:
    """A latency histogram per window."""

    bounds: FloatColumn  # float64[B], seconds, ascending, +Inf last
    counts: FloatColumn  # float64[M, B], observations of each window, cumulative over the bounds; NaN: unknown

    @classmethod
    def none(cls) -> LatencyHistograms:
        """Return histograms of no window."""
        return cls(np.array([np.inf]), np.empty((0, 1)))


@dataclass(frozen=True)
class WorkloadHistory:
    """One workload from `start_s` on, in T steps. Every column is float64[T]; NaN: no pod reported in that step."""

    start_s: float  # Unix time
    step_s: float
    pods: FloatColumn  # pods that reported, averaged over the step
    pods_added: FloatColumn  # pods that began to report within the step, after others; never NaN
    running: FloatColumn  # requests, averaged over the step
    waiting: FloatColumn
    arrivals: (
        FloatColumn  # requests that arrived within the step: those that ended, and the increase of those in flight
    )
    finished: FloatColumn  # requests that ended within the step
    first_tokens: FloatColumn  # requests that got their first token within the step
    prompt_tokens: FloatColumn  # computed within the step
    generation_tokens: FloatColumn
    window_s: float  # length of a latency window; window m begins at start_s + m x window_s
    ttft: LatencyHistograms
    itl: LatencyHistograms  # mean token gap of each request, or single gaps, which `problems` then says
    problems: tuple[str, ...] = ()  # gaps, resets and the like, one line each

    @property
    def duration_s(self) -> float:
        return len(self.pods) * self.step_s

    def since(self, later_s: float) -> WorkloadHistory:
        """Return the history without its first `later_s` seconds, rounded up to whole steps and whole windows."""
        step, window = (math.ceil(later_s / each_s - 1e-9) for each_s in (self.step_s, self.window_s))
        columns = {name: getattr(self, name)[step:] for name in (*COLUMNS, *COUNTERS)}
        ttft, itl = (replace(each, counts=each.counts[window:]) for each in (self.ttft, self.itl))
        return replace(self, start_s=self.start_s + step * self.step_s, ttft=ttft, itl=itl, **columns)


@dataclass(frozen=True)
class EngineSeries:
    """Scraped series of one engine; every column float64[n], ascending in time, without repeated samples."""

    pod: str
    time_s: FloatColumn
    running: FloatColumn
    waiting: FloatColumn
    finished: FloatColumn  # this and the following are counters, as they were read
    first_tokens: FloatColumn
    prompt_tokens: FloatColumn
    generation_tokens: FloatColumn


COLUMNS = ("pods", "pods_added", "running", "waiting", "arrivals")
COUNTERS = ("finished", "first_tokens", "prompt_tokens", "generation_tokens")
RESET_COUNTERS = (
    "finished",
    "first_tokens",
    "generation_tokens",
)  # counters that fall with a reset, unless they were still 0
MAX_STEPS = 1_000_000  # of one history; `resample` needs some 100 bytes for each
MAX_GAP_S = 120.0  # after a longer gap a pod counts as absent in between


def resample(start_s: float, end_s: float, step_s: float, engines: list[EngineSeries]) -> dict[str, FloatColumn]:
    """Resample the series of engines on one even grid. Returns the columns of `WorkloadHistory`.

    A counter that fell was reset, and has counted from 0 since. An increase is spread evenly between its two scrapes,
    even over a gap, so the total stays exact. An engine that begins to report after others counts from 0, unless it had
    served before (`describe_late_engines`). Such an engine, and the first ones, count from their first reading.

    Per engine and scrape, arrivals are the finished requests plus the increase of those in flight. If that is negative,
    clients have left; it counts as 0. Requests in flight at a reset were lost with the engine.
    """
    edges: FloatColumn = start_s + step_s * np.arange(max(round((end_s - start_s) / step_s), 1) + 1, dtype=np.float64)
    steps = len(edges) - 1
    sums = {name: np.zeros(steps) for name in (*COUNTERS, "arrivals", "running", "waiting")}
    present: dict[str, FloatColumn] = {}  # by pod, also if it has several engines
    engines = [engine for engine in engines if len(engine.time_s)]
    later, served = _late_engines(start_s, engines)
    added_s: dict[str, float] = {}  # first reading of each pod that began to report later
    for engine, fresh in zip(engines, (later & ~served).tolist(), strict=True):
        if fresh:
            added_s.setdefault(engine.pod, float(engine.time_s[0]))
        time_s = engine.time_s
        lead_s = float(np.median(np.diff(time_s))) if len(time_s) > 1 else step_s
        increases = {name: _increases(getattr(engine, name), fresh) for name in COUNTERS}
        held = or_zero(engine.running) + or_zero(engine.waiting)
        before = np.concatenate([[0.0 if fresh else held[0]], held[:-1]])
        before[np.any([_is_reset(getattr(engine, name)) for name in RESET_COUNTERS], axis=0)] = 0.0
        increases["arrivals"] = np.maximum(held - before + increases["finished"], 0.0)
        before_s = np.concatenate([[time_s[0] - lead_s], time_s])
        for name, values in increases.items():
            total = np.concatenate([[0.0], np.cumsum(values)])
            sums[name] += np.diff(np.interp(edges, before_s, total))
        covered = _coverage(edges, time_s, lead_s)
        present[engine.pod] = np.maximum(present.get(engine.pod, 0.0), covered)
        middle = (edges[:-1] + edges[1:]) / 2
        for name in ("running", "waiting"):
            sums[name] += covered * np.interp(middle, time_s, or_zero(getattr(engine, name)))
    sums["pods"] = np.sum([*present.values(), np.zeros(steps)], axis=0)
    silent = sums["pods"] <= 0
    counted = sums["arrivals"] + sum(sums[name] for name in COUNTERS)
    uncounted = silent & (counted <= 0)  # no pod reported, and no counter grew over the gap
    unknown = {name: silent if name in ("pods", "running", "waiting") else uncounted for name in sums}
    columns = {name: np.where(unknown[name], np.nan, values) for name, values in sums.items()}
    moments_s = np.minimum(list(added_s.values()), edges[-1])
    return {**columns, "pods_added": np.histogram(moments_s, edges)[0].astype(np.float64)}


def describe_late_engines(start_s: float, engines: list[EngineSeries]) -> tuple[str, ...]:
    """Return the line of `problems` about engines that had served long before their first scrape, if any."""
    late = int(_late_engines(start_s, [engine for engine in engines if len(engine.time_s)])[1].sum())
    if not late:
        return ()
    return (
        f"{late} engine{'s' * (late > 1)}, seen later than others, had served long before: "
        "what came until then is left out",
    )


def _late_engines(start_s: float, engines: list[EngineSeries]) -> tuple[BoolColumn, BoolColumn]:
    """Return which engines began to report after others, and which of these had served before; bool[n] each.

    A new engine is scraped within MAX_GAP_S, if any engine is. So its first reading is at most the requests that the
    fastest engine finishes in that time, plus a preceding gap in all series. A target that was not scraped at first may
    show the requests of weeks.
    """
    first_s = np.array([engine.time_s[0] for engine in engines], np.float64)
    later = first_s > max(first_s.min(initial=np.inf), start_s) + MAX_GAP_S
    if not later.any():
        return later, later
    seen_s = np.sort(np.concatenate([engine.time_s for engine in engines]))
    unseen_s = first_s - seen_s[np.maximum(np.searchsorted(seen_s, first_s - MAX_GAP_S, side="right") - 1, 0)]
    per_s = [_increases(engine.finished, False)[1:] / np.diff(engine.time_s) for engine in engines]
    shown = np.array([forward_fill(engine.finished)[0] for engine in engines])
    return later, later & (shown > np.concatenate(per_s).max(initial=0.0) * unseen_s)


def describe_gaps(pods: FloatColumn, step_s: float, gap: str) -> tuple[str, ...]:
    """Return the line of `problems` about steps without a pod, if any: `for 600 s no pod reported: …`.

    pods: float64[T], the column of `WorkloadHistory`. gap: a clause that says what is missing.
    """
    silent_s = float(np.isnan(pods).sum()) * step_s
    if not silent_s:
        return ()
    assumption = (
        "what counters grew meanwhile is spread evenly over as many replicas as before; "
        "where they did not grow, no replica and no request is assumed"
    )
    return (f"for {silent_s:,.0f} s {gap}: {assumption}",)


def _increases(values: FloatColumn, fresh: bool) -> FloatColumn:
    """Return the increase of a counter from scrape to scrape, float64[n]; NaN repeats the previous reading."""
    whole = forward_fill(values)
    first = whole[:1] if fresh else np.zeros(1)
    return np.concatenate([first, increase(whole[:-1], whole[1:])])


def _is_reset(values: FloatColumn) -> BoolColumn:
    """Return the scrapes at which a counter is lower than at the previous one, bool[n]."""
    return np.diff(forward_fill(values), prepend=-np.inf) < 0


def forward_fill(values: FloatColumn) -> FloatColumn:
    """Replace each NaN by the previous reading, float64[n]; leading ones by the first reading, or by 0."""
    known = ~np.isnan(values)
    if not known.any():
        return np.zeros(len(values))
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), 0))
    return np.where(known[last], values[last], values[known][0])


def _coverage(edges: FloatColumn, time_s: FloatColumn, lead_s: float) -> FloatColumn:
    """Return the fraction of each step, 0..1, in which a pod was present: between scrapes without a long gap."""
    longest_s = max(MAX_GAP_S, 3 * lead_s)
    starts = np.concatenate([[time_s[0] - lead_s], time_s[:-1]])
    present = np.where(time_s - starts <= longest_s, time_s - starts, 0.0)
    total = np.concatenate([[0.0], np.cumsum(present)])
    at = np.concatenate([[time_s[0] - lead_s], time_s])
    step_s = edges[1] - edges[0]
    return np.asarray(np.diff(np.interp(edges, at, total)) / step_s)
