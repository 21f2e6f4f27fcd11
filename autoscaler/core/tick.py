"""One tick: observation, demand, target, grant. Pure, so that daemon, dry-run, replay and simulation all run it."""

from __future__ import annotations

import numpy as np

from autoscaler.core.allocate import allocate
from autoscaler.core.model.types import Decision, Observation, TickInput
from autoscaler.core.observe import freshness, pending
from autoscaler.core.observe.workloads import observe
from autoscaler.core.planner import scale_to_zero, update
from autoscaler.core.reactive import capacity, signals
from autoscaler.core.stabilize import pipeline
from autoscaler.core.state import Memory, align
from autoscaler.core.table.columns import replace


def tick(inp: TickInput, memory: Memory) -> tuple[Decision, Memory]:
    """Decide how many replicas each workload should have.

    Same input and memory, same decision. Every stage says replicas, float64[W], NaN: unknown; see `core.decision`.
    """
    memory = align(memory, inp.fleet)

    observation, memory = observe(inp, memory)
    observation, claims, memory = follow_obstacles(inp, observation, memory)
    known_capacity, memory = capacity.learn(inp, observation, memory)
    memory = signals.follow(inp, observation, memory)
    memory = follow_zero(inp, observation, memory)
    memory = update.follow(inp, observation, memory)
    trusted, memory = freshness.follow(inp, observation, memory)

    asks = signals.ask(inp, observation, known_capacity, memory)
    alone, memory = pipeline.decide(inp, observation, known_capacity, asks, trusted, memory)
    stages, needed = allocate.share(inp, observation, known_capacity, alone, claims, trusted, memory)

    wanted = stages[-1]
    decision = Decision(
        observation=observation,
        capacity=known_capacity,
        asks=asks,
        stages=stages,
        replicas=np.where(np.isnan(wanted), observation.replicas, wanted),
        active=(wanted > 0) | np.isnan(wanted),
        trusted=trusted,
        idle_after_s=alone.idle_after_s,
        idle_s=alone.idle_s,
        kept_for_s=alone.kept_for_s,
        needed=needed,
        plan=memory.plan,
    )
    return decision, memory.noting(last_tick_s=np.full(len(wanted), inp.now_s))


def follow_obstacles(
    inp: TickInput, observation: Observation, memory: Memory
) -> tuple[Observation, pending.Claims, Memory]:
    """Find the replicas that cannot come, and what is left for each workload to claim."""
    room = pending.roomy(inp.fleet)
    missing, claims, struggle = pending.follow(inp, observation, memory.workloads.struggle, room)
    return replace(observation, missing=missing), claims, memory.noting(struggle=struggle)


def follow_zero(inp: TickInput, observation: Observation, memory: Memory) -> Memory:
    """Carry forward what going to zero would have cost."""
    workloads = memory.workloads
    return memory.noting(zero=scale_to_zero.follow(inp, observation, workloads.zero, inp.now_s - workloads.last_tick_s))
