"""Prices of devices: stated by the operator, else measured, else list prices. A part of a device costs its share.

A price is that of a whole device under any name of its product, for each way of paying: `NVIDIA-L4@spot` is the key of
spot nodes, `NVIDIA-L4` that of all others, and of spot nodes that have no price of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from autoscaler.catalog.devices import DEVICES, device_share, find_device
from autoscaler.config.findings import shown, unknown
from autoscaler.core.model.fleet import ON_DEMAND, RESERVED, SPOT, Fleet, NodeGroup, Pool
from autoscaler.core.model.money import Price
from autoscaler.core.model.variants import Variants, models_of_services, service_of
from autoscaler.core.table.columns import FloatColumn

CAPACITY_TYPES = (ON_DEMAND, RESERVED, SPOT)
MOST_USD = 10_000.0
"""Most that a device may cost in an hour: several hundred times the dearest list price. More is a mistake."""


def key_of(product: str, capacity_type: str = "") -> str:
    """Return the key of a price."""
    return f"{product}@{capacity_type}" if capacity_type else product


def find_price(
    device: Pool | NodeGroup, stated: Mapping[str, float], measured: Mapping[str, float], sharers: int = 1
) -> Price:
    """Return the price of one device of a pool or node group per hour.

    stated, measured: prices of whole devices, by `key_of`. sharers: pods that share a device; 0: unknown.
    """
    name = f"{device.resource} on {device.product or 'several products'}"
    if sharers < 1:
        return Price(math.nan, f"price of {name} is unknown: no label says how many pods share a device")
    share = device_share(device.resource, device.product)
    if math.isnan(share):
        return Price(math.nan, f"price of {name} is unknown: the product has no such MIG profile or partition")
    found = find_device(device.product)
    paid = device.capacity_type
    for prices, source in ((stated, "stated"), (measured, "measured")):
        for key in dict.fromkeys((paid, "")):
            usd = _look_up(prices, device.product, key)
            if not math.isnan(usd):
                return Price(usd * share / sharers, "", source)
    usd = _look_up(measured, device.product, ON_DEMAND)
    if math.isnan(usd):
        usd, source = found.price if found is not None else math.nan, "list"
    if math.isnan(usd):
        said = f"price of {name} is unknown: no list price; state one with --price PRODUCT=USD"
        return Price(math.nan, said)
    if paid in ("", ON_DEMAND):
        return Price(usd * share / sharers, "", source)
    said = f"{name} has its price on demand: none is known for {paid} nodes; state one with --price PRODUCT@{SPOT}=USD"
    said = said.replace(f"@{SPOT}", f"@{paid}") if paid in CAPACITY_TYPES else said
    return Price(usd * share / sharers, said, source)


def _look_up(prices: Mapping[str, float], product: str, capacity_type: str) -> float:
    """Return the price under this name of the product, else under another of its names; NaN: there is none."""
    exact = prices.get(key_of(product, capacity_type))
    if exact is not None:
        return exact
    if (device := find_device(product)) is None:
        return math.nan
    split = ((*key.partition("@")[::2], usd) for key, usd in prices.items())
    return next((usd for name, paid, usd in split if paid == capacity_type and find_device(name) == device), math.nan)


@lru_cache(maxsize=4)
def shares_of(groups: tuple[NodeGroup, ...]) -> FloatColumn:
    """Return the part of a whole GPU that one device of each group is, float64[G]; NaN: unknown."""
    shares = [device_share(each.resource, each.product) / (each.sharers or math.nan) for each in groups]
    found = np.array(shares, dtype=np.float64)
    found.setflags(write=False)
    return found


class Prices:
    """Groups variants and prices them; caches the result while workloads and pools are the same objects."""

    def __init__(self, stated: Mapping[str, float]) -> None:
        self._stated = stated
        self._inputs: tuple[Any, ...] = ()
        self._variants = Variants(np.empty(0, dtype=np.int64), np.empty(0))
        self._groups: Sequence[NodeGroup] = ()
        self._of_groups: FloatColumn = np.empty(0)
        self.problems: tuple[str, ...] = ()  # why variants have no price, or not that of their nodes; unused prices

    def variants(self, fleet: Fleet) -> Variants:
        """Return which workloads are variants of one service, and the cost of their replicas."""
        inputs = (fleet.workloads, fleet.pools, fleet.pool, fleet.gpus_per_replica, fleet.groups.groups)
        if len(self._inputs) != len(inputs) or any(a is not b for a, b in zip(self._inputs, inputs, strict=True)):
            self._inputs, self._variants = inputs, self._group(fleet)
        return self._variants

    def of_groups(self, groups: Sequence[NodeGroup]) -> FloatColumn:
        """Return the price of a device of each node group per hour, float64[G]; NaN: unknown."""
        if groups is not self._groups:
            self._groups = groups
            self._of_groups = np.array([find_price(each, self._stated, {}, each.sharers).usd for each in groups])
        return self._of_groups

    def _group(self, fleet: Fleet) -> Variants:
        models = models_of_services(fleet.workloads)
        names = [service_of(workload, models) for workload in fleet.workloads]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(name for name in names if name))}
        of_pool = [find_price(pool, self._stated, {}, _sharers(fleet, row)) for row, pool in enumerate(fleet.pools)]
        unknown = Price(math.nan, "its devices are not known")
        prices = [
            (of_pool[pool] if pool >= 0 else unknown).times(devices)
            for pool, devices in zip(fleet.pool.tolist(), fleet.gpus_per_replica.tolist(), strict=True)
        ]
        priced = {row for row, name in zip(fleet.pool.tolist(), names, strict=True) if name and row >= 0}
        why = (of_pool[row].why for row in sorted(priced))
        self.problems = tuple(dict.fromkeys((*filter(None, why), *self._unused(fleet))))
        return Variants(
            np.array([numbers.get(name, -1) if name else -1 for name in names], dtype=np.int64),
            np.array([price.usd for price in prices]),
            np.array([*(pool.may_be_spot for pool in fleet.pools), False])[fleet.pool],
            tuple(price.why for price in prices),
        )

    def _unused(self, fleet: Fleet) -> list[str]:
        """List the stated prices of products that neither a node nor the catalog has."""
        seen = {pool.product for pool in fleet.pools} | {group.product for group in fleet.groups.groups}
        names = dict.fromkeys(key.partition("@")[0] for key in self._stated)
        unused = [name for name in names if name not in seen and find_device(name) is None]
        words = [
            (name, unknown("no node has this product", [each.name for each in DEVICES], name, "")) for name in unused
        ]
        return [
            f"the stated price of {shown(name)} is not used: {why}; known are {names}" for name, (why, names) in words
        ]


def _sharers(fleet: Fleet, pool: int) -> int:
    """Return how many pods share a device of a pool. Where node groups differ, it is the least; 0: unknown."""
    groups = fleet.groups.groups
    return min((groups[row].sharers for row in np.flatnonzero(fleet.groups.admitted[pool]).tolist()), default=1)
