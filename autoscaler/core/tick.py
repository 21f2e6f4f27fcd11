"""One tick: observation, demand, target, grant. Pure, so that daemon, dry-run, replay and simulation all run it."""

from __future__ import annotations

import numpy as np

from autoscaler.core import capacity, demand, forecast, grant, obstacles, target, trust, zero
from autoscaler.core.columns import replace
from autoscaler.core.decision import Decision, Observation, TickInput
from autoscaler.core.memory import Memory, align
from autoscaler.core.observe import observe


def tick(inp: TickInput, memory: Memory) -> tuple[Decision, Memory]:
    """Decide how many replicas each workload should have.

    Same input and memory, same decision. Every stage says replicas, float64[W], NaN: unknown; see `core.decision`.
    """
    memory = align(memory, inp.fleet)

    observation, memory = observe(inp, memory)
    observation, claims, memory = follow_obstacles(inp, observation, memory)
    known_capacity, memory = capacity.learn(inp, observation, memory)
    memory = demand.follow(inp, observation, memory)
    memory = follow_zero(inp, observation, memory)
    memory = forecast.follow(inp, observation, memory)
    trusted, memory = trust.follow(inp, observation, memory)

    asks = demand.ask(inp, observation, known_capacity, memory)
    alone, memory = target.decide(inp, observation, known_capacity, asks, trusted, memory)
    stages, needed = grant.share(inp, observation, known_capacity, alone, claims, trusted, memory)

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
        forecast=memory.forecast,
    )
    return decision, memory.noting(last_tick_s=np.full(len(wanted), inp.now_s))


def follow_obstacles(
    inp: TickInput, observation: Observation, memory: Memory
) -> tuple[Observation, obstacles.Claims, Memory]:
    """Find the replicas that cannot come, and what is left for each workload to claim."""
    room = obstacles.roomy(inp.fleet)
    missing, claims, struggle = obstacles.follow(inp, observation, memory.workloads.struggle, room)
    return replace(observation, missing=missing), claims, memory.noting(struggle=struggle)


def follow_zero(inp: TickInput, observation: Observation, memory: Memory) -> Memory:
    """Carry forward what going to zero would have cost."""
    workloads = memory.workloads
    return memory.noting(zero=zero.follow(inp, observation, workloads.zero, inp.now_s - workloads.last_tick_s))
