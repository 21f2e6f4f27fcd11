"""GPU activity of pods, from DCGM: whether a model is loaded, and whether the GPU computes."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.observation import GpuActivity
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.pods import GroupedPods
from autoscaler.core.table.columns import BoolColumn, FloatColumn, clip, or_zero

LOADED_FB_USAGE = 0.5
"""Framebuffer usage from which a model counts as loaded. vLLM uses 0.85 to 0.95, and at most 0.1 while it sleeps."""

ACTIVE_TENSOR, ACTIVE_SM, ACTIVE_DRAM = 0.005, 0.01, 0.01
"""A loaded GPU is idle if none of these is reached, by readings of an idle engine."""

MAX_GPU_AGE_S = 120.0
"""Older readings are ignored. DCGM samples every 30 s, and is scraped as rarely."""


def count(
    now_s: float, pods: GroupedPods, elapsed_s: FloatColumn, loaded_idle_s: FloatColumn
) -> tuple[GpuActivity, FloatColumn]:
    """Return what GPUs show, and the replica-seconds with a loaded but idle GPU since the workload is known.

    elapsed_s: float64[W], since the last tick. loaded_idle_s: float64[W], these replica-seconds until then.
    """
    serving = pods.classes.serving
    loaded, active, idle = pods.by_workload.sum_known(
        classify(now_s, pods.samples, serving), serving | pods.classes.asleep
    )
    loaded_idle_s = loaded_idle_s + or_zero(idle) * clip(or_zero(elapsed_s), 0.0, MAX_GPU_AGE_S)
    shown_s = np.where(~np.isnan(idle) | (loaded_idle_s > 0), loaded_idle_s, np.nan)
    return GpuActivity(loaded, active, shown_s), loaded_idle_s


def classify(now_s: float, samples: PodSamples, serving: BoolColumn) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Return which pods are loaded, which are active, and which are loaded and idle; float64[P], 0 or 1, NaN: unknown.

    The framebuffer shows that a model is loaded, but never whether more or fewer replicas are needed. A pod is idle
    only if its engine is idle too, since short answers may leave no trace in a sample of 30 s.
    """
    fresh = serving & (now_s - samples.gpu_time_s <= MAX_GPU_AGE_S)  # False without a reading
    if not fresh.any():  # as without DCGM
        unknown = np.full(len(fresh), np.nan)
        return unknown, unknown, unknown
    loaded = samples.fb_usage >= LOADED_FB_USAGE
    active = (
        (samples.tensor_active >= ACTIVE_TENSOR)
        | (samples.sm_active >= ACTIVE_SM)
        | (samples.dram_active >= ACTIVE_DRAM)
    )
    has_activity = ~np.isnan(samples.tensor_active) | ~np.isnan(samples.sm_active) | ~np.isnan(samples.dram_active)
    has_engine = ~np.isnan(samples.running) & ~np.isnan(samples.waiting)
    engine_idle = (samples.running == 0) & (samples.waiting == 0)
    has_usage = fresh & ~np.isnan(samples.fb_usage)
    return (
        np.where(has_usage, loaded, np.nan),
        np.where(fresh & has_activity, active, np.nan),
        np.where(has_usage & has_activity & has_engine, loaded & ~active & engine_idle, np.nan),
    )
