"""What GPUs were used for since the process began: series, and the answer of the API."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autoscaler.adapters.web.exported_metrics import MAX_POOLS
from autoscaler.adapters.web.metric_family import POOL_LABELS
from autoscaler.adapters.web.tick_values import bounded
from autoscaler.config.prices import shares_of
from autoscaler.core.gpu_totals import GpuTotals, PoolKey, UseTotals, name_row
from autoscaler.core.gpu_use import IDLE, GpuState, IdleCause
from autoscaler.core.model.money import Money, Price
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import TickRecord

STATES, CAUSES = ([each.published for each in kind] for kind in (GpuState, IdleCause))
BY: dict[str, Callable[[TickRecord, int, PoolKey], str]] = {
    "namespace": lambda tick, row, pool: tick.input.fleet.workloads[row].ref.namespace,
    "team": lambda tick, row, pool: tick.input.fleet.workloads[row].team,
    "policy": lambda tick, row, pool: tick.policies[row],
    "service": lambda tick, row, pool: tick.input.fleet.workloads[row].service,
    "device": lambda tick, row, pool: pool[1] or pool[0],
    "pool": lambda tick, row, pool: f"{pool[1] or pool[0]} ({pool[2]})" if pool[2] else pool[1] or pool[0],
    "workload": lambda tick, row, pool: tick.input.fleet.workloads[row].ref.label,
}
"""By what the answer may add up workloads: the name of the part that a row belongs to with what it has in a pool."""

NEEDS = {
    "needed_gpu_seconds_total": "needed_gpu_s",
    "lacking_gpu_seconds_total": "lacking_gpu_s",
    "lacking_gpus_duration_seconds_total": "lacking_s",
    "beyond_ceiling_gpu_seconds_total": "beyond_gpu_s",
    "ceiling_duration_seconds_total": "beyond_s",
}
"""Columns of the totals by the family that has them."""

HOURS = {"needed_gpu_hours": "needed_gpu_s", "lacking_gpu_hours": "lacking_gpu_s", "beyond_gpu_hours": "beyond_gpu_s"}
UNSIZED, UNPRICED = "its GPUs, or the share of one that a device is, are not known", "no price is known"
MOST_UNKNOWN = 100


class GpuUseRecorder:
    """Recorder of what GPUs are used for."""

    def __init__(self) -> None:
        self.totals = GpuTotals[tuple[str, ...]]()
        self.from_s = math.nan  # Unix time of the first tick
        self._tick: TickRecord | None = None

    def record(self, tick: TickRecord) -> None:
        if self._tick is None:
            self.from_s = tick.wall_s
        before, self._tick = self._tick or tick, tick
        shares = shares_of(tick.input.fleet.groups.groups)
        by = (lambda *line: _parts_of(before, *line)), tick.device_prices
        self.totals.add(tick.use, shares, MAX_POOLS, *by)

    def of_workloads(
        self, rows: Sequence[int], labels: Sequence[dict[str, str]]
    ) -> dict[str, Iterator[tuple[dict[str, str], float]]]:
        """Return the samples of each family of workloads; a state or a cause that never occurred is left out."""
        sums, in_pools = self.totals.of_workloads, self.totals.of_present_pools
        pools = [_pool_labels(self.totals.pool_of[row]) for row in rows]
        with_pool = [own | pool for own, pool in zip(labels, pools, strict=True)]
        return {
            **{name: _values(getattr(in_pools, column), rows, with_pool) for name, column in NEEDS.items()},
            "gpu_seconds_total": _samples("state", STATES, sums.gpu_s, rows, labels),
            "idle_gpu_seconds_total": _samples("cause", CAUSES, sums.idle_gpu_s, rows, labels),
            "gpu_cost_dollars_total": _samples("state", STATES, sums.usd, rows, labels),
        }

    def of_pools(self) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the samples of pools."""
        for key, sums in self.totals.of_pools.items():
            labels = _pool_labels(key)
            for state, value in zip(STATES, sums.tolist(), strict=True):
                if value > 0:
                    yield {**labels, "state": state}, value

    def answer(self, by: str, most: int) -> dict[str, Any]:
        """Return the answer of the API. by: a key of `BY`."""
        tick = self._tick
        if tick is None:
            return {"by": by, "from_s": None, "seconds": 0.0, "total": 0, "uses": [], "pools": []}
        lines, sums = self.totals.by_name(lambda *line: _parts_of(tick, *line))
        parts = [dict(zip(BY, line, strict=True)) for line in lines]
        named = [each["workload"] for each in parts]
        rows: dict[str, list[int]] = {}
        for row, each in enumerate(parts):
            rows.setdefault(each[by], []).append(row)
        variants, fleet = tick.input.variants, tick.input.fleet
        reasons = variants.reasons() if variants is not None else ("",) * len(fleet.workloads)
        why_of = {bounded(each.ref.label): why for each, why in zip(fleet.workloads, reasons, strict=True)}
        why = [why_of.get(name, "") for name in named]
        uses = [_use(name, own, sums, named, why) for name, own in rows.items()]
        uses.sort(key=lambda use: (-use["idle_gpu_hours"], use["name"]))
        return {
            "by": by,
            "from_s": self.from_s,
            "seconds": self.totals.seconds,
            "total": len(uses),
            "uses": uses[:most],
            "pools": _pools(tick, self.totals)[:most],
        }


