"""How many replicas each signal would like: one small function a signal, NaN for no opinion.

Asks are fractions of replicas, awake ones, before rounding. The framebuffer is never asked: vLLM fills it at start
whatever the load.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.types import Capacity, Observation, Plan, Signal, TickInput
from autoscaler.core.observe.draining import with_draining
from autoscaler.core.observe.progress import QUEUED
from autoscaler.core.observe.rates import NOTHING_PER_S, RATE_WINDOW_S
from autoscaler.core.planner.step_time import FEWEST_READINGS
from autoscaler.core.planner.strategies import EVERY_S
from autoscaler.core.reactive.queue_projection import at_gateway, queued
from autoscaler.core.state import Memory, WorkloadMemory
from autoscaler.core.table import ewma
from autoscaler.core.table.columns import BoolColumn, FloatColumn, ceil_replicas, or_zero

LATENCY_LAG_S = 150.0
"""How long latency quantiles still speak of a queue that is gone: a usual histogram window and the age of a reading."""

LARGEST_LATENCY_STEP = 2.0
"""Latency grows without bound near saturation, so a ratio of latencies is not a ratio of replicas: at most double."""

SHORTEST_AVERAGE_S = 15.0
"""Averages over a cold start are at least this long: two scrapes."""

FORECAST_DUE_S = (FEWEST_READINGS + 1) * EVERY_S
"""Within so long the forecast speaks of engines that are read and busy, be it a single one that nobody knows yet."""

WEIGHED = np.array([Signal.CONCURRENCY, Signal.PREFILL, Signal.DECODE, Signal.KV_CACHE, Signal.TTFT])
"""Signals that a rule in force has weighed already; ITL too, where somebody counts the requests that met it."""

UNWEIGHED = np.array([Signal.REJECTIONS, Signal.SCHEDULE, Signal.WAKE])
"""Signals that no rule weighs."""

_BESIDE = np.array([signal for signal in Signal if signal != Signal.PLANNER])


def follow(inp: TickInput, observation: Observation, memory: Memory) -> Memory:
    """Carry arrivals and the last queue forward.

    Arrivals, averaged over about one cold start, are ended and refused requests plus the change of those in flight:
    vLLM counts no arrivals. A single sample may be below zero: what ends now has been in flight before. After as
    long without any, the average begins anew: the quiet before says nothing of what comes now.
    """
    workloads = memory.workloads
    elapsed_s = inp.now_s - workloads.last_tick_s
    stuck_requests = or_zero(observation.stuck_requests) + or_zero(observation.apart_requests)
    in_flight = _requests(observation) + stuck_requests + or_zero(observation.gateway_waiting)
    arrived = observation.ended + or_zero(observation.draining_ended) + in_flight - workloads.in_flight
    gone_per_s = observation.finished_per_s + or_zero(observation.rejections_per_s)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        arrived_per_s = np.where(elapsed_s > 0, arrived / elapsed_s, np.nan)
    # A first sample is as noisy as it is short: begin with those that ended.
    arrivals = np.where(np.isnan(workloads.arrivals_per_s), gone_per_s, arrived_per_s)
    steadiness_s = _steadiness_s(observation)
    before_s = or_zero(workloads.arriving_s)
    quiet = workloads.zero.quiet_s >= np.fmin(2 * steadiness_s, before_s)  # for a cold start, or since it is watched
    before_s = np.where(quiet, 0.0, before_s)
    arriving_s = np.where(workloads.in_flight >= 0, before_s + or_zero(elapsed_s), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = ewma.smoothing_factor(elapsed_s, steadiness_s) / ewma.smoothing_factor(arriving_s, steadiness_s)
    last_queued_s = np.where(
        queued(observation) | np.isnan(workloads.last_queued_s), inp.now_s, workloads.last_queued_s
    )
    return memory.noting(
        in_flight=in_flight,
        arrivals_per_s=ewma.update(workloads.arrivals_per_s, arrivals, gain),
        arriving_s=arriving_s,
        last_queued_s=last_queued_s,
    )


def follow_lasting(
    inp: TickInput, observation: Observation, without_queue: FloatColumn, remembered: WorkloadMemory
) -> FloatColumn:
    """Return what the load asks for without its queue, averaged over about one cold start; float64[W]."""
    gain = ewma.smoothing_factor(inp.now_s - remembered.last_tick_s, _steadiness_s(observation))
    return ewma.update(remembered.lasting, without_queue, gain)


def follow_forecast(
    inp: TickInput, observation: Observation, asks: FloatColumn, remembered: WorkloadMemory
) -> FloatColumn:
    """When the forecast last spoke, or had no load to speak of; float64[W]. Nobody woken from zero waits for it."""
    begins = np.isnan(remembered.last_tick_s) | ~np.isnan(asks[Signal.PLANNER]) | np.isnan(asks[Signal.CONCURRENCY])
    last_forecast_s = np.where(begins, inp.now_s, remembered.last_forecast_s)
    return np.where(observation.ready - observation.joining > 0, last_forecast_s, np.nan)


def ask(inp: TickInput, observation: Observation, capacity: Capacity, memory: Memory) -> FloatColumn:
    """Ask every signal; float64[S, W].

    Load that the awake replicas cannot carry needs others on top of those asleep, which serve nothing.
    """
    asks = np.full((len(Signal), len(observation.replicas)), np.nan)
    asks[Signal.CONCURRENCY] = concurrency(inp, observation, capacity)
    asks[Signal.PREFILL] = prefill(inp, observation, capacity)
    asks[Signal.DECODE] = decode(inp, observation, capacity)
    asks[Signal.KV_CACHE] = kv_cache(inp, observation)
    asks[Signal.TTFT] = ttft(inp, observation, memory)
    asks[Signal.ITL] = itl(inp, observation, memory)
    asks[Signal.REJECTIONS] = rejections(inp, observation, memory)
    asks = _beside_idle(observation, asks)
    asks[Signal.SCHEDULE] = schedule(inp, observation)
    asks[Signal.WAKE] = wake(inp, observation, capacity)
    asks[Signal.PLANNER] = by_rule = _beside_idle(observation, forecast(inp, asks, memory))
    # The rule in force has weighed what the load asks for; the same load at its target usage would only add to it.
    # Unless a queue shows that it is wrong: one that stands longer than a replica takes to come.
    silent = ~np.isnan(by_rule) & ~(observation.queue_wait_s > observation.cold_start_s)
    asks[WEIGHED] = np.where(silent, np.nan, asks[WEIGHED])
    asks[Signal.ITL] = np.where(silent & (memory.plan.itl_counted_requests > 0), np.nan, asks[Signal.ITL])
    # A row without limits has no valid policy: nobody may speak for it.
    return np.where(np.isnan(inp.spec.max_replicas), np.nan, asks)


def concurrency(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """Requests in flight, gateway queue included, over what a replica should hold.

    40 running + 24 waiting, 20 per replica to be used to 0.8: 64 / 16 = 4 replicas.
    Source: Little's law; the HPA's AverageValue on a count of requests.
    """
    requests = _requests(observation) + at_gateway(observation)
    return requests / (capacity.concurrency * inp.spec.target_usage)


def forecast(inp: TickInput, asks: FloatColumn, memory: Memory) -> FloatColumn:
    """Replicas that the rule in force asks for; none at all where nothing is in flight and one would do.

    Or the policy's floor, where it allows zero: no rule asks for less. It speaks where the load is measured now, and no
    capacity is stated: what an operator states stands.
    """
    load, replicas = asks[Signal.CONCURRENCY], memory.plan.replicas
    least = np.where(np.isnan(inp.spec.idle_after_s), 1.0, np.fmax(inp.spec.min_replicas, 1.0))
    rests = (load == 0) & (replicas <= least)
    return np.where(inp.spec.states_capacity | np.isnan(load), np.nan, np.where(rests, 0.0, replicas))


def prefill(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """Prompt tokens per second over what a replica computes."""
    tokens_per_s = _scaled_up(observation, observation.prompt_tokens_per_s)
    tokens_per_s = tokens_per_s + or_zero(observation.draining_prompt_tokens_per_s)
    return tokens_per_s / (capacity.prefill_tokens_per_s * inp.spec.target_usage)


def decode(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """Generated tokens per second over what a replica writes."""
    tokens_per_s = _scaled_up(observation, observation.generation_tokens_per_s)
    tokens_per_s = tokens_per_s + or_zero(observation.draining_generation_tokens_per_s)
    return tokens_per_s / (capacity.decode_tokens_per_s * inp.spec.target_usage)


def kv_cache(inp: TickInput, observation: Observation) -> FloatColumn:
    """Replicas that bring mean KV-cache usage to its target: 3 at 0.9 with a target of 0.8 are 3.4.

    Speaks only above the target: a queue for slots leaves KV usage low, so low usage is no reason for less.
    """
    usage = observation.kv_usage / inp.spec.kv_target_usage
    draining = or_zero(observation.draining_kv_usage) / inp.spec.kv_target_usage
    return np.where(usage > 1, _awake(observation) * usage + draining, np.nan)


def ttft(inp: TickInput, observation: Observation, memory: Memory) -> FloatColumn:
    """More replicas in proportion to a breach of the TTFT objective, at most double; no opinion below it.

    The histogram tells of requests whose wait is over, and is worst when the queue is already empty. So it
    speaks while there is a queue, or when none has been seen for as long as the histogram remembers: then prefill
    itself is too slow.
    """
    return _latency_step(inp, observation, observation.ttft_s / inp.spec.ttft_objective_s, memory)


def itl(inp: TickInput, observation: Observation, memory: Memory) -> FloatColumn:
    """More replicas in proportion to a breach of the inter-token objective, at most double; no opinion below it.

    The full batches of a queue that is gone stay in its histogram as long as their TTFT does.
    """
    return _latency_step(inp, observation, observation.itl_s / inp.spec.itl_objective_s, memory)


def rejections(inp: TickInput, observation: Observation, memory: Memory) -> FloatColumn:
    """Replicas for the requests that an admission limit refuses: the queue gauge does not show them.

    One more where it is not known how many were served beside them. The rates are of the last half minute: of what was
    refused before nothing is asked, and who is ready for less has refused nobody. Else each replica that becomes ready
    would call for another.
    """
    refused = inp.now_s - memory.workloads.last_refused_s <= RATE_WINDOW_S
    if not refused.any():  # as in most ticks
        return np.full(len(refused), np.nan)
    fleet, awake = inp.fleet, _awake(observation)
    new = fleet.pod_ready & ~fleet.pod_terminating & (inp.now_s - fleet.pod_ready_s < RATE_WINDOW_S)
    before = awake - np.bincount(fleet.pod_workload[new], minlength=len(refused))
    refusing = np.where(before > 0, before, awake)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        offered = (observation.finished_per_s + observation.rejections_per_s) / observation.finished_per_s
    step = np.where(np.isnan(offered), refusing + 1, refusing * np.fmin(offered, LARGEST_LATENCY_STEP))
    return np.where(refused & (observation.rejections_per_s > NOTHING_PER_S), step, np.nan)


def schedule(inp: TickInput, observation: Observation) -> FloatColumn:
    """Replicas of the pre-warm windows that are open, or open within their lead (one cold start unless stated)."""
    windows = inp.schedule
    lead_s = np.where(np.isnan(windows.lead_s), observation.cold_start_s[:, None], windows.lead_s)
    wanted_now = (windows.start_s - lead_s <= inp.now_s) & (inp.now_s < windows.until_s)
    replicas = np.where(wanted_now, windows.replicas, np.nan)
    return np.asarray(np.fmax.reduce(replicas, axis=1, initial=np.nan))


def wake(inp: TickInput, observation: Observation, capacity: Capacity) -> FloatColumn:
    """At least one awake replica as soon as somebody waits in front of a workload that has none.

    Sleeping engines do not serve, and their own gauges stay at 0, so they come on top of what is asked. Beside
    stuck ones one stands in, whatever the length of their queue.
    """
    knocking = (
        (observation.gateway_waiting > 0)
        | (observation.gateway_arrivals_per_s > 0)
        | ((observation.asleep > 0) & (observation.waiting > 0))
    )
    nobody_awake = (observation.ready == 0) | ((observation.reporting > 0) & (_awake(observation) == 0))
    queue = at_gateway(observation) / (capacity.concurrency * inp.spec.target_usage)
    wakes = knocking & nobody_awake & ~(observation.stuck > 0)
    return np.where(wakes, observation.asleep + np.fmax(queue, 1.0), observation.stand_in)


def strongest(asks: FloatColumn) -> FloatColumn:
    """Return the largest opinion of each workload; NaN where nobody has one."""
    return np.asarray(np.fmax.reduce(asks, axis=0))


def without_queue(inp: TickInput, observation: Observation, capacity: Capacity, asks: FloatColumn) -> FloatColumn:
    """Return what the load asks for without its queue: the running batch, token rates, KV cache, latency. float64[W].

    While there is a queue, TTFT is the wait in it.
    """
    load = asks[[Signal.PREFILL, Signal.DECODE, Signal.KV_CACHE, Signal.ITL, Signal.TTFT]]
    load[-1] = np.where(queued(observation), np.nan, load[-1])
    running = with_draining(observation, _scaled_up(observation, observation.running))
    running = running / (capacity.concurrency * inp.spec.target_usage)
    return np.asarray(np.fmax(np.fmax.reduce(load, axis=0), running))


def beside_forecast(asks: FloatColumn) -> FloatColumn:
    """Return the largest opinion of the other signals, whole; NaN where nobody has one. float64[W]."""
    return ceil_replicas(strongest(asks[_BESIDE]))


def needed(
    observation: Observation, wanted: FloatColumn, asks: FloatColumn, beside: FloatColumn, plan: Plan
) -> FloatColumn:
    """Return how many of the replicas wanted are for the load that is there, and no reserve; float64[W].

    beside: float64[W], of `beside_forecast`. All of them where the forecast does not speak, whatever its rule goes by.
    """
    for_load = np.where(np.isnan(asks[Signal.PLANNER]), np.inf, _beside_idle(observation, plan.base_replicas))
    return np.fmin(wanted, np.fmax(for_load, beside))


def awaits_forecast(
    inp: TickInput, observation: Observation, asks: FloatColumn, last_forecast_s: FloatColumn
) -> BoolColumn:
    """Say where the forecast is about to speak, and nobody waits for longer than is tolerated until then. bool[W].

    So it is for a minute or two after a restart or a hole in the readings. What the load asks for by itself rests on a
    guess at what replicas can do; whoever sized the fleet that is there knew more.
    """
    unspoken = np.isnan(asks[Signal.PLANNER]) & (inp.now_s - last_forecast_s < FORECAST_DUE_S)
    promises = ~np.isnan(inp.spec.promised_wait_s)
    tells = inp.fleet.pod_ready & ~np.isnan(inp.samples.pods.gaps)
    told = np.bincount(inp.fleet.pod_workload[tells], minlength=len(promises)) > 0
    # A first reading has no rate to tell the wait by: then a queue is what fills slots, not what waits for its prompts.
    full = np.isnan(observation.queue_wait_s) & (observation.waiting > QUEUED * observation.running)
    pressed = full | (observation.queue_wait_s > inp.spec.max_wait_s) | (at_gateway(observation) > 0)
    return np.asarray(unspoken & promises & told & ~inp.spec.states_capacity & ~pressed)


def load_known(asks: FloatColumn) -> BoolColumn:
    """Say where somebody has measured the load, so that less can be known to suffice. bool[W].

    All other signals speak only for more, and replicas that are still loading tell nothing.
    """
    return np.asarray(~(np.isnan(asks[Signal.CONCURRENCY]) & np.isnan(asks[Signal.PLANNER])))


def _awake(observation: Observation) -> FloatColumn:
    """Replicas that serve: ready ones less those asleep and those that are stuck."""
    return observation.ready - observation.asleep - or_zero(observation.stuck)


def _beside_idle(observation: Observation, awake: FloatColumn) -> FloatColumn:
    """Return how many there must be for so many to serve, float64[..., W]: nobody wakes those asleep.

    Stuck ones that are replaced count on top, beside one that serves at least: they are the oldest, and the last to go
    when the fleet shrinks.
    """
    replaced = or_zero(observation.replaced)
    least = np.where(replaced > 0, np.maximum(awake, 1.0), awake)
    return least + np.where(awake > _awake(observation), observation.asleep, 0.0) + replaced


def _steadiness_s(observation: Observation) -> FloatColumn:
    """Time constant of averages over about one cold start."""
    return np.fmax(observation.cold_start_s / 2, SHORTEST_AVERAGE_S)


def _scaled_up(observation: Observation, value: FloatColumn) -> FloatColumn:
    """Let reporting pods speak for the silent ones: a sum over 3 of 4 pods counts for 4.

    Not for those that have just become ready and were never read: their load is still to come. Counting it would make
    every growth call for another.
    """
    stuck = or_zero(observation.stuck)
    heard = np.where(observation.reporting > stuck, observation.reporting - stuck, np.nan)
    share = (observation.ready - observation.joining - stuck) / heard
    return value * np.where(np.isnan(share) & (stuck > 0), 1.0, share)  # all that report are stuck: nothing to add


def _requests(observation: Observation) -> FloatColumn:
    """Return the requests in the engines, with those of silent pods and those on pods that do not serve any more."""
    return with_draining(observation, _scaled_up(observation, observation.running + observation.waiting))


def _latency_step(inp: TickInput, observation: Observation, breach: FloatColumn, memory: Memory) -> FloatColumn:
    since_queue_s = inp.now_s - memory.workloads.last_queued_s
    speaks_of_now = queued(observation) | ~(since_queue_s <= LATENCY_LAG_S)
    return np.where(speaks_of_now & (breach > 1), _awake(observation) * np.fmin(breach, LARGEST_LATENCY_STEP), np.nan)
