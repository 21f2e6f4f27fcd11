"""The view of a scaler on a run: scraped metrics and pod status."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoscaler.core.table.columns import FloatColumn, find_ids, or_zero
from autoscaler.core.table.histogram import bound_above, count_up_to, find_limit, increase, quantile
from autoscaler.lab.replay.case import REMEMBERED_S, FreePlaces, NodeState, ReplicaRows, Totals
from autoscaler.lab.replay.engine.replicas import Scrape, SimulatedReplicas
from autoscaler.lab.replay.engine.state import GAP_BOUNDS, HISTOGRAM_SLICES, REQUEST_BOUNDS, TTFT_BOUNDS

LATENCY_WINDOW_S = 60.0  # window of the quantiles in PodRows
LATENCY_QUANTILE = 0.95


class RunView:
    """Implements `case.View` for the replicas of a run."""

    def __init__(self, replicas: SimulatedReplicas, desired: int) -> None:
        self.now_s = 0.0
        self.desired = desired
        self._replicas = replicas
        scrapes = max(math.ceil(LATENCY_WINDOW_S / replicas.case.scrape_s), 1) + 1
        self._scrapes: deque[Scrape] = deque(maxlen=scrapes)
        self._totals: deque[Totals] = deque(maxlen=math.ceil(REMEMBERED_S / replicas.case.scrape_s) + 1)
        self._status: dict[str, Any] = {}
        self._status_of = (-1, -1.0)
        self._pods: ReplicaRows | None = None
        goal = replicas.case.goal
        self._ttft_goal = find_limit(goal.ttft_s, TTFT_BOUNDS)
        self._itl_goal = find_limit(goal.itl_s, GAP_BOUNDS)
        self._prefill_goal = find_limit(bound_above(goal.ttft_s, REQUEST_BOUNDS), REQUEST_BOUNDS)

    @property
    def ready(self) -> int:
        return self._replicas.ready

    @property
    def starting(self) -> int:
        return len(self.starting_since_s)

    @property
    def starting_since_s(self) -> FloatColumn:
        return np.array([pod.since_s for pod in self._replicas.pods if pod.row < 0], np.float64)

    @property
    def totals(self) -> Totals:
        return self._totals[-1]

    def totals_ago(self, seconds: float) -> Totals:
        """Return the latest totals that are at least `seconds` old, else the oldest of the last six hours."""
        latest_s = self.now_s - seconds
        missing = math.ceil((self._totals[-1].time_s - latest_s) / self._replicas.case.scrape_s - 1e-9)
        place = len(self._totals) - 1 - min(max(missing, 0), len(self._totals) - 1)
        while place > 0 and self._totals[place].time_s > latest_s + 1e-9:  # the first scrape is off the regular grid
            place -= 1
        return self._totals[place]

    def live_concurrency(self) -> float:
        return float(self._replicas.count_held(self.now_s))

    @property
    def pods(self) -> ReplicaRows:
        starting = len(self._replicas.pods) > self._replicas.ready  # a start-up phase may end without another event
        status_of = (self._replicas.revision, self.now_s if starting else 0.0)
        if self._status_of != status_of:
            self._status, self._status_of, self._pods = self._read_status(), status_of, None
        if self._pods is None:
            self._pods = ReplicaRows(**self._status, **self._read_metrics())
        return self._pods

    @property
    def places(self) -> FreePlaces:
        return self._replicas.places(self.now_s)

    @property
    def nodes(self) -> Sequence[NodeState]:
        return self._replicas.list_nodes(self.now_s)

    def request_nodes(self, places: int) -> None:
        self._replicas.request_nodes(places, self.now_s)

    def fetch_weights(self, nodes: Sequence[int]) -> None:
        self._replicas.fetch_weights(nodes, self.now_s)

    def set_deletion_costs(self, costs: Mapping[int, int]) -> None:
        for pod in self._replicas.pods:
            pod.deletion_cost = costs.get(pod.id, 0)

    def record_scrape(self, totals: Totals, scrape: Scrape) -> None:
        self._totals.append(totals)
        self._scrapes.append(scrape)
        self._pods = None

    def _read_status(self) -> dict[str, Any]:
        """Return the status of each replica, by column of PodRows."""
        pods = self._replicas.pods
        ready_s = [pod.ready_s if pod.row >= 0 else math.nan for pod in pods]
        return {
            "id": np.array([pod.id for pod in pods], np.int64),
            "created_s": np.array([pod.created_s for pod in pods], np.float64),
            "unschedulable": np.array([not pod.placed for pod in pods], np.bool_),
            "scheduled_s": self._hide_future([pod.scheduled_s for pod in pods]),
            "started_s": self._hide_future([pod.started_s for pod in pods]),
            "ready_s": np.array(ready_s, np.float64),
            "terminating": np.array([pod.terminating for pod in pods], np.bool_),
            "node_created_s": np.array([pod.node_created_s for pod in pods], np.float64),
            "weights_held": np.array([pod.weights_held for pod in pods], np.bool_),
        }

    def _read_metrics(self) -> dict[str, Any]:
        """Return the last scraped metrics of each replica, by column of PodRows."""
        ids, scrape = self._status["id"], self._scrapes[-1]
        running, waiting, kv_usage = scrape.gauges
        prompt_tokens, generation_tokens, finished, first_tokens, preemptions, gap_s, _ = scrape.counters
        counts = scrape.counts.astype(np.float64)
        ttft, gaps, mean_gaps, prefills = (counts[:, part].cumsum(axis=1) for part in HISTOGRAM_SLICES)
        ttft_s, itl_s = self._latencies(counts)
        read = {
            "time_s": np.full(len(scrape.id), scrape.time_s),
            "running": running,
            "waiting": waiting,
            "kv_usage": kv_usage,
            "prompt_tokens": prompt_tokens,
            "generation_tokens": generation_tokens,
            "finished": finished,
            "first_tokens": first_tokens,
            "ttft_met": count_up_to(self._ttft_goal, TTFT_BOUNDS, ttft),
            "gap_s": gap_s,
            "gaps": gaps[:, -1],
            "itl_judged": mean_gaps[:, -1],
            "itl_met": count_up_to(self._itl_goal, GAP_BOUNDS, mean_gaps),
            "prefill_judged": prefills[:, -1],
            "prefill_met": count_up_to(self._prefill_goal, REQUEST_BOUNDS, prefills),
            "preemptions": preemptions,
            "ttft_s": ttft_s,
            "itl_s": itl_s,
        }
        place, known = find_ids(ids, scrape.id)  # the last scrape may hold an engine that has crashed since
        readings = np.full((len(read), len(ids)), np.nan)
        readings[:, known] = np.array(list(read.values()))[:, place[known]]
        return dict(zip(read, readings, strict=True))

    def _hide_future(self, moments_s: list[float]) -> FloatColumn:
        """Replace times in the future by NaN."""
        column = np.array(moments_s, np.float64)
        return np.where(column <= self.now_s, column, np.nan)

    def _latencies(self, counts: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
        """Return p95 TTFT and gap over all engines in the last window, repeated for each engine, float64[n] each.

        counts: float64[n, B], histogram counts of the last scrape. The window of an engine begins with its first scrape
        within `LATENCY_WINDOW_S`. A single scrape gives no values.
        """
        last = self._scrapes[-1]
        before = np.full(counts.shape, np.nan)
        found = np.zeros(len(last.id), np.bool_)
        for scrape in self._scrapes:  # the oldest scrape of an engine begins its window
            if found.all() or scrape is last:
                break
            if last.time_s - scrape.time_s <= LATENCY_WINDOW_S + 1e-9:
                place, known = find_ids(last.id, scrape.id)
                fresh = known & ~found
                before[fresh] = scrape.counts[place[fresh]]
                found |= known
        observed = or_zero(increase(before, counts)).sum(axis=0)
        ttft, gaps = (observed[part].cumsum() for part in HISTOGRAM_SLICES[:2])
        ttft_s = quantile(LATENCY_QUANTILE, TTFT_BOUNDS, ttft)
        itl_s = quantile(LATENCY_QUANTILE, GAP_BOUNDS, gaps)
        return np.full(len(counts), ttft_s), np.full(len(counts), itl_s)
