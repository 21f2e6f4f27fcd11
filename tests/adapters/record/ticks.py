"""Consecutive ticks of a small fleet that grows and shrinks, as the loop hands them to recorders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from autoscaler.core.model.types import TickInput
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from autoscaler.ports import Change, ChangeStatus, Outcome, TickRecord
from tests.core.world import fleet, spec, world

START_S = 1_780_300_800.0  # 2026-06-01T08:00:00Z
PERIOD_S = 15.0


def inputs(seed: int = 1) -> Iterator[TickInput]:
    """Two workloads whose load comes and goes; pods come with new ids, and the first ones leave."""
    draw = np.random.default_rng(seed)
    pods, served = 3, np.zeros(100)
    for number in range(10_000):
        if number % 7 == 6:
            pods = 2 + int(draw.integers(4))
        now_s = 1000.0 + PERIOD_S * number + draw.random()
        first = number // 40  # of the pods that are left
        seen = fleet([pods, 1], pod_id=np.arange(first, first + pods + 1))
        load = draw.integers(0, 30, pods + 1).astype(float)
        served[: len(load)] += load
        yield world(
            now_s,
            seen,
            spec(2, concurrency=[10.0, np.nan]),
            running=load,
            waiting=np.maximum(load - 20, 0.0),
            kv_usage=(load / 30).round(5),
            ttft_s=draw.random(),
            finished=served[: len(load)],
            first_tokens=served[: len(load)] + load,
            generation_tokens=100 * served[: len(load)],
            prompt_tokens=300 * served[: len(load)],
        )


def records(count: int, start_s: float = START_S, seed: int = 1) -> list[TickRecord]:
    """Return consecutive ticks with their memories and changes."""
    return [replace(tick, wall_s=start_s + PERIOD_S * tick.number) for tick in _make(seed)[:count]]


@cache
def _make(seed: int, count: int = 80) -> tuple[TickRecord, ...]:
    memory, made = Memory.empty(), []
    for number, inp in zip(range(count), inputs(seed), strict=False):
        decision, after = tick(inp, memory)
        rows = np.flatnonzero(decision.replicas != inp.fleet.replicas).tolist()
        outcomes = tuple(
            Outcome(
                Change(
                    inp.fleet.workloads[row].ref,
                    "",
                    int(inp.fleet.replicas[row]),
                    int(decision.replicas[row]),
                    f"Scales to {decision.replicas[row]:g} replicas: because of tick {number}.",
                ),
                ChangeStatus.APPLIED,
            )
            for row in rows
        )
        made.append(
            TickRecord(
                number=number,
                now_s=inp.now_s,
                wall_s=START_S,
                duration_s=0.01,
                input=inp,
                decision=decision,
                policies=("interactive", "batch"),
                outcomes=outcomes,
                leading=True,
                memories=(memory, after),
            )
        )
        memory = after
    return tuple(made)


def at(record: TickRecord, wall_s: float) -> TickRecord:
    return replace(record, wall_s=wall_s)


def without_second(record: TickRecord) -> TickRecord:
    """Return the tick as if the second workload had been removed."""
    inp = world(record.now_s, fleet([2]), spec(1, concurrency=[10.0]))
    decision, after = tick(inp, Memory.empty())
    return replace(
        record, input=inp, decision=decision, policies=("interactive",), outcomes=(), memories=(Memory.empty(), after)
    )
