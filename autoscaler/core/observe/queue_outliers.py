"""Pods whose queue does not shrink while most other pods of their workload have none.

A rank of such a pod is stuck, or requests are not spread over the pods. Other replicas cannot take its queue, so it is
not counted as load, nor is its KV cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import OutlierCounts
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.load import has_queue
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, or_zero, replace
from autoscaler.core.table.groupby import GroupBy

OUTLIER_S = 600.0
"""After this long the queue of such a pod is no load. Replicas that were added for it have had time to start."""


@dataclass(frozen=True)
class QueueOutliers(Columns):
    """Queues that have not shrunk while most other pods have none; float64[P]."""

    since_s: TimestampColumn  # since when; NaN: it is no such queue
    waiting: FloatColumn  # requests waiting then


def update(
    before: QueueOutliers, last_read_s: FloatColumn, samples: PodSamples, by_workload: GroupBy, active: BoolColumn
) -> QueueOutliers:
    """Compare the queue of each pod with those of its workload.

    last_read_s: float64[P], time of its last reading. active: bool[P], pods that make progress, and awake.
    """
    queueing = active & has_queue(samples.running, samples.waiting)
    if not queueing.any() and np.isnan(before.since_s).all():  # as in most ticks
        return before
    queues, pods = by_workload.count([queueing, active])
    is_rare = queueing & (2 * queues <= pods)[by_workload.pod_workload]
    lasts = is_rare & (samples.waiting >= before.waiting)
    return QueueOutliers(
        np.where(lasts, before.since_s, np.where(is_rare, last_read_s, np.nan)),
        np.where(lasts, before.waiting, np.where(is_rare, samples.waiting, np.nan)),
    )


def remove(
    now_s: float,
    samples: PodSamples,
    last_read_s: FloatColumn,
    outliers: QueueOutliers,
    by_workload: GroupBy,
    active: BoolColumn,
) -> tuple[PodSamples, OutlierCounts]:
    """Remove the queues and the KV-cache usage of outliers from the samples; also count them.

    last_read_s, active: as in `update`; here with sleeping pods.
    """
    is_outlier = active & (last_read_s - outliers.since_s >= OUTLIER_S)
    (pods,), (requests,) = by_workload.count([is_outlier]), by_workload.sum_known([samples.waiting], is_outlier)
    shortest_s = by_workload.min(np.where(is_outlier, now_s - outliers.since_s, np.nan))
    counts = OutlierCounts(pods, or_zero(requests), shortest_s)
    if not is_outlier.any():  # as in most ticks
        return samples, counts
    waiting = np.where(is_outlier, 0.0, samples.waiting)
    kv_usage = np.where(is_outlier, np.nan, samples.kv_usage)
    return replace(samples, waiting=waiting, kv_usage=kv_usage), counts
