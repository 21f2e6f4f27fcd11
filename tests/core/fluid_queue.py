"""A small workload for closed-loop tests: a fluid queue, replicas with slots, and cold starts.

Requests arrive at a rate, wait in one queue, and are served by ready replicas in proportion to their used slots. It is
deterministic. `autoscaler.sim` also models prefill and lengths that differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import Decision
from tests.core.world import Story, fleet

SERVICE_S = 10.0  # of one request in a slot
TOKENS = 300.0  # of one request


@dataclass
class FluidQueue:
    """One workload under the real tick."""

    rules: Spec
    replicas: int = 1
    slots: int = 16
    cold_start_s: float = 60.0
    every_s: float = 5.0
    idle_gap_s: float = np.nan  # between tokens of an idle engine; NaN: engines count neither gaps nor met objectives
    full_kv_usage: float = 0.5  # KV-cache usage when all slots are in use
    gateway: bool = False  # holds requests while no replica serves
    now_s: float = 1000.0
    in_flight: float = 0.0
    done: float = 0.0
    begun: float = 0.0
    lost: float = 0.0
    born_s: dict[int, float] = field(default_factory=dict)  # pod id to creation
    counts: list[int] = field(default_factory=list)  # decided replicas, tick by tick
    waits: list[float] = field(default_factory=list)  # wait of the last request in the queue in seconds, tick by tick

    def __post_init__(self) -> None:
        self._story = Story(self.rules, self.now_s)
        self._next_id = 0
        self._counters: dict[int, float] = {}
        self._gap_s: dict[int, float] = {}
        self._met: dict[int, float] = {}  # requests that waited for at most the TTFT objective
        self._resize(self.replicas, born_s=self.now_s - 10_000.0)

    def run(self, arrivals_per_s: Callable[[float], float], for_s: float) -> Decision:
        """Run for `for_s` seconds; `arrivals_per_s` is a function of the seconds since the run began."""
        began_s = self.now_s
        while self.now_s < began_s + for_s:
            self._serve(arrivals_per_s(self.now_s - began_s))
            self.now_s += self.every_s
            decision = self._tick()
        return decision

    def _serve(self, per_s: float) -> None:
        """Serve requests for one period, in small steps."""
        step_s = 0.25
        ready_ids = self._ready_ids()  # the same for the whole period
        room = len(ready_ids) * self.slots
        for _ in range(int(self.every_s / step_s)):
            self.in_flight += per_s * step_s
            if not room and not self.gateway:
                self.lost, self.in_flight = self.lost + self.in_flight, 0.0
            served = min(self.in_flight, room) * step_s / SERVICE_S
            in_time = room and (self.in_flight - room) * SERVICE_S / room <= self.rules.ttft_objective_s[0]
            self.in_flight -= served
            self.done += served
            if not ready_ids:
                continue
            each = served / len(ready_ids)
            gap_s = each * TOKENS * self.idle_gap_s / (1 - min(self.in_flight / room, 0.95))
            for pod_id in ready_ids:
                self._counters[pod_id] += each
                self._met[pod_id] += each * bool(in_time)
                self._gap_s[pod_id] += gap_s

    def _tick(self) -> Decision:
        ready_ids = self._ready_ids()
        ready, starting = len(ready_ids), len(self.born_s) - len(ready_ids)
        running = min(self.in_flight, ready * self.slots)
        waiting = self.in_flight - running
        self.waits.append(waiting * SERVICE_S / (ready * self.slots) if ready else 0.0)
        finished = np.array([self._counters[pod_id] for pod_id in ready_ids] + [np.nan] * starting)
        readings = {"finished": finished, "first_tokens": finished, "generation_tokens": finished * TOKENS}
        if not np.isnan(self.idle_gap_s):
            readings["gap_s"] = np.array([self._gap_s[pod_id] for pod_id in ready_ids] + [np.nan] * starting)
            readings["gaps"] = finished * TOKENS
            readings["ttft_met"] = np.array([self._met[pod_id] for pod_id in ready_ids] + [np.nan] * starting)
        if self.gateway:
            readings |= {"gateway_waiting": np.floor(waiting) if not ready else 0.0, "gateway_arrivals_per_s": 0.0}
        cluster = self._fleet(ready_ids, starting)
        each = max(ready, 1)
        decision = self._story.tick(
            cluster,
            self.every_s,
            running=np.round(running) / each,
            waiting=np.floor(waiting) / each,
            kv_usage=self.full_kv_usage * running / (each * self.slots),
            **readings,
        )
        self._resize(int(decision.replicas[0]), born_s=self.now_s)
        self.counts.append(int(decision.replicas[0]))
        return decision

    def _ready_ids(self) -> list[int]:
        return [pod_id for pod_id, born in self.born_s.items() if self.now_s - born >= self.cold_start_s]

    def _fleet(self, ready_ids: list[int], starting: int) -> Fleet:
        born = np.array(list(self.born_s.values()))
        is_ready = self.now_s - born >= self.cold_start_s
        return fleet(
            [len(ready_ids)],
            [starting],
            pod_id=np.array(list(self.born_s), dtype=np.int64),
            pod_ready=is_ready,
            pod_created_s=born,
            pod_ready_s=np.where(is_ready, born + self.cold_start_s, np.nan),
        )

    def _resize(self, desired: int, born_s: float) -> None:
        """Create or delete pods; the youngest go first, as a ReplicaSet deletes those not ready before others."""
        for pod_id in sorted(self.born_s, reverse=True)[: max(len(self.born_s) - desired, 0)]:
            del self.born_s[pod_id], self._counters[pod_id], self._gap_s[pod_id], self._met[pod_id]
        for _ in range(desired - len(self.born_s)):
            self.born_s[self._next_id] = born_s
            self._counters[self._next_id] = self._gap_s[self._next_id] = self._met[self._next_id] = 0.0
            self._next_id += 1
