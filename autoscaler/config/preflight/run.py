"""Runs all checks over objects, and arranges what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from autoscaler.catalog.findings import SEVERITIES
from autoscaler.catalog.scale_targets import BY_KIND
from autoscaler.config.policy.parse import PolicyBook
from autoscaler.config.preflight.autoscalers import check_autoscalers
from autoscaler.config.preflight.cluster import check_cluster
from autoscaler.config.preflight.engines import check_engines
from autoscaler.config.preflight.facts import QueryFacts
from autoscaler.config.preflight.gitops import check_gitops
from autoscaler.config.preflight.monitoring import check_monitoring
from autoscaler.config.preflight.objects import CLUSTER_SCOPED, Manifests, NotChecked, PreflightFinding, Result, found
from autoscaler.config.preflight.pods import check_pods
from autoscaler.config.preflight.queries import check_queries
from autoscaler.config.preflight.scene import Scene

SUPPRESS = "preflight.vllm-autoscaler.io/"
_ONCE = ("VA1218",)  # two checks may see it, and the first says it better
_READ = CLUSTER_SCOPED | {
    *("ScaledObject", "HorizontalPodAutoscaler", "PodAutoscaler", "VerticalPodAutoscaler", "PodDisruptionBudget"),
    *("ResourceQuota", "LocalQueue", "Application", "Kustomization", "HelmRelease", "PodMonitor", "ServiceMonitor"),
    *(
        "PrometheusRule",
        "ScrapeConfig",
        "Prometheus",
        "PrometheusAgent",
        "PodMonitoring",
        "VMPodScrape",
        "VMServiceScrape",
        "ConfigMap",
        "Service",
        "Pod",
        "LLMInferenceService",
        "ApplicationSet",
        "ScaledJob",
        "RayService",
    ),
}
# Kinds that scale nothing and that nothing here depends on.
_ASIDE = frozenset(
    {
        "Secret",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "NetworkPolicy",
        "Ingress",
    }
    | {
        "CustomResourceDefinition",
        "PersistentVolumeClaim",
        "PersistentVolume",
        "StorageClass",
        "TriggerAuthentication",
    }
    | {
        "ClusterTriggerAuthentication",
        "HTTPRoute",
        "Gateway",
        "Policy",
        "NamespaceLimits",
        "ReplicaSet",
        "EC2NodeClass",
    }
)


@dataclass(frozen=True)
class PreflightOutcome:
    """What was found, worst first, and what was not checked."""

    findings: tuple[PreflightFinding, ...]
    not_checked: tuple[NotChecked, ...]
    suppressed: int
    workloads: int
    groups: dict[str, str]  # key of an object to the key of its workload


def run(objects: Manifests, facts: QueryFacts, book: PolicyBook) -> PreflightOutcome:
    """Check all objects. Pure: asks nothing, but notes in `facts.wanted` what it would like to know."""
    fleet = Scene.of(objects)
    checks: tuple[Callable[[], Iterable[Result]], ...] = (
        lambda: check_queries(fleet, facts),
        lambda: check_autoscalers(fleet, facts),
        lambda: check_engines(fleet),
        lambda: check_pods(fleet, facts),
        lambda: check_cluster(fleet),
        lambda: check_gitops(fleet),
        lambda: check_monitoring(fleet, facts, book),
        lambda: _unread(fleet),
    )
    results = [result for check in checks for result in check()]
    given = {each.key for each in objects.all if each.given}
    findings = [each for each in results if isinstance(each, PreflightFinding) and each.object.given]
    kept = [each for each in findings if not _suppressed(each)]
    kept += _without_reason(objects)
    groups = _groups(fleet)
    unique = {(each.id, each.object.key, each.path, each.id in _ONCE or each.message): each for each in reversed(kept)}
    left = dict.fromkeys(each for each in results if isinstance(each, NotChecked) and each.object in given)
    return PreflightOutcome(
        tuple(sorted(unique.values(), key=lambda each: _order(each, groups))),
        tuple(left),
        sum(map(_suppressed, findings)),
        len(fleet.workloads),
        groups,
    )


def _order(each: PreflightFinding, groups: dict[str, str]) -> tuple[int, str, str, str]:
    return SEVERITIES.index(each.severity), groups.get(each.object.key, each.object.key), each.id, each.path


def _groups(fleet: Scene) -> dict[str, str]:
    """Return the workload that an object is about, for objects that are about one."""
    groups = {each.thing.key: each.thing.key for each in fleet.workloads}
    for each in fleet.autoscalers:
        workload = fleet.workload(each)
        if workload is not None:
            groups[each.thing.key] = workload.thing.key
    return groups


def _unread(fleet: Scene) -> Iterator[Result]:
    """List the objects that no check reads."""
    for thing in fleet.objects.again:
        if not thing.live:
            first = fleet.objects.get(thing.kind, thing.namespace, thing.name)
            place = f"{first.document.file}:{first.document.line}" if first is not None else ""
            yield NotChecked(thing.key, "", "object", f"given twice; the one at {place} is checked")
    workloads = {each.thing.key for each in fleet.workloads}
    for thing in fleet.objects.all:
        if not thing.given or thing.kind in _READ or thing.kind in _ASIDE or thing.key in workloads:
            continue
        known = thing.kind in BY_KIND or thing.kind in ("Job", "CronJob", "DaemonSet", "ReplicaSet")
        row = BY_KIND.get(thing.kind)
        reason = "it requests no accelerator and starts no engine" if known else "unknown kind"
        if row is not None and not row.pods:
            reason = "its platform makes the pods, and their template is not known here"
        yield NotChecked(thing.key, "", "object", reason)


def _without_reason(objects: Manifests) -> Iterator[PreflightFinding]:
    for thing in objects.all:
        for key, value in thing.annotations.items() if thing.given else ():
            if key.startswith(SUPPRESS) and not value.strip():
                loc = ("metadata", "annotations", key)
                yield found(
                    "VA1102",
                    thing,
                    loc,
                    f"{key} has no reason, so it has no effect",
                    "A finding is left out with a reason.",
                    f"{key}: <reason>",
                )


def _suppressed(each: PreflightFinding) -> bool:
    return bool(each.object.annotations.get(f"{SUPPRESS}{each.id}", "").strip())
