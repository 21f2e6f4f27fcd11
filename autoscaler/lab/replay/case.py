"""Types shared by the simulator (`run`), the scalers, the bounds and the reports.

A case replays one trace against replicas of one profile, while a scaler decides their number. Times are seconds since
the start of the trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.sim.engine.profiles import Profile

TRACE_START_S = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
"""A Monday. A trace from a file has no date, and pre-warm windows and cron triggers need one."""


@dataclass(frozen=True)
class Trace:
    """The requests of one workload, sorted by arrival."""

    name: str
    arrival_s: FloatColumn  # float64[N]
    prompt_tokens: IntColumn  # int64[N], at least 1
    output_tokens: IntColumn  # int64[N], at least 1
    duration_s: float  # all arrivals lie within
    start_s: float = TRACE_START_S  # Unix time at which it begins

    def select(self, kept: BoolColumn) -> Trace:
        """Return the trace with the requests of `kept`, bool[N], only."""
        return replace(
            self,
            arrival_s=self.arrival_s[kept],
            prompt_tokens=self.prompt_tokens[kept],
            output_tokens=self.output_tokens[kept],
        )


@dataclass(frozen=True)
class Goal:
    """Latency objectives, and the fraction of requests that must meet them."""

    ttft_s: float
    itl_s: float
    attainment: float

    def allowed_misses(self, requests: int) -> int:
        """Return how many of `requests` requests may miss, consistent with `is_met_by`."""
        return math.floor(requests * (1 - self.attainment + 1e-9))

    def is_met_by(self, attainment: float) -> bool:
        """Return whether `attainment`, 0..1, meets the goal. NaN does not. Rounding errors of a mean are tolerated."""
        return attainment >= self.attainment - 1e-9


@dataclass(frozen=True)
class Case:
    """One simulated setting: a trace, the replicas that serve it, and the goal."""

    trace: Trace
    profile: Profile
    goal: Goal
    cold_start_s: float  # mean time from placement until a replica serves, with image and weights on the node
    cold_start_spread: float = 0.1  # sigma of the logarithm; 0: every start takes the mean
    cold_start_uncached_s: float = math.nan  # mean on a node that was never used; NaN: every node has image and weights
    # share of nodes that hold the weights of every model; the others fetch them for every start. NaN: each node keeps
    # what its first replica fetched
    weights_on: float = math.nan
    requests_nodes: bool = False  # a scaler may request nodes before the replicas that need them
    fetches_weights: bool = False  # agents fetch weights to nodes, as a scaler wishes or a replica needs, and keep them
    node_idle_s: float = math.inf  # an empty node is removed after this time
    gpus_per_replica: float = 1.0
    max_replicas: int = 1000
    start_replicas: int = 1
    scrape_s: float = 15.0  # scrape interval; a scaler sees the values of the last scrape
    drain_s: float = 30.0  # longest time that a terminating replica takes to finish its requests; it still costs
    removal: str = "youngest"  # which replicas leave first; or "replica-set", in every detail of its order
    router: str = "least-requests"  # or "round-robin"
    # share of the requests of one replica compared with those of other variants; 1: the router knows no difference
    router_weight: float = 1.0
    service: str = ""  # service of which it is a variant: such cases serve one trace together; "": it is none
    seed: int = 1
    patience_s: float = math.inf  # clients without a first token leave after this time; no engine counter shows them
    # mean time between crashes of a serving replica; its requests are lost and it restarts
    crash_every_s: float = math.inf
    counted_from_s: float = 0.0  # scores count requests and costs from here on; before, scalers may learn


REMEMBERED_S = 6 * 3600.0  # largest age that `View.totals_ago` returns


class ObservedLatency(NamedTuple):
    """The histogram of one latency, over all replicas."""

    counts: FloatColumn  # float64[B], cumulative counts at vLLM's bounds, +Inf last
    sum_s: float


@dataclass(frozen=True)
class Totals:
    """Totals over all replicas of a case, from one scrape. Counters start with the trace and never decrease."""

    time_s: float  # time of the scrape
    running: FloatColumn  # float64[R], requests per serving replica
    waiting: FloatColumn  # float64[R]
    kv_usage: FloatColumn  # float64[R], 0..1
    gateway_waiting: float  # requests held by the gateway while no replica serves
    arrivals: float  # requests that reached the gateway
    finished: float
    first_tokens: float
    prompt_tokens: float  # of computed prompts
    generation_tokens: float
    # TTFT ("ttft"), gaps between tokens ("itl"), and of finished requests those of `engine.latencies`
    latencies: Mapping[str, ObservedLatency]


@dataclass(frozen=True)
class ReplicaRows:
    """All existing replicas, one per row: their present status, and the last scrape of each engine.

    A replica that did not serve at the last scrape has NaN in every metric.
    """

    id: IntColumn  # int64[P], ascending; never used twice
    created_s: FloatColumn  # float64[P], creation time
    unschedulable: BoolColumn  # bool[P], waiting for GPUs
    scheduled_s: FloatColumn  # float64[P], when its node was up; NaN: not yet
    started_s: FloatColumn  # float64[P], when its container began to run; NaN: not yet
    ready_s: FloatColumn  # float64[P]; NaN: not ready
    terminating: BoolColumn  # bool[P], finishing its requests
    node_created_s: FloatColumn  # float64[P], when the creation of its node began; NaN: it has none
    weights_held: BoolColumn  # bool[P], its node held the weights when it was placed
    time_s: FloatColumn  # float64[P], time of the scrape
    running: FloatColumn  # float64[P]
    waiting: FloatColumn  # float64[P]
    kv_usage: FloatColumn  # float64[P], 0..1
    prompt_tokens: FloatColumn  # float64[P], counter of this engine process; a crash resets it
    generation_tokens: FloatColumn  # float64[P], counter
    finished: FloatColumn  # float64[P], counter
    first_tokens: FloatColumn  # float64[P], counter
    ttft_met: FloatColumn  # float64[P], counter, first tokens within the goal, estimated from the histogram
    gap_s: FloatColumn  # float64[P], counter, total seconds between tokens
    gaps: FloatColumn  # float64[P], counter, number of gaps between tokens
    itl_judged: FloatColumn  # float64[P], counter, finished requests with a mean gap
    itl_met: FloatColumn  # float64[P], counter, of these, within the goal
    prefill_judged: FloatColumn  # float64[P], counter, finished requests with a prefill time
    prefill_met: FloatColumn  # float64[P], counter, of these, whose prefill did not certainly exceed the TTFT objective
    preemptions: FloatColumn  # float64[P], counter
    ttft_s: FloatColumn  # float64[P], p95 of the last 60 s over all pods, from their histograms; NaN: no request
    itl_s: FloatColumn  # float64[P], likewise


class FreePlaces(NamedTuple):
    """Room for further replicas beside all present ones."""

    free: int  # on nodes that are up
    held: int  # of these, on nodes that hold the weights
    nodes_held: int  # nodes that hold them
    up_gpus: float  # of nodes that are up
    more_gpus: float  # of nodes that come up, or may be created


class NodeState(NamedTuple):
    """A node that is up, for one case."""

    id: int  # never used twice
    free_gpus: float
    holds_weights: bool  # of the case
    replicas: int  # of the case


class View(Protocol):
    """The information that a scaler may use: past and present, as a metrics pipeline shows them."""

    @property
    def now_s(self) -> float: ...

    @property
    def desired(self) -> int:
        """spec.replicas"""
        ...

    @property
    def ready(self) -> int:
        """Replicas that serve and are not terminating."""
        ...

    @property
    def starting(self) -> int: ...

    @property
    def starting_since_s(self) -> FloatColumn:
        """float64[starting], creation time of each."""
        ...

    @property
    def totals(self) -> Totals:
        """Totals of the last scrape."""
        ...

    @property
    def pods(self) -> ReplicaRows:
        """The replicas one by one, for scalers that read single pods."""
        ...

    @property
    def places(self) -> FreePlaces:
        """Room for further replicas, on nodes with and without the weights."""
        ...

    @property
    def nodes(self) -> Sequence[NodeState]:
        """The nodes that are up."""
        ...

    def request_nodes(self, places: int) -> None:
        """Request places for this many further replicas, in place of what was requested before: nodes are created for
        those that find no room.
        """
        ...

    def fetch_weights(self, nodes: Sequence[int]) -> None:
        """Let agents fetch the weights to nodes that lack them. nodes: ids."""
        ...

    def totals_ago(self, seconds: float) -> Totals:
        """Return the latest totals that are at least `seconds` old, else the oldest. Rates over windows are differences
        of totals.
        """
        ...

    def live_concurrency(self) -> float:
        """Return the requests in the engines and at the gateway now, as a proxy in the request path counts them without
        a scrape.
        """
        ...

    def set_deletion_costs(self, costs: Mapping[int, int]) -> None:
        """Set the deletion costs of some replicas, by id. All others cost 0; of equals the lowest cost leaves first."""
        ...


class Scaler(Protocol):
    """Decides the number of replicas of one workload. One object serves one run."""

    name: str
    period_s: float  # decision interval

    def decide(self, view: View) -> int:
        """Return the desired replicas."""
        ...


class FleetScaler(Protocol):
    """Decides the number of replicas of several workloads that share GPUs."""

    name: str
    period_s: float

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        """Return the desired replicas of each workload, in the order of the cases."""
        ...


@dataclass(frozen=True)
class RunOutcome:
    """The result of one run."""

    ttft_s: FloatColumn  # float64[N], in the order of the trace; infinity: no first token
    itl_s: FloatColumn  # float64[N], mean gap between tokens; 0 for a single token, infinity: not finished
    e2e_s: FloatColumn  # float64[N]
    change_s: FloatColumn  # float64[C], times at which the desired count changed
    change_to: IntColumn  # int64[C], new desired count
    spans: FloatColumn  # float64[K, 2]: GPU assignment (start-up included) and termination of each replica, seconds
    timeline: FloatColumn  # float64[T, 5]: time (s), desired, ready, running, waiting; one row per scrape

    @property
    def replica_s(self) -> float:
        """Replica-seconds of the whole run."""
        return self.paid_s(0.0)

    def paid_s(self, from_s: float, to_s: float = math.inf) -> float:
        """Return the replica-seconds between two times."""
        begin_s, end_s = np.clip(self.spans, from_s, to_s).T
        return float((end_s - begin_s).sum())
