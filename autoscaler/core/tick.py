"""One tick: observe, recommend, choose, stabilize, allocate. Pure, so that daemon, dry-run, replay and tests run it."""

from __future__ import annotations

import numpy as np

from autoscaler.core.allocate import allocate
from autoscaler.core.choose import choose
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.observe.workloads import observe
from autoscaler.core.planner import update
from autoscaler.core.reactive import capacity, signals
from autoscaler.core.stabilize import pipeline
from autoscaler.core.state import Memory, WorkloadState, align


def tick(inp: TickInput, memory: Memory) -> tuple[Decision, Memory]:
    """Decide how many replicas each workload should have.

    Same input and memory, same decision. Every stage says replicas, float64[W], NaN: unknown; see `core.model.types`.
    """
    memory = align(memory, inp.fleet)
    before = memory.workloads

    observed, observe_state, pods = observe(inp, before.last_tick_s, before.observe, memory.pods)
    known_capacity, learned = capacity.learn(inp, observed, before.capacity)

    by_signals = signals.recommend(inp, observed, known_capacity)
    by_planner, planner_state = update.recommend(inp, observed, memory.planner)
    plan = planner_state.plan
    choice, choice_state = choose(inp, observed, by_signals, by_planner, plan.itl_counted_requests > 0, before.choice)

    alone, stabilize_state = pipeline.decide(
        inp, observed, known_capacity, learned, choice, planner_state.zero.rest_s, before.stabilize
    )
    stages, needed = allocate.share(inp, observed, known_capacity, alone)

    wanted = stages[-1]
    decision = Decision(
        observation=observed.observation,
        capacity=known_capacity,
        recommender=choice.recommender,
        asks=choice.signals,
        stages=stages,
        replicas=np.where(np.isnan(wanted), observed.observation.replicas, wanted),
        active=(wanted > 0) | np.isnan(wanted),
        trusted=observed.trusted,
        idle_after_s=alone.idle_after_s,
        idle_s=alone.idle_s,
        kept_for_s=alone.kept_for_s,
        needed=needed,
        plan=plan,
    )
    now_s = np.full(len(wanted), inp.now_s)
    workloads = WorkloadState(now_s, observe_state, learned, choice_state, stabilize_state)
    return decision, Memory(memory.workload_id, memory.pod_id, workloads, pods, planner_state)
