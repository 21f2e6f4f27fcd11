"""What comes: the work of a request, and how many replicas all of it keeps busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner.interval import Seen
from autoscaler.core.planner.pod_work import busy_share
from autoscaler.core.table.columns import Columns, FloatColumn, Transient, or_zero, replace

WORK_WINDOW_S = 600.0
"""Time constant of the work of a request: lengths drift over tens of minutes."""

FEWEST_REQUESTS = 5.0
"""Before their work is believed."""


@dataclass(frozen=True)
class Traffic(Columns):
    """What requests took, and what comes now; float64[W] each."""

    work_s: FloatColumn  # busy replica-seconds, fading
    requests: FloatColumn  # that they served, fading alike
    demand: Transient[FloatColumn]  # replicas kept busy by what comes; NaN: not known now

    @classmethod
    def blank(cls, rows: int) -> Traffic:
        return replace(super().blank(rows), work_s=np.zeros(rows), requests=np.zeros(rows))


def measure(
    traffic: Traffic, seen: Seen, idle_gap_s: FloatColumn, slots: FloatColumn, step_s: FloatColumn
) -> tuple[Traffic, FloatColumn]:
    """Turn what was counted into demand; also returns the requests that came on all replicas.

    Two estimates, each wrong where the other is right, are averaged: arrivals times the work of a request, which a
    queue does not hide but longer answers do at first; and how busy replicas are, with what was added to their queues
    and, as far as they are full, to their batches.
    """
    tally = seen.tally
    busy = busy_share(tally, idle_gap_s, slots)
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.where(tally.covered_s > 0, seen.served * step_s / tally.covered_s, np.nan)  # of those counted
        served = ~np.isnan(busy) & (tally.began > 0) & (whole > 0)
        fade = np.where(served, np.exp(-step_s / WORK_WINDOW_S), 1.0)
        work_s = traffic.work_s * fade + np.where(served, busy * seen.served * step_s, 0.0)
        requests = traffic.requests * fade + np.where(served, tally.began * whole, 0.0)
        each_s = np.where(requests >= FEWEST_REQUESTS, work_s / requests, np.nan)
        arrivals = tally.arrived * whole
        grown = (tally.queue_grown + busy**2 * tally.batch_grown) * whole
        offered = np.fmax(busy * seen.served + grown * each_s / step_s, 0.0)
        brought = arrivals * each_s / step_s
        demand = np.where(np.isnan(busy), brought, (brought + offered) / 2)
    return Traffic(work_s, requests, np.where(step_s > 0, demand, np.nan)), or_zero(arrivals)


def request_s(traffic: Traffic) -> FloatColumn:
    """Return the work of a request, busy replica-seconds; float64[W], NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(traffic.requests > 0, traffic.work_s / traffic.requests, np.nan)


def queued_s(traffic: Traffic, seen: Seen, waiting: FloatColumn) -> FloatColumn:
    """Return how long those that serve work at so many waiting requests; float64[W], NaN: not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(waiting * traffic.work_s / traffic.requests / np.maximum(seen.served, 1.0))
