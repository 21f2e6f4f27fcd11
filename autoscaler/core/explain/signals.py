"""The strongest recommendation in words: the signal, the number, and the load or the objective behind it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from autoscaler.core.explain import planner
from autoscaler.core.explain.claims import NOTHING, Words, join, tell
from autoscaler.core.explain.format import number, seconds, whole_percent
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.chain import Link
from autoscaler.core.model.types import Recommender, Signal, Weighed
from autoscaler.core.observe import draining
from autoscaler.core.observe.standstill import chance_s
from autoscaler.core.readings.rates import RATE_WINDOW_S

SURE = 0.5
"""Confidence below which a capacity is called assumed."""


def reason(signal: Signal, row: TickRow) -> Words:
    """Word the recommendation of the strongest signal, and that it overrules the planner where it does."""
    return _WORDS[signal](row) + _overruled(signal, row)


def _overruled(signal: Signal, row: TickRow) -> Words:
    if row.recommender is not Recommender.OVERRULED_BY_QUEUE or signal.weighed is not Weighed.ALWAYS:
        return NOTHING  # only the weighed signals need a late queue to speak beside the planner
    return tell(
        ", over the planner's {overruled}, because requests wait up to {longest_wait_s}, "
        "longer than the {max_wait_s} allowed",
        overruled=number(row.recommended(Signal.PLANNER)),
        longest_wait_s=seconds(row.observed("queue_wait_s")),
        max_wait_s=seconds(row.spec("max_wait_s")),
    )


def _recommends(row: TickRow, signal: Signal, subject: str) -> Words:
    return tell("{signal} recommends {recommended}", signal=subject, recommended=number(row.recommended(signal)))


def _concurrency(row: TickRow) -> Words:
    recommends = _recommends(row, Signal.CONCURRENCY, "concurrency")
    if row.recommended(Signal.CONCURRENCY) == 0:
        return recommends + tell(" because {idle:no request is in flight}") + _unread(row)
    gateway, on_others = row.observed("gateway_waiting"), row.observed("draining_requests")
    load = [
        tell("{running} running", running=number(row.observed("running"))),
        tell("{waiting} waiting{longest}", waiting=number(row.observed("waiting")), longest=_longest_wait(row)),
    ]
    if gateway > 0 and not row.observed("gateway_stuck") > 0:
        load.append(tell("{gateway_waiting} at the gateway", gateway_waiting=number(gateway)))
    if on_others > 0:
        load.append(tell("{draining_requests} on {pods}", draining_requests=number(on_others), pods=_not_serving(row)))
    requests = join(", ", load[:-1]) + " and " + load[-1]
    each = _of_each(row, "concurrency", "requests")
    return recommends + " for " + requests + _unread(row) + ", " + each + _on_top(row)


def _longest_wait(row: TickRow) -> Words:
    """Word for how long requests wait, or why that is not known; nothing: none waits."""
    wait_s = row.observed("queue_wait_s")
    if wait_s > 0:
        return tell(" (up to {queue_wait_s} in one replica)", queue_wait_s=seconds(wait_s))
    if not (row.observed("waiting") > 0 and math.isnan(wait_s)):
        return NOTHING
    if row.observed("output_tokens") > 0:
        return tell(" (for an unknown time, as {no_speed:none of their replicas is known to generate tokens})")
    return tell(" (for an unknown time, as {no_answer:no answer has ended yet})")


def _rate(row: TickRow, signal: Signal, subject: str, tokens: str, load: str, capacity: str) -> Words:
    on_others = row.observed(f"draining_{load}")
    rate = tell(" for {rate} {kind} tokens/s", rate=number(row.observed(load)), kind=tokens)
    if on_others > 0:
        rate += tell(" and {draining_rate} on {pods}", draining_rate=number(on_others), pods=_not_serving(row))
    each = _of_each(row, capacity, "tokens/s")
    return _recommends(row, signal, subject) + rate + _unread(row) + ", " + each + _on_top(row)


def _not_serving(row: TickRow) -> str:
    """Word why the pods with requests that do not count as serving do not: they leave, or are not ready."""
    fleet, pods = row.inp.fleet, draining.is_draining(row.inp, row.inp.samples.pods)
    terminating = fleet.pod_terminating[pods & (fleet.pod_workload == row.row)]
    if terminating.all():
        return "pods that stop serving"
    return "pods that stop serving or are not ready" if terminating.any() else "pods that are not ready"


def _of_each(row: TickRow, capacity: str, unit: str) -> Words:
    """Word the load that one replica is planned for."""
    usage = row.spec("target_usage")
    is_sure = capacity != "concurrency" or row.capacity("confidence") >= SURE or row.capacity(capacity) == row.slots
    return tell(
        "at {share}{assumed}{each} {unit} per replica",
        share=tell("{target_usage} of ", target_usage=whole_percent(usage)) if usage < 1 else NOTHING,
        assumed=NOTHING if is_sure else tell("{assumed:an assumed }"),
        each=number(row.capacity(capacity)),
        unit=unit,
    )


def _unread(row: TickRow) -> Words:
    """Word how many replicas the load was read from, where some are silent: the recommendation is for all."""
    reporting, ready = row.observed("reporting"), row.observed("ready") - row.observed("newly_ready")
    if not reporting < ready:
        return NOTHING
    return tell(" on {read_from} of {serving} replicas", read_from=number(reporting), serving=number(ready))


def _on_top(row: TickRow) -> Words:
    """Word the replicas that a recommendation counts though they serve nothing: asleep, or stuck and replaced."""
    asleep, stuck = row.observed("asleep"), row.observed("stuck_replaced")
    parts = [tell("{asleep_on_top} asleep", asleep_on_top=number(asleep))] if asleep > 0 else []
    parts += [tell("{stuck_on_top} stuck", stuck_on_top=number(stuck))] if stuck > 0 else []
    return tell(", with {parts}", parts=join(" and ", parts)) if parts else NOTHING


def _kv_cache(row: TickRow) -> Words:
    usage = tell(
        " at {kv_usage} usage, target {kv_target_usage}",
        kv_usage=whole_percent(row.observed("kv_usage")),
        kv_target_usage=whole_percent(row.spec("kv_target_usage")),
    )
    return _recommends(row, Signal.KV_CACHE, "the KV cache") + usage + _on_top(row)


def _latency(row: TickRow, signal: Signal, subject: str, quantile: str, objective: str) -> Words:
    latency = tell(
        " at a p95 of {quantile_s}, objective {objective_s}",
        quantile_s=seconds(row.observed(quantile)),
        objective_s=seconds(row.spec(objective)),
    )
    return _recommends(row, signal, subject) + latency + _on_top(row)


def _rejections(row: TickRow) -> Words:
    refused = tell(
        " for {rejections_per_s} requests/s refused within the last {rate_window_s}",
        rejections_per_s=number(row.observed("rejections_per_s")),
        rate_window_s=seconds(RATE_WINDOW_S),
    )
    return _recommends(row, Signal.REJECTIONS, "the rejection rate") + refused + _on_top(row)


def _schedule(row: TickRow) -> Words:
    windows, now_s = row.inp.schedule, row.inp.now_s
    lead_s = np.where(
        np.isnan(windows.lead_s[row.row]), row.decision.chain.lead_s[Link.REPLICA, row.row], windows.lead_s[row.row]
    )
    is_open = (windows.start_s[row.row] - lead_s <= now_s) & (now_s < windows.until_s[row.row])
    is_strongest = is_open & (windows.replicas[row.row] == row.recommended(Signal.SCHEDULE))
    left_s = float(np.fmax.reduce(np.where(is_strongest, windows.until_s[row.row], np.nan), initial=np.nan)) - now_s
    end = tell(" for {window_left_s} more", window_left_s=seconds(left_s)) if left_s > 0 else NOTHING
    return _recommends(row, Signal.SCHEDULE, "the pre-warm schedule") + end


def _wake(row: TickRow) -> Words:
    recommends, stuck = _recommends(row, Signal.WAKE, "wake-up"), row.observed("stuck")
    if stuck > 0:
        left_s = float(chance_s(row.decision.observation.cold_start_s)[row.row]) - row.observed("stuck_s")
        end = tell(" for {chance_left_s} more", chance_left_s=seconds(left_s)) if left_s > 0 else NOTHING
        return (
            recommends
            + end
            + tell(", so that one replica serves beside {stuck_beside} stuck", stuck_beside=number(stuck))
        )
    queued = row.observed("gateway_waiting") > 0 or row.observed("waiting") > 0
    return recommends + tell(
        " because requests {come} and no replica is {missing}",
        come="wait" if queued else "arrive",
        missing="ready" if row.observed("ready") == 0 else "awake",
    )


_WORDS: dict[Signal, Callable[[TickRow], Words]] = {
    Signal.CONCURRENCY: _concurrency,
    Signal.PREFILL: lambda row: _rate(
        row, Signal.PREFILL, "the prefill rate", "prompt", "prompt_tokens_per_s", "prefill_tokens_per_s"
    ),
    Signal.DECODE: lambda row: _rate(
        row, Signal.DECODE, "the decode rate", "generated", "generation_tokens_per_s", "decode_tokens_per_s"
    ),
    Signal.KV_CACHE: _kv_cache,
    Signal.TTFT: lambda row: _latency(row, Signal.TTFT, "TTFT", "ttft_s", "ttft_objective_s"),
    Signal.ITL: lambda row: _latency(row, Signal.ITL, "ITL", "itl_s", "itl_objective_s"),
    Signal.REJECTIONS: _rejections,
    Signal.SCHEDULE: _schedule,
    Signal.PLANNER: planner.reason,
    Signal.WAKE: _wake,
}