def _parts_of(tick: TickRecord, row: int, pool: PoolKey) -> tuple[str, ...]:
    """Return the part of each key of `BY` that a row of a tick belongs to with what it has in a pool."""
    return tuple(bounded(part_of(tick, row, pool)) for part_of in BY.values())


def _samples(
    label: str, names: Sequence[str], sums: FloatColumn, rows: Sequence[int], labels: Sequence[dict[str, str]]
) -> Iterator[tuple[dict[str, str], float]]:
    for name, column in zip(names, sums, strict=True):
        for own, value in _values(column, rows, labels):
            yield {**own, label: name}, value


def _values(
    column: FloatColumn, rows: Sequence[int], labels: Sequence[dict[str, str]]
) -> Iterator[tuple[dict[str, str], float]]:
    for own, value in zip(labels, column[rows].tolist(), strict=True):
        if value > 0:
            yield own, value


def _pool_labels(key: PoolKey) -> dict[str, str]:
    return dict(zip(POOL_LABELS, map(bounded, key), strict=True))


def _use(name: str, rows: list[int], sums: UseTotals, named: Sequence[str], why: Sequence[str]) -> dict[str, Any]:
    """Return what the workloads of some rows used. why: their prices are unknown, or may be too high."""
    gpu_h, causes = sums.gpu_s[:, rows].sum(axis=1) / 3600, sums.idle_gpu_s[:, rows].sum(axis=1) / 3600
    unsized = [named[row] for row in rows if sums.unsized_s[row] > 0]
    return {
        "name": name,
        "workloads": len({named[row] for row in rows}),
        "gpu_hours": _round(dict(zip(STATES[: GpuState.OTHER], gpu_h.tolist(), strict=False))),
        "idle_gpu_hours": round(float(gpu_h[IDLE].sum()), 6),
        **_round({name: float(getattr(sums, column)[rows].sum()) / 3600 for name, column in HOURS.items()}),
        "idle_by_cause": _round(dict(zip(CAUSES, causes.tolist(), strict=True))),
        "cost": _money(rows, sums, named, why, sums.usd.sum(axis=0)),
        "idle_cost": _money(rows, sums, named, why, sums.usd[IDLE].sum(axis=0)),
        "left_out": [{"name": each, "why": UNSIZED} for each in unsized[:MOST_UNKNOWN]],
    }


def _money(
    rows: list[int], sums: UseTotals, named: Sequence[str], why: Sequence[str], usd: FloatColumn
) -> dict[str, object]:
    """Return the sum of workloads that had replicas. One that was ever without a price is named."""
    held = (sums.gpu_s.sum(axis=0) > 0) | (sums.unsized_s > 0) | (sums.unpriced_s > 0)
    parts = []
    for row in rows:
        if held[row]:
            is_priced = sums.unpriced_s[row] == 0
            price = Price(float(usd[row]), why[row]) if is_priced else Price(math.nan, why[row] or UNPRICED)
            parts.append((named[row], price))
    return Money.sum(parts).to_json()


def _pools(tick: TickRecord, totals: GpuTotals[tuple[str, ...]]) -> list[dict[str, Any]]:
    """Return the present devices of each pool by state, and the GPU-hours so far."""
    fleet, pools = tick.input.fleet, totals.pools
    if pools is None:
        return []
    groups = [each[:3] for each in fleet.groups.groups]
    keys = [name_row(pools, row, fleet.pools, groups) for row in range(len(pools.pools))]
    found = []
    for key, devices, states in zip(keys, pools.devices.tolist(), pools.states.T.tolist(), strict=True):
        hours = totals.of_pools.get(key)
        found.append(
            {
                **_pool_labels(key),
                "devices": devices,
                "states": _of_pool(states),
                "gpu_hours": None if hours is None else _round(_of_pool((hours / 3600).tolist())),
            }
        )
    return found


def _of_pool(states: Sequence[float]) -> dict[str, float]:
    return {state: value for state, value in zip(STATES, states, strict=True) if state != GpuState.ORDERED.published}


def _round(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}
