"""Reads a HorizontalPodAutoscaler as a rule.

Source: `autoscaling/v2` of Kubernetes 1.36; for names of metrics prometheus-adapter's `docs/config-walkthrough.md`: it
serves gauges under their own names, and counters without `_total`, as rates over five minutes. GKE's adapter for its
Prometheus serves `prometheus.googleapis.com|NAME|gauge` (GoogleCloudPlatform/k8s-stackdriver, `query_builder.go`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from autoscaler.catalog.query_signals import SeriesShape, query_signals
from autoscaler.config.check import scaledobject_fields as fields
from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.findings import Finding
from autoscaler.config.quantities import read_quantity
from autoscaler.config.rules.behavior import read_hpa
from autoscaler.config.rules.names import NAME, NAMESPACE, TARGET, UNNAMED, read_name
from autoscaler.config.rules.query import QueryPart
from autoscaler.config.rules.rule import Closed, LeftOut, Metric, Rule
from autoscaler.config.yaml import Document, Loc, dotted

KIND = "HorizontalPodAutoscaler"
BEHAVIOR: Loc = ("spec", "behavior")
ADAPTER_WINDOW_S = 300.0  # of the rates that prometheus-adapter serves for counters
GKE_WINDOW_S = 60.0  # as its adapter aligns counters
_GKE = re.compile(r"prometheus\.googleapis\.com\|([^|]{1,200})\|[a-z:]{1,20}", re.ASCII)
MAX_METRICS = 64
# Fields of autoscaling/v2, and of v1 the CPU target.
KEYS: Mapping[Loc, tuple[str, ...]] = {
    ("spec",): (
        "behavior",
        "maxReplicas",
        "metrics",
        "minReplicas",
        "scaleTargetRef",
        "targetCPUUtilizationPercentage",
    ),
    BEHAVIOR: ("scaleDown", "scaleUp"),
    (*BEHAVIOR, "scaleUp"): fields.RULES,
    (*BEHAVIOR, "scaleDown"): fields.RULES,
}
_RESOURCES = {"Resource": "resource", "ContainerResource": "containerResource"}
_SOURCES = {"Pods": "pods", "Object": "object", "External": "external"}


def read_autoscaler(document: Document, findings: list[Finding]) -> Rule | None:
    """Return the rule of an HPA; None if a problem was added to `findings`."""
    value, before = document.value, len(findings)
    for place, kind in ((("spec", "minReplicas"), fields.LEAST), (("spec", "maxReplicas"), fields.MOST)):
        required = place[1] == "maxReplicas"
        findings += [
            document.finding(fault.place, fault.problem, fault.allowed)
            for fault in fields.check_integer(value, place, kind, required)
        ]
    faults = [
        fault
        for direction in ("scaleUp", "scaleDown")
        for fault in fields.direction_faults(value, (*BEHAVIOR, direction))
    ]
    faults += fields.misspelled(value, KEYS)
    findings += [document.finding(fault.place, fault.problem, fault.allowed) for fault in faults]
    target, name = read_name(document, TARGET, findings), read_name(document, NAME, findings, UNNAMED)
    namespace = read_name(document, NAMESPACE, findings, "")
    metrics, left_out = _metrics(document, findings)
    left_out += [LeftOut(dotted(place), "unknown", "an HPA has no such field") for place in fields.unread(value, KEYS)]
    least = fields.integer(value, ("spec", "minReplicas"), fields.LEAST, 1)
    most = fields.integer(value, ("spec", "maxReplicas"), fields.MOST)
    if least == 0:
        reason = "needs the feature gate HPAScaleToZero, which is off by default; 1 is taken"
        left_out.append(LeftOut("spec.minReplicas", "0", reason))
    if least is not None and most is not None and least > most:
        findings.append(document.finding(("spec", "minReplicas"), "above maxReplicas", f"at most {most}"))
    if len(findings) > before or most is None:
        return None
    return Rule(
        kind=KIND,
        name=name,
        namespace=namespace,
        target=target,
        place=f"{document.file}:{document.line}",
        metrics=tuple(metrics),
        hpa=read_hpa(value, BEHAVIOR, max(least or 1, 1), most),
        left_out=tuple(left_out),
    )


def _metrics(document: Document, findings: list[Finding]) -> tuple[list[Metric], list[LeftOut]]:
    stated = at(document.value, "spec", "metrics")
    metrics: list[Metric] = []
    left_out: list[LeftOut] = []
    if isinstance(cpu := at(document.value, "spec", "targetCPUUtilizationPercentage"), int):
        left_out.append(LeftOut("spec.targetCPUUtilizationPercentage", "cpu", f"CPU use is not simulated ({cpu} %)"))
    if stated is None:
        if not left_out:
            left_out.append(LeftOut("spec.metrics", "cpu", "absent, which means 80 % of CPU; CPU use is not simulated"))
        return metrics, left_out
    if not isinstance(stated, list) or len(stated) > MAX_METRICS:
        findings.append(document.finding(("spec", "metrics"), "no list", f"a list of at most {MAX_METRICS} metrics"))
        return metrics, left_out
    for index, metric in enumerate(stated):
        place: Loc = ("spec", "metrics", index)
        kind = at(metric, "type")
        if kind in _RESOURCES:
            name = text_at(metric, _RESOURCES[str(kind)], "name") or "resource"
            left_out.append(LeftOut(dotted(place), name[:40], "use of CPU and memory is not simulated"))
        elif kind in _SOURCES:
            for found in _metric(document, place, str(kind), findings):
                metrics += [found] if isinstance(found, Metric) else []
                left_out += [found] if isinstance(found, LeftOut) else []
        else:
            allowed = ", ".join((*_SOURCES, *_RESOURCES))
            findings.append(document.finding((*place, "type"), "missing" if kind is None else "unknown", allowed))
    return metrics, left_out


def _metric(document: Document, place: Loc, kind: str, findings: list[Finding]) -> Iterator[Metric | LeftOut]:
    source: Loc = (*place, _SOURCES[kind])
    name = text_at(document.value, *source, "metric", "name")
    if not name:
        findings.append(document.finding((*source, "metric", "name"), "missing", "the name of a metric"))
        return
    target: Loc = (*source, "target")
    is_average = at(document.value, *target, "averageValue") is not None
    if is_average and at(document.value, *target, "value") is not None:
        findings.append(document.finding((*target, "value"), "given together with averageValue", "one of the two"))
        return
    amount: Loc = (*target, "averageValue" if is_average else "value")
    stated = at(document.value, *amount)
    number = (
        read_quantity(stated) if isinstance(stated, str | int | float) and not isinstance(stated, bool) else math.nan
    )
    if not number >= 0.001:
        problem = "missing" if stated is None else "not a quantity of at least 1m"
        findings.append(document.finding(amount, problem, "a quantity, such as 5 or 500m"))
        return
    if kind == "Pods" and not is_average:
        findings.append(document.finding(amount, "not a target of a Pods metric", "averageValue"))
        return
    node = _meaning(name, kind)
    if node is None:
        yield LeftOut(
            dotted(place), kind, f"{name[:80]!r} is no metric whose meaning is known, and its query is not here"
        )
        return
    yield Metric(dotted(place), Closed(node), number, name, is_average, per_pod=kind == "Pods", ignores_null=False)


def _meaning(name: str, kind: str) -> QueryPart | None:
    """Return what an adapter serves under a name: of each pod for Pods, else summed up."""
    window_s = ADAPTER_WINDOW_S
    if match := _GKE.fullmatch(name):
        name, window_s = match[1], GKE_WINDOW_S
    signal = query_signals().get(name) or query_signals().get(f"{name}_total")
    if signal is None or signal.shape is SeriesShape.HISTOGRAM:
        return None
    node = QueryPart("signal", name, signal=signal)
    if signal.shape in (SeriesShape.POD_COUNTER, SeriesShape.COUNTER):
        node = QueryPart("range", "rate", (node,), window_s=window_s)
    if kind == "Pods":
        return node if signal.shape in (SeriesShape.POD_GAUGE, SeriesShape.POD_COUNTER) else None
    return QueryPart("aggregate", "sum", (node,))
