"""Replicas that are kept asleep: how many there are beside those that serve, and which pods sleep and wake.

A sleeping replica holds its GPUs, so it is headroom that starts in seconds. When the load grows they wake first; the
reserve is filled up again once the load has stayed for the window after which the workload would shrink. When the load
falls, replicas that would leave go to sleep instead, up to the number of the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import SleepOrders, TickInput
from autoscaler.core.observe.wake_ups import PodSleep, is_managed, is_overdue
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.table import sliding_window
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, Transient, or_zero, replace
from autoscaler.core.table.sliding_window import SlidingWindow

IDLE_S = 30.0
"""A replica goes to sleep after so long without a request."""


@dataclass(frozen=True)
class SleepState(Columns):
    """The table of this stage; [W]."""

    serving_lately: Transient[SlidingWindow]  # fewest replicas that were to serve, over scaleDown.stabilization


def add(inp: TickInput, observed: Observed, serving: FloatColumn, before: SleepState) -> tuple[FloatColumn, SleepState]:
    """Return the replicas with those that are to be asleep, float64[W]. serving: float64[W], those that are to serve.

    6 serve, and 2 may sleep: with 8 present, all stay, and with 6 two are requested once 6 were needed for a window.
    """
    managed = is_managed(inp)
    if not managed.any():
        return serving, before
    spec, asleep = inp.spec, np.where(managed, inp.spec.sleep_replicas, 0.0)
    seen = np.where(observed.trusted & managed, serving, np.nan)
    window, _, fewest = sliding_window.update(
        before.serving_lately, seen, seen, inp.now_s, spec.down_stabilization_s, spec.down_stabilization_s
    )
    watched = inp.now_s - observed.trusted_since_s >= spec.down_stabilization_s
    filled = np.where(watched, fewest + asleep, np.nan)
    kept = np.fmin(serving + asleep, observed.observation.replicas)
    most = np.fmax(spec.max_replicas, serving)
    with_asleep = np.fmin(np.fmax(serving, np.fmax(filled, kept)), most)
    return np.where(managed & ~np.isnan(serving), with_asleep, serving), SleepState(window)


def order(
    inp: TickInput, observed: Observed, serving: FloatColumn, replicas: FloatColumn, pods: PodSleep
) -> tuple[SleepOrders, PodSleep]:
    """Say which pods are to be awake and which asleep, and remember since when each is to wake.

    serving: float64[W], replicas that are to serve. replicas: float64[W], decided. A pod goes to sleep only while
    nothing is to leave, because a ReplicaSet removes pods that are not ready before all others.
    """
    fleet, observation = inp.fleet, observed.observation
    wake, sleep = np.zeros(len(fleet.pods), dtype=bool), np.zeros(len(fleet.pods), dtype=bool)
    asleep = pods.asleep > 0
    rows = np.flatnonzero(is_managed(inp) & ~np.isnan(serving))
    if not len(rows):
        return SleepOrders(wake, sleep, asleep), replace(pods, last_wake_ordered_s=np.full(len(wake), np.nan))
    overdue = is_overdue(inp, observation.wake_s, pods)
    idle = inp.now_s - pods.idle_since_s >= IDLE_S  # False where it has work
    awake = observation.ready - or_zero(observation.stuck)
    room = np.fmin(inp.spec.sleep_replicas, replicas - serving) - observation.asleep
    excess = np.where(observed.trusted & (replicas >= fleet.replicas), np.fmin(awake - serving, room), 0.0)
    for row in rows.tolist():
        own = np.flatnonzero(fleet.pod_workload == row)
        sleeping = own[asleep[own]]
        missing = int(max(serving[row] - awake[row], 0.0))
        wake[_first_to_wake(sleeping, pods, overdue)[:missing]] = True
        candidates = own[idle[own]]
        longest = candidates[np.lexsort((candidates, pods.idle_since_s[candidates]))]
        sleep[longest[: int(max(excess[row], 0.0))]] = True
        sleep[sleeping] = ~wake[sleeping]
    to_wake = wake | (overdue & asleep)
    ordered_s = np.where(to_wake, np.fmin(pods.last_wake_ordered_s, inp.now_s), np.nan)
    return SleepOrders(wake, sleep, asleep), replace(pods, last_wake_ordered_s=ordered_s)


def _first_to_wake(sleeping: IntColumn, pods: PodSleep, overdue: BoolColumn) -> IntColumn:
    """Return the sleeping pods in the order in which they wake: those that wake already first, overdue ones last."""
    wakes = ~np.isnan(pods.last_wake_ordered_s[sleeping])
    return sleeping[np.lexsort((sleeping, ~wakes, overdue[sleeping]))]
