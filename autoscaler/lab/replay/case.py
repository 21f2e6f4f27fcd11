"""The words of a study: a trace is replayed against replicas of one profile while a scaler decides how many there are.

The simulator (`run`), every scaler (the product's own decision and the baselines), the clairvoyant bound and the report
speak in these types. Times are seconds since the start of the trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.sim.engine.profiles import Profile


@dataclass(frozen=True)
class Trace:
    """Requests of one workload, sorted by arrival."""

    name: str
    arrival_s: FloatColumn  # float64[N]
    prompt_tokens: IntColumn  # int64[N], at least 1
    output_tokens: IntColumn  # int64[N], at least 1
    duration_s: float  # length of the trace; arrivals lie within


@dataclass(frozen=True)
class Goal:
    """What a request is promised, and the share of requests for which it must hold."""

    ttft_s: float
    itl_s: float
    attainment: float

    def may_miss(self, requests: int) -> int:
        """Return how many of so many requests may miss, as `met_by` counts."""
        return math.floor(requests * (1 - self.attainment + 1e-9))

    def met_by(self, attainment: float) -> bool:
        """Say whether so large a share is enough; NaN is not. A mean over workloads may be off by a rounding."""
        return attainment >= self.attainment - 1e-9


@dataclass(frozen=True)
class Case:
    """One setting in which scalers are compared."""

    trace: Trace
    profile: Profile
    goal: Goal
    cold_start_s: float  # mean seconds from placing a replica until it serves, where image and weights are there
    cold_start_spread: float = 0.1  # sigma of the logarithm; 0: always the same
    cold_start_uncached_s: float = math.nan  # mean on a node that was never used; NaN: every node has all there is
    gpus_per_replica: float = 1.0
    max_replicas: int = 1000
    start_replicas: int = 1
    scrape_s: float = 15.0  # seconds between two scrapes; what a scaler sees is as old as the last one
    drain_s: float = 30.0  # a replica on its way out finishes what it runs, so long at most; it still costs
    router: str = "least-requests"  # or "round-robin"
    seed: int = 1
    patience_s: float = math.inf  # a client that has nothing after so long leaves; no counter of an engine knows it
    crash_every_s: float = math.inf  # mean, of a replica that serves; what it holds is lost, and it starts again
    counted_from_s: float = 0.0  # figures are of what comes from then on; before, scalers may learn


@dataclass(frozen=True)
class Totals:
    """What one scrape shows of all replicas together. Counters count since the start of the trace and never go back."""

    time_s: float  # when it was scraped
    running: FloatColumn  # float64[R], per serving replica
    waiting: FloatColumn  # float64[R]
    kv_usage: FloatColumn  # float64[R], 0..1
    gateway_waiting: float  # held in front while nobody serves
    arrivals: float  # requests that reached the router
    finished: float
    first_tokens: float
    prompt_tokens: float  # of requests whose prompt was computed
    generation_tokens: float
    ttft_buckets: FloatColumn  # float64[B], cumulative counts at vLLM's bounds, +Inf last
    itl_sum_s: float
    itl_buckets: FloatColumn  # float64[B]


@dataclass(frozen=True)
class PodRows:
    """Every replica that exists now, one per row: what the cluster says now, and the last scrape of its engine.

    A replica that was not serving at the last scrape has NaN in every reading, however ready it is by now.
    """

    id: IntColumn  # int64[P], ascending; never used twice
    created_s: FloatColumn  # float64[P], when it was asked for
    unschedulable: BoolColumn  # bool[P], waits for GPUs
    scheduled_s: FloatColumn  # float64[P], when its node was up; NaN: not yet
    started_s: FloatColumn  # float64[P], when its container began to run; NaN: not yet
    ready_s: FloatColumn  # float64[P]; NaN: not ready
    terminating: BoolColumn  # bool[P], finishes what it has
    time_s: FloatColumn  # float64[P], when it was scraped
    running: FloatColumn  # float64[P]
    waiting: FloatColumn  # float64[P]
    kv_usage: FloatColumn  # float64[P], 0..1
    prompt_tokens: FloatColumn  # float64[P], counter of this engine process; a crash resets it
    generation_tokens: FloatColumn  # float64[P], counter
    finished: FloatColumn  # float64[P], counter
    first_tokens: FloatColumn  # float64[P], counter
    ttft_met: FloatColumn  # float64[P], counter, those within the goal, as the histogram tells
    gap_s: FloatColumn  # float64[P], counter, seconds between tokens
    gaps: FloatColumn  # float64[P], counter, how many those are
    itl_judged: FloatColumn  # float64[P], counter, finished requests whose mean gap was counted
    itl_met: FloatColumn  # float64[P], counter, those within the goal
    prefill_judged: FloatColumn  # float64[P], counter, finished requests whose prompt's time was counted
    prefill_met: FloatColumn  # float64[P], counter, those for which it did not certainly take longer than TTFT may
    preemptions: FloatColumn  # float64[P], counter
    ttft_s: FloatColumn  # float64[P], p95 of the last 60 s over all pods, from their histograms; NaN: nobody asked
    itl_s: FloatColumn  # float64[P], likewise


class View(Protocol):
    """All that a scaler may know when it decides: the past, as its metrics pipeline shows it."""

    @property
    def now_s(self) -> float: ...

    @property
    def wanted(self) -> int:
        """spec.replicas"""
        ...

    @property
    def ready(self) -> int:
        """Replicas that serve and are not leaving."""
        ...

    @property
    def starting(self) -> int: ...

    @property
    def starting_since_s(self) -> FloatColumn:
        """float64[starting], when each was asked for."""
        ...

    @property
    def seen(self) -> Totals:
        """The latest scrape."""
        ...

    @property
    def pods(self) -> PodRows:
        """Replica by replica: for a pipeline that begins at the samples of pods."""
        ...

    def ago(self, seconds: float) -> Totals:
        """Return the latest scrape that is at least so old, else the oldest there is: windows are differences."""
        ...

    def live_concurrency(self) -> float:
        """Requests inside and in front right now: what a proxy in the request path counts without a scrape."""
        ...


class Scaler(Protocol):
    """Decides how many replicas there should be. One object serves one run."""

    name: str
    period_s: float  # between two decisions

    def decide(self, view: View) -> int:
        """Return the replicas wanted now."""
        ...


class FleetScaler(Protocol):
    """Decides for several workloads at once, whose replicas share GPUs."""

    name: str
    period_s: float

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        """Return the replicas wanted now of each workload, in the order of the cases."""
        ...


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    ttft_s: FloatColumn  # float64[N], in order of the trace; infinity: never answered
    itl_s: FloatColumn  # float64[N], mean gap between tokens; 0 for one token, infinity: never finished
    e2e_s: FloatColumn  # float64[N]
    change_s: FloatColumn  # float64[C], when the wanted count changed
    change_to: IntColumn  # int64[C]
    replica_s: float  # replica-seconds paid for, from having GPUs (start-up included) to the end of draining; counted
    timeline: FloatColumn  # float64[T, 5]: time, wanted, ready, running, waiting; a point for each scrape
