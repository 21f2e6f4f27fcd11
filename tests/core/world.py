"""Builders of tick inputs for the tests of `core`, from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings

from autoscaler.core.allocate.pools import GpuDemands
from autoscaler.core.model.diagnosis import Diagnosed
from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, Pod, Pool, Workload, WorkloadRef
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.pairs import Pairs
from autoscaler.core.model.phases import Starts
from autoscaler.core.model.quotas import Quota, Quotas
from autoscaler.core.model.samples import GatewaySamples, PodSamples, Samples
from autoscaler.core.model.spec import Schedule, Spec
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.model.variants import Variants
from autoscaler.core.observe.arrivals import Arrivals
from autoscaler.core.observe.pending import Claims
from autoscaler.core.observe.pods import PodState, measure_pods
from autoscaler.core.observe.workloads import Observed, observe
from autoscaler.core.state import Memory, align
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.core.tick import tick

few_examples = settings(max_examples=settings.default.max_examples // 3)  # for one that plays a minute or more of ticks

PLAIN_SPEC: dict[str, float] = {
    "ttft_objective_s": 1.0,
    "itl_objective_s": 0.1,
    "attainment": 0.99,
    "window_s": 86_400.0,
    "priority": 0.0,
    "weight": 1.0,
    "headroom_share": np.nan,
    "min_replicas": 1.0,
    "max_replicas": 100.0,
    "on_demand_floor": np.nan,
    "max_wait_s": 1.0,
    "up_step_fraction": np.nan,
    "up_step_replicas": np.nan,
    "up_period_s": 15.0,
    "up_stabilization_s": 0.0,
    "down_step_fraction": np.nan,
    "down_step_replicas": np.nan,
    "down_period_s": 60.0,
    "down_stabilization_s": 60.0,
    "tolerance": 0.0,
    "idle_after_s": np.nan,
    "concurrency": 10.0,
    "prefill_tokens_per_s": np.nan,
    "decode_tokens_per_s": np.nan,
    "target_usage": 1.0,
    "kv_target_usage": 0.8,
    "min_decode_per_prefill": np.nan,
    "max_decode_per_prefill": np.nan,
    "sleep_replicas": np.nan,
    "sleep_level": 1.0,
    "cold_start_s": 60.0,
    "max_input_age_s": 60.0,
}


def spec(rows: int = 1, **columns: float | list[float]) -> Spec:
    """Return a Spec with plain values and the given columns; a value is one number, or one per row."""
    values = {**PLAIN_SPEC, **columns}
    return Spec(
        **{name: np.broadcast_to(np.asarray(value, dtype=float), rows).copy() for name, value in values.items()}
    )


def no_schedule(rows: int) -> Schedule:
    empty = np.empty((rows, 0))
    return Schedule(empty, empty, empty, empty)


def fleet(
    ready: list[int],
    starting: list[int] | None = None,
    *,
    now_s: float = 0.0,
    replicas: list[int] | None = None,
    created_s: float = -10_000.0,
    starting_since_s: float = 0.0,
    pool_gpus: FloatColumn | list[float] | None = None,
    groups: NodeGroups | None = None,
    **columns: Any,
) -> Fleet:
    """Return a fleet with this many ready and starting pods per workload, on one pool of unknown size.

    pool_gpus: of pools that share no nodes. groups: those of pools that do.
    """
    rows = len(ready)
    starting = starting or [0] * rows
    counts = np.array(ready, dtype=np.int64) + np.array(starting, dtype=np.int64)
    pod_workload = np.repeat(np.arange(rows), counts)
    is_ready = np.concatenate([np.arange(c) < r for c, r in zip(counts, ready, strict=True)] or [np.empty(0, bool)])
    pods = len(pod_workload)
    born = np.where(is_ready, created_s, starting_since_s)
    values: dict[str, Any] = {
        "time_s": now_s,
        "workloads": tuple(Workload(WorkloadRef("ns", f"w{i}")) for i in range(rows)),
        "workload_id": np.arange(rows),
        "replicas": np.array(replicas if replicas is not None else counts, dtype=float),
        "paused": np.zeros(rows, dtype=bool),
        "other_owner": ("",) * rows,
        "gpus_per_replica": np.ones(rows),
        "pool": np.zeros(rows, dtype=np.int64),
        "obstacles": Obstacles.none(rows),
        "pods": tuple(Pod("ns", f"p{i}") for i in range(pods)),
        "pod_id": np.arange(pods),
        "pod_workload": pod_workload,
        "pod_ready": is_ready,
        "pod_terminating": np.zeros(pods, dtype=bool),
        "pod_pending": np.zeros(pods, dtype=np.int64),
        "pod_created_s": born,
        "pod_scheduled_s": born,
        "pod_started_s": born,
        "pod_ready_s": np.where(is_ready, born + 60.0, np.nan),
        "pools": (Pool("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3"),),
    }
    values |= columns
    pools = values["pools"]
    sizes = np.full(len(pools), np.nan) if pool_gpus is None else np.array(pool_gpus, dtype=float)
    return Fleet(**values, groups=groups or NodeGroups.of_pools(pools, sizes))


def node_groups(gpus: list[float], *admitted: list[int]) -> NodeGroups:
    """Return groups of this many GPUs each, and those of each pool by their places."""
    pools = [Pool("nvidia.com/gpu", "H100", f"pool={place}") for place in range(len(gpus))]
    fixed = NodeGroups.of_pools(pools, np.array(gpus, dtype=float))
    return replace(fixed, admitted=np.array([[place in each for place in range(len(gpus))] for each in admitted]))


def quotas(
    tenant: Sequence[int],
    nominal: Sequence[float],
    borrowing: Sequence[float] | float = np.inf,
    lending: Sequence[float] | float = np.inf,
    cohort: Sequence[str] | str = "",
    others: Sequence[float] | float = 0.0,
    charged: Sequence[Sequence[int]] | None = None,
    resource: str = "nvidia.com/gpu",
) -> Quotas:
    """Return quotas of this many nominal GPUs. charged: quotas of each tenant; None: one each, in their order."""
    count = len(nominal)
    cohorts = [cohort] * count if isinstance(cohort, str) else cohort
    of_tenant = [[quota] for quota in range(count)] if charged is None else charged

    def column(value: Sequence[float] | float) -> FloatColumn:
        return np.broadcast_to(np.asarray(value, dtype=float), count).copy()

    return Quotas(
        quotas=tuple(Quota(f"quota {place}", resource, cohort=each) for place, each in enumerate(cohorts)),
        nominal=column(nominal),
        borrowing_limit=column(borrowing),
        lending_limit=column(lending),
        used_by_others=column(others),
        tenant=np.array(tenant, dtype=np.int64),
        charged=np.array([quota in each for each in of_tenant for quota in range(count)], dtype=bool).reshape(
            len(of_tenant), count
        ),
    )


def samples(world: Fleet, now_s: float, **columns: float | FloatColumn) -> Samples:
    """Return a current reading of each ready or sleeping pod: zeros, and the given columns, one number or one per pod.

    Columns of `GatewaySamples` have the prefix `gateway_`.
    """
    pods = len(world.pods)
    quiet = dict.fromkeys(
        ("running", "waiting", "kv_usage", "prompt_tokens", "generation_tokens", "finished", "first_tokens"), 0.0
    )
    readings = {"time_s": now_s, **quiet, **{n: v for n, v in columns.items() if not n.startswith("gateway_")}}
    answers = world.pod_ready | (np.broadcast_to(columns.get("asleep", 0.0), pods) > 0)
    table = {name: np.where(answers, np.broadcast_to(value, pods), np.nan) for name, value in readings.items()}
    front = {n.removeprefix("gateway_"): v for n, v in columns.items() if n.startswith("gateway_")}
    if front:
        front = {"time_s": now_s, **front}
    rows = len(world.workloads)
    return Samples(
        replace(PodSamples.filled(pods), **table),
        replace(
            GatewaySamples.filled(rows), **{n: np.broadcast_to(np.asarray(v, float), rows) for n, v in front.items()}
        ),
    )


def world(
    now_s: float,
    cluster: Fleet,
    rules: Spec,
    schedule: Schedule | None = None,
    variants: Variants | None = None,
    pairs: Pairs | None = None,
    **columns: Any,
) -> TickInput:
    """Return a TickInput with a fresh view of the cluster."""
    rows = len(cluster.workloads)
    return TickInput(
        now_s=now_s,
        fleet=replace(cluster, time_s=now_s),
        spec=rules,
        schedule=schedule or no_schedule(rows),
        samples=samples(cluster, now_s, **columns),
        variants=variants,
        pairs=pairs,
    )


def intervals(for_s: float, every_s: float | None = None) -> list[float]:
    """Return the seconds between ticks over a while.

    Without `every_s` they are 5 s in the first minute and the last, and 15 s between these, where little happens.
    """
    if every_s is not None:
        return [every_s] * int(for_s / every_s)
    each = [5.0] * int(for_s / 5)
    between = len(each[12:-12]) // 3
    return [*each[:12], *[15.0] * between, *each[12 + 3 * between :]]


class Story:
    """Consecutive ticks with one memory; each tick advances the clock."""

    schedule: Schedule | None = None
    variants: Variants | None = None
    pairs: Pairs | None = None
    requests_nodes: BoolColumn | None = None

    def __init__(self, rules: Spec, now_s: float = 1000.0) -> None:
        self.spec, self.now_s, self.memory = rules, now_s, Memory.empty()

    def tick(self, cluster: Fleet, after_s: float = 5.0, **columns: Any) -> Decision:
        self.now_s += after_s
        inp = world(self.now_s, cluster, self.spec, self.schedule, self.variants, self.pairs, **columns)
        decision, self.memory = tick(replace(inp, requests_nodes=self.requests_nodes), self.memory)
        return decision

    def watch(self, cluster: Fleet, for_s: float, every_s: float | None = None, **columns: Any) -> Decision:
        """Tick with the same input for a while; return the last decision. every_s: None as in `intervals`."""
        for interval_s in intervals(for_s, every_s):
            decision = self.tick(cluster, interval_s, **columns)
        return decision


def observe_once(
    cluster: Fleet,
    now_s: float = 1000.0,
    memory: Memory | None = None,
    rules: Spec | None = None,
    pairs: Pairs | None = None,
    **readings: float | FloatColumn,
) -> tuple[Observation, Memory]:
    """Observe a world once; return the observation and the memory after it."""
    rules = rules or spec(len(cluster.workloads))
    before = align(memory or Memory.empty(), cluster)
    tables = before.workloads
    inp, none = world(now_s, cluster, rules, pairs=pairs, **readings), np.zeros(len(cluster.workloads), dtype=bool)
    observed, after, pods = observe(inp, tables.last_tick_s, tables.observe, before.pods, none)
    now = np.full(len(cluster.workloads), now_s)
    return observed.observation, replace(before, workloads=replace(tables, last_tick_s=now, observe=after), pods=pods)


def observed(observation: Observation, arrivals: Arrivals | None = None, pods: PodSamples | None = None) -> Observed:
    """Wrap a plain observation of pods that make progress, trusted for long; without pods unless given."""
    pods = PodSamples.filled(0) if pods is None else pods
    rows = len(observation.replicas)
    no = np.zeros(rows, dtype=bool)
    return Observed(
        observation=observation,
        diagnosed=Diagnosed.none(rows),
        starts=Starts.unknown(rows, len(pods.time_s)),
        arrivals=arrivals or Arrivals.blank(rows),
        pods=measure_pods(pods, 0.0, PodState.blank(len(pods.time_s))),
        claims=claims(rows),
        trusted=~no,
        trusted_since_s=np.full(rows, -np.inf),
        last_tick_s=np.full(rows, np.nan),
        link_s=np.array([np.zeros(rows), np.zeros(rows), observation.cold_start_s]),
        requested_link_s=np.array([np.zeros(rows), np.zeros(rows), observation.cold_start_s]),
    )


def observe_first(cluster: Fleet, rules: Spec | None = None, **readings: float | FloatColumn) -> dict[str, Any]:
    """Observe a world for the first time; return one number per column."""
    observation, _ = observe_once(cluster, rules=rules, **readings)
    return {name: column[0] for name, column in vars(observation).items()}


def claims(rows: int, **columns: Any) -> Claims:
    """Return claims without a limit, but for the given columns; None: as without it."""
    unlimited, no = np.full(rows, np.inf), np.zeros(rows, dtype=bool)
    plain = Claims(unlimited, unlimited, unlimited, no, no)
    return replace(plain, **_columns(vars(plain), columns))


def demands(desired: Any, **columns: Any) -> GpuDemands:
    """Return the demands of workloads that are trusted, ours and busy, but for the given columns; None: likewise."""
    wanted = np.array(desired, float)
    none, yes = np.zeros(len(wanted)), np.ones(len(wanted), dtype=bool)
    plain = GpuDemands(wanted, wanted, none, none, yes, yes, ~yes, ~yes, none)
    return plain._replace(**_columns(plain._asdict(), columns))


def _columns(plain: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(column, plain[name].dtype) for name, column in columns.items() if column is not None}
