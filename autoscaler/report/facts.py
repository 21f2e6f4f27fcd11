"""What a replica of each service holds and what that costs per hour, and how long a start takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.owners import name_in_pods
from autoscaler.adapters.prometheus.range.service_queries import Devices, ServiceName
from autoscaler.config.prices import Price, find_price
from autoscaler.core.model.fleet import Fleet, Pool
from autoscaler.core.table.columns import BoolColumn, FloatColumn


class Hardware(NamedTuple):
    """The devices of one replica."""

    gpus: float  # NaN: not known
    pool: Pool | None  # None: not known


@dataclass(frozen=True)
class Facts:
    """What is known of each service beside its history."""

    model: tuple[str, ...]  # [W], "": not known
    gpus: FloatColumn  # float64[W], of a replica
    assumed_gpus: BoolColumn  # bool[W], nothing tells: one is assumed
    usd_per_hour: FloatColumn  # float64[W], of a replica; NaN: unknown
    reasons: tuple[str, ...]  # [W], why the price is unknown; "": it is known


def gather_facts(
    services: Sequence[ServiceName],
    devices: Mapping[ServiceName, Devices],
    fleet: Fleet | None,
    stated: Mapping[str, float],
) -> Facts:
    """Return the facts.

    devices: of replicas, as seen in history. fleet: the workloads of the present moment, which tell of others; None:
    none is known. stated: prices by product.
    """
    by_name: dict[tuple[str, str], int] = {}
    for row, workload in enumerate(fleet.workloads if fleet is not None else ()):
        by_name.setdefault((workload.ref.namespace, name_in_pods(workload.ref.name)), row)
        by_name.setdefault((workload.ref.namespace, ""), row)  # a scrape job without pods
    models, gpus, prices = [], [], []
    for service in services:
        row = by_name.get((service.namespace, service.name), by_name.get((service.name, ""), -1))
        found = devices.get(service)
        hardware = _hardware(fleet, row) if found is None else Hardware(found.per_replica, found.pool)
        models.append(fleet.workloads[row].model if fleet is not None and row >= 0 else "")
        gpus.append(hardware.gpus)
        prices.append(price(hardware, stated, {}))
    known = np.array(gpus, dtype=np.float64)
    return Facts(
        model=tuple(models),
        gpus=np.where(np.isnan(known), 1.0, known),
        assumed_gpus=np.isnan(known),
        usd_per_hour=np.array([each.usd for each in prices], dtype=np.float64),
        reasons=tuple(each.why for each in prices),
    )


def price(hardware: Hardware, stated: Mapping[str, float], measured: Mapping[str, float]) -> Price:
    """Return the price of one replica per hour. The only place where a report looks a price up.

    stated, measured: prices of whole devices, by `config.prices.key_of`.
    """
    if hardware.pool is None:
        return Price(math.nan, "no metric names its GPU: DCGM reports none for its pods")
    return find_price(hardware.pool, stated, measured).of(1.0 if math.isnan(hardware.gpus) else hardware.gpus)


def _hardware(fleet: Fleet | None, row: int) -> Hardware:
    if fleet is None or row < 0:
        return Hardware(math.nan, None)
    pool = int(fleet.pool[row])
    return Hardware(float(fleet.gpus_per_replica[row]), fleet.pools[pool] if pool >= 0 else None)
