"""Loaded is not active: what the GPU of each replica does, from one table of rules.

It is only told, and no stage of a decision reads it. Activity is the largest of the last three minutes, so a replica
that a rule calls idle or starved was so all that time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoscaler.core.model.diagnosis import Diagnosed, Diagnosis
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.gpu_activity import ACTIVE_DRAM, ACTIVE_SM, ACTIVE_TENSOR, LOADED_FB_USAGE, MAX_GPU_AGE_S
from autoscaler.core.observe.pods import GroupedPods
from autoscaler.core.table.columns import BoolColumn, IntColumn, or_zero

# Ratios are shares of peak cycles (DCGM_FI_PROF_*). A kernel is bound by that roof of the roofline which it comes near:
# the tensor cores (prefill reads a weight once for many tokens) or the memory interface (decode reads all for one).
PREFILL_TENSOR, PREFILL_MAX_DRAM = 0.3, 0.6
"""Prefill keeps tensor cores at 0.3 to 0.7 of their peak, and the memory interface at 0.2 to 0.6."""

DECODE_DRAM, DECODE_MAX_TENSOR = 0.3, 0.2
"""Decode keeps the memory interface at 0.3 to 0.9, and tensor cores at 0.02 to 0.2."""

LITTLE_SM = 0.3
"""Decode and prefill keep SMs, or the graphics engine, at 0.6 or more. MIG instances may show a third of it."""

COMMUNICATION_SM = 0.5
"""Kernels that exchange data occupy SMs, but neither tensor cores nor much memory."""

BUSY_PCIE_BYTES_PER_S, BUSY_NVLINK_BYTES_PER_S = 8e9, 75e9
"""A quarter of one direction of PCIe 4.0 x16 (32 GB/s), and of NVLink 3 (300 GB/s for an A100)."""

MANY_REQUESTS = 4.0
"""This number of running requests keeps a GPU busy. With fewer, pauses between them may show as little activity."""


@dataclass(frozen=True)
class GpuFacts:
    """What the counters of each pod show; bool[P] each, False where a reading is missing."""

    now_s: float
    samples: PodSamples
    stuck: BoolColumn  # requests are there, and no counter of the engine moves

    @cached_property
    def fresh(self) -> BoolColumn:
        return self.now_s - self.samples.gpu_time_s <= MAX_GPU_AGE_S

    @cached_property
    def profiled(self) -> BoolColumn:
        samples = self.samples
        return ~np.isnan(samples.tensor_active) | ~np.isnan(samples.sm_active) | ~np.isnan(samples.dram_active)

    @cached_property
    def weak(self) -> BoolColumn:
        """GPU_UTIL alone tells whether the GPU works."""
        return self.fresh & ~self.profiled & ~np.isnan(self.samples.gpu_util)

    @cached_property
    def computes(self) -> BoolColumn:
        return (self.samples.tensor_active >= ACTIVE_TENSOR) | (self.samples.dram_active >= ACTIVE_DRAM)

    @cached_property
    def works(self) -> BoolColumn:
        return self.computes | (self.samples.sm_active >= ACTIVE_SM) | (self.weak & (self.samples.gpu_util > 0))

    @cached_property
    def stands(self) -> BoolColumn:
        """Stuck kernels may spin on all SMs, or for GPU_UTIL; then tensor cores and memory tell."""
        shown = self.computes | (self.works & np.isnan(self.samples.tensor_active) & np.isnan(self.samples.dram_active))
        return self.stuck & ~(self.fresh & shown)

    @cached_property
    def has_requests(self) -> BoolColumn:
        return (self.samples.running > 0) | self.queues

    @cached_property
    def queues(self) -> BoolColumn:
        return (self.samples.waiting > 0) | (self.samples.deferred > 0)

    @cached_property
    def does_little(self) -> BoolColumn:
        samples = self.samples
        little = ~(samples.sm_active >= LITTLE_SM) & ~(samples.tensor_active > DECODE_MAX_TENSOR)
        return np.where(self.weak, ~self.works, little & (samples.dram_active < DECODE_DRAM))

    @cached_property
    def exchanges(self) -> BoolColumn:
        samples = self.samples
        links = (samples.pcie_bytes_per_s >= BUSY_PCIE_BYTES_PER_S) | (
            samples.nvlink_bytes_per_s >= BUSY_NVLINK_BYTES_PER_S
        )
        elsewhere = (samples.tensor_active <= DECODE_MAX_TENSOR) & (samples.dram_active < DECODE_DRAM)
        return links & elsewhere & (samples.sm_active >= COMMUNICATION_SM)


RULES: tuple[tuple[Diagnosis, Callable[[GpuFacts], BoolColumn]], ...] = (
    (Diagnosis.STUCK, lambda pod: pod.stands),
    (Diagnosis.COUNTERS_STAND, lambda pod: pod.stuck),
    (Diagnosis.NO_GPU_READING, lambda pod: ~pod.fresh),
    (Diagnosis.NO_ENGINE_READING, lambda pod: np.isnan(pod.samples.running) | np.isnan(pod.samples.waiting)),
    (Diagnosis.NO_ACTIVITY, lambda pod: ~pod.profiled & ~pod.weak),
    (Diagnosis.OTHERS_WORK, lambda pod: ~pod.has_requests & pod.works),
    (Diagnosis.NO_FRAMEBUFFER, lambda pod: ~pod.has_requests & np.isnan(pod.samples.fb_usage)),
    (Diagnosis.NOT_LOADED, lambda pod: ~pod.has_requests & ~(pod.samples.fb_usage >= LOADED_FB_USAGE)),
    (Diagnosis.IDLE_AND_LOADED, lambda pod: ~pod.has_requests),
    (Diagnosis.COMMUNICATION_BOUND, lambda pod: pod.exchanges),
    (
        Diagnosis.COMPUTE_BOUND_PREFILL,
        lambda pod: (
            (pod.samples.tensor_active >= PREFILL_TENSOR) & (or_zero(pod.samples.dram_active) <= PREFILL_MAX_DRAM)
        ),
    ),
    (
        Diagnosis.MEMORY_BOUND_DECODE,
        lambda pod: (pod.samples.dram_active >= DECODE_DRAM) & (pod.samples.tensor_active <= DECODE_MAX_TENSOR),
    ),
    (Diagnosis.STARVED, lambda pod: pod.does_little & (pod.queues | (pod.samples.running >= MANY_REQUESTS))),
    (Diagnosis.FEW_REQUESTS, lambda pod: pod.does_little | ~pod.works),
    (Diagnosis.BUSY, lambda pod: pod.works),
)
"""The first rule that is true of a pod counts."""


def classify(facts: GpuFacts) -> IntColumn:
    """Return the diagnosis of each pod; int64[P]."""
    if not facts.fresh.any():  # as without DCGM
        return np.where(facts.stuck, Diagnosis.STUCK, Diagnosis.NO_GPU_READING).astype(np.int64)
    return np.select([rule(facts) for _, rule in RULES], [int(found) for found, _ in RULES])


def diagnose(now_s: float, pods: GroupedPods) -> Diagnosed:
    """Return what most serving replicas of each workload do."""
    facts = GpuFacts(now_s, pods.samples, pods.classes.stuck)
    serving, workload, workloads = pods.classes.serving, pods.by_workload.pod_workload, pods.by_workload.workloads
    found, kinds = classify(facts), len(Diagnosis)
    place = workload[serving] * kinds + found[serving]
    counts = np.bincount(place, minlength=workloads * kinds).reshape(workloads, kinds)
    most = kinds - 1 - counts[:, ::-1].argmax(axis=1)
    serves = counts.sum(axis=1)
    most = np.where(serves > 0, most, Diagnosis.NOTHING_SERVES)
    is_weak = serving & facts.weak & (found == most[workload])
    return Diagnosed(
        diagnosis=most,
        replicas=counts[np.arange(workloads), most].astype(np.float64),
        serving=serves.astype(np.float64),
        weak=np.bincount(workload[is_weak], minlength=workloads) > 0,
    )
