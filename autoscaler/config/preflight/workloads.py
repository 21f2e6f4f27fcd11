"""Workloads and autoscalers among the objects, and which belongs to which."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
LLM_SERVICE = "LLMInferenceService"
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
        if self.thing.kind == LLM_SERVICE:
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
        return f"{self.thing.name}-kserve" if self.thing.kind == LLM_SERVICE else self.thing.name

    def pod_pattern(self) -> re.Pattern[str]:
        """Return a pattern that the names of its pods fit."""
        return _pod_pattern(self.thing.kind, self.owner_name)


@lru_cache(maxsize=8192)
def _pod_pattern(kind: str, owner: str) -> re.Pattern[str]:
    name = re.escape(owner)
    if kind == LLM_SERVICE:
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
    if kind == LLM_SERVICE:
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
    if thing.kind == LLM_SERVICE:
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
