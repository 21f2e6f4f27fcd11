"""What one tick finds and decides: the types between the stages. No behaviour lives here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from autoscaler.core.columns import BoolColumn, Columns, FloatColumn
from autoscaler.core.fleet import Fleet
from autoscaler.core.samples import Samples
from autoscaler.core.spec import Schedule, Spec
from autoscaler.core.variants import Variants


class Signal(IntEnum):
    """Reasons to want replicas; the row of `Decision.asks`."""

    CONCURRENCY = 0  # running + waiting requests against what a replica holds
    PREFILL = 1  # prompt tokens per second against what a replica computes
    DECODE = 2  # generated tokens per second against what a replica writes
    KV_CACHE = 3  # KV-cache usage against its target
    TTFT = 4  # time to first token against the objective
    ITL = 5  # inter-token latency against the objective
    REJECTIONS = 6  # requests refused by an admission limit
    SCHEDULE = 7  # a pre-warm window is open, or opens one cold start from now
    WAKE = 8  # somebody waits in front of a workload that has no awake replica
    FORECAST = 9  # the rule that would have cost least, on the demand that is forecast


class Stage(IntEnum):
    """Steps from demand to decision, the row of `Decision.stages`; the stage that changes the column is the reason."""

    DEMAND = 0  # the strongest signal
    UNKNOWN = 1  # missing or stale inputs: hold or grow, never shrink; the forecast is about to speak: hold
    BURST = 2  # a queue that is gone before a new replica could serve is noise
    TOLERANCE = 3  # too small a change to act on
    STABILIZATION = 4  # only what a whole window agreed on
    IDLE = 5  # scale to zero, and the wake-up from it
    RATE_LIMIT = 6  # one step per period
    BOUNDS = 7  # min and max of the policy and the operator
    VARIANT = 8  # which workload of a service carries it at least cost
    GRANT = 9  # what the pool can give
    OWNER = 10  # paused, or owned by somebody else


@dataclass(frozen=True)
class Observation(Columns):
    """The state of each workload, understood; every field [W]. NaN: unknown, or nobody to ask."""

    replicas: FloatColumn  # spec.replicas now
    ready: FloatColumn  # ready pods that are not leaving
    starting: FloatColumn  # pods on their way, not ready yet, that can still become ready by waiting
    blocked: FloatColumn  # pods that waiting does not help
    missing: FloatColumn  # replicas that should exist, have no pod, and are not on their way
    terminating: FloatColumn  # leaving pods; they hold their GPUs
    next_ready_s: FloatColumn  # seconds until the first starting pod should serve; NaN: none starting
    pledged_s: FloatColumn  # replica-seconds that starting pods will have served one cold start from now
    reporting: FloatColumn  # ready pods whose engine answered within the trusted age
    joining: FloatColumn  # pods ready only just and never read yet: no load of theirs is missing
    asleep: FloatColumn  # reporting pods whose engine sleeps
    age_s: FloatColumn  # age of the oldest trusted engine reading; NaN: none
    running: FloatColumn  # requests, summed over reporting pods
    waiting: FloatColumn  # requests, likewise; hidden queues of sleeping engines included where known
    draining_requests: FloatColumn  # running and waiting on pods that hold some and do not serve any more
    draining_ended: FloatColumn  # requests that ended or were refused there since the last tick
    draining_prompt_tokens_per_s: FloatColumn  # summed over these pods
    draining_generation_tokens_per_s: FloatColumn
    draining_kv_usage: FloatColumn  # summed over these pods, each 0..1
    gateway_waiting: FloatColumn  # requests held in front; NaN: no gateway
    gateway_arrivals_per_s: FloatColumn
    gateway_silent_s: FloatColumn  # seconds since its gateway last told anything; NaN: none did within a day
    kv_usage: FloatColumn  # mean over reporting pods that are awake
    prompt_tokens_per_s: FloatColumn  # summed, over the rate window
    generation_tokens_per_s: FloatColumn
    finished_per_s: FloatColumn
    first_tokens_per_s: FloatColumn
    preemptions_per_s: FloatColumn
    rejections_per_s: FloatColumn
    ended: FloatColumn  # requests that ended or were refused since the last tick
    output_tokens: FloatColumn  # generated tokens per request
    ttft_s: FloatColumn  # mean of the pods' quantiles, weighted by their first tokens; NaN: nobody asked
    itl_s: FloatColumn  # mean of the pods' quantiles, weighted by their generated tokens
    queue_wait_s: FloatColumn  # waiting x tokens per request / token rate: how long the last in line will wait
    loaded: FloatColumn  # pods whose framebuffer is in use; NaN: no fresh GPU metrics
    active: FloatColumn  # pods whose tensor cores work; NaN: no fresh GPU metrics
    loaded_idle_s: (
        FloatColumn  # replica-seconds spent loaded and idle since the workload was first seen; NaN: never told
    )
    cold_start_s: FloatColumn  # seconds from asking for a replica until it serves: learned, else stated


@dataclass(frozen=True)
class Capacity(Columns):
    """What one replica can do within the objective; every field float64[W]. NaN: not known."""

    concurrency: FloatColumn  # requests at once
    prefill_tokens_per_s: FloatColumn
    decode_tokens_per_s: FloatColumn
    confidence: FloatColumn  # 0..1; 1 is stated by the policy, 0 is a guess


@dataclass(frozen=True)
class Forecast(Columns):
    """What the rule in force goes by and asks for; every field float64[W]. NaN: not known."""

    idle_gap_s: FloatColumn  # between two tokens of the only request of a replica
    prompt_token_s: FloatColumn  # time a prompt token takes
    output_token_s: FloatColumn  # time a generated token takes, beyond its share of the idle gap
    readings: FloatColumn  # of single pods that taught these; never fading
    demand: FloatColumn  # replicas that what arrives keeps busy
    work_s: FloatColumn  # busy replica-seconds of a request
    rule: FloatColumn  # row of the family, `family.describe`
    watched_s: FloatColumn  # seconds of demand the rules were judged on
    kept_s: FloatColumn  # to be watched before one of the replicas that were found is given up
    allowed: FloatColumn  # share of requests that may miss on paper, corrected by what really was missed
    paper_missed: FloatColumn  # share that would have missed under the rule in force, on paper
    unavoidable: FloatColumn  # share that misses however many replicas there are
    really_missed: FloatColumn  # share that really missed, of the last day; NaN: nobody counted
    itl_judged: FloatColumn  # requests whose own ITL was counted, of the last day
    by_rule: FloatColumn  # replicas that the rule asks for
    replicas: FloatColumn  # that are asked for, by the rule or by what was found; NaN: the rules do not speak
    needed: FloatColumn  # what the load that is there needs, be that more or less


@dataclass(frozen=True)
class TickInput:
    """All that one tick knows of the world."""

    now_s: float
    fleet: Fleet
    spec: Spec  # rows of fleet.workloads
    schedule: Schedule  # rows of fleet.workloads
    samples: Samples  # rows of fleet.pods and fleet.workloads
    variants: Variants | None = None  # rows of fleet.workloads; None: every workload is alone


@dataclass(frozen=True)
class Decision:
    """What should be, and each step on the way there. Rows are those of the fleet of the same tick."""

    observation: Observation
    capacity: Capacity
    asks: FloatColumn  # float64[S, W], replicas each signal wants; NaN: no opinion
    stages: FloatColumn  # float64[G, W], replicas after each stage; NaN until something is known
    replicas: FloatColumn  # float64[W], the decision: the last stage, or what stands where nothing is known
    active: BoolColumn  # bool[W], keep above zero (KEDA's IsActive)
    trusted: BoolColumn  # bool[W], inputs were known and fresh enough to shrink on
    idle_after_s: FloatColumn  # float64[W], seconds without work until it goes to zero; NaN: it does not
    needed: FloatColumn  # float64[W], replicas of those before the grant that the load needs; the others are a reserve
    forecast: Forecast  # by the rules as they were judged last
