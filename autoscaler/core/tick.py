"""One tick: observation, demand, target, grant. Pure, so that daemon, dry-run, replay and simulation all run it."""

from __future__ import annotations

import numpy as np

from autoscaler.core import burst, capacity, demand, forecast, grant, shape, zero
from autoscaler.core.columns import BoolColumn, FloatColumn, replace
from autoscaler.core.decision import Decision, Observation, Signal, Stage, TickInput
from autoscaler.core.memory import Memory, WorkloadMemory, align
from autoscaler.core.observe import observe
from autoscaler.core.readings import NOTHING_PER_S


def tick(inp: TickInput, memory: Memory) -> tuple[Decision, Memory]:
    """Decide how many replicas each workload should have.

    Same input and memory, same decision. Every stage says replicas, float64[W], NaN: unknown; see `core.decision`.
    """
    memory = align(memory, inp.fleet)

    observation, memory = observe(inp, memory)
    known_capacity, memory = capacity.learn(inp, observation, memory)
    memory = demand.follow(inp, observation, memory)
    memory = follow_zero(inp, observation, memory)
    trusted = trust(inp, observation)
    memory = forecast.follow(inp, observation, memory)

    asks = demand.ask(inp, observation, known_capacity, memory)
    steered = ~np.isnan(asks[Signal.FORECAST])  # by a rule that counts whole replicas and holds peaks itself
    unqueued = demand.without_queue(inp, observation, known_capacity, asks)
    stages = np.full((len(Stage), len(observation.replicas)), np.nan)
    current, remembered = observation.replicas, memory.workloads
    last_forecast_s = demand.follow_forecast(inp, observation, asks, remembered)
    lasting = demand.follow_lasting(inp, observation, unqueued, remembered)
    beside = demand.beside_forecast(asks)
    promised = asks[Signal.SCHEDULE]  # has no tolerance and is not put off: its lead is one cold start, no more

    stages[Stage.DEMAND] = wanted = demand.strongest(asks)
    informed = trusted & demand.load_known(asks)
    awaits = demand.awaits_forecast(inp, observation, asks, last_forecast_s)
    wanted = shape.await_forecast(wanted, current, demand.strongest(asks[demand.UNWEIGHED]), awaits)
    stages[Stage.UNKNOWN] = wanted = shape.hold_unknown(wanted, current, informed)

    projection = burst.project(observation, known_capacity, memory)
    quiet = burst.noise(inp, observation, projection)
    to_drain = burst.to_drain(inp, observation, projection)
    stages[Stage.BURST] = wanted = burst.absorb(wanted, lasting_demand(asks, lasting), to_drain, observation, quiet)

    by_rule = steered & (asks[Signal.FORECAST] >= stages[Stage.DEMAND])  # what a rule asks for is no estimate
    tolerated = shape.tolerate(wanted, current, np.where(by_rule, 0.0, inp.spec.tolerance))
    stages[Stage.TOLERANCE] = wanted = np.fmax(tolerated, promised)

    trusted_since_s, last_trusted_s = follow_trust(inp, trusted, remembered)
    # While a rule steers nothing of the load is remembered, so whatever stands in for it is watched anew.
    alone_s = np.where(steered | inp.spec.states_capacity, np.inf, inp.now_s - last_forecast_s)
    stable, wanted_lately = shape.stabilize(
        wanted,
        current,
        inp.spec,
        remembered.wanted_lately,
        inp.now_s,
        informed=informed,
        watched_s=np.fmin(inp.now_s - trusted_since_s, alone_s),
        steered=steered,
        beside=beside,
    )
    stages[Stage.STABILIZATION] = wanted = np.fmax(stable, promised)

    last_busy_s = follow_work(inp, observation, asks, trusted, remembered)
    idle_s = inp.now_s - last_busy_s
    idle_after_s = zero.idle_after(inp, remembered.zero)
    stages[Stage.IDLE] = wanted = shape.go_idle(wanted, current, idle_after_s, idle_s)

    limited, counts_lately = shape.limit_rate(wanted, current, inp.spec, remembered.counts_lately, inp.now_s)
    stages[Stage.RATE_LIMIT] = np.fmax(limited, promised)
    stages[Stage.BOUNDS] = wanted = shape.bound(stages[Stage.RATE_LIMIT], inp.spec)

    ours = free(inp)
    needed = demand.needed(observation, wanted, asks, beside, memory.forecast)
    stages[Stage.VARIANT], stages[Stage.GRANT], needed = grant.grant(
        inp,
        observation,
        known_capacity,
        wanted,
        needed,
        trusted=trusted,
        informed=informed,
        ours=ours,
        idle_s=idle_s,
        arrivals_per_s=zero.pressing_per_s(remembered.zero, observation.cold_start_s),
    )
    wanted = stages[Stage.GRANT]
    stages[Stage.OWNER] = wanted = np.where(ours, wanted, current)

    memory = replace(
        memory,
        workloads=replace(
            remembered,
            last_tick_s=np.full(len(current), inp.now_s),
            trusted_since_s=trusted_since_s,
            last_trusted_s=last_trusted_s,
            last_busy_s=last_busy_s,
            last_forecast_s=last_forecast_s,
            lasting=lasting,
            wanted_lately=wanted_lately,
            counts_lately=counts_lately,
        ),
    )
    decision = Decision(
        observation=observation,
        capacity=known_capacity,
        asks=asks,
        stages=stages,
        replicas=np.where(np.isnan(wanted), current, wanted),
        active=(wanted > 0) | np.isnan(wanted),
        trusted=trusted,
        idle_after_s=idle_after_s,
        needed=needed,
        forecast=memory.forecast,
    )
    return decision, memory


