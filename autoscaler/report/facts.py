"""What a replica of each service holds and what that costs per hour, and how long a start takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.owners import name_in_pods
from autoscaler.adapters.prometheus.range.service_queries import Devices, ServiceName
from autoscaler.config.prices import find_price
from autoscaler.core.model.fleet import Fleet, Pool
from autoscaler.core.model.money import Money, Price
from autoscaler.core.table.columns import BoolColumn, FloatColumn


class Hardware(NamedTuple):
    """The devices of one replica."""

    gpus: float  # NaN: not known
    pool: Pool | None  # None: not known


@dataclass(frozen=True)
class PriceSources:
    """What prices come from, and how the nodes of services are paid for."""

    stated: Mapping[str, float]  # USD for an hour of a whole device, by `config.prices.key_of`
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # likewise, by cluster; "": of all others
    capacity_types: Mapping[ServiceName, str] = field(default_factory=dict)  # as `Pool.capacity_type`


@dataclass(frozen=True)
class ServiceFacts:
    """What is known of each service beside its history."""

    model: tuple[str, ...]  # [W], "": not known
    gpus: FloatColumn  # float64[W], of a replica
    assumed_gpus: BoolColumn  # bool[W], nothing tells: one is assumed
    usd_per_hour: FloatColumn  # float64[W], of a replica; NaN: unknown
    reasons: tuple[str, ...]  # [W], why the price is unknown, or may be too high; "": it is known
    products: tuple[str, ...] = ()  # [W], of the GPUs, "": not known; (): of none
    sources: tuple[str, ...] = ()  # [W], of prices, as `Price.source`; (): not told

    def only(self, rows: Sequence[int]) -> ServiceFacts:
        """Return the facts of some services, in this order."""
        place = list(rows)
        return ServiceFacts(
            tuple(self.model[row] for row in place),
            self.gpus[place],
            self.assumed_gpus[place],
            self.usd_per_hour[place],
            tuple(self.reasons[row] for row in place),
            tuple(self.products[row] for row in place) if self.products else (),
            tuple(self.sources[row] for row in place) if self.sources else (),
        )

    def money(self, names: Sequence[ServiceName], usd: FloatColumn, counted: BoolColumn) -> Money:
        """Add up what services cost. usd: float64[W]; NaN: no price. counted: bool[W], the services that are added."""
        rows = zip(names, usd.tolist(), self.reasons, counted.tolist(), strict=True)
        return Money.sum((str(name), Price(cost, why)) for name, cost, why, counts in rows if counts)


def gather_facts(
    services: Sequence[ServiceName],
    devices: Mapping[ServiceName, Devices],
    fleet: Fleet | None,
    prices: PriceSources,
) -> ServiceFacts:
    """Return the facts.

    devices: of replicas, as seen in history. fleet: the workloads of the present moment, which tell of others; None:
    none is known.
    """
    by_name: dict[tuple[str, str], int] = {}
    for row, workload in enumerate(fleet.workloads if fleet is not None else ()):
        by_name.setdefault((workload.ref.namespace, name_in_pods(workload.ref.name)), row)
        by_name.setdefault((workload.ref.namespace, ""), row)  # a scrape job without pods
    models, gpus, costs, products = [], [], [], []
    for service in services:
        row = by_name.get((service.namespace, service.name), by_name.get((service.name, ""), -1))
        found = devices.get(service)
        hardware = _hardware(fleet, row) if found is None else Hardware(found.per_replica, found.pool)
        models.append(fleet.workloads[row].model if fleet is not None and row >= 0 else "")
        gpus.append(hardware.gpus)
        products.append(hardware.pool.product if hardware.pool is not None else "")
        costs.append(price(hardware, prices, service))
    known = np.array(gpus, dtype=np.float64)
    return ServiceFacts(
        model=tuple(models),
        gpus=np.where(np.isnan(known), 1.0, known),
        assumed_gpus=np.isnan(known),
        usd_per_hour=np.array([each.usd for each in costs], dtype=np.float64),
        reasons=tuple(each.why for each in costs),
        products=tuple(products),
        sources=tuple(each.source for each in costs),
    )


def price(hardware: Hardware, prices: PriceSources, service: ServiceName) -> Price:
    """Return the price of one replica per hour. The only place where a report looks a price up."""
    if hardware.pool is None:
        return Price(math.nan, "no metric names its GPU: DCGM reports none for its pods")
    pool = hardware.pool._replace(capacity_type=prices.capacity_types.get(service) or hardware.pool.capacity_type)
    measured = prices.measured.get(service.cluster) or prices.measured.get("", {})
    found = find_price(pool, prices.stated, measured)
    return found.times(1.0 if math.isnan(hardware.gpus) else hardware.gpus)


def _hardware(fleet: Fleet | None, row: int) -> Hardware:
    if fleet is None or row < 0:
        return Hardware(math.nan, None)
    pool = int(fleet.pool[row])
    return Hardware(float(fleet.gpus_per_replica[row]), fleet.pools[pool] if pool >= 0 else None)
