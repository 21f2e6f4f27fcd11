"""Surges that were seen: how much of one, how often, and when the last one ended.

A surge is a rise that would have made requests wait for too long with a usual margin, of one square root. The shadow
fleet with that margin shows it, however many replicas really served: who happened to have enough has seen it, too.
All columns are float64[W]. Times are seconds of observed demand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.measure.interval import IntervalStats
from autoscaler.core.planner.shadow_fleets import ShadowFleets
from autoscaler.core.planner.strategies import LONGEST_HOLD, STEADY_LIMIT
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, Transient, clip, or_zero, replace

PRIOR_S = 5280.0
"""Seconds of arrivals for which every strategy is assumed to miss as `strategies.compute_prior_misses` says."""

SETTLED_S = 1200.0
"""Seconds without a queue that misses, or a peak hold if that is less, after which a surge has shown its height."""

HIGH_SHARE = 0.5
"""Share of the highest load of a surge above which it goes on."""


@dataclass(frozen=True)
class Surges(Columns):
    really_missed: FloatColumn  # requests that missed while others waited for too long, fading as the error budget
    missed: FloatColumn  # requests that would have waited for too long with the usual margin, fading alike
    overspent: FloatColumn  # the most of these beyond the budget at any time, fading alike
    calm_s: Transient[FloatColumn]  # seconds since requests would have waited for too long
    count: Transient[FloatColumn]  # surges that were seen
    peak: Transient[FloatColumn]  # highest load of the last one
    high_after_s: Transient[FloatColumn]  # when its load was last high

    @classmethod
    def blank(cls, rows: int) -> Surges:
        return cls.filled(rows, 0.0)


def update_surges(
    surges: Surges,
    before: ShadowFleets,
    after: ShadowFleets,
    arrivals: FloatColumn,
    really_missed: FloatColumn,
    served: FloatColumn,
    load: FloatColumn,
    stats: IntervalStats,
) -> tuple[Surges, BoolColumn]:
    """Add an interval; also return which surges stay alone from now on, bool[W].

    before, after: shadow fleets without and with the interval. arrivals: in it. really_missed: those that missed in a
    queue that misses. served: all requests, fading as the error budget. load: a load average of a minute.

    Real misses show what a surge costs as soon as their queue is gone. What would have been missed shows it once the
    surge has settled: a small one is often the beginning of a large one, and a young service has seen little.
    While the load is high a surge goes on.
    """
    now_s, load = after.observed_s, or_zero(load)
    interval_s = now_s - before.observed_s
    misses = (interval_s > 0) & (after.queue_missed[STEADY_LIMIT] > before.queue_missed[STEADY_LIMIT])
    hold_s = LONGEST_HOLD * stats.cold_start_s
    is_new = misses & ((surges.count == 0) | (now_s - surges.high_after_s > hold_s))
    peak = np.where(misses, np.fmax(np.where(is_new, 0.0, surges.peak), load), surges.peak)
    is_high = misses | ((surges.count > 0) & (load > HIGH_SHARE * peak))
    kept_s = compute_kept_s(surges, now_s, stats.cold_start_s)
    is_single = ~is_high & (kept_s < 0) & (kept_s + interval_s >= 0)
    fade = np.exp(-interval_s / stats.window_s)
    has_missed = really_missed > 0
    really_missed = surges.really_missed * fade + really_missed
    missed = surges.missed * fade + np.where(misses, arrivals, 0.0)
    calm_s = np.where(misses, 0.0, surges.calm_s + interval_s)
    shown = np.where(calm_s > np.fmin(hold_s, SETTLED_S), missed * np.minimum(now_s / PRIOR_S, 1.0), 0.0)
    shown = np.maximum(shown, np.where(has_missed, 0.0, really_missed))
    seen = Surges(
        really_missed=really_missed,
        missed=missed,
        overspent=np.fmax(surges.overspent * fade, shown - stats.budget_share * served),
        calm_s=calm_s,
        count=surges.count + is_new,
        peak=peak,
        high_after_s=np.where(is_high, now_s, surges.high_after_s),
    )
    return seen, np.asarray(is_single)


def compute_kept_s(surges: Surges, observed_s: FloatColumn, cold_start_s: FloatColumn) -> FloatColumn:
    """Return the seconds until the only surge that was seen counts as a single one; float64[W], NaN: it is not the only
    one, or there was none.

    By the rule of succession a surge that was seen once in some hours may come again in as many. If as much time has
    passed since its end as had been observed by then, and a cold start at least, it was a single one.
    """
    kept_s = surges.high_after_s + np.fmax(surges.high_after_s, cold_start_s) - observed_s
    return np.where(surges.count == 1, kept_s, np.nan)


def forget_queues(shadow: ShadowFleets, is_single: BoolColumn) -> ShadowFleets:
    """Return the shadow fleets without the misses in queues of a single surge, bool[W].

    It exceeds the budget of the day, so it would pay for a fleet of its size for as long, though it does not recur.
    """
    if not is_single.any():
        return shadow
    queue_missed = np.where(is_single, np.float32(0), shadow.queue_missed)
    return replace(shadow, queue_missed=queue_missed, missed=shadow.missed - (shadow.queue_missed - queue_missed))


def compute_unseen_share(surges: Surges, requests_per_s: FloatColumn, cold_start_s: FloatColumn) -> FloatColumn:
    """Return which share of a surge was not seen yet; float64[W], 0..1.

    An unforeseen surge costs what arrives in one cold start. Misses without a queue show no surge, however many.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - clip(or_zero(surges.overspent / (requests_per_s * cold_start_s)), 0.0, 1.0)
