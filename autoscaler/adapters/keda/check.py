"""Validation of ScaledObjects before they are applied: our trigger, and whether the HPA will do what it is told.

For `vllm-autoscaler check`; knows nothing of gRPC. An error keeps the ScaledObject from being served, or from working
as a scaler at all; a warning says where the HPA or KEDA will do something else than the daemon decides.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from autoscaler.adapters.keda import metadata
from autoscaler.adapters.keda.value import DEFAULT_TOLERANCE, Tolerance, publish
from autoscaler.config.document import Document, Loc
from autoscaler.config.findings import Finding, one_of, shown
from autoscaler.config.manifests import at, mapping
from autoscaler.config.model import OVERRIDES, PolicySpec
from autoscaler.config.policy import PolicyBook
from autoscaler.config.scaledobject import (
    DEFAULT_MAX,
    DEFAULT_MIN,
    LEAST,
    MOST,
    POLICY,
    POLL,
    PUSH,
    TARGETS,
    TOLERANCE,
    is_target,
    with_defaults,
)
from autoscaler.config.specs import override
from autoscaler.config.values import Whole

MAX_REPLICAS_LOOKED_AT = 500  # counts whose steps are tried against the tolerance

BEHAVIOR: Loc = ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior")
EXACT_UP = "policies: [{type: Pods, value: <maxReplicaCount>, periodSeconds: 15}]"

# What KEDA and the HPA read. Source: scaledobject_types.go of KEDA 2.20, HPAScalingRules of autoscaling/v2.
_RULES = ("policies", "selectPolicy", "stabilizationWindowSeconds", "tolerance")
_KEYS: Mapping[Loc, tuple[str, ...]] = MappingProxyType(
    {
        ("spec",): (
            "advanced",
            "cooldownPeriod",
            "fallback",
            "idleReplicaCount",
            "initialCooldownPeriod",
            "maxReplicaCount",
            "minReplicaCount",
            "pollingInterval",
            "scaleTargetRef",
            "triggers",
        ),
        ("spec", "fallback"): ("behavior", "failureThreshold", "replicas"),
        ("spec", "advanced"): ("horizontalPodAutoscalerConfig", "restoreToOriginalReplicaCount", "scalingModifiers"),
        BEHAVIOR[:-1]: ("behavior", "name"),
        BEHAVIOR: ("scaleDown", "scaleUp"),
        (*BEHAVIOR, "scaleUp"): _RULES,
        (*BEHAVIOR, "scaleDown"): _RULES,
    }
)
_INT32 = 2**31 - 1
_POLLING, _SECONDS, _FAILURES = Whole(1, _INT32), Whole(0, _INT32), Whole(0, _INT32)
_WINDOW, _STEP, _PERIOD = Whole(0, 3600), Whole(1, _INT32), Whole(1, 1800)
_STEP_TYPES, _SELECTS = ("Pods", "Percent"), ("Max", "Min", "Disabled")


def check_scaled_object(document: Document, book: PolicyBook) -> Iterator[Finding]:
    """Find what is wrong with a ScaledObject; nothing for one whose triggers are other people's.

    A trigger is ours when it is external and its address names this scaler, or its metadata has a key of ours, if
    misspelt by a letter or two; and when all but its type says so.
    Never raises for what it reads.
    """
    triggers = at(document.value, "spec", "triggers")
    ours = [index for index, trigger in enumerate(triggers if isinstance(triggers, list) else ()) if _is_ours(trigger)]
    if not ours:
        return
    if len(ours) > 1:
        yield document.finding(("spec", "triggers", ours[1]), "a second trigger of this scaler", "one")
    yield from _check_keys(document)
    yield from _check_target(document)
    yield from _check_trigger(document, ours[0], book)
    yield from _check_others(document, ours)
    most = yield from _check_counts(document, ours[0], book)
    for direction in ("scaleUp", "scaleDown"):
        yield from _check_direction(document, direction, most)
    yield from _check_tolerance(document, most)
    yield from _check_intervals(document)
    yield from _check_fallback(document)


def _is_ours(trigger: object) -> bool:
    stated = mapping(at(trigger, "metadata"))
    named = "vllm-autoscaler" in str(stated.get("scalerAddress", ""))
    if at(trigger, "type") not in (PUSH, POLL):
        return named or (POLICY in stated and "scalerAddress" in stated)
    return named or any(map(_is_key_of_ours, map(str, stated)))


def _is_key_of_ours(key: str) -> bool:
    return ("." in key and key in OVERRIDES) or bool(get_close_matches(key[:100], [POLICY], cutoff=0.8))


def _check_keys(document: Document) -> Iterator[Finding]:
    """Find keys that KEDA passes over. One that is like none it knows may be of a newer KEDA, so that is a warning."""
    for place, known in _KEYS.items():
        for key in mapping(at(document.value, *place)):
            if key not in known:
                tell = document.finding if get_close_matches(key[:100], known, n=1) else document.warning
                yield tell((*place, key), "unknown key", one_of(known, key))


def _read_whole(
    document: Document, place: Loc, kind: Whole, absent: int | None = None
) -> Generator[Finding, None, int | None]:
    """Read a whole number, told and None where it is none.

    absent: what it means to leave it out; None: it is required.
    """
    value = at(document.value, *place)
    if value is None:
        if absent is None:
            yield document.finding(place, "missing", kind.allowed)
        return absent
    try:
        return kind.read(value)
    except ValueError as error:
        yield document.finding(place, str(error), kind.allowed)
        return None


def _check_intervals(document: Document) -> Iterator[Finding]:
    yield from _read_whole(document, ("spec", "pollingInterval"), _POLLING, 30)
    yield from _read_whole(document, ("spec", "cooldownPeriod"), _SECONDS, 300)
    yield from _read_whole(document, ("spec", "initialCooldownPeriod"), _SECONDS, 0)


def _check_fallback(document: Document) -> Iterator[Finding]:
    place: Loc = ("spec", "fallback")
    if at(document.value, *place) is None:
        return
    yield from _read_whole(document, (*place, "failureThreshold"), _FAILURES)
    replicas = yield from _read_whole(document, (*place, "replicas"), LEAST)
    if replicas == 0:
        problem = "takes the workload to zero when the scaler cannot be reached"
        yield document.warning((*place, "replicas"), problem, "at least 1, or no fallback")


def _check_target(document: Document) -> Iterator[Finding]:
    place: Loc = ("spec", "scaleTargetRef")
    stated = at(document.value, *place, "apiVersion")
    kind, api_version = with_defaults(at(document.value, *place, "kind"), stated)
    if kind not in tuple(TARGETS):
        yield document.finding((*place, "kind"), "cannot be scaled", one_of(TARGETS, str(kind)))
    elif not is_target(kind, api_version):
        problem = f"has no {kind}" if api_version == stated else f"absent, which means {api_version}"
        yield document.finding((*place, "apiVersion"), problem, TARGETS[kind])
    if not at(document.value, *place, "name"):
        yield document.finding((*place, "name"), "missing", "the target's name")


def _check_trigger(document: Document, index: int, book: PolicyBook) -> Iterator[Finding]:
    place: Loc = ("spec", "triggers", index)
    stated_type = at(document.value, *place, "type")
    if stated_type not in (PUSH, POLL):
        yield document.finding((*place, "type"), "unknown type", one_of((PUSH, POLL), str(stated_type)))
    if stated_type == POLL:
        problem = "is only polled, so that waking from zero waits for the next poll"
        yield document.warning((*place, "type"), problem, PUSH)
    if at(document.value, *place, "metricType") not in (None, "AverageValue"):
        problem = "multiplies by ready pods, so that the count drifts while replicas start"
        yield document.finding((*place, "metricType"), problem, "AverageValue")
    if at(document.value, *place, "useCachedMetrics") is True:
        problem = "gives the HPA the value of the last poll"
        yield document.warning((*place, "useCachedMetrics"), problem, "false")
    stated = mapping(at(document.value, *place, "metadata"))
    texts = {key: value for key, value in stated.items() if isinstance(value, str)}
    for key in stated.keys() - texts.keys():
        finding = document.finding((*place, "metadata", key), "not text, which KEDA requires", "the value in quotes")
        yield replace(finding, value="")  # it may be a secret
    for key, problem in metadata.problems(texts, book).items():
        if key in texts or key not in stated:
            words, _, allowed = problem.partition("; allowed: ")
            yield replace(document.finding((*place, "metadata", key), words, allowed), value="")
    yield from _check_address(document, (*place, "metadata", "scalerAddress"))


def _check_address(document: Document, place: Loc) -> Iterator[Finding]:
    """Find addresses under which KEDA's gRPC client reaches nobody, so that no answer could tell of them."""
    address = at(document.value, *place)
    if not isinstance(address, str):
        return
    if address.startswith(("http://", "https://")):
        yield document.finding(place, "a URL", "host:port")
    elif not re.search(r":\d+$", address):
        yield document.warning(place, "no port number; without one KEDA would dial 443", "host:port")


