"""Load as work: what the engines' counters say between two readings, and how busy they were.

Work is measured in replicas that it keeps busy, whatever it consists of: prompts, long contexts, large batches. See
`speed` for how the gaps between tokens tell it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.samples import PodSamples
from autoscaler.core.observe.progress import QUEUED
from autoscaler.core.observe.rates import COUNTED, LONGEST_STEP_S
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

FEWEST_GAPS = 20.0
"""A mean over fewer gaps says little: one prompt beside them makes it."""

SHORTEST_GAP_S, LONGEST_GAP_S = 1e-5, 60.0
"""No engine writes faster or slower; a counter that says so is broken."""

MOST_RUNNING = 1e6
"""No pod runs more requests."""

MOST_GROWN = 1e9
"""No counter of a pod counts beyond this within two minutes."""

SHORTEST_STEP_S = 0.1
"""Growth within a shorter time is no rate."""

ANSWERED = 0.5
"""Share of its answer that a request of a batch has still to get, on average."""


@dataclass(frozen=True)
class PodWork(Columns):
    """What some pods showed when they were counted last. It knows its rows by id, and stands on no fleet's rows."""

    pod_id: IntColumn  # int64[P], ascending
    time_s: TimestampColumn  # float64[P], of the reading; NaN: none
    running: FloatColumn  # float64[P], requests
    waiting: FloatColumn  # float64[P], requests
    counter: FloatColumn  # float64[C, P], rows of COUNTED

    @classmethod
    def blank(cls, rows: int) -> PodWork:
        unknown = np.full(rows, np.nan)
        return cls(np.arange(rows), unknown, unknown, unknown, np.full((len(COUNTED), rows), np.nan))

    def of(self, pod_id: IntColumn) -> PodWork:
        """Return it for these pods, ids ascending; NaN for those it does not know."""
        if np.array_equal(self.pod_id, pod_id):
            return self
        blank = replace(PodWork.blank(len(pod_id)), pod_id=pod_id)
        if not len(self.pod_id):
            return blank
        place, known = find_ids(pod_id, self.pod_id)
        laid = {n: np.where(known, v[..., place], getattr(blank, n)) for n, v in vars(self).items() if n != "pod_id"}
        return PodWork(pod_id, **laid)

    def laid(self, those: PodWork) -> PodWork:
        """Return it with what these showed, as far as it knows them."""
        place, known = find_ids(those.pod_id, self.pod_id)
        return self.with_rows(place[known], those.take(np.flatnonzero(known))) if known.any() else self


@dataclass(frozen=True)
class Tally(Columns):
    """What was counted on the pods of each workload since then; float64[W] unless stated."""

    covered_s: FloatColumn  # pod-seconds that were counted
    arrived: FloatColumn  # requests in them
    queue_grown: FloatColumn  # requests that wait more than before
    batch_grown: FloatColumn  # requests that run more than before
    began: FloatColumn  # requests that got their first token
    ttft_judged: FloatColumn  # those of which it is known whether within the objective
    ttft_missed: FloatColumn  # those that were not
    itl_judged: FloatColumn  # ended requests of which it is known whether within the objective
    itl_missed: FloatColumn  # those that were not
    prefill_judged: FloatColumn  # ended requests of which it is known how long their prompt alone took
    prefill_late: FloatColumn  # those for which it took longer than TTFT may
    gap_s: FloatColumn  # between tokens, added up
    gaps: FloatColumn
    shortest_gap_s: FloatColumn  # the shortest mean gap of a pod; NaN: none wrote enough to tell
    writing_pods: FloatColumn  # that wrote enough to tell their pace
    idle_pods: FloatColumn  # that wrote less, and have no request
    paces_per_s: FloatColumn  # gaps a second between the tokens of one request, added up over pods that write
    cached_per_s: FloatColumn  # likewise, each pod's times its KV cache in use, 0..1
    running_per_s: FloatColumn  # likewise, each pod's times the requests that it runs
    kv_usage: FloatColumn  # 0..1, mean of the pods; 0 where nobody tells
    running: FloatColumn  # requests, mean of the pods
    most_running: FloatColumn  # requests, of the fullest pod; 0: none
    full_running: FloatColumn  # requests, of the fullest pod that had a queue then and now; NaN: none had
    slots: FloatColumn  # requests that a pod can run, where engines tell; NaN: none does
    readings: FloatColumn  # pods that taught something of their speed
    lessons: FloatColumn  # float64[speed.SUMS, W], what they taught


