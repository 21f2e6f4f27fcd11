"""GPUs of workloads and pools hour by hour, and what of it asks for more: time queued for GPUs, full pools, ceilings.

The history is the record's own, of up to a year, or what Prometheus has of the daemon's metrics.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.range.capacity_queries import ExportedUse
from autoscaler.adapters.record.quarter_hours import UseDay, UseName, read_history
from autoscaler.adapters.record.quarter_values import FIELDS, QUARTER_S
from autoscaler.config.findings import name_some
from autoscaler.config.values import show_duration
from autoscaler.core.gpu_totals import PoolKey
from autoscaler.core.table.columns import FloatColumn, or_zero
from autoscaler.core.table.fair_share import leave_out_crowds
from autoscaler.lab.report.format import amount, count, share
from autoscaler.ports import Unavailable

HOUR_S = 3600.0
DAY_H = 24
PER_HOUR = 4
SHORTEST_S = 60.0
MOST_VALUES = 4_000_000
"""Hours times workloads and pools that are read of a record: a year of 450."""

ROOM = 0.8
"""Part of them that is left after crowded namespaces lost workloads: so that happens a few times in a year."""

USUAL = 0.95
"""Share of the hours with a shortage that an answer to it must cover."""


class BuyLimits(NamedTuple):
    """From where on a trigger is reached."""

    queued_s: float = 1800.0  # within a day, of a workload that lacks GPUs, or is held at its ceiling
    pool_use: float = 0.8  # 0..1, of the GPUs of a pool, in the mean
    days: float = 30.0  # of that mean; fewer where history reaches less far


class BuyTrigger(NamedTuple):
    """One thing that asks for more GPUs, or does not."""

    kind: str  # "queued", "pool_full" or "ceiling"
    subject: str  # the workload or the pool
    pool: PoolKey
    reached: bool
    value: float  # seconds within the worst day, or the share of a pool that is in use
    limit: float
    days: float  # of history that it was judged by
    sentence: str


@dataclass(frozen=True)
class GpuHistory:
    """Means of each hour, float64[H, N] of workloads and float64[H, P] of pools; NaN: not known."""

    source: str  # where it is from, as a user knows it
    start_s: float
    workloads: tuple[UseName, ...]
    gpus: FloatColumn  # that pods held
    idle: FloatColumn  # those of them that did no work and could
    needed: FloatColumn  # by the load
    lacking: FloatColumn  # wanted, and not there
    beyond: FloatColumn  # wanted beyond the ceiling
    lacking_s: FloatColumn  # seconds of the hour
    beyond_s: FloatColumn  # seconds of the hour
    pools: tuple[PoolKey, ...]
    pool_gpus: FloatColumn
    pool_busy: FloatColumn  # neither free nor idle
    quotas: tuple[tuple[str, str], ...] = ()  # name and resource
    quota_spare: FloatColumn = field(default_factory=lambda: np.empty((0, 0)))  # float64[H, Q], neither used nor lent
    notes: tuple[str, ...] = ()

    @property
    def known_h(self) -> int:
        """Hours of which anything is known."""
        return int((~np.isnan(self.pool_gpus)).any(axis=1).sum() if len(self.pools) else self._workload_hours())

    def _workload_hours(self) -> int:
        return int((~np.isnan(self.gpus)).any(axis=1).sum())

    def of_pool(self, pool: PoolKey) -> list[int]:
        """Return the workloads of a pool."""
        return [row for row, name in enumerate(self.workloads) if name.pool == pool]


def capacity_of_record(folder: Path, since_s: float, most_values: int = MOST_VALUES) -> GpuHistory:
    """Read the history beside a record. Raises Unavailable."""
    parts: list[HourPart] = []
    seen, crowded = dict[UseName, None](), dict[str, None]()
    notes: list[str] = []
    for day in read_history(folder, since_s, notes):  # the newest first
        part = _by_hour(day, since_s)
        if crowded:  # what a crowd lost stays away, or each older day would have too many again
            part = part.only({name for name in part.names if name in seen or name.namespace not in crowded})
        seen |= dict.fromkeys(part.names)
        hours = parts[0].first - part.first + DAY_H if parts else 0
        if hours * len(seen) > most_values:
            kept, crowds = leave_out_crowds([each.namespace for each in seen], int(ROOM * most_values) // hours)
            if not kept:
                notes.append(f"the history of {count(len(seen), 'workload')} is read as far as memory allows")
                break
            crowded |= dict.fromkeys(map(str, crowds))
            names = [*seen]
            seen = dict.fromkeys(names[place] for place in kept)
            parts, part = [each.only(seen) for each in parts], part.only(seen)
        if part.sums.any():
            parts.append(part)
    if crowded:
        notes.append(f"of {name_some([*crowded])} there are too many workloads for memory: some are left out")
    if not parts:
        raise Unavailable(f"--record {folder}: its history has no quarter hour of this span")
    first = min(part.first for part in parts)
    hours = max(part.first + part.sums.shape[1] for part in parts) - first
    names = sorted({name for part in parts for name in part.names})
    rows = {name: row for row, name in enumerate(names)}
    total = np.zeros((len(FIELDS) + 1, hours, len(names)))
    for hour, own, sums in parts:
        span = slice(hour - first, hour - first + sums.shape[1])
        total[:, span, [rows[name] for name in own]] += sums
    recorded = np.flatnonzero(total[-1].any(axis=1))
    first, total = first + int(recorded[0]), total[:, recorded[0] : recorded[-1] + 1]
    known = np.where(total[-1] > 0, total[-1], np.nan)
    mean_of = np.where([field.endswith("_s") for field in FIELDS], 1.0, np.nan)[:, None, None]
    means = dict(zip(FIELDS, total[:-1] / np.where(np.isnan(mean_of), known, mean_of + 0 * known), strict=True))
    is_pool = np.array([not name.name for name in names])
    return GpuHistory(
        source=f"the record {folder}",
        start_s=first * HOUR_S,
        workloads=tuple(name for name in names if name.name),
        **{field: means[field][:, ~is_pool] for field in FIELDS if field != "busy"},
        pools=tuple(name.pool for name in names if not name.name),
        pool_gpus=means["gpus"][:, is_pool],
        pool_busy=means["busy"][:, is_pool],
        notes=tuple(notes),
    )


class HourPart(NamedTuple):
    """A part of a history."""

    first: int  # hour
    names: tuple[UseName, ...]  # [N]
    sums: FloatColumn  # float64[F + 1, H, N], the number of known quarters last

    def only(self, names: Container[UseName]) -> HourPart:
        rows = [row for row, name in enumerate(self.names) if name in names]
        return HourPart(self.first, tuple(self.names[row] for row in rows), self.sums[:, :, rows])


def _by_hour(day: UseDay, since_s: float) -> HourPart:
    first = int(day.from_s // HOUR_S)
    before = int(day.from_s - first * HOUR_S) // QUARTER_S
    quarters = day.values.shape[2]
    hours = -(-(before + quarters) // PER_HOUR)
    padded = np.full((len(FIELDS) + 1, len(day.names), hours * PER_HOUR), np.nan)
    padded[:-1, :, before : before + quarters] = day.values
    padded[-1] = np.where(np.isnan(padded[0]), np.nan, 1.0)
    late = (np.arange(hours * PER_HOUR) - before) * QUARTER_S + day.from_s >= since_s
    sums = np.nansum(np.where(late, padded, np.nan).reshape(*padded.shape[:2], hours, PER_HOUR), axis=3)
    return HourPart(first, day.names, sums.transpose(0, 2, 1))


def capacity_of_exported(exported: ExportedUse, source: str) -> GpuHistory | None:
    """Return what the daemon's metrics tell; None: there are none."""
    columns = exported.columns
    workloads = sorted({key for name in ("needed", "lacking", "beyond") for key in columns[name]})
    pools = sorted({key[3:] for key in columns["pool"]})
    quotas = sorted(columns["quota_spare"])
    if not workloads and not pools:
        return None

    def table(column: str, keys: Iterable[tuple[str, ...]], unit_s: float, otherwise: FloatColumn) -> FloatColumn:
        found = columns[column]
        rows = [found[key] / unit_s if key in found else np.full(exported.hours, np.nan) for key in keys]
        values = np.array(rows, np.float64).reshape(-1, exported.hours).T
        return np.where(np.isnan(values), otherwise, values)

    unknown = np.array(np.nan)
    needed = table("needed", workloads, HOUR_S, unknown)
    held = [(*key[:3], "", "", "") for key in workloads]
    gpus = table("gpus", held, HOUR_S, unknown)
    zero = np.where(
        np.isnan(gpus) & np.isnan(needed), np.nan, 0.0
    )  # a series that is absent is 0 while others are there
    of_pools = [("", "", "", *key) for key in pools]
    size = table("pool", of_pools, HOUR_S, unknown)
    return GpuHistory(
        source=source,
        start_s=exported.start_s,
        workloads=tuple(UseName(key[0], key[1], key[2], (key[3], key[4], key[5])) for key in workloads),
        gpus=gpus,
        idle=table("idle", held, HOUR_S, zero),
        needed=np.where(np.isnan(needed), zero, needed),
        **{name: table(name, workloads, HOUR_S, zero) for name in ("lacking", "beyond")},
        **{name: table(name, workloads, 1.0, zero) for name in ("lacking_s", "beyond_s")},
        pools=tuple((key[0], key[1], key[2]) for key in pools),
        pool_gpus=size,
        pool_busy=table("pool_busy", of_pools, HOUR_S, np.where(np.isnan(size), np.nan, 0.0)),
        quotas=tuple((key[3], key[4]) for key in quotas),
        quota_spare=table("quota_spare", quotas, 1.0, unknown),
        notes=exported.problems,
    )


