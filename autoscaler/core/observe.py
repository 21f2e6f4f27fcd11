"""From readings to the state of each workload: counters to rates, pods folded, ages judged, cold starts learned.

Only pods that are ready, not leaving, and whose reading is fresh count; a pod that says nothing is left out of sums and
of counts alike, and shows as a gap between `ready` and `reporting`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.core.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.decision import Observation, TickInput
from autoscaler.core.fleet import Blocked
from autoscaler.core.memory import COUNTERS, Memory, PodMemory, WorkloadMemory

RATE_WINDOW_S = 30.0
"""Time constant of rates. Long enough for two scrapes of the usual 15 s, short against a cold start."""

OUTPUT_LENGTH_WINDOW_S = 1200.0
"""Time constant of tokens per request: lengths drift over tens of minutes, and few requests must not make them jump."""

LOADED_FB_USAGE = 0.5
"""Framebuffer share from which a model counts as loaded: vLLM takes 0.85 to 0.95, a sleeping one at most 0.1."""

ACTIVE_TENSOR, ACTIVE_SM, ACTIVE_DRAM = 0.005, 0.01, 0.01
"""Below all of these a loaded GPU is idle (readings of an idle engine; one of them above is work)."""

LONGEST_COLD_START_S = 3600.0
"""A pod that took longer was repaired, not started: nothing is learned from it."""


@dataclass(frozen=True)
class Pods:
    """Which pods count for what; bool[P]."""

    serving: BoolColumn  # ready and staying
    starting: BoolColumn  # will become ready by waiting
    blocked: BoolColumn  # will not
    reporting: BoolColumn  # serving, and read lately


def observe(inp: TickInput, memory: Memory) -> tuple[Observation, Memory]:
    """Understand one set of samples. Memory must be aligned to the fleet."""
    fleet, samples, workloads = inp.fleet, inp.samples.pods, memory.workloads
    rows = len(fleet.workloads)
    elapsed_s = inp.now_s - workloads.observed_s

    def total(values: FloatColumn, where: BoolColumn) -> FloatColumn:
        """Sum over the pods of each workload, float64[W]. Unknown values add nothing."""
        counted = where & ~np.isnan(values)
        return np.asarray(np.bincount(fleet.pod_workload, np.where(counted, values, 0.0), rows), dtype=np.float64)

    def count(where: BoolColumn) -> FloatColumn:
        return np.bincount(fleet.pod_workload[where], minlength=rows).astype(np.float64)

    pods = _classify(inp)
    reporting = count(pods.reporting)
    heard = reporting > 0

    pod_memory, rates = _rates(inp, memory.pods)

    def rate(counter: str) -> FloatColumn:
        """Sum of a counter's rate over the reporting pods; NaN where no pod has one yet."""
        values = rates[COUNTERS.index(counter)]
        known = pods.reporting & ~np.isnan(values)
        return np.where(count(known) > 0, total(values, known), np.nan)

    asleep = pods.reporting & (samples.asleep > 0)
    # A sleeping engine's own gauges stay at 0 whatever it holds; only /load tells (finding 1 of the recordings).
    hidden = np.where(asleep & ~np.isnan(samples.held), samples.held, 0.0)
    running = np.where(heard, total(samples.running, pods.reporting), np.nan)
    waiting = np.where(heard, total(samples.waiting + hidden, pods.reporting), np.nan)
    generation_tokens_per_s, first_tokens_per_s = rate("generation_tokens"), rate("first_tokens")
    finished_per_s, rejections_per_s = rate("finished"), rate("rejections")

    cold_start_mean_s, cold_start_deviation_s, seen_ready = _learn_cold_start(inp, memory, pods.serving)
    cold_start_s = np.where(
        np.isnan(cold_start_mean_s), inp.spec.cold_start_s, cold_start_mean_s + 2 * cold_start_deviation_s
    )
    output_tokens = _learn_output_tokens(workloads, elapsed_s, generation_tokens_per_s, finished_per_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        queue_wait_s = np.where(waiting > 0, waiting * output_tokens / generation_tokens_per_s, waiting * 0.0)

    loaded, active, idle = _gpus(inp, pods.serving)
    gpus_read = count(pods.serving & ~np.isnan(samples.fb_usage)) > 0
    loaded_idle_s = workloads.loaded_idle_s + np.fmax(np.nan_to_num(elapsed_s), 0.0) * total(idle, pods.serving)

    front = inp.samples.front
    gateway_heard = inp.now_s - front.time_s <= inp.spec.max_input_age_s
    pod_age_s = np.where(pods.reporting, inp.now_s - samples.time_s, np.nan)

    observation = Observation(
        replicas=fleet.replicas,
        ready=count(pods.serving),
        starting=count(pods.starting),
        blocked=count(pods.blocked),
        terminating=count(fleet.pod_terminating),
        next_ready_s=_next_ready_s(inp, pods.starting, cold_start_s),
        reporting=reporting,
        asleep=count(asleep),
        age_s=_largest(fleet.pod_workload, pod_age_s, rows),
        running=running,
        waiting=waiting,
        gateway_waiting=np.where(gateway_heard, front.waiting, np.nan),
        gateway_arrivals_per_s=np.where(gateway_heard, front.arrivals_per_s, np.nan),
        kv_usage=_mean(total, count, samples.kv_usage, pods.reporting),
        prompt_tokens_per_s=rate("prompt_tokens"),
        generation_tokens_per_s=generation_tokens_per_s,
        finished_per_s=finished_per_s,
        first_tokens_per_s=first_tokens_per_s,
        preemptions_per_s=rate("preemptions"),
        rejections_per_s=rejections_per_s,
        output_tokens=output_tokens,
        ttft_s=_weighted(total, samples.ttft_s, rates[COUNTERS.index("first_tokens")], pods.reporting),
        itl_s=_weighted(total, samples.itl_s, rates[COUNTERS.index("generation_tokens")], pods.reporting),
        queue_wait_s=queue_wait_s,
        loaded=np.where(gpus_read, total(loaded, pods.serving), np.nan),
        active=np.where(gpus_read, total(active, pods.serving), np.nan),
        loaded_idle_s=np.where(gpus_read | (loaded_idle_s > 0), loaded_idle_s, np.nan),
        cold_start_s=cold_start_s,
    )
    return observation, replace(
        memory,
        pods=replace(pod_memory, seen_ready=seen_ready),
        workloads=replace(
            workloads,
            output_tokens=output_tokens,
            cold_start_mean_s=cold_start_mean_s,
            cold_start_deviation_s=cold_start_deviation_s,
            loaded_idle_s=loaded_idle_s,
        ),
    )


def _classify(inp: TickInput) -> Pods:
    fleet, samples = inp.fleet, inp.samples.pods
    serving = fleet.pod_ready & ~fleet.pod_terminating
    coming = ~fleet.pod_ready & ~fleet.pod_terminating
    stuck = fleet.pod_blocked != Blocked.NO
    max_age_s = inp.spec.max_input_age_s[fleet.pod_workload]
    fresh = inp.now_s - samples.time_s <= max_age_s  # False where the engine did not answer
    return Pods(
        serving=serving,
        starting=coming & ~stuck,
        blocked=coming & stuck,
        reporting=serving & fresh & ~np.isnan(samples.running) & ~np.isnan(samples.waiting),
    )


def _rates(inp: TickInput, memory: PodMemory) -> tuple[PodMemory, FloatColumn]:
    """Turn counters into rates per second, float64[C, P]; NaN until two readings were seen.

    An exponentially fading sum of increases over a fading sum of the seconds they cover: unbiased from the second
    reading on, whatever the spacing of readings. A counter that went back was reset and has counted from zero since;
    one that is absent for a while resumes at the rate of the gap.
    """
    samples = inp.samples.pods
    counter = np.stack([getattr(samples, name) for name in COUNTERS])
    step_s = samples.time_s - memory.time_s
    moved = step_s > 0
    step_s = np.where(moved, step_s, 0.0)
    fade = np.exp(-step_s / RATE_WINDOW_S)
    observed_s = memory.observed_s * fade + step_s

    delta = counter - memory.counter
    delta = np.where(delta < 0, counter, delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        resumed = delta * (observed_s / step_s)
        increase = np.where(np.isnan(memory.increase), resumed, memory.increase * fade + delta)
        increase = np.where(moved, increase, memory.increase)
        rates = np.where(observed_s > 0, increase / observed_s, np.nan)
    answered = ~np.isnan(samples.time_s)
    keep = moved | (answered & np.isnan(memory.time_s))
    return (
        replace(
            memory,
            time_s=np.where(keep, samples.time_s, memory.time_s),
            counter=np.where(keep, counter, memory.counter),
            increase=increase,
            observed_s=observed_s,
        ),
        rates,
    )


def _learn_cold_start(
    inp: TickInput, memory: Memory, serving: BoolColumn
) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Learn the time from created to ready from pods that became ready since the last tick.

    Mean and mean absolute deviation as TCP keeps its round-trip time (RFC 6298: gains 1/8 and 1/4), doubled here since
    cold starts are few. Readiness that flapped can only look slower, so of several new pods the quickest counts.
    """
    fleet, workloads = inp.fleet, memory.workloads
    took_s = fleet.pod_ready_s - fleet.pod_created_s
    fresh = serving & (memory.pods.seen_ready == 0) & (took_s > 0) & (took_s <= LONGEST_COLD_START_S)
    sample = np.full(len(fleet.workloads), np.inf)
    np.minimum.at(sample, fleet.pod_workload[fresh], took_s[fresh])
    sample = np.where(np.isinf(sample), np.nan, sample)

    first = np.isnan(workloads.cold_start_mean_s)
    error = sample - workloads.cold_start_mean_s
    mean = np.where(first, sample, workloads.cold_start_mean_s + error / 4)
    deviation = np.where(
        first, sample / 4, workloads.cold_start_deviation_s + (np.abs(error) - workloads.cold_start_deviation_s) / 4
    )
    nothing = np.isnan(sample)
    return (
        np.where(nothing, workloads.cold_start_mean_s, mean),
        np.where(nothing, workloads.cold_start_deviation_s, deviation),
        np.where(serving, 1.0, memory.pods.seen_ready),
    )


def _learn_output_tokens(
    workloads: WorkloadMemory, elapsed_s: FloatColumn, tokens_per_s: FloatColumn, finished_per_s: FloatColumn
) -> FloatColumn:
    """Learn generated tokens per request: rate of tokens over rate of ended requests, averaged over many minutes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        now = np.where(finished_per_s > 0, tokens_per_s / finished_per_s, np.nan)
    gain = 1 - np.exp(-np.nan_to_num(elapsed_s) / OUTPUT_LENGTH_WINDOW_S)
    learned = workloads.output_tokens + gain * (now - workloads.output_tokens)
    return np.where(np.isnan(now), workloads.output_tokens, np.where(np.isnan(workloads.output_tokens), now, learned))


def _gpus(inp: TickInput, serving: BoolColumn) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Say which pods are loaded, which work, and which are loaded and idle; float64[P], 0 or 1, NaN unknown.

    The framebuffer tells that a model is there, never that more or fewer are needed. A pod is idle only if the GPU and
    the engine agree: short replies can leave no trace in a 30 s sample.
    """
    samples = inp.samples.pods
    read = serving & ~np.isnan(samples.fb_usage)
    loaded = samples.fb_usage >= LOADED_FB_USAGE
    active = (
        (samples.tensor_active >= ACTIVE_TENSOR)
        | (samples.sm_active >= ACTIVE_SM)
        | (samples.dram_active >= ACTIVE_DRAM)
    )
    witnessed = ~np.isnan(samples.tensor_active) | ~np.isnan(samples.sm_active) | ~np.isnan(samples.dram_active)
    quiet = (samples.running == 0) & (samples.waiting == 0)
    return (
        np.where(read, loaded.astype(float), np.nan),
        np.where(read & witnessed, active.astype(float), np.nan),
        np.where(read & witnessed, (loaded & ~active & quiet).astype(float), np.nan),
    )


def _next_ready_s(inp: TickInput, starting: BoolColumn, cold_start_s: FloatColumn) -> FloatColumn:
    """Seconds until the first starting pod should serve, float64[W]; NaN: none starts.

    A pod that is overdue is expected after another tenth of a cold start: it may still come, but nobody counts on now.
    """
    fleet = inp.fleet
    usual_s = cold_start_s[fleet.pod_workload]
    left_s = np.fmax(usual_s - (inp.now_s - fleet.pod_created_s), 0.1 * usual_s)
    soonest = np.full(len(fleet.workloads), np.inf)
    known = starting & ~np.isnan(left_s)
    np.minimum.at(soonest, fleet.pod_workload[known], left_s[known])
    return np.where(np.isinf(soonest), np.nan, soonest)


def _largest(index: IntColumn, values: FloatColumn, rows: int) -> FloatColumn:
    largest = np.full(rows, -np.inf)
    known = ~np.isnan(values)
    np.maximum.at(largest, index[known], values[known])
    return np.where(np.isinf(largest), np.nan, largest)


def _mean(total, count, values: FloatColumn, where: BoolColumn) -> FloatColumn:  # type: ignore[no-untyped-def]
    """Mean over the pods that know; NaN where none does."""
    known = where & ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(total(values, known) / count(known))


def _weighted(total, values: FloatColumn, weights: FloatColumn, where: BoolColumn) -> FloatColumn:  # type: ignore[no-untyped-def]
    """Mean weighted by how much each pod did; NaN where nobody did anything.

    Where no pod has a rate yet (its second reading is still to come), pods weigh the same.
    """
    known = where & ~np.isnan(values)
    weights = np.where(np.isnan(weights), 1e-9, np.fmax(weights, 1e-9))
    with np.errstate(invalid="ignore"):
        return np.asarray(total(values * weights, known) / total(weights, known))
