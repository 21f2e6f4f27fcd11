"""The product's own decision as a scaler of studies: `core.tick`, fed with what a scrape of each replica shows."""

from __future__ import annotations

import numpy as np

from autoscaler.config.model import Policy
from autoscaler.config.policy import PolicyBook
from autoscaler.config.schedule import schedule
from autoscaler.config.specs import compile_specs
from autoscaler.core.decision import Decision, TickInput
from autoscaler.core.fleet import Fleet, Pod, Pool, Workload, WorkloadRef
from autoscaler.core.memory import Memory
from autoscaler.core.samples import FrontSamples, PodSamples, Samples
from autoscaler.core.tick import tick
from autoscaler.sim.study.case import Case, PodRows, View

WALL_S = 1_800_000_000.0
"""Unix time of the start of a trace, for the schedules of a policy."""

_READINGS = (
    "time_s",
    "running",
    "waiting",
    "kv_usage",
    "prompt_tokens",
    "generation_tokens",
    "finished",
    "first_tokens",
    "preemptions",
    "ttft_s",
    "itl_s",
)


class Ours:
    """One workload under one policy. `decision` and `inp` are those of the last tick, for explaining it."""

    def __init__(self, case: Case, policy: Policy, period_s: float = 5.0, name: str = "ours") -> None:
        self.name = name
        self.period_s = period_s
        self._workloads = (Workload(WorkloadRef("study", case.trace.name), policy=policy.name),)
        book = PolicyBook({policy.name: policy}, policy.name, {})
        self._rules = compile_specs(self._workloads, book)
        self._gpus_per_replica = np.array([case.gpus_per_replica])
        self._workload_id = np.zeros(1, dtype=np.int64)
        self._memory = Memory.empty()
        self.inp: TickInput | None = None
        self.decision: Decision | None = None

    def decide(self, view: View) -> int:
        pods = view.pods
        samples = PodSamples.filled(len(pods.id))
        for name in _READINGS:
            getattr(samples, name)[:] = getattr(pods, name)
        samples.asleep[:] = 0.0
        seen = view.seen
        front = FrontSamples(
            time_s=np.array([seen.time_s]),
            waiting=np.array([seen.gateway_waiting]),
            arrivals_per_s=np.array([np.nan]),
        )
        now_s = view.now_s
        self.inp = TickInput(
            now_s=now_s,
            fleet=self._fleet(view, pods),
            spec=self._rules.spec,
            schedule=schedule(self._rules, WALL_S + now_s, now_s),
            samples=Samples(samples, front),
        )
        self.decision, self._memory = tick(self.inp, self._memory)
        return int(self.decision.replicas[0])

    def _fleet(self, view: View, pods: PodRows) -> Fleet:
        rows = len(pods.id)
        ready = ~np.isnan(pods.ready_s)
        return Fleet(
            time_s=view.now_s,
            workloads=self._workloads,
            workload_id=self._workload_id,
            replicas=np.array([float(view.wanted)]),
            paused=np.zeros(1, dtype=bool),
            rival=("",),
            gpus_per_replica=self._gpus_per_replica,
            pool=np.zeros(1, dtype=np.int64),
            pods=tuple(Pod("study", str(number)) for number in pods.id.tolist()),
            pod_id=pods.id,
            pod_workload=np.zeros(rows, dtype=np.int64),
            pod_ready=ready,
            pod_terminating=pods.terminating,
            pod_blocked=np.zeros(rows, dtype=np.int64),
            pod_created_s=pods.created_s,
            pod_scheduled_s=pods.created_s,
            pod_started_s=pods.created_s,
            pod_ready_s=pods.ready_s,
            pools=(Pool("nvidia.com/gpu"),),
            pool_gpus=np.array([np.nan]),
        )
