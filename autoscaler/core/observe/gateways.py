"""Requests at the gateway of each workload, from its last reading."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.observation import GatewayCounts
from autoscaler.core.model.samples import GatewaySamples
from autoscaler.core.model.types import TickInput
from autoscaler.core.readings import rates
from autoscaler.core.table.columns import FloatColumn, TimestampColumn

GATEWAY_REMEMBERED_S = 86_400.0
"""A gateway without a reading for this long was removed, and is no longer expected to report."""

UNSERVED_S = 120.0
"""A request that arrives while no replica serves counts for this long, unless one becomes ready. Whoever is to wake the
workload may miss a single tick."""


def read(inp: TickInput) -> GatewaySamples:
    """Return the plausible readings of gateways. Both sides of a pair have the same requests before them."""
    gateways = rates.discard_implausible(inp.samples.gateways, inp.now_s)
    if inp.pairs is None:
        return gateways
    return GatewaySamples(**{name: inp.pairs.share(column) for name, column in vars(gateways).items()})


def count(
    inp: TickInput,
    gateways: GatewaySamples,
    ready: FloatColumn,
    last_read_s: TimestampColumn,
    last_unserved_s: TimestampColumn,
) -> tuple[GatewayCounts, TimestampColumn, TimestampColumn]:
    """Return the counts, and the moments of the last reading and of the last arrival that found no replica.

    ready: float64[W], replicas that serve. last_read_s, last_unserved_s: these moments as of the tick before.
    """
    is_fresh = inp.now_s - gateways.time_s <= inp.spec.max_input_age_s
    reports = is_fresh & ~(np.isnan(gateways.waiting) & np.isnan(gateways.arrivals_per_s))
    last_read_s = np.where(reports, inp.now_s, last_read_s)
    silent_s = inp.now_s - last_read_s
    arrivals_per_s, last_unserved_s = _remember_unserved(
        np.where(is_fresh, gateways.arrivals_per_s, np.nan), ready, inp.now_s, last_unserved_s
    )
    counts = GatewayCounts(
        gateway_waiting=np.where(is_fresh, gateways.waiting, np.nan),
        gateway_arrivals_per_s=arrivals_per_s,
        gateway_silent_s=np.where(silent_s <= GATEWAY_REMEMBERED_S, silent_s, np.nan),
    )
    return counts, last_read_s, last_unserved_s


def _remember_unserved(
    arrivals_per_s: FloatColumn, ready: FloatColumn, now_s: float, before: TimestampColumn
) -> tuple[FloatColumn, TimestampColumn]:
    """Return the arrivals with those that found no replica, and the moment of the last of these; float64[W] each."""
    last_s = np.where(arrivals_per_s > 0, now_s, before)
    last_s = np.where(ready > 0, np.nan, last_s)
    waits = now_s - last_s <= UNSERVED_S  # False for NaN
    return np.where(waits, np.fmax(arrivals_per_s, 1 / UNSERVED_S), arrivals_per_s), last_s
