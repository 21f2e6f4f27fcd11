"""Interval statistics: the measurements of each workload between two updates of the planner.

They begin with the work of its pods, whose readings `observe` compares. Work is measured in the replicas that it keeps
busy, whether it consists of prompts, long contexts or large batches. `step_time` explains how the gaps between tokens
show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.measure import step_time
from autoscaler.core.observe import load
from autoscaler.core.observe.pods import PodMeasurements
from autoscaler.core.readings.pod_deltas import PodDeltas, PodReadings
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, TimestampColumn, or_zero
from autoscaler.core.table.groupby import GroupBy

MAX_QUEUE_SHARE = 0.8
"""Share of the limit of the first token that a request may wait; its prompt takes the rest."""

MIN_GAPS = 20.0
"""Token gaps that a mean needs: with fewer, a single prompt beside them decides it."""

MIN_GAP_S, MAX_GAP_S = 1e-5, 60.0
"""Bounds of a token gap; a counter that shows another one is broken."""


class Interval(NamedTuple):
    """The time between two updates, as the real fleet and the shadow fleets serve it; float64[W] unless stated."""

    observed_s: FloatColumn  # length; 0 where the demand was not known
    demand: FloatColumn  # offered load, in busy replicas
    arrivals: FloatColumn  # requests
    steepness: FloatColumn  # of the miss curve
    batch_room_s: FloatColumn  # work that the batch of a replica takes in before a request waits


@dataclass(frozen=True)
class WorkTotals(Columns):
    """Work of the pods of each workload between their last two readings, added up; float64[W] unless stated."""

    covered_s: FloatColumn  # pod-seconds between the readings
    arrivals: FloatColumn  # requests that arrived in them
    queue_growth: FloatColumn  # waiting requests, now minus before
    first_tokens: FloatColumn  # requests that got their first token
    ttft_counted: FloatColumn  # requests of which it is known whether they met TTFT
    ttft_missed: FloatColumn  # those that missed it
    itl_counted: FloatColumn  # ended requests of which it is known whether they met ITL
    itl_missed: FloatColumn  # those that missed it
    prefill_counted: FloatColumn  # ended requests whose time to compute the prompt is known
    prefill_late: FloatColumn  # those for which it exceeds the TTFT objective
    shortest_gap_s: FloatColumn  # shortest mean gap of a pod; NaN: no pod has generated enough
    generating_pods: FloatColumn  # pods with enough token gaps for a mean
    idle_pods: FloatColumn  # pods with fewer, and without a request
    prompt_tokens: FloatColumn  # prompt tokens that the pods computed
    prompt_s: FloatColumn  # pod-seconds in which they were counted
    prompt_busy_s: FloatColumn  # those of them with a request in the engine
    token_rate: FloatColumn  # 1 / mean gap, summed over generating pods, per second
    token_rate_kv: FloatColumn  # likewise, each pod's times its KV cache usage, 0..1
    token_rate_running: FloatColumn  # likewise, each pod's times its running requests
    kv_usage: FloatColumn  # 0..1, mean of the pods; 0 where none reports it
    running: FloatColumn  # requests, mean of the pods
    peak_running: FloatColumn  # requests, of the fullest pod; 0: none
    running_with_queue: FloatColumn  # requests, of the fullest pod with a lasting queue now; NaN: no such pod
    gap_with_queue_s: FloatColumn  # shortest mean token gap of these pods since the reading before; NaN: unknown
    slots: FloatColumn  # requests that a pod can run at once, where engines report it; NaN: none does
    step_sums: FloatColumn  # float64[step_time.SUMS, W], what readings of the pods add to the sums of the fit


@dataclass(frozen=True)
class IntervalStats(Columns):
    """Measurements since the last update; every field but the first float64[W]."""

    totals: WorkTotals
    replicas: FloatColumn  # that serve now
    ordered: FloatColumn  # that the present count orders, without those asleep
    mean_replicas: FloatColumn  # that served on average: a pod that became ready half-way counts half
    waiting: FloatColumn  # requests that wait in them
    cold_start_s: FloatColumn
    kept_asleep: FloatColumn  # replicas beside those that serve, which wake for a peak
    wake_s: FloatColumn  # until one of them serves
    first_token_limit_s: FloatColumn  # as in `Spec`; NaN: none, and the planner has no opinion
    itl_objective_s: FloatColumn  # NaN: no objective
    budget_share: FloatColumn  # error budget: share of requests that may miss
    window_s: FloatColumn  # seconds over which the error budget is kept
    prefill: BoolColumn  # bool[W], prefill workloads of pairs: their work is the prompt tokens that they compute
    floor: FloatColumn  # replicas
    window_floor: FloatColumn  # replicas of a pre-warm window that is open or has begun to start them; NaN: none
    ceiling: FloatColumn  # replicas

    @property
    def max_queue_s(self) -> FloatColumn:
        """The longest time in the queue with which the first token still comes within its limit."""
        return MAX_QUEUE_SHARE * self.first_token_limit_s


def find_new_readings(measured: PodMeasurements, counted_s: TimestampColumn, pods: IntColumn) -> BoolColumn:
    """Return which of these pods answer now, and were read since they were counted; bool[n].

    counted_s: float64[n], time of the reading that was counted.

    A pod that has held requests without progress since then is left out, because gauges that stand still say nothing
    about arrivals. If they move again, all that arrived meanwhile is counted then.
    """
    progress, time_s = measured.progress, measured.samples.time_s[pods]
    is_stalled = (progress.unchanged_readings[pods] > 0) & (progress.last_moved_s[pods] <= counted_s)
    return np.asarray(~np.isnan(time_s) & ~(time_s <= counted_s) & ~is_stalled)


def count_serving(
    pod_ready_s: TimestampColumn, pod_row: IntColumn, since_s: TimestampColumn, now_s: float
) -> FloatColumn:
    """Return how many pods served on average since then; float64[W]. All if that is NaN.

    pod_ready_s, pod_row: [n], when each pod became ready, and its workload. since_s: float64[W]. A pod that became
    ready half-way has had half of a pod's share of the load.
    """
    pod_since_s = since_s[pod_row]
    with np.errstate(invalid="ignore", divide="ignore"):
        missing_s = np.fmax(pod_ready_s - pod_since_s, 0.0)
        share = 1 - or_zero(np.minimum(missing_s / (now_s - pod_since_s), 1.0))
    return np.bincount(pod_row, share, len(since_s)).astype(np.float64)


def count_work(
    measured: PodMeasurements,
    counted: PodReadings,
    pods: IntColumn,
    is_new: BoolColumn,
    by_workload: GroupBy,
    decode: BoolColumn | None = None,
) -> tuple[WorkTotals, PodReadings]:
    """Add up the work of some pods since it was counted, by workload; also return the readings that are counted now.

    measured: of all pods, [P]. pods: int64[n], those to count. counted: [n], their readings that were counted last.
    is_new: bool[n], of `find_new_readings`. by_workload: groups these pods. decode: bool[n], pods of decode workloads,
    whose prompts another pod has computed, whatever their counter includes; None: there are none.

    A pod is left out if its counters fell or if it has no new reading. The other pods stand for it.
    """
    deltas, samples = PodDeltas(counted, measured.readings.take(pods), is_new), measured.samples
    running, kv_usage, slots = (each[pods] for each in (samples.running, samples.kv_usage, samples.max_running))
    queued_gap_s = _find_queued_gap_s(measured.deltas, pods)
    return _add_up(deltas, running, kv_usage, slots, queued_gap_s, by_workload, decode), counted.update(
        deltas.now, is_new
    )


def _find_queued_gap_s(deltas: PodDeltas, pods: IntColumn) -> FloatColumn:
    """Return the mean token gap of those pods that have a queue in their last two readings, between these; float64[n].

    deltas: of all pods. pods: int64[n]. NaN for a pod without such a queue.

    A queue that only one reading shows may have waited for a step. The readings of an interval are too far apart for
    this: a queue may begin and end between them.
    """
    had, has = (load.has_queue(each.running[pods], each.waiting[pods]) for each in (deltas.before, deltas.now))
    queued = np.flatnonzero(had & has)  # few of them, as a rule
    deltas = deltas.take(pods[queued])
    gap_s, gaps = deltas.valid("gap_s"), deltas.valid("gaps")
    queued_gap_s, has_mean = np.full(len(pods), np.nan), gaps >= MIN_GAPS
    queued_gap_s[queued[has_mean]] = gap_s[has_mean] / gaps[has_mean]
    return queued_gap_s


def _add_up(
    deltas: PodDeltas,
    running: FloatColumn,
    kv_usage: FloatColumn,
    slots: FloatColumn,
    queued_gap_s: FloatColumn,
    by_workload: GroupBy,
    decode: BoolColumn | None,
) -> WorkTotals:
    """Add up the work of pods by workload.

    running, kv_usage, slots: float64[n], at this tick; NaN: not reported, or the pod did not answer. queued_gap_s:
    float64[n], of `_find_queued_gap_s`.
    """
    gap_s, gaps = deltas.valid("gap_s"), deltas.valid("gaps")
    prompt_tokens, output_tokens = deltas.valid("prompt_tokens"), deltas.valid("generation_tokens")
    if decode is not None:
        prompt_tokens = np.where(decode & deltas.is_valid, 0.0, prompt_tokens)
    has_running, has_slots, has_kv_usage = ~np.isnan(running), slots >= 1, ~np.isnan(kv_usage)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean_gap_s = gap_s / gaps
        is_generating = (gaps >= MIN_GAPS) & (mean_gap_s >= MIN_GAP_S) & (mean_gap_s <= MAX_GAP_S)
        is_idle = (gaps < MIN_GAPS) & ~(deltas.now.requests > 0)
        has_reading = is_generating & (prompt_tokens + output_tokens >= 0)
        step_sums = step_time.compute_sums(
            mean_gap_s, prompt_tokens / deltas.interval_s, output_tokens / deltas.interval_s
        )
        token_rate = 1 / np.where(is_generating, mean_gap_s, np.nan)
        token_rate_running = token_rate * np.fmin(running, np.where(has_slots, slots, np.inf))
    generating_pods, idle_pods, kv_usage_pods, running_pods = by_workload.count(
        [is_generating, is_idle, has_kv_usage, has_running]
    )
    columns = _request_columns(deltas) | {
        "prompt_tokens": (prompt_tokens, prompt_tokens >= 0),
        "prompt_s": (deltas.interval_s, prompt_tokens >= 0),
        "prompt_busy_s": (_busy_s(deltas), prompt_tokens >= 0),
        "token_rate": (token_rate, is_generating),
        "token_rate_kv": (token_rate * kv_usage, is_generating & has_kv_usage),
        "token_rate_running": (token_rate_running, is_generating & has_running),
        "kv_usage": (kv_usage, has_kv_usage),
        "running": (running, has_running),
    }
    added = list(by_workload.sum([*columns.values(), *((each, has_reading) for each in step_sums)]))
    sums = dict(zip(columns, added, strict=False))
    sums["arrivals"] = np.maximum(sums["arrivals"], 0.0)
    sums["kv_usage"] = sums["kv_usage"] / np.maximum(kv_usage_pods, 1.0)
    sums["running"] = sums["running"] / np.maximum(running_pods, 1.0)
    return WorkTotals(
        **sums,
        generating_pods=generating_pods,
        idle_pods=idle_pods,
        shortest_gap_s=by_workload.min(np.where(is_generating, mean_gap_s, np.nan)),
        peak_running=or_zero(by_workload.max(running)),
        running_with_queue=by_workload.max(np.where(queued_gap_s > 0, running, np.nan)),
        gap_with_queue_s=by_workload.min(queued_gap_s),
        slots=by_workload.max(np.where(has_slots, slots, np.nan)),
        step_sums=np.array(added[len(columns) :]),
    )


def _busy_s(deltas: PodDeltas) -> FloatColumn:
    """Return for how long each pod had a request, as far as its two readings show: always, half of the time or never.

    A single reading is a coin toss. Over many of them the mean is right, because the gauge follows each step.
    """
    return (1.0 * (deltas.before.requests > 0) + 1.0 * (deltas.now.requests > 0)) / 2 * deltas.interval_s


def _request_columns(deltas: PodDeltas) -> dict[str, tuple[FloatColumn, BoolColumn]]:
    """Return the requests of each pod, by field of `WorkTotals`, and in which pods they are known."""
    arrivals, first_tokens = deltas.arrivals, deltas.valid("first_tokens")
    itl, prefill = deltas.valid("itl_judged"), deltas.valid("prefill_judged")
    has_arrivals = ~np.isnan(arrivals)
    ttft_missed = first_tokens - np.minimum(deltas.valid("ttft_met"), first_tokens)
    itl_missed = itl - np.minimum(deltas.valid("itl_met"), itl)
    prefill_late = prefill - np.minimum(deltas.valid("prefill_met"), prefill)
    return {
        "covered_s": (deltas.interval_s, has_arrivals),
        "arrivals": (arrivals, has_arrivals),
        "queue_growth": (deltas.waiting, has_arrivals),
        "first_tokens": (first_tokens, first_tokens >= 0),
        "ttft_counted": (first_tokens, ttft_missed >= 0),
        "ttft_missed": (ttft_missed, ttft_missed >= 0),
        "itl_counted": (itl, itl_missed >= 0),
        "itl_missed": (itl_missed, itl_missed >= 0),
        "prefill_counted": (prefill, prefill_late >= 0),
        "prefill_late": (prefill_late, prefill_late >= 0),
    }
