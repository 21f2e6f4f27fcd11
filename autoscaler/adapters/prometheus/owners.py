"""Which workload a pod belongs to: told by kube-state-metrics, else read from the pod's name, else from its model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from autoscaler.core.model.fleet import WorkloadRef

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
_OF_GROUP = re.compile(r"(?P<leader>.+-\d{1,6})-[1-9]\d{0,5}")
_OF_STATEFUL_SET = re.compile(r"(?P<name>.+)-\d{1,6}")
# A pod's name is its ReplicaSet's and a dash, cut to 58 characters, and 5 random ones: a Deployment's name of 47 and
# more leaves a part of the hash, or none. Hashes have 6 to 10 characters, so a shorter word before the suffix is the
# name's.
# Sources: k8s.io/apiserver/pkg/storage/names, k8s.io/kubernetes/pkg/controller (`getPodsPrefix`).
_SUFFIX = 5
_KEPT = 58
_LONGEST_HASH = 10
_CUT = _KEPT + _SUFFIX  # characters of a name that was cut, and of one that just was not
_OF_LONG_DEPLOYMENT = re.compile(rf"(?P<name>.+)-[{_SAFE}]{{6,10}}-[{_SAFE}]{{5}}")
_OF_CUT_DEPLOYMENT = re.compile(rf"(?P<name>.+)-[{_SAFE}]{{5,15}}")
_OF_NAMELESS_HASH = re.compile(
    rf"(?P<name>.{{{_KEPT}}})[{_SAFE}]{{{_SUFFIX}}}"
)  # the rest of a name that was cut itself
_PATTERNS = (("Deployment", _OF_DEPLOYMENT), ("StatefulSet", _OF_STATEFUL_SET))
_LONG_PATTERNS = tuple(
    ("Deployment", pattern) for pattern in (_OF_LONG_DEPLOYMENT, _OF_CUT_DEPLOYMENT, _OF_NAMELESS_HASH)
)
# The one group that matches holds the common part of the names of a workload's pods: of a Deployment, StatefulSet or
# ReplicaSet without an owner; of names that were cut; and of all others, which are alone. RE2, without backslashes.
SERVES_WITH = (
    rf"(.+?)(?:-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}|-[0-9]{{1,6}}|-[{_SAFE}]{{5}})"
    rf"|(.{{{_KEPT}}})[{_SAFE}]{{{_SUFFIX}}}|(.+)"
)
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
    for kind, pattern in _LONG_PATTERNS if len(pod) == _CUT else _PATTERNS:
        if match := pattern.fullmatch(pod[:MAX_NAME]):
            return WorkloadRef(namespace, match["name"], kind, API_VERSIONS[kind])
    return of_model(namespace, model or pod)


def leaders_of(pods: Set[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the leader of each worker among pods of LeaderWorkerSets, which nothing but their names tells.

    The leader of group 2 of `ds` is `ds-2`, and its workers are `ds-2-1`, `ds-2-2`. A StatefulSet called `ds-2` has a
    pod `ds-2-0`. Source: lws pkg/controllers/pod_controller.go.
    """
    found = {}
    for namespace, pod in pods:
        match = _OF_GROUP.fullmatch(pod[:MAX_NAME])
        if match and (namespace, match["leader"]) in pods and (namespace, f"{match['leader']}-0") not in pods:
            found[namespace, pod] = namespace, match["leader"]
    return found


def of_leader(namespace: str, leader: str) -> WorkloadRef:
    """Return the LeaderWorkerSet of a leader's pod."""
    name = leader.rpartition("-")[0]
    return WorkloadRef(namespace, name, "LeaderWorkerSet", API_VERSIONS["LeaderWorkerSet"])


def of_model(namespace: str, model: str) -> WorkloadRef:
    """Return what stands for a workload where no object is known: all that serve one model in one namespace or job."""
    name = _NOT_A_NAME.sub("-", model[:MAX_NAME].lower()).strip("-.")
    return WorkloadRef(namespace, name or "unnamed", "Model", "")


def named_like(name: str) -> str:
    """Return the name that `owner_of` reads from the names of a Deployment's pods: shorter where they are cut."""
    return owner_of("", name[:_KEPT] + _SAFE[:_SUFFIX], "", ("", ""), {}).name if len(name) >= _KEPT else name


def pods_of(name: str) -> tuple[str, ...]:
    """Return expressions (RE2, without backslashes) for the names of the pods of a Deployment or StatefulSet.

    Raises ValueError for what is no name of an object, so that nothing else gets into a query.
    """
    if not re.fullmatch(rf"[a-z0-9]([a-z0-9.-]{{0,{MAX_NAME - 2}}}[a-z0-9])?", name, re.ASCII):
        raise ValueError(f"{name[:MAX_NAME]!r} is not the name of a workload: allowed: a-z, 0-9, - and .")
    quoted = name.replace(".", "[.]")
    usual = (f"{quoted}-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}", f"{quoted}-[0-9]{{1,6}}")
    if len(name) >= _KEPT:
        return (*usual, f"{name[:_KEPT].replace('.', '[.]')}[{_SAFE}]{{{_SUFFIX}}}")
    if len(name) >= _KEPT - _LONGEST_HASH - 1:  # with its dash, the longest hash and another dash it is longer than 58
        return (*usual, f"{quoted}-[{_SAFE}]{{{_CUT - 1 - len(name)}}}")
    return usual


def pods_of_any(names: Iterable[str]) -> tuple[str, str]:
    """Return short expressions for the names of the pods of several workloads; they also let a few others through.

    names: of objects; nothing else may get into a query.
    """
    listed = sorted(set(names))
    any_name = f"({'|'.join(name.replace('.', '[.]') for name in listed)})"
    cut = [name[:_KEPT].replace(".", "[.]") for name in listed if len(name) >= _KEPT]
    # A value alone would be taken for a text; no pod is called "-".
    return f"{any_name}(-[a-z0-9]+){{1,2}}", f"({'|'.join(cut)})[a-z0-9]{{{_SUFFIX}}}" if cut else "-"
