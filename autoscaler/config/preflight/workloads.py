"""Workloads and autoscalers among the objects, and which belongs to which."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.catalog.scale_targets import BY_KIND
from autoscaler.config.annotations import PREFIX
from autoscaler.config.check.manifests import at, items, mapping, text_at
from autoscaler.config.preflight.command import (
    EXTRA_ARGS,
    Command,
    EngineOption,
    of_keywords,
    of_words,
    read_command,
    requests_device,
)
from autoscaler.config.preflight.objects import Manifest, Manifests
from autoscaler.config.yaml import Loc, read_documents

MAX_COUNT = 100_000
MAX_AMOUNT = 1e18
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?|\.\d{1,9})(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|e\d{1,2}|E\d{1,2})?")
_UNITS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_LLM_SERVICE = "LLMInferenceService"
_BATCH_CLASSES = ("batch", "development")

Target = tuple[str, str, str]  # kind, namespace, name


def quantity(value: object) -> float:
    """Return a quantity of Kubernetes; NaN: it is none."""
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, int | float):
        return float(value) if abs(value) <= MAX_AMOUNT else math.nan  # NaN compares as false
    matched = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if matched is None:
        return math.nan
    unit = matched[2] or ""
    factor = 10.0 ** min(int(unit[1:]), 30) if unit[:1] in "eE" and unit[1:].isdigit() else _UNITS.get(unit, math.nan)
    amount = float(matched[1]) * factor
    return amount if amount <= MAX_AMOUNT else math.nan


def whole(value: object) -> int | None:
    """Return a count; None: it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


@dataclass(frozen=True)
class EnginePod:
    """One pod template of a workload."""

    thing: Manifest
    template: Loc  # of labels and annotations; the same as `spec` where there are none
    spec: Loc
    container: Loc  # that of the engine, else the first that requests an accelerator, else the first
    command: Command | None  # None: it starts no vLLM
    operator: str = ""  # which completes the template, so that what is missing may be added
    count: int = 1  # pods of a replica

    def at(self, *loc: str | int) -> object:
        return self.thing.at(*self.spec, *loc)

    def of_container(self, *loc: str | int) -> object:
        return self.thing.at(*self.container, *loc)

    def need(self, resource: str) -> float:
        """Return what the pod requests of a resource: the sum of its containers."""
        total = 0.0
        containers = self.at("containers")
        for each in containers if isinstance(containers, list) else []:
            requests, limits = (mapping(at(each, "resources", part)) for part in ("requests", "limits"))
            stated = requests.get(resource, limits.get(resource))
            amount = quantity(stated) if stated is not None else 0.0
            total += 0.0 if math.isnan(amount) else amount
        return total

    @property
    def devices(self) -> Mapping[str, float]:
        """Accelerators of the pod by resource."""
        names: dict[str, float] = {}
        containers = self.at("containers")
        for each in containers if isinstance(containers, list) else []:
            for part in ("limits", "requests"):
                for name in mapping(at(each, "resources", part)):
                    if is_accelerator(name):
                        names[name] = self.need(name)
        return {name: amount for name, amount in names.items() if amount > 0}

    @property
    def labels(self) -> dict[str, str]:
        return self.thing.texts(*self.template, "metadata", "labels") if self.template != self.spec else {}

    @property
    def annotations(self) -> dict[str, str]:
        return self.thing.texts(*self.template, "metadata", "annotations") if self.template != self.spec else {}

    @property
    def node_selector(self) -> dict[str, str]:
        return self.thing.texts(*self.spec, "nodeSelector")


