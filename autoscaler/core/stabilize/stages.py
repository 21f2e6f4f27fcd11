"""The stages of one workload alone: each turns a column of desired replicas into another.

Counts are fractions until `tolerate` rounds them; from there on they are whole.
"""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.spec import Spec
from autoscaler.core.table import sliding_window
from autoscaler.core.table.columns import REPLICA_ROUNDING, BoolColumn, FloatColumn, ceil_replicas
from autoscaler.core.table.sliding_window import SlidingWindow

WITHIN_PERIOD = 0.9
"""Share of a period after which the next step may come. A step is made with a tick, and a tick may come a little early:
with ticks of 5 s a second step comes after 15 s, and not after 20 s because the first one is 15.0 s old."""


def hold_unknown(desired: FloatColumn, current: FloatColumn, informed: BoolColumn) -> FloatColumn:
    """Hold or grow where inputs are missing or stale; hold where there is no recommendation.

    informed: bool[W], inputs are trusted and the load is known. Missing data never shrinks, because a dead exporter
    looks exactly like a workload without load.
    """
    return np.where(informed & ~np.isnan(desired), desired, np.fmax(desired, current))


def await_planner(
    desired: FloatColumn, current: FloatColumn, unweighed: FloatColumn, warming_up: BoolColumn
) -> FloatColumn:
    """Grow only for the signals that the planner never weighs, while it is about to recommend.

    unweighed: float64[W], replicas by those signals; NaN: none. warming_up: bool[W].
    """
    return np.where(warming_up, np.fmin(desired, np.fmax(current, unweighed)), desired)


def tolerate(desired: FloatColumn, current: FloatColumn, tolerance: FloatColumn) -> FloatColumn:
    """Keep `current` while `desired` is within the tolerance of it, then round up to whole replicas.

    At 20 replicas and 0.1: 18 to 22 keep 20. Source: Kubernetes HPA, `--horizontal-pod-autoscaler-tolerance`.
    """
    close = np.abs(desired - current) <= tolerance * current + REPLICA_ROUNDING
    return np.where(close, current, ceil_replicas(desired))


def stabilize(
    desired: FloatColumn,
    current: FloatColumn,
    spec: Spec,
    remembered: SlidingWindow,
    now_s: float,
    informed: BoolColumn,
    watched_s: FloatColumn,
    planned: BoolColumn,
    beside: FloatColumn,
) -> tuple[FloatColumn, SlidingWindow]:
    """Shrink only to the most, grow only to the least, that was desired at any moment of the window.

    watched_s: float64[W], for how long this workload has been watched; nothing shrinks before a full window was.
    planned: bool[W], the planner speaks, which holds its own peaks. Then the window remembers only what other signals
    recommend, `beside`, float64[W]. A count that is not informed (bool[W], as above) is a guess and is not remembered.
    Source: Kubernetes HPA `behavior.*.stabilizationWindowSeconds`.
    """
    known = np.where(informed, np.where(planned, beside, desired), np.nan)
    remembered, ceiling, floor = sliding_window.update(
        remembered, known, desired, now_s, spec.down_stabilization_s, spec.up_stabilization_s
    )
    ceiling = np.where(planned, np.fmax(ceiling, desired), ceiling)
    # From zero the first replica is not put off: a request waits, and there is no count that growth could disturb.
    grown = np.fmax(np.fmax(current, floor), np.where(current == 0, 1.0, current))
    shrunk = np.fmin(current, ceiling)
    stable = np.where(desired > current, grown, np.where(desired < current, shrunk, desired))
    is_watched = watched_s >= spec.down_stabilization_s
    return np.where(is_watched, stable, np.fmax(stable, current)), remembered


