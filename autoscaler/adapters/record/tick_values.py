"""Ticks as values of streams: the inputs and the memory from which a tick is computed again, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autoscaler.adapters.record.stream import Damaged, Links, Value, join, split
from autoscaler.core.model.types import Decision, Recommendation, TickInput
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, replace

GROWS_AS = (
    ("ttft_met", "first_tokens"),
    ("gaps", "generation_tokens"),
    ("itl_judged", "finished"),
    ("itl_met", "itl_judged"),
    ("prefill_judged", "finished"),
    ("prefill_met", "prefill_judged"),
)
"""Counters of a pod, and the one that most of their growth equals."""


@dataclass(frozen=True)
class Decided:
    """The decision of one tick; rows are those of its fleet."""

    at_s: FloatColumn  # float64[1], Unix time of the tick
    workload: IntColumn  # int64[W], number in the table `workload` of the record
    current: FloatColumn  # float64[W], spec.replicas
    ready: FloatColumn  # float64[W]
    starting: FloatColumn  # float64[W]
    recommender: IntColumn  # int64[W], Recommender
    signal: IntColumn  # int64[W], Signal; -1: none
    trusted: BoolColumn  # bool[W], inputs were known and fresh enough to shrink
    replicas: FloatColumn  # float64[W], the decision
    stages: FloatColumn  # float64[G, W], by Stage

    @classmethod
    def of(cls, inp: TickInput, decision: Decision, workload: IntColumn, at_s: float) -> Decided:
        return cls(
            at_s=np.array([round(at_s, 3)]),
            workload=workload,
            current=inp.fleet.present_replicas,
            ready=decision.observation.ready,
            starting=decision.observation.starting,
            recommender=decision.recommender,
            signal=Recommendation(decision.recommendations, decision.base_replicas).reason,
            trusted=decision.trusted,
            replicas=decision.replicas,
            stages=decision.stages,
        )

    def as_value(self) -> Value:
        return Value(*split(self), Links(ids=(1,)))

    @classmethod
    def from_value(cls, value: Value) -> Decided:
        """Return what was decided. Raises Damaged, also for columns that do not fit together."""
        decided: Decided = join(value.frame, value.arrays, cls)
        rows = decided.workload.shape
        shapes = {"at_s": (1,), "stages": (len(decided.stages), *rows)}
        if len(rows) != 1 or any(each.shape != shapes.get(name, rows) for name, each in vars(decided).items()):
            raise Damaged("a decision whose columns do not fit together")
        return decided


def of_input(inp: TickInput) -> Value:
    """Return the input of a tick as a value. What sources reported of themselves is left out: no stage reads it."""
    # The times stand in an array of their own: otherwise each tick would have another frame.
    timeless = replace(
        inp,
        now_s=0.0,
        fleet=replace(inp.fleet, time_s=0.0),
        samples=replace(inp.samples, reports=()),
    )
    frame, arrays = split(timeless)
    number = {id(array): index for index, array in enumerate(arrays)}
    pods = inp.samples.pods
    bases = tuple((number[id(getattr(pods, one))], number[id(getattr(pods, other))]) for one, other in GROWS_AS)
    return Value(
        frame,
        [*arrays, np.array([inp.now_s, inp.fleet.time_s])],
        Links(_numbers(number, inp.fleet.workload_id, inp.fleet.pod_id), bases),
    )


def to_input(value: Value) -> TickInput:
    """Return the input of a tick. Raises Damaged."""
    inp: TickInput = join(value.frame, value.arrays[:-1], TickInput)
    times = value.arrays[-1]
    if times.shape != (2,):
        raise Damaged("an input without its times")
    now_s, time_s = times.tolist()
    return replace(inp, now_s=now_s, fleet=replace(inp.fleet, time_s=time_s))


def of_memory(memory: Memory) -> Value:
    return Value(*split(memory))


def to_memory(value: Value) -> Memory:
    """Return the memory of a tick. Raises Damaged."""
    memory: Memory = join(value.frame, value.arrays, Memory)
    return memory


def _numbers(number: dict[int, int], *arrays: Any) -> tuple[int, ...]:
    return tuple(number[id(array)] for array in arrays)