def follow_zero(inp: TickInput, observation: Observation, memory: Memory) -> Memory:
    """Carry forward what going to zero would have cost."""
    workloads = memory.workloads
    followed = zero.follow(inp, observation, workloads.zero, inp.now_s - workloads.last_tick_s)
    return replace(memory, workloads=replace(workloads, zero=followed))


def trust(inp: TickInput, observation: Observation) -> BoolColumn:
    """Say where enough is known to shrink: every ready pod was heard, and the cluster view is fresh. bool[W].

    A workload without ready pods has nobody to hear; the view of the cluster, and the gateway's word, are all there is.
    """
    view_age_s = inp.now_s - inp.fleet.time_s
    heard = (observation.reporting >= observation.ready) & (view_age_s <= inp.spec.max_input_age_s)
    return heard & ((observation.ready > 0) | ~zero.gateway_is_silent(inp, observation))


def follow_trust(inp: TickInput, trusted: BoolColumn, remembered: WorkloadMemory) -> tuple[FloatColumn, FloatColumn]:
    """Since when each workload has been watched, and when it was last trusted; float64[W] each.

    A short gap (one slow scrape, a pod that has just become ready) does not start the watch anew; one longer than the
    age at which inputs expire does, and so does a restart: then a full stabilization window passes before it shrinks.
    """
    gap_s = inp.now_s - remembered.last_trusted_s
    unbroken = gap_s <= inp.spec.max_input_age_s  # False where it never was
    return (
        np.where(trusted & ~unbroken, inp.now_s, remembered.trusted_since_s),
        np.where(trusted, inp.now_s, remembered.last_trusted_s),
    )


def follow_work(
    inp: TickInput, observation: Observation, asks: FloatColumn, trusted: BoolColumn, remembered: WorkloadMemory
) -> FloatColumn:
    """When each workload last had work, or may have had some that nobody could see; float64[W], a moment."""
    unheard = ~trusted | zero.gateway_is_silent(inp, observation)
    last_busy_s = np.where(working(observation, asks) | unheard, inp.now_s, remembered.last_busy_s)
    return np.where(np.isnan(last_busy_s), inp.now_s, last_busy_s)


def lasting_demand(asks: FloatColumn, lasting: FloatColumn) -> FloatColumn:
    """The demand that is there whatever becomes of the queue: load that lasts, promises, and what a queue refused."""
    return np.fmax(lasting, demand.strongest(asks[[*demand.UNWEIGHED, Signal.FORECAST]]))


def working(observation: Observation, asks: FloatColumn) -> BoolColumn:
    """Who has work, or is promised for some. bool[W]. Engine and GPU must both be still to count as idle.

    What began and ended between two readings is noted by `observe`, from the counters.
    """
    at_work: BoolColumn = (
        (observation.running > 0)
        | (observation.waiting > 0)
        | (observation.gateway_waiting > 0)
        | (observation.gateway_arrivals_per_s > NOTHING_PER_S)
        | (observation.active > 0)
        | (observation.starting > 0)
        | (asks[Signal.SCHEDULE] > 0)
    )
    return at_work


def free(inp: TickInput) -> BoolColumn:
    """Whose count is ours to set: not paused, and owned by nobody else. bool[W]."""
    return np.asarray(~inp.fleet.paused & np.array([not rival for rival in inp.fleet.rival], dtype=bool))
