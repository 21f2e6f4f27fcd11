"""One run of a study: requests arrive, replicas serve them, scrapes are taken, and a scaler decides every so often.

Several cases may run on one clock, with replicas on GPUs that they share. At one moment things happen in this order:
replicas change, scrapes are taken, scalers decide, each in the order of the cases. Scrapes lie half a period beside the
decisions of a scaler of the same period, so that what it sees has the age it has on average.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoscaler.core.table.columns import FloatColumn, find_ids, or_zero
from autoscaler.core.table.histogram import bound_above, count_up_to, find_limit, increase, quantile
from autoscaler.lab.replay.case import Case, FleetScaler, Outcome, PodRows, Scaler, Totals, View
from autoscaler.lab.replay.check import check
from autoscaler.lab.replay.files import Told, untold
from autoscaler.lab.replay.replicas import Replicas, Scrape
from autoscaler.lab.replay.shared_gpus import GpuPool
from autoscaler.lab.replay.state import GAP_BOUNDS, PARTS, PREFILL_BOUNDS, TTFT_BOUNDS

REMEMBERED_S = 6 * 3600.0  # how far back `ago` reaches
LATENCY_WINDOW_S = 60.0  # of the quantiles in PodRows
LATENCY_QUANTILE = 0.95
LATEST_END_S = 3600.0  # after the trace: whoever is unanswered by then never will be


class RunView:
    """Implements `case.View` on the replicas of a run."""

    def __init__(self, replicas: Replicas, wanted: int) -> None:
        self.now_s = 0.0
        self.wanted = wanted
        self._replicas = replicas
        scrapes = max(math.ceil(LATENCY_WINDOW_S / replicas.case.scrape_s), 1) + 1
        self._scrapes: deque[Scrape] = deque(maxlen=scrapes)
        self._seen: deque[Totals] = deque(maxlen=math.ceil(REMEMBERED_S / replicas.case.scrape_s) + 1)
        self._status: dict[str, Any] = {}
        self._status_of = (-1, -1.0)
        self._pods: PodRows | None = None
        goal = replicas.case.goal
        self._ttft_goal = find_limit(goal.ttft_s, TTFT_BOUNDS)
        self._itl_goal = find_limit(goal.itl_s, GAP_BOUNDS)
        self._prefill_goal = find_limit(bound_above(goal.ttft_s, PREFILL_BOUNDS), PREFILL_BOUNDS)

    @property
    def ready(self) -> int:
        return self._replicas.ready

    @property
    def starting(self) -> int:
        return len(self.starting_since_s)

    @property
    def starting_since_s(self) -> FloatColumn:
        return np.array([pod.since_s for pod in self._replicas.pods if pod.row < 0], np.float64)

    @property
    def seen(self) -> Totals:
        return self._seen[-1]

    def ago(self, seconds: float) -> Totals:
        """Return the latest scrape that is at least so old, else the oldest of the last six hours."""
        latest_s = self.now_s - seconds
        missing = math.ceil((self._seen[-1].time_s - latest_s) / self._replicas.case.scrape_s - 1e-9)
        place = len(self._seen) - 1 - min(max(missing, 0), len(self._seen) - 1)
        while place > 0 and self._seen[place].time_s > latest_s + 1e-9:  # the first scrape stands out of line
            place -= 1
        return self._seen[place]

    def live_concurrency(self) -> float:
        return float(self._replicas.held(self.now_s))

    @property
    def pods(self) -> PodRows:
        starting = len(self._replicas.pods) > self._replicas.ready  # then phases end with time
        status_of = (self._replicas.changes, self.now_s if starting else 0.0)
        if self._status_of != status_of:
            self._status, self._status_of, self._pods = self._tell_status(), status_of, None
        if self._pods is None:
            self._pods = PodRows(**self._status, **self._readings())
        return self._pods

    def remember(self, seen: Totals, scrape: Scrape) -> None:
        self._seen.append(seen)
        self._scrapes.append(scrape)
        self._pods = None

    def _tell_status(self) -> dict[str, Any]:
        """Return what the cluster says of each replica, by column of PodRows."""
        pods = self._replicas.pods
        ready_s = [pod.ready_s if pod.row >= 0 else math.nan for pod in pods]
        return {
            "id": np.array([pod.id for pod in pods], np.int64),
            "created_s": np.array([pod.created_s for pod in pods], np.float64),
            "unschedulable": np.array([not pod.placed for pod in pods], np.bool_),
            "scheduled_s": self._passed([pod.scheduled_s for pod in pods]),
            "started_s": self._passed([pod.started_s for pod in pods]),
            "ready_s": np.array(ready_s, np.float64),
            "terminating": np.array([pod.leaving for pod in pods], np.bool_),
        }

    def _readings(self) -> dict[str, Any]:
        """Return what the last scrape shows of each replica, by column of PodRows."""
        ids, scrape = self._status["id"], self._scrapes[-1]
        running, waiting, kv_usage = scrape.gauges
        prompt_tokens, generation_tokens, finished, first_tokens, preemptions, gap_s = scrape.counters
        counts = scrape.counts.astype(np.float64)
        ttft, gaps, mean_gaps, prefills = (counts[:, part].cumsum(axis=1) for part in PARTS)
        ttft_s, itl_s = self._latencies(counts)
        read = {
            "time_s": np.full(len(scrape.id), scrape.time_s),
            "running": running,
            "waiting": waiting,
            "kv_usage": kv_usage,
            "prompt_tokens": prompt_tokens,
            "generation_tokens": generation_tokens,
            "finished": finished,
            "first_tokens": first_tokens,
            "ttft_met": count_up_to(self._ttft_goal, TTFT_BOUNDS, ttft),
            "gap_s": gap_s,
            "gaps": gaps[:, -1],
            "itl_judged": mean_gaps[:, -1],
            "itl_met": count_up_to(self._itl_goal, GAP_BOUNDS, mean_gaps),
            "prefill_judged": prefills[:, -1],
            "prefill_met": count_up_to(self._prefill_goal, PREFILL_BOUNDS, prefills),
            "preemptions": preemptions,
            "ttft_s": ttft_s,
            "itl_s": itl_s,
        }
        place, known = find_ids(
            ids, scrape.id
        )  # of an engine that crashed until the next scrape, which does not find it
        readings = np.full((len(read), len(ids)), np.nan)
        readings[:, known] = np.array(list(read.values()))[:, place[known]]
        return dict(zip(read, readings, strict=True))

    def _passed(self, moments_s: list[float]) -> FloatColumn:
        """Return moments as one who does not know the future sees them: those that lie ahead are NaN."""
        column = np.array(moments_s, np.float64)
        return np.where(column <= self.now_s, column, np.nan)

    def _latencies(self, counts: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Return the quantiles of what all engines of the last scrape observed in the last window, for each of them.

        counts: its own, float64[n, B]. The window of an engine begins with the first scrape of it within the time; one
        scrape alone says nothing.
        """
        last = self._scrapes[-1]
        before = np.full(counts.shape, np.nan)
        found = np.zeros(len(last.id), np.bool_)
        for scrape in self._scrapes:  # the oldest that knows an engine is its beginning
            if found.all() or scrape is last:
                break
            if last.time_s - scrape.time_s <= LATENCY_WINDOW_S + 1e-9:
                place, known = find_ids(last.id, scrape.id)
                fresh = known & ~found
                before[fresh] = scrape.counts[place[fresh]]
                found |= known
        observed = or_zero(increase(before, counts)).sum(axis=0)
        ttft, gaps = (observed[part].cumsum() for part in PARTS[:2])
        ttft_s = quantile(LATENCY_QUANTILE, TTFT_BOUNDS, ttft)
        itl_s = quantile(LATENCY_QUANTILE, GAP_BOUNDS, gaps)
        return np.full(len(counts), ttft_s), np.full(len(counts), itl_s)