@dataclass(frozen=True)
class ModelWorkload:
    """Something that serves a model."""

    thing: Manifest
    pods: tuple[EnginePod, ...]
    replicas: int | None = None  # as stated
    replicas_loc: Loc = ("spec", "replicas")
    policy: str = ""  # name of the policy; "": none is stated

    @property
    def target(self) -> Target:
        return self.thing.kind, self.thing.namespace, self.thing.name

    @property
    def pod(self) -> EnginePod:
        return self.pods[0]

    @property
    def command(self) -> Command | None:
        return self.pods[0].command

    @property
    def model_label(self) -> str:
        """The value of model_name that its engine reports; "": unknown."""
        if self.thing.kind == _LLM_SERVICE:
            return self.thing.text("spec", "model", "name") or self.thing.name
        command = self.command
        return command.model_label if command is not None and command.understood else ""

    @property
    def slots(self) -> float | None:
        """Requests that a replica runs at most; None: its command line does not say."""
        most = self.command.number("max-num-seqs") if self.command is not None else None
        return (
            most * self.command.whole("data-parallel-size") if most is not None and self.command is not None else None
        )

    @property
    def is_batch(self) -> bool:
        return self.policy in _BATCH_CLASSES

    @property
    def needs_devices(self) -> bool:
        return any(pod.devices for pod in self.pods)

    @property
    def owner_name(self) -> str:
        """The beginning of the names of its pods."""
        return f"{self.thing.name}-kserve" if self.thing.kind == _LLM_SERVICE else self.thing.name

    def pod_pattern(self) -> re.Pattern[str]:
        """Return a pattern that the names of its pods fit."""
        return _pod_pattern(self.thing.kind, self.owner_name)


@lru_cache(maxsize=8192)
def _pod_pattern(kind: str, owner: str) -> re.Pattern[str]:
    name = re.escape(owner)
    if kind == _LLM_SERVICE:
        return re.compile(rf"{name}(-[a-z0-9]+){{1,3}}")
    if kind in ("StatefulSet", "LeaderWorkerSet"):
        return re.compile(rf"{name}(-\d+)+")
    if kind in ("RayService", "RayCluster"):
        return re.compile(rf"{name}-.*")
    return re.compile(rf"{name}-[a-z0-9]{{1,10}}-[a-z0-9]{{5}}")


def read_workloads(objects: Manifests) -> list[ModelWorkload]:
    """Return the workloads that request an accelerator or start vLLM."""
    found = []
    for thing in objects.all:
        if thing.kind in ("ReplicaSet", "Pod") or any(kind == "ReplicaSet" for kind, _ in thing.owners()):
            continue
        pods = tuple(_pods(thing))
        if not pods or not any(pod.devices or pod.command is not None for pod in pods):
            continue
        row = BY_KIND.get(thing.kind)
        place: Loc = row.replicas if row is not None else ("spec", "replicas")
        policy = thing.annotations.get(f"{PREFIX}policy", "")
        # The pod of an engine comes first: that of a leader, not of a router beside it.
        ordered = tuple(sorted(pods, key=lambda pod: (pod.command is None, not pod.devices)))
        found.append(ModelWorkload(thing, ordered, whole(thing.at(*place)), place, policy))
    return found


def _pods(thing: Manifest) -> Iterator[EnginePod]:
    kind = thing.kind
    if kind == _LLM_SERVICE:
        yield from _pod(thing, ("spec", "template"), ("spec", "template"), "KServe")
        return
    if kind in ("RayService", "RayCluster"):
        base: Loc = ("spec", "rayClusterConfig") if kind == "RayService" else ("spec",)
        groups = thing.at(*base, "workerGroupSpecs")
        for index in range(len(groups) if isinstance(groups, list) else 0):
            template: Loc = (*base, "workerGroupSpecs", index, "template")
            for pod in _pod(thing, template, (*template, "spec"), "KubeRay"):
                served = _of_ray_serve(thing) if index == 0 and pod.command is None else None
                yield pod if served is None else replace(pod, command=served)
        return
    row = BY_KIND.get(kind)
    for part in row.pods if row is not None else ():
        for place in items(thing.value, part.place):
            for pod in _pod(thing, place, place if part.bare else (*place, "spec"), ""):
                yield replace(pod, count=_in_group(thing, place)) if kind == "LeaderWorkerSet" else pod


def _in_group(thing: Manifest, template: Loc) -> int:
    """Return how many pods of a group a template of a LeaderWorkerSet makes."""
    size = whole(thing.at("spec", "leaderWorkerTemplate", "size")) or 1
    if template[-1] == "leaderTemplate":
        return 1
    return max(1, size - 1) if thing.map("spec", "leaderWorkerTemplate", "leaderTemplate") else size


