"""State what a pod needs to start from the weights on its node: affinity, mount, variables, and a container that waits.

A document for `kubectl patch` and the webhook both state it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoscaler.config.weights.report import READY_LABEL, label_of
from autoscaler.config.weights.source import ModelSource

ANNOTATION = "vllm-autoscaler.io/weights"  # of a workload or a pod template: the source
NAME = "weights"  # of the volume, and of the container that waits
MOUNT_PATH = "/weights"
HUB_CACHE = f"{MOUNT_PATH}/hub"
WEIGHT = 100  # the most that Kubernetes allows: the default scores of free CPU and memory are as strong
USER = 65532  # of the image

Fields = dict[str, Any]


def node_term(source: ModelSource) -> Fields:
    """Return the preferred term of node affinity: nodes that hold the model."""
    expression = {"key": label_of(source.key), "operator": "In", "values": [READY_LABEL]}
    return {"weight": WEIGHT, "preference": {"matchExpressions": [expression]}}


def volume(host_path: str) -> Fields:
    """Return the volume. The folder is created if it is absent, so that a pod never waits for an agent to mount it."""
    return {"name": NAME, "hostPath": {"path": host_path, "type": "DirectoryOrCreate"}}


def mount() -> Fields:
    return {"name": NAME, "mountPath": MOUNT_PATH, "readOnly": True}


def variables(source: ModelSource) -> list[Fields]:
    """Return the variables of an engine that loads a model of a hub by its name; others load a path."""
    if source.scheme != "hf":
        return []
    return [{"name": "HF_HUB_CACHE", "value": HUB_CACHE}, {"name": "HF_HUB_OFFLINE", "value": "1"}]


def wait_container(source: ModelSource, image: str, resources: Mapping[str, Any] | None = None) -> Fields:
    """Return the init container that ends when the node holds the model: a preferred node may be full.

    It meets the restricted pod security standard, whatever user the pod has.
    """
    container: Fields = {
        "name": NAME,
        "image": image,
        "args": ["weights", "wait", str(source), f"--root={MOUNT_PATH}"],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [mount()],
    }
    if resources:
        container["resources"] = dict(resources)
    return container


def template_patch(source: ModelSource, container: str, host_path: str, image: str) -> Fields:
    """Return a strategic merge patch of a Deployment or StatefulSet.

    container: name of the engine's. host_path: folder of the node. image: of the container that waits.
    """
    engine = {"name": container, "env": variables(source), "volumeMounts": [mount()]}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [node_term(source)]}}
    spec = {
        "affinity": affinity,
        "initContainers": [wait_container(source, image)],
        "containers": [{name: value for name, value in engine.items() if value}],
        "volumes": [volume(host_path)],
    }
    return {"spec": {"template": {"metadata": {"annotations": {ANNOTATION: str(source)}}, "spec": spec}}}
