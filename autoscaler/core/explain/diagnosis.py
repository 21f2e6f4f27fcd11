"""What the GPUs of a workload do, and one change to consider, in words."""

from __future__ import annotations

import math
from typing import NamedTuple

from autoscaler.core.explain.format import count, number
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.diagnosis import Diagnosis

ROOMY_KV_USAGE = 0.7
"""Below it a larger batch has room in the KV cache."""

MAY_WAIT_S = 60.0
"""Work that may wait this long can share a GPU by time slices."""

WEAK = " (a weak sign: profiling counters are off, and GPU_UTIL alone tells)"


class GpuWords(NamedTuple):
    """What the GPUs of a workload do, in words without a full stop."""

    diagnosis: str  # published name of the Diagnosis, or "unknown"
    weak: bool  # GPU_UTIL alone tells
    sentence: str
    change: str  # one change to consider; "": none. What it saves is not known here


def describe(row: TickRow) -> GpuWords:
    found = row.decision.diagnosed
    diagnosis, weak = tuple(Diagnosis)[found.diagnosis[row.row]], bool(found.weak[row.row])
    replicas, serving = float(found.replicas[row.row]), float(found.serving[row.row])
    of = f"{number(replicas)} of {count(serving, 'serving replica')}: " if serving > 0 else ""
    words = f"{of}{diagnosis.title}" if diagnosis.known else f"{of}not known, because {diagnosis.title}"
    return GpuWords(diagnosis.state, weak, words + (WEAK if weak and diagnosis.known else ""), _change(diagnosis, row))


def _change(diagnosis: Diagnosis, row: TickRow) -> str:
    match diagnosis:
        case Diagnosis.IDLE_AND_LOADED:
            return _less(row)
        case Diagnosis.MEMORY_BOUND_DECODE:
            if row.observed("kv_usage") < ROOMY_KV_USAGE and row.observed("waiting") > 0:
                return "a larger batch (--max-num-seqs): requests wait, and the KV cache has room"
            return "quantization of weights or KV cache, since every token reads them from memory"
        case Diagnosis.COMPUTE_BOUND_PREFILL:
            if row.inp.fleet.workloads[row.row].role:
                return "quantization to FP8, which tensor cores compute faster"
            return "a pair of prefill and decode, so that long prompts do not delay tokens"
        case Diagnosis.COMMUNICATION_BOUND:
            return "quantization, so that a replica spans fewer GPUs and exchanges less"
        case Diagnosis.STARVED:
            return "more CPU for the engine, or a faster network: more GPUs would starve too"
        case Diagnosis.STUCK:
            return "a look at its log and a restart: nothing is answered"
        case Diagnosis.FEW_REQUESTS:
            if row.spec("max_wait_s") >= MAY_WAIT_S:
                return "MPS or time-slicing, since its requests may wait"
            return "a MIG instance instead of a whole GPU, since its requests may not wait"
    return ""


def _less(row: TickRow) -> str:
    """Word what to do with replicas that hold a GPU for nothing."""
    if row.spec("sleep_replicas") > 0:
        return "none: idle replicas sleep by its policy" if row.observed("asleep") > 0 else "sleep of idle replicas"
    if math.isnan(row.spec("idle_after_s")):
        if math.isnan(row.observed("gateway_waiting")):
            return "sleep of idle replicas, or a smaller slice: no gateway is known to hold requests at zero"
        return "scale to zero (scaleToZero.idleAfter), which `vllm-autoscaler demand` replays"
    return "none: its policy lets it go to zero"