def _check_others(document: Document, ours: list[int]) -> Iterator[Finding]:
    triggers = at(document.value, "spec", "triggers")
    for index in range(len(triggers) if isinstance(triggers, list) else 0):
        if index not in ours:
            problem = "beside ours; the HPA takes the larger of both answers"
            yield document.warning(("spec", "triggers", index), problem, "our trigger alone")
    if at(document.value, "spec", "advanced", "scalingModifiers"):
        problem = "puts a formula in the place of the daemon's answer"
        yield document.warning(("spec", "advanced", "scalingModifiers"), problem, "none")


def _check_counts(document: Document, index: int, book: PolicyBook) -> Generator[Finding, None, int]:
    """Compare the ScaledObject's bounds with the policy's; return its maximum."""
    least = yield from _read_whole(document, ("spec", "minReplicaCount"), LEAST, DEFAULT_MIN)
    most = yield from _read_whole(document, ("spec", "maxReplicaCount"), MOST, DEFAULT_MAX)
    if least is not None:
        yield from _check_idle(document, least)
    if least is None or most is None:  # the others would be compared with what is not meant
        return DEFAULT_MAX if most is None else most
    if least > most:
        yield document.finding(("spec", "minReplicaCount"), "above maxReplicaCount", f"at most {most}")
        return most
    policy = _policy(mapping(at(document.value, "spec", "triggers", index, "metadata")), book)
    if policy and policy.replicas.max > most:
        problem = f"below replicas.max of the policy, which is {policy.replicas.max}"
        if policy.replicas.min > most:
            problem = f"below replicas.min of the policy, which is {policy.replicas.min}, so that {most} will hold"
        yield document.warning(("spec", "maxReplicaCount"), problem, f"at least {policy.replicas.max}")
    if policy and policy.replicas.max < least:
        problem = f"above replicas.max of the policy, which is {policy.replicas.max}, so that {least} will hold"
        yield document.warning(("spec", "minReplicaCount"), problem, f"at most {policy.replicas.max}")
    if policy and policy.scale_to_zero.enabled and least > 0:
        problem = "keeps the workload above zero, where its policy allows zero"
        yield document.warning(("spec", "minReplicaCount"), problem, "0, or scaleToZero.enabled: false")
    return most


