"""When to buy, and what: triggers, and for each pool what to do before GPUs are bought, and then how many of which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autoscaler.adapters.prometheus.owners import name_in_pods
from autoscaler.catalog.devices import find_device
from autoscaler.core.gpu_totals import NO_POOL, PoolKey
from autoscaler.core.table.columns import BoolColumn
from autoscaler.demand.advice import BUY, MONTH_H, Advice, Replays, Shortage, advise, replay
from autoscaler.demand.capacity import (
    DAY_H,
    HOUR_S,
    BuyLimits,
    BuyTrigger,
    GpuHistory,
    find_shortage,
    find_triggers,
    pool_name,
)
from autoscaler.demand.device_choice import DeviceChoice, choose_devices
from autoscaler.demand.model import DemandModel
from autoscaler.lab.report.format import amount, count

GPU = "nvidia.com/gpu"
MOST_POOLS = 50
"""Pools that are advised on; those that lack the most come first."""


@dataclass(frozen=True)
class PoolAdvice:
    """What a pool lacks, and all advice in order."""

    pool: PoolKey
    shortage: float  # GPUs; 0: none; NaN: not known
    advice: tuple[Advice, ...]
    devices: tuple[DeviceChoice, ...]


@dataclass(frozen=True)
class Purchase:
    """When to buy, and what."""

    source: str  # of the history of GPUs; "": there is none
    hours: int  # of it
    limits: BuyLimits
    triggers: tuple[BuyTrigger, ...]
    pools: tuple[PoolAdvice, ...]
    notes: tuple[str, ...]

    @property
    def further_notes(self) -> tuple[str, ...]:
        """Return the notes that the sentence does not have."""
        return self.notes if self.hours >= DAY_H else ()

    @property
    def sentence(self) -> str:
        """Return the answer in words."""
        reached = sum(each.reached for each in self.triggers)
        if self.hours < DAY_H:
            return f"Whether GPUs are short cannot be known: {'; '.join(self.notes)}."
        said = f"In {count(self.hours, 'hour')} of {self.source}"
        if not reached:
            return f"{said}, nothing asks for more GPUs."
        short = [_say(each) for each in self.pools if each.shortage > 0]
        were = "was" if reached == 1 else "were"
        return f"{said}, {count(reached, 'trigger')} {were} reached; {'; '.join(short) or 'no pool is short of GPUs'}."


def _say(pool: PoolAdvice) -> str:
    """Return what a pool lacks, and the steps that cover it."""
    steps = []
    for each in pool.advice:
        if each.offered:
            steps.append(each.kind.replace("_", " "))
        if each.covers:
            break
    return (
        f"{pool_name(pool.pool)} lacks {count(pool.shortage, 'GPU')}: {', then '.join(steps) or 'nothing is offered'}"
    )


def plan_purchase(
    demand: DemandModel, capacity: GpuHistory | None, limits: BuyLimits, prices: Mapping[str, float], missing: str = ""
) -> Purchase:
    """Return triggers and advice.

    capacity: None: there is none, for the reason `missing`. prices: stated ones, by `config.prices.key_of`.
    """
    triggers = find_triggers(capacity, limits) if capacity is not None else ()
    notes = [missing] if capacity is None else [*capacity.notes]
    hours = capacity.known_h if capacity is not None else 0
    if capacity is not None and hours < DAY_H:
        notes.append(f"the GPUs of {count(hours, 'hour')} are known, and triggers need a day")
    pools = _pools(demand, capacity)
    lacks = dict.fromkeys(pools, math.nan)
    if capacity is not None and hours >= DAY_H:
        lacks = {pool: float(find_shortage(capacity, pool, triggers)) for pool in pools}
    order = sorted(pools, key=lambda pool: (-np.nan_to_num(lacks[pool]), pool))[:MOST_POOLS]
    replays = replay(demand)
    advised = []
    for pool in order:
        rows = np.array(pools[pool], np.int64)
        same = np.zeros(len(demand.services), bool)
        same[[w for other, own in pools.items() if is_same_kind(pool, other) for w in own]] = True
        short = Shortage(pool, rows, same, lacks[pool], _short_hours(capacity, pool, replays))
        devices = choose_devices(demand.report, rows, pool[1], short.gpus, prices)
        advice = _cover([*advise(demand, capacity, short, replays, prices)], short.gpus, devices, pool)
        advised.append(PoolAdvice(pool, short.gpus, advice, devices))
    source = capacity.source if capacity is not None else ""
    return Purchase(source, hours, limits, triggers, tuple(advised), tuple(notes))


def _pools(demand: DemandModel, capacity: GpuHistory | None) -> dict[PoolKey, list[int]]:
    """Return the services of each pool. One that no daemon manages is in the pool of its product."""
    pools: dict[PoolKey, list[int]] = {}
    by_name: dict[tuple[str, str], PoolKey] = {}
    if capacity is not None:
        pools = {pool: [] for pool in capacity.pools}
        for row, name in enumerate(capacity.workloads):
            if name.pool != NO_POOL and np.isfinite(capacity.gpus[:, row]).any():
                by_name[name.namespace, name_in_pods(name.name)] = name.pool
    for w, (service, product) in enumerate(zip(demand.services, demand.report.facts.products, strict=True)):
        pool = by_name.get((service.namespace, service.name), ("", product, ""))
        pools.setdefault(pool, []).append(w)
    return pools


def is_same_kind(pool: PoolKey, other: PoolKey) -> bool:
    """Return whether what one pool has can serve in place of the other's; False where a product is not known."""
    (resource, product, _), (theirs, another, _) = pool, other
    device, found = find_device(product), find_device(another)
    names = [each.name if each is not None else name for each, name in ((device, product), (found, another))]
    return bool(product and another) and names[0] == names[1] and (resource or GPU) == (theirs or GPU)