def _of_ray_serve(thing: Manifest) -> Command | None:
    """Return the options of the engine of a RayService's one LLM; None: there is none, or several."""
    text = thing.text("spec", "serveConfigV2")
    listed = [
        config
        for document in (read_documents("", text)[0] if text else ())
        for application in _list(at(document.value, "applications"))
        for config in _list(at(application, "args", "llm_configs"))
    ]
    if len(listed) != 1:
        return None
    model = text_at(listed[0], "model_loading_config", "model_source")
    return of_keywords(mapping(at(listed[0], "engine_kwargs")), model, ("spec", "serveConfigV2"))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _pod(thing: Manifest, template: Loc, spec: Loc, operator: str) -> Iterator[EnginePod]:
    containers = thing.at(*spec, "containers")
    if not isinstance(containers, list) or not containers:
        return
    places: list[Loc] = [(*spec, "containers", index) for index in range(min(len(containers), 32))]
    commands = {place: read_command(thing.at(*place), place) for place in places}
    chosen = next((place for place in places if commands[place] is not None), None)
    if chosen is None:
        chosen = next((place for place in places if requests_device(thing.at(*place))), places[0])
    command = commands[chosen]
    if thing.kind == _LLM_SERVICE:
        command = _of_kserve(thing, chosen, command)
    yield EnginePod(thing, template, spec, chosen, command, operator)


def _of_kserve(thing: Manifest, container: Loc, command: Command | None) -> Command:
    """Return the options that an LLMInferenceService states: those of its variables and its parallelism."""
    options: dict[str, EngineOption] = dict(command.options) if command is not None else {}
    variables = thing.at(*container, "env")
    for index, each in enumerate(variables if isinstance(variables, list) else []):
        if text_at(each, "name") in EXTRA_ARGS:
            options |= of_words(text_at(each, "value"), (*container, "env", index, "value"))
    for name, option in (("tensor", "tensor-parallel-size"), ("pipeline", "pipeline-parallel-size")):
        size = whole(thing.at("spec", "parallelism", name))
        if size:
            options.setdefault(option, EngineOption(str(size), ("spec", "parallelism", name)))
    uri = thing.text("spec", "model", "uri")
    model = uri.removeprefix("hf://") if uri.startswith("hf://") else ""
    return Command(options, model, ("spec", "model", "uri"), args_loc=(*container, "env"), understood=False)


@dataclass(frozen=True)
class Trigger:
    """One metric that an autoscaler follows."""

    loc: Loc
    type: str  # of KEDA: "prometheus"; of an HPA: "Pods", "Resource"
    metric_type: str = "AverageValue"
    metadata: Mapping[str, object] = field(default_factory=dict)
    name: str = ""  # of the metric of an HPA

    @property
    def query(self) -> str:
        found = self.metadata.get("query")
        return found if isinstance(found, str) else ""

    @property
    def query_loc(self) -> Loc:
        return (*self.loc, "metadata", "query")

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
    def goes_to_zero(self) -> bool:
        return self.least == 0 or self.idle == 0

    def whole(self, *loc: str, default: int | None = None) -> int | None:
        stated = self.thing.at(*self.base, *loc)
        return default if stated is None else whole(stated)


def read_autoscalers(objects: Manifests) -> list[Autoscaler]:
    found = [*map(_scaled_object, objects.of_kind("ScaledObject"))]
    found += map(_hpa, objects.of_kind("HorizontalPodAutoscaler"))
    found += [each for thing in objects.of_kind(_LLM_SERVICE) if (each := _kserve(thing)) is not None]
    found += map(_aibrix, [each for each in objects.of_kind("PodAutoscaler") if "aibrix" in each.text("apiVersion")])
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
        owned=any(kind in (_LLM_SERVICE, "InferenceService") for kind, _ in thing.owners()),
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


def _triggers(thing: Manifest, loc: Loc) -> Iterator[Trigger]:
    for index, each in enumerate(thing.list(*loc)[:64]):
        metadata = mapping(at(each, "metadata"))
        kind = text_at(each, "metricType") or "AverageValue"
        yield Trigger((*loc, index), text_at(each, "type"), kind, metadata, text_at(each, "name"))


