"""Large synthetic fleets for benchmarks: many workloads with eight pods each, with varied, plausible values.

Engines export all metrics that the planner needs, so after two minutes most workloads follow a strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, Pod, Pool, Workload, WorkloadRef
from autoscaler.core.model.samples import GatewaySamples, PodSamples, Samples
from autoscaler.core.model.spec import Schedule, Spec
from autoscaler.core.model.types import TickInput

PODS_PER_WORKLOAD = 8
SUFFIXES = "bcdfghjk"  # letters of pod names, without vowels
IDLE_GAP_S = 0.01
REQUEST_TOKENS = 300.0

POOLS = tuple(Pool("nvidia.com/gpu", product) for product in ("H100", "A100", "L4", "H200"))

SPEC = {
    "ttft_objective_s": 1.0,
    "itl_objective_s": 0.1,
    "attainment": 0.99,
    "window_s": 86_400.0,
    "priority": 100.0,
    "weight": 1.0,
    "headroom_share": np.nan,
    "min_replicas": 1.0,
    "max_replicas": 32.0,
    "on_demand_floor": np.nan,
    "max_wait_s": 2.0,
    "up_step_fraction": 1.0,
    "up_step_replicas": 4.0,
    "up_period_s": 15.0,
    "up_stabilization_s": 0.0,
    "down_step_fraction": 0.25,
    "down_step_replicas": np.nan,
    "down_period_s": 60.0,
    "down_stabilization_s": 300.0,
    "tolerance": 0.1,
    "idle_after_s": np.nan,
    "concurrency": np.nan,
    "prefill_tokens_per_s": np.nan,
    "decode_tokens_per_s": np.nan,
    "target_usage": 0.8,
    "kv_target_usage": 0.85,
    "min_decode_per_prefill": np.nan,
    "max_decode_per_prefill": np.nan,
    "sleep_replicas": np.nan,
    "sleep_level": 1.0,
    "cold_start_s": 120.0,
    "max_input_age_s": 60.0,
}


def fleet(workloads: int) -> Fleet:
    """Make `workloads` Deployments of eight pods; one pod in a hundred is not ready."""
    pods = workloads * PODS_PER_WORKLOAD
    ready = np.arange(pods) % 100 != 7
    return Fleet(
        time_s=0.0,
        workloads=tuple(Workload(WorkloadRef(f"team-{w % 50}", f"model-{w}")) for w in range(workloads)),
        workload_id=np.arange(workloads),
        replicas=np.full(workloads, float(PODS_PER_WORKLOAD)),
        paused=np.zeros(workloads, dtype=bool),
        other_owner=("",) * workloads,
        gpus_per_replica=np.ones(workloads),
        pool=np.arange(workloads) % 4,
        obstacles=Obstacles.none(workloads),
        pods=tuple(
            Pod(
                f"team-{p // PODS_PER_WORKLOAD % 50}",
                f"model-{p // PODS_PER_WORKLOAD}-7d9c5b6f4-vwxz{SUFFIXES[p % PODS_PER_WORKLOAD]}",
            )
            for p in range(pods)
        ),
        pod_id=np.arange(pods),
        pod_workload=np.arange(pods) // PODS_PER_WORKLOAD,
        pod_ready=ready,
        pod_terminating=np.zeros(pods, dtype=bool),
        pod_pending=np.zeros(pods, dtype=np.int64),
        pod_created_s=np.where(ready, -10_000.0, -30.0),
        pod_scheduled_s=np.where(ready, -9_990.0, -20.0),
        pod_started_s=np.where(ready, -9_980.0, np.nan),
        pod_ready_s=np.where(ready, -9_900.0, np.nan),
        pools=POOLS,
        groups=NodeGroups.of_pools(POOLS, np.full(4, workloads * 3.0)),
    )


def inputs(
    cluster: Fleet, ticks: int, period_s: float = 5.0, seed: int = 1, overloaded: float = 1.0
) -> Iterator[TickInput]:
    """Yield `ticks` consecutive inputs of one cluster: counters grow, one workload in twenty changes its load.

    overloaded: fraction of these that may receive more requests than their pods run at once, 0..1. One of eight such
    pods nearly always has a queue of more than 2 s. If all workloads are such, 70% have a late queue after two minutes,
    90% after five. That is the most expensive fleet, and an unlikely one.

    Inputs are made one at a time, since those of 10,000 workloads take about 20 MB each.
    """
    random, chance = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    rows, pods = len(cluster.workloads), len(cluster.pods)
    spec = Spec(**{name: np.full(rows, value) for name, value in SPEC.items()})
    windows = Schedule(*(np.full((rows, 1), np.nan) for _ in range(4)))
    running = random.integers(0, 30, pods).astype(float)
    prompts, tokens = random.uniform(0, 1e6, (2, pods))
    gap_s = tokens * 2 * IDLE_GAP_S
    ended = tokens / REQUEST_TOKENS
    met = 0.99 * ended
    for number in range(1, ticks + 1):
        now_s = number * period_s
        changed = (random.random(rows) < 0.05)[cluster.pod_workload]
        fits = (chance.random(rows) >= overloaded)[cluster.pod_workload]
        drawn = random.integers(0, 60, pods)
        running = np.where(changed, np.where(fits, drawn // 2, drawn), running).astype(float)
        batch = np.minimum(running, 32.0)
        pace_s = IDLE_GAP_S * (1 + batch / 32) * random.uniform(0.95, 1.05, pods)
        written = batch / pace_s * period_s
        tokens, gap_s, prompts = tokens + written, gap_s + written * pace_s, prompts + 3 * written
        ended = ended + written / REQUEST_TOKENS
        met = met + written / REQUEST_TOKENS * np.where(running > 32, 0.9, 1.0)
        values = {
            "time_s": np.full(pods, now_s - 1.0),
            "running": batch,
            "waiting": np.maximum(running - 32.0, 0.0),
            "kv_usage": running / 100,
            "prompt_tokens": prompts,
            "generation_tokens": tokens,
            "finished": ended,
            "first_tokens": ended,
            "ttft_met": met,
            "gap_s": gap_s,
            "gaps": tokens,
            "itl_judged": ended,
            "itl_met": met,
            "preemptions": np.zeros(pods),
            "rejections": np.zeros(pods),
            "ttft_s": np.where(running > 0, running / 50, np.nan),
            "itl_s": np.where(running > 0, 0.02 + running / 1000, np.nan),
            "gpu_time_s": np.full(pods, now_s - 10.0),
            "fb_usage": np.full(pods, 0.9),
            "tensor_active": np.where(running > 0, 0.2, 0.0),
            "dram_active": np.where(running > 0, 0.4, 0.0),
        }
        table = {f.name: np.where(cluster.pod_ready, values.get(f.name, np.nan), np.nan) for f in fields(PodSamples)}
        yield TickInput(
            now_s=now_s,
            fleet=replace(cluster, time_s=now_s),
            spec=spec,
            schedule=windows,
            samples=Samples(PodSamples(**table), GatewaySamples.filled(rows)),
        )
