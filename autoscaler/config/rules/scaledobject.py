"""Reads a ScaledObject as a rule.

Source: KEDA 2.21 `apis/keda/v1alpha1/scaledobject_types.go` and `scaledobject_webhook.go`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autoscaler.config.check import scaledobject_fields as fields
from autoscaler.config.check.manifests import at, mapping
from autoscaler.config.findings import Finding, one_of
from autoscaler.config.rules.behavior import read_hpa
from autoscaler.config.rules.formula import Formula, read_formula
from autoscaler.config.rules.names import NAME, NAMESPACE, TARGET, UNNAMED, read_name
from autoscaler.config.rules.rule import Fallback, HpaRule, Keda, LeftOut, Metric, Modifiers, Rule
from autoscaler.config.rules.triggers import read_triggers
from autoscaler.config.values import Integer
from autoscaler.config.yaml import Document, Loc, dotted

KIND = "ScaledObject"
ANNOTATIONS: Loc = ("metadata", "annotations")
BEHAVIORS = ("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower", "scalingModifiers")


def read_scaled_object(document: Document, recorded: Mapping[str, str], findings: list[Finding]) -> Rule | None:
    """Return the rule of a ScaledObject; None if a problem was added to `findings`."""
    value, before = document.value, len(findings)
    faults = (*fields.misspelled(value, fields.KEYS), *fields.field_faults(value))
    findings += [document.finding(fault.place, fault.problem, fault.allowed) for fault in faults]
    findings += _annotation_faults(document)
    target, name = read_name(document, TARGET, findings), read_name(document, NAME, findings, UNNAMED)
    namespace = read_name(document, NAMESPACE, findings, "")
    metrics, left_out = read_triggers(document, namespace, recorded, findings)
    left_out += [
        LeftOut(dotted(place), "unknown", "KEDA has no such field") for place in fields.unread(value, fields.KEYS)
    ]
    fallback = _fallback(document, findings)
    modifiers = _modifiers(document, metrics, [each.place for each in left_out], findings)
    if len(findings) > before:
        return None
    least = fields.integer(value, fields.MIN, fields.LEAST, fields.DEFAULT_MIN) or 0
    most = fields.integer(value, fields.MAX, fields.MOST, fields.DEFAULT_MAX) or fields.DEFAULT_MAX
    annotations = mapping(at(value, *ANNOTATIONS))
    keda = Keda(
        polling_s=_seconds(value, fields.POLLING, fields.DEFAULT_POLLING_S),
        cooldown_s=_seconds(value, fields.COOLDOWN, fields.DEFAULT_COOLDOWN_S),
        initial_cooldown_s=_seconds(value, fields.INITIAL_COOLDOWN, 0),
        least=least,
        idle=fields.integer(value, fields.IDLE, fields.LEAST),
        fallback=fallback,
        modifiers=modifiers,
        paused=fields.is_set(annotations, fields.PAUSED),
        paused_at=_paused_at(annotations),
        paused_in=fields.is_set(annotations, fields.PAUSED_IN),
        paused_out=fields.is_set(annotations, fields.PAUSED_OUT),
        forced=fields.is_set(annotations, fields.FORCED),
    )
    return Rule(
        kind=KIND,
        name=name,
        namespace=namespace,
        target=target,
        place=f"{document.file}:{document.line}",
        metrics=tuple(metrics),
        hpa=_paused(read_hpa(value, fields.BEHAVIOR, max(least, 1), most), keda),
        keda=keda,
        left_out=tuple(left_out),
    )


def _paused(hpa: HpaRule, keda: Keda) -> HpaRule:
    """Return the HPA as KEDA writes it: a paused direction has no policy."""
    if keda.paused_in:
        hpa = replace(hpa, stated=True, down=replace(hpa.down, select="Disabled"))
    return replace(hpa, stated=True, up=replace(hpa.up, select="Disabled")) if keda.paused_out else hpa


def _seconds(value: object, place: Loc, default: int) -> float:
    found = fields.integer(value, place, fields.SECONDS, default)
    return float(default if found is None else found)


def _annotation_faults(document: Document) -> Iterator[Finding]:
    """Yield the problems of KEDA's annotations, which an API server or KEDA would refuse."""
    annotations = mapping(at(document.value, *ANNOTATIONS))
    for name in (fields.PAUSED, fields.PAUSED_AT, fields.PAUSED_IN, fields.PAUSED_OUT, fields.FORCED):
        if name in annotations and not isinstance(annotations[name], str):
            yield document.finding((*ANNOTATIONS, name), "not text, which Kubernetes requires", "the value in quotes")
        elif name == fields.PAUSED_AT and name in annotations and _paused_at(annotations) is None:
            yield document.finding((*ANNOTATIONS, name), "not a count", "a whole number from 0 to 999,999 in quotes")


