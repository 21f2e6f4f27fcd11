"""One workload alone: from what its signals ask for to what it is to have, before anything is shared.

What the stages do is in `burst` and `shape`; here is their order, and what goes into each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import Capacity, Observation, Signal, Stage, TickInput
from autoscaler.core.observe.workloads import OVERDUE
from autoscaler.core.planner import scale_to_zero
from autoscaler.core.reactive import queue_projection, signals
from autoscaler.core.stabilize import stages as shape
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import REPLICA_ROUNDING, BoolColumn, FloatColumn


@dataclass(frozen=True)
class Target:
    """What each workload alone is to have, and what those who share have to know of it."""

    stages: FloatColumn  # float64[G, W], replicas after each stage up to `Stage.BOUNDS`; NaN after it
    needed: FloatColumn  # float64[W], replicas of the target that the load needs; the others are a reserve
    informed: BoolColumn  # bool[W], inputs are trusted and the load is known
    idle_s: FloatColumn  # float64[W], seconds since there was work, or may have been some
    idle_after_s: FloatColumn  # float64[W], seconds without work until it goes to zero; NaN: it does not
    kept_for_s: FloatColumn  # float64[W], seconds for which stabilization will keep what it keeps; NaN: nothing


def decide(
    inp: TickInput,
    observation: Observation,
    known_capacity: Capacity,
    asks: FloatColumn,
    trusted: BoolColumn,
    memory: Memory,
) -> tuple[Target, Memory]:
    """Take what is asked through every stage; a paragraph each.

    asks: float64[S, W], of `demand.ask`. trusted: bool[W], of `trust.follow`.
    """
    current, before = observation.replicas, memory.workloads
    stages = np.full((len(Stage), len(current)), np.nan)
    steered = ~np.isnan(asks[Signal.PLANNER])  # by a rule that counts whole replicas and holds peaks itself
    promised = asks[Signal.SCHEDULE]  # has no tolerance and is not put off: its lead is one cold start, no more
    beside = signals.beside_forecast(asks)

    stages[Stage.DEMAND] = wanted = signals.strongest(asks)

    informed = trusted & signals.load_known(asks)
    last_forecast_s = signals.follow_forecast(inp, observation, asks, before)
    awaits = signals.awaits_forecast(inp, observation, asks, last_forecast_s)
    wanted = shape.await_forecast(wanted, current, signals.strongest(asks[signals.UNWEIGHED]), awaits)
    stages[Stage.UNKNOWN] = wanted = shape.hold_unknown(wanted, current, informed)

    unqueued = signals.without_queue(inp, observation, known_capacity, asks)
    lasting = signals.follow_lasting(inp, observation, unqueued, before)
    projection = queue_projection.project(observation, known_capacity, memory)
    quiet = queue_projection.noise(inp, observation, projection)
    to_drain = queue_projection.to_drain(inp, observation, projection)
    stages[Stage.BURST] = wanted = queue_projection.absorb(
        wanted, _whatever_waits(asks, lasting), to_drain, observation, quiet
    )

    by_rule = steered & (asks[Signal.PLANNER] >= stages[Stage.DEMAND])  # what a rule asks for is no estimate
    tolerated = shape.tolerate(wanted, current, np.where(by_rule, 0.0, inp.spec.tolerance))
    stages[Stage.TOLERANCE] = wanted = np.fmax(tolerated, promised)

    # While a rule steers nothing of the load is remembered, so whatever stands in for it is watched anew.
    alone_s = np.where(steered | inp.spec.states_capacity, np.inf, inp.now_s - last_forecast_s)
    watched_s = np.fmin(inp.now_s - before.trusted_since_s, alone_s)
    stable, wanted_lately = shape.stabilize(
        wanted,
        current,
        inp.spec,
        before.wanted_lately,
        inp.now_s,
        informed=informed,
        watched_s=watched_s,
        steered=steered,
        beside=beside,
    )
    kept_for_s = shape.kept_for_s(stable, wanted, inp.spec, wanted_lately, inp.now_s, watched_s)
    stages[Stage.STABILIZATION] = wanted = np.fmax(stable, promised)

    last_busy_s = _last_busy_s(inp, observation, asks, trusted, memory)
    idle_s, idle_after_s = inp.now_s - last_busy_s, scale_to_zero.idle_after(inp, before.zero)
    wanted = np.where(scale_to_zero.is_abandoned(observation) & (idle_s >= idle_after_s), 0.0, wanted)
    stages[Stage.IDLE] = wanted = shape.go_idle(wanted, current, idle_after_s, idle_s)

    limited, least, counts_lately = shape.limit_rate(wanted, current, inp.spec, before.counts_lately, inp.now_s)
    stages[Stage.RATE_LIMIT] = wanted = np.fmax(limited, promised)

    stages[Stage.BOUNDS] = wanted = shape.bound(wanted, inp.spec, informed, least)

    needed = signals.needed(observation, wanted, asks, beside, memory.plan)
    return Target(stages, needed, informed, idle_s, idle_after_s, kept_for_s), memory.noting(
        last_busy_s=last_busy_s,
        last_forecast_s=last_forecast_s,
        lasting=lasting,
        wanted_lately=wanted_lately,
        counts_lately=counts_lately,
    )


def _whatever_waits(asks: FloatColumn, lasting: FloatColumn) -> FloatColumn:
    """Return the demand that is there whatever becomes of the queue: lasting load, promises, refused requests."""
    return np.fmax(lasting, signals.strongest(asks[[*signals.UNWEIGHED, Signal.PLANNER]]))


def _last_busy_s(
    inp: TickInput, observation: Observation, asks: FloatColumn, trusted: BoolColumn, memory: Memory
) -> FloatColumn:
    """When each workload last had work, or may have had some that nobody could see; float64[W], a moment."""
    unheard = ~trusted | scale_to_zero.gateway_is_silent(inp, observation)
    last_busy_s = np.where(_working(observation, asks) | unheard, inp.now_s, memory.workloads.last_busy_s)
    return np.where(np.isnan(last_busy_s), inp.now_s, last_busy_s)


def _ordered(observation: Observation) -> BoolColumn:
    """Say where replicas were ordered for work that may still come to them. bool[W].

    One that takes longer than a usual start was ordered long ago: then engines that serve, or a gateway, tell the load.
    Where nothing tells it, any start may have its reason.
    """
    untold = (observation.ready == 0) & np.isnan(observation.gateway_waiting)
    in_time = observation.pledged_s < (OVERDUE - REPLICA_ROUNDING) * observation.cold_start_s * observation.starting
    return np.asarray((observation.starting > 0) & (in_time | untold))


def _working(observation: Observation, asks: FloatColumn) -> BoolColumn:
    """Who has work, or is promised for some. bool[W]. Engine and GPU must both be still to count as idle.

    What began and ended between two readings is noted by `observe`, from the counters.
    """
    at_work: BoolColumn = (
        (observation.running > 0)
        | (observation.waiting > 0)
        | (observation.draining_requests > 0)
        | (observation.gateway_waiting > 0)
        | (observation.gateway_arrivals_per_s > 0)  # as little as wakes it
        | (observation.active > 0)
        | _ordered(observation)
        | (asks[Signal.SCHEDULE] > 0)
    )
    return at_work
