"""Which workload a pod belongs to: told by kube-state-metrics, else read from the pod's name, else from its model."""

from __future__ import annotations

import re

from autoscaler.core.fleet import WorkloadRef

API_VERSIONS = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "Rollout": "argoproj.io/v1alpha1",
}
# Kubernetes makes hashes and suffixes from these characters only, so words at the end of a name are not mistaken.
# Source: k8s.io/apimachinery/pkg/util/rand.
_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_OF_DEPLOYMENT = re.compile(rf"(?P<name>.+)-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}")
_OF_STATEFUL_SET = re.compile(r"(?P<name>.+)-\d{1,6}")
_NOT_A_NAME = re.compile(r"[^a-z0-9.-]+")
MAX_NAME = 253  # Kubernetes: DNS subdomain


def owner_of(
    namespace: str,
    pod: str,
    model: str,
    controller: tuple[str, str],
    replica_sets: dict[tuple[str, str], tuple[str, str]],
) -> WorkloadRef:
    """Return the scale target of a pod.

    controller: its kind and name, ("", "") where unknown; replica_sets: kind and name of the owner of each ReplicaSet,
    by namespace and name.
    """
    kind, name = controller
    if kind == "ReplicaSet":
        kind, name = replica_sets.get((namespace, name), controller)
    if kind in API_VERSIONS:
        return WorkloadRef(namespace, name, kind, API_VERSIONS[kind])
    for kind, pattern in (("Deployment", _OF_DEPLOYMENT), ("StatefulSet", _OF_STATEFUL_SET)):
        if match := pattern.fullmatch(pod[:MAX_NAME]):
            return WorkloadRef(namespace, match["name"], kind, API_VERSIONS[kind])
    return of_model(namespace, model or pod)


def of_model(namespace: str, model: str) -> WorkloadRef:
    """Return what stands for a workload where no object is known: all that serve one model in one namespace or job."""
    name = _NOT_A_NAME.sub("-", model[:MAX_NAME].lower()).strip("-.")
    return WorkloadRef(namespace, name or "unnamed", "Model", "")


def pods_of(name: str) -> tuple[str, str]:
    """Return expressions (RE2, without backslashes) for the names of the pods of a Deployment or StatefulSet.

    Raises ValueError for what is no name of an object, so that nothing else gets into a query.
    """
    if not re.fullmatch(rf"[a-z0-9]([a-z0-9.-]{{0,{MAX_NAME - 2}}}[a-z0-9])?", name, re.ASCII):
        raise ValueError(f"{name[:MAX_NAME]!r} is not the name of a workload: allowed: a-z, 0-9, - and .")
    quoted = name.replace(".", "[.]")
    return (f"{quoted}-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}", f"{quoted}-[0-9]{{1,6}}")
