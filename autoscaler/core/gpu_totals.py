"""GPU-seconds and money of each workload and pool by state and cause, since a process began to count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from autoscaler.core.gpu_use import GpuState, GpuUse, IdleCause, PoolUse, find_need, find_pool_use, find_use
from autoscaler.core.model.fleet import Pool
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.table.columns import Columns, FloatColumn, IntColumn, moved, or_zero
from autoscaler.core.tally import LONGEST_S

PoolKey = tuple[str, str, str]
NO_POOL: PoolKey = ("", "", "")


@dataclass(frozen=True)
class UseTotals(Columns):
    """Sums of each workload. A GPU is a whole one: a slice or a share of one counts as its part."""

    gpu_s: FloatColumn  # float64[S, W], by GpuState
    idle_gpu_s: FloatColumn  # float64[C, W], by IdleCause
    usd: FloatColumn  # float64[S, W], of the time with a price
    unsized_s: FloatColumn  # float64[W], replica-seconds with unknown GPUs, which are in no sum of GPU-seconds
    unpriced_s: FloatColumn  # float64[W], replica-seconds without a price, which are in no sum of money
    needed_gpu_s: FloatColumn  # float64[W], GPUs that the load needs, times seconds in which that was known
    lacking_gpu_s: FloatColumn  # float64[W], GPUs that are wanted and not there, because none is free or allowed
    lacking_s: FloatColumn  # float64[W], seconds in which some were lacking
    beyond_gpu_s: FloatColumn  # float64[W], GPUs that are wanted beyond the highest count that is allowed
    beyond_s: FloatColumn  # float64[W], seconds in which some were

    @classmethod
    def blank(cls, rows: int) -> Self:
        states, none = np.zeros((len(GpuState), rows)), np.zeros(rows)
        return cls(states, np.zeros((len(IdleCause), rows)), states, *[none] * 7)


class GpuTotals:
    """The sums since the first tick that was added. Each tick counts for the time since the one before."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.of_workloads = UseTotals.blank(0)  # on the rows of the last tick
        self.of_pools: dict[PoolKey, FloatColumn] = {}  # GPU-seconds, float64[S], of pools whose sizes are known
        self.pools: PoolUse | None = None  # of the last tick
        self.pool_of: list[PoolKey] = []  # [W], of the last tick, under the names of `of_pools`; `NO_POOL`: not known
        self._id: IntColumn = np.empty(0, np.int64)
        self._last_s = np.nan

    def add(self, inp: TickInput, decision: Decision, share: FloatColumn, most_pools: int) -> None:
        """Add the time since the tick before.

        share: float64[G], part of a whole GPU that one device of each node group is; NaN: unknown.
        """
        fleet, use, need = inp.fleet, find_use(inp, decision), find_need(decision)
        elapsed_s = inp.now_s - self._last_s
        seconds = elapsed_s if 0 < elapsed_s <= LONGEST_S else 0.0
        before = moved(self.of_workloads, self._id, fleet.workload_id)
        self._id, self._last_s = fleet.workload_id, inp.now_s
        self.seconds += seconds
        self.pools = find_pool_use(fleet, use)
        of_row = share_of_rows(self.pools, share)
        of_pool = np.full(len(fleet.pools) + 1, np.nan)
        for row, members in enumerate(self.pools.pools):
            of_pool[list(members)] = of_row[row]
        gpus = seconds * fleet.gpus_per_replica * of_pool[fleet.pool]
        usd = seconds / 3600 * (inp.variants.cost if inp.variants is not None else np.full(len(gpus), np.nan))
        held = seconds * use.states[: GpuState.ORDERED].sum(axis=0)
        self.of_workloads = UseTotals(
            before.gpu_s + use.states * or_zero(gpus),
            before.idle_gpu_s + use.causes * or_zero(gpus),
            before.usd + _paid(use) * or_zero(usd),
            before.unsized_s + np.where(np.isnan(gpus), held, 0.0),
            before.unpriced_s + np.where(np.isnan(usd), held, 0.0),
            before.needed_gpu_s + or_zero(need.needed * gpus),
            before.lacking_gpu_s + or_zero(need.lacking * gpus),
            before.lacking_s + np.where(need.lacking > 0, seconds, 0.0),
            before.beyond_gpu_s + or_zero(need.beyond * gpus),
            before.beyond_s + np.where(need.beyond > 0, seconds, 0.0),
        )
        named = [each[:3] for each in fleet.groups.groups]
        keys = [name_row(self.pools, row, fleet.pools, named) for row in range(len(self.pools.pools))]
        names = dict.fromkeys(range(len(fleet.pools)), NO_POOL)
        names |= {pool: key for key, members in zip(keys, self.pools.pools, strict=True) for pool in members}
        self.pool_of = [names.get(pool, NO_POOL) for pool in fleet.pool.tolist()]
        for row, (key, states) in enumerate(zip(keys, self.pools.states.T, strict=True)):
            is_known = not np.isnan(of_row[row] * self.pools.devices[row])  # a pool of unknown size is not full
            if is_known and (key in self.of_pools or len(self.of_pools) < most_pools):
                sums = self.of_pools.setdefault(key, np.zeros(len(GpuState)))
                self.of_pools[key] = sums + seconds * of_row[row] * or_zero(states)

    def restart(self) -> None:
        """Begin to count from the last tick on."""
        self.seconds, self.of_pools = 0.0, {}
        self.of_workloads = UseTotals.blank(len(self._id))


def share_of_rows(pools: PoolUse, share: FloatColumn) -> FloatColumn:
    """Return the share of a GPU that each device of a row is, float64[R]; NaN: unknown, or its groups differ.

    share: float64[G].
    """
    of_rows = np.full(len(pools.groups), np.nan)
    for row, groups in enumerate(pools.groups):
        found = set(share[list(groups)].tolist())
        if len(found) == 1:
            of_rows[row] = found.pop()
    return of_rows


def name_row(pools: PoolUse, row: int, named: tuple[Pool, ...], groups: Sequence[PoolKey]) -> PoolKey:
    """Return resource, product and nodes of a row; names of several are joined."""
    parts = {groups[group] for group in pools.groups[row]} or {named[pool][:3] for pool in pools.pools[row]}
    if len(parts) == 1:
        resource, product, nodes = parts.pop()
        return resource, product, nodes
    resource, product, nodes = (" or ".join(sorted({part[place] for part in parts} - {""})) for place in range(3))
    return resource, product, nodes


def _paid(use: GpuUse) -> FloatColumn:
    """Return the replicas that cost something; float64[S, W]. One that is not there costs nothing."""
    paid = use.states.copy()
    paid[GpuState.ORDERED] = 0.0
    return paid
