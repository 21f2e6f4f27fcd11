"""Validation of ScaledObjects before they are applied, for `vllm-autoscaler check`.

Errors are those of `config.check.scaledobject_fields`, for which the daemon refuses a ScaledObject in the cluster too.
A warning tells that the HPA or KEDA will do something else than the daemon decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from autoscaler.adapters.keda.metric_value import DEFAULT_TOLERANCE, Tolerance, publish
from autoscaler.adapters.keda.zero_risk import ZERO_RISK
from autoscaler.config.check import scaledobject_fields as so
from autoscaler.config.check import trigger as metadata
from autoscaler.config.check.manifests import at, find_excess, mapping
from autoscaler.config.check.trigger import POLICY
from autoscaler.config.findings import Finding, one_of, shown
from autoscaler.config.policy.compile import override
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.policy.schema import OVERRIDES, Policy, PolicySpec
from autoscaler.config.yaml import Document, Loc

MAX_REPLICAS_CHECKED = 500  # counts whose steps are compared with the tolerance


def check_scaled_object(document: Document, book: PolicyBook) -> Iterator[Finding]:
    """Yield the findings of a ScaledObject that has a trigger of this scaler.

    An external trigger is ours if its address names this scaler, or if its metadata has a key of ours, which may have a
    typo. A trigger of another type is ours if its address names this scaler, or it has an address and a policy.
    Never raises, whatever it reads.
    """
    ours = _ours(document)
    if not ours:
        return
    for fault in so.faults(document.value, ours, book):
        finding = document.finding(fault.place, fault.problem, fault.allowed)
        yield finding if fault.shows else replace(finding, value="")
    yield from _check_target(document)
    yield from _check_keys(document)
    yield from _check_trigger(document, ours[0])
    yield from _check_others(document, ours)
    yield from _check_annotations(document)
    chosen = _policy(_stated(document, ours[0]), book)
    if chosen is not None:
        yield from _check_limits(document, ours[0], chosen, book)
    policy = chosen.spec if chosen is not None else None
    most = so.integer(document.value, so.MAX, so.MOST, so.DEFAULT_MAX) or so.DEFAULT_MAX
    yield from _check_counts(document, policy)
    yield from _check_zero(document, policy)
    for direction in (so.UP, so.DOWN):
        yield from _check_direction(document, direction, most)
    yield from _check_tolerance(document, most)
    yield from _check_fallback(document, policy)


def pass_over(document: Document) -> str:
    """Return why a ScaledObject is not checked; "": it has a trigger of this scaler."""
    return "" if _ours(document) else "no trigger of this scaler; `preflight` checks it"


def _ours(document: Document) -> list[int]:
    """Return the places of our triggers."""
    triggers = at(document.value, "spec", "triggers")
    return [index for index, trigger in enumerate(triggers if isinstance(triggers, list) else ()) if _is_ours(trigger)]


def _is_ours(trigger: object) -> bool:
    stated = mapping(at(trigger, "metadata"))
    named = "vllm-autoscaler" in str(stated.get("scalerAddress", ""))
    if at(trigger, "type") not in (so.PUSH, so.POLL):
        return named or (POLICY in stated and "scalerAddress" in stated)
    return named or any(map(_is_key_of_ours, map(str, stated)))


def _is_key_of_ours(key: str) -> bool:
    return ("." in key and key in OVERRIDES) or bool(get_close_matches(key[:100], [POLICY], cutoff=0.8))


def _check_target(document: Document) -> Iterator[Finding]:
    """Warn about a custom kind that is not known: the cluster and a setting decide whether it is scaled."""
    place: Loc = ("spec", "scaleTargetRef")
    kind, api_version = (at(document.value, *place, key) for key in ("kind", "apiVersion"))
    if so.is_other_kind(kind, api_version):
        group = str(api_version).partition("/")[0]
        problem = "not a known kind, so it is scaled only if the daemon's --target-kind names it"
        yield document.warning(
            (*place, "kind"),
            problem,
            f"--target-kind=<plural>.{group}, or one of {one_of(so.TARGETS)}",
        )


def _check_keys(document: Document) -> Iterator[Finding]:
    """Find keys that KEDA ignores. A key unlike all known ones may belong to a newer KEDA."""
    for place, known in so.KEYS.items():
        for key in mapping(at(document.value, *place)):
            if key not in known and not get_close_matches(key[:100], known, n=1):
                yield document.warning((*place, key), "unknown key", one_of(known))


def _check_trigger(document: Document, index: int) -> Iterator[Finding]:
    place: Loc = (*so.TRIGGERS, index)
    if at(document.value, *place, "type") == so.POLL:
        problem = "is only polled, so waking from zero waits for the next poll"
        yield document.warning((*place, "type"), problem, so.PUSH)
    if at(document.value, *place, "useCachedMetrics") is True:
        problem = "gives the HPA the value of the last poll"
        yield document.warning((*place, "useCachedMetrics"), problem, "false")
    address = at(document.value, *place, "metadata", "scalerAddress")
    url = isinstance(address, str) and address.startswith(("http://", "https://"))  # which is an error already
    if isinstance(address, str) and not url and not re.search(r":\d+$", address):
        problem = "no port number; without one KEDA would dial 443"
        yield document.warning((*place, "metadata", "scalerAddress"), problem, "host:port")


def _check_others(document: Document, ours: list[int]) -> Iterator[Finding]:
    triggers = at(document.value, *so.TRIGGERS)
    for index in range(len(triggers) if isinstance(triggers, list) else 0):
        if index not in ours:
            kind = at(document.value, *so.TRIGGERS, index, "type")
            problem = (
                "a second trigger; the HPA uses the larger answer, and this trigger decides alone if KEDA "
                "wrote the HPA while neither the daemon nor its stand-in could be reached"
            )
            allowed = "our trigger alone" + ("; `prewarm` of the policy does what cron does" if kind == "cron" else "")
            yield document.warning((*so.TRIGGERS, index), problem, allowed)
    if at(document.value, *so.MODIFIERS):
        yield document.warning(so.MODIFIERS, "replaces the daemon's answer by a formula", "none")


_LIMITING = {
    so.PAUSED: "KEDA changes no count while it is set",
    so.PAUSED_AT: "KEDA keeps this count while it is set",
    so.PAUSED_IN: "KEDA and the HPA remove no replica while it is set",
    so.PAUSED_OUT: "KEDA and the HPA add no replica while it is set, not even the first",
    so.FORCED: "KEDA keeps at least one replica while it is set, whatever the daemon decides",
}


def _check_annotations(document: Document) -> Iterator[Finding]:
    """Find annotations by which KEDA itself limits the count."""
    annotations = mapping(at(document.value, "metadata", "annotations"))
    for name, problem in _LIMITING.items():
        if name in annotations and (name == so.PAUSED_AT or so.is_set(annotations, name)):
            yield document.warning(("metadata", "annotations", name), problem, "absent")


def _check_counts(document: Document, policy: PolicySpec | None) -> Iterator[Finding]:
    """Compare the bounds of the ScaledObject with those of the policy."""
    least = so.integer(document.value, so.MIN, so.LEAST, so.DEFAULT_MIN)
    most = so.integer(document.value, so.MAX, so.MOST, so.DEFAULT_MAX)
    if least is None or most is None or least > most or policy is None:
        return  # invalid bounds are errors already
    if policy.replicas.min > most:
        problem = f"below replicas.min of the policy, which is {policy.replicas.min}, so the count stays at {most}"
        yield document.warning(so.MAX, problem, f"at least {policy.replicas.min}")
    elif policy.replicas.max > most and at(document.value, *so.MAX) is None:
        problem = f"absent, which means {most}: below replicas.max of the policy, which is {policy.replicas.max}"
        yield document.warning(so.MAX, problem, "a number, which holds where it is the tighter one")
    if policy.replicas.max < least:
        problem = f"above replicas.max of the policy, which is {policy.replicas.max}, so the count stays at {least}"
        yield document.warning(so.MIN, problem, f"at most {policy.replicas.max}")
    idles = so.integer(document.value, so.IDLE, so.LEAST) == 0  # then KEDA scales to zero from any count
    if policy.scale_to_zero.enabled and least > 0 and not idles:
        problem = "keeps the workload above zero, although its policy allows zero"
        yield document.warning(so.MIN, problem, "0, or idleReplicaCount: 0 as well, or scaleToZero.enabled: false")


def _check_zero(document: Document, policy: PolicySpec | None) -> Iterator[Finding]:
    """Find a ScaledObject that lets KEDA go to zero, although the policy never does.

    KEDA closes its cached scaler when a call fails or is cancelled. A poll at the same moment finds it closed, gets no
    error, and treats the workload as idle. Then only the cooldown keeps the replicas.
    """
    idles = so.integer(document.value, so.IDLE, so.LEAST) == 0
    to_zero = idles or so.integer(document.value, so.MIN, so.LEAST, so.DEFAULT_MIN) == 0
    if to_zero and policy is not None and not policy.scale_to_zero.enabled:
        finding = document.finding(so.IDLE if idles else so.MIN, ZERO_RISK)
        least = "no idleReplicaCount" if idles else "at least 1"
        yield replace(finding, allowed=f"{least}, or scaleToZero.enabled: true in the policy or the trigger")
    cooldown_s = so.integer(document.value, so.COOLDOWN, so.SECONDS, so.DEFAULT_COOLDOWN_S)
    if to_zero and cooldown_s is not None and cooldown_s < so.DEFAULT_COOLDOWN_S:
        problem = "KEDA can treat a failed call as an idle workload, and scales to zero if calls fail for longer"
        yield document.warning(so.COOLDOWN, problem, f"at least {so.DEFAULT_COOLDOWN_S}, or minReplicaCount: 1")
    idle_after_s = policy.scale_to_zero.idle_after if policy is not None and policy.scale_to_zero.enabled else None
    if to_zero and cooldown_s is not None and idle_after_s is not None and idle_after_s < cooldown_s:
        problem = (
            f"KEDA adds these {cooldown_s} s to the policy's scaleToZero.idleAfter: zero comes idleAfter + "
            f"cooldownPeriod = {idle_after_s + cooldown_s:g} s after the last request"
        )
        yield document.warning(so.COOLDOWN, problem)


def _check_fallback(document: Document, policy: PolicySpec | None) -> Iterator[Finding]:
    """Find a fallback that removes replicas while the load is not known."""
    replicas = so.integer(document.value, (*so.FALLBACK, "replicas"), so.LEAST)
    behavior = at(document.value, *so.FALLBACK, "behavior")
    if replicas is None:
        return
    place, current = (*so.FALLBACK, "replicas"), "behavior: currentReplicasIfHigher"
    if replicas == 0:
        problem = "scales the workload to zero while the scaler is unreachable"
        yield document.warning(place, problem, "at least 1, or no fallback")
    elif behavior in (None, "", "static") and policy is not None and policy.replicas.max > replicas:
        problem = (
            f"removes replicas if the load needs more than these: the policy allows {policy.replicas.max}, and "
            "without a fallback KEDA keeps the count"
        )
        yield document.warning(place, problem, f"{current}, at least {policy.replicas.max}, or no fallback")


def _stated(document: Document, index: int) -> dict[str, str]:
    """Return the metadata of a trigger, as far as they are text."""
    stated = mapping(at(document.value, *so.TRIGGERS, index, "metadata"))
    return {key: value for key, value in stated.items() if isinstance(value, str)}


def _policy(stated: dict[str, str], book: PolicyBook) -> Policy | None:
    """Return the policy of a trigger with its overrides; None: they are invalid, which is an error already."""
    if metadata.problems(stated, book):
        return None
    return override(book.policies[stated[POLICY]], metadata.overrides(stated))


def _check_limits(document: Document, index: int, policy: Policy, book: PolicyBook) -> Iterator[Finding]:
    """Compare priority, weight and floor with the limits of the namespace. policy: with the trigger's overrides."""
    stated = _stated(document, index)
    least = so.integer(document.value, so.MIN, so.LEAST, so.DEFAULT_MIN) or 0
    for excess in find_excess(document, policy, metadata.overrides(stated), least, book):
        place = (*so.TRIGGERS, index, "metadata", excess.path if excess.path in stated else POLICY)
        finding = document.finding(so.MIN if excess.path == so.MIN[-1] else place, excess.problem)
        yield replace(finding, value=excess.value, allowed=excess.allowed)


