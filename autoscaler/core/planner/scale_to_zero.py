"""Scale to zero within the error budget: the idle timeout where the policy leaves it to the planner.

A request that arrives at zero replicas waits for a cold start, or a wake-up, and misses its objective. For each of some
idle timeouts the planner counts the requests that would have waited, had it applied all the time. It selects the
shortest timeout whose misses fit the budget and whose time at zero pays for its starts; none where no gateway would
hold the requests.

An idle replica costs as much as one that starts, so zero never costs replica-seconds. But a start that follows a short
time at zero makes requests wait for nothing. So a timeout owes each start until its time at zero was as long, as in ski
rental; debts add up as in a cumulative sum test (CUSUM), and what is saved beyond them is not kept for bad times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.starts.wake_ups import first_start_s
from autoscaler.core.table.columns import Columns, FloatColumn, Transient, or_zero, replace

TIMEOUTS_S = 60 * np.array([2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 90.0, 180.0, 480.0])
"""Idle timeouts to select from, seconds without work."""

WAKE_UP_SHARE = 0.6
"""Share of the error budget that wake-ups may use; the rest is for the load."""

MIN_OBSERVED_S = 3600.0
"""Seconds before which no workload goes to zero, because it is unknown how often it would wake up."""

FADE_S = 7 * 86_400.0
"""Time constant with which counts fade: a week has its nights and its weekend."""

WAKE_UP_DELAY_S = 20.0
"""Time that a wake-up takes in addition to the cold start: until a scrape has seen the queue, and a tick the scrape."""

SELECT_AFTER_S = 60.0
"""Quiet seconds from which the timeout is selected again. Before, the last selection stands."""


@dataclass(frozen=True)
class IdleTimeouts(Columns):
    """Costs of each idle timeout, had it applied all the time; float64[W] unless stated. K timeouts."""

    waking_s: Transient[FloatColumn]  # float64[K, W], seconds until the replica of a wake-up would serve
    delayed: FloatColumn  # float64[K, W], requests that would have waited for one, fading
    wake_ups: FloatColumn  # float64[K, W], fading
    unpaid_s: FloatColumn  # float64[K, W], seconds of starts for which no time at zero has paid, fading
    arrivals_at_zero: FloatColumn  # requests that really arrived while no replica served, fading as the error budget
    late_arrivals: FloatColumn  # those whose next replica was further away than the TTFT objective, fading alike
    requests: FloatColumn  # all requests, fading
    observed_s: FloatColumn  # seconds in which they arrived, fading
    timeout_s: Transient[FloatColumn]  # the selected timeout; NaN: none, or the policy states one

    @classmethod
    def blank(cls, rows: int) -> IdleTimeouts:
        none, by_timeout = np.zeros(rows), np.zeros((len(TIMEOUTS_S), rows))
        return cls(by_timeout, by_timeout, by_timeout, by_timeout, none, none, none, none, np.full(rows, np.nan))


def update_idle_timeouts(
    inp: TickInput, observation: Observation, arrivals: Arrivals, before: IdleTimeouts
) -> IdleTimeouts:
    """Count what each timeout would have cost since the last tick, and select one, where arrivals are known."""
    interval_s, arrived = arrivals.counted_s, arrivals.arrived
    start_s = first_start_s(inp, observation.wake_s, observation.cold_start_s)
    after = count_wake_ups(before, interval_s, arrived, arrivals.rested_s, start_s)
    budget_fade = np.exp(-interval_s / inp.spec.budget_window_s)
    at_zero = np.where(observation.ready == 0, arrived, 0.0)
    next_s = np.where(np.isnan(observation.next_ready_s), observation.cold_start_s, observation.next_ready_s)
    next_s = np.where(observation.wakeable > 0, np.fmin(next_s, observation.wake_s), next_s)
    late = np.where(next_s > inp.spec.first_token_limit_s, at_zero, 0.0)
    return replace(
        after,
        arrivals_at_zero=before.arrivals_at_zero * budget_fade + at_zero,
        late_arrivals=before.late_arrivals * budget_fade + late,
        timeout_s=_select_timeout(inp, observation, arrivals, after, start_s),
    )


def count_wake_ups(
    before: IdleTimeouts, interval_s: FloatColumn, arrived: FloatColumn, rested_s: FloatColumn, start_s: FloatColumn
) -> IdleTimeouts:
    """Count what each timeout would have cost in an interval; float64[W]. rested_s: seconds without requests before."""
    fade = np.exp(-interval_s / FADE_S)
    waking_s = np.fmax(before.waking_s - interval_s, 0.0)
    delayed, wake_ups, unpaid_s = before.delayed * fade, before.wake_ups * fade, before.unpaid_s * fade
    # For all other rows only time passes. A wake-up from a longer timeout is one from the shortest too.
    rows = np.flatnonzero((arrived > 0) & ((rested_s >= TIMEOUTS_S[0]) | (waking_s[0] > 0)))
    if len(rows):
        at_zero_s = rested_s[rows] - TIMEOUTS_S[:, None]
        wakes_up = at_zero_s >= 0
        waking_s[:, rows] = np.where(wakes_up, start_s[rows] + WAKE_UP_DELAY_S, waking_s[:, rows])
        delayed[:, rows] += np.where(waking_s[:, rows] > 0, arrived[rows], 0.0)
        wake_ups[:, rows] += wakes_up
        owed_s = np.maximum(unpaid_s[:, rows] + start_s[rows] - at_zero_s, 0.0)
        unpaid_s[:, rows] = np.where(wakes_up, owed_s, unpaid_s[:, rows])
    return replace(
        before,
        waking_s=waking_s,
        delayed=delayed,
        wake_ups=wake_ups,
        unpaid_s=unpaid_s,
        requests=before.requests * fade + arrived,
        observed_s=before.observed_s * fade + interval_s,
    )


def _select_timeout(
    inp: TickInput, observation: Observation, arrivals: Arrivals, timeouts: IdleTimeouts, start_s: FloatColumn
) -> FloatColumn:
    """Return the selected timeout; float64[W], NaN: none, or the policy states one."""
    is_open = np.isinf(inp.spec.idle_after_s) & ~np.isnan(observation.gateway_waiting)
    timeout_s = np.where(is_open, timeouts.timeout_s, np.nan)
    rows = np.flatnonzero(is_open & (arrivals.quiet_s >= SELECT_AFTER_S))
    if len(rows):
        timeout_s[rows] = find_shortest_timeout(
            timeouts.take(rows), inp.spec.attainment[rows], start_s[rows], arrivals.quiet_s[rows]
        )
    return timeout_s


def compute_wake_up_share(timeouts: IdleTimeouts, attainment: FloatColumn) -> FloatColumn:
    """Return the share of requests that wait for wake-ups with the selected timeout; float64[W], 0 without one.

    It is at most their part of the error budget. A timeout that has cost more is given up with the next quiet minute.
    """
    selected = np.searchsorted(TIMEOUTS_S, np.where(np.isnan(timeouts.timeout_s), TIMEOUTS_S[0], timeouts.timeout_s))
    delayed = timeouts.delayed[selected, np.arange(len(selected))]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.minimum(or_zero(delayed / timeouts.requests), WAKE_UP_SHARE * (1 - attainment))
    return np.where(np.isnan(timeouts.timeout_s), 0.0, share)


def find_shortest_timeout(
    timeouts: IdleTimeouts, attainment: FloatColumn, start_s: FloatColumn, quiet_s: FloatColumn
) -> FloatColumn:
    """Return the shortest timeout that pays, whose misses, with those of one more wake-up, fit the budget; NaN: none.

    A timeout pays if it owes no more seconds than the present quiet time has gone on beyond it.

    One more wake-up costs as many as the past ones did on average. One past wake-up with the usual requests of a
    start and one more is assumed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = 1 + or_zero(timeouts.requests / timeouts.observed_s) * (start_s + WAKE_UP_DELAY_S)
    expected = timeouts.delayed + (timeouts.delayed + usual) / (timeouts.wake_ups + 1)
    fits = expected <= WAKE_UP_SHARE * (1 - attainment) * timeouts.requests
    fits &= timeouts.unpaid_s <= np.maximum(quiet_s - TIMEOUTS_S[:, None], 0.0)
    is_known = timeouts.observed_s >= MIN_OBSERVED_S
    return np.where(is_known & fits.any(axis=0), TIMEOUTS_S[fits.argmax(axis=0)], np.nan)
