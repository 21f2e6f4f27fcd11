"""Checks of one scrape job: how often it scrapes, and what its relabelling loses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.patterns import compiled
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.waking import parsed, seconds
from autoscaler.config.preflight.workloads import ModelWorkload
from autoscaler.config.yaml import Loc

LOAD = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_SOURCES = {
    "namespace": ("__meta_kubernetes_namespace", "namespace", "exported_namespace", "kubernetes_namespace"),
    "pod": (
        *("__meta_kubernetes_pod_name", "pod", "exported_pod", "kubernetes_pod_name", "pod_name"),
        *("__meta_kubernetes_endpoint_address_target_name", "__meta_kubernetes_endpointslice_address_target_name"),
    ),
}
_BUCKETS = ("vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket")


class Timing(NamedTuple):
    """How often a job scrapes, with the places where that is stated."""

    interval: object
    timeout: object
    interval_loc: Loc
    timeout_loc: Loc


def check_interval(
    fleet: Scene, monitor: Manifest, timing: Timing, chosen: Sequence[ModelWorkload], book: PolicyBook
) -> Iterator[Result]:
    """Compare an interval with the timeout, the policies of what is scraped, and the windows of its triggers."""
    interval_s, timeout_s = seconds(timing.interval), seconds(timing.timeout)
    if timeout_s > interval_s:
        why = "The operator refuses the monitor, so nothing is scraped."
        yield found(
            "VA1611",
            monitor,
            timing.timeout_loc,
            "scrapeTimeout is longer than the interval",
            why,
            f"scrapeTimeout: {interval_s:g}s",
        )
    if math.isnan(interval_s):
        if timing.interval is None:
            yield not_checked(
                monitor,
                timing.interval_loc,
                "scrape interval",
                "it is that of the Prometheus, which is not known here",
            )
        return
    for workload in chosen:
        policy = book.policies.get(workload.policy or book.default)
        if policy is not None and interval_s > policy.spec.inputs.max_age / 2:
            age_s = policy.spec.inputs.max_age
            stated = bool(workload.policy)
            why = (
                f"The policy {policy.name} takes readings up to {age_s:g} s old, and scrapes may be at most half of"
                f" that apart. At {interval_s:g} s readings of {workload.thing.name} are too old, so signals are"
                " unknown and it never shrinks."
            )
            severity = "" if stated and interval_s > age_s else "warning"
            yield found(
                "VA1601",
                monitor,
                timing.interval_loc,
                f"an interval of {interval_s:g} s is too long",
                why,
                "interval: 15s",
                severity,
            )
            break
    for workload in chosen:
        for each in fleet.of_workload(workload):
            for trigger in each.triggers:
                expression = parsed(trigger)
                for selector in expression.selectors if expression is not None else ():
                    if selector.is_load and 0 < selector.range_s < 2 * interval_s:
                        why = (
                            f"{monitor.key} scrapes every {interval_s:g} s, so a window of {selector.range_s:g} s"
                            f" holds at most {math.ceil(selector.range_s / interval_s)} sample, and a rate needs two."
                            " KEDA takes the empty answer for 0."
                        )
                        message = (
                            f"{selector.function or 'rate'} over {selector.range_s:g} s, with a scrape every"
                            f" {interval_s:g} s"
                        )
                        fix = (
                            f"interval: 15s at the monitor (or a window of at least {math.ceil(4 * interval_s / 60)}m)"
                        )
                        yield found("VA1218", each.thing, trigger.query_loc, message, why, fix)
                        break


def check_relabelings(monitor: Manifest, loc: Loc, rules: object, *, of_metrics: bool) -> Iterator[Result]:
    """Check rules of relabelling. of_metrics: they are applied to series, rather than to targets."""
    for index, rule in enumerate(rules[:64] if isinstance(rules, list) else []):
        action = (text_at(rule, "action") or "replace").lower()
        pattern = compiled(text_at(rule, "regex") or "(.*)")
        if pattern is None:
            yield not_checked(monitor, (*loc, index), "relabelling", "its pattern is not understood")
            continue
        place: Loc = (*loc, index)
        if action in ("labeldrop", "labelkeep"):
            lost = [name for name in ("pod", "namespace") if bool(pattern.fullmatch(name)) == (action == "labeldrop")]
            if lost:
                names = " and ".join(lost)
                why = f"Without {names} a series belongs to no workload, and cannot be joined with kube-state-metrics."
                yield found(
                    "VA1602",
                    monitor,
                    place,
                    f"the relabelling removes the label {names}",
                    why,
                    "a pattern without them",
                )
            elif bool(pattern.fullmatch("model_name")) == (action == "labeldrop"):
                why = "Models of one pod become one series, and no query can select the model."
                message = "the relabelling removes the label model_name"
                yield found("VA1602", monitor, place, message, why, "a pattern without it", "warning")
        target, replacement = text_at(rule, "targetLabel"), at(rule, "replacement")
        fixed = isinstance(replacement, str) and "$" not in replacement and at(rule, "regex") is None
        if action == "replace" and target in ("pod", "namespace") and fixed:
            why = f"Each series gets the same {target}, so none belongs to its workload."
            message = f"the relabelling overwrites the label {target}"
            yield found("VA1602", monitor, place, message, why, "remove the rule, or write another label")
        sources = at(rule, "sourceLabels")
        source = str(sources[0]) if isinstance(sources, list) and len(sources) == 1 else ""
        whole = action == "replace" and at(rule, "regex") is None
        if whole and source and source not in _SOURCES.get(target, (source,)):
            why = f"{target} is then the value of {source[:100]}, so no series belongs to its workload."
            message = f"the relabelling overwrites the label {target}"
            yield found("VA1602", monitor, place, message, why, "write another label", "warning")
        if of_metrics and sources == ["__name__"] and action in ("drop", "keep"):
            yield from _dropped(monitor, place, pattern, action)


def _dropped(monitor: Manifest, place: Loc, pattern: re.Pattern[str], action: str) -> Iterator[Result]:
    def is_lost(name: str) -> bool:
        return bool(pattern.fullmatch(name)) == (action == "drop")

    load = [name for name in LOAD if is_lost(name)]
    if load:
        why = f"{' and '.join(load)} are not there, so the load of the engines is unknown."
        yield found("VA1605", monitor, place, "the relabelling drops the engine's load", why, "keep them")
    buckets = [name for name in _BUCKETS if is_lost(name)]
    if buckets and not load:
        why = (
            "Time to first token and gaps between tokens are computed from the buckets; without them these signals"
            " have no opinion."
        )
        fix = "remove the rule, or keep the buckets of time_to_first_token, inter_token_latency, request_prefill_time"
        yield found("VA1603", monitor, place, "the relabelling drops the histogram buckets of the engine", why, fix)
