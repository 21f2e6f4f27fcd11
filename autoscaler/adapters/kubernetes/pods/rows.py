"""The columns that are kept of pods, and those of some targets that a view shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.core.model.fleet import Pod
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

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