def find_triggers(capacity: GpuHistory, limits: BuyLimits) -> tuple[BuyTrigger, ...]:
    """Return all triggers that are reached, those of pools that are not, and none of less than a day."""
    if capacity.known_h < DAY_H:
        return ()
    triggers = [_of_pool(capacity, row, limits) for row in range(len(capacity.pools))]
    for kind, seconds in (("queued", capacity.lacking_s), ("ceiling", capacity.beyond_s)):
        worst, days = _worst_day(seconds, limits.queued_s)
        triggers += [
            _of_workload(capacity, kind, row, (float(worst[row]), int(days[row])), limits)
            for row in np.flatnonzero(worst > limits.queued_s).tolist()
        ]
    return tuple(sorted((each for each in triggers if each), key=lambda each: (not each.reached, each.kind)))


def _worst_day(seconds: FloatColumn, limit_s: float) -> tuple[FloatColumn, FloatColumn]:
    """Return the most seconds within any 24 hours, and the days of the history that have more than the limit."""
    total = np.concatenate([np.zeros((1, seconds.shape[1])), np.cumsum(or_zero(seconds), axis=0)])
    rolling = total[DAY_H:] - total[:-DAY_H] if len(total) > DAY_H else total[-1:]
    days = np.add.reduceat(or_zero(seconds), np.arange(0, len(seconds), DAY_H), axis=0)
    return rolling.max(axis=0, initial=0.0), (days > limit_s).sum(axis=0).astype(np.float64)


