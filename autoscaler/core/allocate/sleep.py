"""Replicas that are kept asleep: how many there are beside those that serve, and which pods sleep and wake.

A sleeping replica holds its GPUs, so it is headroom that starts in seconds. When the load grows they wake first; the
reserve is filled up again once the load has stayed for the window after which the workload would shrink. When the load
falls, replicas that would leave go to sleep instead, up to the number of the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.types import SleepOrders, TickInput
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.starts.wake_ups import PodSleep, is_managed, is_overdue
from autoscaler.core.table import sliding_window
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, Transient, or_zero, replace
from autoscaler.core.table.sliding_window import SlidingWindow

IDLE_S = 30.0
"""A replica goes to sleep after this long without a request."""


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
    asleep, is_ruled = pods.asleep > 0, is_managed(inp) & ~np.isnan(serving)
    none = np.zeros(len(fleet.pods), dtype=bool)
    if not is_ruled.any():
        return SleepOrders(none, none, asleep), replace(pods, last_wake_ordered_s=np.full(len(none), np.nan))
    ruled, overdue = is_ruled[fleet.pod_workload], is_overdue(inp, observation.wake_s, pods)
    idle = inp.now_s - pods.idle_since_s >= IDLE_S  # False where it has work
    awake = observation.ready - or_zero(observation.stuck)
    room = np.fmin(inp.spec.sleep_replicas, replicas - serving) - observation.asleep
    excess = np.where(observed.trusted & (replicas >= fleet.replicas), np.fmin(awake - serving, room), 0.0)
    # Those that wake already come first, overdue ones last; the longest idle ones sleep first.
    wakes = ~np.isnan(pods.last_wake_ordered_s)
    wake = _pick(ruled & asleep, serving - awake, fleet.pod_workload, overdue, ~wakes)
    tired = _pick(ruled & idle, excess, fleet.pod_workload, pods.idle_since_s)
    sleep = np.where(asleep, ruled & ~wake, tired)
    to_wake = wake | (overdue & asleep)
    ordered_s = np.where(to_wake, np.fmin(pods.last_wake_ordered_s, inp.now_s), np.nan)
    return SleepOrders(wake, sleep, asleep), replace(pods, last_wake_ordered_s=ordered_s)


def _pick(
    candidates: BoolColumn, most: FloatColumn, pod_workload: IntColumn, *keys: BoolColumn | FloatColumn
) -> BoolColumn:
    """Return the first pods of each workload, at most `most` of it, by these keys and then by row; bool[P].

    candidates: bool[P]. most: float64[W], rounded down. keys: [P], the most important first.
    """
    pods = np.flatnonzero(candidates)
    pods = pods[np.lexsort((*(key[pods] for key in reversed(keys)), pod_workload[pods]))]  # stable: then by row
    workload = pod_workload[pods]
    number = np.arange(len(pods)) - np.searchsorted(workload, workload)  # 0 for the first of each
    picked = np.zeros(len(candidates), dtype=bool)
    picked[pods[number < np.floor(most)[workload]]] = True
    return picked
