"""The work of pods: what the counters of their engines grew by between two readings, and how busy they were.

Work is measured in the replicas that it keeps busy, whether it consists of prompts, long contexts or large batches.
`step_time` explains how the gaps between tokens show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.progress import QUEUED_PER_RUNNING
from autoscaler.core.observe.rates import MAX_INTERVAL_S, PLANNER_COUNTERS
from autoscaler.core.planner import step_time
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    TimestampColumn,
    clip,
    find_ids,
    or_zero,
    replace,
)
from autoscaler.core.table.groupby import GroupBy

MIN_GAPS = 20.0
"""Token gaps that a mean needs: with fewer, a single prompt beside them decides it."""

MIN_GAP_S, MAX_GAP_S = 1e-5, 60.0
"""Bounds of a token gap; a counter that shows another one is broken."""

MAX_RUNNING = 1e6
"""Most requests that a pod can run; a gauge that shows more is broken."""

MAX_INCREASE = 1e9
"""Most that a counter of a pod can grow by in two minutes."""

MIN_INTERVAL_S = 0.1
"""Shortest time between two readings of a pod: growth in less is no rate."""

REMAINING_ANSWER = 0.5
"""Share of its answer that a request in a batch has still to get, on average."""


@dataclass(frozen=True)
class PodReadings(Columns):
    """Last counted readings of some pods. Rows are found by the id of the pod, they are not those of a fleet."""

    pod_id: IntColumn  # int64[P], ascending
    time_s: TimestampColumn  # float64[P], of the reading; NaN: none
    running: FloatColumn  # float64[P], requests
    waiting: FloatColumn  # float64[P], requests
    counter: FloatColumn  # float64[C, P], rows of COUNTED

    @classmethod
    def blank(cls, rows: int) -> PodReadings:
        unknown = np.full(rows, np.nan)
        return cls(np.arange(rows), unknown, unknown, unknown, np.full((len(PLANNER_COUNTERS), rows), np.nan))

    def find(self, pod_id: IntColumn) -> PodReadings:
        """Return the readings of these pods, ids ascending; NaN for pods that are not in it."""
        if np.array_equal(self.pod_id, pod_id):
            return self
        blank = replace(PodReadings.blank(len(pod_id)), pod_id=pod_id)
        if not len(self.pod_id):
            return blank
        place, known = find_ids(pod_id, self.pod_id)
        found = {n: np.where(known, v[..., place], getattr(blank, n)) for n, v in vars(self).items() if n != "pod_id"}
        return PodReadings(pod_id, **found)

    def update(self, newer: PodReadings) -> PodReadings:
        """Return it with newer readings of the pods that are in it; others are ignored."""
        place, known = find_ids(newer.pod_id, self.pod_id)
        return self.with_rows(place[known], newer.take(np.flatnonzero(known))) if known.any() else self


@dataclass(frozen=True)
class WorkTotals(Columns):
    """Work of the pods of each workload between their last two readings, added up; float64[W] unless stated."""

    covered_s: FloatColumn  # pod-seconds between the readings
    arrivals: FloatColumn  # requests that arrived in them
    queue_growth: FloatColumn  # waiting requests, now minus before
    batch_growth: FloatColumn  # running requests, now minus before
    first_tokens: FloatColumn  # requests that got their first token
    ttft_counted: FloatColumn  # requests of which it is known whether they met TTFT
    ttft_missed: FloatColumn  # those that missed it
    itl_counted: FloatColumn  # ended requests of which it is known whether they met ITL
    itl_missed: FloatColumn  # those that missed it
    prefill_counted: FloatColumn  # ended requests whose time to compute the prompt is known
    prefill_late: FloatColumn  # those for which it exceeds the TTFT objective
    gap_s: FloatColumn  # sum of token gaps
    gaps: FloatColumn  # number of token gaps
    shortest_gap_s: FloatColumn  # shortest mean gap of a pod; NaN: no pod has generated enough
    generating_pods: FloatColumn  # pods with enough token gaps for a mean
    idle_pods: FloatColumn  # pods with fewer, and without a request
    token_rate: FloatColumn  # 1 / mean gap, summed over generating pods, per second
    token_rate_kv: FloatColumn  # likewise, each pod's times its KV cache usage, 0..1
    token_rate_running: FloatColumn  # likewise, each pod's times its running requests
    kv_usage: FloatColumn  # 0..1, mean of the pods; 0 where none reports it
    running: FloatColumn  # requests, mean of the pods
    peak_running: FloatColumn  # requests, of the fullest pod; 0: none
    running_with_queue: FloatColumn  # requests, of the fullest pod with a queue in both readings; NaN: no such pod
    slots: FloatColumn  # requests that a pod can run at once, where engines report it; NaN: none does
    readings: FloatColumn  # readings of pods in the sums of the step time
    step_sums: FloatColumn  # float64[step_time.SUMS, W], what these readings add to the sums


class _Growth(NamedTuple):
    """Growth between two readings of each pod; float64[n], NaN: not known."""

    interval_s: FloatColumn  # between the readings
    is_counted: BoolColumn  # bool[n], both readings are usable
    counters: dict[str, FloatColumn]  # by the names of COUNTED
    queue: FloatColumn  # waiting requests, now minus before
    batch: FloatColumn  # running requests, now minus before


def count_work(
    before: PodReadings,
    samples: PodSamples,
    now_s: float,
    pods: IntColumn,
    pod_id: IntColumn,
    pod_row: IntColumn,
    rows: int,
    is_stalled: BoolColumn,
) -> tuple[WorkTotals, PodReadings]:
    """Add up the work of some pods since their last readings, by workload; also return their new readings.

    samples: of all pods, [P]. pods: int64[n], those to count. pod_id: int64[n], their ids, ascending. pod_row:
    int64[n], 0..rows-1, the workload of each. is_stalled: bool[n], pods that hold requests and make no progress.

    Arrivals are ended requests plus the growth of requests in flight, because engines do not count arrivals. A pod is
    left out if its counters fell, if it was not read again, or if it is stalled. The other pods stand for it.
    """
    before = before.find(pod_id)
    now = PodReadings(
        pod_id=pod_id,
        time_s=np.minimum(samples.time_s[pods], now_s),
        running=samples.running[pods],
        waiting=samples.waiting[pods],
        counter=np.array([getattr(samples, name)[pods] for name in PLANNER_COUNTERS]),
    )
    is_new = ~np.isnan(now.time_s) & ~is_stalled
    after = PodReadings(
        pod_id=pod_id,
        time_s=np.where(is_new, now.time_s, before.time_s),
        running=np.where(is_new, now.running, before.running),
        waiting=np.where(is_new, now.waiting, before.waiting),
        counter=np.where(is_new, now.counter, before.counter),
    )
    growth = _compute_growth(before, now, is_new)
    return _add_up(
        before, now, growth, samples.max_running[pods], samples.kv_usage[pods], GroupBy(pod_row, rows)
    ), after


def _compute_growth(before: PodReadings, now: PodReadings, is_new: BoolColumn) -> _Growth:
    """Return the growth of counters and gauges. is_new: bool[n], pods that were read again."""
    with np.errstate(invalid="ignore", over="ignore"):
        interval_s = now.time_s - before.time_s
        increase = now.counter - before.counter
        is_counted = is_new & (interval_s >= MIN_INTERVAL_S) & (interval_s <= MAX_INTERVAL_S)
        increase = np.where(is_counted & (increase >= 0) & (increase <= MAX_INCREASE), increase, np.nan)
        queue, batch = now.waiting - before.waiting, now.running - before.running
    return _Growth(interval_s, is_counted, dict(zip(PLANNER_COUNTERS, increase, strict=True)), queue, batch)


def _add_up(
    before: PodReadings,
    now: PodReadings,
    growth: _Growth,
    slots: FloatColumn,
    kv_usage: FloatColumn,
    by_workload: GroupBy,
) -> WorkTotals:
    """Add up the work of pods by workload. slots, kv_usage: float64[n], as the engines report them."""
    gap_s, gaps, running = growth.counters["gap_s"], growth.counters["gaps"], now.running
    prompt_tokens, output_tokens = growth.counters["prompt_tokens"], growth.counters["generation_tokens"]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean_gap_s = gap_s / gaps
        is_generating = (gaps >= MIN_GAPS) & (mean_gap_s >= MIN_GAP_S) & (mean_gap_s <= MAX_GAP_S)
        is_idle = (gaps < MIN_GAPS) & ~(running + now.waiting > 0)
        has_queue = (before.waiting > QUEUED_PER_RUNNING * before.running) & (
            now.waiting > QUEUED_PER_RUNNING * running
        )
        has_reading = is_generating & (prompt_tokens + output_tokens >= 0)
        step_sums = step_time.compute_sums(
            mean_gap_s, prompt_tokens / growth.interval_s, output_tokens / growth.interval_s
        )
        has_running, has_slots = (running >= 0) & (running <= MAX_RUNNING), (slots >= 1) & (slots <= MAX_RUNNING)
        has_kv_usage = ~np.isnan(kv_usage)
        token_rate = 1 / np.where(is_generating, mean_gap_s, np.nan)
        token_rate_running = token_rate * np.fmin(running, np.where(has_slots, slots, np.inf))
    generating_pods, idle_pods, readings, kv_usage_pods, running_pods = by_workload.count(
        [is_generating, is_idle, has_reading, has_kv_usage, has_running]
    )
    columns = _request_columns(growth) | {
        "gap_s": (gap_s, is_generating),
        "gaps": (gaps, is_generating),
        "token_rate": (token_rate, is_generating),
        "token_rate_kv": (token_rate * clip(kv_usage, 0.0, 1.0), is_generating & has_kv_usage),
        "token_rate_running": (token_rate_running, is_generating & has_running),
        "kv_usage": (kv_usage, has_kv_usage),
        "running": (running, has_running),
    }
    added = list(by_workload.sum([*columns.values(), *((each, has_reading) for each in step_sums)]))
    sums = dict(zip(columns, added, strict=False))
    sums["arrivals"] = np.maximum(sums["arrivals"], 0.0)
    sums["kv_usage"] = sums["kv_usage"] / np.maximum(kv_usage_pods, 1.0)
    sums["running"] = sums["running"] / np.maximum(running_pods, 1.0)
    is_full = growth.is_counted & has_queue & has_running
    return WorkTotals(
        **sums,
        generating_pods=generating_pods,
        idle_pods=idle_pods,
        shortest_gap_s=by_workload.min(np.where(is_generating, mean_gap_s, np.nan)),
        peak_running=or_zero(by_workload.max(np.where(has_running, running, np.nan))),
        running_with_queue=by_workload.max(np.where(is_full, running, np.nan)),
        slots=by_workload.max(np.where(has_slots, slots, np.nan)),
        readings=readings,
        step_sums=np.array(added[len(columns) :]),
    )


def _request_columns(growth: _Growth) -> dict[str, tuple[FloatColumn, BoolColumn]]:
    """Return the requests of each pod, by field of `WorkTotals`, and in which pods they are known."""
    counters = growth.counters
    first_tokens, itl, prefill = counters["first_tokens"], counters["itl_judged"], counters["prefill_judged"]
    with np.errstate(invalid="ignore", over="ignore"):
        arrivals = counters["finished"] + growth.queue + growth.batch
        has_arrivals = np.abs(arrivals) <= MAX_INCREASE
        ttft_missed = first_tokens - np.minimum(counters["ttft_met"], first_tokens)
        itl_missed = itl - np.minimum(counters["itl_met"], itl)
        prefill_late = prefill - np.minimum(counters["prefill_met"], prefill)
    return {
        "covered_s": (growth.interval_s, has_arrivals),
        "arrivals": (arrivals, has_arrivals),
        "queue_growth": (growth.queue, has_arrivals),
        "batch_growth": (growth.batch, has_arrivals),
        "first_tokens": (first_tokens, first_tokens >= 0),
        "ttft_counted": (first_tokens, ttft_missed >= 0),
        "ttft_missed": (ttft_missed, ttft_missed >= 0),
        "itl_counted": (itl, itl_missed >= 0),
        "itl_missed": (itl_missed, itl_missed >= 0),
        "prefill_counted": (prefill, prefill_late >= 0),
        "prefill_late": (prefill_late, prefill_late >= 0),
    }


def compute_busy_share(totals: WorkTotals, idle_gap_s: FloatColumn, slots: FloatColumn) -> FloatColumn:
    """Return how busy the replicas were, 0..1, mean of the pods; float64[W], NaN: no pod has generated enough.

    slots: float64[W], requests that a replica can run at once; NaN: not known.

    A replica is busy for 1 - (idle gap / gap) x (1 - occupancy) of its time. The first factor is processor sharing
    (M/G/1-PS): work takes 1 / (1 - busy share) times as long as alone. Occupancy is that of the KV cache or of the
    slots, whichever is higher. At the idle gap requests would leave that much sooner, and a full replica can take
    nothing however little it computes.

    Example: 8 ms between tokens of an idle engine, 20 ms now, a quarter of the cache in use: 1 - 0.4 x 0.75 = 0.7.

    Each pod counts once: after a surge one full pod generates most of the tokens while new pods are idle. A pod that
    generates too little and has a request is left out.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        unoccupied_rate = np.fmin(
            totals.token_rate - totals.token_rate_kv, totals.token_rate - totals.token_rate_running / slots
        )
        idle = clip(idle_gap_s * unoccupied_rate, 0.0, totals.generating_pods) + totals.idle_pods
        share = 1 - idle / (totals.generating_pods + totals.idle_pods)
    return np.asarray(np.where(totals.generating_pods > 0, share, np.nan))


def compute_batch_room_s(
    totals: WorkTotals, work_s: FloatColumn, prompt_share: FloatColumn, slots: FloatColumn, max_running: FloatColumn
) -> FloatColumn:
    """Return the work of a surge that the batch of one replica takes in before a request waits; float64[W].

    In replica-seconds; 0 where it is not known. A growing batch runs more slowly: it takes in more than it works off,
    until the KV cache or the slots are full or the token gaps reach the ITL objective. A request in the batch has its
    prompt computed and half of its answer generated, on average. 300 requests of 0.12 s, a third of it for the prompt,
    are 12 s.

    work_s: float64[W], work of a request. prompt_share: float64[W], share of it for the prompt. slots: float64[W],
    as in `compute_busy_share`. max_running: float64[W], requests at which the gaps reach the ITL objective; NaN: none.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fit_in_cache = np.where(totals.kv_usage > 0, totals.running / totals.kv_usage, np.nan)
        most = np.fmin(slots, fit_in_cache)
        most = np.where(np.isnan(max_running), most, np.minimum(most, max_running))
        return or_zero(np.maximum(REMAINING_ANSWER * most * work_s * (1 - prompt_share), 0.0))
