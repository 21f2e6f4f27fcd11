"""Prices of GPUs: stated by the operator, else list prices. A slice or a shared device costs its share of the card.

Prices are only compared among the variants of a service, so only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoscaler.catalog.devices import find_device, is_mig, mig_profile
from autoscaler.core.model.fleet import Fleet, NodeGroup, Pool
from autoscaler.core.model.variants import Variants, models_of_services, service_of
from autoscaler.core.table.columns import FloatColumn


def price_per_hour(pool: Pool, stated: Mapping[str, float], sharers: int = 1) -> float:
    """Return the price of one device of a pool per hour; NaN if unknown.

    stated: prices of whole GPUs, by any name of a product. sharers: pods that share a device; 0: unknown.
    A slice costs its larger share, of memory or of compute: 3g.40gb of an 80 GB card is 4/8 of the memory and 3/7 of
    the compute, so half the price.
    """
    device = find_device(pool.product)
    price = stated.get(pool.product, math.nan)
    if math.isnan(price) and device is not None:
        price = next((usd for name, usd in stated.items() if find_device(name) == device), device.price)
    if sharers < 1:
        return math.nan
    if not is_mig(pool.resource, pool.product):
        return price / sharers
    profile = mig_profile(device, pool.resource, pool.product)
    return price * max(profile.memory, profile.compute) / sharers if profile is not None else math.nan


class Prices:
    """Groups variants and prices them; caches the result while workloads and pools are the same objects."""

    def __init__(self, stated: Mapping[str, float]) -> None:
        self._stated = stated
        self._inputs: tuple[Any, ...] = ()
        self._variants = Variants(np.empty(0, dtype=np.int64), np.empty(0))
        self.problems: tuple[str, ...] = ()  # why the variants of a pool have no price

    def variants(self, fleet: Fleet) -> Variants:
        """Return which workloads are variants of one service, and the cost of their replicas."""
        inputs = (fleet.workloads, fleet.pools, fleet.pool, fleet.gpus_per_replica, fleet.groups.groups)
        if len(self._inputs) != len(inputs) or any(a is not b for a, b in zip(self._inputs, inputs, strict=True)):
            self._inputs, self._variants = inputs, self._group(fleet)
        return self._variants

    def of_groups(self, groups: Sequence[NodeGroup]) -> FloatColumn:
        """Return the price of a device of each node group per hour, float64[G]; NaN: unknown."""
        return np.array(
            [price_per_hour(Pool(each.resource, each.product), self._stated, each.sharers) for each in groups]
        )

    def _group(self, fleet: Fleet) -> Variants:
        models = models_of_services(fleet.workloads)
        names = [service_of(workload, models) for workload in fleet.workloads]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(name for name in names if name))}
        of_pool = [price_per_hour(pool, self._stated, _sharers(fleet, row)) for row, pool in enumerate(fleet.pools)]
        cost: FloatColumn = fleet.gpus_per_replica * np.array([*of_pool, math.nan])[fleet.pool]  # -1: the unknown pool
        priced = {row for row, name in zip(fleet.pool.tolist(), names, strict=True) if name and row >= 0}
        self.problems = tuple(_problem(fleet, row) for row in sorted(priced) if math.isnan(of_pool[row]))
        return Variants(np.array([numbers.get(name, -1) if name else -1 for name in names], dtype=np.int64), cost)


def _sharers(fleet: Fleet, pool: int) -> int:
    """Return how many pods share a device of a pool. Where node groups differ, it is the least; 0: unknown."""
    groups = fleet.groups.groups
    return min((groups[row].sharers for row in np.flatnonzero(fleet.groups.admitted[pool]).tolist()), default=1)


def _problem(fleet: Fleet, row: int) -> str:
    pool = fleet.pools[row]
    device = find_device(pool.product)
    if not _sharers(fleet, row):
        why = "no label says how many pods share a device"
    elif is_mig(pool.resource, pool.product) and mig_profile(device, pool.resource, pool.product) is None:
        why = "the product has no such MIG profile"
    else:
        why = "no list price; state one with --price PRODUCT=USD"
    return f"price of {pool.resource} on {pool.product or 'several products'} is unknown: {why}"
