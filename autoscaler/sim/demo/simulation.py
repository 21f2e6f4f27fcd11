"""The simulated cluster as a WorkloadSource and an Actuator, with traffic.

Time passes only in `advance`: tests step it by hand, the live loop follows a clock. A seed determines traffic and the
draws of cold starts; the order of the draws depends on scaling decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.config.prices import find_price
from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, Pool, Workload, WorkloadRef
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import Change, ChangeStatus, Outcome
from autoscaler.sim.demo.cluster import DemoCluster, Deployment, PoolSetup, SimPod
from autoscaler.sim.demo.router import Router
from autoscaler.sim.demo.summary import DemoObjective, DemoScore, Summary, WorkloadSummary
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Ending, Request
from autoscaler.sim.engine.traffic import BLOCK_S, Shape, Traffic


@dataclass(frozen=True)
class WorkloadSetup:
    """One workload of a scenario: its deployment, traffic, policy and objectives."""

    deployment: Deployment
    model: str  # name in the metrics of engine and gateway
    policy: str
    shape: Shape
    objective: DemoObjective = field(default_factory=DemoObjective)
    overrides: tuple[tuple[str, str], ...] = ()
    patience_s: float = 60.0  # a client disconnects after this time without a token


@dataclass(frozen=True)
class Scenario:
    """The inputs of one simulation."""

    seed: int
    pools: tuple[PoolSetup, ...]
    workloads: tuple[WorkloadSetup, ...]


class SimWorkload:
    """One workload in the simulation: its arrivals, router and score."""

    def __init__(self, number: int, setup: WorkloadSetup, seed: int, now_s: float) -> None:
        self.setup = setup
        self.router = Router()
        self.score = DemoScore(setup.objective)
        self.gpu_s = 0.0
        self.peak_devices = 0.0
        self.scale_ups = 0
        self.scale_downs = 0
        self._traffic = Traffic(setup.shape, seed, number)
        self._block = int(now_s // BLOCK_S)
        self._due: list[Request] = []  # of the present block, next one last
        self._draw_block(after_s=now_s)

    def send_arrivals(self, replicas: Sequence[Replica], to_s: float) -> None:
        """Route the requests that arrive until `to_s` to the replicas."""
        while True:
            while self._due and self._due[-1].arrived_s <= to_s:
                request = self._due.pop()
                for replica in replicas:
                    replica.advance_if_needed(request.arrived_s)
                self.router.arrive(request, replicas, request.arrived_s)
            if (self._block + 1) * BLOCK_S > to_s:
                return
            self._block += 1
            self._draw_block()

    def _draw_block(self, after_s: float = 0.0) -> None:
        arrivals = self._traffic.block(self._block)
        rows = zip(
            arrivals.time_s.tolist(), arrivals.prompt_tokens.tolist(), arrivals.output_tokens.tolist(), strict=True
        )
        self._due = [Request(*row, self.setup.patience_s) for row in rows if row[0] > after_s]
        self._due.reverse()


class Simulation:
    """A running simulation. Implements `ports.WorkloadSource` and `ports.Actuator`."""

    def __init__(self, scenario: Scenario, now_s: float, new_port: Callable[[], int] = lambda: 0) -> None:
        for workload in scenario.workloads:
            longest = workload.shape.prompt.most_tokens + workload.shape.output.most_tokens
            if longest > workload.deployment.profile.max_model_len:
                raise ValueError(
                    f"requests of {workload.deployment.name} may have {longest} tokens, its profile allows "
                    f"{workload.deployment.profile.max_model_len}"
                )
        self.scenario = scenario
        self.now_s = now_s
        self.cluster = DemoCluster(
            scenario.pools, [workload.deployment for workload in scenario.workloads], scenario.seed, now_s, new_port
        )
        self.sim_workloads = [
            SimWorkload(number, workload, scenario.seed, now_s) for number, workload in enumerate(scenario.workloads)
        ]
        self._start_s = now_s
        self._gpu_share = np.array(
            [scenario.pools[workload.deployment.pool].device.gpu_fraction for workload in scenario.workloads]
        )
        self._workloads = tuple(_workload(number, workload) for number, workload in enumerate(scenario.workloads))
        self._row = {workload.ref: row for row, workload in enumerate(self._workloads)}

    # Ports.

    def fleet(self) -> Fleet:
        """Return the state at the last `advance`."""
        cluster, now_s = self.cluster, self.now_s
        pods = cluster.pods
        deployments = cluster.deployments

        def passed(moments: list[float]) -> FloatColumn:
            column = np.array(moments, dtype=np.float64)
            return np.where(column <= now_s, column, np.nan)

        ready = [pod.ready(now_s) for pod in pods]
        pools = tuple(pool.pool for pool in cluster.pools)
        return Fleet(
            time_s=now_s,
            workloads=self._workloads,
            workload_id=np.arange(len(deployments), dtype=np.int64),
            replicas=np.array(cluster.desired, dtype=np.float64),
            paused=np.zeros(len(deployments), dtype=bool),
            other_owner=("",) * len(deployments),
            gpus_per_replica=np.array([float(setup.devices) for setup in deployments]),
            pool=np.array([setup.pool for setup in deployments], dtype=np.int64),
            obstacles=Obstacles.none(len(deployments)),
            pods=tuple(pod.identity() for pod in pods),
            pod_id=np.array([pod.number for pod in pods], dtype=np.int64),
            pod_workload=np.array([pod.workload for pod in pods], dtype=np.int64),
            pod_ready=np.array(ready, dtype=bool),
            pod_terminating=np.array([pod.terminating for pod in pods], dtype=bool),
            pod_pending=np.array([cluster.blocked(pod) for pod in pods], dtype=np.int64),
            pod_created_s=np.array([pod.created_s for pod in pods], dtype=np.float64),
            pod_scheduled_s=passed([pod.scheduled_s for pod in pods]),
            pod_started_s=passed([pod.started_s for pod in pods]),
            pod_ready_s=np.where(ready, passed([pod.ready_s for pod in pods]), np.nan),
            pod_slots=np.array([pod.deployment.profile.stated_slots for pod in pods], dtype=np.float64),
            pools=pools,
            groups=self._groups(pools),
        )

    def _groups(self, pools: tuple[Pool, ...]) -> NodeGroups:
        """Return a node group for each pool, with the devices that its pods hold."""
        groups = NodeGroups.of_pools(pools, np.array(self.cluster.device_counts(), dtype=np.float64))
        pool_of_workload = [setup.pool for setup in self.cluster.deployments]
        used: FloatColumn = np.bincount(pool_of_workload, self.cluster.held_devices, len(pools)).astype(np.float64)
        return replace(groups, used=used)

    async def apply(self, changes: Sequence[Change], deadline_s: float) -> list[Outcome]:
        return [self._apply(change) for change in changes]

    def _apply(self, change: Change) -> Outcome:
        row = self._row.get(change.ref)
        if row is None:
            return Outcome(change, ChangeStatus.FAILED, f"{change.ref} does not exist")
        if change.uid not in ("", self._workloads[row].uid):
            return Outcome(
                change, ChangeStatus.FAILED, f"{change.ref} is another object: uid {self._workloads[row].uid}"
            )
        standing = self.cluster.desired[row]
        if standing != change.before:
            return Outcome(change, ChangeStatus.CONFLICT, f"it has {standing} replicas now, not {change.before}")
        try:
            self.cluster.scale(row, change.after, self.now_s)
        except ValueError as error:
            return Outcome(change, ChangeStatus.FAILED, str(error))
        sim_workload = self.sim_workloads[row]
        sim_workload.scale_ups += change.after > standing
        sim_workload.scale_downs += change.after < standing
        return Outcome(change, ChangeStatus.APPLIED)

    # Simulation.

    def advance(self, to_s: float) -> None:
        """Advance to `to_s`; a past time changes nothing."""
        while self.now_s < to_s:
            next_s = min(self.cluster.next_change_s(self.now_s), to_s)
            gpus = self.cluster.held_devices * self._gpu_share
            for row, sim_workload in enumerate(self.sim_workloads):
                sim_workload.gpu_s += float(gpus[row]) * (next_s - self.now_s)
            self._advance_engines(next_s)
            self.now_s = next_s
            for row, requests in self.cluster.change(next_s):
                self.sim_workloads[row].score.add(requests)
            for row, sim_workload in enumerate(self.sim_workloads):
                sim_workload.router.release(self._routable(row), next_s)
                sim_workload.score.add(sim_workload.router.take_ended())
                sim_workload.peak_devices = max(sim_workload.peak_devices, float(self.cluster.held_devices[row]))

    def ready_counts(self) -> list[int]:
        """Return the number of routable pods of each workload."""
        return [len(self._routable(row)) for row in range(len(self.sim_workloads))]

    def summary(self) -> Summary:
        """Return the summary of the simulation so far."""
        rows = tuple(self._summarize(row, sim_workload) for row, sim_workload in enumerate(self.sim_workloads))
        return Summary(self.scenario.seed, self.now_s - self._start_s, self.cluster.crashes, rows)

    def _summarize(self, row: int, sim_workload: SimWorkload) -> WorkloadSummary:
        score, endings = sim_workload.score, sim_workload.score.endings
        waiting = [*sim_workload.router.unanswered()]
        for _, replica in self._engines(row):
            waiting += replica.unanswered()
        decided = score.ended + score.late(waiting, self.now_s)

        def share(met: int) -> float | None:
            return met / decided if decided else None

        gpu_share = float(self._gpu_share[row])
        product = self.scenario.pools[sim_workload.setup.deployment.pool].pool.product
        cost = find_price(Pool("nvidia.com/gpu", product), {}, {}).times(sim_workload.gpu_s / 3600)
        return WorkloadSummary(
            name=str(self._workloads[row].ref),
            arrived=sim_workload.router.arrived,
            finished=endings[Ending.FINISHED],
            rejected=endings[Ending.REJECTED],
            given_up=endings[Ending.GIVEN_UP],
            failed=endings[Ending.FAILED],
            open=sim_workload.router.arrived - score.ended,
            attainment=share(score.met_both),
            attainment_ttft=share(score.met_ttft),
            attainment_itl=share(score.met_itl),
            gpu_hours=sim_workload.gpu_s / 3600,
            static_gpu_hours=sim_workload.peak_devices * gpu_share * (self.now_s - self._start_s) / 3600,
            scale_ups=sim_workload.scale_ups,
            scale_downs=sim_workload.scale_downs,
            usd=None if math.isnan(cost.usd) else cost.usd,
            price_note=cost.why,
        )

    def _advance_engines(self, to_s: float) -> None:
        for row, sim_workload in enumerate(self.sim_workloads):
            sim_workload.send_arrivals(self._routable(row), to_s)
            for _, replica in self._engines(row):
                replica.advance(to_s)
                sim_workload.score.add(replica.take_ended())
            sim_workload.score.add(sim_workload.router.take_ended())

    def _engines(self, row: int) -> list[tuple[SimPod, Replica]]:
        """Return the pods of a workload with a running engine, terminating ones included."""
        return [(pod, pod.replica) for pod in self.cluster.pods if pod.workload == row and pod.replica is not None]

    def _routable(self, row: int) -> list[Replica]:
        """Return the routable engines: ready and not terminating."""
        return [replica for pod, replica in self._engines(row) if pod.ready(self.now_s) and not pod.terminating]


def _workload(number: int, workload: WorkloadSetup) -> Workload:
    setup = workload.deployment
    return Workload(
        WorkloadRef(setup.namespace, setup.name),
        uid=f"00000000-0000-4000-8000-{number:012d}",
        policy=workload.policy,
        overrides=workload.overrides,
        model=workload.model,
    )