def _check_direction(document: Document, place: Loc, most: int) -> Iterator[Finding]:
    """Find settings that keep the HPA from reaching the daemon's count at once."""
    rules = mapping(at(document.value, *place))
    up = place == so.UP
    select = rules.get("selectPolicy")
    if select == so.DISABLED:
        yield document.warning((*place, "selectPolicy"), "the HPA never moves this way", "Max")
    window_place = (*place, "stabilizationWindowSeconds")
    if so.integer(document.value, window_place, so.WINDOW, 0 if up else 300):
        problem = "the HPA waits in addition to the policy's stabilization"
        if rules.get("stabilizationWindowSeconds") is None:
            problem = f"absent, which means 300: {problem}"
        yield document.warning(window_place, problem, "0")
    if not rules.get("policies"):
        if up:
            problem = "absent, which means 4 pods or 100% per 15 s"
            yield document.warning((*place, "policies"), problem, so.EXACT_UP)
        return
    policies = so.policies(document.value, place)
    widest = [
        (kind, value) for kind, value in policies if (value >= most if kind == "Pods" else not up and value >= 100)
    ]
    if policies and (not widest or (select == "Min" and len(widest) < len(policies))):
        problem = "the HPA scales in smaller steps than the daemon decides"
        allowed = so.EXACT_UP if up else f"{so.EXACT_UP}, or 100 Percent"
        found = shown(", ".join(f"{kind} {value}" for kind, value in policies))
        yield replace(document.warning((*place, "policies"), problem, allowed), value=found)


