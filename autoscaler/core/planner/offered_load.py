"""The offered load: the work of a request, and the number of replicas that arriving requests keep busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner.interval import IntervalStats
from autoscaler.core.planner.pod_work import compute_busy_share
from autoscaler.core.table.columns import Columns, FloatColumn, Transient, or_zero, replace

WORK_FADE_S = 600.0
"""Time constant of the work of a request: lengths change over tens of minutes."""

MIN_REQUESTS = 5.0
"""Requests from which the work of a request is known."""


@dataclass(frozen=True)
class OfferedLoad(Columns):
    """Work of recent requests, and present demand; float64[W] each."""

    busy_s: FloatColumn  # busy replica-seconds, fading
    requests: FloatColumn  # requests served in them, fading alike
    demand: Transient[FloatColumn]  # replicas that the arriving requests keep busy (erlangs); NaN: not known now

    @classmethod
    def blank(cls, rows: int) -> OfferedLoad:
        return replace(super().blank(rows), busy_s=np.zeros(rows), requests=np.zeros(rows))


def update_offered_load(
    before: OfferedLoad, stats: IntervalStats, idle_gap_s: FloatColumn, slots: FloatColumn, interval_s: FloatColumn
) -> tuple[OfferedLoad, FloatColumn]:
    """Measure demand; also return the requests that arrived at all replicas, float64[W].

    Demand is the mean of two estimates. Arrivals times the work of a request is right while requests queue, but sees
    longer answers late. The busy share of the replicas, with the growth of their queues and batches, sees them at once.
    Growth of a batch counts as far as the replicas are full.
    """
    totals = stats.totals
    busy = compute_busy_share(totals, idle_gap_s, slots)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Scales the pods that were read to all that served.
        scale = np.where(totals.covered_s > 0, stats.mean_replicas * interval_s / totals.covered_s, np.nan)
        has_served = ~np.isnan(busy) & (totals.first_tokens > 0) & (scale > 0)
        fade = np.where(has_served, np.exp(-interval_s / WORK_FADE_S), 1.0)
        busy_s = before.busy_s * fade + np.where(has_served, busy * stats.mean_replicas * interval_s, 0.0)
        requests = before.requests * fade + np.where(has_served, totals.first_tokens * scale, 0.0)
        work_s = np.where(requests >= MIN_REQUESTS, busy_s / requests, np.nan)
        arrivals = totals.arrivals * scale
        growth = (totals.queue_growth + busy**2 * totals.batch_growth) * scale
        by_busy_share = np.fmax(busy * stats.mean_replicas + growth * work_s / interval_s, 0.0)
        by_arrivals = arrivals * work_s / interval_s
        demand = np.where(np.isnan(busy), by_arrivals, (by_arrivals + by_busy_share) / 2)
    return OfferedLoad(busy_s, requests, np.where(interval_s > 0, demand, np.nan)), or_zero(arrivals)


def compute_work_s(load: OfferedLoad) -> FloatColumn:
    """Return the work of a request, in busy replica-seconds; float64[W], NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(load.requests > 0, load.busy_s / load.requests, np.nan)


def compute_queue_s(load: OfferedLoad, stats: IntervalStats, waiting: FloatColumn) -> FloatColumn:
    """Return how long the serving replicas need for this many waiting requests; float64[W], NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(waiting * load.busy_s / load.requests / np.maximum(stats.mean_replicas, 1.0))