def _paused_at(annotations: Mapping[str, object]) -> int | None:
    stated = annotations.get(fields.PAUSED_AT)
    text = stated if isinstance(stated, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else None


def _fallback(document: Document, findings: list[Finding]) -> Fallback | None:
    value = document.value
    if not isinstance(at(value, *fields.FALLBACK), dict):
        return None
    behavior = at(value, *fields.FALLBACK, "behavior")
    if behavior not in (None, "", *BEHAVIORS):
        findings.append(document.finding((*fields.FALLBACK, "behavior"), "unknown", one_of(BEHAVIORS, str(behavior))))
        return None
    whole = Integer(0, 2**31 - 1)
    failures, replicas = (
        fields.integer(value, (*fields.FALLBACK, key), whole) for key in ("failureThreshold", "replicas")
    )
    if failures is None or replicas is None:
        return None  # a problem of `field_faults`
    return Fallback(failures, replicas, str(behavior or "static"))


def _modifiers(
    document: Document, metrics: Sequence[Metric], left_out: Sequence[str], findings: list[Finding]
) -> Modifiers | None:
    """Return `scalingModifiers`. A formula that refers to a trigger that is left out cannot be evaluated."""
    place = fields.MODIFIERS
    stated = mapping(at(document.value, *place))
    if not stated:
        return None
    metric_type = stated.get("metricType")
    if metric_type not in (None, "", "AverageValue", "Value"):
        findings.append(document.finding((*place, "metricType"), "unknown", "AverageValue, Value"))
    numbers = {}
    for key, absent in (("target", ""), ("activationTarget", "0")):
        text = stated.get(key, absent)
        try:
            numbers[key] = float(text if isinstance(text, str) else "") if len(str(text)) <= 40 else float("nan")
        except ValueError:
            numbers[key] = float("nan")
    if not 0 < numbers["target"] < 1e12:
        findings.append(document.finding((*place, "target"), "not a number above 0", 'a number in quotes, as "1"'))
    if not abs(numbers["activationTarget"]) < 1e12:
        findings.append(document.finding((*place, "activationTarget"), "not a number", 'a number in quotes, as "0"'))
    formula = _formula(document, metrics, left_out, findings)
    if formula is None:
        return None
    return Modifiers(formula, numbers["target"], numbers["activationTarget"], metric_type != "Value")


def _formula(
    document: Document, metrics: Sequence[Metric], left_out: Sequence[str], findings: list[Finding]
) -> Formula | None:
    place = (*fields.MODIFIERS, "formula")
    text = at(document.value, *place)
    names = [metric.name for metric in metrics if metric.name]
    if not isinstance(text, str) or not text.strip():
        findings.append(document.finding(place, "missing", "an expression over the names of triggers"))
        return None
    try:
        formula = read_formula(text, names)
        formula.check()
    except ValueError as error:
        allowed = "what KEDA's expressions compute from numbers"
        if left_out:
            allowed += f"; left out, and so without a value: {', '.join(left_out)}"
        findings.append(document.finding(place, str(error), allowed))
        return None
    return formula
