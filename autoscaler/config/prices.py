"""Prices of GPUs: stated by the operator, else list prices. A slice costs a share of its card.

Prices are only compared among the variants of a service, so only their ratios matter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoscaler.catalog.prices import LIST_PRICES
from autoscaler.core.model.fleet import Fleet, NodeGroup, Pool
from autoscaler.core.model.variants import Variants
from autoscaler.core.table.columns import FloatColumn

_SLICE = re.compile(r"(\d)g\.(\d+)gb")
_COMPUTE_SLICES = 7


def price_per_hour(pool: Pool, stated: Mapping[str, float]) -> float:
    """Return the price of one device of a pool per hour; NaN if unknown.

    stated: prices by product. A slice costs its larger share, of memory or of compute:
    3g.40gb of an 80 GB card is 4/8 of the memory and 3/7 of the compute, so half the price.
    """
    size_gb = math.nan
    price = stated.get(pool.product, math.nan)
    for pattern, listed, memory_gb in LIST_PRICES:
        if re.search(pattern, pool.product):
            size_gb = memory_gb
            price = listed if math.isnan(price) else price
            break
    cut = _SLICE.search(pool.resource) or _SLICE.search(pool.product)
    if cut is None:
        return price
    compute = int(cut[1]) / _COMPUTE_SLICES
    return price * min(1.0, max(compute, compute if math.isnan(size_gb) else int(cut[2]) / size_gb))


class Prices:
    """Groups variants and prices them; caches the result while workloads and pools are the same objects."""

    def __init__(self, stated: Mapping[str, float]) -> None:
        self._stated = stated
        self._inputs: tuple[Any, ...] = ()
        self._variants = Variants(np.empty(0, dtype=np.int64), np.empty(0))

    def variants(self, fleet: Fleet) -> Variants:
        """Return which workloads are variants of one service, and the cost of their replicas."""
        inputs = (fleet.workloads, fleet.pools, fleet.pool, fleet.gpus_per_replica)
        if len(self._inputs) != len(inputs) or any(a is not b for a, b in zip(self._inputs, inputs, strict=True)):
            self._inputs, self._variants = inputs, self._group(fleet)
        return self._variants

    def of_groups(self, groups: Sequence[NodeGroup]) -> FloatColumn:
        """Return the price of a device of each node group per hour, float64[G]; NaN: unknown."""
        return np.array([price_per_hour(Pool(each.resource, each.product), self._stated) for each in groups])

    def _group(self, fleet: Fleet) -> Variants:
        names = [(w.ref.namespace, w.service) if w.service else None for w in fleet.workloads]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(name for name in names if name))}
        prices = np.array([price_per_hour(pool, self._stated) for pool in fleet.pools] + [math.nan])
        cost: FloatColumn = fleet.gpus_per_replica * prices[fleet.pool]  # row -1 is the unknown pool
        return Variants(np.array([numbers.get(name, -1) if name else -1 for name in names], dtype=np.int64), cost)
