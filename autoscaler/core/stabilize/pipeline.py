"""One workload alone: from the recommendation to its target, before anything is shared.

`stages` and `burst` define the stages; here are their order and their inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import Capacity, Choice, Plan, Recommender, Signal, Stage, TickInput
from autoscaler.core.observe import load
from autoscaler.core.observe.arrivals import averaging_s
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.reactive import signals
from autoscaler.core.reactive.capacity import LearnedCapacity
from autoscaler.core.stabilize import burst, carry
from autoscaler.core.stabilize import stages as stage_functions
from autoscaler.core.stabilize.burst import KnownSpeed
from autoscaler.core.starts.cold_start import OVERDUE
from autoscaler.core.table import ewma, sliding_window
from autoscaler.core.table.columns import (
    REPLICA_ROUNDING,
    BoolColumn,
    Columns,
    FloatColumn,
    TimestampColumn,
    Transient,
    or_zero,
)
from autoscaler.core.table.sliding_window import SlidingWindow


@dataclass(frozen=True)
class StabilizeState(Columns):
    """The table of this stage; [W]."""

    last_busy_s: Transient[TimestampColumn]  # last moment with work, or at which it was unknown
    lasting: Transient[FloatColumn]  # replicas for the load without its queue, averaged over about one cold start
    desired_lately: Transient[
        SlidingWindow
    ]  # replicas; the highest over scaleDown.stabilization, the lowest over scaleUp's
    planned_lately: Transient[SlidingWindow]  # replicas while the planner speaks; the highest over a cold start
    counts_lately: Transient[SlidingWindow]  # highest over scaleDown.per, lowest over scaleUp.per


@dataclass(frozen=True)
class OwnTarget:
    """The target of each workload alone, and what allocation has to know of it."""

    stages: FloatColumn  # float64[G, W], replicas after each stage up to `Stage.BOUNDS`; NaN after it
    base_replicas: FloatColumn  # float64[W], replicas of the target that the present load needs; the rest is headroom
    informed: BoolColumn  # bool[W], inputs are trusted and the load is known
    idle_s: FloatColumn  # float64[W], seconds since there was work, or may have been some
    idle_after_s: FloatColumn  # float64[W], seconds without work until it goes to zero; NaN: it does not
    kept_for_s: FloatColumn  # float64[W], seconds for which stabilization will hold the count; NaN: it does not
    kept_window_s: FloatColumn  # float64[W], length of the window that holds it


def stabilize(
    inp: TickInput,
    observed: Observed,
    capacity: Capacity,
    learned: LearnedCapacity,
    choice: Choice,
    plan: Plan,
    planned_idle_s: FloatColumn,
    before: StabilizeState,
) -> tuple[OwnTarget, StabilizeState]:
    """Pass the recommendation through every stage; a paragraph each.

    planned_idle_s: float64[W], seconds without work after which the planner would go to zero; NaN: it would not.
    """
    observation, elapsed_s = observed.observation, observed.elapsed_s(inp.now_s)
    current, planned = observation.current, choice.planned
    stages = np.full((len(Stage), len(current)), np.nan)
    promised = choice.signals[Signal.SCHEDULE]  # has no tolerance and is not put off: its lead is one cold start

    stages[Stage.DEMAND] = desired = choice.replicas

    informed = observed.trusted & choice.load_known
    warming_up = choice.recommender == Recommender.WARMING_UP
    desired = stage_functions.await_planner(desired, current, choice.unweighed, warming_up)
    stages[Stage.UNKNOWN] = desired = stage_functions.hold_unknown(desired, current, informed)

    unqueued = signals.without_queue(inp, observation, capacity, choice.signals)
    lasting = ewma.update(before.lasting, unqueued, ewma.smoothing_factor(elapsed_s, averaging_s(observation)))
    speed = KnownSpeed(
        learned.decode_tokens_per_s,
        np.where(inp.spec.has_stated_capacity, np.nan, plan.work_s),
        np.where(planned, plan.demand, np.nan),
    )
    projection = burst.project(observation, capacity, observed.arrivals, speed)
    noise = burst.is_noise(inp, observation, projection)
    to_drain = burst.replicas_to_drain(inp, observation, projection)
    # The batches of a queue are full whatever the load. The planner knows the load without them.
    lasting_load = np.where(planned, choice.signals[Signal.PLANNER], lasting)
    without_queue = np.fmax(lasting_load, signals.beside_queue(observation, choice.signals))
    absorbed = burst.absorb(desired, without_queue, to_drain, observation, noise)
    by_waking = burst.wake(inp, observation, capacity, observed.arrivals, speed, desired, without_queue)
    # Signals guess at the speed of a replica until the planner knows it. The first step follows from the queue.
    is_first = ~(planned | inp.spec.has_stated_capacity) & (observation.starting + observation.pending == 0)
    is_late = load.has_late_queue(inp, observation) & is_first & ~noise
    by_queue = np.where(is_late, np.fmin(to_drain, signals.LARGEST_STEP * current), np.nan)
    stages[Stage.BURST] = desired = np.fmax(np.fmax(absorbed, by_waking), by_queue)

    # A strategy recommends whole replicas by design, so no change that it wants is too small.
    by_strategy = planned & (choice.signals[Signal.PLANNER] >= stages[Stage.DEMAND])
    tolerated = stage_functions.tolerate(desired, current, np.where(by_strategy, 0.0, inp.spec.tolerance))
    stages[Stage.TOLERANCE] = desired = np.fmax(tolerated, promised)

    hold_s = np.where(planned & informed, observation.cold_start_s, np.nan)
    kept, planned_lately = stage_functions.keep_recent(desired, current, before.planned_lately, inp.now_s, hold_s)

    last_busy_s = _update_last_busy(inp, observed, choice, before.last_busy_s)
    idle_s = inp.now_s - last_busy_s
    idle_after_s = np.where(np.isinf(inp.spec.idle_after_s), planned_idle_s, inp.spec.idle_after_s)
    # Zero has a time of its own, so the window does not put it off. A side of a pair rests with the other.
    rests = (kept == 0) & (_pair_idle_s(inp, idle_s) >= idle_after_s)

    # The window remembers no load while the planner speaks, so the reactive signals are watched again after it.
    unplanned_s = np.where(planned | inp.spec.has_stated_capacity, np.inf, choice.unplanned_s)
    watched_s = np.fmin(inp.now_s - observed.trusted_since_s, unplanned_s)
    stable, desired_lately = stage_functions.stabilize(
        kept,
        current,
        inp.spec,
        before.desired_lately,
        inp.now_s,
        informed=informed,
        watched_s=watched_s,
        planned=planned,
        beside=choice.beside,
    )
    kept_for_s = stage_functions.kept_for_s(stable, kept, inp.spec, desired_lately, inp.now_s, watched_s)
    held_for_s = sliding_window.expires_in_s(planned_lately, stable, inp.now_s, or_zero(hold_s))
    by_plan = (stable == kept) & (kept > desired)
    kept_for_s = np.fmax(kept_for_s, np.where(by_plan, held_for_s, np.nan))
    in_use = carry.replicas_in_use(observation, load.slots(inp.fleet, observed.pods.samples))
    carried = np.where(rests, 0.0, carry.keep(stable, current, in_use))
    kept_for_s = np.where(rests | (carried > stable), np.nan, kept_for_s)  # until these requests end
    stages[Stage.STABILIZATION] = desired = np.fmax(carried, promised)

    desired = np.where(load.is_abandoned(observation) & (idle_s >= idle_after_s), 0.0, desired)
    stages[Stage.IDLE] = desired = stage_functions.go_idle(desired, current, idle_after_s, idle_s)

    limited, least, counts_lately = stage_functions.limit_rate(
        desired, current, inp.spec, before.counts_lately, inp.now_s
    )
    stages[Stage.RATE_LIMIT] = desired = np.fmax(limited, promised)

    stages[Stage.BOUNDS] = desired = stage_functions.bound(desired, inp.spec, informed, least)

    target = OwnTarget(
        stages=stages,
        base_replicas=np.fmin(desired, choice.base_replicas),
        informed=informed,
        idle_s=idle_s,
        idle_after_s=idle_after_s,
        kept_for_s=kept_for_s,
        kept_window_s=np.where(by_plan, hold_s, inp.spec.down_stabilization_s),
    )
    return target, StabilizeState(last_busy_s, lasting, desired_lately, planned_lately, counts_lately)


def _update_last_busy(inp: TickInput, observed: Observed, choice: Choice, before: TimestampColumn) -> TimestampColumn:
    """Return when each workload last had work, or may have had some that no reading shows; float64[W], a moment."""
    unknown = ~observed.trusted | load.is_gateway_silent(inp, observed.observation)
    busy = _is_working(observed.observation, choice) | (observed.arrivals.last_worked_s == inp.now_s) | unknown
    last_busy_s = np.where(busy, inp.now_s, before)
    return np.where(np.isnan(last_busy_s), inp.now_s, last_busy_s)


def _pair_idle_s(inp: TickInput, idle_s: FloatColumn) -> FloatColumn:
    """Return the seconds without work, of both sides of a pair; float64[W]."""
    if inp.pairs is None:
        return idle_s
    partner = inp.pairs.partner
    return np.where(partner >= 0, np.fmin(idle_s, idle_s[partner]), idle_s)


def _is_ordered(observation: Observation) -> BoolColumn:
    """Return where replicas were ordered for work that may still come to them. bool[W].

    A replica that takes longer than a usual start was ordered long ago. By then engines that serve, or a gateway, show
    the load. Any start counts while neither shows it.
    """
    unseen = (observation.ready == 0) & np.isnan(observation.gateway_waiting)
    in_time = (
        observation.starting_replica_s < (OVERDUE - REPLICA_ROUNDING) * observation.cold_start_s * observation.starting
    )
    return np.asarray((observation.starting > 0) & (in_time | unseen))


def _is_working(observation: Observation, choice: Choice) -> BoolColumn:
    """Say which workloads have work, or expect some. bool[W]. Engine and GPU must both be still to count as idle.

    `Arrivals.last_worked_s` tells of work that began and ended between two readings.
    """
    at_work: BoolColumn = (
        (observation.running > 0)
        | (observation.waiting > 0)
        | (observation.draining_requests > 0)
        | (observation.gateway_waiting > 0)
        | (observation.gateway_arrivals_per_s > 0)  # any rate wakes it
        | (observation.gpu_active > 0)
        | _is_ordered(observation)
        | (choice.signals[Signal.SCHEDULE] > 0)
    )
    return at_work
