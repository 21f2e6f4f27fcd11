"""The diagnosis of a workload's GPUs, and one change to consider, in words."""

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


REPLAYED = frozenset(
    {
        Diagnosis.IDLE_AND_LOADED,
        Diagnosis.MEMORY_BOUND_DECODE,
        Diagnosis.COMPUTE_BOUND_PREFILL,
        Diagnosis.COMMUNICATION_BOUND,
        Diagnosis.FEW_REQUESTS,
    }
)
"""Diagnoses whose changes a report replays on history; a tick has none."""


class GpuWords(NamedTuple):
    """What the GPUs of a workload do, in words without a full stop."""

    diagnosis: str  # published name of the Diagnosis, or "unknown"
    weak: bool  # GPU_UTIL alone tells
    sentence: str
    change: str  # one change to consider, and what replays its saving; "": none


class Circumstances(NamedTuple):
    """What decides which change fits a diagnosis. NaN: not known."""

    kv_usage: float  # 0..1
    waiting: float  # requests
    is_side: bool  # of a pair of prefill and decode
    max_wait_s: float  # as its policy states
    sleep_replicas: float  # likewise
    asleep: float  # replicas
    idle_after_s: float  # as its policy states; NaN: never
    holds_requests: bool  # a gateway is known to hold requests while nothing serves


def describe(row: TickRow) -> GpuWords:
    found = row.decision.diagnosed
    diagnosis, weak = tuple(Diagnosis)[found.diagnosis[row.row]], bool(found.weak[row.row])
    replicas, serving = float(found.replicas[row.row]), float(found.serving[row.row])
    of = f"{number(replicas)} of {count(serving, 'serving replica')}: " if serving > 0 else ""
    words = f"{of}{diagnosis.title}" if diagnosis.known else f"{of}not known, because {diagnosis.title}"
    now = Circumstances(
        kv_usage=row.observed("kv_usage"),
        waiting=row.observed("waiting"),
        is_side=bool(row.inp.fleet.workloads[row.row].role),
        max_wait_s=row.spec("max_wait_s"),
        sleep_replicas=row.spec("sleep_replicas"),
        asleep=row.observed("asleep"),
        idle_after_s=row.spec("idle_after_s"),
        holds_requests=not math.isnan(row.observed("gateway_waiting")),
    )
    said = words + (WEAK if weak and diagnosis.known else "")
    change = find_change(diagnosis, now)
    if diagnosis in REPLAYED and not now.is_side and not change.startswith("none"):
        change += "; `vllm-autoscaler report` replays what it saves"
    return GpuWords(diagnosis.state, weak, said, change)


def find_change(diagnosis: Diagnosis, now: Circumstances) -> str:
    """Return one change to consider; "": none."""
    match diagnosis:
        case Diagnosis.IDLE_AND_LOADED:
            return _less(now)
        case Diagnosis.MEMORY_BOUND_DECODE:
            if now.kv_usage < ROOMY_KV_USAGE and now.waiting > 0:
                return "a larger batch (--max-num-seqs): requests wait, and the KV cache has room"
            return "quantization of weights or KV cache, since every token reads them from memory"
        case Diagnosis.COMPUTE_BOUND_PREFILL:
            if now.is_side:
                return "quantization to FP8, which tensor cores compute faster"
            return "a pair of prefill and decode, so that long prompts do not delay tokens"
        case Diagnosis.COMMUNICATION_BOUND:
            return "quantization, so that a replica spans fewer GPUs and exchanges less"
        case Diagnosis.STARVED:
            return "more CPU for the engine, or a faster network: more GPUs would starve too"
        case Diagnosis.STUCK:
            return "a look at its log and a restart: nothing is answered"
        case Diagnosis.FEW_REQUESTS:
            if now.max_wait_s >= MAY_WAIT_S:
                return "MPS or time-slicing, since its requests may wait"
            return "a MIG instance instead of a whole GPU, since its requests may not wait"
    return ""


def _less(now: Circumstances) -> str:
    """Word what to do with replicas that hold a GPU for nothing."""
    if now.sleep_replicas > 0:
        return "none: idle replicas sleep by its policy" if now.asleep > 0 else "sleep of idle replicas"
    if not now.holds_requests and not math.isfinite(now.idle_after_s):
        return "sleep of idle replicas, or a smaller slice: no gateway is known to hold requests at zero"
    if math.isnan(now.idle_after_s):
        return "scale to zero (scaleToZero.idleAfter)"
    return "none: its policy lets it go to zero"
