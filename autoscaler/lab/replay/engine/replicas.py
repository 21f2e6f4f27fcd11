"""The replicas of one case: creation, cold start, serving, termination, crashes, and their scraped metrics.

The engines are rows of the state of a `Front`, advanced by `kernel`. The desired number is decided elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.lab.replay.case import REMEMBERED_S, Case, FreePlaces, NodeState, Totals
from autoscaler.lab.replay.engine import kernel
from autoscaler.lab.replay.engine.cold_starts import CaseColdStarts, draw_duration_factor
from autoscaler.lab.replay.engine.front import Front
from autoscaler.lab.replay.engine.gpu_pool import GpuClaim, GpuPool, MachinePlace
from autoscaler.lab.replay.engine.latencies import RequestTimes
from autoscaler.lab.replay.engine.state import COUNTERS, HISTOGRAM_OFFSETS

LEAST_BACK_OFF_S, MOST_BACK_OFF_S = 10.0, 300.0  # restart back-off of the kubelet, seconds
BACK_OFF_RESET_S = 600.0  # after this uptime, a container restarts at once
TERMINATION_POLL_S = 1.0  # poll interval of terminating replicas while a claim waits for their GPUs


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """One replica, from creation to termination."""

    id: int
    created_s: float
    since_s: float  # begin of the present start: creation, GPU assignment or the last crash
    duration_factor: float  # duration of its start relative to the mean
    claim: GpuClaim
    node_created_s: float = math.nan  # when the creation of its node began; NaN: it has none
    weights_held: bool = False  # by its node when it was placed
    placed_s: float = math.inf  # time of GPU assignment, where costs begin; infinity: waiting
    scheduled_s: float = math.inf  # these times lie in the future during a start
    started_s: float = math.inf
    ready_s: float = math.inf
    terminating_since_s: float = math.nan
    crash_s: float = math.inf
    back_off_s: float = 0.0  # back-off of the next restart
    restarts: int = 0
    deletion_cost: int = 0  # a replica with a lower cost is removed first
    row: int = -1  # row of `EngineState` while the engine runs, else -1

    @property
    def placed(self) -> bool:
        return self.placed_s < math.inf

    @property
    def terminating(self) -> bool:
        return not math.isnan(self.terminating_since_s)


def youngest_first(
    live: Sequence[SimulatedReplica], seed: int, now_s: float
) -> Callable[[SimulatedReplica], tuple[Any, ...]]:
    """Return the sort key of a simple order of removal: unassigned, not ready, least cost, most recently ready."""
    return lambda pod: (
        pod.placed,
        pod.row >= 0,
        pod.deletion_cost,
        -pod.ready_s if pod.row >= 0 else 0.0,
        -pod.id,
    )


def removal_order(
    live: Sequence[SimulatedReplica], seed: int, now_s: float
) -> Callable[[SimulatedReplica], tuple[Any, ...]]:
    """Return the sort key of a ReplicaSet's order of removal: the simple one, with siblings on the node before age.

    Ages are compared by the logarithm to the base of 2, and equal ones by the UID, which is random. The order does not
    know the load of a pod.
    Source: `ActivePodsWithRanks` in pkg/controller/controller_utils.go of Kubernetes.
    """
    siblings = Counter(id(pod.claim.node) for pod in live if pod.placed)

    def bucket(since_s: float) -> int:
        return int(math.log2(age_ns)) if (age_ns := (now_s - since_s) * 1e9) > 1 else -1

    def key(pod: SimulatedReplica) -> tuple[Any, ...]:
        return (
            pod.placed,
            pod.started_s <= now_s,  # Pending until its container runs
            pod.row >= 0,
            pod.deletion_cost,
            -siblings[id(pod.claim.node)],
            bucket(pod.ready_s) if pod.row >= 0 else -1,
            -pod.restarts,
            bucket(pod.created_s),
            np.random.default_rng((seed, pod.id, 577_215)).random(),
        )

    return key


class Scrape(NamedTuple):
    """Metrics of one scrape: one row per running engine, terminating ones included."""

    time_s: float
    id: IntColumn  # int64[n], ascending
    gauges: FloatColumn  # float64[3, n]: running, waiting, KV usage
    counters: FloatColumn  # float64[7, n], `state.COUNTERS`
    # int64[n, 85], counts of all histograms, side by side (`state.HISTOGRAM_OFFSETS`), not cumulative
    counts: IntColumn


class SimulatedReplicas:
    """All replicas of a case. `advance` moves time, `scale` changes their number.

    front: of the requests that they serve; `number` is the case among those of the front.
    """

    def __init__(self, case: Case, pool: GpuPool, front: Front, number: int = 0) -> None:
        self.case = case
        self.front = front
        self.pods: list[SimulatedReplica] = []  # ascending by id
        self.spans: list[tuple[float, float]] = []  # GPU time of ended replicas: (assigned, ended) in seconds
        self.ready = 0  # number that serve and are not terminating
        self.revision = 0  # incremented with every change of `pods`
        self._pool = pool
        self._number = number
        self._engine = front.engines[number]
        self._starts = CaseColdStarts(case)
        self._times = RequestTimes(front.state, number, math.ceil(REMEMBERED_S / case.scrape_s) + 1)
        self._clock_s = 0.0
        self._next_change_s = math.inf
        self._rng = np.random.default_rng((case.seed, 271_828))  # a stream of its own
        self._links_rng = np.random.default_rng((case.seed, 161_803))  # for nodes and weights ahead of replicas
        self._ids = 0
        self._answering = self._answering_ids = np.empty(0, np.int64)  # rows of `EngineState`, and ids of pods
        self._is_serving = np.empty(0, np.bool_)  # bool[n], over `_answering`
        self._terminating: list[SimulatedReplica] = []
        self._ended_counters = np.zeros(len(COUNTERS))  # float64[7], sums over ended engines
        self._ended_counts = np.zeros(HISTOGRAM_OFFSETS[-1], np.int64)
        for _ in range(case.start_replicas):  # these replicas serve from the start
            self._add(0.0, 0.0)
        # a separate stream, so these draws do not affect later starts
        before = np.random.default_rng((case.seed, 314_159))
        for pod in self.pods:
            if pod.placed:  # set the times of the start that lies in the past
                began_s = -self._starts.restart_s(draw_duration_factor(before, case.cold_start_spread))
                pod.created_s = pod.scheduled_s = pod.started_s = began_s
                pod.node_created_s, pod.weights_held = -math.inf, True  # as this duration says
            else:  # waiting for GPUs
                pod.duration_factor = self._draw_duration_factor()
        self._update_pods(0.0)

    # Time and scaling.

    @property
    def next_event_s(self) -> float:
        """Time of the next change of a replica, or of the next check for freed GPUs while a claim waits."""
        if self._terminating and self._pool.has_waiting:
            return min(self._next_change_s, self._clock_s + TERMINATION_POLL_S)
        return self._next_change_s

    def advance(self, to_s: float) -> None:
        """Advance requests, engines and replicas to `to_s`, which is at most `next_event_s`."""
        self._clock_s = to_s
        self.front.advance(to_s)
        if to_s >= self._next_change_s or self._terminating:
            self._update_pods(to_s)

    def scale(self, desired: int, now_s: float) -> None:
        """Create replicas, or terminate some in the order of the case's `removal`."""
        live = [pod for pod in self.pods if not pod.terminating]
        for _ in range(desired - len(live)):
            self._add(now_s, self._draw_duration_factor())
        order = removal_order if self.case.removal == "replica-set" else youngest_first
        live.sort(key=order(live, self.case.seed, now_s))
        for pod in live[: max(len(live) - desired, 0)]:
            pod.terminating_since_s = now_s
        if desired != len(live):
            self._update_pods(now_s)

    def count_held(self, now_s: float) -> int:
        """Return the number of requests in the engines and at the gateway at `now_s`."""
        front = self.front
        front.release(now_s)  # drops gateway requests whose client has left
        return kernel.count_held(front.state, front.engines, self._answering, now_s) + int(front.gateway["held"][0])

    def places(self, now_s: float) -> FreePlaces:
        """Return the room for further replicas."""
        return self._pool.places(self.case.trace.name, self.case.gpus_per_replica, now_s)

    def list_nodes(self, now_s: float) -> list[NodeState]:
        """Return the nodes that are up."""
        model, own = self.case.trace.name, Counter(pod.claim.node for pod in self.pods if pod.placed)
        return [
            NodeState(node.id, node.free_gpus, node.has_weights(model, now_s), own[node])
            for node in self._pool.up_nodes(now_s)
        ]

    def request_nodes(self, places: int, now_s: float) -> None:
        """Request places for this many further replicas, in place of those requested before."""
        self._pool.request_places(id(self), self.case.gpus_per_replica, places, now_s, self._draw_node_s)

    def fetch_weights(self, nodes: Sequence[int], now_s: float) -> None:
        """Fetch the weights to nodes that lack them, and do not fetch them yet. nodes: ids."""
        for node in self._pool.up_nodes(now_s):
            if node.id in nodes and node.holds is None:
                node.models.setdefault(self.case.trace.name, now_s + self._starts.fetch_s * self._draw_link())

    def spans_until(self, end_s: float) -> FloatColumn:
        """Return GPU assignment and termination of each replica before `end_s`, float64[K, 2]."""
        spans = np.array(self.spans + [(pod.placed_s, end_s) for pod in self.pods if pod.placed]).reshape(-1, 2)
        bounded: FloatColumn = np.minimum(spans, end_s)
        return bounded

    # Scrapes.

    def scrape(self, now_s: float) -> tuple[Totals, Scrape]:
        """Read the metrics of every engine."""
        front = self.front
        front.release(now_s)
        gauges, counters, counts, sums, sum_counts = kernel.read_metrics(
            front.state, front.engines, self._answering, now_s, self._ended_counters, self._ended_counts
        )
        serving = gauges[:, self._is_serving] if self._terminating else gauges
        gateway = front.gateway[0]
        prompt_tokens, generation_tokens, finished, first_tokens, _, itl_sum_s, ttft_sum_s = sums.tolist()
        totals = Totals(
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
            latencies=self._times.scrape(now_s, sum_counts, ttft_sum_s, itl_sum_s),
        )
        return totals, Scrape(now_s, self._answering_ids, gauges, counters, counts)

    # Pod changes.

    def _draw_duration_factor(self) -> float:
        return draw_duration_factor(self._rng, self.case.cold_start_spread)

    def _draw_link(self) -> float:
        return draw_duration_factor(self._links_rng, self.case.cold_start_spread)

    def _draw_node_s(self) -> float:
        return self._starts.node_s * self._draw_link()

    def _add(self, now_s: float, duration_factor: float) -> None:
        claim = GpuClaim(
            self.case.trace.name, self.case.gpus_per_replica, lambda at_s, place: self._place(pod, at_s, place)
        )
        pod = SimulatedReplica(self._ids, now_s, now_s, duration_factor, claim)
        self._ids += 1
        self.pods.append(pod)
        self._pool.request(claim, now_s)

    def _place(self, pod: SimulatedReplica, now_s: float, place: MachinePlace) -> None:
        """Start a replica whose GPUs are assigned now."""
        start = self._starts.begin(place.node, now_s, pod.duration_factor)
        pod.placed_s = pod.since_s = now_s
        pod.node_created_s = place.node.created_s
        pod.weights_held = place.weights_cached
        pod.scheduled_s, pod.started_s, pod.ready_s = start.scheduled_s, start.started_s, start.ready_s
        self._next_change_s = min(self._next_change_s, pod.ready_s)
        self.revision += 1

    def _update_pods(self, now_s: float) -> None:
        """Update every replica to its state at `now_s`."""
        for pod in self.pods:
            if pod.terminating:
                self._terminate(pod, now_s)
            elif pod.crash_s <= now_s:
                self._crash(pod, now_s)
            elif pod.row < 0 and pod.ready_s <= now_s:
                self._start_engine(pod, now_s)
        self.pods = [pod for pod in self.pods if not (pod.terminating and pod.row < 0)]
        self._terminating = [pod for pod in self.pods if pod.terminating]
        answering = [pod for pod in self.pods if pod.row >= 0]
        self._answering = np.array([pod.row for pod in answering], np.int64)
        self._answering_ids = np.array([pod.id for pod in answering], np.int64)
        self._is_serving = np.array([not pod.terminating for pod in answering], np.bool_)
        serving = self._answering[self._is_serving]
        self.front.route_to(self._number, serving)
        self.ready = len(serving)
        self._next_change_s = min((self._due_s(pod) for pod in self.pods), default=math.inf)
        self.revision += 1
        self.front.release(now_s)

    def _due_s(self, pod: SimulatedReplica) -> float:
        if pod.terminating:
            return pod.terminating_since_s + self.case.drain_s
        return pod.ready_s if pod.row < 0 else pod.crash_s

    def _start_engine(self, pod: SimulatedReplica, now_s: float) -> None:
        pod.row = self.front.start_engine(self._number, now_s)
        mean_s = self.case.crash_every_s
        pod.crash_s = now_s + self._rng.exponential(mean_s) if math.isfinite(mean_s) else math.inf

    def _crash(self, pod: SimulatedReplica, now_s: float) -> None:
        """Crash an engine: its requests are lost, and its container restarts with new counters.

        The first restart is immediate; later ones follow after 10, 20, 40 s and so on.
        Source: `doBackOff` in pkg/kubelet/kuberuntime/kuberuntime_manager.go of Kubernetes.
        """
        kernel.advance(self.front.state, self._engine, pod.row, now_s)
        self._stop_engine(pod)
        pod.since_s, pod.crash_s = now_s, math.inf
        wait_s = 0.0 if now_s - pod.started_s >= BACK_OFF_RESET_S else pod.back_off_s
        pod.back_off_s = min(max(2 * wait_s, LEAST_BACK_OFF_S), MOST_BACK_OFF_S)
        pod.started_s = now_s + wait_s
        pod.restarts += 1
        pod.ready_s = pod.started_s + self._starts.restart_s(self._draw_duration_factor())

    def _terminate(self, pod: SimulatedReplica, now_s: float) -> None:
        """End a terminating replica once it is empty or its time is over."""
        end_s = pod.terminating_since_s
        if pod.row >= 0:
            latest_s = pod.terminating_since_s + self.case.drain_s
            kernel.advance(self.front.state, self._engine, pod.row, min(now_s, latest_s))
            replica = self.front.state.replicas[pod.row]
            if replica["held"] and now_s < latest_s:
                return
            end_s = latest_s if replica["held"] else max(float(replica["emptied_s"]), pod.terminating_since_s)
            self._stop_engine(pod)
        if pod.placed:
            self.spans.append((pod.placed_s, end_s))
        self._pool.release_gpus(pod.claim, now_s)

    def _stop_engine(self, pod: SimulatedReplica) -> None:
        """Stop an engine: drop its requests, add its counts to the sums, and free its row."""
        front, row = self.front, np.array([pod.row])
        now_s = float(front.state.replicas[pod.row]["clock_s"])
        *_, self._ended_counters, _ = kernel.read_metrics(
            front.state, front.engines, row, now_s, self._ended_counters, self._ended_counts
        )
        self._ended_counts += np.concatenate([counts[pod.row] for counts in front.state.histograms])
        front.stop_engine(pod.row)
        pod.row = -1
