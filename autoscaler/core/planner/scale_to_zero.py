"""Zero within the error budget: after how much rest a workload gives up its last replica, where nobody states it.

Whoever comes while there is no replica waits for a cold start, and misses the objective. So for each of some rests it
is counted on paper how many requests would have waited, had the workload always gone to zero after so long. The
shortest whose misses the budget bears is in force; none where no gateway would hold those who come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.planner.error_budget import BUDGET_S
from autoscaler.core.planner.pod_work import LONGEST_STEP_S
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, Transient, clip, or_zero, replace

RESTS_S = 60 * np.array([2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0, 90.0, 180.0, 480.0])
"""Time without work after which a workload goes to zero; one of these."""

SHARE = 0.6
"""Of the error budget that wake-ups may cost; the rest is for the load."""

YOUNG_S = 3600.0
"""Before so much was watched nothing goes to zero: nobody knows yet how often it would be woken."""

FADE_S = 7 * 86_400.0
"""Time constant with which requests and misses are forgotten: a week has its nights and its weekend."""

RECENT_S = 600.0
"""Time constant of requests that came lately."""

LATE_S = 20.0
"""What a wake-up takes beside the cold start: until a scrape has seen the queue, and a tick the scrape."""

ASKED_AFTER_S = 60.0
"""Quiet seconds from which the rest in force is chosen anew; before, the last choice stands."""

MOST_REQUESTS = 1e6
"""No workload has more in flight, and to none come more between two ticks; a counter that says so is broken."""


@dataclass(frozen=True)
class Zero(Columns):
    """What became of each rest on paper; float64[W] unless stated. K rests."""

    in_flight: Transient[FloatColumn]  # requests, gateway included, when it was known last; NaN: never
    quiet_s: Transient[FloatColumn]  # since somebody was there
    waking_s: Transient[FloatColumn]  # float64[K, W], until the replica on paper serves
    waited: FloatColumn  # float64[K, W], requests that waited for one, fading
    wakes: FloatColumn  # float64[K, W], fading
    knocked: FloatColumn  # requests that in truth came while nobody served, over the error budget's time
    late: FloatColumn  # those of them that had to wait for longer than TTFT may be
    requests: FloatColumn  # all of them, fading
    counted_s: FloatColumn  # seconds in which they came, fading
    recent: Transient[FloatColumn]  # requests, fading within minutes
    recent_s: Transient[FloatColumn]  # seconds in which they came, fading alike
    rest_s: Transient[FloatColumn]  # after which it goes to zero; NaN: it does not, or a policy states when

    @classmethod
    def blank(cls, rows: int) -> Zero:
        none, by_rest = np.zeros(rows), np.zeros((len(RESTS_S), rows))
        unknown = np.full(rows, np.nan)
        return cls(unknown, none, by_rest, by_rest, by_rest, none, none, none, none, none, none, unknown)


def follow(inp: TickInput, observation: Observation, zero: Zero, elapsed_s: FloatColumn) -> Zero:
    """Let the replicas on paper live through the time since the last tick, and choose the rest that is in force.

    elapsed_s: float64[W], since that tick; NaN: there was none. While it is not known what is in flight nothing moves.
    """
    served = np.where(observation.ready == 0, 0.0, observation.running + observation.waiting)
    moving = served + or_zero(observation.gateway_waiting)
    in_flight = moving + or_zero(observation.stuck_requests) + or_zero(observation.apart_requests)
    known = (in_flight >= 0) & (in_flight <= MOST_REQUESTS) & _is_heard(observation)
    step_s = np.where(known, clip(or_zero(elapsed_s), 0.0, LONGEST_STEP_S), 0.0)
    came = np.fmax(or_zero(in_flight - zero.in_flight) + np.where(known, or_zero(observation.ended), 0), 0)
    came = np.where((step_s > 0) & (came <= MOST_REQUESTS), came, 0.0)
    still = known & (moving == 0) & (came == 0) & ~(observation.draining_requests > 0)
    fade, recently = np.exp(-step_s / FADE_S), np.exp(-step_s / RECENT_S)
    waking_s, waited, wakes = np.fmax(zero.waking_s - step_s, 0.0), zero.waited * fade, zero.wakes * fade
    # For all others only time passes. Whoever wakes after a longer rest has woken after the shortest.
    some = np.flatnonzero((came > 0) & ((zero.quiet_s >= RESTS_S[0]) | (waking_s[0] > 0)))
    if len(some):
        woken = zero.quiet_s[some] >= RESTS_S[:, None]
        waking_s[:, some] = np.where(woken, observation.cold_start_s[some] + LATE_S, waking_s[:, some])
        waited[:, some] += np.where(waking_s[:, some] > 0, came[some], 0.0)
        wakes[:, some] += woken
    forgiven, knocked = np.exp(-step_s / BUDGET_S), np.where(observation.ready == 0, came, 0.0)
    zero = Zero(
        in_flight=np.where(known, in_flight, zero.in_flight),
        quiet_s=np.where(still, zero.quiet_s + step_s, np.where(known, 0.0, zero.quiet_s)),
        waking_s=waking_s,
        waited=waited,
        wakes=wakes,
        knocked=zero.knocked * forgiven + knocked,
        late=zero.late * forgiven + np.where(_waits_too_long(inp, observation), knocked, 0.0),
        requests=zero.requests * fade + came,
        counted_s=zero.counted_s * fade + step_s,
        recent=zero.recent * recently + came,
        recent_s=zero.recent_s * recently + step_s,
        rest_s=zero.rest_s,
    )
    left_open = np.isinf(inp.spec.idle_after_s) & ~np.isnan(observation.gateway_waiting)
    rest_s = np.where(left_open, zero.rest_s, np.nan)
    rows = np.flatnonzero(left_open & (zero.quiet_s >= ASKED_AFTER_S))
    if len(rows):
        rest_s[rows] = _shortest(zero.take(rows), inp.spec.attainment[rows], observation.cold_start_s[rows])
    return replace(zero, rest_s=rest_s)


def _is_heard(observation: Observation) -> BoolColumn:
    """Say where all tell that hold requests: a pod that is heard again would bring what it had before as news. bool[W].

    So would a gateway, where there has been one.
    """
    unheard = observation.reporting < observation.ready - observation.joining
    return np.asarray(~unheard & ~(observation.gateway_silent_s > 0))


def _waits_too_long(inp: TickInput, observation: Observation) -> BoolColumn:
    """Say where the next replica serves too late for the TTFT of whoever comes now. bool[W]."""
    ready_in_s = np.where(np.isnan(observation.next_ready_s), observation.cold_start_s, observation.next_ready_s)
    return np.asarray(ready_in_s > inp.spec.promised_wait_s)


def gateway_is_silent(inp: TickInput, observation: Observation) -> BoolColumn:
    """Say where a gateway that told of requests tells no more: whoever waits there is not seen. bool[W].

    Nobody goes to zero then, for nobody could be woken. One that has told nothing for a day is taken for removed.
    """
    return np.asarray(observation.gateway_silent_s > inp.spec.max_input_age_s)  # False for NaN


def is_abandoned(observation: Observation) -> BoolColumn:
    """Say where no replica serves and the gateway, which alone can know, says that no request waits or comes. bool[W].

    The replicas may be starting for ever, or never start: nobody is there who would miss them.
    """
    nobody = (observation.gateway_waiting == 0) & ~(observation.gateway_arrivals_per_s > 0)
    return np.asarray((observation.ready == 0) & (observation.replicas > 0) & nobody)


def spent(zero: Zero, attainment: FloatColumn) -> FloatColumn:
    """Return the share of requests that waits for wake-ups under the rest in force; float64[W], 0 where none is.

    At most their part of the error budget: a rest that has cost more is given up with the next quiet minute.
    """
    place = np.searchsorted(RESTS_S, np.where(np.isnan(zero.rest_s), RESTS_S[0], zero.rest_s))
    waited = zero.waited[place, np.arange(len(place))]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.minimum(or_zero(waited / zero.requests), SHARE * (1 - attainment))
    return np.where(np.isnan(zero.rest_s), 0.0, share)


def pressing_per_s(zero: Zero, cold_start_s: FloatColumn) -> FloatColumn:
    """Return at which rate requests come, as far as the last minutes tell; float64[W].

    One more is assumed within one cold start more: of who was hardly watched little is known. 4 in 2 min, with a cold
    start of 1 min: 5 in 3 min.
    """
    return (zero.recent + 1) / (zero.recent_s + cold_start_s)


def idle_after(inp: TickInput, zero: Zero) -> FloatColumn:
    """Return the rest that the policy states, or that the budget bears where it leaves it open; NaN: never."""
    return np.where(np.isinf(inp.spec.idle_after_s), zero.rest_s, inp.spec.idle_after_s)


def _shortest(zero: Zero, attainment: FloatColumn, cold_start_s: FloatColumn) -> FloatColumn:
    """Return the shortest rest whose misses, with those of one more wake-up, the budget bears; NaN: none.

    One more costs as much as those on paper did on average, of which one with a request more than usual is assumed.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = 1 + or_zero(zero.requests / zero.counted_s) * (cold_start_s + LATE_S)
    expected = zero.waited + (zero.waited + usual) / (zero.wakes + 1)
    bears = expected <= SHARE * (1 - attainment) * zero.requests
    return np.where((zero.counted_s >= YOUNG_S) & bears.any(axis=0), RESTS_S[bears.argmax(axis=0)], np.nan)
