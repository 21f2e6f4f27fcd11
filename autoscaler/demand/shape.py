"""The shape of demand over the hours: the concurrency floor, its bands by hour and weekday, and what waited.

Concurrency is the number of requests inside a service, running or waiting. By Little's law it is the arrival rate times
the time that a request stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

import numpy as np

from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, or_zero
from autoscaler.report.load import FleetLoad

HOUR_S, CLOCK_S = 3600.0, 1800.0
EPOCH = date(1970, 1, 1)
FLOOR_SHARE = 0.95
"""Share of the hours in which the floor is reached or exceeded."""

BANDS = (0.05, 0.5, 0.95)
LEAST_OF_HOUR = 0.5
"""Share of an hour that must have been seen; other hours count nowhere."""

LEAST_HOURS = 24
"""Hours below which no floor is stated: a shorter history does not know the night."""

QUEUED = 0.5
"""Mean number of waiting requests from which a step had a queue."""

LATE_SHARE = 0.5
"""Share of the requests of a step that missed, from which its queue was a breach."""

LEAST_BREACHES = 3


@dataclass(frozen=True)
class Hours:
    """The hours of the clock that were seen, in the time zone of the reader."""

    hour: IntColumn  # int64[H], 0..23
    weekday: IntColumn  # int64[H], 0: Monday
    day: IntColumn  # int64[H], the number of the date
    concurrency: FloatColumn  # float64[H, W], requests; NaN: not seen
    demand: FloatColumn  # float64[H, W], replicas kept busy; NaN: not seen
    rate: FloatColumn  # float64[H, W], requests per second; NaN: not seen
    starts: IntColumn  # int64[H], the first step of each


@dataclass(frozen=True)
class Concurrency(Columns):
    """Requests at once of each service; float64[W] unless stated."""

    hours: FloatColumn  # seen
    floor: FloatColumn  # requests, reached or exceeded in 95 % of the hours; NaN: less than a day was seen
    floor_replicas: FloatColumn  # replicas that were kept busy in as many hours
    median: FloatColumn  # requests
    high: FloatColumn  # requests, exceeded in 5 % of the hours
    high_replicas: FloatColumn


@dataclass(frozen=True)
class QueueDepth(Columns):
    """What waited; float64[W], NaN: unknown."""

    queued_min: FloatColumn  # minutes with a queue
    waited: FloatColumn  # requests that arrived in these minutes
    wait_p50_s: FloatColumn  # time in which the replicas served what waited, for these requests
    wait_p95_s: FloatColumn
    deepest: FloatColumn  # requests waiting for each replica, in the deepest queue
    breach_depth: FloatColumn  # requests waiting for each replica, from which most requests missed; NaN: none did
    breach_errors: FloatColumn  # 0..1, share of queued minutes that this depth tells wrongly


def hours_of(load: FleetLoad, zone: ZoneInfo) -> Hours:
    """Return the mean of each hour of the clock of a zone.

    An hour that the clock shows twice is two. On Lord Howe Island, where it changes by half an hour, one is shorter.
    """
    at_s = load.span.ends_s - load.span.step_s / 2
    offset_s = _offsets_s(at_s, zone)
    number = np.floor((at_s + offset_s) / HOUR_S).astype(np.int64)  # hours of the clock since 1970-01-01
    changes = (np.diff(number, prepend=number[0] - 1) != 0) | (np.diff(offset_s, prepend=offset_s[0]) != 0)
    starts = np.flatnonzero(changes)
    seen = load.seen.astype(np.float64)
    steps = np.add.reduceat(seen, starts, axis=0)
    enough = steps * load.span.step_s >= LEAST_OF_HOUR * HOUR_S

    def mean(values: FloatColumn) -> FloatColumn:
        total = np.add.reduceat(np.where(load.seen, values, 0.0).astype(np.float64), starts, axis=0)
        return np.where(enough, total / np.maximum(steps, 1), np.nan)

    day, hour = np.divmod(number[starts], 24)
    return Hours(
        hour=hour,
        weekday=(day + EPOCH.weekday()) % 7,
        day=day + EPOCH.toordinal(),
        concurrency=mean(or_zero(load.running) + or_zero(load.waiting)),
        demand=mean(load.demand),
        rate=mean(load.arrivals / load.span.step_s),
        starts=starts,
    )


def _offsets_s(at_s: FloatColumn, zone: ZoneInfo) -> FloatColumn:
    """Return by how much the clock of a zone is ahead of UTC at each time. Clocks change at half hours of UTC."""
    halves, place = np.unique(np.floor(at_s / CLOCK_S), return_inverse=True)
    offsets = (datetime.fromtimestamp(each * CLOCK_S, zone).utcoffset() for each in halves.tolist())
    return np.array([0.0 if each is None else each.total_seconds() for each in offsets])[place]


def measure_concurrency(hours: Hours) -> Concurrency:
    """Return the floor and the bands over all hours."""
    known = (~np.isnan(hours.demand)).sum(axis=0)

    def at(values: FloatColumn, quantile: float, method: str) -> FloatColumn:
        found = np.full(values.shape[1], np.nan)
        enough = known >= LEAST_HOURS
        if enough.any():
            found[enough] = np.nanquantile(values[:, enough], quantile, axis=0, method=method)  # type: ignore[call-overload]
        return found

    return Concurrency(
        hours=known.astype(np.float64),
        floor=at(hours.concurrency, 1 - FLOOR_SHARE, "lower"),
        floor_replicas=at(hours.demand, 1 - FLOOR_SHARE, "lower"),
        median=at(hours.concurrency, 0.5, "linear"),
        high=at(hours.concurrency, FLOOR_SHARE, "higher"),
        high_replicas=at(hours.demand, FLOOR_SHARE, "higher"),
    )


def bands(hours: Hours, values: FloatColumn, of: IntColumn, kinds: int) -> FloatColumn:
    """Return low, middle and high of the hours of each kind; float64[3, kinds, W], NaN: none was seen.

    of: int64[H], the kind of each hour, such as its hour of the day.
    """
    found = np.full((len(BANDS), kinds, values.shape[1]), np.nan)
    for kind in range(kinds):
        rows = values[of == kind]
        known = ~np.isnan(rows).all(axis=0) if len(rows) else np.zeros(values.shape[1], bool)
        if known.any():
            found[:, kind, known] = np.nanquantile(rows[:, known], BANDS, axis=0)
    return found


def measure_queue(load: FleetLoad) -> QueueDepth:
    """Return what waited, how long, and at which depth waiting became a breach."""
    pods = np.maximum(load.pods, 1.0)
    queued = load.seen & (or_zero(load.waiting) >= QUEUED)
    depth = np.where(queued, load.waiting / pods, 0.0)
    wait_s = np.where(queued, load.waiting * or_zero(load.work_s) / pods, 0.0)
    arrived = np.where(queued, load.arrivals, 0.0).astype(np.float64)
    rows = [
        _queue_of(depth[:, w], wait_s[:, w], arrived[:, w], load.missed_share[:, w], queued[:, w]) for w in _all(load)
    ]
    middle, late, breach, errors = np.array(rows, np.float64).reshape(-1, 4).T
    return QueueDepth(
        queued_min=queued.sum(axis=0) * load.span.step_s / 60,
        waited=arrived.sum(axis=0),
        wait_p50_s=middle,
        wait_p95_s=late,
        deepest=depth.max(axis=0, initial=0.0).astype(np.float64),
        breach_depth=breach,
        breach_errors=errors,
    )


def _all(load: FleetLoad) -> range:
    return range(load.shape[1])


def _queue_of(
    depth: FloatColumn, wait_s: FloatColumn, arrived: FloatColumn, missed: FloatColumn, queued: BoolColumn
) -> tuple[float, float, float, float]:
    """Return the middle and the long wait of one service, and the depth that tells breaches best, with its errors."""
    at = np.flatnonzero(queued)
    if not len(at):
        return (np.nan,) * 4
    order = at[np.argsort(wait_s[at])]
    reached = np.cumsum(np.maximum(arrived[order], 1e-9))
    middle, late = (float(wait_s[order[np.searchsorted(reached, q * reached[-1])]]) for q in (0.5, 0.95))
    judged = at[~np.isnan(missed[at])]
    late_at = judged[missed[judged] >= LATE_SHARE]
    if len(late_at) < LEAST_BREACHES:
        return middle, late, np.nan, np.nan
    order = judged[np.argsort(depth[judged], kind="stable")]
    breach = missed[order] >= LATE_SHARE
    # A limit before position k calls the first k steps quiet and the others breaches.
    errors = np.concatenate([[0], np.cumsum(breach)]) + np.concatenate([np.cumsum(~breach[::-1])[::-1], [0]])
    limit = int(errors[: len(order)].argmin())
    return middle, late, float(depth[order[limit]]), float(errors[limit] / len(order))
