"""The columns that are kept of pods, how the object of a pod fills them, and those that a view shows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.api.pod_objects import PodObject as SeenPod
from autoscaler.adapters.kubernetes.pods.model_source import is_steered
from autoscaler.adapters.kubernetes.pods.node_clocks import clock_behind_s
from autoscaler.adapters.kubernetes.pods.status import (
    Key,
    at_s,
    deletion_cost,
    engine_start,
    is_leaving,
    since_s,
    true_conditions,
    weights_init,
)
from autoscaler.adapters.kubernetes.pods.template import stated_slots
from autoscaler.core.model.fleet import PendingCause, Pod
from autoscaler.core.model.phases import SKEW_S
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import Clock

ROW = np.dtype(
    [
        ("alive", np.bool_),
        ("pod_id", np.int64),
        ("target_id", np.int64),  # -1: the owner is not known
        ("ready", np.bool_),
        ("terminating", np.bool_),
        ("blocked", np.int64),
        ("created_s", np.float64),
        ("scheduled_s", np.float64),
        ("started_s", np.float64),
        ("ready_s", np.float64),
        ("first_ready_s", np.float64),  # since the engine's last start
        ("clock_s", np.float64),  # how far the clock of its node is ahead; negative: behind; 0: not noticeably
        ("waited_s", np.float64),  # Unix time at which it was last seen without its engine's container; NaN: one runs
        ("unready_s", np.float64),  # Unix time at which it was last seen not ready; NaN: it is
        ("start_lag_s", np.float64),  # from the kubelet's time of the last start to the event about it; NaN: not seen
        ("image_s", np.float64),
        ("pulling_since_s", np.float64),
        ("weights_s", np.float64),
        ("fetching_since_s", np.float64),
        ("deletion_cost", np.float64),  # NaN: of no ReplicaSet
        ("steered", np.bool_),
        ("slots", np.float64),
        ("preempts", np.float64),  # priority below which the scheduler evicts other pods for it
    ]
)

BLANK = np.zeros((), dtype=ROW)
"""The row of a pod of which nothing is read yet."""
BLANK["alive"] = True
for _name in ("first_ready_s", "waited_s", "unready_s", "start_lag_s"):
    BLANK[_name] = math.nan


class PodRows(NamedTuple):
    """The pods of some targets. The columns are those of `core.model.fleet.Fleet`."""

    pods: tuple[Pod, ...]
    pod_id: IntColumn
    target_id: IntColumn
    ready: BoolColumn
    terminating: BoolColumn
    blocked: IntColumn
    created_s: FloatColumn
    scheduled_s: FloatColumn
    started_s: FloatColumn
    ready_s: FloatColumn
    image_s: FloatColumn
    pulling_since_s: FloatColumn
    weights_s: FloatColumn
    fetching_since_s: FloatColumn
    steered: BoolColumn  # the scheduler prefers nodes that hold the weights
    slots: FloatColumn  # by the command line

    def keys(self) -> list[Key]:
        return [(pod.namespace, pod.name) for pod in self.pods]

    @property
    def waits(self) -> BoolColumn:
        """The pods that are not ready, and not leaving; bool[P]."""
        return np.asarray(~self.ready & ~self.terminating)


COPIED = (
    "pod_id",
    "target_id",
    "ready",
    "terminating",
    "blocked",
    "created_s",
    "scheduled_s",
    "started_s",
    "ready_s",
    "image_s",
    "pulling_since_s",
    "weights_s",
    "fetching_since_s",
    "steered",
    "slots",
)
"""Columns that a view copies."""


def write_row(line: np.void, seen: SeenPod, blocked: PendingCause, is_first: bool, clock: Clock) -> None:
    """Write what the object of a pod says into its row. is_first: the pod is seen for the first time."""
    offset_s = clock.now_s() - clock.wall_s()
    conditions = true_conditions(seen)
    ready_s = since_s(conditions.get("Ready"), offset_s)
    started_s, was_restarted = engine_start(seen, offset_s)
    # The kubelet writes both by the clock of its node. What has happened does not lie in the future.
    clock_s = np.fmax(ready_s, started_s) - clock.now_s()
    if clock_s > SKEW_S:
        line["clock_s"] = max(line["clock_s"], clock_s)
    elif not line["clock_s"] > 0:
        line["clock_s"] = clock_behind_s(line, clock.wall_s(), started_s - offset_s, ready_s - offset_s)
    ready_s, started_s = ready_s - line["clock_s"], started_s - line["clock_s"]
    if is_first and line["clock_s"] and "Ready" in conditions:
        started_s = math.nan  # by how much it is ahead is not known, so nothing is learned from this start
    if not math.isnan(ready_s):
        first_s = float(line["first_ready_s"])
        # A probe that fails for a moment resets the time of the condition, but the engine has served since before.
        line["first_ready_s"] = ready_s if math.isnan(first_s) or started_s > first_s else first_s
    ready = "Ready" in conditions
    line["ready"] = ready
    line["terminating"] = is_leaving(seen, conditions)
    line["blocked"] = blocked
    line["deletion_cost"] = deletion_cost(seen)
    line["steered"] = is_steered(seen.spec)
    line["slots"] = stated_slots(seen.spec)
    line["preempts"] = -math.inf if seen.spec.preemption_policy == "Never" else float(seen.spec.priority or 0)
    line["created_s"] = at_s(seen.metadata.creation_timestamp, offset_s)
    line["scheduled_s"] = since_s(conditions.get("PodScheduled"), offset_s)
    line["started_s"] = math.nan if was_restarted else started_s
    line["ready_s"] = line["first_ready_s"] if ready else math.nan
    line["weights_s"], line["fetching_since_s"] = weights_init(seen, offset_s)
