"""What the GPUs of a workload do, in one word each, from all counters together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


class Diagnosis(PublishedEnum):
    """What the GPU of a replica does, or why this is not known. Where replicas differ, the later of equals counts."""

    NOTHING_SERVES = 0, "no replica serves", False
    NO_GPU_READING = 1, "there are no GPU metrics of the last minutes", False
    NO_ENGINE_READING = 2, "its engine does not tell its requests", False
    NO_ACTIVITY = 3, "profiling counters are off, and no GPU_UTIL can be trusted", False
    NO_FRAMEBUFFER = 4, "no request is there, and the framebuffer is not reported", False
    NOT_LOADED = 5, "no request is there, and less than half of the framebuffer is used", False
    OTHERS_WORK = 6, "the GPU works, but its engine holds no request: another process, or a short answer", False
    COUNTERS_STAND = 7, "its counters stand still, but its GPU worked lately: a long prompt, or stuck", False
    FEW_REQUESTS = 8, "few requests run and the GPU does little: a light load, or a starved engine", False
    BUSY = 9, "busy: it works, and no single limit binds it", True
    MEMORY_BOUND_DECODE = 10, "memory-bound decode: the memory interface limits it, not the tensor cores", True
    COMPUTE_BOUND_PREFILL = 11, "compute-bound prefill: the tensor cores limit it", True
    COMMUNICATION_BOUND = 12, "communication-bound: it waits for the links between GPUs", True
    STARVED = 13, "starved by CPU or network: requests are there, and its GPU does little", True
    IDLE_AND_LOADED = 14, "idle and loaded: a model is in GPU memory, and no request is there", True
    STUCK = 15, "stuck: requests are there, and neither tokens nor its GPU move", True

    def __init__(self, value: int, title: str, known: bool) -> None:
        super().__init__(value, title)
        self.known = known

    @property
    def state(self) -> str:
        """Its published name; "unknown" for all reasons why it is not known."""
        return self.published if self.known else UNKNOWN


UNKNOWN = "unknown"
STATES = tuple(dict.fromkeys(each.state for each in Diagnosis))


@dataclass(frozen=True)
class Diagnosed:
    """What most of the serving replicas of each workload do."""

    diagnosis: IntColumn  # int64[W], Diagnosis
    replicas: FloatColumn  # float64[W], replicas of which it is true
    serving: FloatColumn  # float64[W], replicas that were looked at
    weak: BoolColumn  # bool[W], of some of them GPU_UTIL alone tells

    @classmethod
    def none(cls, workloads: int) -> Self:
        """Return workloads without a serving replica."""
        nothing = np.zeros(workloads)
        return cls(nothing.astype(np.int64), nothing, nothing, nothing > 0)
