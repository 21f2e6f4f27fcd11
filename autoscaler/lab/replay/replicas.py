"""The replicas of one study: asked for, started cold, served from, drained, crashed; and what a scrape reads of them.

The engines themselves are rows of `state`, moved by `kernel`. Nothing here decides how many there should be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay import kernel
from autoscaler.lab.replay.case import Case, Totals
from autoscaler.lab.replay.shared_gpus import Claim, GpuPool, Place
from autoscaler.lab.replay.starts import Starts, draw_pace
from autoscaler.lab.replay.state import COUNTERS, HISTOGRAMS, Engine, State, new_gateway

FIRST_ROWS = 16
LEAST_BACK_OFF_S, MOST_BACK_OFF_S = 10.0, 300.0  # the kubelet's, before a container starts again
BACK_OFF_RESET_S = 600.0  # a container that ran for so long starts again at once
ENDING_LOOK_S = 1.0  # how often leaving replicas are looked at while somebody waits for their GPUs


@dataclass(slots=True, eq=False)
class Pod:
    """One replica from being asked for to its end."""

    id: int
    created_s: float
    since_s: float  # beginning of the present start; later than `created_s` if it waited for GPUs, or after a crash
    pace: float  # of its start, beside the mean
    claim: Claim
    placed_s: float = math.inf  # when it got its GPUs, and began to cost; infinity: it waits for them
    scheduled_s: float = math.inf  # these lie ahead while it starts
    started_s: float = math.inf
    ready_s: float = math.inf
    leaving_s: float = math.nan
    crash_s: float = math.inf
    back_off_s: float = 0.0  # before the next restart, if it crashes again soon
    row: int = -1  # of `State`, while its engine serves

    @property
    def placed(self) -> bool:
        return self.placed_s < math.inf

    @property
    def leaving(self) -> bool:
        return not math.isnan(self.leaving_s)


class Scrape(NamedTuple):
    """What one scrape reads: one row per engine that answers, leaving ones included."""

    time_s: float
    id: IntColumn  # int64[n], ascending
    gauges: FloatColumn  # float64[3, n]: running, waiting, KV usage
    counters: FloatColumn  # float64[6, n], `state.COUNTERS`
    counts: IntColumn  # int64[n, 85], of every histogram, side by side (`state.HISTOGRAMS`); not cumulative


class Replicas:
    """All replicas of a case and the requests inside them. Time moves by `advance`; `scale` changes their number."""

    def __init__(self, case: Case, pool: GpuPool) -> None:
        self.case = case
        self.engine = Engine.of(case.profile, case.patience_s)
        self.state = State.of(case.trace, case.profile, FIRST_ROWS)
        self.gateway = new_gateway()
        self.pods: list[Pod] = []  # ascending by id
        self.spans: list[tuple[float, float]] = []  # from having GPUs to the end, of replicas that are gone
        self.ready = 0  # serving and not leaving
        self.changes = 0  # grows with every change of `pods`
        self._pool = pool
        self._starts = Starts(case)
        self._clock_s = 0.0
        self._next_change_s = math.inf
        self._rng = np.random.default_rng((case.seed, 271_828))  # apart from whoever else uses the seed
        self._ids = 0
        self._next_arrival_s = -math.inf
        self._free = list(range(FIRST_ROWS))[::-1]
        self._least = case.router == "least-requests"
        self._serving = self._answering = self._answering_ids = np.empty(0, np.int64)  # rows of `State`; their ids
        self._is_serving = np.empty(0, np.bool_)  # of those that answer
        self._leaving: list[Pod] = []
        self._gone = np.zeros(len(COUNTERS))  # sums over engines that are gone
        self._gone_counts = np.zeros(HISTOGRAMS[-1], np.int64)
        for _ in range(case.start_replicas):  # the study begins in the middle of their life
            self._add(0.0, 0.0)
        before = np.random.default_rng((case.seed, 314_159))  # apart: who starts later does so whatever these took
        for pod in self.pods:
            if pod.placed:  # the start that lies behind it, which the status of a pod tells
                began_s = -self._starts.again_s(draw_pace(before, case.cold_start_spread))
                pod.created_s = pod.scheduled_s = pod.started_s = began_s
            else:  # there is no room for it yet
                pod.pace = self._draw_pace()
        self._change(0.0)

    # Time and number.

    @property
    def next_event_s(self) -> float:
        """When a replica changes by itself, or may have given GPUs back that somebody waits for."""
        if self._leaving and self._pool.short:
            return min(self._next_change_s, self._clock_s + ENDING_LOOK_S)
        return self._next_change_s

    def advance(self, to_s: float) -> None:
        """Let requests come, engines step and replicas change until `to_s`, at most to `next_event_s`."""
        self._clock_s = to_s
        if to_s > self._next_arrival_s:
            self._next_arrival_s = kernel.arrive(
                self.state, self.engine, self.gateway, self._serving, to_s, self._least
            )
        if to_s >= self._next_change_s or self._leaving:
            self._change(to_s)

    def scale(self, wanted: int, now_s: float) -> None:
        """Ask for replicas, or let some go as a ReplicaSet does: those without GPUs, not ready, the last to be ready.

        Source: `ActivePodsWithRanks` in pkg/controller/controller_utils.go of Kubernetes; what a replica is doing is
        not known there. Left out of the order among those ready: more siblings on the node go first, and how long they
        have been ready is compared in logarithmic buckets.
        """
        live = [pod for pod in self.pods if not pod.leaving]
        for _ in range(wanted - len(live)):
            self._add(now_s, self._draw_pace())
        live.sort(key=lambda pod: (pod.placed, pod.row >= 0, -pod.ready_s if pod.row >= 0 else 0.0, -pod.id))
        for pod in live[: max(len(live) - wanted, 0)]:
            pod.leaving_s = now_s
        if wanted != len(live):
            self._change(now_s)

    def held(self, now_s: float) -> int:
        """Return the requests inside and in front at `now_s`."""
        self._release(now_s)  # who lost patience in front has left
        return kernel.held(self.state, self.engine, self._answering, now_s) + int(self.gateway["held"][0])

    @property
    def done(self) -> bool:
        """Whether every request of the trace has come and nobody waits or runs. As of the last `held` or `scrape`."""
        if int(self.gateway["arrived"][0]) < len(self.state.arrival_s) or self.gateway["held"][0]:
            return False
        return not self.state.replicas["held"][self._answering].any()

    def paid_s(self, from_s: float, end_s: float) -> float:
        """Return the replica-seconds between two moments, from having GPUs to the end."""
        spans = np.array(self.spans + [(pod.placed_s, math.inf) for pod in self.pods]).reshape(-1, 2)
        return float(np.maximum(np.minimum(spans[:, 1], end_s) - np.maximum(spans[:, 0], from_s), 0.0).sum())

    # What a scrape shows.

    def scrape(self, now_s: float) -> tuple[Totals, Scrape]:
        """Read every engine."""
        self._release(now_s)
        gauges, counters, counts, sums, sum_counts = kernel.read(
            self.state, self.engine, self._answering, now_s, self._gone, self._gone_counts
        )
        serving = gauges[:, self._is_serving] if self._leaving else gauges
        gateway = self.gateway[0]
        prompt_tokens, generation_tokens, finished, first_tokens, _, itl_sum_s = sums.tolist()
        seen = Totals(
            time_s=now_s,
            running=serving[0],
            waiting=serving[1],
            kv_usage=serving[2],
            gateway_waiting=float(gateway["held"]),
            arrivals=float(gateway["arrived"]),
            finished=finished,
            first_tokens=first_tokens,
            prompt_tokens=prompt_tokens,
            generation_tokens=generation_tokens,
            ttft_buckets=sum_counts[: HISTOGRAMS[1]],
            itl_sum_s=itl_sum_s,
            itl_buckets=sum_counts[HISTOGRAMS[1] : HISTOGRAMS[2]],
        )
        return seen, Scrape(now_s, self._answering_ids, gauges, counters, counts)

    # Changes.

    def _draw_pace(self) -> float:
        return draw_pace(self._rng, self.case.cold_start_spread)

    def _add(self, now_s: float, pace: float) -> None:
        claim = Claim(
            self.case.trace.name, self.case.gpus_per_replica, lambda at_s, place: self._place(pod, at_s, place)
        )
        pod = Pod(self._ids, now_s, now_s, pace, claim)
        self._ids += 1
        self.pods.append(pod)
        self._pool.ask(claim, now_s)

    def _place(self, pod: Pod, now_s: float, place: Place) -> None:
        """Begin the start of a replica that has its GPUs now."""
        start = self._starts.at(place, now_s, pod.pace)
        pod.placed_s = pod.since_s = now_s
        pod.scheduled_s, pod.started_s, pod.ready_s = start.scheduled_s, start.started_s, start.ready_s
        self._next_change_s = min(self._next_change_s, pod.ready_s)
        self.changes += 1

    def _change(self, now_s: float) -> None:
        """Bring every replica to its state at `now_s`."""
        for pod in self.pods:
            if pod.leaving:
                self._let_go(pod, now_s)
            elif pod.crash_s <= now_s:
                self._crash(pod, now_s)
            elif pod.row < 0 and pod.ready_s <= now_s:
                self._open(pod, now_s)
        self.pods = [pod for pod in self.pods if not (pod.leaving and pod.row < 0)]
        self._leaving = [pod for pod in self.pods if pod.leaving]
        answering = [pod for pod in self.pods if pod.row >= 0]
        self._answering = np.array([pod.row for pod in answering], np.int64)
        self._answering_ids = np.array([pod.id for pod in answering], np.int64)
        self._is_serving = np.array([not pod.leaving for pod in answering], np.bool_)
        self._serving = self._answering[self._is_serving]
        self.ready = len(self._serving)
        self._next_change_s = min((self._due_s(pod) for pod in self.pods), default=math.inf)
        self.changes += 1
        self._release(now_s)

    def _release(self, now_s: float) -> None:
        if self.gateway["held"][0]:
            kernel.release(self.state, self.engine, self.gateway, self._serving, now_s, self._least)

    def _due_s(self, pod: Pod) -> float:
        if pod.leaving:
            return pod.leaving_s + self.case.drain_s
        return pod.ready_s if pod.row < 0 else pod.crash_s

    def _open(self, pod: Pod, now_s: float) -> None:
        if not self._free:
            rows = len(self.state.replicas)
            self.state = self.state.with_rows(2 * rows)
            self._free = list(range(rows, 2 * rows))[::-1]
        pod.row = self._free.pop()
        self.state.open(pod.row, now_s)
        mean_s = self.case.crash_every_s
        pod.crash_s = now_s + self._rng.exponential(mean_s) if math.isfinite(mean_s) else math.inf

    def _crash(self, pod: Pod, now_s: float) -> None:
        """The engine dies with what it holds, and its container starts again, with new counters.

        At once the first time, then after 10, 20, 40 s and so on.
        Source: `doBackOff` in pkg/kubelet/kuberuntime/kuberuntime_manager.go of Kubernetes.
        """
        kernel.advance(self.state, self.engine, pod.row, now_s)
        self._close(pod)
        pod.since_s, pod.crash_s = now_s, math.inf
        wait_s = 0.0 if now_s - pod.started_s >= BACK_OFF_RESET_S else pod.back_off_s
        pod.back_off_s = min(max(2 * wait_s, LEAST_BACK_OFF_S), MOST_BACK_OFF_S)
        pod.started_s = now_s + wait_s
        pod.ready_s = pod.started_s + self._starts.again_s(self._draw_pace())

    def _let_go(self, pod: Pod, now_s: float) -> None:
        """End a leaving replica once it is empty or out of time."""
        end_s = pod.leaving_s
        if pod.row >= 0:
            latest_s = pod.leaving_s + self.case.drain_s
            kernel.advance(self.state, self.engine, pod.row, min(now_s, latest_s))
            replica = self.state.replicas[pod.row]
            if replica["held"] and now_s < latest_s:
                return
            end_s = latest_s if replica["held"] else max(float(replica["emptied_s"]), pod.leaving_s)
            self._close(pod)
        if pod.placed:
            self.spans.append((pod.placed_s, end_s))
        self._pool.give_back(pod.claim, now_s)

    def _close(self, pod: Pod) -> None:
        """Lose what an engine holds, keep its counts in the sums, and free its row."""
        row = np.array([pod.row])
        now_s = float(self.state.replicas[pod.row]["clock_s"])
        *_, self._gone, _ = kernel.read(self.state, self.engine, row, now_s, self._gone, self._gone_counts)
        self._gone_counts += np.concatenate([counts[pod.row] for counts in self.state.histograms])
        kernel.abort(self.state, pod.row)
        self._free.append(pod.row)
        pod.row = -1
