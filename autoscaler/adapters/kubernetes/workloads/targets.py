"""Deployments, StatefulSets and LeaderWorkerSets: their counts, annotations and pod templates.

Nothing here depends on other objects, such as pods, nodes or other autoscalers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.api.objects import (
    LeaderWorkerSet,
    Metadata,
    OwnedFields,
    PodSpec,
    PodTemplate,
    TargetMetadata,
)
from autoscaler.adapters.kubernetes.autoscalers.by_target import TargetKey, target_key
from autoscaler.adapters.kubernetes.pods.needs import Needs, group_needs
from autoscaler.adapters.kubernetes.pods.template import NO_FACTS, Facts, read_template
from autoscaler.adapters.kubernetes.workloads.annotations import Declared, read_annotations
from autoscaler.catalog.engines import DEFAULT_ENGINE, ENGINES
from autoscaler.config.annotations import SCHEMES, read_prometheus_annotations
from autoscaler.config.check.scaledobject import TARGETS
from autoscaler.core.model.fleet import Workload, WorkloadRef


class ScaleKind(NamedTuple):
    """A kind with a scale subresource, and its API path."""

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


class Target(NamedTuple):
    """One scale target. Two are equal while nothing that matters has changed."""

    ref: WorkloadRef
    key: TargetKey
    uid: str
    workload: Workload  # as its annotations declare
    replicas: int
    declared: Declared
    facts: Facts
    writer: str  # field manager of the count; "": the API server does not know
    selector: tuple[tuple[str, str], ...] = ()  # labels of its pods
    controller: str = ""  # "Kind/name" of the object that controls it


def read_target(kind: ScaleKind, seen: objects.Target) -> Target:
    template = seen.spec.template or PodTemplate()
    labels = seen.spec.selector.match_labels if seen.spec.selector else None
    target = _read(kind, seen.metadata, seen.spec.replicas, read_template(template.spec), template)
    return target._replace(selector=tuple(sorted((labels or {}).items())))


def read_leader_worker_set(seen: LeaderWorkerSet) -> Target:
    """Read a LeaderWorkerSet. A replica is a group, so it has the GPUs of the leader and of all workers."""
    template = seen.spec.leader_worker_template
    facts, serving = NO_FACTS, PodTemplate()
    if template is not None:
        serving = template.leader_template or template.worker_template or serving
        worker = read_template(template.worker_template.spec if template.worker_template else PodSpec())
        leader = read_template(template.leader_template.spec) if template.leader_template else worker
        workers = max(0, (template.size or 1) - 1)
        one_resource = not workers or not worker.resource or not leader.resource or worker.resource == leader.resource
        facts = leader._replace(
            needs=group_needs(leader.needs, worker.needs, workers) if one_resource else Needs(),
            gpus=leader.gpus + (workers * worker.gpus if workers else 0.0),
            resource=(leader.resource or (worker.resource if workers else "")) if one_resource else "",
            product=leader.product or worker.product,
            unclear=leader.unclear or (worker.unclear if workers else ""),
        )
    return _read(LEADER_WORKER_SET, seen.metadata, seen.spec.replicas, facts, serving)


def _read(
    kind: ScaleKind, metadata: TargetMetadata, replicas: int | None, facts: Facts, template: PodTemplate
) -> Target:
    """template: of the pods that serve metrics."""
    ref = WorkloadRef(metadata.namespace, metadata.name, kind.kind, kind.api_version)
    declared = read_annotations(metadata.annotations)
    engine = declared.engine or facts.engine or DEFAULT_ENGINE
    port = facts.port if facts.states_port else ENGINES[engine].port
    found = read_prometheus_annotations({**(metadata.annotations or {}), **(template.metadata.annotations or {})})
    return Target(
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
            engine=engine,
            metrics_port=declared.metrics_port or found.get("metrics-port") or port,
            metrics_scheme=declared.metrics_scheme or found.get("metrics-scheme") or SCHEMES[0],
            metrics_path=declared.metrics_path or found.get("metrics-path") or "",
        ),
        replicas=1 if replicas is None else max(0, replicas),
        declared=declared,
        facts=facts,
        writer=_writer(metadata),
        controller=controller_name(metadata),
    )


def controller_name(metadata: Metadata) -> str:
    """Return "Kind/name" of the controller of an object; "": it has none."""
    owner = metadata.controller()
    return f"{owner.kind}/{owner.name}" if owner is not None else ""


def _writer(metadata: TargetMetadata) -> str:
    """Return the field manager of spec.replicas; "": unknown, as for a count that was set to zero."""
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
