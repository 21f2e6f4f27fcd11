"""GPU-seconds and money of each workload and pool by state and cause, since a process began to count."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np

from autoscaler.core.gpu_devices import DeviceUse, PoolUse, find_device_use, find_pool_use
from autoscaler.core.gpu_use import GpuNeed, GpuState, GpuUse, IdleCause, find_need, find_use
from autoscaler.core.model.fleet import Pool, Workload
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.table.columns import Columns, FloatColumn, IntColumn, or_zero
from autoscaler.core.tally import LONGEST_S

PoolKey = tuple[str, str, str]
NO_POOL: PoolKey = ("", "", "")
MOST_REMOVED = 2_000
"""Names of removed workloads whose sums are kept; the oldest of the namespace with the most go first."""

MOST_LINES = 20_000
"""Lines of sums, or two for each workload if these are more. A further pool of a workload counts as its first one."""

Name = TypeVar("Name", bound=Hashable)


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

    def plus(self, other: Self) -> Self:
        added = other.columns()
        return self.with_columns({path: column + added[path] for path, column in self.columns().items()})

    def times(self, factor: float) -> Self:
        return self.with_columns({path: column * factor for path, column in self.columns().items()})

    def summed(self, places: IntColumn, rows: int) -> Self:
        """Return a table of `rows` rows with the sums of the rows that have the same place. places: int64[W]."""
        if np.array_equal(places, np.arange(rows)):
            return self
        order = np.argsort(places, kind="stable")
        found, begins = np.unique(places[order], return_index=True)
        sums = self.blank(rows).columns()
        for path, column in self.columns().items() if len(found) else ():
            sums[path] = np.zeros_like(sums[path])
            sums[path][..., found] = np.add.reduceat(column[..., order], begins, axis=-1)
        return self.with_columns(sums)


NameOf = Callable[[int, PoolKey], Name]
"""Names the sums that a row of a tick has in a pool."""


class TickUse(NamedTuple):
    """The use of GPUs in a tick, which all totals add."""

    inp: TickInput
    use: GpuUse
    need: GpuNeed
    devices: DeviceUse
    pools: PoolUse
    keys: list[PoolKey]  # [R], of the pools
    key_of: list[PoolKey]  # [K], of the lines of the devices

    @classmethod
    def of(cls, inp: TickInput, decision: Decision) -> Self:
        fleet, use = inp.fleet, find_use(inp, decision)
        devices = find_device_use(fleet, use)
        pools = find_pool_use(fleet, devices)
        named = [each[:3] for each in fleet.groups.groups]
        keys = [name_row(pools, row, fleet.pools, named) for row in range(len(pools.pools))]
        key_of = [(*keys, NO_POOL)[row] for row in devices.row.tolist()]
        return cls(inp, use, find_need(inp, decision), devices, pools, keys, key_of)


class GpuTotals(Generic[Name]):
    """The sums since the first tick that was added. Each tick counts for the time since the one before.

    A workload has one line of sums, and a further one for each other pool in which its pods are, or were.
    """

    def __init__(self) -> None:
        self._removed: dict[str, dict[Name, UseTotals]] = {}  # of workloads that are gone, a row each, by namespace
        self.seconds = 0.0
        self.of_pools: dict[PoolKey, FloatColumn] = {}  # GPU-seconds, float64[S], of pools whose sizes are known
        self.pools: PoolUse | None = None  # of the last tick
        self.pool_of: list[PoolKey] = []  # [W], of the last tick, under the names of `of_pools`; `NO_POOL`: not known
        self._id: IntColumn = np.empty(0, np.int64)
        self._workloads: tuple[Workload, ...] = ()  # of the last tick
        self._lines: list[tuple[int, PoolKey]] = []  # workload id and pool of each line
        self._sums = UseTotals.blank(0)  # on these lines
        self._at: IntColumn = np.empty(0, np.int64)  # line of each line of the devices of the last tick
        self._laid_out: tuple[list[int], list[PoolKey]] = ([], [])  # those lines of devices
        self._price_of: dict[PoolKey, float] = {}  # of a device per hour, as it was known last
        self._last_s = np.nan
        self.gpus: FloatColumn = np.empty(0)  # [W], whole GPUs of a replica of the last tick; NaN: unknown
        self._since, self._owner = UseTotals.blank(0), np.empty(0, np.int64)  # of the last tick, and their workloads

    @property
    def since(self) -> UseTotals:
        """The use that the last tick added to each workload, over all pools."""
        return self._since.summed(self._owner, len(self._id))

    @property
    def of_workloads(self) -> UseTotals:
        """The sums of each workload of the last tick, over all pools."""
        return self._sums.summed(np.searchsorted(self._id, [own for own, _ in self._lines]), len(self._id))

    @property
    def of_present_pools(self) -> UseTotals:
        """The sums of each workload of the last tick in the pool that it has there."""
        return self._sums.take(self._at[: len(self._id)])

    def add(
        self,
        used: TickUse,
        share: FloatColumn,
        most_pools: int,
        name_of: NameOf[Name],
        prices: FloatColumn | None = None,
    ) -> None:
        """Add the time since the tick before.

        share: float64[G], part of a whole GPU that one device of each node group is; NaN: unknown.
        name_of: names rows of the tick before; under these names the sums stay if their workload is gone.
        prices: float64[G], of a device of each node group per hour, where no workload of its pool has told one.
        """
        inp, use, need, devices, self.pools, keys, key_of = used
        fleet = inp.fleet
        elapsed_s = inp.now_s - self._last_s
        seconds = elapsed_s if 0 < elapsed_s <= LONGEST_S else 0.0
        self._drop_gone(fleet.workload_id, name_of)
        self._id, self._workloads, self._last_s = fleet.workload_id, fleet.workloads, inp.now_s
        self.seconds += seconds
        self.pool_of = key_of[: len(self._id)]
        of_row = share_of_rows(self.pools, share)
        of_groups = np.full(len(self.pools.groups), np.nan) if prices is None else share_of_rows(self.pools, prices)
        price_of_line = self._prices(inp, devices, key_of, of_groups)
        share_of_line = np.append(of_row, np.nan)[devices.row]
        self.gpus = fleet.gpus_per_replica * np.where(fleet.gpus_per_replica == 0, 0.0, share_of_line[: len(self._id)])
        found = _use_of_second(use, need, devices, self.gpus, share_of_line, price_of_line)
        self._since, self._owner = found.times(seconds), devices.workload
        self._lay_out(fleet.workload_id[devices.workload].tolist(), key_of)
        self._sums = self._sums.plus(self._since.summed(self._at, len(self._lines)))
        for row, (key, states) in enumerate(zip(keys, self.pools.states.T, strict=True)):
            is_known = not np.isnan(of_row[row] * self.pools.devices[row])  # a pool of unknown size is not full
            if is_known and (key in self.of_pools or len(self.of_pools) < most_pools):
                sums = self.of_pools.setdefault(key, np.zeros(len(GpuState)))
                self.of_pools[key] = sums + seconds * of_row[row] * or_zero(states)

    def _drop_gone(self, present: IntColumn, name_of: NameOf[Name]) -> None:
        """Keep the sums of workloads that are gone under their names."""
        gone = {int(self._id[row]): row for row in np.flatnonzero(~np.isin(self._id, present)).tolist()}
        if gone:
            for line, (own, key) in enumerate(self._lines):
                if own in gone:
                    row = gone[own]
                    self._keep(self._workloads[row].ref.namespace, name_of(row, key), self._sums.take(np.array([line])))
            left = [line for line, (own, _) in enumerate(self._lines) if own not in gone]
            self._lines, self._sums = [self._lines[line] for line in left], self._sums.take(np.array(left, np.int64))
            self._laid_out = ([], [])

    def _lay_out(self, owners: list[int], keys: list[PoolKey]) -> None:
        """Give each workload a line for each of its pools, and note which one each line of the devices has."""
        if self._lines and self._laid_out == (owners, keys):
            return
        line_of = {line: place for place, line in enumerate(self._lines)}
        first_of = {own: place for (own, _), place in reversed(line_of.items())}
        most, at = max(MOST_LINES, 2 * len(self._id)), []
        for own, key in zip(owners, keys, strict=True):
            if (own, key) not in line_of and (len(line_of) < most or own not in first_of):
                line_of[own, key] = len(line_of)
                first_of.setdefault(own, line_of[own, key])
            at.append(line_of.get((own, key), first_of.get(own, -1)))
        self._sums = UseTotals.stack([self._sums, UseTotals.blank(len(line_of) - len(self._lines))])
        self._lines, self._at, self._laid_out = [*line_of], np.array(at, np.int64), (owners, keys)

    def _prices(
        self, inp: TickInput, devices: DeviceUse, keys: Sequence[PoolKey], of_groups: FloatColumn
    ) -> FloatColumn:
        """Return the price of a device of each line of the devices, per hour; NaN: unknown.

        Devices of another pool than that of their workload have the price that one of that pool had last, or else that
        of their nodes. of_groups: float64[R].
        """
        gpus = inp.fleet.gpus_per_replica
        cost = inp.variants.cost if inp.variants is not None else np.full(len(gpus), np.nan)
        own = np.divide(cost, gpus, out=np.where(gpus == 0, cost, np.nan), where=gpus > 0)
        priced = np.flatnonzero(~np.isnan(own))
        of_rows = np.unique(devices.row[priced], return_index=True)[1]
        known = {keys[row]: float(own[row]) for row in priced[of_rows].tolist()}
        self._price_of = known if len(keys) == len(own) else self._price_of | known
        others = zip(keys[len(own) :], np.append(of_groups, np.nan)[devices.row[len(own) :]].tolist(), strict=True)
        return np.append(own, [self._price_of.get(key, price) for key, price in others])

    def _keep(self, namespace: str, name: Name, sums: UseTotals) -> None:
        if not any(column.any() for column in sums.columns().values()):
            return
        own = self._removed.setdefault(namespace, {})
        if (before := own.pop(name, None)) is not None:
            sums = before.plus(sums)
        own[name] = sums
        if sum(map(len, self._removed.values())) > MOST_REMOVED:
            crowded = max(self._removed.values(), key=len)
            del crowded[next(iter(crowded))]

    def by_name(self, name_of: NameOf[Name]) -> tuple[list[Name], UseTotals]:
        """Return the names and sums of all lines, of present workloads and of those gone; each name once.

        name_of: names rows of the last tick. A workload has the sums of a former one of its name, too.
        """
        row_of = {own: row for row, own in enumerate(self._id.tolist())}
        names = [name_of(row_of[own], key) for own, key in self._lines]
        names += [name for removed in self._removed.values() for name in removed]
        place_of = {name: place for place, name in enumerate(dict.fromkeys(names))}
        sums = UseTotals.stack([self._sums, *(sums for removed in self._removed.values() for sums in removed.values())])
        return [*place_of], sums.summed(np.array([place_of[name] for name in names], np.int64), len(place_of))

    def restart(self) -> None:
        """Begin to count from the last tick on."""
        self.seconds, self.of_pools, self._removed = 0.0, {}, {}
        self._lines, self._sums, self._at = [], UseTotals.blank(0), np.empty(0, np.int64)


def share_of_rows(pools: PoolUse, share: FloatColumn) -> FloatColumn:
    """Return the share of a GPU that each device of a row is, float64[R]; NaN: unknown, or its groups differ.

    share: float64[G], or the price of a device.
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


