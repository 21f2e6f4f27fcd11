"""Made-up ticks for the tests of this folder: a fleet of any size whose load follows a seeded daily wave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from autoscaler.core.explain.diagnosis import GpuWords
from autoscaler.core.explain.planner_lines import PlannerLine
from autoscaler.core.explain.sentence import Explanation, SentenceStep
from autoscaler.core.model.chain import Cause, Chain
from autoscaler.core.model.diagnosis import Diagnosed, Diagnosis
from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, PendingClass, Pod, Pool, Workload, WorkloadRef
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.phases import Phase, Starts
from autoscaler.core.model.quotas import Quota, Quotas
from autoscaler.core.model.samples import Samples, SourceReport
from autoscaler.core.model.spec import Schedule, Spec
from autoscaler.core.model.types import Capacity, Decision, Plan, Recommender, Signal, SleepOrders, Stage, TickInput
from autoscaler.core.model.weights import FetchFailure, PodCache, SourceStatus, WeightPlaces, Weights, WishStatus
from autoscaler.ports import Change, ChangeStatus, Outcome, TickRecord

POLICIES = ("realtime", "interactive", "batch", "development")
POOLS = (Pool("nvidia.com/gpu", "NVIDIA-H100-80GB-HBM3"),)
TTFT_OBJECTIVES_S = (0.15, 1.0, 30.0, 5.0)
MODELS = ("llama-3.1-8b", "llama-3.3-70b", "qwen2.5-32b", "mistral-small", "gemma-3-27b", "deepseek-r1-distill")
TEAMS = ("search", "support", "assistants", "documents", "research")
START_WALL_S = 1_795_000_000.0
PERIOD_S = 5.0
FORECAST = (
    PlannerLine("headroom", "1.69 replicas: 4 recommended for a load of 2.31"),
    PlannerLine("budget", "1% of requests may miss in a day, 2.5% missed in about a day: 250% of the error budget"),
)
INPUTS = {
    "kv_usage": float("nan"),
    "cold_start_s": 95.0,
    "capacity_concurrency": 16.0,
    "capacity_confidence": 0.8,
    "planner_idle_gap_s": 0.0078,
    "planner_missed_fraction": 0.025,
    "planner_used_budgets": 2.5,
}


def workloads(count: int) -> tuple[Workload, ...]:
    """Return `count` workloads with names as teams give them, unlike each other."""
    return tuple(
        Workload(
            WorkloadRef(TEAMS[row % len(TEAMS)], f"{MODELS[row % len(MODELS)]}-{row:04d}".replace(".", "-")),
            uid=f"uid-{row}",
            policy=POLICIES[row % len(POLICIES)],
            service=f"{MODELS[row % len(MODELS)]}",
            model=MODELS[row % len(MODELS)],
            team=TEAMS[row % len(TEAMS)] if row % 2 == 0 else "",
        )
        for row in range(count)
    )


def fleet(members: tuple[Workload, ...], replicas: np.ndarray, ids: np.ndarray | None = None) -> Fleet:
    """Return a fleet of these workloads without pods; ids ascend from 0 unless given."""
    count = len(members)
    none = np.empty(0)
    return Fleet(
        time_s=0.0,
        workloads=members,
        workload_id=np.arange(count) if ids is None else ids,
        replicas=replicas,
        paused=np.zeros(count, dtype=bool),
        other_owner=("",) * count,
        gpus_per_replica=np.ones(count),
        pool=np.zeros(count, dtype=np.int64),
        obstacles=Obstacles.none(count),
        pods=(),
        pod_id=none.astype(np.int64),
        pod_workload=none.astype(np.int64),
        pod_ready=none.astype(bool),
        pod_terminating=none.astype(bool),
        pod_pending=none.astype(np.int64),
        pod_created_s=none,
        pod_scheduled_s=none,
        pod_started_s=none,
        pod_ready_s=none,
        pools=POOLS,
        groups=replace(NodeGroups.of_pools(POOLS, np.array([4.0 * count])), used=np.array([1.0 * count])),
    )


class World:
    """Workloads whose load rises and falls; each `tick()` is the next record.

    Replicas follow the decision of the tick before, so demand, ready and wanted differ where they should.
    """

    def __init__(self, members: tuple[Workload, ...] | int = 12, seed: int = 1) -> None:
        self.members = workloads(members) if isinstance(members, int) else members
        count = len(self.members)
        self.ids = np.arange(count)
        self.random = np.random.default_rng(seed)
        self.phase = self.random.uniform(0, 2 * np.pi, count)
        self.height = self.random.uniform(1, 9, count)
        self.replicas = np.ceil(self.height / 2)
        self.number = 0
        self.idle_s = np.zeros(count)

    def ticks(self, count: int) -> list[TickRecord]:
        return [self.tick() for _ in range(count)]

    def tick(self, status: ChangeStatus = ChangeStatus.APPLIED) -> TickRecord:
        count = len(self.members)
        wave = 1 + 0.9 * np.sin(2 * np.pi * self.number / 240 + self.phase)
        load = self.height * wave + self.random.normal(0, 0.15, count) * self.height
        demand = np.maximum(np.ceil(load), 0)
        wanted = np.clip(demand, 1, 12)
        wanted = np.where(wanted < self.replicas, np.maximum(wanted, self.replicas - 1), wanted)
        wanted = np.where(self.number % 6 == np.arange(count) % 6, wanted, self.replicas)
        waiting = np.maximum(np.round((load - self.replicas) * 8), 0)
        objective = np.array([TTFT_OBJECTIVES_S[row % 4] for row in range(count)])
        ttft = objective * (0.4 + 0.1 * waiting + self.random.uniform(0, 0.1, count))
        self.idle_s = self.idle_s + np.maximum(self.replicas - demand, 0) * PERIOD_S

        stages = np.tile(wanted, (len(Stage), 1))
        stages[: Stage.STABILIZATION] = demand
        asks = np.full((len(Signal), count), np.nan)
        asks[Signal.CONCURRENCY] = demand
        asks[Signal.DECODE] = np.maximum(demand - 1, 0)
        starting = np.maximum(wanted - self.replicas, 0)
        observation = replace(
            Observation.filled(count, 0.0),
            replicas=self.replicas,
            ready=self.replicas,
            starting=starting,
            next_ready_s=np.where(starting > 0, 40.0, np.nan),
            reporting=self.replicas,
            age_s=np.full(count, 1.2),
            running=np.round(np.clip(load, 0, self.replicas) * 16),
            waiting=waiting,
            gateway_waiting=np.full(count, np.nan),
            ttft_s=ttft,
            itl_s=np.full(count, 0.021),
            gpu_loaded=self.replicas,
            gpu_active=np.minimum(demand, self.replicas),
            loaded_idle_s=self.idle_s,
            cold_start_s=np.full(count, 95.0),
        )
        decision = Decision(
            observation=observation,
            starts=Starts.unknown(count, 0),
            capacity=Capacity(*(np.full(count, value) for value in (16.0, 9000.0, 1500.0, 0.8))),
            recommender=np.full(count, Recommender.PLANNER),
            recommendations=asks,
            stages=stages,
            replicas=wanted,
            sleep_orders=SleepOrders(*[np.zeros(0, dtype=bool)] * 3),
            active=wanted > 0,
            trusted=np.ones(count, dtype=bool),
            idle_after_s=np.full(count, np.nan),
            unfollowed_s=np.full(count, np.nan),
            kept_for_s=np.full(count, np.nan),
            kept_window_s=np.full(count, np.nan),
            idle_s=np.full(count, np.nan),
            base_replicas=wanted,
            pending_by_class=np.eye(len(PendingClass))[:, [PendingClass.STARTING] * count],
            plan=replace(
                Plan.blank(count),
                demand=load,
                allowed_fraction=np.full(count, 0.0065),
                missed_fraction=np.full(count, 0.025),
            ),
            diagnosed=Diagnosed(
                np.full(count, Diagnosis.IDLE_AND_LOADED), self.replicas, self.replicas, np.zeros(count, dtype=bool)
            ),
            chain=Chain.none(count),
        )
        spec = replace(
            Spec.filled(count),
            ttft_objective_s=objective,
            itl_objective_s=np.full(count, 0.05),
            attainment=np.full(count, 0.99),
        )
        no_windows = np.empty((count, 0))
        report = SourceReport("prometheus", queries=14, failed=0, duration_s=0.02)
        outcomes = tuple(
            Outcome(
                Change(
                    self.members[row].ref,
                    self.members[row].uid,
                    int(self.replicas[row]),
                    int(wanted[row]),
                    sentence(self.members[row].ref, int(self.replicas[row]), int(wanted[row]), int(demand[row])),
                ),
                status,
            )
            for row in np.flatnonzero(wanted != self.replicas)
        )
        record = TickRecord(
            number=self.number,
            now_s=self.number * PERIOD_S,
            wall_s=START_WALL_S + self.number * PERIOD_S,
            duration_s=0.012,
            input=TickInput(
                now_s=self.number * PERIOD_S,
                fleet=fleet(self.members, self.replicas, self.ids),
                spec=spec,
                schedule=Schedule(no_windows, no_windows, no_windows, no_windows),
                samples=Samples.unknown(count, 0, (report,)),
            ),
            decision=decision,
            policies=tuple(member.policy for member in self.members),
            outcomes=outcomes,
            leading=True,
        )
        self.number += 1
        self.replicas = wanted if status is ChangeStatus.APPLIED else self.replicas
        return record


def sentence(ref: WorkloadRef, before: int, after: int, demand: int) -> str:
    verb = "Scale up" if after > before else "Scale down"
    return f"{verb} {ref} from {before} to {after}: concurrency recommends {demand}."


def explain(
    given: TickInput,
    decision: Decision,
    policies: tuple[str, ...],
    problems: Mapping[int, str],
    row: int,
    leading: bool,
) -> Explanation:
    """Explain as the core does, in fewer words."""
    ref = given.fleet.workloads[row].ref
    demand, wanted = decision.stages[0, row], decision.replicas[row]
    return Explanation(
        recommender="planner",
        workload=str(ref),
        policy=policies[row],
        current=int(given.fleet.replicas[row]),
        wanted=int(wanted),
        ready=int(decision.observation.ready[row]),
        signal="concurrency",
        bound="stabilization" if demand != wanted else "",
        asks={"concurrency": float(demand), "decode": max(float(demand) - 1, 0.0)},
        steps=tuple(
            SentenceStep(
                stage.published,
                float(decision.stages[stage, row]),
                "shrinks only to what the last 5m agreed on"
                if stage == Stage.STABILIZATION and demand != wanted
                else "",
            )
            for stage in Stage
        ),
        forecast=FORECAST,
        gpus=GpuWords("idle_and_loaded", False, "2 of 2 serving replicas: idle and loaded", "sleep of idle replicas"),
        inputs=INPUTS,
        sentence=sentence(ref, int(given.fleet.replicas[row]), int(wanted), int(demand)),
    )


def with_quotas(tick: TickRecord) -> TickRecord:
    """Return a tick in which two owners share a cohort, and a namespace has a quota of its own."""
    names = (("ClusterQueue/prod", "all"), ("ClusterQueue/research", "all"), ("Cohort/all", "all"))
    rows = len(tick.input.fleet.workloads)
    kueue = Quotas(
        quotas=tuple(Quota(name, "nvidia.com/gpu", "h100", cohort) for name, cohort in names),
        nominal=np.array([8.0, 4.0, 2.0]),
        borrowing_limit=np.array([np.inf, 3.0, 0.0]),
        lending_limit=np.array([6.0, 4.0, 2.0]),
        used_by_others=np.array([1.0, 4.0, 0.0]),
        tenant=np.zeros(rows, dtype=np.int64),
        charged=np.array([[True, False, False]]),
        used=np.array([1.0, 2.0, 0.0]),
    )
    namespace = Quotas(
        quotas=(Quota("ResourceQuota team-a/gpus", "nvidia.com/gpu"),),
        nominal=np.array([8.0]),
        borrowing_limit=np.zeros(1),
        lending_limit=np.zeros(1),
        used_by_others=np.zeros(1),
        tenant=np.zeros(rows, dtype=np.int64),
        charged=np.ones((1, 1), dtype=bool),
    )
    fleet = replace(tick.input.fleet, quotas=(kueue, namespace))
    return replace(tick, input=replace(tick.input, fleet=fleet))


def with_window(tick: TickRecord) -> TickRecord:
    """Return a tick of one workload whose window "office" begins in half an hour."""
    chain = replace(
        Chain.none(1),
        due_s=np.array([tick.now_s + 1800]),
        replicas=np.array([4.0]),
        window=np.array([0]),
        starts_s=np.array([[tick.now_s + 600], [np.nan], [tick.now_s + 1200]]),
        places=np.array([2.0]),
    )
    inp = replace(tick.input, schedule=replace(tick.input.schedule, names=("office",)))
    return replace(tick, input=inp, decision=replace(tick.decision, chain=chain))


def with_rise(tick: TickRecord) -> TickRecord:
    """Return a tick of one workload whose load rose a week ago at what will be in half an hour."""
    chain = with_window(tick).decision.chain
    chain = replace(chain, window=np.array([-1]), cause=np.array([Cause.WEEK_AGO]))
    starts_s = np.array([[tick.now_s + 600], [tick.now_s + 900], [np.nan]])
    return replace(tick, decision=replace(tick.decision, chain=replace(chain, starts_s=starts_s)))


def with_starts(tick: TickRecord) -> TickRecord:
    """Return a tick whose first workload has learned its starts, and has a pod whose weights are late."""
    count = len(tick.policies)
    fleet = replace(
        tick.input.fleet,
        pods=(Pod("ns", "late-0"),),
        pod_id=np.array([0]),
        pod_workload=np.array([0]),
        pod_ready=np.array([False]),
        pod_terminating=np.array([False]),
        pod_pending=np.array([0]),
        pod_created_s=np.array([tick.now_s - 800]),
        pod_scheduled_s=np.array([tick.now_s - 790]),
        pod_started_s=np.array([np.nan]),
        pod_ready_s=np.array([np.nan]),
    )
    medians_s = np.outer(np.arange(len(Phase)) * 10.0, np.ones(count))
    starts = replace(
        Starts.unknown(count, 1),
        known=np.ones(count, dtype=bool),
        seen=np.where(np.arange(count) == 0, 5.0, 0.0),
        cache=np.where(np.arange(count) == 0, int(PodCache.HELD), int(PodCache.UNKNOWN)),
        p50_s=medians_s,
        p90_s=medians_s * 1.5,
        by_cache_p50_s=np.outer([200.0, 300.0, 40.0], np.ones(count)),
        by_cache_p90_s=np.outer([250.0, 400.0, 55.0], np.ones(count)),
        pod_phase=np.array([Phase.WEIGHTS]),
        pod_phase_s=np.array([720.0]),
        pod_usual_s=np.array([120.0]),
        pod_late=np.array([True]),
        pod_left_s=np.array([90.0]),
    )
    seen = replace(tick.decision.observation, pending=np.where(np.arange(count) == 0, 1.0, 0.0))
    decision = replace(tick.decision, starts=starts, observation=seen)
    return replace(tick, input=replace(tick.input, fleet=fleet), decision=decision)


def with_weights(tick: TickRecord) -> TickRecord:
    """Return a tick of two workloads, of which the first loads weights that three nodes should hold."""
    places = WeightPlaces(
        workload=np.array([0]),
        group=np.array([0]),
        free=np.array([9.0]),
        free_held=np.array([4.0]),
        free_absent=np.array([5.0]),
        nodes=np.array([6.0]),
        nodes_held=np.array([1.0]),
    )
    failure = FetchFailure("node-7", "unauthorized", "the hub wants a token")
    weights = Weights(
        sources=("hf://org/chat@main",),
        source=np.array([0, -1]),
        size_bytes=np.array([16e9, np.nan]),
        steered=np.array([True, False]),
        places=places,
        pod_cache=np.zeros(len(tick.input.fleet.pods), dtype=np.int64),
        status=(SourceStatus(1, 0, 1, 1, (failure,), 3, 2.0),),
        nodes=6,
        budget_bytes=6e12,
        wishes=WishStatus(True, 3, 7),
    )
    fleet = replace(tick.input.fleet, weights=weights)
    return replace(tick, input=replace(tick.input, fleet=fleet))