def _of_workload(capacity: GpuHistory, kind: str, row: int, worst: tuple[float, int], limits: BuyLimits) -> BuyTrigger:
    name = capacity.workloads[row]
    subject = f"{name.namespace}/{name.name}"
    days = _known_days(capacity.gpus[:, row])
    verb = "lacked GPUs" if kind == "queued" else "was held at its ceiling"
    longest = show_duration(round(worst[0]))
    said = f"{subject} {verb} for {longest} within a day, and for more than {show_duration(limits.queued_s)} on "
    said += f"{count(worst[1], 'day')} of {days:.3g}"
    if kind == "ceiling":
        beyond = _while_short(capacity.beyond[:, [row]], capacity.beyond_s[:, [row]])
        said += f"; its load asked for at least {amount(beyond)} GPUs more"
        free = _free_while(capacity, row)
        if free >= 1:
            said += f"; {amount(free)} GPUs of its pool were free then, so its ceiling and not the pool holds it"
    return BuyTrigger(kind, subject, name.pool, True, worst[0], limits.queued_s, days, said + ".")


def _free_while(capacity: GpuHistory, row: int) -> float:
    """Return the GPUs of the pool of a workload that were free in most hours in which its ceiling held it."""
    pool = capacity.workloads[row].pool
    if pool not in capacity.pools:
        return np.nan
    place = capacity.pools.index(pool)
    held = sum((or_zero(capacity.idle[:, each]) for each in capacity.of_pool(pool)), np.zeros(len(capacity.gpus)))
    free = (capacity.pool_gpus[:, place] - capacity.pool_busy[:, place] - held)[capacity.beyond_s[:, row] > 0]
    free = free[~np.isnan(free)]
    return float(np.quantile(free, 1 - USUAL)) if len(free) else np.nan


