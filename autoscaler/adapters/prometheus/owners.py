"""The workload that a pod belongs to: by kube-state-metrics, else by the name of the pod, else by its model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from autoscaler.catalog.scale_targets import SCALED
from autoscaler.core.model.fleet import WorkloadRef

API_VERSIONS = {**{kind: row.api_version for kind, row in SCALED.items()}, "ReplicaSet": "apps/v1"}
# Kubernetes uses only these characters in hashes and suffixes, so a word at the end of a name does not match.
# Source: k8s.io/apimachinery/pkg/util/rand.
_SAFE = "bcdfghjklmnpqrstvwxz2456789"
_OF_DEPLOYMENT = re.compile(rf"(?P<name>.+)-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}")
_OF_GROUP = re.compile(r"(?P<leader>.+-\d{1,6})-[1-9]\d{0,5}")
_OF_STATEFUL_SET = re.compile(r"(?P<name>.+)-\d{1,6}")
# A pod name is the ReplicaSet name and a dash, cut to 58 characters, and 5 random characters. A Deployment name of 47
# characters or more therefore leaves only a part of the hash, or none. Hashes have 6 to 10 characters, so a shorter
# word before the suffix belongs to the name.
# Sources: k8s.io/apiserver/pkg/storage/names, k8s.io/kubernetes/pkg/controller (`getPodsPrefix`).
_SUFFIX = 5
_MAX_PREFIX = 58
_LONGEST_HASH = 10
_CUT = _MAX_PREFIX + _SUFFIX  # length of a name that was cut, or that just fits
_OF_LONG_DEPLOYMENT = re.compile(rf"(?P<name>.+)-[{_SAFE}]{{6,10}}-[{_SAFE}]{{5}}")
_OF_CUT_DEPLOYMENT = re.compile(rf"(?P<name>.+)-[{_SAFE}]{{5,15}}")
# The name of the Deployment itself was cut.
_OF_CUT_NAME = re.compile(rf"(?P<name>.{{{_MAX_PREFIX}}})[{_SAFE}]{{{_SUFFIX}}}")
_PATTERNS = (("Deployment", _OF_DEPLOYMENT), ("StatefulSet", _OF_STATEFUL_SET))
_LONG_PATTERNS = tuple(("Deployment", pattern) for pattern in (_OF_LONG_DEPLOYMENT, _OF_CUT_DEPLOYMENT, _OF_CUT_NAME))
# The group that matches is the part that the names of a workload's pods share. The first group is for Deployments,
# StatefulSets and ReplicaSets without an owner, the second for names that were cut, the third for single pods.
# RE2 syntax, without backslashes.
POD_NAME_PREFIX = (
    rf"(.+?)(?:-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}|-[0-9]{{1,6}}|-[{_SAFE}]{{5}})"
    rf"|(.{{{_MAX_PREFIX}}})[{_SAFE}]{{{_SUFFIX}}}|(.+)"
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

    controller: its kind and name, ("", "") if unknown. replica_sets: kind and name of the owner of each ReplicaSet, by
    namespace and name. Without any, kube-state-metrics does not report owners of ReplicaSets: the pod's name tells.
    """
    kind, name = controller if controller[0] != "ReplicaSet" or replica_sets else ("", "")
    if kind == "ReplicaSet":
        kind, name = replica_sets.get((namespace, name), controller)
    if kind in API_VERSIONS:
        return WorkloadRef(namespace, name, kind, API_VERSIONS[kind])
    for kind, pattern in _LONG_PATTERNS if len(pod) == _CUT else _PATTERNS:
        if match := pattern.fullmatch(pod[:MAX_NAME]):
            return WorkloadRef(namespace, match["name"], kind, API_VERSIONS[kind])
    return model_workload(namespace, model or pod)


def leaders_of(pods: Set[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the leader of each worker among pods of LeaderWorkerSets, which only their names show.

    The leader of group 2 of `ds` is `ds-2`, and its workers are `ds-2-1`, `ds-2-2`. A StatefulSet called `ds-2`
    instead has a pod `ds-2-0`. Source: lws pkg/controllers/pod_controller.go.
    """
    found = {}
    for namespace, pod in pods:
        match = _OF_GROUP.fullmatch(pod[:MAX_NAME])
        if match and (namespace, match["leader"]) in pods and (namespace, f"{match['leader']}-0") not in pods:
            found[namespace, pod] = namespace, match["leader"]
    return found


def leader_worker_set_of(namespace: str, leader: str) -> WorkloadRef:
    """Return the LeaderWorkerSet of a leader pod."""
    name = leader.rpartition("-")[0]
    return WorkloadRef(namespace, name, "LeaderWorkerSet", API_VERSIONS["LeaderWorkerSet"])


def model_workload(namespace: str, model: str) -> WorkloadRef:
    """Return the workload of all pods that serve one model in one namespace or job, if no object is known."""
    name = _NOT_A_NAME.sub("-", model[:MAX_NAME].lower()).strip("-.")
    return WorkloadRef(namespace, name or "unnamed", "Model", "")


def name_in_pods(name: str) -> str:
    """Return the Deployment name that `owner_of` finds in the names of its pods: shorter if those are cut."""
    return (
        owner_of("", name[:_MAX_PREFIX] + _SAFE[:_SUFFIX], "", ("", ""), {}).name if len(name) >= _MAX_PREFIX else name
    )


def pod_name_patterns(name: str) -> tuple[str, ...]:
    """Return regular expressions for the pod names of a Deployment or StatefulSet (RE2, without backslashes).

    Raises ValueError if `name` is not a valid object name, since it becomes part of a query.
    """
    if not re.fullmatch(rf"[a-z0-9]([a-z0-9.-]{{0,{MAX_NAME - 2}}}[a-z0-9])?", name, re.ASCII):
        raise ValueError(f"{name[:MAX_NAME]!r} is not the name of a workload: allowed: a-z, 0-9, - and .")
    quoted = name.replace(".", "[.]")
    usual = (f"{quoted}-[{_SAFE}]{{1,10}}-[{_SAFE}]{{5}}", f"{quoted}-[0-9]{{1,6}}")
    if len(name) >= _MAX_PREFIX:
        return (*usual, f"{name[:_MAX_PREFIX].replace('.', '[.]')}[{_SAFE}]{{{_SUFFIX}}}")
    if len(name) >= _MAX_PREFIX - _LONGEST_HASH - 1:  # longer than 58 with a dash, the longest hash and a dash
        return (*usual, f"{quoted}-[{_SAFE}]{{{_CUT - 1 - len(name)}}}")
    return usual


def pod_name_patterns_of_any(names: Iterable[str]) -> tuple[str, str]:
    """Return short regular expressions for the pod names of several workloads. They also match a few other pods.

    names: valid object names, since they become part of a query.
    """
    listed = sorted(set(names))
    any_name = f"({'|'.join(name.replace('.', '[.]') for name in listed)})"
    cut = [name[:_MAX_PREFIX].replace(".", "[.]") for name in listed if len(name) >= _MAX_PREFIX]
    # A single value would be matched as plain text; no pod is called "-".
    return f"{any_name}(-[a-z0-9]+){{1,2}}", f"({'|'.join(cut)})[a-z0-9]{{{_SUFFIX}}}" if cut else "-"
