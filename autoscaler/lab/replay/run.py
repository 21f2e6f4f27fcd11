"""One replay run: requests arrive, replicas serve them, metrics are scraped, and scalers decide periodically.

Several cases may share one clock and a pool of GPUs. At any one time, replicas change first, then metrics are scraped,
then scalers decide, each in the order of the cases. Scrapes lie half an interval before the decisions of a scaler with
the same interval, so the data of a decision has its average age.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from autoscaler.lab.replay.call_progress import Progress, no_progress
from autoscaler.lab.replay.case import Case, FleetScaler, RunOutcome, Scaler, View
from autoscaler.lab.replay.check import check_case, check_variants
from autoscaler.lab.replay.engine.front import Front
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.engine.replicas import SimulatedReplicas
from autoscaler.lab.replay.view import RunView

LATEST_END_S = 3600.0  # after the trace; requests unanswered by then count as never answered


class CaseRun:
    """One case within a run: its replicas, its view, and the history of its replica count."""

    def __init__(self, case: Case, pool: GpuPool, front: Front, number: int) -> None:
        self.case = case
        self.replicas = SimulatedReplicas(case, pool, front, number)
        self.view = RunView(self.replicas, case.start_replicas)
        self.scrape_due_s = 0.0  # the first scrape is at time 0
        self.outcome: RunOutcome | None = None  # set when the case is over
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
        """Take the due scrape, and record the outcome if the case is over."""
        view, duration_s = self.view, self.case.trace.duration_s
        totals, scrape = self.replicas.scrape(now_s)
        view.record_scrape(totals, scrape)
        self._scrapes += 1
        self.scrape_due_s = (self._scrapes - 0.5) * self.case.scrape_s
        waiting = totals.gateway_waiting + float(totals.waiting.sum())
        self._points.append((now_s, view.desired, view.ready, float(totals.running.sum()), waiting))
        done = now_s >= duration_s and (self.replicas.front.is_done or now_s >= duration_s + LATEST_END_S)
        if done and self.outcome is None:
            self.outcome = self._outcome(now_s)

    def scale(self, count: int, now_s: float) -> None:
        """Set the desired replicas to `count`, clamped to 0..`max_replicas`."""
        desired = min(max(int(count), 0), self.case.max_replicas)
        if desired != self.view.desired:
            self._changes.append((now_s, desired))
            self.view.desired = desired
            self.replicas.scale(desired, now_s)

    def _outcome(self, now_s: float) -> RunOutcome:
        trace, replicas, front = self.case.trace, self.replicas, self.replicas.front
        ttft_s, itl_s, e2e_s = front.state.latencies_s()
        finished_s = front.state.requests["end_s"]
        last_s = float(finished_s[np.isfinite(finished_s)].max(initial=0.0)) if front.is_done else now_s
        return RunOutcome(
            ttft_s=ttft_s,
            itl_s=itl_s,
            e2e_s=e2e_s,
            change_s=np.array([change[0] for change in self._changes], np.float64),
            change_to=np.array([change[1] for change in self._changes], np.int64),
            spans=replicas.spans_until(max(trace.duration_s, last_s)),
            timeline=np.array(self._points, np.float64).reshape(-1, 5),
        )


class Decider:
    """Runs one scaler at its decision interval, for the cases that it controls."""

    def __init__(
        self,
        scaler: Scaler | FleetScaler,
        decide: Callable[[Sequence[View]], Sequence[int]],
        case_runs: Sequence[CaseRun],
    ) -> None:
        if not (math.isfinite(scaler.period_s) and scaler.period_s > 0):
            raise ValueError(f"period_s of scaler {scaler.name} is {scaler.period_s:g}; it must be a number above 0")
        self.case_runs = tuple(case_runs)
        self.due_s = self._period_s = scaler.period_s
        self._decide_counts = decide
        self._decisions = 1  # number of the next decision

    def decide(self, now_s: float) -> None:
        self._decisions += 1
        self.due_s = self._decisions * self._period_s
        counts = self._decide_counts([case_run.view for case_run in self.case_runs])
        for case_run, count in zip(self.case_runs, counts, strict=True):
            case_run.scale(count, now_s)


def run(case: Case, scaler: Scaler, progress: Progress = no_progress) -> RunOutcome:
    """Replay the trace of `case` while `scaler` decides the replica count; see `run_fleet`."""
    return run_fleet((case,), (scaler,), progress=progress)[0]


def run_fleet(
    cases: Sequence[Case],
    scalers: Sequence[Scaler] | FleetScaler,
    pool: GpuPool | None = None,
    progress: Progress = no_progress,
) -> list[RunOutcome]:
    """Replay the traces of several cases on one clock, and return the outcome of each.

    scalers: one per case, or one for all. pool: the GPUs shared by all replicas. A replica without a free GPU waits,
    and costs nothing until it has one. Without a pool, cases do not affect each other.
    Cases of one `service` are variants: their replicas share the requests of one trace, behind one router. The outcome
    of each tells of all requests, and of its own replicas.
    Desired counts are clamped to 0..`max_replicas`. After the trace, a case continues, and is paid for, until all
    requests are served, for one hour at most.
    Raises ValueError for an invalid case, naming the field, or the request by its row.
    """
    pool = pool or GpuPool.for_cases(cases)
    for case in cases:
        check_case(case)
        if case.gpus_per_replica > pool.largest_gpus:
            raise ValueError(f"gpus_per_replica is {case.gpus_per_replica:g}, a node has {pool.largest_gpus:g}")
    case_runs, deciders = _start_runs(cases, scalers, pool)
    end_s = max(case.trace.duration_s for case in cases)
    while True:
        now_s = min(*(case_run.due_s for case_run in case_runs), *(decider.due_s for decider in deciders))
        deciding = [decider for decider in deciders if decider.due_s <= now_s]
        asked = {id(case_run) for decider in deciding for case_run in decider.case_runs}
        for case_run in case_runs:
            if case_run.due_s <= now_s or id(case_run) in asked:
                case_run.advance(now_s)
        for case_run in case_runs:
            if case_run.scrape_due_s <= now_s:
                case_run.scrape(now_s)
        outcomes = [case_run.outcome for case_run in case_runs if case_run.outcome is not None]
        if len(outcomes) == len(case_runs):
            return outcomes
        for decider in deciding:
            decider.decide(now_s)
        progress(min(now_s / end_s, 1.0))


def _start_runs(
    cases: Sequence[Case], scalers: Sequence[Scaler] | FleetScaler, pool: GpuPool
) -> tuple[list[CaseRun], list[Decider]]:
    case_runs = [CaseRun(case, pool, front, number) for case, front, number in _share_fronts(cases)]
    if isinstance(scalers, Sequence):
        return case_runs, [
            Decider(scaler, _decide_one(scaler), (case_run,))
            for scaler, case_run in zip(scalers, case_runs, strict=True)
        ]
    return case_runs, [Decider(scalers, scalers.decide_all, case_runs)]


def _share_fronts(cases: Sequence[Case]) -> Iterator[tuple[Case, Front, int]]:
    """Yield each case with the front of its service, and its number there. A case without a service has its own."""
    services = [case.service or number for number, case in enumerate(cases)]
    variants = {
        service: [case for case, its in zip(cases, services, strict=True) if its == service] for service in services
    }
    for of_service in variants.values():
        check_variants(of_service)
    fronts = {service: (Front(of_service), itertools.count()) for service, of_service in variants.items()}
    for case, service in zip(cases, services, strict=True):
        front, numbers = fronts[service]
        yield case, front, next(numbers)


def _decide_one(scaler: Scaler) -> Callable[[Sequence[View]], Sequence[int]]:
    return lambda views: (scaler.decide(views[0]),)