def _short_hours(capacity: GpuHistory | None, pool: PoolKey, replays: Replays) -> BoolColumn:
    """Return the hours of the replays in which a pool was short; all, where none of them is known to be."""
    everything = np.ones(len(replays.hour), bool)
    if capacity is None:
        return everything
    lacking = (np.nan_to_num(capacity.lacking_s[:, capacity.of_pool(pool)]) > 0).any(axis=1)
    hours = np.flatnonzero(lacking) + int(capacity.start_s // HOUR_S)
    found = np.isin(replays.hour, hours)
    return found if found.any() else everything


def _cover(
    advice: list[Advice], shortage: float, devices: tuple[DeviceChoice, ...], pool: PoolKey
) -> tuple[Advice, ...]:
    """Add what is to be bought for the rest, and mark the first advice with which nothing is lacking."""
    gained, found, is_covered = 0.0, [], not shortage > 0
    for each in advice:
        gained += each.gpus if each.offered and math.isfinite(each.gpus) else 0.0
        covers = not is_covered and gained >= shortage
        is_covered = is_covered or covers
        found.append(each._replace(covers=covers))
    rest = shortage - gained
    best = next((each for each in devices if each.offered), None)
    if not shortage > 0 or rest <= 0:
        why = "what is lacking is not known" if math.isnan(shortage) else "nothing has to be bought"
        return (*found, Advice(BUY, 0.0, 0.0, False, f"{why.capitalize()}."))
    if best is None:
        said = f"{count(math.ceil(rest), 'GPU')} more of {pool_name(pool)}; no device has a known price and is as fast."
        return (*found, Advice(BUY, float(math.ceil(rest)), math.nan, True, said, True))
    number = math.ceil(best.gpus * rest / shortage - 1e-9)
    price = "" if math.isnan(best.usd_per_million_tokens) else f", ${best.usd_per_million_tokens:.3g} a million tokens"
    said = f"{number} more {best.device} at ${best.usd_per_hour:.2f} an hour{price}: the cheapest of "
    said += f"{amount(sum(each.offered for each in devices))} devices that are as fast and have a price."
    return (*found, Advice(BUY, float(number), -number * best.usd_per_hour * MONTH_H, True, said, True))