def _check_idle(document: Document, least: int) -> Iterator[Finding]:
    """Hold the idle count against the minimum as KEDA does, for which a stated minimum of 0 counts as 1."""
    place: Loc = ("spec", "idleReplicaCount")
    if at(document.value, *place) is None:
        return
    idle = yield from _read_whole(document, place, LEAST)
    floor = 0 if at(document.value, "spec", "minReplicaCount") is None else max(1, least)
    if idle is not None and idle >= floor:
        allowed = f"at most {floor - 1}" if floor else "a minReplicaCount above it"
        yield document.finding(place, "not below minReplicaCount", allowed)


def _policy(stated: dict[str, object], book: PolicyBook) -> PolicySpec | None:
    """Return the policy of a trigger with its overrides; None where they are wrong, which is told elsewhere."""
    texts = {key: value for key, value in stated.items() if isinstance(value, str)}
    if metadata.problems(texts, book):
        return None
    return override(book.policies[texts[POLICY]], metadata.overrides(texts)).spec


def _check_direction(document: Document, direction: str, most: int) -> Iterator[Finding]:
    """Find what keeps the HPA from going where it is told, at once."""
    place: Loc = (*BEHAVIOR, direction)
    rules = mapping(at(document.value, *place))
    select = rules.get("selectPolicy")
    if select == "Disabled":
        yield document.warning((*place, "selectPolicy"), "the HPA never moves this way", "Max")
    elif select is not None and select not in _SELECTS:
        yield document.finding((*place, "selectPolicy"), "unknown", one_of(_SELECTS, str(select)))
    window_place = (*place, "stabilizationWindowSeconds")
    window = yield from _read_whole(document, window_place, _WINDOW, 0 if direction == "scaleUp" else 300)
    if window:
        problem = "the HPA waits on top of the policy's own stabilization"
        if rules.get("stabilizationWindowSeconds") is None:
            problem = f"absent, which means 300: {problem}"
        yield document.warning(window_place, problem, "0")
    if not rules.get("policies"):
        if direction == "scaleUp":
            problem = "absent, which means 4 pods or 100% per 15 s"
            yield document.warning((*place, "policies"), problem, EXACT_UP)
        return
    policies = yield from _read_policies(document, (*place, "policies"))
    if policies is None:
        return
    widest = [
        (kind, value)
        for kind, value in policies
        if (value >= most if kind == "Pods" else direction == "scaleDown" and value >= 100)
    ]
    if not widest or (select == "Min" and len(widest) < len(policies)):
        problem = "the HPA goes in steps smaller than the daemon decides"
        allowed = EXACT_UP if direction == "scaleUp" else f"{EXACT_UP}, or 100 Percent"
        found = shown(", ".join(f"{kind} {value}" for kind, value in policies))
        yield replace(document.warning((*place, "policies"), problem, allowed), value=found)


