"""When a service may rest: the gaps between its requests, and what going to zero after each time would have saved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn
from autoscaler.report.load import FleetLoad

IDLE_TIMES_S = (300.0, 600.0, 900.0, 1800.0, 3600.0)
"""Idle times that are tried."""

BUDGET_PART = 0.5
"""Part of the error budget that waking up may use; the rest is for queues."""

LEAST_SAVED = 0.05
"""Share of the replica-hours that zero must save; less is not worth a cold start in front of a user."""


class Rest(NamedTuple):
    """The best idle time of a service."""

    idle_s: float
    saved_h: float  # replica-hours, of one replica
    wakes: int
    missed_share: float  # 0..1, requests that would have waited for a cold start


def find_rest(load: FleetLoad, w: int, cold_start_s: float, budget: float) -> Rest | None:
    """Return the idle time that saves most within the error budget; None: zero never pays."""
    paying = [rest for rest in _paying(load, w, cold_start_s) if rest.missed_share <= BUDGET_PART * budget]
    return max(paying, key=lambda rest: rest.saved_h, default=None)


def say_why_not(load: FleetLoad, w: int, cold_start_s: float) -> str:
    """Return why a service without a best idle time should not rest."""
    paying = _paying(load, w, cold_start_s)
    if not paying:
        return f"it would save less than {LEAST_SAVED:.0%} of the replica-hours"
    missed = min(rest.missed_share for rest in paying)
    return f"{missed:.2%} of requests would wait for it to wake up, more than half of the error budget"


def _paying(load: FleetLoad, w: int, cold_start_s: float) -> list[Rest]:
    """Return the idle times that save enough replica-hours."""
    step_s = load.span.step_s
    arrivals = np.where(load.seen[:, w], load.arrivals[:, w], 1.0).astype(np.float64)  # an unseen step is no silence
    total = float(load.arrivals[load.seen[:, w], w].sum())
    seen_h = float(load.seen[:, w].sum()) * step_s / 3600
    gaps, woken_by = _gaps(arrivals, max(round(cold_start_s / step_s), 1))
    found = []
    for idle_s in IDLE_TIMES_S:
        rests = gaps * step_s > idle_s
        saved_h = float(np.maximum(gaps * step_s - idle_s, 0.0).sum() / 3600)
        missed = float(woken_by[rests].sum()) / total if total else 0.0
        if rests.any() and saved_h >= LEAST_SAVED * seen_h:
            found.append(Rest(idle_s, saved_h, int(rests.sum()), missed))
    return found


def _gaps(arrivals: FloatColumn, cold_steps: int) -> tuple[FloatColumn, FloatColumn]:
    """Return the length of each gap in steps, and the requests that arrive within a cold start after it."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (arrivals <= 0).astype(np.int8), [0]])))
    first, last = edges[::2], edges[1::2]
    total = np.concatenate([[0.0], np.cumsum(arrivals)])
    until = np.minimum(last + cold_steps, len(arrivals))
    return (last - first).astype(np.float64), total[until] - total[last]
