"""Scale targets: Deployments, StatefulSets and LeaderWorkerSets as rows, read from their objects alone.

Pods, nodes and rivals are elsewhere. What a row says about GPUs and the model is what its pod template says.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from autoscaler.adapters.kube.claims import TargetKey, target_key
from autoscaler.adapters.kube.declared import Declared, read_annotations
from autoscaler.adapters.kube.objects import LeaderWorkerSet, OwnedFields, PodSpec, Target, TargetMetadata
from autoscaler.config.annotations import MODEL
from autoscaler.config.scaledobject import TARGETS
from autoscaler.core.fleet import Workload, WorkloadRef

DEFAULT_PORT = 8000
DEFAULT_ENGINE = "vllm"
ARGUMENTS_LIMIT = 512  # words of a command line that are looked at
SCRIPT_FOLLOWS = re.compile(r"-[a-z]*c")  # `sh -c`, `bash -ec`
SCRIPT_LIMIT = 16_384  # characters, of all scripts in a template: to split them takes 20 ms
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
MIG_RESOURCE = "nvidia.com/mig-"
# Labels that say what GPU a node has: GPU feature discovery first, then the clouds and provisioners.
PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
    "karpenter.azure.com/sku-gpu-name",
)


class ScaleKind(NamedTuple):
    """A kind with a scale subresource, and where the API keeps it."""

    kind: str
    api_version: str
    plural: str

    @property
    def root(self) -> str:
        return f"/apis/{self.api_version}"

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0]


DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET = (
    ScaleKind(kind, api_version, f"{kind.lower()}s") for kind, api_version in TARGETS.items()
)
KINDS: Mapping[str, ScaleKind] = {kind.kind: kind for kind in (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET)}


class Facts(NamedTuple):
    """What a pod template says."""

    gpus: float  # of one replica; NaN: unknown
    resource: str  # "" when there is no GPU, or more than one sort
    product: tuple[str, str] | None  # node label and value that the template insists on
    model: str
    port: int


class Row(NamedTuple):
    """One scale target. Rows compare equal while nothing that matters has changed."""

    ref: WorkloadRef
    key: TargetKey
    uid: str
    workload: Workload  # as the annotations declare it
    replicas: int
    declared: Declared
    facts: Facts
    writer: str  # who set the count last, by managedFields; "": nobody knows


def read_target(kind: ScaleKind, seen: Target) -> Row:
    template = seen.spec.template.spec if seen.spec.template else PodSpec()
    return _row(kind, seen.metadata, seen.spec.replicas, read_template(template))


def read_group(seen: LeaderWorkerSet) -> Row:
    """Read a LeaderWorkerSet: a replica is a group, so its GPUs are those of the leader and of all workers."""
    template = seen.spec.leader_worker_template
    facts = NO_FACTS
    if template is not None:
        worker = read_template(template.worker_template.spec if template.worker_template else PodSpec())
        leader = read_template(template.leader_template.spec) if template.leader_template else worker
        workers = max(0, (template.size or 1) - 1)
        same = not workers or not worker.resource or not leader.resource or worker.resource == leader.resource
        facts = leader._replace(
            gpus=leader.gpus + (workers * worker.gpus if workers else 0.0),
            resource=(leader.resource or (worker.resource if workers else "")) if same else "",
            product=leader.product or worker.product,
        )
    return _row(LEADER_WORKER_SET, seen.metadata, seen.spec.replicas, facts)


def _row(kind: ScaleKind, metadata: TargetMetadata, replicas: int | None, facts: Facts) -> Row:
    ref = WorkloadRef(metadata.namespace, metadata.name, kind.kind, kind.api_version)
    declared = read_annotations(metadata.annotations)
    return Row(
        ref=ref,
        key=target_key(ref),
        uid=metadata.uid,
        workload=Workload(
            ref=ref,
            uid=metadata.uid,
            policy=declared.policy or "",
            overrides=declared.overrides,
            service=declared.service,
            model=declared.model or facts.model,
            engine=declared.engine or DEFAULT_ENGINE,
            metrics_port=declared.metrics_port or facts.port,
        ),
        replicas=1 if replicas is None else max(0, replicas),
        declared=declared,
        facts=facts,
        writer=_writer(metadata),
    )


def _writer(metadata: TargetMetadata) -> str:
    """Return the field manager of spec.replicas. The API server loses it when the count passes through zero."""
    for entry in metadata.managed_fields or ():
        if b'"f:replicas"' not in memoryview(entry.fields_v1).tobytes():
            continue
        try:
            owned = msgspec.json.decode(entry.fields_v1, type=OwnedFields)
        except msgspec.MsgspecError:
            continue
        if owned.spec.replicas is not msgspec.UNSET:
            return "".join(letter for letter in entry.manager[:128] if letter.isprintable())
    return ""


def read_template(spec: PodSpec) -> Facts:
    counts: dict[str, int] = {}
    model, port = "", 0
    shell = _Shell()
    for container in spec.containers or ():
        gpus = _gpus(container.resources.limits or container.resources.requests) if container.resources else {}
        for resource, count in gpus.items():
            counts[resource] = counts.get(resource, 0) + count
        own_model, own_port = _command_line(shell.words([*(container.command or ()), *(container.args or ())]))
        model, port = model or own_model, port or own_port
    total = float(sum(counts.values()))
    return Facts(
        gpus=math.nan if spec.resource_claims else total,  # what a claim brings is not written here
        resource=next(iter(counts)) if len(counts) == 1 else "",
        product=_product(spec),
        model=model,
        port=port or DEFAULT_PORT,
    )


NO_FACTS = Facts(math.nan, "", None, "", DEFAULT_PORT)


def _gpus(resources: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Pick GPUs from a resource list. Extended resources are whole numbers; anything else is not one."""
    return {
        name: int(count)
        for name, count in (resources or {}).items()
        if is_gpu(name) and str(count).isascii() and str(count).isdigit() and 0 < int(count) <= 1024
    }


