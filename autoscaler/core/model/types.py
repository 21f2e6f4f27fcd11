"""The types that pass between the stages of a tick: input, observation, capacity, plan, choice and decision."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.chain import Chain
from autoscaler.core.model.diagnosis import Diagnosed
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.forecast import Forecast
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.pairs import Pairs
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.model.samples import Samples
from autoscaler.core.model.spec import Schedule, Spec
from autoscaler.core.model.variants import Variants
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, TimestampColumn


class Weighed(Enum):
    """Whether the planner weighs a signal, so that the signal is left out where the planner speaks."""

    ALWAYS = "always"
    WHERE_COUNTED = "where counted"  # where the requests that met the objective are counted
    NEVER = "never"
    ITSELF = "itself"


class Signal(PublishedEnum):
    """Signals that recommend replicas, with their titles; the rows of `Decision.recommendations`."""

    CONCURRENCY = 0, "Concurrency", Weighed.ALWAYS  # requests in flight, divided by those that a replica runs
    PREFILL = 1, "Prefill rate", Weighed.ALWAYS  # prompt tokens per second, divided by those that a replica computes
    DECODE = 2, "Decode rate", Weighed.ALWAYS  # generated tokens per second, divided by those that a replica generates
    KV_CACHE = 3, "KV cache", Weighed.ALWAYS  # KV-cache usage, relative to its target
    TTFT = 4, "TTFT", Weighed.ALWAYS  # time to first token, relative to the objective
    ITL = 5, "ITL", Weighed.WHERE_COUNTED  # inter-token latency, relative to the objective
    REJECTIONS = 6, "Rejections", Weighed.NEVER  # requests refused by an admission limit
    SCHEDULE = 7, "Schedule", Weighed.NEVER  # a pre-warm window is open, or opens one cold start from now
    WAKE = 8, "Wake-up", Weighed.NEVER  # requests wait for a workload that has no awake replica
    PLANNER = 9, "Planner", Weighed.ITSELF  # the sizing strategy that would have cost least within the error budget

    def __init__(self, value: int, title: str, weighed: Weighed) -> None:
        super().__init__(value, title)
        self.weighed = weighed


class Recommender(PublishedEnum):
    """Origin of the count of a workload; the values of `Choice.recommender`."""

    NO_POLICY = 0, "No policy"  # the workload has no valid policy: nothing is recommended
    STATED = 1, "Stated"  # the reactive signals, against the capacity that the policy states
    WARMING_UP = 2, "Warming up"  # the planner will soon recommend: until then only what it never weighs adds replicas
    REACTIVE = 3, "Signals"  # the reactive signals, against learned capacity, while the planner has no recommendation
    PLANNER = 4, "Planner"  # the planner, and the reactive signals that it does not weigh
    OVERRULED_BY_QUEUE = 5, "Both"  # the planner and all reactive signals: requests wait longer than the policy allows

    @property
    def plans(self) -> bool:
        """Whether the planner speaks, alone or with all others."""
        return self >= Recommender.PLANNER


class Stage(PublishedEnum):
    """Stages from demand to decision, the rows of `Decision.stages`. The stage that changes a count is its reason."""

    DEMAND = 0, "Recommendation", "as recommended"  # the strongest signal
    UNKNOWN = 1, "Unknown load", "kept: load not known yet"  # missing or stale inputs, or the planner is awaited
    BURST = 2, "Burst", "the queue drains in time"  # ignore a queue that ends before a new replica serves
    TOLERANCE = 3, "Tolerance", "within tolerance"  # ignore small changes
    STABILIZATION = 4, "Stabilization", "stabilizing"  # change only as far as a whole window agrees
    IDLE = 5, "Idle", "one replica stays"  # scale to zero, and the wake-up from it
    RATE_LIMIT = 6, "Rate limit", "rate limited"  # one step per period
    BOUNDS = 7, "Bounds", "at min or max"  # min and max of the policy and the operator
    PAIR = 8, "Pair", "needed by its pair"  # the other side of a prefill and decode pair needs more replicas here
    VARIANT = 9, "Variants", "load shared among variants"  # which workloads of a service carry its load at least cost
    EXCHANGE = 10, "Cheaper variants", "replaces dearer variants"  # replicas that will replace those of dearer variants
    SLEEP = 11, "Kept asleep", "keeps some asleep"  # replicas that are kept asleep beside those that serve
    ALLOCATION = 12, "Allocation", "limited by GPUs or nodes"  # GPUs that the pool allocates
    PARTNER = 13, "Partner", "limited by its pair"  # the other side of a pair gets fewer replicas than it needs
    OWNER = 14, "Owner", "count set elsewhere"  # paused, or another owner sets the count

    def __init__(self, value: int, title: str, effect: str) -> None:
        """effect: what it did to a count, in a few words."""
        super().__init__(value, title)
        self.effect = effect


@dataclass(frozen=True)
class Capacity(Columns):
    """Capacity of one replica within the objective; every field float64[W]. NaN: unknown."""

    concurrency: FloatColumn  # requests that it runs at once
    prefill_tokens_per_s: FloatColumn
    decode_tokens_per_s: FloatColumn
    confidence: FloatColumn  # 0..1; 1: stated by the policy, 0: a guess


@dataclass(frozen=True)
class Plan(Columns):
    """Recommendation of the planner, and the figures behind it; every column float64[W]. NaN: unknown."""

    idle_gap_s: FloatColumn  # between two tokens of a replica that serves a single request
    prompt_token_s: FloatColumn  # time to compute a prompt token
    output_token_s: FloatColumn  # time to generate a token, beyond its share of the idle gap
    slots: FloatColumn  # requests that a replica can run at once
    readings: FloatColumn  # of single pods that the step time was fitted on; they do not fade
    last_updated_s: TimestampColumn  # time of the readings that the plan is based on
    demand: FloatColumn  # offered load: replicas that the arriving requests keep busy
    work_s: FloatColumn  # busy replica-seconds per request
    strategy: FloatColumn  # selected strategy, its row in the strategy set
    constant_count: FloatColumn  # that it recommends at least; 0: it has none
    observed_s: FloatColumn  # seconds of demand that the shadow fleets have served
    warm_up_s: FloatColumn  # seconds of demand for which the initial fleet is kept
    initial_fleet: FloatColumn  # the count when it was first seen: its owner's
    allowed_fraction: FloatColumn  # of requests that the selected strategy may miss now, 0..1
    shadow_missed_fraction: FloatColumn  # of requests that its shadow fleet would have missed
    unavoidable_fraction: FloatColumn  # of requests that miss on any number of replicas
    missed_fraction: FloatColumn  # of requests that really missed in the last day; NaN: not counted
    itl_counted_requests: FloatColumn  # requests whose mean token gap was counted in the last day
    strategy_replicas: FloatColumn  # replicas that the selected strategy requests
    replicas: FloatColumn  # recommendation, the initial fleet considered; NaN: the planner has no opinion
    base_replicas: FloatColumn  # replicas that the present load needs, which may be more or fewer
    peak_expires_in_s: FloatColumn  # seconds until the held peak behind the recommendation expires; NaN: none is held
    day_ago_load: FloatColumn  # highest load of a day ago, from this time of day until the next cold start is over
    week_ago_load: FloatColumn  # likewise of a week ago
    surges: FloatColumn  # that were seen since the process began
    surge_counts_s: FloatColumn  # seconds until the only one that has just ended counts no more; NaN: there is none
    forecast: Forecast  # replicas for the load of a day and of a week ago


@dataclass(frozen=True)
class Recommendation:
    """How many replicas one recommender wants."""

    signals: FloatColumn  # float64[S, W], by signal; NaN: no opinion
    base_replicas: FloatColumn  # float64[W], what the present load needs, be that more or less; NaN: not known

    @property
    def replicas(self) -> FloatColumn:
        """The largest of the signals; float64[W], NaN: none has an opinion."""
        return np.asarray(np.fmax.reduce(self.signals, axis=0))

    @property
    def headroom(self) -> FloatColumn:
        """Replicas beyond those that the present load needs; float64[W]."""
        return np.fmax(self.replicas - self.base_replicas, 0.0)

    @property
    def reason(self) -> IntColumn:
        """The signal that wants the most; int64[W], -1: none has an opinion."""
        known = ~np.isnan(self.signals)
        return np.where(known.any(axis=0), np.where(known, self.signals, -np.inf).argmax(axis=0), -1)


@dataclass(frozen=True)
class Choice:
    """Which recommender speaks for each workload, and what it recommends."""

    recommender: IntColumn  # int64[W], Recommender
    signals: FloatColumn  # float64[S, W], replicas by signal, of those that speak; NaN: no opinion, or not chosen
    replicas: FloatColumn  # float64[W], the largest of these; NaN: none
    base_replicas: FloatColumn  # float64[W], those that the present load needs; infinity: all of them
    beside: FloatColumn  # float64[W], the largest of the signals that the planner has not weighed, whole; NaN: none
    unweighed: FloatColumn  # float64[W], the largest of the signals that the planner never weighs; NaN: none
    load_known: BoolColumn  # bool[W], the load is measured, so that fewer replicas can be known to suffice
    unplanned_s: FloatColumn  # float64[W], seconds since the planner last recommended, or the load was unknown

    @property
    def planned(self) -> BoolColumn:
        """Workloads for which the planner speaks, alone or with all others; bool[W]."""
        return np.asarray(self.recommender >= Recommender.PLANNER)


@dataclass(frozen=True)
class TickInput:
    """Input of one tick."""

    now_s: float
    fleet: Fleet
    spec: Spec  # rows of fleet.workloads
    schedule: Schedule  # rows of fleet.workloads
    samples: Samples  # rows of fleet.pods and fleet.workloads
    variants: Variants | None = None  # rows of fleet.workloads; None: no service has variants
    pairs: Pairs | None = None  # rows of fleet.workloads; None: no workload has a role
    requests_nodes: BoolColumn | None = None  # bool[W], nodes can be requested before their replicas; None: no node can
    fetches_weights: bool = False  # nodes fetch weights by the daemon's plan


class SleepOrders(NamedTuple):
    """Pods of workloads that keep replicas asleep; the others are left as they are."""

    wake: BoolColumn  # bool[P], asleep, and to serve
    sleep: BoolColumn  # bool[P], to be asleep, or to stay so
    asleep: BoolColumn  # bool[P], those that are asleep


@dataclass(frozen=True)
class Decision:
    """Decided replicas, and the result of each stage. Rows are those of the fleet of the same tick."""

    observation: Observation
    starts: Starts  # the start that the next replica would have, and those under way
    capacity: Capacity
    recommender: IntColumn  # int64[W], Recommender
    recommendations: FloatColumn  # float64[S, W], replicas by signal; NaN: no opinion
    stages: FloatColumn  # float64[G, W], replicas after each stage; NaN: unknown
    replicas: FloatColumn  # float64[W], the result of the last stage, or the present count if that is unknown
    sleep_orders: SleepOrders  # [P]
    active: BoolColumn  # bool[W], keep above zero (KEDA's IsActive)
    trusted: BoolColumn  # bool[W], inputs are known and fresh enough to shrink
    idle_after_s: FloatColumn  # float64[W], seconds without work until the workload goes to zero; NaN: it does not
    idle_s: FloatColumn  # float64[W], seconds since there was work, or may have been some
    kept_for_s: FloatColumn  # float64[W], seconds for which stabilization still keeps the count; NaN: it does not
    kept_window_s: FloatColumn  # float64[W], length of the window that keeps it
    base_replicas: FloatColumn  # float64[W], those before the allocation that the load needs; the rest is headroom
    unfollowed_s: FloatColumn  # float64[W], seconds for which the HPA has not followed the answer; NaN: it follows
    pending_by_class: FloatColumn  # float64[C, W], replicas that are not ready, by PendingClass
    plan: Plan  # the recommendation of the planner, as of its last update
    diagnosed: Diagnosed  # what its GPUs do; only told
    chain: Chain  # what begins when for the next pre-warm window or rise of the forecast