class Track:
    """One case on its way through a run: its replicas, what is seen of them, and what is kept."""

    def __init__(self, case: Case, pool: GpuPool) -> None:
        self.case = case
        self.replicas = Replicas(case, pool)
        self.view = RunView(self.replicas, case.start_replicas)
        self.scrape_due_s = 0.0  # the first scrape is at the start
        self.outcome: Outcome | None = None  # once it is over; what comes after is not counted
        self._scrapes = 0
        self._changes: list[tuple[float, int]] = []
        self._points: list[tuple[float, int, int, float, float]] = []

    @property
    def due_s(self) -> float:
        return min(self.scrape_due_s, self.replicas.next_event_s)

    def advance(self, now_s: float) -> None:
        self.replicas.advance(now_s)
        self.view.now_s = now_s

    def scrape(self, now_s: float) -> None:
        """Take the scrape that is due, and see whether the case is over."""
        view, duration_s = self.view, self.case.trace.duration_s
        seen, scrape = self.replicas.scrape(now_s)
        view.remember(seen, scrape)
        self._scrapes += 1
        self.scrape_due_s = (self._scrapes - 0.5) * self.case.scrape_s
        waiting = seen.gateway_waiting + float(seen.waiting.sum())
        self._points.append((now_s, view.wanted, view.ready, float(seen.running.sum()), waiting))
        done = now_s >= duration_s and (self.replicas.done or now_s >= duration_s + LATEST_END_S)
        if done and self.outcome is None:
            self.outcome = self._outcome(now_s)

    def want(self, count: int, now_s: float) -> None:
        """Ask for `count` replicas, cut to what the case allows."""
        wanted = min(max(int(count), 0), self.case.max_replicas)
        if wanted != self.view.wanted:
            self._changes.append((now_s, wanted))
            self.view.wanted = wanted
            self.replicas.scale(wanted, now_s)

    def _outcome(self, now_s: float) -> Outcome:
        trace, replicas = self.case.trace, self.replicas
        ttft_s, itl_s, e2e_s = replicas.state.latencies_s()
        finished_s = replicas.state.requests["end_s"]
        last_s = float(finished_s[np.isfinite(finished_s)].max(initial=0.0)) if replicas.done else now_s
        return Outcome(
            ttft_s=ttft_s,
            itl_s=itl_s,
            e2e_s=e2e_s,
            change_s=np.array([change[0] for change in self._changes], np.float64),
            change_to=np.array([change[1] for change in self._changes], np.int64),
            replica_s=replicas.paid_s(self.case.counted_from_s, max(trace.duration_s, last_s)),
            timeline=np.array(self._points, np.float64).reshape(-1, 5),
        )


