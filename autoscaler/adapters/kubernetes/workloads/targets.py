"""Scale targets of all kinds: their counts, annotations, label selectors and pod templates.

Nothing here depends on other objects, such as pods, nodes or other autoscalers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api import target_objects
from autoscaler.adapters.kubernetes.api.decode import decode
from autoscaler.adapters.kubernetes.api.objects import Metadata, TargetMetadata
from autoscaler.adapters.kubernetes.api.pod_objects import PodTemplate
from autoscaler.adapters.kubernetes.api.target_objects import (
    LeaderWorkerSet,
    LeaderWorkerTemplate,
    RolloutStrategy,
    UpdateStrategy,
)
from autoscaler.adapters.kubernetes.autoscalers.by_target import TargetKey, api_group, target_key
from autoscaler.adapters.kubernetes.count_writers import NOBODY, UNNAMED, Writer
from autoscaler.adapters.kubernetes.pods.model_source import annotated_source
from autoscaler.adapters.kubernetes.pods.selector import Selector, read_selector
from autoscaler.adapters.kubernetes.pods.template import NO_FACTS, Facts, group_facts, read_template
from autoscaler.adapters.kubernetes.workloads.annotations import Declared, read_annotations
from autoscaler.catalog.engines import DEFAULT_ENGINE, ENGINES
from autoscaler.catalog.scale_targets import BY_KIND, OTHER_SELECTORS, ScaleTarget, TemplatePart
from autoscaler.config.annotations import SCHEMES, read_prometheus_annotations
from autoscaler.config.check.manifests import at, impossible, items
from autoscaler.config.findings import UNREADABLE
from autoscaler.core.model.fleet import Workload, WorkloadRef

DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET = (
    BY_KIND[kind] for kind in ("Deployment", "StatefulSet", "LeaderWorkerSet")
)
MOST_REPLICAS = 2**31 - 1
MAX_PARTS = 64  # of the templates of one replica that are read
PAUSED, PARTITIONED = "is paused", "has a partition above its count"
_TEMPLATE = msgspec.json.Decoder(PodTemplate | None)
_GROUP_TEMPLATE = msgspec.json.Decoder(LeaderWorkerTemplate | None)


class Target(NamedTuple):
    """One scale target. Two are equal while nothing that matters has changed."""

    ref: WorkloadRef
    key: TargetKey
    uid: str
    workload: Workload  # as its annotations declare
    replicas: int
    declared: Declared
    facts: Facts
    writer: Writer  # of the count
    template_digest: int = 0  # of all that the pod templates hold; another one is another deployment
    selector: tuple[tuple[str, str], ...] = ()  # labels of its pods
    controller: str = ""  # "Kind/name" of the object that controls it
    pod_selector: Selector | None = None  # by which its pods are found; None: by their owners
    states_pods: bool = True  # False: only its pods show what a replica needs
    pods_per_replica: int = 1
    template_of: TargetKey | None = None  # the target whose template it uses
    stated: Mapping[str, str] = {}
    own_stated: Mapping[str, Any] = {}  # by itself, not by its template, about the metrics endpoints of its pods
    held_back: str = ""  # why its controller makes no further pod by the template, in words
    follows_pods: bool = False  # held back, and its facts are those of its pods, which differ from the template
    labels: Mapping[str, str] = {}  # its own, and those of its pods that it lacks
    refusal: str = ""  # why it cannot be scaled, and what can


def read_target(kind: ScaleTarget, seen: target_objects.TargetObject) -> Target:
    template = decode(_TEMPLATE, seen.spec.template) or PodTemplate()
    labels = seen.spec.selector.match_labels if seen.spec.selector else None
    target = _read(kind, seen.metadata, seen.spec.replicas, _read_facts(template), template)
    return target._replace(
        template_digest=zlib.crc32(seen.spec.template),
        selector=tuple(sorted((labels or {}).items())),
        held_back=PAUSED if seen.spec.paused else _partitioned(seen.spec.update_strategy, target.replicas),
    )


def read_leader_worker_set(seen: LeaderWorkerSet) -> Target:
    """Read a LeaderWorkerSet. A replica is a group, so it has the GPUs of the leader and of all workers."""
    template = decode(_GROUP_TEMPLATE, seen.spec.leader_worker_template)
    facts, serving = NO_FACTS, PodTemplate()
    if template is not None:
        serving = template.leader_template or template.worker_template or serving
        worker = _read_facts(template.worker_template or PodTemplate())
        leader = _read_facts(template.leader_template) if template.leader_template else worker
        facts = group_facts(leader, [(worker, (template.size or 1) - 1)])
    target = _read(LEADER_WORKER_SET, seen.metadata, seen.spec.replicas, facts, serving)
    return target._replace(
        template_digest=zlib.crc32(seen.spec.leader_worker_template),
        held_back=_partitioned(seen.spec.rollout_strategy, target.replicas),
    )


def _partitioned(strategy: UpdateStrategy | RolloutStrategy | None, replicas: int) -> str:
    """Return why the next replica is made by the earlier template, as all below the partition are; "": it is not."""
    update = strategy.rolling_update if strategy is not None else None
    return PARTITIONED if update is not None and (update.partition or 0) > replicas else ""


def read_custom(kind: ScaleTarget, seen: target_objects.CustomTarget) -> Target:
    """Read a target of any other kind. Never raises, whatever the object holds: its schema is the cluster's."""
    value = {"spec": seen.spec, "status": seen.status}
    replicas = at(value, *kind.replicas)
    refusal = impossible(kind, value)
    counted = None
    if isinstance(replicas, int) and not isinstance(replicas, bool) and 0 <= replicas <= MOST_REPLICAS:
        counted = replicas
    if not refusal and counted is None and replicas is not None:
        refusal = f"{'.'.join(kind.replicas)} is no count of replicas; allowed: a whole number"
    parts = _read_parts(kind.pods, value)
    facts, serving, pods = NO_FACTS, PodTemplate(), 1
    if parts:
        (leader, serving, count, _), *others = parts
        pods = max(1, count + sum(each.pods for each in others))
        facts = group_facts(leader, [(leader, count - 1), *((each.facts, each.pods) for each in others)])
    target = _read(kind, seen.metadata, counted, facts, serving)
    reference = at(value, "spec", "workloadRef")
    return target._replace(
        pod_selector=_pod_selector(kind, value),
        states_pods=bool(parts),
        template_digest=zlib.crc32(msgspec.json.encode([each.stated for each in parts])),
        pods_per_replica=pods,
        template_of=_reference(seen.metadata.namespace, reference) if reference else None,
        refusal=refusal,
    )