def _of_pool(capacity: GpuHistory, row: int, limits: BuyLimits) -> BuyTrigger | None:
    pool = capacity.pools[row]
    hours = max(round(limits.days * DAY_H), DAY_H)
    size, busy = capacity.pool_gpus[-hours:, row], capacity.pool_busy[-hours:, row]
    days = _known_days(size)
    if days * DAY_H < DAY_H or np.nansum(size) <= 0:
        return None
    use = float(np.nansum(busy) / np.nansum(size))
    reach = "" if days >= 0.99 * limits.days else f" (history reaches no further than {days:.3g} days)"
    said = f"{share(use)} of the {amount(float(np.nanmean(size)))} GPUs of {pool_name(pool)} were in use over "
    said += f"{days:.3g} days{reach}; the limit is {share(limits.pool_use)}."
    return BuyTrigger("pool_full", pool_name(pool), pool, use > limits.pool_use, use, limits.pool_use, days, said)


def _known_days(values: FloatColumn) -> float:
    return float((~np.isnan(values)).sum()) / DAY_H


def pool_name(pool: PoolKey) -> str:
    """Return the name of a pool for people."""
    resource, product, nodes = pool
    name = product or resource or "a pool that is not known"
    if product and resource not in ("", "nvidia.com/gpu"):
        name += f" ({resource})"
    return f"{name} on {nodes}" if nodes else name


def find_shortage(capacity: GpuHistory, pool: PoolKey, triggers: Sequence[BuyTrigger]) -> int:
    """Return the GPUs that a pool lacks by the triggers that are reached; 0: none."""
    reached = {each.kind for each in triggers if each.reached and each.pool == pool}
    rows, place = capacity.of_pool(pool), capacity.pools.index(pool) if pool in capacity.pools else -1
    needs = [0.0]
    if "queued" in reached:
        needs.append(_while_short(capacity.lacking[:, rows], capacity.lacking_s[:, rows]))
    if "pool_full" in reached:
        size, busy = np.nanmean(capacity.pool_gpus[:, place]), np.nanmean(capacity.pool_busy[:, place])
        limit = next(each.limit for each in triggers if each.kind == "pool_full" and each.pool == pool)
        needs.append(float(busy / limit - size))
    if "ceiling" in reached:
        beyond = _while_short(capacity.beyond[:, rows], capacity.beyond_s[:, rows])
        free = np.nan_to_num([_free_while(capacity, row) for row in rows]).max(initial=0.0)
        needs.append(beyond - float(free))
    return int(np.ceil(max(needs) - 0.05))


def _while_short(gpus: FloatColumn, seconds: FloatColumn) -> float:
    """Return the GPUs that workloads lacked together, in most of the hours in which they did. Both are [H, N]."""
    each = or_zero(gpus) * HOUR_S / np.maximum(or_zero(seconds), SHORTEST_S)
    at_once = each.sum(axis=1)[(or_zero(seconds) > 0).any(axis=1)]
    return float(np.quantile(at_once, USUAL, method="higher")) if len(at_once) else 0.0