def _read_policies(document: Document, place: Loc) -> Generator[Finding, None, list[tuple[str, int]] | None]:
    """Read the steps that the HPA may take, each (type, value); None where one is wrong, which is told."""
    stated = at(document.value, *place)
    if not isinstance(stated, list):
        yield document.finding(place, "not a list", EXACT_UP)
        return None
    policies: list[tuple[str, int]] = []
    for index in range(len(stated)):
        item = (*place, index)
        kind = at(document.value, *item, "type")
        if kind not in _STEP_TYPES:
            problem = "missing" if kind is None else "unknown"
            yield document.finding((*item, "type"), problem, one_of(_STEP_TYPES, str(kind)))
        value = yield from _read_whole(document, (*item, "value"), _STEP)
        period = yield from _read_whole(document, (*item, "periodSeconds"), _PERIOD)
        if kind in _STEP_TYPES and value is not None and period is not None:
            policies.append((str(kind), value))
    return policies if len(policies) == len(stated) else None


def _check_tolerance(document: Document, most: int) -> Iterator[Finding]:
    tolerances = []
    for direction in ("scaleUp", "scaleDown"):
        place: Loc = (*BEHAVIOR, direction, "tolerance")
        value = at(document.value, *place)
        try:
            tolerances.append(DEFAULT_TOLERANCE if value is None else TOLERANCE.read(value))
        except ValueError as error:
            yield document.finding(place, str(error), TOLERANCE.allowed)
            return
    for direction, steps in zip(("scaleUp", "scaleDown"), _swallowed(Tolerance(*tolerances), most), strict=True):
        if not steps:
            continue
        place = (*BEHAVIOR, direction, "tolerance")
        absent = at(document.value, *place) is None
        first = ", ".join(f"{current} -> {wanted}" for current, wanted in steps[:3])
        problem = f"swallows {len(steps)} step{'' if len(steps) == 1 else 's'} up to maxReplicaCount, the first {first}"
        if absent:
            problem = f"absent, which means {DEFAULT_TOLERANCE}: {problem}"
        yield document.warning(place, problem, '"0" (Kubernetes from 1.35; before, direct mode)')


def _swallowed(tolerance: Tolerance, most: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """List the steps that no value reaches: up, down; each (current, wanted)."""
    counts = range(1, min(most, MAX_REPLICAS_LOOKED_AT) + 1)
    up, down = [], []
    for current in counts:
        # Nearer steps are swallowed first, so each row ends at the first that is seen.
        for wanted in range(current + 1, counts.stop):
            if publish(wanted, current, tolerance).reachable:
                break
            up.append((current, wanted))
        for wanted in range(current - 1, 0, -1):
            if publish(wanted, current, tolerance).reachable:
                break
            down.append((current, wanted))
    return up, down
