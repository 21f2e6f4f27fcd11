"""Zero within the error budget: after how much rest a workload gives up its last replica, where nobody states it.

Whoever comes while there is no replica waits for a cold start, and misses the objective. So for each of some rests it
is counted on paper how many requests would have waited, had the workload always gone to zero after so long. The
shortest whose misses the budget bears is in force; none where no gateway would hold those who come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.planner.error_budget import BUDGET_S
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, Transient, or_zero, replace

RESTS_S = 60 * np.array([2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 90.0, 180.0, 480.0])
"""Time without work after which a workload goes to zero; one of these."""

SHARE = 0.6
"""Of the error budget that wake-ups may cost; the rest is for the load."""

YOUNG_S = 3600.0
"""Before so much was watched nothing goes to zero: nobody knows yet how often it would be woken."""

FADE_S = 7 * 86_400.0
"""Time constant with which requests and misses are forgotten: a week has its nights and its weekend."""

LATE_S = 20.0
"""What a wake-up takes beside the cold start: until a scrape has seen the queue, and a tick the scrape."""

ASKED_AFTER_S = 60.0
"""Quiet seconds from which the rest in force is chosen anew; before, the last choice stands."""


@dataclass(frozen=True)
class Zero(Columns):
    """What became of each rest on paper; float64[W] unless stated. K rests."""

    waking_s: Transient[FloatColumn]  # float64[K, W], until the replica on paper serves
    waited: FloatColumn  # float64[K, W], requests that waited for one, fading
    wakes: FloatColumn  # float64[K, W], fading
    knocked: FloatColumn  # requests that in truth came while nobody served, over the error budget's time
    late: FloatColumn  # those of them that had to wait for longer than TTFT may be
    requests: FloatColumn  # all of them, fading
    counted_s: FloatColumn  # seconds in which they came, fading
    rest_s: Transient[FloatColumn]  # after which it goes to zero; NaN: it does not, or a policy states when

    @classmethod
    def blank(cls, rows: int) -> Zero:
        none, by_rest = np.zeros(rows), np.zeros((len(RESTS_S), rows))
        return cls(by_rest, by_rest, by_rest, none, none, none, none, np.full(rows, np.nan))


def update(inp: TickInput, observation: Observation, arrivals: Arrivals, zero: Zero) -> Zero:
    """Let the replicas on paper live through the time since the last tick, and choose the rest that is in force.

    While it is unknown what arrives nothing moves.
    """
    step_s, came = arrivals.counted_s, arrivals.arrived
    fade = np.exp(-step_s / FADE_S)
    waking_s, waited, wakes = np.fmax(zero.waking_s - step_s, 0.0), zero.waited * fade, zero.wakes * fade
    # For all others only time passes. Whoever wakes after a longer rest has woken after the shortest.
    some = np.flatnonzero((came > 0) & ((arrivals.rested_s >= RESTS_S[0]) | (waking_s[0] > 0)))
    if len(some):
        woken = arrivals.rested_s[some] >= RESTS_S[:, None]
        waking_s[:, some] = np.where(woken, observation.cold_start_s[some] + LATE_S, waking_s[:, some])
        waited[:, some] += np.where(waking_s[:, some] > 0, came[some], 0.0)
        wakes[:, some] += woken
    forgiven, knocked = np.exp(-step_s / BUDGET_S), np.where(observation.ready == 0, came, 0.0)
    zero = Zero(
        waking_s=waking_s,
        waited=waited,
        wakes=wakes,
        knocked=zero.knocked * forgiven + knocked,
        late=zero.late * forgiven + np.where(_waits_too_long(inp, observation), knocked, 0.0),
        requests=zero.requests * fade + came,
        counted_s=zero.counted_s * fade + step_s,
        rest_s=zero.rest_s,
    )
    left_open = np.isinf(inp.spec.idle_after_s) & ~np.isnan(observation.gateway_waiting)
    rest_s = np.where(left_open, zero.rest_s, np.nan)
    rows = np.flatnonzero(left_open & (arrivals.quiet_s >= ASKED_AFTER_S))
    if len(rows):
        rest_s[rows] = _shortest(zero.take(rows), inp.spec.attainment[rows], observation.cold_start_s[rows])
    return replace(zero, rest_s=rest_s)


def _waits_too_long(inp: TickInput, observation: Observation) -> BoolColumn:
    """Say where the next replica serves too late for the TTFT of whoever comes now. bool[W]."""
    ready_in_s = np.where(np.isnan(observation.next_ready_s), observation.cold_start_s, observation.next_ready_s)
    return np.asarray(ready_in_s > inp.spec.first_token_limit_s)


def spent(zero: Zero, attainment: FloatColumn) -> FloatColumn:
    """Return the share of requests that waits for wake-ups under the rest in force; float64[W], 0 where none is.

    At most their part of the error budget: a rest that has cost more is given up with the next quiet minute.
    """
    place = np.searchsorted(RESTS_S, np.where(np.isnan(zero.rest_s), RESTS_S[0], zero.rest_s))
    waited = zero.waited[place, np.arange(len(place))]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.minimum(or_zero(waited / zero.requests), SHARE * (1 - attainment))
    return np.where(np.isnan(zero.rest_s), 0.0, share)


def _shortest(zero: Zero, attainment: FloatColumn, cold_start_s: FloatColumn) -> FloatColumn:
    """Return the shortest rest whose misses, with those of one more wake-up, the budget bears; NaN: none.

    One more costs as much as those on paper did on average, of which one with a request more than usual is assumed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = 1 + or_zero(zero.requests / zero.counted_s) * (cold_start_s + LATE_S)
    expected = zero.waited + (zero.waited + usual) / (zero.wakes + 1)
    bears = expected <= SHARE * (1 - attainment) * zero.requests
    return np.where((zero.counted_s >= YOUNG_S) & bears.any(axis=0), RESTS_S[bears.argmax(axis=0)], np.nan)