def read_refused(kind: ScaleTarget, metadata: TargetMetadata, refusal: str) -> Target:
    """Read a target of a kind that cannot be scaled."""
    return _read(kind, metadata, 0, NO_FACTS, PodTemplate())._replace(refusal=refusal)


def with_facts(target: Target, facts: Facts) -> Target:
    """Return the target with facts that its pods, or the template of another target, show."""
    declared, workload = target.declared, target.workload
    return target._replace(facts=facts, workload=_workload(workload.ref, workload.uid, declared, facts, target.stated))


def _read(
    kind: ScaleTarget, metadata: TargetMetadata, replicas: int | None, facts: Facts, template: PodTemplate
) -> Target:
    """template: of the pods that serve metrics."""
    ref = WorkloadRef(metadata.namespace, metadata.name, kind.kind, kind.api_version)
    declared = read_annotations(metadata.annotations)
    of_template = template.metadata.annotations or {}
    stated = read_prometheus_annotations({**(metadata.annotations or {}), **of_template})
    own = {name: text for name, text in (metadata.annotations or {}).items() if name not in of_template}
    if source := annotated_source(template.metadata.annotations or {}):
        facts = facts._replace(source=str(source))
    return Target(
        ref=ref,
        key=target_key(ref),
        uid=metadata.uid,
        workload=_workload(ref, metadata.uid, declared, facts, stated),
        replicas=kind.unset if replicas is None else max(0, replicas),
        declared=declared,
        facts=facts,
        writer=_writer(metadata, kind),
        controller=controller_name(metadata),
        stated=stated,
        own_stated=read_prometheus_annotations(own),
        labels={**(template.metadata.labels or {}), **(metadata.labels or {})},
    )