def _check_tolerance(document: Document, most: int) -> Iterator[Finding]:
    tolerances = [so.tolerance(document.value, place) for place in (so.UP, so.DOWN)]
    if any(tolerance is not None and math.isnan(tolerance) for tolerance in tolerances):
        return
    stated = Tolerance(*(DEFAULT_TOLERANCE if tolerance is None else tolerance for tolerance in tolerances))
    for direction, steps in zip((so.UP, so.DOWN), _swallowed(stated, most), strict=True):
        if not steps:
            continue
        place = (*direction, "tolerance")
        first = ", ".join(f"{current} -> {desired}" for current, desired in steps[:3])
        problem = f"swallows {len(steps)} step{'' if len(steps) == 1 else 's'} up to maxReplicaCount, the first {first}"
        if at(document.value, *place) is None:
            problem = f"absent, which means {DEFAULT_TOLERANCE}: {problem}"
        yield document.warning(place, problem, '"0" (Kubernetes from 1.35; before, direct mode)')


def _swallowed(tolerance: Tolerance, most: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the steps up and down that no value reaches, each as (current, desired)."""
    counts = range(1, min(most, MAX_REPLICAS_CHECKED) + 1)
    up, down = [], []
    for current in counts:
        # Smaller steps are hidden first, so each loop ends at the first reachable step.
        for desired in range(current + 1, counts.stop):
            if publish(desired, current, tolerance).reachable:
                break
            up.append((current, desired))
        for desired in range(current - 1, 0, -1):
            if publish(desired, current, tolerance).reachable:
                break
            down.append((current, desired))
    return up, down