def keep_recent(
    desired: FloatColumn, current: FloatColumn, remembered: SlidingWindow, now_s: float, hold_s: FloatColumn
) -> tuple[FloatColumn, SlidingWindow]:
    """Shrink only to the most that was desired within the last `hold_s` seconds; float64[W], NaN: hold nothing now.

    A replica that was requested less than a cold start ago has served nothing yet. If it is cancelled and requested
    again, it is ready later than if it had been left to load. Zero has a timeout of its own and is not held.
    """
    remembered, ceiling, _ = sliding_window.update(remembered, desired, desired, now_s, hold_s, hold_s)
    is_held = (desired > 0) & (desired < current) & ~np.isnan(hold_s)
    return np.where(is_held, np.fmax(desired, np.fmin(current, ceiling)), desired), remembered


def kept_for_s(
    stable: FloatColumn,
    desired: FloatColumn,
    spec: Spec,
    remembered: SlidingWindow,
    now_s: float,
    watched_s: FloatColumn,
) -> FloatColumn:
    """Return for how long `stabilize` will go on to keep `stable` above `desired`, float64[W]; NaN: it does not."""
    high_s = sliding_window.expires_in_s(remembered, stable, now_s, spec.down_stabilization_s)
    left_s = np.fmax(high_s, spec.down_stabilization_s - watched_s)
    return np.where((stable > desired) & (left_s > 0), left_s, np.nan)


def go_idle(desired: FloatColumn, current: FloatColumn, idle_after_s: FloatColumn, idle_s: FloatColumn) -> FloatColumn:
    """Go to zero after some time without work; otherwise an awake workload keeps one replica.

    idle_after_s: float64[W], that time; NaN: never. idle_s: float64[W], seconds since there was work, or may have been
    some. At zero nothing happens until a replica is recommended.
    """
    idle = idle_s >= idle_after_s  # False for NaN
    at_rest = np.where(idle | (current == 0), 0.0, 1.0)
    return np.where(desired > 0, desired, at_rest)


def limit_rate(
    desired: FloatColumn, current: FloatColumn, spec: Spec, remembered: SlidingWindow, now_s: float
) -> tuple[FloatColumn, FloatColumn, SlidingWindow]:
    """Move by at most one step per period, measured from the count at which the period's other moves began.

    Returns the limited count, and the least that one step down allows; float64[W] each.

    A step up begins at the lowest count of the period, and is the larger of a fraction and a number of replicas. A step
    down begins at the highest, and is one replica at least. From the policy's floor to zero is one step. Unstated steps
    do not limit, and growth from zero is not limited, because there is no count to take a fraction of.
    Source: Kubernetes HPA scaling policies.
    """
    remembered, began_high, began_low = sliding_window.update(
        remembered, current, current, now_s, WITHIN_PERIOD * spec.down_period_s, WITHIN_PERIOD * spec.up_period_s
    )
    up = np.fmax(np.ceil(began_low * spec.up_step_fraction), spec.up_step_replicas)
    down = np.fmax(np.floor(began_high * spec.down_step_fraction), spec.down_step_replicas)
    most = np.fmax(began_low + np.fmax(up, 1.0), current)
    least = np.fmin(began_high - np.fmax(down, 1.0), current)
    # The policy's floor is the last stop on the way to zero: a step that would end below it ends at zero.
    least = np.where((desired == 0) & (least < spec.min_replicas), 0.0, least)
    limited = np.fmin(desired, np.where(np.isnan(up) | (current == 0), np.inf, most))
    least = np.where(np.isnan(down), -np.inf, least)
    return np.fmax(limited, least), least, remembered


def bound(desired: FloatColumn, spec: Spec, informed: BoolColumn, least: FloatColumn) -> FloatColumn:
    """Keep within the policy's floor and ceiling; zero is below the floor on purpose, where scale to zero is on.

    informed: bool[W], the load is known. While it is unknown, a ceiling below the count is approached in the steps of
    `limit_rate`. Such a ceiling was lowered without a look at the load, and may be too low for it.
    least: float64[W], replicas, of `limit_rate`.
    """
    floor = np.where((desired == 0) & ~np.isnan(spec.idle_after_s), 0.0, spec.min_replicas)
    ceiling = np.where(informed | np.isnan(spec.max_replicas), spec.max_replicas, np.fmax(spec.max_replicas, least))
    return np.fmin(np.fmax(desired, floor), ceiling)
