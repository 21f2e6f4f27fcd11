"""Flaps: changes of the replica count that are undone within one cold start, before a replica could have served.

The count is that of the cluster, whoever changed it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import Columns, FloatColumn, TimestampColumn, Transient, replace


@dataclass(frozen=True)
class Flaps(Columns):
    """The last change of the count of each workload, and how many changes were undone; float64[W]."""

    replicas: Transient[FloatColumn]  # count at the last tick
    step: Transient[FloatColumn]  # replicas of the last change, negative for a scale-down
    last_change_s: Transient[TimestampColumn]  # NaN: none yet
    last_flap_s: Transient[TimestampColumn]  # NaN: none yet
    count: FloatColumn  # flaps since the workload was first seen

    @classmethod
    def blank(cls, rows: int) -> Flaps:
        return replace(super().blank(rows), count=np.zeros(rows))


def update(before: Flaps, replicas: FloatColumn, cold_start_s: FloatColumn, now_s: float) -> Flaps:
    """Count the changes since the last tick that reverse one which is younger than a cold start."""
    step = replicas - before.replicas
    changes = np.abs(step) > 0  # False if unknown
    undoes = changes & (step * before.step < 0) & (now_s - before.last_change_s < cold_start_s)
    return Flaps(
        replicas=replicas,
        step=np.where(changes, step, before.step),
        last_change_s=np.where(changes, now_s, before.last_change_s),
        last_flap_s=np.where(undoes, now_s, before.last_flap_s),
        count=before.count + undoes,
    )
