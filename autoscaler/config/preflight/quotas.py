"""Checks of quotas and queues of Kueue against the largest count of a workload."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.config.check.manifests import at, text_at
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.workloads import EnginePod, ModelWorkload, quantity

_QUEUE_NAME = "kueue.x-k8s.io/queue-name"


def check_quotas(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    most, owner, loc = fleet.most(workload)
    if most < 1:
        return
    quotas = [each for each in fleet.objects.of_kind("ResourceQuota") if each.namespace == workload.thing.namespace]
    for quota in quotas:
        if quota.at("spec", "scopeSelector") or quota.at("spec", "scopes"):
            yield not_checked(quota, ("spec",), "quota against the maximum", "quotas with scopes are not read")
            continue
        for key, stated in quota.map("spec", "hard").items():
            hard, need = quantity(stated), _charged(workload, key)
            if math.isnan(hard) or not need or most * need <= hard:
                continue
            fits = math.floor(hard / need)
            why = (
                f"{most} replicas of {amount_text(need, key)} are {amount_text(most * need, key)}, and the quota"
                f" {quota.name} admits {amount_text(hard, key)} of {key}: from replica {fits + 1} on pods are refused"
                " at their creation, and the autoscaler keeps asking."
            )
            fix = f'{loc[-1]}: {fits}, or {key}: "{amount_text(most * need, key)}"'
            yield found("VA1505", owner, loc, f"the quota admits {fits} of {most} replicas", why, fix)
            return


def _charged(workload: ModelWorkload, key: str) -> float:
    """Return what a replica counts against a quota."""
    if key in ("pods", "count/pods"):
        return float(sum(pod.count for pod in workload.pods))
    resource = key.removeprefix("requests.")
    if key.startswith("limits."):
        resource = key.removeprefix("limits.")
        if resource not in ("cpu", "memory"):
            return 0.0  # extended resources are counted by requests alone
        return sum(_limit(pod, resource) * pod.count for pod in workload.pods)
    return sum(pod.need(resource) * pod.count for pod in workload.pods)


def _limit(pod: EnginePod, resource: str) -> float:
    containers = pod.at("containers")
    amounts = [
        quantity(at(each, "resources", "limits", resource))
        for each in (containers if isinstance(containers, list) else [])
    ]
    return sum(each for each in amounts if not math.isnan(each))


def amount_text(value: float, key: str) -> str:
    return f"{value / 2**30:g}Gi" if "memory" in key else f"{value:g}"


def check_queues(fleet: Scene, workload: ModelWorkload) -> Iterator[Result]:
    name = workload.thing.labels.get(_QUEUE_NAME) or workload.pod.labels.get(_QUEUE_NAME)
    if not name:
        return
    most, owner, loc = fleet.most(workload)
    local = fleet.objects.get("LocalQueue", workload.thing.namespace, name)
    queue = fleet.objects.get("ClusterQueue", "", local.text("spec", "clusterQueue")) if local is not None else None
    if queue is None:
        yield not_checked(
            owner, loc, "ClusterQueue against the maximum", f"the queue {name[:100]} is not known: no --cluster"
        )
        return
    cohort = queue.text("spec", "cohort") or queue.text("spec", "cohortName")
    for resource, need in workload.pod.devices.items():
        total, covered = _nominal(queue, resource, bool(cohort))
        if cohort and math.isinf(total):
            peers = [
                each
                for each in fleet.objects.of_kind("ClusterQueue")
                if cohort in (each.text("spec", "cohort"), each.text("spec", "cohortName"))
            ]
            total = sum(_nominal(each, resource, False)[0] for each in peers)
            if fleet.objects.of_kind("Cohort"):
                continue
        if covered and most * need > total:
            fits = math.floor(total / need)
            where = (
                f"with what it may borrow in {cohort}"
                if cohort
                else "and it is in no cohort from which it could borrow"
            )
            why = (
                f"{most} replicas need {most * need:g} of {resource}; the queue {queue.name} has {total:g}, {where}."
                " The pods above stay gated."
            )
            yield found(
                "VA1506",
                owner,
                loc,
                f"the ClusterQueue admits {fits} of {most} replicas",
                why,
                f"{loc[-1]}: {fits}, or a larger quota",
            )


def _nominal(queue: Manifest, resource: str, borrows: bool) -> tuple[float, bool]:
    """Return what a ClusterQueue has of a resource, with what it may borrow, and whether it covers the resource."""
    total, covered = 0.0, False
    for group in queue.list("spec", "resourceGroups"):
        flavors = at(group, "flavors")
        for flavor in flavors if isinstance(flavors, list) else []:
            resources = at(flavor, "resources")
            for each in resources if isinstance(resources, list) else []:
                if text_at(each, "name") != resource:
                    continue
                covered = True
                nominal, limit = quantity(at(each, "nominalQuota")), at(each, "borrowingLimit")
                total += 0.0 if math.isnan(nominal) else nominal
                if borrows:
                    more = math.inf if limit is None else quantity(limit)
                    total += 0.0 if math.isnan(more) else more
    return total, covered