def _workload(ref: WorkloadRef, uid: str, declared: Declared, facts: Facts, stated: Mapping[str, Any]) -> Workload:
    engine = declared.engine or facts.engine or DEFAULT_ENGINE
    port = facts.port if facts.states_port else ENGINES[engine].port
    return Workload(
        ref=ref,
        uid=uid,
        policy=declared.policy or "",
        overrides=declared.overrides,
        service=declared.service,
        role=declared.role,
        model=declared.model or facts.model,
        engine=engine,
        metrics_port=declared.metrics_port or stated.get("metrics-port") or port,
        metrics_scheme=declared.metrics_scheme or stated.get("metrics-scheme") or SCHEMES[0],
        metrics_path=declared.metrics_path or stated.get("metrics-path") or "",
        weights=declared.weights or facts.source,
        loader=facts.loader,
        pins_weights=declared.pins_weights,
    )


class _Part(NamedTuple):
    """Some pods of a replica."""

    facts: Facts
    template: PodTemplate
    pods: int
    stated: object  # the whole template


def _read_parts(parts: Sequence[TemplatePart], value: object) -> list[_Part]:
    """Return the pods of a replica, those that serve first. Templates that are missing are left out."""
    found = []
    for part in parts:
        for place in items(value, part.place)[:MAX_PARTS]:
            stated = at(value, *place)
            template = _template({"spec": stated} if part.bare else stated)
            if template is not None:
                counts = [at(value, *place[:-1], count) for count in part.counts]
                pods = math.prod(max(0, count) if type(count) is int else 1 for count in counts)
                found.append(_Part(_read_facts(template), template, min(pods, MOST_REPLICAS), stated))
    return found


def _read_facts(template: PodTemplate) -> Facts:
    return read_template(template.spec, template.metadata.annotations)


def _template(value: object) -> PodTemplate | None:
    """Decode a pod template; None: it is missing, or has another form."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=PodTemplate) if at(value, "spec") else None
    except UNREADABLE:
        return None


def _pod_selector(kind: ScaleTarget, value: object) -> Selector:
    """Return the selector of its pods; (): its controller has not stated one yet."""
    places = (kind.selector, *(OTHER_SELECTORS if not kind.source else ()))
    stated = next((text for place in places if isinstance(text := at(value, *place), str) and text), "")
    return read_selector(stated)


def _reference(namespace: str, stated: object) -> TargetKey:
    api_version, kind, name = (str(at(stated, key) or "")[:253] for key in ("apiVersion", "kind", "name"))
    return TargetKey(namespace, api_group(api_version), kind, name)


def controller_name(metadata: Metadata) -> str:
    """Return "Kind/name" of the controller of an object; "": it has none."""
    owner = metadata.controller()
    return f"{owner.kind}/{owner.name}" if owner is not None else ""


def _writer(metadata: TargetMetadata, kind: ScaleTarget) -> Writer:
    """Return who set the count; unnamed if no manager owns it, as one that was set to zero.

    Whoever applies the present count owns it too, so one who updated it comes first.
    """
    name = f'"f:{kind.replicas[-1]}"'.encode()
    entries = sorted(metadata.managed_fields or (), key=lambda entry: entry.operation == "Apply")
    for entry in entries:
        if name not in memoryview(entry.fields_v1).tobytes():
            continue
        try:
            owned = msgspec.json.decode(entry.fields_v1)
        except UNREADABLE:
            continue
        if at(owned, *(f"f:{key}" for key in kind.replicas)) is not None:
            manager = "".join(letter for letter in entry.manager[:128] if letter.isprintable())
            return Writer(manager, entry.operation, entry.subresource)
    return UNNAMED if entries else NOBODY
