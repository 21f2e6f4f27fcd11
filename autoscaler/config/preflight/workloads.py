"""Workloads and autoscalers among the objects, and which belongs to which."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

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
from autoscaler.config.preflight.mounted import PodInputs
from autoscaler.config.preflight.objects import Manifest, Manifests
from autoscaler.config.yaml import Loc, read_documents

MAX_COUNT = 100_000
MAX_MODELS = 32  # of a RayService
MAX_AMOUNT = 1e18
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?|\.\d{1,9})(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|e\d{1,2}|E\d{1,2})?")
_UNITS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
KSERVE = "KServe"
LLM_SERVICE, INFERENCE_SERVICE = "LLMInferenceService", "InferenceService"
_MADE_BY_KSERVE = {LLM_SERVICE: "kserve", INFERENCE_SERVICE: "predictor"}  # ends the name of the Deployment
_JOBS: Mapping[str, Loc] = {
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "ScaledJob": ("spec", "jobTargetRef", "template"),
}
_TEMPLATES: Mapping[str, Loc] = {"DaemonSet": ("spec", "template"), **_JOBS}  # of kinds that nothing scales
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

    @property
    def containers(self) -> list[object]:
        listed = self.at("containers")
        return listed if isinstance(listed, list) else [self.of_container()]

    def need(self, resource: str) -> float:
        """Return what the pod requests of a resource: the sum of its containers."""
        return self.needs.get(resource, 0.0)

    @cached_property
    def needs(self) -> Mapping[str, float]:
        """Requests of the pod, by resource."""
        total: dict[str, float] = {}
        for each in self.containers:
            stated = {**mapping(at(each, "resources", "limits")), **mapping(at(each, "resources", "requests"))}
            for name, value in stated.items():
                amount = quantity(value)
                total[name] = total.get(name, 0.0) + (0.0 if math.isnan(amount) else amount)
        return total

    @cached_property
    def devices(self) -> Mapping[str, float]:
        """Accelerators of the pod by resource."""
        return {name: amount for name, amount in self.needs.items() if amount > 0 and is_accelerator(name)}

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
        """The target of an autoscaler: the object itself, or the Deployment that KServe makes of it."""
        kind = "Deployment" if self.thing.kind in _MADE_BY_KSERVE else self.thing.kind
        return kind, self.thing.namespace, self.owner_name

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
    def is_job(self) -> bool:
        """Whether its pods end by themselves."""
        return self.thing.kind in _JOBS

    @property
    def is_batch(self) -> bool:
        return self.is_job or self.policy in _BATCH_CLASSES

    @property
    def needs_devices(self) -> bool:
        return any(pod.devices for pod in self.pods)

    @property
    def owner_name(self) -> str:
        """The beginning of the names of its pods."""
        end = _MADE_BY_KSERVE.get(self.thing.kind)
        return f"{self.thing.name}-{end}" if end else self.thing.name

    def pod_pattern(self) -> re.Pattern[str]:
        """Return a pattern that the names of its pods fit."""
        return _pod_pattern(self.thing.kind, self.owner_name)


@lru_cache(maxsize=8192)
def _pod_pattern(kind: str, owner: str) -> re.Pattern[str]:
    name = re.escape(owner)
    if kind in _MADE_BY_KSERVE:
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
        pods = tuple(_pods(objects, thing))
        if not pods or not any(pod.devices or pod.command is not None for pod in pods):
            continue
        row = BY_KIND.get(thing.kind)
        place: Loc = row.replicas if row is not None else ("spec", "replicas")
        policy = thing.annotations.get(f"{PREFIX}policy", "")
        # The pod of an engine comes first: that of a leader, not of a router beside it.
        ordered = tuple(sorted(pods, key=lambda pod: (pod.command is None, not pod.devices)))
        found.append(ModelWorkload(thing, ordered, whole(thing.at(*place)), place, policy))
    return found


def _pods(objects: Manifests, thing: Manifest) -> Iterator[EnginePod]:
    kind = thing.kind
    if kind == LLM_SERVICE:
        yield from _pod(objects, thing, ("spec", "template"), ("spec", "template"), KSERVE)
        return
    if kind == INFERENCE_SERVICE:
        yield from _predictor(objects, thing)
        return
    if kind in ("RayService", "RayCluster"):
        base: Loc = ("spec", "rayClusterConfig") if kind == "RayService" else ("spec",)
        groups = thing.at(*base, "workerGroupSpecs")
        for index in range(len(groups) if isinstance(groups, list) else 0):
            template: Loc = (*base, "workerGroupSpecs", index, "template")
            for pod in _pod(objects, thing, template, (*template, "spec"), "KubeRay"):
                served = _of_ray_serve(thing) if index == 0 and pod.command is None else []
                # Each engine runs in workers of the group, which are counted once.
                yield from [replace(pod, command=each, count=int(n == 0)) for n, each in enumerate(served)] or [pod]
        return
    if kind in _TEMPLATES:
        yield from _pod(objects, thing, _TEMPLATES[kind], (*_TEMPLATES[kind], "spec"), "")
        return
    row = BY_KIND.get(kind)
    for part in row.pods if row is not None else ():
        for place in items(thing.value, part.place):
            for pod in _pod(objects, thing, place, place if part.bare else (*place, "spec"), ""):
                yield replace(pod, count=_in_group(thing, place)) if kind == "LeaderWorkerSet" else pod


def _in_group(thing: Manifest, template: Loc) -> int:
    """Return how many pods of a group a template of a LeaderWorkerSet makes."""
    size = whole(thing.at("spec", "leaderWorkerTemplate", "size")) or 1
    if template[-1] == "leaderTemplate":
        return 1
    return max(1, size - 1) if thing.map("spec", "leaderWorkerTemplate", "leaderTemplate") else size


def _of_ray_serve(thing: Manifest) -> list[Command]:
    """Return the options of the engines of a RayService, one for each LLM."""
    text = thing.text("spec", "serveConfigV2")
    listed = [
        config
        for document in (read_documents("", text)[0] if text else ())
        for application in _list(at(document.value, "applications"))
        for config in _list(at(application, "args", "llm_configs"))
    ]
    return [
        of_keywords(
            mapping(at(each, "engine_kwargs")),
            text_at(each, "model_loading_config", "model_source"),
            ("spec", "serveConfigV2"),
        )
        for each in listed[:MAX_MODELS]
    ]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _pod(objects: Manifests, thing: Manifest, template: Loc, spec: Loc, operator: str) -> Iterator[EnginePod]:
    containers = thing.at(*spec, "containers")
    if not isinstance(containers, list) or not containers:
        return
    places: list[Loc] = [(*spec, "containers", index) for index in range(min(len(containers), 32))]
    commands = {place: read_command(thing.at(*place), place, PodInputs(objects, thing, spec)) for place in places}
    chosen = next((place for place in places if commands[place] is not None), None)
    if chosen is None:
        chosen = next((place for place in places if requests_device(thing.at(*place))), places[0])
    command = commands[chosen]
    if thing.kind == LLM_SERVICE:
        command = _of_kserve(thing, chosen, command)
    yield EnginePod(thing, template, spec, chosen, command, operator)


def _predictor(objects: Manifests, thing: Manifest) -> Iterator[EnginePod]:
    """Yield the pod of an InferenceService: of its containers, or of the runtime that its model's format names."""
    spec: Loc = ("spec", "predictor")
    if thing.at(*spec, "containers"):
        yield from _pod(objects, thing, spec, spec, KSERVE)
        return
    if thing.text(*spec, "model", "modelFormat", "name").lower() not in ("huggingface", "vllm"):
        return
    place = (*spec, "model")
    if not requests_device(thing.at(*place)):
        return  # small models of other kinds have the same format
    # The runtime's image is not known here, and starts vLLM with these arguments behind its own.
    words = {"image": "vllm/vllm-openai", "args": thing.at(*place, "args"), "env": thing.at(*place, "env")}
    words |= {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    command = read_command(words, place, PodInputs(objects, thing, spec))
    if command is None or ("backend" in command.options and command.options["backend"].value == "huggingface"):
        return
    named, uri = command.options.get("model-name"), thing.text(*place, "storageUri")
    stated = command.options.get("model-id", EngineOption("", ()))  # the runtime's own option
    model = command.model or stated.value or (uri.removeprefix("hf://") if uri.startswith("hf://") else "")
    served = command.served or ((named.value,) if named is not None else (thing.name,))
    model_loc = command.model_loc or stated.loc or (*place, "storageUri")
    command = replace(command, model=model, model_loc=model_loc, served=served)
    yield EnginePod(thing, spec, spec, place, command, KSERVE)


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