def _use_of_second(
    use: GpuUse, need: GpuNeed, devices: DeviceUse, gpus: FloatColumn, share: FloatColumn, price: FloatColumn
) -> UseTotals:
    """Return what a second of a tick adds to the lines of `devices`.

    gpus: float64[W], whole GPUs of a replica. share: float64[K], part of a whole GPU that a device is.
    price: float64[K], of a device per hour. NaN: unknown.
    """
    rows, held = len(gpus), devices.held
    none, is_first = np.zeros(len(held)), np.arange(len(held)) < rows

    def first(column: FloatColumn) -> FloatColumn:
        return np.append(or_zero(column), none[rows:])

    replicas = use.states[: GpuState.ORDERED].sum(axis=0) - devices.unknown
    of_workload = np.bincount(devices.workload, held, rows)[devices.workload]
    part = np.divide(held, of_workload, out=np.where(is_first, 1.0, 0.0), where=of_workload > 0)
    known = np.maximum(replicas, 0.0)[devices.workload] * part
    without_price = known + first(devices.unknown)
    paid = devices.states.copy()
    paid[GpuState.ORDERED] = 0.0  # what is not there costs nothing
    return UseTotals(
        devices.states * or_zero(share),
        devices.causes * or_zero(share),
        paid * (or_zero(price) / 3600),
        np.where(np.isnan(share) & (held > 0), known, 0.0) + first(devices.unknown),
        np.where(np.isnan(price), without_price, 0.0),
        first(need.needed * gpus),
        first(need.lacking * gpus),
        first(np.where(need.lacking > 0, 1.0, 0.0)),
        first(need.beyond * gpus),
        first(np.where(need.beyond > 0, 1.0, 0.0)),
    )
