"""A prefill and a decode workload of simulated engines under the real tick, as vLLM reports them.

A request goes to the prefill replica with the fewest requests, which generates one token. After the transfer of its KV
cache it goes to a decode replica, which computes no prompt. While at zero a gateway holds requests.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.core.model.fleet import Fleet, Pod, Workload, WorkloadRef
from autoscaler.core.model.pairs import DECODE, PREFILL, Pairs
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import Decision
from autoscaler.core.table.columns import FloatColumn
from autoscaler.sim.engine.metrics import EngineHistogram
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Request
from tests.core.world import Story, fleet

STEP_S = 0.05  # between two looks at the engines
WORKLOADS = tuple(Workload(WorkloadRef("ns", f"m-{role}"), service="m", role=role) for role in (PREFILL, DECODE))
PAIRS = Pairs(np.array([True, False]), np.array([False, True]), np.array([1, 0]))


@dataclass
class Engine:
    """One pod."""

    pod_id: int
    side: int  # row of its workload
    born_s: float
    replica: Replica
    submitted: dict[int, Request] = field(default_factory=dict)


class PairedEngines(Story):
    """A pair of workloads in a closed loop."""

    def __init__(
        self,
        rules: Spec,
        replicas: tuple[int, int] = (1, 1),
        *,
        prompt_tokens: int = 2000,
        output_tokens: int = 200,
        cold_start_s: float = 60.0,
        seed: int = 1,
        tells_deferred: bool = True,
        has_roles: bool = True,
        transfer_s: float = 0.05,
        pool_gpus: float = math.nan,
        gateway: bool = False,
    ) -> None:
        super().__init__(rules)
        self.pairs = PAIRS if has_roles else None
        self.prompt_tokens, self.output_tokens, self.cold_start_s = prompt_tokens, output_tokens, cold_start_s
        self.tells_deferred = tells_deferred
        self.transfer_s = transfer_s  # of the KV cache of a request; it waits in the decode engine meanwhile
        self.pool_gpus, self.gateway = pool_gpus, gateway
        profile = find("8b-h100")[1].profile
        self.profiles = profile, replace(profile, prompt_token_s=0.0, max_batched_tokens=10**6)
        self.random = np.random.default_rng(seed)
        self.engines: dict[int, Engine] = {}
        self.next_id = 0
        self.held: list[Request] = []  # at the gateway
        self.transfers: list[tuple[float, int, Request]] = []  # end, tie-break, request
        self.counts: list[tuple[int, int]] = []  # decided, tick by tick
        self.done: list[Request] = []  # decoded
        self.prefilled: list[Request] = []
        self.resize(replicas, self.now_s - 10_000.0)

    def resize(self, counts: tuple[int, ...], born_s: float) -> None:
        """Create and delete pods, those not ready first. Requests of a deleted pod are lost."""
        for side, count in enumerate(counts):
            own = sorted((each for each in self.engines.values() if each.side == side), key=lambda each: each.born_s)
            for each in own[count:]:
                del self.engines[each.pod_id]
            for _ in range(count - len(own)):
                ready_s = born_s + self.cold_start_s
                self.engines[self.next_id] = Engine(
                    self.next_id, side, born_s, Replica(self.profiles[side], max(ready_s, 0.0))
                )
                self.next_id += 1

    def run(self, per_s: Callable[[float], float], for_s: float, every_s: float = 15.0) -> Decision:
        """Serve for a while, with a tick each `every_s` seconds. per_s: requests, by the seconds since its begin."""
        began_s = self.now_s
        while self.now_s < began_s + for_s:
            for _ in range(round(every_s / STEP_S)):
                self.now_s += STEP_S
                self.step(self.random.poisson(per_s(self.now_s - began_s) * STEP_S))
            decision = self.decide()
        return decision

    def step(self, arrivals: int) -> None:
        """Serve the last `STEP_S` seconds, with this many requests at random times."""
        for at_s in np.sort(self.now_s - STEP_S * self.random.random(arrivals)).tolist():
            prompt = max(round(self.random.exponential(self.prompt_tokens)), 16)
            self.held.append(Request(at_s, min(prompt, 8000), 1))
        self.held = [each for each in self.held if not self.submit(each, each.arrived_s, 0)]
        while self.transfers and self.transfers[0][0] <= self.now_s:
            ends_s, _, request = heapq.heappop(self.transfers)
            if not self.submit(request, ends_s, 1):  # no replica: it waits for one
                heapq.heappush(self.transfers, (ends_s + STEP_S, id(request), request))
        for engine in self.ready():
            engine.replica.advance(self.now_s)
            for ended in engine.replica.take_ended():
                if engine.side:
                    self.done.append(ended)
                    continue
                self.prefilled.append(ended)
                answer = min(max(round(self.random.exponential(self.output_tokens)), 2), 4000)
                decoding = Request(ended.arrived_s, ended.prompt_tokens, answer)
                heapq.heappush(self.transfers, (ended.ended_s + self.transfer_s, id(decoding), decoding))

    def submit(self, request: Request, at_s: float, side: int) -> bool:
        """Submit a request to the least loaded replica of a side; return False if there is none."""
        engines = [engine.replica for engine in self.ready() if engine.side == side]
        if engines:
            replica = min(engines, key=lambda each: each.held)
            at_s = max(at_s, replica.clock_s if not replica.held else at_s)
            replica.advance(at_s)
            replica.submit(request, at_s)
        return bool(engines)

    def ready(self) -> list[Engine]:
        return [each for each in self.engines.values() if self.now_s - each.born_s >= self.cold_start_s]

    def decide(self) -> Decision:
        engines = sorted(self.engines.values(), key=lambda each: each.pod_id)
        is_ready = np.array([self.now_s - each.born_s >= self.cold_start_s for each in engines], dtype=bool)
        columns = self.read(engines)
        if self.gateway:
            columns |= {"gateway_waiting": np.full(2, float(len(self.held))), "gateway_arrivals_per_s": np.zeros(2)}
        decision = self.tick(self.cluster(engines, is_ready), 0.0, **columns)
        counts = tuple(int(count) for count in decision.replicas)
        self.counts.append((counts[0], counts[1]))
        self.resize(counts, self.now_s)
        return decision

    def cluster(self, engines: list[Engine], is_ready: np.ndarray) -> Fleet:
        born_s = np.array([each.born_s for each in engines])
        side = np.array([each.side for each in engines], dtype=np.int64)
        return fleet(
            [0, 0],
            replicas=np.bincount(side, minlength=2).tolist(),
            pool_gpus=[self.pool_gpus],
            workloads=WORKLOADS if self.pairs is not None else tuple(each._replace(role="") for each in WORKLOADS),
            pods=tuple(Pod("ns", f"p{each.pod_id}") for each in engines),
            pod_id=np.array([each.pod_id for each in engines], dtype=np.int64),
            pod_workload=side,
            pod_ready=is_ready,
            pod_terminating=np.zeros(len(engines), dtype=bool),
            pod_pending=np.zeros(len(engines), dtype=np.int64),
            pod_created_s=born_s,
            pod_scheduled_s=born_s,
            pod_started_s=born_s,
            pod_ready_s=np.where(is_ready, born_s + self.cold_start_s, np.nan),
        )

    def read(self, engines: list[Engine]) -> dict[str, FloatColumn]:
        """Return the readings of these pods. Older engines count prompts of another pod as their own."""
        metrics = [each.replica.metrics for each in engines]
        ttft_s, itl_s = self.spec.ttft_objective_s, self.spec.itl_objective_s
        sides = [each.side for each in engines]
        deferred = [len(self.transfers) // sides.count(1) if side else 0 for side in sides]
        columns = {
            "running": [each.replica.running for each in engines],
            "waiting": [each.replica.waiting + more for each, more in zip(engines, deferred, strict=True)],
            "deferred": deferred if self.tells_deferred else [math.nan] * len(engines),
            "kv_usage": [each.replica.kv_usage for each in engines],
            "prompt_tokens": [each.prompt_tokens for each in metrics],
            "generation_tokens": [each.generation_tokens for each in metrics],
            "finished": [each.finished_length for each in metrics],
            "first_tokens": [each.ttft.count for each in metrics],
            "ttft_met": [_met(each.replica.metrics.ttft, ttft_s[each.side]) for each in engines],
            "gap_s": [each.token_gap.total for each in metrics],
            "gaps": [each.token_gap.count for each in metrics],
            "itl_judged": [each.request_token_gap.count for each in metrics],
            "itl_met": [_met(each.replica.metrics.request_token_gap, itl_s[each.side]) for each in engines],
        }
        return {name: np.array(values, dtype=float) for name, values in columns.items()}


def _met(histogram: EngineHistogram, objective_s: float) -> float:
    """Return how many were within the objective, by the last bound that is; NaN without an objective."""
    if math.isnan(objective_s):
        return math.nan
    return sum(count for bound, count in zip(histogram.bounds, histogram.counts, strict=False) if bound <= objective_s)
