"""One run of a study: requests arrive, replicas serve them, scrapes are taken, and a scaler decides every so often.

At one moment things happen in this order: replicas change, the scrape is taken, the scaler decides. Scrapes lie half a
period beside the decisions of a scaler of the same period, so that what it sees has the age it has on average.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from autoscaler.core.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.histogram import increase, quantile
from autoscaler.sim.engine.profiles import Profile
from autoscaler.sim.study.case import Case, Goal, Outcome, PodRows, Scaler, Seen
from autoscaler.sim.study.replicas import Replicas, Scrape
from autoscaler.sim.study.state import GAP_BOUNDS, TTFT_BOUNDS

REMEMBERED_S = 6 * 3600.0  # how far back `ago` reaches
LATENCY_WINDOW_S = 60.0  # of the quantiles in PodRows
LATENCY_QUANTILE = 0.95
TIMELINE_S = 60.0
LATEST_END_S = 3600.0  # after the last arrival: whoever is unanswered by then never will be
PROGRESS_STEPS = 200
ROUTERS = ("least-requests", "round-robin")


class RunView:
    """Implements `study.View` on the replicas of a run."""

    def __init__(self, replicas: Replicas, wanted: int) -> None:
        self.now_s = 0.0
        self.wanted = wanted
        self._replicas = replicas
        scrapes = max(math.ceil(LATENCY_WINDOW_S / replicas.case.scrape_s), 1) + 1
        self._scrapes: deque[Scrape] = deque(maxlen=scrapes)
        self._seen: deque[Seen] = deque(maxlen=math.ceil(REMEMBERED_S / replicas.case.scrape_s) + 1)
        self._took_s = np.empty(0)
        self._pods: PodRows | None = None
        self._pods_of = (-1, -1.0)

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
    def ready_took_s(self) -> FloatColumn:
        if len(self._took_s) != len(self._replicas.took_s):
            self._took_s = np.array(self._replicas.took_s)
        return self._took_s

    @property
    def seen(self) -> Seen:
        return self._seen[-1]

    def ago(self, seconds: float) -> Seen:
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
        key = (self._replicas.changes, self._seen[-1].time_s)
        if self._pods is None or self._pods_of != key:
            self._pods, self._pods_of = self._pod_rows(), key
        return self._pods

    def remember(self, seen: Seen, scrape: Scrape) -> None:
        self._seen.append(seen)
        self._scrapes.append(scrape)

    def _pod_rows(self) -> PodRows:
        pods, scrape = self._replicas.pods, self._scrapes[-1]
        ids = np.array([pod.id for pod in pods], np.int64)
        ready = np.array([pod.row >= 0 for pod in pods], np.bool_)
        place, known = _find(ids, scrape.id)
        # After a crash the readings of the old engine stand until the next scrape fails; here they end at once.
        known &= ready & (np.array([pod.ready_s for pod in pods]) <= scrape.time_s)

        def reading(values: FloatColumn) -> FloatColumn:
            column = np.full(len(ids), np.nan)
            column[known] = values[place[known]]
            return column

        running, waiting, kv_usage = scrape.gauges
        prompt_tokens, generation_tokens, finished, first_tokens, preemptions, *_ = scrape.counters
        ttft_s, itl_s = self._latencies()
        return PodRows(
            id=ids,
            created_s=np.array([pod.created_s for pod in pods], np.float64),
            ready_s=np.where(ready, np.array([pod.ready_s for pod in pods], np.float64), np.nan),
            terminating=np.array([pod.leaving for pod in pods], np.bool_),
            time_s=reading(np.full(len(scrape.id), scrape.time_s)),
            running=reading(running),
            waiting=reading(waiting),
            kv_usage=reading(kv_usage),
            prompt_tokens=reading(prompt_tokens),
            generation_tokens=reading(generation_tokens),
            finished=reading(finished),
            first_tokens=reading(first_tokens),
            preemptions=reading(preemptions),
            ttft_s=reading(ttft_s),
            itl_s=reading(itl_s),
        )

    def _latencies(self) -> tuple[FloatColumn, FloatColumn]:
        """Return the quantiles of the last window, float64[n] for the engines of the last scrape.

        The window of an engine begins with the first scrape of it within the time; one scrape alone says nothing.
        """
        last = self._scrapes[-1]
        before = np.full(last.counts.shape, np.nan)
        for scrape in reversed(list(self._scrapes)[:-1]):  # the oldest that knows an engine is its beginning
            if last.time_s - scrape.time_s > LATENCY_WINDOW_S + 1e-9:
                break
            place, known = _find(last.id, scrape.id)
            before[known] = scrape.counts[place[known]]
        grown = increase(before, last.counts.astype(np.float64))
        ttft, gaps = grown[:, : len(TTFT_BOUNDS)], grown[:, len(TTFT_BOUNDS) :]
        return (
            quantile(LATENCY_QUANTILE, TTFT_BOUNDS, np.cumsum(ttft, axis=1)),
            quantile(LATENCY_QUANTILE, GAP_BOUNDS, np.cumsum(gaps, axis=1)),
        )


def run(case: Case, scaler: Scaler, progress: Callable[[float], None] | None = None) -> Outcome:
    """Replay the trace of `case` against replicas whose number `scaler` decides.

    progress: called now and then with the done part of the trace, 0..1. Counts outside 0..`max_replicas` are cut to
    that. After the last arrival the run goes on, and is paid for, until everybody is served, an hour at most.
    Raises ValueError if the case makes no sense, naming the field, or the request by its row.
    """
    check(case)
    if not (math.isfinite(scaler.period_s) and scaler.period_s > 0):
        raise ValueError(f"period_s of scaler {scaler.name} is {scaler.period_s:g}, it must be a number above 0")
    replicas = Replicas(case)
    view = RunView(replicas, case.start_replicas)
    changes: list[tuple[float, int]] = []
    points: list[tuple[float, int, int, float, float]] = []
    duration_s = case.trace.duration_s
    told_s = 0.0
    scrapes, decisions = 0, 1  # the next of each; the first scrape is at the start
    scrape_due_s, decision_due_s = 0.0, scaler.period_s
    while True:
        now_s = min(scrape_due_s, decision_due_s, replicas.next_event_s)
        replicas.advance(now_s)
        view.now_s = now_s
        if now_s >= scrape_due_s:
            seen, scrape = replicas.scrape(now_s)
            view.remember(seen, scrape)
            scrapes += 1
            scrape_due_s = (scrapes - 0.5) * case.scrape_s
            if not points or now_s - points[-1][0] >= TIMELINE_S:
                waiting = seen.gateway_waiting + float(seen.waiting.sum())
                points.append((now_s, view.wanted, view.ready, float(seen.running.sum()), waiting))
            if now_s >= duration_s and (replicas.done or now_s >= duration_s + LATEST_END_S):
                break
        if now_s >= decision_due_s:
            decisions += 1
            decision_due_s = decisions * scaler.period_s
            wanted = min(max(int(scaler.decide(view)), 0), case.max_replicas)
            if wanted != view.wanted:
                changes.append((now_s, wanted))
                view.wanted = wanted
                replicas.scale(wanted, now_s)
        if progress and now_s - told_s >= duration_s / PROGRESS_STEPS:
            told_s = now_s
            progress(min(now_s / duration_s, 1.0))
    return _outcome(case, scaler.name, replicas, now_s, changes, points)


def _outcome(
    case: Case,
    scaler: str,
    replicas: Replicas,
    now_s: float,
    changes: list[tuple[float, int]],
    points: list[tuple[float, int, int, float, float]],
) -> Outcome:
    trace, requests = case.trace, replicas.state.requests
    first_s, end_s = requests["first_s"], requests["end_s"]
    finished = np.isfinite(end_s)
    gaps = np.maximum(trace.output_tokens - 1, 1)
    itl_s = np.full(len(end_s), np.inf)
    itl_s[finished] = (end_s[finished] - first_s[finished]) / gaps[finished]
    last_s = float(end_s[finished].max(initial=0.0)) if replicas.done else now_s
    return Outcome(
        scaler=scaler,
        ttft_s=first_s - trace.arrival_s,
        itl_s=itl_s,
        e2e_s=end_s - trace.arrival_s,
        change_s=np.array([change[0] for change in changes], np.float64),
        change_to=np.array([change[1] for change in changes], np.int64),
        replica_s=replicas.paid_s(max(case.trace.duration_s, last_s)),
        timeline=np.array(points, np.float64).reshape(-1, 5),
    )


def _find(wanted: IntColumn, among: IntColumn) -> tuple[IntColumn, BoolColumn]:
    """Return where each of `wanted` stands in `among`, which ascends, and whether it does."""
    if not len(among):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    place = np.minimum(np.searchsorted(among, wanted), len(among) - 1)
    return place, among[place] == wanted


def check(case: Case) -> None:
    """Raise ValueError, with the field, the value found and what is allowed, if a case cannot be run."""
    least = {"cold_start_s": 0.0, "cold_start_spread": 0.0, "drain_s": 0.0, "gpus_per_replica": 0.0}
    for name, bound in least.items():
        value = getattr(case, name)
        if not (math.isfinite(value) and value >= bound):
            raise ValueError(f"{name} is {value:g}, it must be a finite number, {bound:g} or more")
    for name in ("scrape_s", "patience_s", "hours_between_crashes"):
        if not getattr(case, name) > 0 or (name == "scrape_s" and math.isinf(case.scrape_s)):
            raise ValueError(f"{name} is {getattr(case, name):g}, it must be above 0")
    if case.router not in ROUTERS:
        raise ValueError(f"router is {case.router!r}, allowed: {', '.join(ROUTERS)}")
    if case.max_replicas < 1:
        raise ValueError(f"max_replicas is {case.max_replicas}, it must be at least 1")
    if not 0 <= case.start_replicas <= case.max_replicas:
        raise ValueError(f"start_replicas is {case.start_replicas}, allowed: 0 to max_replicas ({case.max_replicas})")
    profile = case.profile
    for name in ("step_s", "sequence_s", "kv_token_s", "prompt_token_s"):
        value = getattr(profile, name)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} of the profile is {value:g}, it must be a finite number, 0 or more")
    if not profile.step_s + profile.sequence_s > 0:
        raise ValueError("step_s and sequence_s of the profile are 0, so that a step takes no time")
    check_goal(profile, case.goal)
    _check_trace(case)


def check_goal(profile: Profile, goal: Goal) -> None:
    """Raise ValueError if no replica of this profile can meet the goal, however many there are."""
    alone_s = profile.step_s + profile.sequence_s
    if goal.itl_s < alone_s:
        raise ValueError(
            f"ITL {goal.itl_s * 1e3:.4g} ms is below the step time of this profile, {alone_s * 1e3:.4g} ms"
        )
    first_s = profile.step_s + profile.prompt_token_s
    if goal.ttft_s < first_s:
        raise ValueError(
            f"TTFT {goal.ttft_s * 1e3:.4g} ms is below what the shortest prompt takes, {first_s * 1e3:.4g} ms"
        )
    if not 0 < goal.attainment <= 1:
        raise ValueError(f"attainment is {goal.attainment:g}, it must be above 0 and at most 1")


def _check_trace(case: Case) -> None:
    trace = case.trace
    count = len(trace.arrival_s)
    if not len(trace.prompt_tokens) == len(trace.output_tokens) == count:
        raise ValueError(
            f"trace {trace.name} has {count} arrivals, {len(trace.prompt_tokens)} prompts and "
            f"{len(trace.output_tokens)} outputs"
        )
    if not (math.isfinite(trace.duration_s) and trace.duration_s > 0):
        raise ValueError(f"duration_s of trace {trace.name} is {trace.duration_s:g}, it must be a number above 0")
    longest = case.profile.max_model_len
    wrong = {
        "arrives before the one before it": np.diff(trace.arrival_s, prepend=0.0) < 0,
        f"arrives outside of 0..{trace.duration_s:g} s": ~(trace.arrival_s <= trace.duration_s),
        "has no prompt token": trace.prompt_tokens < 1,
        "has no output token": trace.output_tokens < 1,
        f"has more tokens than max_model_len {longest}": trace.prompt_tokens + trace.output_tokens > longest,
    }
    for problem, rows in wrong.items():
        if rows.any():
            row = int(np.argmax(rows))
            raise ValueError(
                f"request {row} of trace {trace.name} {problem}: arrival {trace.arrival_s[row]:g} s, "
                f"{trace.prompt_tokens[row]} + {trace.output_tokens[row]} tokens ({int(rows.sum())} such requests)"
            )