def count(
    before: PodWork,
    samples: PodSamples,
    now_s: float,
    pods: IntColumn,
    pod_id: IntColumn,
    pod_row: IntColumn,
    rows: int,
    stands: BoolColumn,
) -> tuple[Tally, PodWork]:
    """Count what some pods did since they were counted last, by workload.

    samples: as they came, [P]. pods: int64[n], which of them to count. pod_id: int64[n], theirs, ascending. pod_row:
    int64[n], 0..rows-1, of whom each is. stands: bool[n], which hold requests and have made no progress since.
    Requests that arrived are those that ended and the change of those in flight: engines do not count arrivals. A pod
    whose counters went back, that was not read anew, or that stands is left out; the others speak for it.
    """
    before = before.of(pod_id)
    read_s = np.minimum(samples.time_s[pods], now_s)
    counter = np.array([getattr(samples, name)[pods] for name in COUNTED])
    running, waiting = samples.running[pods], samples.waiting[pods]
    heard = ~np.isnan(read_s) & ~stands
    after = PodWork(
        pod_id=pod_id,
        time_s=np.where(heard, read_s, before.time_s),
        running=np.where(heard, running, before.running),
        waiting=np.where(heard, waiting, before.waiting),
        counter=np.where(heard, counter, before.counter),
    )

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        step_s = read_s - before.time_s
        grown = counter - before.counter
        counted = heard & (step_s >= SHORTEST_STEP_S) & (step_s <= LONGEST_STEP_S)
        grown = np.where(counted & (grown >= 0) & (grown <= MOST_GROWN), grown, np.nan)
        more = dict(zip(COUNTED, grown, strict=True))
        began, itl_judged, prefilled = more["first_tokens"], more["itl_judged"], more["prefill_judged"]
        queue_grown, batch_grown = waiting - before.waiting, running - before.running
        arrived = more["finished"] + queue_grown + batch_grown
        came = np.abs(arrived) <= MOST_GROWN
        pace_s = more["gap_s"] / more["gaps"]
        paced = (more["gaps"] >= FEWEST_GAPS) & (pace_s >= SHORTEST_GAP_S) & (pace_s <= LONGEST_GAP_S)
        taught = paced & (more["prompt_tokens"] + more["generation_tokens"] >= 0)
        lessons = step_time.lessons(pace_s, more["prompt_tokens"] / step_s, more["generation_tokens"] / step_s)
        late = began - np.minimum(more["ttft_met"], began)
        slow = itl_judged - np.minimum(more["itl_met"], itl_judged)
        long = prefilled - np.minimum(more["prefill_met"], prefilled)
        full = counted & (before.waiting > QUEUED * before.running) & (waiting > QUEUED * running)
        per_s = 1 / np.where(paced, pace_s, np.nan)
        idle = (more["gaps"] < FEWEST_GAPS) & ~(running + waiting > 0)
    max_running, kv_usage = samples.max_running[pods], samples.kv_usage[pods]
    with np.errstate(invalid="ignore", over="ignore"):
        run_known, told = (running >= 0) & (running <= MOST_RUNNING), (max_running >= 1) & (max_running <= MOST_RUNNING)
        running_per_s = per_s * np.fmin(running, np.where(told, max_running, np.inf))
    by_workload, used_known = GroupBy(pod_row, rows), ~np.isnan(kv_usage)
    writing_pods, idle_pods, readings, telling, running_told = by_workload.count(
        [paced, idle, taught, used_known, run_known]
    )
    summed = {
        "covered_s": (step_s, came),
        "arrived": (arrived, came),
        "queue_grown": (queue_grown, came),
        "batch_grown": (batch_grown, came),
        "began": (began, began >= 0),
        "ttft_judged": (began, late >= 0),
        "ttft_missed": (late, late >= 0),
        "itl_judged": (itl_judged, slow >= 0),
        "itl_missed": (slow, slow >= 0),
        "prefill_judged": (prefilled, long >= 0),
        "prefill_late": (long, long >= 0),
        "gap_s": (more["gap_s"], paced),
        "gaps": (more["gaps"], paced),
        "paces_per_s": (per_s, paced),
        "cached_per_s": (per_s * clip(kv_usage, 0.0, 1.0), paced & used_known),
        "running_per_s": (running_per_s, paced & run_known),
        "kv_usage": (kv_usage, used_known),
        "running": (running, run_known),
    }
    added = list(by_workload.sum([*summed.values(), *((lesson, taught) for lesson in lessons)]))
    sums = dict(zip(summed, added, strict=False))
    sums["arrived"] = np.maximum(sums["arrived"], 0.0)
    sums["kv_usage"], sums["running"] = (
        sums["kv_usage"] / np.maximum(telling, 1.0),
        sums["running"] / np.maximum(running_told, 1.0),
    )
    tally = Tally(
        **sums,
        writing_pods=writing_pods,
        idle_pods=idle_pods,
        shortest_gap_s=by_workload.min(np.where(paced, pace_s, np.nan)),
        most_running=or_zero(by_workload.max(np.where(run_known, running, np.nan))),
        full_running=by_workload.max(np.where(full & run_known, running, np.nan)),
        slots=by_workload.max(np.where(told, max_running, np.nan)),
        readings=readings,
        lessons=np.array(added[len(summed) :]),
    )
    return tally, after


