"""What GPUs are used for: each GPU is in one state, and each idle one has the decision that keeps it. Nothing decides
by it.

Replicas of a workload are stacked: the load needs the lowest ones, and each stage that raised the count added those on
top. So a replica beyond the load is kept by the last stage that raised the count above it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.measure.capacity import count_carrying
from autoscaler.core.model.fleet import CRASHING, Fleet, PendingClass
from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.model.types import Decision, Plan, Signal, Stage, TickInput
from autoscaler.core.observe import gpu_activity
from autoscaler.core.observe.load import requests_in_flight
from autoscaler.core.planner.strategies import add_margin
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, ceil_replicas, clip, or_zero


class GpuState(PublishedEnum):
    """What a GPU is used for. Workloads have all but the last two, pools have all but `ORDERED`."""

    SERVING = 0  # ready, and the load needs it
    LOADED_IDLE = 1, "loaded, not active"  # ready and loaded, but by DCGM and its engine nothing is computed
    HEADROOM = 2  # ready, beyond the load
    FLOOR = 3  # ready, beyond the load, by a minimum, a window, or whoever else sets the count
    WARMING = 4  # its pod has a node, and is not ready yet
    ASLEEP = 5  # its engine sleeps
    DRAINING = 6  # its pod is terminating
    FAILING = 7  # its pod crashes, or cannot be started
    UNKNOWN = 8  # ready, but the load is not known; or held by pods of workloads whose GPUs are not known
    ORDERED = 9, "ordered, not there"  # its pod has no node yet: no GPU of a pool
    OTHER = 10  # held by pods of no managed workload
    FREE = 11  # no pod holds it, or only one of negative priority


class IdleCause(PublishedEnum):
    """Why GPUs of a workload are idle: what keeps them."""

    LOAD = 0, "load, between requests"  # the load needs it by its counts, yet it computes nothing
    STRATEGY = 1, "strategy of the planner"
    HELD_PEAK = 2
    INITIAL_FLEET = 3
    WINDOW = 4, "pre-warm window"
    UNKNOWN_LOAD = 5
    BURST = 6
    TOLERANCE = 7
    STABILIZATION = 8
    LAST_REPLICA = 9
    RATE_LIMIT = 10
    FLOOR = 11, "floor by policy"
    PAIR = 12
    VARIANTS = 13
    SLEEP = 14, "kept asleep"
    OWNER = 15, "count set elsewhere"
    LEAVING = 16  # more than decided: a shrink that is not carried out yet
    COLD_START = 17
    DRAIN = 18
    FAILURE = 19


OF_STAGE = {
    Stage.UNKNOWN: IdleCause.UNKNOWN_LOAD,
    Stage.BURST: IdleCause.BURST,
    Stage.TOLERANCE: IdleCause.TOLERANCE,
    Stage.STABILIZATION: IdleCause.STABILIZATION,
    Stage.IDLE: IdleCause.LAST_REPLICA,
    Stage.RATE_LIMIT: IdleCause.RATE_LIMIT,
    Stage.BOUNDS: IdleCause.FLOOR,
    Stage.PAIR: IdleCause.PAIR,
    Stage.VARIANT: IdleCause.VARIANTS,
    Stage.EXCHANGE: IdleCause.VARIANTS,
    Stage.SLEEP: IdleCause.SLEEP,
    Stage.ALLOCATION: IdleCause.OWNER,  # it raises a count only to what an HPA keeps
    Stage.PARTNER: IdleCause.PAIR,
    Stage.OWNER: IdleCause.OWNER,
}
"""What it means that a stage keeps a replica; `DEMAND` is split by what recommends it."""

CAUSE_OF_STATE = {
    GpuState.WARMING: IdleCause.COLD_START,
    GpuState.ASLEEP: IdleCause.SLEEP,
    GpuState.DRAINING: IdleCause.DRAIN,
    GpuState.FAILING: IdleCause.FAILURE,
}
READY = [GpuState.SERVING, GpuState.LOADED_IDLE, GpuState.HEADROOM, GpuState.FLOOR, GpuState.UNKNOWN]
FLOORS = [IdleCause.WINDOW, IdleCause.LAST_REPLICA, IdleCause.FLOOR, IdleCause.OWNER]
IDLE = [*range(GpuState.LOADED_IDLE, GpuState.UNKNOWN)]


class GpuUse(NamedTuple):
    """The replicas of each workload by state and by cause; replicas of several pods count by the GPUs that they hold.

    The sum over causes is that of the states `IDLE`.
    """

    states: FloatColumn  # float64[S, W], S of GpuState
    causes: FloatColumn  # float64[C, W], C of IdleCause
    of_pod: IntColumn  # int64[P], GpuState; all that are ready and awake as `SERVING`
    held: FloatColumn  # float64[P], part of a replica that is on nodes


class GpuNeed(NamedTuple):
    """The replicas that the load of each workload needs, and those that it does not get; float64[W]."""

    needed: FloatColumn  # NaN: not known
    lacking: FloatColumn  # wanted, but no GPU is free for them, or a quota or a node forbids it
    beyond: FloatColumn  # wanted beyond the highest count that is allowed


def find_use(inp: TickInput, decision: Decision) -> GpuUse:
    """Return what the replicas of a tick are used for."""
    of_pod, held = _states_of_pods(inp.fleet, decision)
    states, loaded_idle = _count_pods(inp, decision, of_pod, held)
    ready, needed = states[GpuState.SERVING].copy(), _needed(inp, decision)
    is_known = ~np.isnan(needed)
    needed = np.where(is_known, needed, np.inf)
    idle = np.minimum(loaded_idle, ready)
    below = ready - idle  # the highest ones are those that are measured idle
    tops = _tops(inp, decision)
    kept = _by_cause(tops, decision, needed, below)
    floor = kept[FLOORS].sum(axis=0)
    states[GpuState.SERVING] = np.where(is_known, np.minimum(needed, below), 0.0)
    states[GpuState.UNKNOWN] = np.where(is_known, 0.0, below)
    states[GpuState.LOADED_IDLE], states[GpuState.FLOOR] = idle, floor
    states[GpuState.HEADROOM] = kept.sum(axis=0) - floor
    causes = kept
    if idle.any():
        causes = _by_cause(tops, decision, needed, ready)
        needed_but_idle = np.minimum(needed, ready) - np.minimum(needed, below)
        causes[IdleCause.LOAD] = np.where(is_known, needed_but_idle, 0.0)
        causes[IdleCause.UNKNOWN_LOAD] += np.where(is_known, 0.0, idle)
    for state, cause in CAUSE_OF_STATE.items():
        causes[cause] += states[state]
    return GpuUse(states, causes, of_pod, held)


def find_need(inp: TickInput, decision: Decision) -> GpuNeed:
    """Return what the load needs and does not get in a tick.

    The planner wants no more than the ceiling. So where the ceiling holds, the load itself, without headroom, tells the
    least that is beyond it.
    """
    stages, pending = ceil_replicas(decision.stages), decision.pending_by_class
    wanted = or_zero(stages[Stage.ALLOCATION - 1])
    cut = np.maximum(wanted - or_zero(stages[Stage.ALLOCATION]), 0.0)
    without = pending[PendingClass.QUEUED] + pending[PendingClass.NO_ROOM]
    refused = pending[PendingClass.QUOTA] + pending[PendingClass.IMPOSSIBLE]  # `cut` may have left these out
    missing = np.maximum(wanted - decision.observation.ready, 0.0)
    lacking = np.minimum(np.maximum(cut + without, refused), missing)
    bounded = stages[Stage.BOUNDS]
    carrying = ceil_replicas(count_carrying(np.maximum(decision.plan.demand, 0.0)))  # a fit that is off is below zero
    by_load = np.where(bounded >= inp.spec.max_replicas, carrying, np.nan)
    beyond = or_zero(np.fmax(stages[Stage.BOUNDS - 1], by_load) - bounded)
    return GpuNeed(_needed(inp, decision), or_zero(lacking), np.maximum(beyond, 0.0))


def _states_of_pods(fleet: Fleet, decision: Decision) -> tuple[IntColumn, FloatColumn]:
    """Return `of_pod` and `held` of `GpuUse`."""
    asleep, leaves = _asleep(fleet, decision), fleet.pod_terminating
    waits = np.where(np.isin(fleet.pod_pending, CRASHING), GpuState.FAILING, GpuState.WARMING)
    state = np.where(asleep, GpuState.ASLEEP, np.where(fleet.pod_ready, GpuState.SERVING, waits))
    is_there = fleet.pod_ready | asleep | ~np.isnan(fleet.pod_scheduled_s)
    if fleet.held is not None:
        is_there |= np.isin(np.arange(len(is_there)), fleet.held.pod)
    held = np.where(is_there, 1.0, 0.0)
    if fleet.parts:
        of = np.array([part.pod for part in fleet.parts])
        gpus = np.bincount(of, [part.gpus for part in fleet.parts], len(held))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = or_zero(gpus / fleet.gpus_per_replica[fleet.pod_workload])
        partly = (np.bincount(of, minlength=len(held)) > 0) & ~fleet.pod_ready
        held = np.where(partly, clip(share, 0.0, 1.0), held)
    return np.where(leaves, GpuState.DRAINING, state), held


def _asleep(fleet: Fleet, decision: Decision) -> BoolColumn:
    asleep = decision.sleep_orders.asleep
    return asleep if len(asleep) == len(fleet.pods) else np.zeros(len(fleet.pods), dtype=bool)


def _count_pods(
    inp: TickInput, decision: Decision, of_pod: IntColumn, held: FloatColumn
) -> tuple[FloatColumn, FloatColumn]:
    """Return the replicas by state, all that are ready as `SERVING`; and those loaded and idle: NaN: unknown."""
    fleet, rows = inp.fleet, len(inp.fleet.workloads)
    size = len(GpuState) * rows
    states = np.bincount(of_pod * rows + fleet.pod_workload, held, size).astype(np.float64).reshape(-1, rows)
    ordered = np.where(fleet.pod_terminating, 0.0, 1.0 - held)
    states[GpuState.ORDERED] = np.bincount(fleet.pod_workload, ordered, rows)
    states[GpuState.ORDERED] += np.maximum(or_zero(decision.observation.missing_pods), 0.0)
    idle = gpu_activity.classify(inp.now_s, inp.samples.pods, of_pod == GpuState.SERVING)[2]
    known = np.flatnonzero(idle > 0)
    return states, np.bincount(fleet.pod_workload[known], minlength=rows).astype(np.float64)


def _needed(inp: TickInput, decision: Decision) -> FloatColumn:
    """Return the replicas that the load needs, whole; float64[W]. NaN: not known.

    The planner's base replicas are no fewer than the policy's floor or the initial fleet, whatever the load is. Where
    these decide, the present load counts instead.
    """
    plan, in_flight = decision.plan, requests_in_flight(decision.observation)
    planned = ~np.isnan(decision.recommendations[Signal.PLANNER])
    demand = np.maximum(plan.demand, 0.0).astype(np.float32)
    by_load = np.fmax(add_margin(demand, 0.0, 1.0).astype(np.float64), in_flight > 0)
    is_floor = plan.base_replicas <= np.fmax(np.fmax(inp.spec.min_replicas, 1.0), _initial_fleet(plan))
    base = np.where(is_floor & ~np.isnan(plan.demand), np.fmin(plan.base_replicas, by_load), plan.base_replicas)
    needed = np.fmax(_strongest(decision, (Signal.PLANNER, Signal.SCHEDULE)), np.where(planned, base, np.nan))
    return np.maximum(ceil_replicas(needed), 0.0)


def _initial_fleet(plan: Plan) -> FloatColumn:
    """Return the initial fleet while no strategy requests less; float64[W], NaN: it does not count any more."""
    return np.where(plan.observed_s < plan.warm_up_s, plan.initial_fleet, np.nan)


def _strongest(decision: Decision, without: tuple[Signal, ...]) -> FloatColumn:
    """Return the largest recommendation but for some signals; float64[W]. NaN: there is none."""
    signals = [column for signal, column in zip(Signal, decision.recommendations, strict=True) if signal not in without]
    return np.asarray(np.fmax.reduce(np.array(signals), axis=0))


def _tops(inp: TickInput, decision: Decision) -> FloatColumn:
    """Return up to which replica each layer reaches: five of `DEMAND`, one of each further stage; float64[4 + G, W].

    They ascend. A stage keeps no replica that a later one takes away.
    """
    stages = or_zero(ceil_replicas(decision.stages))
    stages[-1] = decision.replicas
    reach = np.minimum.accumulate(stages[::-1], axis=0)[::-1]
    others = or_zero(ceil_replicas(_strongest(decision, (Signal.SCHEDULE,))))
    planned = ~np.isnan(decision.recommendations[Signal.PLANNER])
    by_strategy = np.where(planned, or_zero(ceil_replicas(decision.plan.strategy_replicas)), 0.0)
    by_floor = np.minimum(or_zero(inp.spec.min_replicas), by_strategy)  # no strategy requests less, nor than these
    at_first = np.maximum(by_floor, np.minimum(or_zero(_initial_fleet(decision.plan)), by_strategy))
    first = np.minimum([by_floor, at_first, by_strategy, others], np.minimum(others, reach[Stage.DEMAND]))
    return np.concatenate([first, reach])


def _by_cause(tops: FloatColumn, decision: Decision, least: FloatColumn, most: FloatColumn) -> FloatColumn:
    """Return the replicas from `least` to `most` by what keeps them; float64[C, W]. least, most: float64[W]."""
    low = np.minimum(least, most)
    edges = np.concatenate([low[None], clip(tops, low, most), most[None]])
    layers = np.diff(edges, axis=0)
    kept = np.zeros((len(IdleCause), len(most)))
    floor, at_first, by_strategy, for_queue, window, *by_stage = layers
    by_peak = ~np.isnan(decision.plan.peak_expires_in_s)
    kept[IdleCause.FLOOR] = floor
    kept[IdleCause.HELD_PEAK] = np.where(by_peak, by_strategy, 0.0)
    kept[IdleCause.STRATEGY] = np.where(by_peak, 0.0, by_strategy) + for_queue  # none is removed while a queue is late
    kept[IdleCause.INITIAL_FLEET] = at_first
    kept[IdleCause.WINDOW] = window
    for stage, layer in zip(list(Stage)[1:], by_stage, strict=False):
        kept[OF_STAGE[stage]] += layer
    kept[IdleCause.LEAVING] = layers[-1]
    return kept
