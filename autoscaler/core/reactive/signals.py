"""The reactive recommender: one small function for each signal, which returns replicas, or NaN for no opinion.

Recommendations are fractions of awake replicas, before rounding. The framebuffer is no signal, because vLLM fills it at
start whatever the load.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.chain import Link
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import Capacity, Recommendation, Signal, TickInput
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.observe.load import (
    add_draining,
    at_gateway,
    awake,
    has_lasting_queue,
    is_queued,
    requests_in_flight,
    scale_up,
    stays_asleep,
    with_idle,
)
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.readings.rates import MIN_PER_S, RATE_WINDOW_S
from autoscaler.core.table.columns import FloatColumn, or_zero

LATENCY_LAG_S = 150.0
"""Latency quantiles still reflect a queue for this long after it is gone: a usual histogram window and the age of a
reading."""

LARGEST_STEP = 2.0
"""Latency or refused requests multiply the replicas by no more. Latency grows without bound near saturation, so a ratio
of latencies is not a ratio of replicas."""


def recommend(inp: TickInput, observed: Observed, capacity: Capacity) -> Recommendation:
    """Recommend replicas by the signals of this moment.

    Replicas asleep that the daemon cannot wake serve nothing. They count on top where more are needed than are awake.
    """
    observation, arrivals = observed.observation, observed.arrivals
    signals = np.full((len(Signal), len(observation.replicas)), np.nan)
    signals[Signal.CONCURRENCY] = by_concurrency(inp, observation, capacity)
    signals[Signal.PREFILL] = by_prefill(inp, observation, capacity)
    signals[Signal.DECODE] = by_decode(inp, observation, capacity)
    signals[Signal.KV_CACHE] = by_kv_cache(inp, observation)
    signals[Signal.TTFT] = by_ttft(inp, observation, arrivals)
    signals[Signal.ITL] = by_itl(inp, observation, arrivals)
    signals[Signal.REJECTIONS] = by_rejections(inp, observation, arrivals)
    signals = with_idle(observation, signals)
    signals[Signal.SCHEDULE] = inp.schedule.find_floor(inp.now_s, observed.link_s[Link.REPLICA])
    signals[Signal.WAKE] = by_wake_up(inp, observation, capacity)
    base_replicas = np.fmax.reduce(signals, axis=0)  # all of it is for the load that there is
    return Recommendation(signals, base_replicas)


def by_concurrency(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """Divide the requests in flight, gateway queue included, by what a replica should hold.

    40 running + 24 waiting, 20 per replica to be used to 0.8: 64 / 16 = 4 replicas.
    Source: Little's law; the HPA's AverageValue on a count of requests.
    """
    return requests_in_flight(observation) / (capacity.concurrency * inp.spec.target_usage)


def by_prefill(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """Divide the prompt tokens per second by what a replica computes."""
    tokens_per_s = scale_up(observation, observation.prompt_tokens_per_s)
    tokens_per_s = tokens_per_s + or_zero(observation.draining_prompt_tokens_per_s)
    return tokens_per_s / (capacity.prefill_tokens_per_s * inp.spec.target_usage)


def by_decode(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """Divide the generated tokens per second by what a replica generates."""
    tokens_per_s = scale_up(observation, observation.generation_tokens_per_s)
    tokens_per_s = tokens_per_s + or_zero(observation.draining_generation_tokens_per_s)
    return tokens_per_s / (capacity.decode_tokens_per_s * inp.spec.target_usage)


def by_kv_cache(inp: TickInput, observation: Observation) -> FloatColumn:
    """Return the replicas that bring mean KV-cache usage to its target: 3 at 0.9 with a target of 0.8 give 3.4.

    There is no opinion below the target: a queue for slots leaves KV usage low, so low usage is no reason to shrink.
    """
    usage = observation.kv_usage / inp.spec.kv_target_usage
    draining = or_zero(observation.draining_kv_usage) / inp.spec.kv_target_usage
    return np.where(usage > 1, awake(observation) * usage + draining, np.nan)


def by_ttft(inp: TickInput, observation: Observation, arrivals: Arrivals) -> FloatColumn:
    """Grow in proportion to a breach of the TTFT objective, at most to double; no opinion below it.

    The histogram counts requests whose wait is over, and is worst when the queue is already empty. So it counts while
    there is a queue, or when there was none for as long as the histogram reaches back: then prefill itself is too slow.
    """
    return _latency_step(inp, observation, observation.ttft_s / inp.spec.ttft_objective_s, arrivals)


def by_itl(inp: TickInput, observation: Observation, arrivals: Arrivals) -> FloatColumn:
    """Grow in proportion to a breach of the ITL objective, at most to double; no opinion below it.

    The full batches of a queue that is gone stay in its histogram as long as their TTFT does.
    """
    return _latency_step(inp, observation, observation.itl_s / inp.spec.itl_objective_s, arrivals)


def by_rejections(inp: TickInput, observation: Observation, arrivals: Arrivals) -> FloatColumn:
    """Grow by the requests that an admission limit refuses, which the queue gauge does not show.

    One more replica, where the number of requests that are served is unknown. The rates cover the last half minute.
    Replicas that became ready within it have refused nothing yet, so they do not multiply the step; otherwise each of
    them would call for another.
    """
    refused = inp.now_s - arrivals.last_refused_s <= RATE_WINDOW_S
    if not refused.any():  # as in most ticks
        return np.full(len(refused), np.nan)
    fleet, serving = inp.fleet, awake(observation)
    new = fleet.pod_ready & ~fleet.pod_terminating & (inp.now_s - fleet.pod_ready_s < RATE_WINDOW_S)
    before = serving - np.bincount(fleet.pod_workload[new], minlength=len(refused))
    refusing = np.where(before > 0, before, serving)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        offered = (observation.finished_per_s + observation.rejections_per_s) / observation.finished_per_s
    step = np.where(np.isnan(offered), refusing + 1, refusing * np.fmin(offered, LARGEST_STEP))
    return np.where(refused & (observation.rejections_per_s > MIN_PER_S), step, np.nan)


def by_wake_up(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """Wake a workload without an awake replica as soon as a request waits at its gateway: one replica at least.

    Sleeping engines do not serve, and their own gauges stay at 0, so those that cannot be woken count on top. Beside
    stuck engines one replica stands in, whatever the length of their queue.
    """
    requested = (
        (observation.gateway_waiting > 0)
        | (observation.gateway_arrivals_per_s > 0)
        | ((observation.asleep > 0) & (observation.waiting > 0))
    )
    none_awake = (observation.ready == 0) | ((observation.reporting > 0) & (awake(observation) == 0))
    queue = at_gateway(observation) / (capacity.concurrency * inp.spec.target_usage)
    wakes = requested & none_awake & ~(observation.stuck > 0)
    return np.where(wakes, stays_asleep(observation) + np.fmax(queue, 1.0), observation.stuck_min_replicas)


def beside_queue(observation: Observation, signals: FloatColumn) -> FloatColumn:
    """Return the replicas needed regardless of a queue: refused requests, schedule, a first awake replica. float64[W].

    How many more are woken for the queue at a gateway follows from its projection.
    """
    first = np.fmin(signals[Signal.WAKE], stays_asleep(observation) + 1)
    return np.asarray(np.fmax(np.fmax(signals[Signal.REJECTIONS], signals[Signal.SCHEDULE]), first))


def without_queue(inp: TickInput, observation: Observation, capacity: Capacity, signals: FloatColumn) -> FloatColumn:
    """Return the replicas for the load without its queue: running batch, token rates, KV cache, latency. float64[W].

    While there is a queue, TTFT is the wait in it and is left out.
    """
    load = signals[[Signal.PREFILL, Signal.DECODE, Signal.KV_CACHE, Signal.ITL, Signal.TTFT]]
    load[-1] = np.where(is_queued(observation), np.nan, load[-1])
    running = add_draining(observation, scale_up(observation, observation.running))
    running = running / (capacity.concurrency * inp.spec.target_usage)
    return np.asarray(np.fmax(np.fmax.reduce(load, axis=0), running))


def _latency_step(inp: TickInput, observation: Observation, breach: FloatColumn, arrivals: Arrivals) -> FloatColumn:
    """Multiply the awake replicas by a breach of an objective. breach: float64[W], latency over its objective."""
    since_queue_s = inp.now_s - arrivals.last_queued_s
    is_current = has_lasting_queue(observation) | ~(since_queue_s <= LATENCY_LAG_S)
    return np.where(is_current & (breach > 1), awake(observation) * np.fmin(breach, LARGEST_STEP), np.nan)