def is_gpu(resource: str) -> bool:
    return resource in GPU_RESOURCES or resource.startswith(MIG_RESOURCE)


def _product(spec: PodSpec) -> tuple[str, str] | None:
    """Return the product label that every node for this template must have, if it says one."""
    demanded = dict(spec.node_selector or {})
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or ()
    if len(terms) == 1:  # several terms are alternatives: then none of them must hold
        for expression in terms[0].match_expressions or ():
            if expression.operator == "In" and len(expression.values or ()) == 1:
                demanded.setdefault(expression.key, (expression.values or [""])[0])
    return next(((label, demanded[label]) for label in PRODUCT_LABELS if demanded.get(label)), None)


def _command_line(words: Iterable[str]) -> tuple[str, int]:
    """Find the served model's name and the port in a server's arguments; "" and 0 where they cannot be read."""
    options: dict[str, str] = {}
    before = ""
    for word in words:
        if word.startswith("--") and "=" in word:
            name, _, value = word.partition("=")
            options.setdefault(name, value)
        elif before in _OPTIONS or before == "serve":
            options.setdefault(before, word)
        before = word
    model = next((options[name] for name in ("--served-model-name", "--model", "serve") if name in options), "")
    port = options.get("--port", "")
    return (
        model if re.fullmatch(MODEL.expression, model) and "$" not in model and not model.startswith("-") else "",
        int(port) if port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536 else 0,
    )


_OPTIONS = ("--served-model-name", "--model", "--port")


class _Shell:
    """Splits what a shell would split (`sh -c "vllm serve ..."`), up to `SCRIPT_LIMIT` for all command lines."""

    def __init__(self) -> None:
        self._left = SCRIPT_LIMIT

    def words(self, words: Iterable[str]) -> Iterator[str]:
        """Return the words of a command line; scripts that do not parse, or are too long, are left out."""
        left = ARGUMENTS_LIMIT
        before = ""
        for word in words:
            parts = self._split(word) if SCRIPT_FOLLOWS.fullmatch(before) else [word]
            yield from parts[:left]
            left -= len(parts)
            if left <= 0:
                return
            before = word

    def _split(self, script: str) -> list[str]:
        if len(script) > self._left:
            return []
        self._left -= len(script)
        try:
            return shlex.split(script)
        except ValueError:
            return []
