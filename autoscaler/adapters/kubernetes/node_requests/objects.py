"""The objects that request nodes: a CapacityBuffer with its PodTemplate, or a Deployment of placeholder pods.

Sources: `autoscaling.x-k8s.io` v1 and v1beta1 of kubernetes/autoscaler (CapacityBuffer), cluster-autoscaler's FAQ
("overprovisioning"): pods with a priority below -10 create no node.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from autoscaler.adapters.kubernetes.pods.needs import NAME_FIELD, Needs, NodeExpression
from autoscaler.core.model.fleet import WorkloadRef

PRIORITY_CLASS, ROLE = "{lease}-placeholder", "{lease}-prewarm"  # after the name of the lease, as in manifests/prewarm
INSTALLATION = "vllm-autoscaler.io/installation"  # label: whose object it is
WORKLOAD = "vllm-autoscaler.io/workload"  # annotation: the workload for which it was made
CONTAINER = "placeholder"
BUFFER_GROUP, BUFFERS = "autoscaling.x-k8s.io", "capacitybuffers"
MOST_PODS = 100  # of one workload
MAX_IMAGE = 500
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")


class RequestKind(NamedTuple):
    """A kind of object."""

    root: str
    plural: str


DEPLOYMENTS, TEMPLATES = RequestKind("/apis/apps/v1", "deployments"), RequestKind("/api/v1", "podtemplates")
Objects = dict[tuple[RequestKind, str], dict[str, Any]]  # by kind and name


class PlaceRequest(NamedTuple):
    """Places for further replicas of a workload."""

    ref: WorkloadRef
    places: int
    needs: Needs
    pulled: str = ""  # image that placeholder pods pull to their node; "": none


class ImageRequest(NamedTuple):
    """An image that nodes should have, because the weights for it are fetched there."""

    ref: WorkloadRef
    nodes: tuple[str, ...]  # at most MOST_PODS
    needs: Needs
    pulled: str


def is_image(text: str) -> bool:
    """Return whether a text of a tenant may name an image."""
    return len(text) <= MAX_IMAGE and _IMAGE.fullmatch(text) is not None


def installation_label(installation: str) -> str:
    """Return the value of the label `INSTALLATION`. installation: "namespace/name" of the lease."""
    return hashlib.sha256(installation.encode()).hexdigest()[:16]


def is_supported(needs: Needs) -> bool:
    """Return whether a pod of plain requests can stand in for the replica: its devices are known, and no claim."""
    return bool(needs.resource and "/" in needs.resource and needs.largest > 0 and not needs.devices)


def make_objects(
    request: PlaceRequest,
    installation: str,
    image: str,
    priority_class: str,
    buffers: RequestKind | None,
    owner: Mapping[str, str] | None = None,
) -> Objects:
    """Return the objects of a request.

    owner: the cluster deletes the objects when this one is deleted; None: there is none.
    image, priority_class: of placeholder pods.
    buffers: kind of CapacityBuffers; None: the cluster has none, so a Deployment of placeholder pods stands in.
    """
    metadata = _metadata(request.ref, installation, owner)
    name, labels = metadata["name"], metadata["labels"]
    count = count_pods(request)
    pod = _pod(request.needs, image)
    if is_image(request.pulled) and buffers is None:
        pod["volumes"] = _pulling(request.pulled)
    if buffers is not None:
        template = {"metadata": {"labels": labels}, "spec": pod}
        buffer = {"podTemplateRef": {"name": name}, "replicas": count}
        return {
            (TEMPLATES, name): {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": template},
            (buffers, name): {
                "apiVersion": buffers.root.removeprefix("/apis/"),
                "kind": "CapacityBuffer",
                "metadata": metadata,
                "spec": buffer,
            },
        }
    return _deployment(metadata, count, {**pod, "priorityClassName": priority_class})


def make_image_objects(
    request: ImageRequest, installation: str, image: str, priority_class: str, owner: Mapping[str, str] | None = None
) -> Objects:
    """Return the objects with which the kubelets of present nodes pull an image: a pod on each that requests nothing.

    The other arguments are those of `make_objects`. No node is created for these pods, since each is bound by its name.
    """
    metadata = _metadata(request.ref, installation, owner, "image")
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in request.nodes]
    apart = {"labelSelector": {"matchLabels": metadata["labels"]}, "topologyKey": "kubernetes.io/hostname"}
    pod = _pod(request.needs, image)
    del pod["containers"][0]["resources"]
    pod.pop("nodeSelector", None)
    pod["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }
    pod |= {"volumes": _pulling(request.pulled), "priorityClassName": priority_class}
    return _deployment(metadata, len(request.nodes), pod)


def _metadata(
    ref: WorkloadRef, installation: str, owner: Mapping[str, str] | None, purpose: str = ""
) -> dict[str, Any]:
    name = object_name(ref, installation, purpose)
    label = installation_label(installation)
    labels = {"app.kubernetes.io/name": CONTAINER, "app.kubernetes.io/instance": name, INSTALLATION: label}
    metadata: dict[str, Any] = {"name": name, "labels": labels, "annotations": {WORKLOAD: str(ref)[:500]}}
    if owner is not None:
        metadata["ownerReferences"] = [dict(owner)]
    return metadata


def _deployment(metadata: dict[str, Any], count: int, pod: dict[str, Any]) -> Objects:
    spec = {
        "replicas": count,
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": metadata["labels"]},
        "strategy": {"type": "Recreate"},
        "template": {"metadata": {"labels": metadata["labels"]}, "spec": pod},
    }
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    return {(DEPLOYMENTS, metadata["name"]): body}


def _pulling(image: str) -> list[dict[str, Any]]:
    """Return a volume that the kubelet pulls as any image, with the credentials of the node. Nothing of it runs."""
    return [{"name": "pulled", "image": {"reference": image, "pullPolicy": "IfNotPresent"}}]


def object_name(ref: WorkloadRef, installation: str, purpose: str = "") -> str:
    """Return the name of the objects for a workload: the same in every process, so that nothing is requested twice."""
    text = "\n".join((installation, ref.namespace, ref.kind, ref.api_version, ref.name, *filter(None, (purpose,))))
    return f"prewarm-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def count_pods(request: PlaceRequest) -> int:
    """Return the pods that take the places of a request. A replica of several pods has several places."""
    each = request.needs.total / request.needs.largest
    pods = math.ceil(each - 1e-9) if each > 1 else 1
    return min(request.places * pods, MOST_PODS)


def _pod(needs: Needs, image: str) -> dict[str, Any]:
    """Return the spec of a pod that goes where a pod of the replica would go, and that ends at once."""
    requests = {needs.resource: f"{needs.largest:g}"}
    if needs.cpu > 0:
        requests["cpu"] = f"{math.ceil(needs.cpu * 1000)}m"
    if needs.memory > 0:
        requests["memory"] = str(math.ceil(needs.memory))
    container = {
        "name": CONTAINER,
        "image": image,
        "resources": {"requests": requests, "limits": {needs.resource: requests[needs.resource]}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    pod: dict[str, Any] = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65535, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{key: text for key, text in each._asdict().items() if text} for each in needs.tolerations],
    }
    if needs.selector:
        pod["nodeSelector"] = dict(needs.selector)
    if needs.terms is not None:
        required = {"nodeSelectorTerms": [_term(term) for term in needs.terms]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return pod


def _term(expressions: tuple[NodeExpression, ...]) -> dict[str, Any]:
    """Return a term of a required node affinity."""
    labels = [_expression(each, each.key) for each in expressions if each.key != NAME_FIELD]
    names = [_expression(each, "metadata.name") for each in expressions if each.key == NAME_FIELD]
    return ({"matchExpressions": labels} if labels else {}) | ({"matchFields": names} if names else {})


def _expression(each: NodeExpression, key: str) -> Mapping[str, Any]:
    return {"key": key, "operator": each.operator} | ({"values": list(each.values)} if each.values else {})
