"""Workloads whose engines count gaps between tokens and late requests, as the planner needs them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import Decision
from autoscaler.core.table.columns import FloatColumn
from tests.core.world import Story, intervals

WORK_S, IDLE_GAP_S, TOKENS = 2.0, 0.01, 100.0  # per request: work, gap between tokens on an idle engine, tokens
LEARNED = {"concurrency": math.nan}  # with a stated capacity the planner does not run


class Serving(Story):
    """Workloads whose pods share a load, and count their requests and tokens."""

    def __init__(self, rules: Spec, now_s: float = 1000.0) -> None:
        super().__init__(rules, now_s)
        self.counters = {name: np.zeros(1000) for name in ("requests", "gap_s", "met")}  # by id of pod

    def learn(self, cluster: Fleet) -> None:
        """Serve a rising load, by which the speed of a replica is learned."""
        for demand in (0.4, 0.8, 1.2, 1.6):
            self.serve(cluster, demand, 60)

    def serve(
        self, cluster: Fleet, demand: float | FloatColumn, for_s: float, every_s: float | None = None, **how: Any
    ) -> Decision:
        """Serve a load of this many busy replicas for a while; return the last decision. every_s: as in `intervals`."""
        for interval_s in intervals(for_s, every_s):
            decision = self.tick(cluster, interval_s, **self.counted(cluster, demand, interval_s, **how))
        return decision

    def counted(
        self,
        cluster: Fleet,
        demand: float | FloatColumn,
        passed_s: float,
        late: float = 0.0,
        asleep: float | FloatColumn = 0.0,
    ) -> dict[str, Any]:
        """Return the readings `passed_s` later. late: fraction of requests that miss TTFT. asleep: by pod."""
        awake = cluster.pod_ready & (np.broadcast_to(asleep, len(cluster.pods)) == 0)
        replicas = np.maximum(np.bincount(cluster.pod_workload, awake, len(cluster.workloads)), 1)
        busy = np.where(awake, np.minimum(demand / replicas, 0.95)[cluster.pod_workload], 0.0)
        ended = busy * passed_s / WORK_S
        grown = {"requests": ended, "gap_s": ended * TOKENS * IDLE_GAP_S / (1 - busy), "met": ended * (1 - late)}
        for name, more in grown.items():
            self.counters[name][cluster.pod_id] += more
        ended, gap_s, met = (self.counters[name][cluster.pod_id] for name in grown)
        tokens = {"generation_tokens": TOKENS * ended, "prompt_tokens": 500.0 * ended, "gaps": TOKENS * ended}
        requests = {"finished": ended, "first_tokens": ended, "ttft_met": met}
        return {"running": 4.0 * (busy > 0), "asleep": asleep, "gap_s": gap_s, **tokens, **requests}
