"""The strongest recommendation in words: the signal, the number, and the load or the objective behind it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from autoscaler.core.explain import planner
from autoscaler.core.explain.format import number, seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.chain import Link
from autoscaler.core.model.types import Recommender, Signal, Weighed
from autoscaler.core.observe import draining
from autoscaler.core.observe.standstill import chance_s
from autoscaler.core.readings.rates import RATE_WINDOW_S

SURE = 0.5
"""Confidence below which a capacity is called assumed."""


def reason(signal: Signal, row: TickRow) -> str:
    """Word the recommendation of the strongest signal, and that it overrules the planner where it does."""
    return f"{_WORDS[signal](row)}{_overruled(signal, row)}"


def _overruled(signal: Signal, row: TickRow) -> str:
    if row.recommender is not Recommender.OVERRULED_BY_QUEUE or signal.weighed is not Weighed.ALWAYS:
        return ""  # only the weighed signals need a late queue to speak beside the planner
    planned, wait_s = number(row.recommended(Signal.PLANNER)), row.observed("queue_wait_s")
    waits = f"requests wait up to {seconds(wait_s)}, longer than the {seconds(row.spec('max_wait_s'))} allowed"
    return f", over the planner's {planned}, because {waits}"


def _recommends(row: TickRow, signal: Signal, subject: str) -> str:
    return f"{subject} recommends {number(row.recommended(signal))}"


def _concurrency(row: TickRow) -> str:
    wait_s, gateway = row.observed("queue_wait_s"), row.observed("gateway_waiting")
    on_others = row.observed("draining_requests")
    longest = f" (up to {seconds(wait_s)} in one replica)" if wait_s > 0 else _unknown_wait(row)
    load = [f"{number(row.observed('running'))} running", f"{number(row.observed('waiting'))} waiting{longest}"]
    if gateway > 0 and not row.observed("gateway_stuck") > 0:
        load.append(f"{number(gateway)} at the gateway")
    if on_others > 0:
        load.append(f"{number(on_others)} on {_not_serving(row)}")
    recommends = _recommends(row, Signal.CONCURRENCY, "concurrency")
    if row.recommended(Signal.CONCURRENCY) == 0:
        return f"{recommends} because no request is in flight{_unread(row)}"
    requests = f"{', '.join(load[:-1])} and {load[-1]}{_unread(row)}"
    return f"{recommends} for {requests}, {_of_each(row, 'concurrency', 'requests')}{_on_top(row)}"


def _unknown_wait(row: TickRow) -> str:
    """Word why it is not known for how long requests wait; "": it is, or none waits."""
    if not (row.observed("waiting") > 0 and math.isnan(row.observed("queue_wait_s"))):
        return ""
    has_answer = row.observed("output_tokens") > 0
    why = "none of their replicas is known to generate tokens" if has_answer else "no answer has ended yet"
    return f" (for an unknown time, as {why})"


def _rate(row: TickRow, signal: Signal, subject: str, tokens: str, load: str, capacity: str) -> str:
    on_others = row.observed(f"draining_{load}")
    rate = f"{number(row.observed(load))} {tokens} tokens/s"
    rate += f" and {number(on_others)} on {_not_serving(row)}" if on_others > 0 else ""
    each = _of_each(row, capacity, "tokens/s")
    return f"{_recommends(row, signal, subject)} for {rate}{_unread(row)}, {each}{_on_top(row)}"


def _not_serving(row: TickRow) -> str:
    """Word why the pods with requests that do not count as serving do not: they leave, or are not ready."""
    fleet, pods = row.inp.fleet, draining.is_draining(row.inp, row.inp.samples.pods)
    terminating = fleet.pod_terminating[pods & (fleet.pod_workload == row.row)]
    if terminating.all():
        return "pods that stop serving"
    return "pods that stop serving or are not ready" if terminating.any() else "pods that are not ready"


def _of_each(row: TickRow, capacity: str, unit: str) -> str:
    """Word the load that one replica is planned for."""
    usage = row.spec("target_usage")
    share = f"{usage:.0%} of " if usage < 1 else ""
    is_sure = capacity != "concurrency" or row.capacity("confidence") >= SURE or row.capacity(capacity) == row.slots
    assumed = "" if is_sure else "an assumed "
    return f"at {share}{assumed}{number(row.capacity(capacity))} {unit} per replica"


def _unread(row: TickRow) -> str:
    """Word how many replicas the load was read from, where some are silent: the recommendation is for all."""
    reporting, ready = row.observed("reporting"), row.observed("ready") - row.observed("newly_ready")
    return f" on {number(reporting)} of {number(ready)} replicas" if reporting < ready else ""


def _on_top(row: TickRow) -> str:
    """Word the replicas that a recommendation counts though they serve nothing: asleep, or stuck and replaced."""
    idle = {"asleep": row.observed("asleep"), "stuck": row.observed("stuck_replaced")}
    parts = [f"{number(many)} {what}" for what, many in idle.items() if many > 0]
    return f", with {' and '.join(parts)}" if parts else ""


def _kv_cache(row: TickRow) -> str:
    usage = f"{row.observed('kv_usage'):.0%} usage, target {row.spec('kv_target_usage'):.0%}"
    return f"{_recommends(row, Signal.KV_CACHE, 'the KV cache')} at {usage}{_on_top(row)}"


def _latency(row: TickRow, signal: Signal, subject: str, quantile: str, objective: str) -> str:
    latency = f"{seconds(row.observed(quantile))}, objective {seconds(row.spec(objective))}"
    return f"{_recommends(row, signal, subject)} at a p95 of {latency}{_on_top(row)}"


def _rejections(row: TickRow) -> str:
    refused = f"{row.observed('rejections_per_s'):.3g} requests/s refused within the last {seconds(RATE_WINDOW_S)}"
    return f"{_recommends(row, Signal.REJECTIONS, 'the rejection rate')} for {refused}{_on_top(row)}"


def _schedule(row: TickRow) -> str:
    windows, now_s = row.inp.schedule, row.inp.now_s
    lead_s = np.where(
        np.isnan(windows.lead_s[row.row]), row.decision.chain.lead_s[Link.REPLICA, row.row], windows.lead_s[row.row]
    )
    is_open = (windows.start_s[row.row] - lead_s <= now_s) & (now_s < windows.until_s[row.row])
    is_strongest = is_open & (windows.replicas[row.row] == row.recommended(Signal.SCHEDULE))
    left_s = float(np.fmax.reduce(np.where(is_strongest, windows.until_s[row.row], np.nan), initial=np.nan)) - now_s
    end = f" for {seconds(left_s)} more" if left_s > 0 else ""
    return f"{_recommends(row, Signal.SCHEDULE, 'the pre-warm schedule')}{end}"


def _wake(row: TickRow) -> str:
    recommends, stuck = _recommends(row, Signal.WAKE, "wake-up"), row.observed("stuck")
    if stuck > 0:
        left_s = float(chance_s(row.decision.observation.cold_start_s)[row.row]) - row.observed("stuck_s")
        end = f" for {seconds(left_s)} more" if left_s > 0 else ""
        return f"{recommends}{end}, so that one replica serves beside {number(stuck)} stuck"
    queued = row.observed("gateway_waiting") > 0 or row.observed("waiting") > 0
    serving = "ready" if row.observed("ready") == 0 else "awake"
    return f"{recommends} because requests {'wait' if queued else 'arrive'} and no replica is {serving}"


_WORDS: dict[Signal, Callable[[TickRow], str]] = {
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
