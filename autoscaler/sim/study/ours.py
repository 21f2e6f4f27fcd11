"""The product's own decision as a scaler of studies: `core.tick`, fed with what a scrape of each replica shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoscaler.config.model import Policy
from autoscaler.config.policy import PolicyBook
from autoscaler.config.schedule import schedule
from autoscaler.config.specs import compile_specs
from autoscaler.core.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.decision import Decision, TickInput
from autoscaler.core.fleet import Blocked, Fleet, Pod, Pool, Workload, WorkloadRef
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
    "ttft_met",
    "gap_s",
    "gaps",
    "itl_judged",
    "itl_met",
    "preemptions",
    "ttft_s",
    "itl_s",
)


class OursTogether:
    """Several workloads under their policies, in one tick. `decision` and `inp` are those of the last one.

    gpus: how many all replicas share; NaN: not known, so that nobody is cut.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        policies: Sequence[Policy],
        gpus: float = math.nan,
        period_s: float = 5.0,
        name: str = "ours",
    ) -> None:
        self.name = name
        self.period_s = period_s
        self._workloads = tuple(
            Workload(WorkloadRef("study", case.trace.name), policy=policy.name)
            for case, policy in zip(cases, policies, strict=True)
        )
        book = PolicyBook({policy.name: policy for policy in policies}, policies[0].name, {})
        rules = compile_specs(self._workloads, book)
        # The ceiling is the case's, for everybody who is compared: it is a matter of the purse, not of the decision.
        ceiling = np.array([float(case.max_replicas) for case in cases])
        floor = np.fmin(rules.spec.min_replicas, ceiling)
        self._rules = replace(rules, spec=replace(rules.spec, min_replicas=floor, max_replicas=ceiling))
        self._gpus_per_replica = np.array([case.gpus_per_replica for case in cases])
        self._gpus = np.array([gpus])
        self._workload_id = np.arange(len(cases))
        self._pods: _Pods | None = None
        self._memory = Memory.empty()
        self.inp: TickInput | None = None
        self.decision: Decision | None = None

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        now_s = views[0].now_s
        rows = [view.pods for view in views]
        if self._pods is None or any(row is not before for row, before in zip(rows, self._pods.rows, strict=True)):
            self._pods = _Pods.of(rows)
        pods = self._pods
        front = FrontSamples(
            time_s=np.array([view.seen.time_s for view in views]),
            waiting=np.array([view.seen.gateway_waiting for view in views]),
            arrivals_per_s=np.full(len(views), np.nan),
        )
        self.inp = TickInput(
            now_s=now_s,
            fleet=self._fleet(now_s, views, pods),
            spec=self._rules.spec,
            schedule=schedule(self._rules, WALL_S + now_s, now_s),
            samples=Samples(pods.samples, front),
        )
        self.decision, self._memory = tick(self.inp, self._memory)
        return [int(count) for count in self.decision.replicas]

    def _fleet(self, now_s: float, views: Sequence[View], pods: _Pods) -> Fleet:
        return Fleet(
            time_s=now_s,
            workloads=self._workloads,
            workload_id=self._workload_id,
            replicas=np.array([float(view.wanted) for view in views]),
            paused=np.zeros(len(views), dtype=bool),
            rival=("",) * len(views),
            gpus_per_replica=self._gpus_per_replica,
            pool=np.zeros(len(views), dtype=np.int64),
            pods=pods.names,
            pod_id=pods.id,
            pod_workload=pods.workload,
            pod_ready=pods.ready,
            pod_terminating=pods.terminating,
            pod_blocked=pods.blocked,
            pod_created_s=pods.created_s,
            pod_scheduled_s=pods.scheduled_s,
            pod_started_s=pods.started_s,
            pod_ready_s=pods.ready_s,
            pools=(Pool("nvidia.com/gpu"),),
            pool_gpus=self._gpus,
        )


class Ours(OursTogether):
    """One workload under one policy."""

    def __init__(self, case: Case, policy: Policy, period_s: float = 5.0, name: str = "ours") -> None:
        super().__init__((case,), (policy,), period_s=period_s, name=name)

    def decide(self, view: View) -> int:
        return self.decide_all((view,))[0]


@dataclass(frozen=True)
class _Pods:
    """The pods of several workloads as rows of one table, by ascending id."""

    rows: Sequence[PodRows]  # [W], of which it was made
    names: tuple[Pod, ...]
    id: IntColumn  # int64[P], unique among all of them
    workload: IntColumn  # int64[P]
    ready: BoolColumn
    terminating: BoolColumn
    blocked: IntColumn
    created_s: FloatColumn
    scheduled_s: FloatColumn
    started_s: FloatColumn
    ready_s: FloatColumn
    samples: PodSamples

    @classmethod
    def of(cls, rows: Sequence[PodRows]) -> _Pods:
        workload = np.repeat(np.arange(len(rows)), [len(each.id) for each in rows])
        ids = np.concatenate([each.id for each in rows]) * len(rows) + workload
        order = np.argsort(ids)

        def column(name: str) -> Any:
            return np.concatenate([getattr(each, name) for each in rows])[order]

        samples = PodSamples.filled(len(ids))
        for name in _READINGS:
            getattr(samples, name)[:] = column(name)
        samples.asleep[:] = 0.0
        ready_s = column("ready_s")
        return cls(
            rows=rows,
            names=tuple(Pod("study", str(number)) for number in ids[order].tolist()),
            id=ids[order],
            workload=workload[order],
            ready=~np.isnan(ready_s),
            terminating=column("terminating"),
            blocked=np.where(column("unschedulable"), Blocked.UNSCHEDULABLE, Blocked.NO).astype(np.int64),
            created_s=column("created_s"),
            scheduled_s=column("scheduled_s"),
            started_s=column("started_s"),
            ready_s=ready_s,
            samples=samples,
        )