def busy_share(tally: Tally, idle_gap_s: FloatColumn, slots: FloatColumn) -> FloatColumn:
    """Return how busy the replicas were, 0..1, float64[W], mean of the pods; NaN: they wrote too little to tell.

    Computing: 1 - idle gap / gap, as in processor sharing, where work takes 1 / (1 - busy share) times as long as
    alone. Of what computing leaves, the KV cache or the slots in use are taken as well, whichever is more: at the idle
    gap requests would be there that much shorter, and where either is full the replica can take nothing however idle it
    computes. slots: float64[W], requests that a replica can run; NaN: not known.

    8 ms between tokens of an idle engine, 20 ms now, a quarter of the cache in use: 1 - 0.4 x 0.75 = 0.7. Each pod
    counts once, however much it wrote: after a surge one full pod writes most tokens, and the new ones are idle. A pod
    that wrote too little and has a request tells nothing.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        left = np.fmin(tally.paces_per_s - tally.cached_per_s, tally.paces_per_s - tally.running_per_s / slots)
        idle = clip(idle_gap_s * left, 0.0, tally.writing_pods) + tally.idle_pods
        share = 1 - idle / (tally.writing_pods + tally.idle_pods)
    return np.asarray(np.where(tally.writing_pods > 0, share, np.nan))


def batch_room_s(
    tally: Tally, request_s: FloatColumn, prompt_share: FloatColumn, slots: FloatColumn, most_running: FloatColumn
) -> FloatColumn:
    """Return the work of a surge that the batch of one replica takes up before a request waits; float64[W].

    Replica-seconds; 0 where not known. A batch that grows runs slower: it takes more in than it works off until the KV
    cache or the slots are full, or the gaps between tokens are as long as the objective. Of a request in it the prompt
    is computed, and of the answer half on average: 300 requests of 0.12 s, of which a third is the prompt, are 12 s.

    request_s: float64[W], work of a request. prompt_share: float64[W], share of that which is its prompt. slots:
    float64[W], as in `busy_share`. most_running: float64[W], requests with which gaps are as long as the objective;
    NaN: there is none.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fit_cache = np.where(tally.kv_usage > 0, tally.running / tally.kv_usage, np.nan)
        most = np.fmin(slots, fit_cache)
        most = np.where(np.isnan(most_running), most, np.minimum(most, most_running))
        return or_zero(np.maximum(ANSWERED * most * request_s * (1 - prompt_share), 0.0))
