"""What a fleet of services had to serve, and how fast a replica of each is, learned from the same history.

The planner's own measurements are used: the gap between tokens shows how busy a replica was, and requests that queue
arrive when they come, not when they are served. All is on one grid of steps of at most a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoscaler.core.measure import step_time
from autoscaler.core.measure.batch_room import compute_batch_room_s
from autoscaler.core.measure.interval import MAX_QUEUE_SHARE, MIN_GAPS, WorkTotals
from autoscaler.core.measure.miss_curve import (
    BINS,
    OBJECTIVES,
    combine_objectives,
    estimate_unavoidable,
    fit_steepness,
)
from autoscaler.core.measure.offered_load import compute_busy_share
from autoscaler.core.measure.replica_speed import COMPUTE_BOUND_SHARE, FULL_SHARE
from autoscaler.core.measure.step_time import StepTime
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, or_zero, replace
from autoscaler.report.history import MOST_CELLS, FleetHistory, Span, Steps
from autoscaler.report.size_prior import USUAL_GAP_S

FINE_STEP_S = 60.0
"""Step in which counts are decided and queues computed, unless there are more than `MOST_CELLS` of them."""

WORK_WINDOW_S = 1800.0
"""Window of the work of a request: lengths change over tens of minutes, and a window needs some requests."""

MIN_REQUESTS = 5.0


@dataclass(frozen=True)
class Profiles(Columns):
    """How fast a replica of each service is; float64[W] unless stated."""

    idle_gap_s: FloatColumn
    prompt_token_s: FloatColumn  # NaN: not learned
    output_token_s: FloatColumn
    slots: FloatColumn  # requests that a replica can run at once; NaN: never seen full
    work_s: FloatColumn  # busy replica-seconds of a mean request; NaN: no request was served
    steepness: FloatColumn  # of the miss curve
    unavoidable: FloatColumn  # 0..1, requests that miss on any number of replicas
    batch_room_s: FloatColumn  # work that the batch of a replica takes in before a request waits
    max_queue_s: FloatColumn  # longest wait within the objective; NaN: no objective
    cold_start_s: FloatColumn
    assumed_speed: BoolColumn  # bool[W], no engine showed its token gaps: a prior stands in
    assumed_misses: BoolColumn  # bool[W], no histogram showed misses: the prior curve stands in
    assumed_start: BoolColumn  # bool[W], no start was seen: the policy's cold start stands in


@dataclass(frozen=True)
class FleetLoad:
    """The load and what really happened, in T fine steps of W services; float32[T, W] unless stated, NaN: unknown."""

    span: Span  # of the fine steps
    seen: BoolColumn  # bool[T, W]
    demand: Steps  # replicas that the arriving requests keep busy; 0 where nothing arrived
    arrivals: Steps  # requests in the step
    work_s: Steps  # busy replica-seconds of a request
    busy: Steps  # 0..1, share of the time for which the real replicas were busy
    pods: Steps  # real replicas that reported
    ordered: Steps  # real replicas that held GPUs, with those that started
    running: Steps  # requests in the real replicas
    waiting: Steps
    kv_usage: Steps  # 0..1
    gap_s: Steps  # mean time between two tokens of a request
    prompt_tokens: Steps  # computed in the step
    output_tokens: Steps
    missed_share: Steps  # 0..1, measured share of requests that missed; NaN: no histogram, or no request
    floors: Steps | None = None  # replicas that pre-warm windows of the policy ask for; NaN: none, None: no window

    @property
    def shape(self) -> tuple[int, int]:
        return self.demand.shape[0], self.demand.shape[1]

    @property
    def columns(self) -> dict[str, Any]:
        """Return all columns that are known, by name."""
        return {name: each for name, each in vars(self).items() if isinstance(each, np.ndarray)}

    def only(self, rows: Sequence[int]) -> FleetLoad:
        """Return the load of some services, in this order."""
        return FleetLoad(self.span, **{name: each[:, list(rows)] for name, each in self.columns.items()})


def measure_load(
    history: FleetHistory,
    spec: Spec,
    cold_start_s: FloatColumn,
    assumed_gap_s: FloatColumn | None = None,
    stated_slots: FloatColumn | None = None,
) -> tuple[FleetLoad, Profiles]:
    """Measure the load of each service and the speed of its replicas.

    spec: [W], the policies. cold_start_s: float64[W], as seen; NaN: none was, and that of the policy stands in.
    assumed_gap_s: float64[W], idle gaps that stand in where no engine shows one; None: `USUAL_GAP_S`. stated_slots:
    float64[W], by engine or command line; NaN, None: as far as a queue shows them.
    """
    if assumed_gap_s is None:
        assumed_gap_s = np.full(len(history.services), USUAL_GAP_S)
    step_s, seen = history.span.step_s, history.seen
    got = {name: history.column(name) for name in history.columns}
    column = history.column
    pods = or_zero(column("pods"))
    first_tokens, waiting = or_zero(column("first_tokens")), or_zero(column("waiting"))
    fitted, sums, assumed_speed = _fit_speed(history, pods, assumed_gap_s)
    running = or_zero(column("running"))
    slots = _find_slots(running, waiting, pods, column("gap_s"), column("gaps"), fitted.idle_gap_s)
    if stated_slots is not None:
        slots = np.where(np.isnan(stated_slots), slots, stated_slots)
    busy = _busy_share(history, pods, fitted.idle_gap_s, slots, assumed_speed)
    arrivals = np.maximum(first_tokens + _growth(waiting), 0.0).astype(np.float32)
    work_s = _work_per_request(or_zero(busy) * pods * step_s, first_tokens, step_s)
    mean_work_s = _over(np.nansum(or_zero(busy) * pods * step_s, axis=0), first_tokens.sum(axis=0))
    work_s = np.where(np.isnan(work_s), mean_work_s, work_s).astype(np.float32)
    demand = or_zero(arrivals * or_zero(work_s) / step_s).astype(np.float32)
    missed, counted = _count_misses(history)
    share = combine_objectives(_over(missed, counted, 0.0)).astype(np.float32)
    share = np.where((counted > 0).any(axis=0), share, np.nan).astype(np.float32)
    steepness, unavoidable, assumed_misses = _fit_misses(missed, counted, demand, pods, waiting, work_s, spec)
    totals = WorkTotals.filled(pods.shape[1], 0.0)
    alive = np.maximum((pods > 0).sum(axis=0), 1)
    totals = replace(
        totals,
        kv_usage=np.nansum(or_zero(column("kv_usage")) * (pods > 0), axis=0) / alive,
        running=np.nansum(_over(running, pods, 0.0), axis=0) / alive,
    )
    max_running = step_time.compute_running_at(spec.itl_objective_s, fitted)
    prompt_share = or_zero(step_time.compute_prompt_share(sums))
    room_s = compute_batch_room_s(totals, or_zero(mean_work_s), prompt_share, slots, max_running)
    profiles = Profiles(
        *fitted,
        slots=slots,
        work_s=mean_work_s,
        steepness=steepness,
        unavoidable=unavoidable,
        batch_room_s=room_s,
        max_queue_s=MAX_QUEUE_SHARE * spec.first_token_limit_s,
        cold_start_s=np.where(np.isnan(cold_start_s), spec.cold_start_s, cold_start_s),
        assumed_speed=assumed_speed,
        assumed_misses=assumed_misses,
        assumed_start=np.isnan(cold_start_s),
    )
    ordered = np.fmax(column("ordered"), pods) if "ordered" in got else pods
    load = FleetLoad(
        span=history.span,
        seen=seen,
        demand=demand,
        arrivals=arrivals,
        work_s=work_s,
        busy=busy,
        pods=_hold(pods, seen),
        ordered=_hold(ordered, seen),
        running=running.astype(np.float32),
        waiting=waiting.astype(np.float32),
        kv_usage=column("kv_usage"),
        gap_s=_over(column("gap_s"), column("gaps")).astype(np.float32),
        prompt_tokens=or_zero(column("prompt_tokens")),
        output_tokens=or_zero(column("generation_tokens")),
        missed_share=share,
    )
    return _refine(load), profiles


PER_STEP = frozenset({"arrivals", "prompt_tokens", "output_tokens"})
"""Columns that are amounts of a step, and not values in it."""


def _refine(load: FleetLoad) -> FleetLoad:
    """Return the load on steps of `FINE_STEP_S`, longer ones of many services: what a step counted is spread evenly."""
    parts = int(min(np.ceil(load.span.step_s / FINE_STEP_S), MOST_CELLS // max(load.demand.size, 1)))
    if parts <= 1:
        return load
    span = Span(load.span.start_s, load.span.step_s / parts, load.span.steps * parts)
    columns: dict[str, Any] = {name: np.repeat(each, parts, axis=0) for name, each in load.columns.items()}
    return FleetLoad(span=span, **{n: c / np.float32(parts) if n in PER_STEP else c for n, c in columns.items()})


def _fit_speed(
    history: FleetHistory, pods: Steps, assumed_gap_s: FloatColumn
) -> tuple[StepTime, FloatColumn, BoolColumn]:
    """Fit the step time of each service to all its steps; also return the sums of the fit and where none was possible.

    The mean pod of each step stands for a reading. Steps with few token gaps say nothing.
    """
    gap_s, gaps = history.column("gap_s"), history.column("gaps")
    step_s = history.span.step_s
    usable = (pods > 0) & (gaps >= MIN_GAPS * np.maximum(pods, 1)) & (gap_s > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_gap_s = np.where(usable, gap_s / gaps, np.nan)
        prompt, output = (
            or_zero(history.column(name)) / pods / step_s for name in ("prompt_tokens", "generation_tokens")
        )
    sums = np.nansum(step_time.compute_sums(mean_gap_s.astype(np.float64), prompt, output) * usable, axis=1)
    readings = usable.sum(axis=0).astype(np.float64)
    shortest_s = _low_quantile(mean_gap_s)
    fitted = step_time.fit_step_time(sums, readings, shortest_s)
    unknown = np.isnan(fitted.idle_gap_s)
    idle_gap_s = np.where(unknown, assumed_gap_s, fitted.idle_gap_s)
    return StepTime(idle_gap_s, fitted.prompt_token_s, fitted.output_token_s), sums, unknown


def _low_quantile(values: FloatColumn) -> FloatColumn:
    """Return a low value of each column that is no outlier; NaN: there is none."""
    known = ~np.isnan(values).all(axis=0)
    low = np.full(values.shape[1], np.nan)
    if known.any():
        low[known] = np.nanquantile(values[:, known], 0.002, axis=0)
    return low


def _find_slots(
    running: Steps, waiting: Steps, pods: Steps, gap_s: Steps, gaps: Steps, idle_gap_s: FloatColumn
) -> FloatColumn:
    """Return the requests that a replica can run at once, as far as a queue in front of an idle engine shows it."""
    per_pod = _over(running, pods, 0.0)
    peak = per_pod.max(axis=0, initial=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        spare = idle_gap_s * gaps / gap_s > 1 - COMPUTE_BOUND_SHARE
    full = spare & (_over(waiting, pods, 0.0) >= 1.0) & (per_pod >= FULL_SHARE * peak) & (peak >= 1)
    return np.where(full.any(axis=0), np.ceil(peak), np.nan)


def _busy_share(
    history: FleetHistory, pods: Steps, idle_gap_s: FloatColumn, slots: FloatColumn, assumed: BoolColumn
) -> Steps:
    """Return the share of the time for which the replicas were busy; float32[T, W], 0 where nothing ran."""
    gap_s, gaps, step_s = history.column("gap_s"), history.column("gaps"), history.span.step_s
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where((gaps >= MIN_GAPS) & (gap_s > 0), gaps / gap_s, np.nan).astype(np.float64) * pods
        running = history.column("running") / np.where(pods > 0, pods, np.nan)
    totals = replace(
        WorkTotals.filled(0, 0.0),
        token_rate=rate,
        token_rate_kv=rate * or_zero(history.column("kv_usage")),
        token_rate_running=rate * np.fmin(or_zero(running), slots),
        generating_pods=np.where(np.isnan(rate), 0.0, pods),
        idle_pods=np.zeros_like(rate),
    )
    share = compute_busy_share(totals, idle_gap_s, slots)
    work = step_time.weigh_tokens(history.column("prompt_tokens"), history.column("generation_tokens"))
    with np.errstate(invalid="ignore", divide="ignore"):
        by_tokens = np.minimum(work * idle_gap_s / (pods * step_s), 1.0)
    share = np.where(assumed, by_tokens, share)
    return np.where(pods > 0, or_zero(share), 0.0).astype(np.float32)


def _work_per_request(busy_s: Steps, requests: Steps, step_s: float) -> FloatColumn:
    """Return the work of a request around each step; float64[T, W], NaN: too few requests."""
    half = max(round(WORK_WINDOW_S / step_s / 2), 1)
    near_s, near = _windowed(busy_s, half), _windowed(requests, half)
    return np.where(near >= MIN_REQUESTS, _over(near_s, near), np.nan)


def _windowed(values: Steps, half: int) -> FloatColumn:
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0, dtype=np.float64)])
    at = np.arange(len(values))
    return np.asarray(total[np.minimum(at + half + 1, len(values))] - total[np.maximum(at - half, 0)])


def _growth(waiting: Steps) -> FloatColumn:
    """Return by how much the queue grew within each step, from the means of the steps around it."""
    if len(waiting) < 2:
        return np.zeros_like(waiting)
    return np.gradient(waiting, axis=0)


def _count_misses(history: FleetHistory) -> tuple[FloatColumn, FloatColumn]:
    """Return the requests that missed, and those of which it is known; float64[OBJECTIVES, T, W] each."""
    missed, counted = [], []
    for met, of in (("ttft_met", "first_tokens"), ("itl_met", "itl_judged")):
        known, within = history.column(of), history.column(met)
        has = ~np.isnan(known) & ~np.isnan(within) & (known > 0)
        counted.append(np.where(has, known, 0.0))
        missed.append(np.where(has, np.maximum(known - within, 0.0), 0.0))
    return np.array(missed), np.array(counted)


def _fit_misses(
    missed: FloatColumn,
    counted: FloatColumn,
    demand: Steps,
    pods: Steps,
    waiting: Steps,
    work_s: Steps,
    spec: Spec,
) -> tuple[FloatColumn, FloatColumn, BoolColumn]:
    """Fit the miss curve of each service to the steps without a queue that misses."""
    services = demand.shape[1]
    alive = np.maximum(pods, 1.0)
    queued = waiting * or_zero(work_s) / alive > MAX_QUEUE_SHARE * spec.first_token_limit_s
    load_bin = np.minimum(np.floor(BINS * demand / alive), BINS - 1).astype(np.int64)
    cell = np.where(queued | (pods <= 0), -1, load_bin * services + np.arange(services))
    usable = cell >= 0

    def by_load(of: FloatColumn) -> FloatColumn:
        sums = [np.bincount(cell[usable], each[usable], minlength=BINS * services) for each in of]
        return np.reshape(sums, (OBJECTIVES, BINS, services))

    missed_by_load, counted_by_load = by_load(missed), by_load(counted)
    none = np.zeros(services)
    unavoidable = estimate_unavoidable(missed_by_load, counted_by_load, none, none)
    steepness = fit_steepness(missed_by_load, counted_by_load, unavoidable)
    return steepness, combine_objectives(unavoidable), counted.sum(axis=(0, 1)) <= 0


def _hold(counts: Steps, seen: BoolColumn) -> Steps:
    """Return the counts, and in holes the last one that was seen; 0 before the service began."""
    steps = np.where(seen, np.arange(len(seen))[:, None], 0)
    last = np.maximum.accumulate(steps, axis=0)
    held = np.take_along_axis(counts, last, axis=0)
    return np.where(np.maximum.accumulate(seen, axis=0), held, 0.0).astype(np.float32)


def _over(part: FloatColumn, whole: FloatColumn, otherwise: float = np.nan) -> FloatColumn:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(whole > 0, part / whole, otherwise)
