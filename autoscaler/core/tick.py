"""One tick: observe, recommend, choose, stabilize, allocate, plan links. Pure: daemon, dry-run and replay run it."""

from __future__ import annotations

import numpy as np

from autoscaler.core.allocate import sleep
from autoscaler.core.allocate.allocate import allocate
from autoscaler.core.chain.links import Leads, plan_links
from autoscaler.core.choose import choose
from autoscaler.core.model.types import Decision, Stage, TickInput
from autoscaler.core.observe.pending import count_by_class
from autoscaler.core.observe.workloads import observe
from autoscaler.core.planner import update as planner
from autoscaler.core.reactive import signals as reactive
from autoscaler.core.reactive.capacity import learn
from autoscaler.core.stabilize.pipeline import stabilize
from autoscaler.core.state import Memory, WorkloadState, align
from autoscaler.core.table.columns import replace


def tick(inp: TickInput, memory: Memory) -> tuple[Decision, Memory]:
    """Decide how many replicas each workload should have.

    The same input and memory give the same decision. Each stage returns replicas, float64[W]; NaN: unknown.
    """
    memory = align(memory, inp.fleet)
    before = memory.workloads

    on_requested = before.chain.places > 0
    observed, observe_state, pods = observe(inp, before.last_tick_s, before.observe, memory.pods, on_requested)

    capacity, learned = learn(inp, observed, before.capacity)
    by_signals = reactive.recommend(inp, observed, capacity)
    by_planner, planned = planner.recommend(inp, observed, memory.planner)
    choice, choice_state = choose(inp, observed, by_signals, by_planner, planned.counts_itl, before.choice)

    target, stabilize_state = stabilize(
        inp, observed, capacity, learned, choice, planned.plan, planned.idle_timeouts.timeout_s, before.stabilize
    )
    stages, base_replicas, unfollowed_s, allocate_state = allocate(inp, observed, capacity, target, before.allocate)

    desired = stages[-1]
    replicas = np.where(np.isnan(desired), observed.observation.replicas, desired)
    serving = np.fmin(stages[Stage.EXCHANGE], desired)
    sleep_orders, pod_sleep = sleep.order(inp, observed, serving, desired, pods.sleep)
    chain, chain_state = plan_links(inp, replicas, planned.plan.forecast, Leads.of(observed), before.chain)
    decision = Decision(
        observation=observed.observation,
        starts=observed.starts,
        capacity=capacity,
        recommender=choice.recommender,
        recommendations=choice.signals,
        stages=stages,
        replicas=replicas,
        sleep_orders=sleep_orders,
        active=(desired > 0) | np.isnan(desired),
        trusted=observed.trusted,
        idle_after_s=target.idle_after_s,
        idle_s=target.idle_s,
        kept_for_s=target.kept_for_s,
        kept_window_s=target.kept_window_s,
        base_replicas=base_replicas,
        unfollowed_s=unfollowed_s,
        pending_by_class=count_by_class(inp.fleet, observed.observation, stages[Stage.SLEEP]),
        plan=planned.plan,
        diagnosed=observed.diagnosed,
        chain=chain,
    )
    now_s = np.full(len(desired), inp.now_s)
    workloads = WorkloadState(now_s, observe_state, learned, choice_state, stabilize_state, allocate_state, chain_state)
    pods = replace(pods, sleep=pod_sleep)
    return decision, Memory(memory.workload_id, memory.pod_id, workloads, pods, planned)
