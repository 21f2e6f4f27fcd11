"""The offered load: how busy replicas are, the work of a request, and the replicas that arriving requests keep busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.measure.interval import IntervalStats, WorkTotals
from autoscaler.core.measure.replica_speed import ReplicaSpeed
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, Transient, clip, or_zero, replace

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


def compute_busy_share(totals: WorkTotals, idle_gap_s: FloatColumn, slots: FloatColumn) -> FloatColumn:
    """Return how busy the replicas were, 0..1, mean of the pods; float64[W], NaN: no pod has generated enough.

    slots: float64[W], requests that a replica can run at once; NaN: not known.

    A replica is busy for 1 - (idle gap / gap) x (1 - occupancy) of its time. The first factor is processor sharing
    (M/G/1-PS): work takes 1 / (1 - busy share) times as long as alone. Occupancy is that of the KV cache or of the
    slots, whichever is higher. At the idle gap requests would leave that much sooner, and a full replica can take
    nothing however little it computes.

    Example: 8 ms between tokens of an idle engine, 20 ms now, a quarter of the cache in use: 1 - 0.4 x 0.75 = 0.7.

    Each pod counts once: after a surge one full pod generates most of the tokens while new pods are idle. A pod that
    generates too little and has a request is left out.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        unoccupied_rate = np.fmin(
            totals.token_rate - totals.token_rate_kv, totals.token_rate - totals.token_rate_running / slots
        )
        idle = clip(idle_gap_s * unoccupied_rate, 0.0, totals.generating_pods) + totals.idle_pods
        share = 1 - idle / (totals.generating_pods + totals.idle_pods)
    return np.asarray(np.where(totals.generating_pods > 0, share, np.nan))


def compute_prefill_share(totals: WorkTotals, tokens_per_s: FloatColumn) -> FloatColumn:
    """Return how busy the replicas of a prefill workload were, 0..1, mean of the pods; float64[W], NaN: not known.

    They generate one token per request, so there are no gaps between tokens. The tokens that they computed show their
    work instead: 8,000 per second of the 10,000 that a busy replica computes are 0.8.
    tokens_per_s: float64[W], prompt tokens that a busy replica computes; NaN: not known.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.minimum(totals.prompt_tokens / totals.prompt_s / tokens_per_s, 1.0)


def update_offered_load(
    before: OfferedLoad, stats: IntervalStats, idle_gap_s: FloatColumn, speed: ReplicaSpeed, interval_s: FloatColumn
) -> tuple[OfferedLoad, FloatColumn]:
    """Measure demand; also return the requests that arrived at all replicas, float64[W].

    Demand is the rate of arrivals times the work of a request, which is right also while requests queue.
    """
    totals = stats.totals
    busy = compute_busy_share(totals, idle_gap_s, speed.slots)
    if stats.prefill.any():
        busy = np.where(stats.prefill, compute_prefill_share(totals, speed.prompt_tokens_per_s), busy)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Scales the pods that were read to all that served.
        scale = np.where(totals.covered_s > 0, stats.mean_replicas * interval_s / totals.covered_s, np.nan)
        has_served = ~np.isnan(busy) & (totals.first_tokens > 0) & (scale > 0)
        fade = np.where(has_served, np.exp(-interval_s / WORK_FADE_S), 1.0)
        busy_s = before.busy_s * fade + np.where(has_served, busy * stats.mean_replicas * interval_s, 0.0)
        requests = before.requests * fade + np.where(has_served, totals.first_tokens * scale, 0.0)
        work_s = np.where(requests >= MIN_REQUESTS, busy_s / requests, np.nan)
        arrivals = totals.arrivals * scale
        demand = np.where(interval_s > 0, arrivals * work_s / interval_s, np.nan)
    return OfferedLoad(busy_s, requests, demand), or_zero(arrivals)


def compute_work_s(load: OfferedLoad) -> FloatColumn:
    """Return the work of a request, in busy replica-seconds; float64[W], NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(load.requests > 0, load.busy_s / load.requests, np.nan)


def queue_misses_limit(load: OfferedLoad, stats: IntervalStats) -> BoolColumn:
    """Return where requests wait too long for their first token, now or at the reading before; bool[W].

    TTFT is reported only once a wait is over, so the requests of a queue are counted as it shrinks.
    """
    return _waits_too_long(load, stats, stats.waiting - np.minimum(stats.totals.queue_growth, 0.0))


def queue_misses_limit_now(load: OfferedLoad, stats: IntervalStats) -> BoolColumn:
    """Return where the requests that wait now wait too long for their first token; bool[W]."""
    return _waits_too_long(load, stats, stats.waiting)


def _waits_too_long(load: OfferedLoad, stats: IntervalStats, waiting: FloatColumn) -> BoolColumn:
    with np.errstate(divide="ignore", invalid="ignore"):
        queue_s = waiting * load.busy_s / load.requests / np.maximum(stats.mean_replicas, 1.0)
    return np.asarray(queue_s > stats.max_queue_s)
