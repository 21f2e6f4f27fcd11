"""Validation of ScaledObjects before they are applied: our trigger, and whether the HPA will do what it is told.

For `vllm-autoscaler check`; knows nothing of gRPC. An error keeps the ScaledObject from being served, or from working
as a scaler at all; a warning says where the HPA or KEDA will do something else than the daemon decides.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from difflib import get_close_matches

from autoscaler.adapters.keda import metadata
from autoscaler.adapters.keda.value import DEFAULT_TOLERANCE, Tolerance, publish
from autoscaler.config.document import Document, Loc
from autoscaler.config.findings import Finding, one_of
from autoscaler.config.manifests import TEMPLATES, at, mapping
from autoscaler.config.model import OVERRIDES, PolicySpec
from autoscaler.config.policy import PolicyBook
from autoscaler.config.scaledobject import DEFAULT_MAX, DEFAULT_MIN, LEAST, MOST, POLICY, POLL, PUSH, TOLERANCE
from autoscaler.config.specs import override

MAX_REPLICAS_LOOKED_AT = 500  # counts whose steps are tried against the tolerance

BEHAVIOR: Loc = ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior")
EXACT_UP = "policies: [{type: Pods, value: <maxReplicaCount>, periodSeconds: 15}]"


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
    yield from _check_target(document)
    yield from _check_trigger(document, ours[0], book)
    yield from _check_others(document, ours)
    most = yield from _check_counts(document, ours[0], book)
    for direction in ("scaleUp", "scaleDown"):
        yield from _check_direction(document, direction, most)
    yield from _check_tolerance(document, most)
    if at(document.value, "spec", "fallback", "replicas") == 0:
        problem = "takes the workload to zero when the scaler cannot be reached"
        yield document.warning(("spec", "fallback", "replicas"), problem, "at least 1, or no fallback")


def _is_ours(trigger: object) -> bool:
    stated = mapping(at(trigger, "metadata"))
    named = "vllm-autoscaler" in str(stated.get("scalerAddress", ""))
    if at(trigger, "type") not in (PUSH, POLL):
        return named or (POLICY in stated and "scalerAddress" in stated)
    return named or any(map(_is_key_of_ours, map(str, stated)))


def _is_key_of_ours(key: str) -> bool:
    return ("." in key and key in OVERRIDES) or bool(get_close_matches(key[:100], [POLICY], cutoff=0.8))


def _check_target(document: Document) -> Iterator[Finding]:
    place: Loc = ("spec", "scaleTargetRef")
    kind = at(document.value, *place, "kind")
    if kind is not None and kind not in tuple(TEMPLATES):
        yield document.finding((*place, "kind"), "cannot be scaled", one_of(TEMPLATES, str(kind)))
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
    bounds: dict[str, int] = {}
    for key, kind, absent in (("minReplicaCount", LEAST, DEFAULT_MIN), ("maxReplicaCount", MOST, DEFAULT_MAX)):
        value = at(document.value, "spec", key)
        bounds[key] = absent
        try:
            bounds[key] = absent if value is None else kind.read(value)
        except ValueError as error:
            yield document.finding(("spec", key), str(error), kind.allowed)
    least, most = bounds["minReplicaCount"], bounds["maxReplicaCount"]
    if least > most:
        yield document.finding(("spec", "minReplicaCount"), "above maxReplicaCount", f"at most {most}")
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
    if rules.get("selectPolicy") == "Disabled":
        yield document.warning((*place, "selectPolicy"), "the HPA never moves this way", "Max")
    window = rules.get("stabilizationWindowSeconds", 0 if direction == "scaleUp" else 300)
    if window != 0:
        problem = "the HPA waits on top of the policy's own stabilization"
        if "stabilizationWindowSeconds" not in rules:
            problem = f"absent, which means 300: {problem}"
        yield document.warning((*place, "stabilizationWindowSeconds"), problem, "0")
    policies = rules.get("policies")
    if not isinstance(policies, list) or not policies:
        if direction == "scaleUp":
            problem = "absent, which means 4 pods or 100% per 15 s"
            yield document.warning((*place, "policies"), problem, EXACT_UP)
        return
    widest = [
        policy
        for policy in map(mapping, policies)
        if isinstance(value := policy.get("value"), int)
        and ((policy.get("type") == "Pods" and value >= most) or (direction == "scaleDown" and _is_all(policy)))
    ]
    if not widest or (rules.get("selectPolicy") == "Min" and len(widest) < len(policies)):
        problem = "the HPA goes in steps smaller than the daemon decides"
        allowed = EXACT_UP if direction == "scaleUp" else f"{EXACT_UP}, or 100 Percent"
        yield document.warning((*place, "policies"), problem, allowed)


def _is_all(policy: dict[str, object]) -> bool:
    value = policy.get("value")
    return policy.get("type") == "Percent" and isinstance(value, int) and value >= 100


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
