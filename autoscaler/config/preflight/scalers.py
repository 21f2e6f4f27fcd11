"""Autoscalers among the objects, each with what it follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoscaler.config.check.manifests import at, mapping, text_at
from autoscaler.config.preflight.objects import Manifest, Manifests
from autoscaler.config.preflight.recorded import expanded, recorded
from autoscaler.config.preflight.workloads import INFERENCE_SERVICE, LLM_SERVICE, Target, quantity, whole
from autoscaler.config.yaml import Loc


class _OtherKind(NamedTuple):
    """An autoscaler whose metrics are not read: whose count it writes, and its bounds."""

    group: str  # part of its apiVersion
    target: Loc = ("spec", "scaleTargetRef")
    least: Loc = ("spec", "minReplicas")
    most: Loc = ("spec", "maxReplicas")
    unset_least: int | None = None
    unset_most: int | None = None


_OTHERS: Mapping[str, _OtherKind] = {
    "PodAutoscaler": _OtherKind("aibrix"),
    "HTTPScaledObject": _OtherKind(
        "http.keda.sh",
        least=("spec", "replicas", "min"),
        most=("spec", "replicas", "max"),
        unset_least=0,
        unset_most=100,
    ),
    "WatermarkPodAutoscaler": _OtherKind("datadoghq.com"),
    "DatadogPodAutoscaler": _OtherKind(
        "datadoghq.com",
        ("spec", "targetRef"),
        ("spec", "constraints", "minReplicas"),
        ("spec", "constraints", "maxReplicas"),
        unset_least=1,
    ),
}
_MAKES_NONE = "httpscaledobject.keda.sh/skip-scaledobject-creation"
_MAKERS = (LLM_SERVICE, INFERENCE_SERVICE, "ScaledObject", "HTTPScaledObject", "PodAutoscaler")


@dataclass(frozen=True)
class Trigger:
    """One metric that an autoscaler follows."""

    loc: Loc
    type: str  # of KEDA: "prometheus"; of an HPA: "Pods", "Resource"
    metric_type: str = "AverageValue"
    metadata: Mapping[str, object] = field(default_factory=dict)
    name: str = ""  # of the metric of an HPA
    metadata_loc: Loc = ("metadata",)  # from its place
    expanded: str = ""  # its query with recording rules put in; "": it uses none that is known

    @property
    def query(self) -> str:
        found = self.metadata.get("query")
        return found if isinstance(found, str) else ""

    @property
    def query_loc(self) -> Loc:
        return (*self.loc, *self.metadata_loc, "query")

    def number(self, key: str) -> float:
        return quantity(self.metadata.get(key))


@dataclass(frozen=True)
class Autoscaler:
    """Something that writes the count of a workload."""

    thing: Manifest
    target: Target
    target_loc: Loc
    least: int | None
    most: int | None
    least_loc: Loc
    most_loc: Loc
    base: Loc = ("spec",)  # of what KEDA reads
    triggers: tuple[Trigger, ...] = ()
    keda: bool = True
    idle: int | None = None
    owned: bool = False  # made by another autoscaler of the list

    @property
    def names_target(self) -> bool:
        """Whether it states what it scales, rather than scaling itself."""
        return self.target_loc[-1] in ("scaleTargetRef", "targetRef")

    @property
    def goes_to_zero(self) -> bool:
        return self.least == 0 or self.idle == 0

    def whole(self, *loc: str, default: int | None = None) -> int | None:
        stated = self.thing.at(*self.base, *loc)
        return default if stated is None else whole(stated)


def read_autoscalers(objects: Manifests) -> list[Autoscaler]:
    rules = recorded(objects)
    return [_with_rules(each, rules) if rules else each for each in _read(objects)]


def _with_rules(each: Autoscaler, rules: Mapping[str, str]) -> Autoscaler:
    triggers = (replace(trigger, expanded=expanded(trigger.query, rules)) for trigger in each.triggers)
    return replace(each, triggers=tuple(triggers))


def _read(objects: Manifests) -> list[Autoscaler]:
    found = [*map(_scaled_object, objects.of_kind("ScaledObject"))]
    found += map(_scaled_job, objects.of_kind("ScaledJob"))
    found += map(_hpa, objects.of_kind("HorizontalPodAutoscaler"))
    found += [each for thing in objects.of_kind(LLM_SERVICE) if (each := _kserve(thing)) is not None]
    found += [each for thing in objects.of_kind(INFERENCE_SERVICE) if (each := _predictor(thing)) is not None]
    found += [
        _other(thing, row)
        for kind, row in _OTHERS.items()
        for thing in objects.of_kind(kind)
        if row.group in thing.text("apiVersion") and thing.annotations.get(_MAKES_NONE) != "true"
    ]
    return found


def _reference(thing: Manifest, loc: Loc) -> Target:
    kind = thing.text(*loc, "kind") or "Deployment"
    return kind, thing.namespace, thing.text(*loc, "name")


def _scaled_object(thing: Manifest) -> Autoscaler:
    stated_least = thing.at("spec", "minReplicaCount")
    stated_most = thing.at("spec", "maxReplicaCount")
    return Autoscaler(
        thing,
        _reference(thing, ("spec", "scaleTargetRef")),
        ("spec", "scaleTargetRef"),
        0 if stated_least is None else whole(stated_least),
        100 if stated_most is None else whole(stated_most),
        ("spec", "minReplicaCount"),
        ("spec", "maxReplicaCount"),
        triggers=tuple(_triggers(thing, ("spec", "triggers"))),
        idle=whole(thing.at("spec", "idleReplicaCount")),
        owned=any(kind in _MAKERS for kind, _ in thing.owners()),
    )


def _scaled_job(thing: Manifest) -> Autoscaler:
    least, most = (thing.at("spec", name) for name in ("minReplicaCount", "maxReplicaCount"))
    return Autoscaler(
        thing,
        (thing.kind, thing.namespace, thing.name),
        ("spec", "jobTargetRef"),
        0 if least is None else whole(least),
        100 if most is None else whole(most),
        ("spec", "minReplicaCount"),
        ("spec", "maxReplicaCount"),
        triggers=tuple(_triggers(thing, ("spec", "triggers"))),
    )


def _kserve(thing: Manifest) -> Autoscaler | None:
    """Return the autoscaler that KServe makes of `spec.scaling`; its target is the Deployment that KServe makes."""
    if not thing.map("spec", "scaling"):
        return None
    stated_least, stated_most = (thing.at("spec", "scaling", name) for name in ("minReplicas", "maxReplicas"))
    return Autoscaler(
        thing,
        ("Deployment", thing.namespace, f"{thing.name}-kserve"),
        ("spec", "scaling"),
        1 if stated_least is None else whole(stated_least),
        whole(stated_most),
        ("spec", "scaling", "minReplicas"),
        ("spec", "scaling", "maxReplicas"),
        base=("spec", "scaling", "keda"),
        triggers=tuple(_triggers(thing, ("spec", "scaling", "keda", "triggers"))),
        keda=bool(thing.map("spec", "scaling", "keda")),
    )


def _predictor(thing: Manifest) -> Autoscaler | None:
    """Return the autoscaler that KServe makes of an InferenceService in its standard mode; None: none, or Knative."""
    mode = thing.annotations.get("serving.kserve.io/deploymentMode")
    kind = thing.annotations.get("serving.kserve.io/autoscalerClass", "hpa")
    if mode not in ("RawDeployment", "Standard") or kind not in ("hpa", "keda"):
        return None
    base: Loc = ("spec", "predictor")
    least, most = (whole(thing.at(*base, name)) for name in ("minReplicas", "maxReplicas"))
    least = 1 if least is None else least
    if not most or most <= least:
        return None  # KServe makes one all the same, which changes nothing
    triggers = list(_predictor_triggers(thing, (*base, "autoScaling", "metrics")))
    if not triggers:
        metric = thing.text(*base, "scaleMetric") or "cpu"
        triggers = [Trigger((*base, "scaleMetric"), "Resource", "Utilization", {}, metric)]
    return Autoscaler(
        thing,
        ("Deployment", thing.namespace, f"{thing.name}-predictor"),
        base,
        least,
        most,
        (*base, "minReplicas"),
        (*base, "maxReplicas"),
        base=base,
        triggers=tuple(triggers),
        keda=False,
    )


def _predictor_triggers(thing: Manifest, loc: Loc) -> Iterator[Trigger]:
    for index, each in enumerate(thing.list(*loc)[:64]):
        place = (*loc, index)
        metric = mapping(at(each, "external", "metric"))
        if text_at(each, "type") == "External":
            amounts = {"threshold": at(each, "external", "target", "value")}
            kind = str(metric.get("backend", ""))
            yield Trigger(place, kind, "", {**metric, **amounts}, metadata_loc=("external", "metric"))
        elif text_at(each, "type") == "Resource":
            yield Trigger(place, "Resource", "Utilization", {}, text_at(each, "resource", "name"))


def _triggers(thing: Manifest, loc: Loc) -> Iterator[Trigger]:
    for index, each in enumerate(thing.list(*loc)[:64]):
        metadata = mapping(at(each, "metadata"))
        kind = text_at(each, "metricType") or "AverageValue"
        yield Trigger((*loc, index), text_at(each, "type"), kind, metadata, text_at(each, "name"))


def _hpa(thing: Manifest) -> Autoscaler:
    stated_least = thing.at("spec", "minReplicas")
    part = thing.labels.get("app.kubernetes.io/managed-by") == "keda-operator"
    owned = part or any(kind in _MAKERS for kind, _ in thing.owners())
    triggers = []
    for index, each in enumerate(thing.list("spec", "metrics")[:64]):
        kind = text_at(each, "type")
        inner = at(each, kind[:1].lower() + kind[1:])
        name = text_at(inner, "metric", "name") or text_at(inner, "name")
        metric_type = text_at(inner, "target", "type")
        target = {**mapping(at(inner, "target")), "containerName": at(inner, "container")}  # as KEDA calls it
        triggers.append(Trigger(("spec", "metrics", index), kind, metric_type, target, name))
    if thing.at("spec", "targetCPUUtilizationPercentage") is not None:
        triggers.append(Trigger(("spec", "targetCPUUtilizationPercentage"), "Resource", "Utilization", {}, "cpu"))
    return Autoscaler(
        thing,
        _reference(thing, ("spec", "scaleTargetRef")),
        ("spec", "scaleTargetRef"),
        1 if stated_least is None else whole(stated_least),
        whole(thing.at("spec", "maxReplicas")),
        ("spec", "minReplicas"),
        ("spec", "maxReplicas"),
        triggers=tuple(triggers),
        keda=False,
        owned=owned,
    )


def _other(thing: Manifest, row: _OtherKind) -> Autoscaler:
    least, most = thing.at(*row.least), thing.at(*row.most)
    return Autoscaler(
        thing,
        _reference(thing, row.target),
        row.target,
        row.unset_least if least is None else whole(least),
        row.unset_most if most is None else whole(most),
        row.least,
        row.most,
        keda=False,
    )
