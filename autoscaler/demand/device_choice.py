"""What the work of a pool would cost on other devices: so many of each, at which price for a million tokens.

Nothing replays a device that nobody has. Decoding reads the weights for each token, so speed follows the bandwidth of
the memory; a device that is slower than the present one is listed, and not offered, because latency grows with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from autoscaler.catalog.devices import DEVICES, Product, find_device
from autoscaler.catalog.model_shapes import bytes_per_parameter
from autoscaler.config.prices import find_price
from autoscaler.core.model.fleet import Pool
from autoscaler.core.model.money import UnitCosts
from autoscaler.core.table.columns import IntColumn
from autoscaler.report.columns import POLICY
from autoscaler.report.report import FleetReport
from autoscaler.report.size_prior import BANDWIDTH_GB_S, parameters_of

USABLE = 0.85
"""Share of the memory that weights may take, so that a cache of some requests is left."""

ALIASES = frozenset({"A100", "H100", "V100"})
"""Names that several products share; each of these is in the table under a name of its own."""


class DeviceChoice(NamedTuple):
    """The work of a pool on one device."""

    device: str
    gpus: float  # that carry what the pool lacks; NaN: not known
    usd_per_hour: float  # of one GPU; NaN: no price
    usd_per_million_tokens: float  # NaN: no price, no token, or the present device is not known
    offered: bool
    why_not: str  # "": it is offered


def choose_devices(
    report: FleetReport, rows: IntColumn, product: str, shortage: float, prices: Mapping[str, float]
) -> tuple[DeviceChoice, ...]:
    """Return all devices that could do the work of some services, the cheapest offered one first.

    product: of the present device. shortage: GPUs of it. prices: stated ones, by `config.prices.key_of`.
    """
    present = find_device(product)
    now_gb_s = BANDWIDTH_GB_S.get(present.name, math.nan) if present is not None else math.nan
    outcome = report.entry(POLICY).outcome
    gpu_hours, tokens = (float(np.nansum(each[rows])) for each in (outcome.gpu_hours, outcome.output_tokens))
    largest_gb = max((_gb_each(report, w) for w in rows.tolist()), default=math.nan)
    found = []
    for device in DEVICES:
        if device.name not in BANDWIDTH_GB_S or device.name in ALIASES - {present.name if present else ""}:
            continue
        ratio = BANDWIDTH_GB_S[device.name] / now_gb_s
        usd = find_price(Pool("nvidia.com/gpu", device.name), prices, {}).usd
        costs = UnitCosts.of(usd * gpu_hours / ratio, tokens, 0.0)
        why = _why_not(device, present, ratio, usd, largest_gb)
        gpus = math.ceil(shortage / ratio - 1e-9) if math.isfinite(shortage / ratio) else math.nan
        found.append(DeviceChoice(device.name, gpus, usd, costs.usd_per_million_tokens, not why, why))
    return tuple(sorted(found, key=lambda each: (not each.offered, _last_if_unknown(each.usd_per_million_tokens))))


def _gb_each(report: FleetReport, w: int) -> float:
    """Return the weights on each GPU of a replica in GB; NaN: the name of the model does not tell."""
    model = report.facts.model[w]
    size = bytes_per_parameter(model)
    bytes_each = 2.0 if size is None else sum(size) / 2
    return parameters_of(model) * bytes_each / 1e9 / float(report.facts.gpus[w]) if model else math.nan


def _why_not(device: Product, present: Product | None, ratio: float, usd: float, largest_gb: float) -> str:
    if math.isnan(usd):
        return f"no price is known; state one with --price {device.name}=USD"
    if present is None or math.isnan(ratio):
        return "the present device is not known, so nothing tells how much faster it is"
    if largest_gb > USABLE * device.memory_gb:
        return f"weights of {largest_gb:.0f} GB a GPU leave no room in its {device.memory_gb:g} GB"
    if ratio < 1:
        return f"its memory has {ratio:.0%} of the bandwidth of {present.name}, so tokens come later; not replayed"
    return ""


def _last_if_unknown(value: float) -> float:
    return math.inf if math.isnan(value) else value
