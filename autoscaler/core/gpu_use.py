"""What GPUs are used for: each GPU is in one state, and each idle one has the decision that keeps it. Nothing decides
by it.

Replicas of a workload are stacked: the load needs the lowest ones, and each stage that raised the count added those on
top. So a replica beyond the load is kept by the last stage that raised the count above it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import CRASHING, Fleet, PendingClass
from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.model.types import Decision, Signal, Stage, TickInput
from autoscaler.core.observe import gpu_activity
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

FLOORS = [IdleCause.WINDOW, IdleCause.LAST_REPLICA, IdleCause.FLOOR, IdleCause.OWNER]
IDLE = [*range(GpuState.LOADED_IDLE, GpuState.UNKNOWN)]
ROUNDING_GPUS = 1e-6


class GpuUse(NamedTuple):
    """The replicas of each workload by state and by cause; replicas of several pods count by the GPUs that they hold.

    The sum over causes is that of the states `IDLE`.
    """

    states: FloatColumn  # float64[S, W], S of GpuState
    causes: FloatColumn  # float64[C, W], C of IdleCause


class GpuNeed(NamedTuple):
    """The replicas that the load of each workload needs, and those that it does not get; float64[W]."""

    needed: FloatColumn  # NaN: not known
    lacking: FloatColumn  # wanted, but no GPU is free for them, or a quota or a node forbids it
    beyond: FloatColumn  # wanted beyond the highest count that is allowed


class PoolUse(NamedTuple):
    """The devices of pools by state. Pools that share node groups are one row, and so is a group of no pool."""

    pools: tuple[tuple[int, ...], ...]  # [R], of the fleet
    groups: tuple[tuple[int, ...], ...]  # [R], of the fleet
    states: FloatColumn  # float64[S, R]; NaN: `FREE`, where the size is not known
    devices: FloatColumn  # float64[R], those that nodes offer, or that pods hold where these are more; NaN: unknown


def find_use(inp: TickInput, decision: Decision) -> GpuUse:
    """Return what the replicas of a tick are used for."""
    states, loaded_idle = _count_pods(inp, decision)
    ready, needed = states[GpuState.SERVING].copy(), _needed(decision)
    is_known = ~np.isnan(needed)
    needed = np.where(is_known, needed, np.inf)
    idle = np.minimum(loaded_idle, ready)
    below = ready - idle  # the highest ones are those that are measured idle
    tops = _tops(decision)
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
    causes[IdleCause.COLD_START] += states[GpuState.WARMING]
    causes[IdleCause.SLEEP] += states[GpuState.ASLEEP]
    causes[IdleCause.DRAIN] += states[GpuState.DRAINING]
    causes[IdleCause.FAILURE] += states[GpuState.FAILING]
    return GpuUse(states, causes)


def find_need(decision: Decision) -> GpuNeed:
    """Return what the load needs and does not get in a tick."""
    stages, pending = ceil_replicas(decision.stages), decision.pending_by_class
    wanted = or_zero(stages[Stage.ALLOCATION - 1])
    cut = np.maximum(wanted - or_zero(stages[Stage.ALLOCATION]), 0.0)
    without = pending[PendingClass.QUEUED] + pending[PendingClass.NO_ROOM]
    refused = pending[PendingClass.QUOTA] + pending[PendingClass.IMPOSSIBLE]  # `cut` may have left these out
    missing = np.maximum(wanted - decision.observation.ready, 0.0)
    lacking = np.minimum(np.maximum(cut + without, refused), missing)
    beyond = or_zero(stages[Stage.BOUNDS - 1] - stages[Stage.BOUNDS])
    return GpuNeed(_needed(decision), or_zero(lacking), np.maximum(beyond, 0.0))


def _count_pods(inp: TickInput, decision: Decision) -> tuple[FloatColumn, FloatColumn]:
    """Return the replicas by state, all that are ready as `SERVING`; and those loaded and idle: NaN: unknown."""
    fleet, rows = inp.fleet, len(inp.fleet.workloads)
    asleep, leaves = decision.sleep_orders.asleep, fleet.pod_terminating
    if len(asleep) != len(fleet.pods):
        asleep = np.zeros(len(fleet.pods), dtype=bool)
    ready = fleet.pod_ready & ~leaves & ~asleep
    held = np.where(fleet.pod_ready | asleep | ~np.isnan(fleet.pod_scheduled_s), 1.0, 0.0)
    if fleet.parts:
        of = np.array([part.pod for part in fleet.parts])
        gpus = np.bincount(of, [part.gpus for part in fleet.parts], len(held))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = or_zero(gpus / fleet.gpus_per_replica[fleet.pod_workload])
        partly = (np.bincount(of, minlength=len(held)) > 0) & ~fleet.pod_ready
        held = np.where(partly, clip(share, 0.0, 1.0), held)
    waits = np.where(np.isin(fleet.pod_pending, CRASHING), GpuState.FAILING, GpuState.WARMING)
    state = np.where(asleep, GpuState.ASLEEP, np.where(fleet.pod_ready, GpuState.SERVING, waits))
    state = np.where(leaves, GpuState.DRAINING, state)
    size = len(GpuState) * rows
    states = np.bincount(state * rows + fleet.pod_workload, held, size).astype(np.float64).reshape(-1, rows)
    ordered = np.where(leaves, 0.0, 1.0 - held)
    states[GpuState.ORDERED] = np.bincount(fleet.pod_workload, ordered, rows)
    states[GpuState.ORDERED] += np.maximum(or_zero(decision.observation.missing_pods), 0.0)
    idle = gpu_activity.classify(inp.now_s, inp.samples.pods, ready)[2]
    known = np.flatnonzero(idle > 0)
    return states, np.bincount(fleet.pod_workload[known], minlength=rows).astype(np.float64)


def _needed(decision: Decision) -> FloatColumn:
    """Return the replicas that the load needs, whole; float64[W]. NaN: not known."""
    planned = ~np.isnan(decision.recommendations[Signal.PLANNER])
    by_signals = _strongest(decision, (Signal.PLANNER, Signal.SCHEDULE))
    needed = np.fmax(by_signals, np.where(planned, decision.plan.base_replicas, np.nan))
    return np.maximum(ceil_replicas(needed), 0.0)


def _strongest(decision: Decision, without: tuple[Signal, ...]) -> FloatColumn:
    """Return the largest recommendation but for some signals; float64[W]. NaN: there is none."""
    signals = [column for signal, column in zip(Signal, decision.recommendations, strict=True) if signal not in without]
    return np.asarray(np.fmax.reduce(np.array(signals), axis=0))


def _tops(decision: Decision) -> FloatColumn:
    """Return up to which replica each layer reaches: three of `DEMAND`, one of each further stage; float64[2 + G, W].

    They ascend. A stage keeps no replica that a later one takes away.
    """
    stages = or_zero(ceil_replicas(decision.stages))
    stages[-1] = decision.replicas
    reach = np.minimum.accumulate(stages[::-1], axis=0)[::-1]
    others = or_zero(ceil_replicas(_strongest(decision, (Signal.SCHEDULE,))))
    planned = ~np.isnan(decision.recommendations[Signal.PLANNER])
    by_strategy = np.where(planned, or_zero(ceil_replicas(decision.plan.strategy_replicas)), 0.0)
    first = np.minimum([np.minimum(by_strategy, others), others], reach[Stage.DEMAND])
    return np.concatenate([first, reach])


def _by_cause(tops: FloatColumn, decision: Decision, least: FloatColumn, most: FloatColumn) -> FloatColumn:
    """Return the replicas from `least` to `most` by what keeps them; float64[C, W]. least, most: float64[W]."""
    low = np.minimum(least, most)
    edges = np.concatenate([low[None], clip(tops, low, most), most[None]])
    layers = np.diff(edges, axis=0)
    kept = np.zeros((len(IdleCause), len(most)))
    by_peak = ~np.isnan(decision.plan.peak_expires_in_s)
    kept[IdleCause.HELD_PEAK] = np.where(by_peak, layers[0], 0.0)
    kept[IdleCause.STRATEGY] = np.where(by_peak, 0.0, layers[0])
    kept[IdleCause.INITIAL_FLEET] = layers[1]
    kept[IdleCause.WINDOW] = layers[2]
    for stage, layer in zip(list(Stage)[1:], layers[3:], strict=False):
        kept[OF_STAGE[stage]] += layer
    kept[IdleCause.LEAVING] = layers[-1]
    return kept


def find_pool_use(fleet: Fleet, use: GpuUse) -> PoolUse:
    """Return what the devices of all pools are used for; over the states they add up to the devices of each."""
    groups = fleet.groups
    row_of_pool, row_of_group, rows = _join(groups.admitted)
    owner = np.append(row_of_pool, rows)[fleet.pool]
    each, known = or_zero(fleet.gpus_per_replica), ~np.isnan(fleet.gpus_per_replica)
    states = np.zeros((len(GpuState), rows))
    for state in range(GpuState.ORDERED):
        states[state] = np.bincount(owner, use.states[state] * each, rows + 1)[:rows]
    held = states.sum(axis=0)
    offered, used = _sum(groups.allocatable, row_of_group, rows), _sum(groups.used, row_of_group, rows)
    without_groups = np.bincount(row_of_group, minlength=rows) == 0
    offered = np.where(without_groups, np.nan, offered)
    states[GpuState.OTHER] = _sum(or_zero(groups.used_by_others), row_of_group, rows)
    unsized = np.bincount(owner[~known], minlength=rows + 1)[:rows] > 0
    rest = np.maximum(offered - states[GpuState.OTHER] - held, 0.0)
    more = np.where(np.isnan(used), np.where(unsized, or_zero(rest), 0.0), np.maximum(used - held, 0.0))
    states[GpuState.UNKNOWN] += np.where(more > ROUNDING_GPUS, more, 0.0)
    taken = states.sum(axis=0)
    states[GpuState.FREE] = np.maximum(offered - taken, 0.0)
    members = tuple(tuple(np.flatnonzero(row_of_pool == row).tolist()) for row in range(rows))
    lines = tuple(tuple(np.flatnonzero(row_of_group == row).tolist()) for row in range(rows))
    return PoolUse(members, lines, states, np.maximum(offered, taken))


def _sum(amounts: FloatColumn, row_of_group: IntColumn, rows: int) -> FloatColumn:
    """Return the sum of each row; float64[R]. NaN: one of its groups is not known."""
    return np.bincount(row_of_group, amounts, rows).astype(np.float64)


def _join(admitted: BoolColumn) -> tuple[IntColumn, IntColumn, int]:
    """Return the row of each pool and of each group, int64[N] and int64[G], and how many rows there are.

    Pools with a group in common have the same row. admitted: bool[N, G].
    """
    count, others = admitted.shape
    pool, group = np.nonzero(admitted)
    of_pool, of_group = np.arange(count), count + np.arange(others)
    while True:
        before = of_pool.copy()
        np.minimum.at(of_group, group, of_pool[pool])
        np.minimum.at(of_pool, pool, of_group[group])
        if (of_pool == before).all():
            break
    names, row = np.unique(np.concatenate([of_pool, of_group]), return_inverse=True)
    return row[:count], row[count:], len(names)
