"""One tick: observation, demand, target, grant. Pure, so that daemon, dry-run, replay and simulation all run it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.core import arbitrate, burst, capacity, demand, plan, shape, variants, zero
from autoscaler.core.columns import BoolColumn, FloatColumn
from autoscaler.core.decision import Capacity, Decision, Observation, Signal, Stage, TickInput
from autoscaler.core.memory import Memory, WorkloadMemory, align
from autoscaler.core.observe import observe
from autoscaler.core.readings import NOTHING_PER_S

RESTING = 10
"""Cold starts without work after which a replica may serve others of its priority."""


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
    memory = plan.follow(inp, observation, memory)

    asks = demand.ask(inp, observation, known_capacity, memory)
    steered = ~np.isnan(asks[Signal.FORECAST])  # by a rule that counts whole replicas and holds peaks itself
    memory = demand.note_forecast(inp, observation, asks, memory)
    memory = demand.note_lasting(inp, observation, demand.without_queue(inp, observation, known_capacity, asks), memory)
    stages = np.full((len(Stage), len(observation.replicas)), np.nan)
    current, remembered = observation.replicas, memory.workloads
    promised = asks[Signal.SCHEDULE]  # has no tolerance and is not put off: its lead is one cold start, no more

    stages[Stage.DEMAND] = wanted = demand.strongest(asks)
    informed = trusted & demand.load_known(asks)
    awaits, unweighed = demand.awaits_forecast(inp, observation, asks, memory), demand.strongest(asks[demand.UNWEIGHED])
    wanted = shape.await_forecast(wanted, current, unweighed, awaits)
    stages[Stage.UNKNOWN] = wanted = shape.hold_unknown(wanted, current, informed)

    projection = burst.project(observation, known_capacity, memory)
    quiet, needed = burst.noise(inp, observation, projection), burst.needed(inp, observation, projection)
    stages[Stage.BURST] = wanted = burst.absorb(wanted, lasting_demand(asks, remembered), needed, observation, quiet)

    tolerated = shape.tolerate(wanted, current, np.where(steered, 0.0, inp.spec.tolerance))
    stages[Stage.TOLERANCE] = wanted = np.fmax(tolerated, promised)

    trusted_s, heard_s = follow_trust(inp, trusted, remembered)
    stable, highest_wanted, lowest_wanted = shape.stabilize(
        wanted,
        current,
        inp.spec,
        remembered.highest_wanted,
        remembered.lowest_wanted,
        inp.now_s,
        informed,
        inp.now_s - trusted_s,
        steered,
        demand.beside_forecast(asks),
    )
    stages[Stage.STABILIZATION] = wanted = np.fmax(stable, promised)

    unheard = ~trusted | gateway_is_silent(inp, observation)
    busy_s = np.where(working(observation, asks) | unheard, inp.now_s, remembered.busy_s)
    busy_s = np.where(np.isnan(busy_s), inp.now_s, busy_s)
    idle_after_s, idle_s = zero.idle_after(inp, remembered.zero), inp.now_s - busy_s
    stages[Stage.IDLE] = wanted = shape.go_idle(wanted, current, idle_after_s, idle_s)

    limited, highest_count, lowest_count = shape.limit_rate(
        wanted, current, inp.spec, remembered.highest_count, remembered.lowest_count, inp.now_s
    )
    stages[Stage.RATE_LIMIT] = np.fmax(limited, promised)
    stages[Stage.BOUNDS] = wanted = shape.bound(stages[Stage.RATE_LIMIT], inp.spec)

    stages[Stage.VARIANT], stages[Stage.GRANT], no_reserve = place(
        inp,
        observation,
        known_capacity,
        wanted,
        demand.needed(wanted, asks, memory.plan),
        trusted,
        informed,
        idle_s,
        zero.pressing_per_s(remembered.zero, observation.cold_start_s),
    )
    wanted = stages[Stage.GRANT]
    stages[Stage.OWNER] = wanted = np.where(free(inp), wanted, current)

    memory = replace(
        memory,
        workloads=replace(
            remembered,
            observed_s=np.full(len(current), inp.now_s),
            trusted_s=trusted_s,
            heard_s=heard_s,
            busy_s=busy_s,
            highest_wanted=highest_wanted,
            lowest_wanted=lowest_wanted,
            highest_count=highest_count,
            lowest_count=lowest_count,
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
        needed=no_reserve,
        plan=memory.plan,
    )
    return decision, memory


def follow_zero(inp: TickInput, observation: Observation, memory: Memory) -> Memory:
    """Carry forward what going to zero would have cost."""
    workloads = memory.workloads
    followed = zero.follow(inp, observation, workloads.zero, inp.now_s - workloads.observed_s)
    return replace(memory, workloads=replace(workloads, zero=followed))


def trust(inp: TickInput, observation: Observation) -> BoolColumn:
    """Say where enough is known to shrink: every ready pod was heard, and the cluster view is fresh. bool[W].

    A workload without ready pods has nobody to hear; the view of the cluster, and the gateway's word, are all there is.
    """
    view_age_s = inp.now_s - inp.fleet.time_s
    heard = (observation.reporting >= observation.ready) & (view_age_s <= inp.spec.max_input_age_s)
    return heard & ((observation.ready > 0) | ~gateway_is_silent(inp, observation))


def gateway_is_silent(inp: TickInput, observation: Observation) -> BoolColumn:
    """Say where a gateway that told of requests tells no more: whoever waits there is not seen. bool[W].

    Nobody goes to zero then, for nobody could be woken. One that has told nothing for a day is taken for removed.
    """
    return np.asarray(observation.gateway_silent_s > inp.spec.max_input_age_s)  # False for NaN


def follow_trust(inp: TickInput, trusted: BoolColumn, remembered: WorkloadMemory) -> tuple[FloatColumn, FloatColumn]:
    """Since when each workload has been watched, and when it was last heard; float64[W] each.

    A short gap (one slow scrape, a pod that has just become ready) does not start the watch anew; one longer than the
    age at which inputs expire does, and so does a restart: then a full stabilization window passes before it shrinks.
    """
    gap_s = inp.now_s - remembered.heard_s
    unbroken = gap_s <= inp.spec.max_input_age_s  # False where it has never been heard
    return (
        np.where(trusted & ~unbroken, inp.now_s, remembered.trusted_s),
        np.where(trusted, inp.now_s, remembered.heard_s),
    )


def lasting_demand(asks: FloatColumn, remembered: WorkloadMemory) -> FloatColumn:
    """The demand that is there whatever becomes of the queue: load that lasts, promises, and what a queue refused."""
    return demand.strongest(np.stack([remembered.lasting, *asks[[*demand.UNWEIGHED, Signal.FORECAST]]]))


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


def rests(observation: Observation, idle_s: FloatColumn) -> BoolColumn:
    """Who had no work for many cold starts, and would be woken by a gateway: its replica may serve others. bool[W]."""
    return np.asarray((idle_s >= RESTING * observation.cold_start_s) & ~np.isnan(observation.gateway_waiting))


def place(
    inp: TickInput,
    observation: Observation,
    each: Capacity,
    wanted: FloatColumn,
    needed: FloatColumn,
    trusted: BoolColumn,
    informed: BoolColumn,
    idle_s: FloatColumn,
    arrivals_per_s: FloatColumn,
) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Share what is wanted among the variants of each service, and pools among all.

    needed: float64[W], what of it is no reserve. informed: bool[W], trusted, and the load is known.
    Returns float64[W] each: what every variant is to have, what its pool gives, and what of it is no reserve. What the
    load needs and one pool does not give is asked of the other variants, once; a reserve is not.
    """
    ours = free(inp)
    governed = ours & ~np.isnan(inp.spec.max_replicas)  # where no policy is in force, nothing is decided
    vacant = np.where(observation.blocked > 0, 0.0, np.inf)
    for last in (False, True):
        chosen = share_service(inp, observation, wanted, vacant, each, informed & governed)
        # What one variant takes over from another for the load is no reserve there either.
        no_reserve = np.fmin(share_service(inp, observation, needed, vacant, each, informed & governed), chosen)
        given = arbitrate.share(
            chosen,
            no_reserve,
            inp.fleet,
            inp.spec,
            trusted,
            governed,
            rests(observation, idle_s),
            observation.ready + observation.starting > 0,
            arrivals_per_s,
        )
        if last or inp.variants is None:
            break
        refused = (given < no_reserve) & (inp.variants.service >= 0)
        if not refused.any():
            break
        serving = inp.fleet.replicas - observation.blocked
        vacant = np.where(refused, np.fmax(given - serving, 0.0), vacant)
        together = np.isin(inp.variants.service, inp.variants.service[refused])
        wanted, needed = np.where(together, np.fmax(given, no_reserve), chosen), no_reserve
    return chosen, given, no_reserve


def share_service(
    inp: TickInput,
    observation: Observation,
    wanted: FloatColumn,
    vacant: FloatColumn,
    each: Capacity,
    steady: BoolColumn,
) -> FloatColumn:
    """Let the variants of a service carry its demand at least cost; only what is `steady` takes part. float64[W].

    vacant: float64[W], replicas more for which there are GPUs.
    """
    if inp.variants is None:
        return wanted
    planned_requests = each.concurrency * inp.spec.target_usage
    return variants.choose(
        wanted, inp.fleet.replicas, observation.blocked, vacant, planned_requests, steady, inp.variants, inp.spec
    )


def free(inp: TickInput) -> BoolColumn:
    """Whose count is ours to set: not paused, and owned by nobody else. bool[W]."""
    return np.asarray(~inp.fleet.paused & np.array([not rival for rival in inp.fleet.rival], dtype=bool))