class Turn:
    """When a scaler decides, and for which cases."""

    def __init__(
        self, scaler: Scaler | FleetScaler, decide: Callable[[Sequence[View]], Sequence[int]], tracks: Sequence[Track]
    ) -> None:
        if not (math.isfinite(scaler.period_s) and scaler.period_s > 0):
            raise ValueError(f"period_s of scaler {scaler.name} is {scaler.period_s:g}; it must be a number above 0")
        self.tracks = tuple(tracks)
        self.due_s = self._period_s = scaler.period_s
        self._decide = decide
        self._decisions = 1  # the next one

    def take(self, now_s: float) -> None:
        self._decisions += 1
        self.due_s = self._decisions * self._period_s
        counts = self._decide([track.view for track in self.tracks])
        for track, count in zip(self.tracks, counts, strict=True):
            track.want(count, now_s)


def run(case: Case, scaler: Scaler, told: Told = untold) -> Outcome:
    """Replay the trace of `case` against replicas whose number `scaler` decides; see `run_fleet`."""
    return run_fleet((case,), (scaler,), told=told)[0]


def run_fleet(
    cases: Sequence[Case],
    scalers: Sequence[Scaler] | FleetScaler,
    pool: GpuPool | None = None,
    told: Told = untold,
) -> list[Outcome]:
    """Replay the traces of several cases on one clock; return what became of each.

    scalers: one for each case, or one for all. pool: the GPUs of all replicas; one that finds none free waits for them,
    and costs nothing until it has them. Without a pool, no case feels the others. Counts outside 0..`max_replicas` are
    cut to that. After its trace a case goes on, and is paid for, until everybody is served, an hour at most.
    Raises ValueError if a case makes no sense, naming the field, or the request by its row.
    """
    pool = pool or GpuPool.holding(cases)
    for case in cases:
        check(case)
        if case.gpus_per_replica > pool.largest_gpus:
            raise ValueError(f"gpus_per_replica is {case.gpus_per_replica:g}, a node has {pool.largest_gpus:g}")
    tracks, turns = _begin(cases, scalers, pool)
    end_s = max(case.trace.duration_s for case in cases)
    while True:
        now_s = min(*(track.due_s for track in tracks), *(turn.due_s for turn in turns))
        deciding = [turn for turn in turns if turn.due_s <= now_s]
        asked = {id(track) for turn in deciding for track in turn.tracks}
        for track in tracks:
            if track.due_s <= now_s or id(track) in asked:
                track.advance(now_s)
        for track in tracks:
            if track.scrape_due_s <= now_s:
                track.scrape(now_s)
        outcomes = [track.outcome for track in tracks if track.outcome is not None]
        if len(outcomes) == len(tracks):
            return outcomes
        for turn in deciding:
            turn.take(now_s)
        told(min(now_s / end_s, 1.0))


def _begin(
    cases: Sequence[Case], scalers: Sequence[Scaler] | FleetScaler, pool: GpuPool
) -> tuple[list[Track], list[Turn]]:
    tracks = [Track(case, pool) for case in cases]
    if isinstance(scalers, Sequence):
        return tracks, [Turn(scaler, _one(scaler), (track,)) for scaler, track in zip(scalers, tracks, strict=True)]
    return tracks, [Turn(scalers, scalers.decide_all, tracks)]


def _one(scaler: Scaler) -> Callable[[Sequence[View]], Sequence[int]]:
    return lambda views: (scaler.decide(views[0]),)