def _hpa(thing: Manifest) -> Autoscaler:
    stated_least = thing.at("spec", "minReplicas")
    part = thing.labels.get("app.kubernetes.io/managed-by") == "keda-operator"
    owned = part or any(
        kind in ("ScaledObject", _LLM_SERVICE, "InferenceService", "PodAutoscaler") for kind, _ in thing.owners()
    )
    triggers = []
    for index, each in enumerate(thing.list("spec", "metrics")[:64]):
        kind = text_at(each, "type")
        inner = at(each, kind[:1].lower() + kind[1:])
        name = text_at(inner, "metric", "name") or text_at(inner, "name")
        metric_type = text_at(inner, "target", "type")
        target = mapping(at(inner, "target"))
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


def _aibrix(thing: Manifest) -> Autoscaler:
    return Autoscaler(
        thing,
        _reference(thing, ("spec", "scaleTargetRef")),
        ("spec", "scaleTargetRef"),
        whole(thing.at("spec", "minReplicas")),
        whole(thing.at("spec", "maxReplicas")),
        ("spec", "minReplicas"),
        ("spec", "maxReplicas"),
        keda=False,
    )


@dataclass(frozen=True)
class Scene:
    """Workloads, their autoscalers, and everything else."""

    objects: Manifests
    workloads: tuple[ModelWorkload, ...]
    autoscalers: tuple[Autoscaler, ...]
    _by_target: Mapping[Target, list[Autoscaler]] = field(default_factory=dict)
    _workload_by_target: Mapping[Target, ModelWorkload] = field(default_factory=dict)
    _in_namespace: Mapping[str, list[ModelWorkload]] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Manifests) -> Scene:
        workloads, autoscalers = read_workloads(objects), read_autoscalers(objects)
        by_target: dict[Target, list[Autoscaler]] = {}
        for each in autoscalers:
            by_target.setdefault(each.target, []).append(each)
        by_workload: dict[Target, ModelWorkload] = {}
        in_namespace: dict[str, list[ModelWorkload]] = {}
        for workload in workloads:
            by_workload[workload.target] = workload
            if workload.thing.kind == _LLM_SERVICE:
                by_workload["Deployment", workload.thing.namespace, f"{workload.thing.name}-kserve"] = workload
            in_namespace.setdefault(workload.thing.namespace, []).append(workload)
        return cls(objects, tuple(workloads), tuple(autoscalers), by_target, by_workload, in_namespace)

    def workload(self, autoscaler: Autoscaler) -> ModelWorkload | None:
        return self._workload_by_target.get(autoscaler.target)

    def in_namespace(self, namespace: str) -> list[ModelWorkload]:
        return self._in_namespace.get(namespace, [])

    def of_target(self, target: Target) -> list[Autoscaler]:
        """Return the autoscalers of a target; those that another one makes are left out."""
        return [each for each in self._by_target.get(target, ()) if not each.owned]

    def of_workload(self, workload: ModelWorkload) -> list[Autoscaler]:
        own = self.of_target(workload.target)
        if workload.thing.kind == _LLM_SERVICE:
            own = [*own, *self.of_target(("Deployment", workload.thing.namespace, f"{workload.thing.name}-kserve"))]
        return own

    def most(self, workload: ModelWorkload) -> tuple[int, Manifest, Loc]:
        """Return the largest count of a workload, and where it is stated."""
        stated = [
            (each.most, each.thing, each.most_loc) for each in self.of_workload(workload) if each.most is not None
        ]
        if stated:
            return max(stated, key=lambda each: each[0])
        written = workload.thing.annotations.get(f"{PREFIX}max-replicas", "")
        if written.isascii() and written.isdigit() and len(written) < 6:
            return int(written), workload.thing, ("metadata", "annotations", f"{PREFIX}max-replicas")
        return 1 if workload.replicas is None else workload.replicas, workload.thing, workload.replicas_loc

    def least(self, workload: ModelWorkload) -> int:
        """Return the smallest count of a workload."""
        stated = [each.least for each in self.of_workload(workload) if each.least is not None]
        if stated:
            return min(stated)
        return 1 if workload.replicas is None else workload.replicas

    def is_autoscaled(self, workload: ModelWorkload) -> bool:
        return bool(self.of_workload(workload))
