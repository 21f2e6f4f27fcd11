"""The devices that pods hold, by what they are used for, and those of pools. Nothing decides by it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.gpu_use import CAUSE_OF_STATE, READY, GpuState, GpuUse
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import FloatColumn, IntColumn, or_zero


class DeviceUse(NamedTuple):
    """The devices that pods of workloads hold, by the row of `PoolUse` that has them; K lines.

    The first W are those of the pools of the workloads. The others are of pods that an earlier template made, or of
    nodes that their workload does not allow any more.
    """

    workload: IntColumn  # int64[K]
    row: IntColumn  # int64[K], of `PoolUse`; -1: the pool is not known
    states: FloatColumn  # float64[S, K]
    causes: FloatColumn  # float64[C, K], of the states `IDLE`
    unknown: FloatColumn  # float64[W], replicas whose devices are not known

    @property
    def held(self) -> FloatColumn:
        """The devices that there are; float64[K]."""
        return np.asarray(self.states[: GpuState.ORDERED].sum(axis=0))


class PoolUse(NamedTuple):
    """The devices of pools by state. Pools that share node groups are one row, and so is a group of no pool."""

    pools: tuple[tuple[int, ...], ...]  # [R], of the fleet
    groups: tuple[tuple[int, ...], ...]  # [R], of the fleet
    states: FloatColumn  # float64[S, R]; NaN: `FREE`, where the size is not known
    devices: FloatColumn  # float64[R], those that nodes offer, or that pods hold where these are more; NaN: unknown


def find_device_use(fleet: Fleet, use: GpuUse) -> DeviceUse:
    """Return what the devices are used for that pods hold, each by the state of its own pod."""
    count, rows = len(fleet.workloads), find_rows(fleet)
    own_row = np.append(rows.of_pool, -1)[fleet.pool]
    workload, pod, row, devices = _held_devices(fleet, use, own_row, rows.of_group)
    is_elsewhere = row != own_row[workload]
    elsewhere = np.stack([workload[is_elsewhere], row[is_elsewhere]])
    pairs, place = np.unique(elsewhere, axis=1, return_inverse=True)
    line = workload.copy()
    line[is_elsewhere] = count + place.ravel()
    owner, lines = np.append(np.arange(count), pairs[0]), count + pairs.shape[1]
    state = np.append(use.of_pod, GpuState.UNKNOWN)[pod]
    held = np.bincount(state * lines + line, devices, len(GpuState) * lines).astype(np.float64).reshape(-1, lines)
    states, causes = _divide(held, use, owner)
    states[GpuState.ORDERED, :count] = use.states[GpuState.ORDERED] * or_zero(fleet.gpus_per_replica)
    has_devices = np.isin(np.arange(len(use.held)), pod)
    unknown = ~has_devices & np.isnan(fleet.gpus_per_replica)[fleet.pod_workload]
    without = np.bincount(fleet.pod_workload[unknown], use.held[unknown], count).astype(np.float64)
    return DeviceUse(owner, np.append(own_row, pairs[1]), states, causes, without)


def _divide(held: FloatColumn, use: GpuUse, owner: IntColumn) -> tuple[FloatColumn, FloatColumn]:
    """Return devices by state and by cause; float64[S, K] and float64[C, K].

    Ready devices of a workload have its states in equal parts: a decision is about replicas, not about one of them.
    held: float64[S, K], by the state of their pods. owner: int64[K], workload.
    """
    states, ready = held.copy(), held[GpuState.SERVING]
    states[GpuState.SERVING] = 0.0
    each = np.divide(ready, use.states[READY].sum(axis=0)[owner], out=np.zeros(len(owner)), where=ready > 0)
    states[READY] += use.states[READY][:, owner] * each
    causes = use.causes.copy()
    for state, cause in CAUSE_OF_STATE.items():
        causes[cause] -= use.states[state]  # what is left is of ready replicas
    causes = np.maximum(causes, 0.0)[:, owner] * each
    for state, cause in CAUSE_OF_STATE.items():
        causes[cause] += held[state]
    return states, causes


def _held_devices(
    fleet: Fleet, use: GpuUse, own_row: IntColumn, row_of_group: IntColumn
) -> tuple[IntColumn, IntColumn, IntColumn, FloatColumn]:
    """Return workload, pod, row of `PoolUse` and number of devices that pods hold; [H] each.

    Where a source does not tell them, each replica has what its template states.
    """
    if fleet.held is not None:
        return fleet.held.workload, fleet.held.pod, row_of_group[fleet.held.group], fleet.held.devices
    devices = use.held * or_zero(fleet.gpus_per_replica)[fleet.pod_workload]
    pod = np.flatnonzero(devices)
    workload = fleet.pod_workload[pod]
    return workload, pod, own_row[workload], devices[pod]


def find_pool_use(fleet: Fleet, use: DeviceUse) -> PoolUse:
    """Return what the devices of all pools are used for; over the states they add up to the devices of each."""
    groups, joined = fleet.groups, find_rows(fleet)
    row_of_group, rows = joined.of_group, joined.rows
    known = len(row_of_group)  # the groups after them are of strays, whose devices are those of their nodes
    states = np.zeros((len(GpuState), rows))
    for state in range(GpuState.ORDERED):
        states[state] = np.bincount(use.row + 1, use.states[state], rows + 1)[1:]
    has_groups = np.bincount(row_of_group, minlength=rows) > 0
    allocatable = groups.allocatable if fleet.held is None else fleet.held.allocatable
    offered = np.where(has_groups, _sum(allocatable, row_of_group, rows), np.nan)
    states[GpuState.OTHER] = _sum(or_zero(groups.used_by_others[:known]), row_of_group, rows)
    if fleet.held is None:
        owner = np.append(joined.of_pool, rows)[fleet.pool[np.isnan(fleet.gpus_per_replica)]]
        unsized = np.bincount(owner, minlength=rows + 1)[:rows] > 0
        rest = np.maximum(offered - states.sum(axis=0), 0.0)
        states[GpuState.UNKNOWN] += np.where(unsized, or_zero(rest), 0.0)
    taken = states.sum(axis=0)
    states[GpuState.FREE] = np.maximum(offered - taken, 0.0)
    members = tuple(tuple(np.flatnonzero(joined.of_pool == row).tolist()) for row in range(rows))
    lines = tuple(tuple(np.flatnonzero(row_of_group == row).tolist()) for row in range(rows))
    return PoolUse(members, lines, states, np.maximum(offered, taken))


def _sum(amounts: FloatColumn, row_of_group: IntColumn, rows: int) -> FloatColumn:
    """Return the sum of each row; float64[R]. NaN: one of its groups is not known."""
    return np.bincount(row_of_group, amounts, rows).astype(np.float64)


class PoolRows(NamedTuple):
    """The row of `PoolUse` of each pool and of each node group, but those of strays."""

    of_pool: IntColumn  # int64[N]
    of_group: IntColumn  # int64[G]
    rows: int


def find_rows(fleet: Fleet) -> PoolRows:
    """Join pools with a node group in common."""
    admitted = fleet.groups.admitted
    if fleet.held is not None:
        admitted = admitted[:, : len(fleet.held.allocatable)]
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
    return PoolRows(row[:count], row[count:], len(names))
