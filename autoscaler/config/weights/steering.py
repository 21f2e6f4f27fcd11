"""State what a pod needs to start from the weights on its node: affinity, mount, variables, and a container that waits.

A document for `kubectl patch` and the webhook both state it from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autoscaler.config.weights.report import READY_LABEL, label_of
from autoscaler.config.weights.source import ModelSource

NAME = "weights"  # of the pod's own volume, and of the container that waits
NODE = "node-weights"  # volume with the folder of the node
MOUNT_PATH, NODE_PATH = f"/{NAME}", f"/{NODE}"
HUB_CACHE = f"{MOUNT_PATH}/hub"
WEIGHT = 100  # the most that Kubernetes allows: the default scores of free CPU and memory are as strong
USER = 65532  # of the image

Fields = dict[str, Any]


class PodWeights(NamedTuple):
    """The weights of a pod."""

    source: ModelSource
    engine: str  # name of the container that can load them from the node; "": none is known to
    compiled: str = ""  # name for what that container compiles, the same for equal ones; "": it keeps nothing
    served: str = ""  # name to state, because offline the engine would report a path; "": its name stays


def node_term(source: ModelSource) -> Fields:
    """Return the preferred term of node affinity: nodes that hold the model."""
    expression = {"key": label_of(source.key), "operator": "In", "values": [READY_LABEL]}
    return {"weight": WEIGHT, "preference": {"matchExpressions": [expression]}}


def volumes(host_path: str) -> list[Fields]:
    """Return the folder of the node, and one of the pod: links to the former, or a copy where the node has none.

    The node's folder is created if it is absent, so that no pod waits for its mount.
    """
    return [
        {"name": NAME, "emptyDir": {}},
        {"name": NODE, "hostPath": {"path": host_path, "type": "DirectoryOrCreate"}},
    ]


def mounts(writable: bool = False) -> list[Fields]:
    """writable: the pod's own; the node's folder never is."""
    own = {"name": NAME, "mountPath": MOUNT_PATH}
    return [own if writable else own | {"readOnly": True}, {"name": NODE, "mountPath": NODE_PATH, "readOnly": True}]


def variables(source: ModelSource) -> list[Fields]:
    """Return the variables of an engine that loads a model of a hub by its name; others load a path."""
    if source.scheme != "hf":
        return []
    return [{"name": "HF_HUB_CACHE", "value": HUB_CACHE}, {"name": "HF_HUB_OFFLINE", "value": "1"}]


def wait_container(
    source: ModelSource,
    image: str,
    credentials: Sequence[Fields] = (),
    resources: Mapping[str, Any] | None = None,
) -> Fields:
    """Return the init container that ends when the engine can load the model: a preferred node may be full.

    credentials: variables with which it fetches what the node's agent does not get. It meets the restricted pod
    security standard, whatever user the pod has.
    """
    container: Fields = {
        "name": NAME,
        "image": image,
        "args": ["weights", "wait", str(source), f"--root={NODE_PATH}", f"--into={MOUNT_PATH}"],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": mounts(writable=True),
    }
    if credentials:
        container["env"] = list(credentials)
    if resources:
        container["resources"] = dict(resources)
    return container


def template_patch(source: ModelSource, container: str, host_path: str, image: str) -> Fields:
    """Return a strategic merge patch of a pod template.

    container: name of the engine's. host_path: folder of the node. image: of the container that waits.
    """
    engine = {"name": container, "env": variables(source), "volumeMounts": mounts()}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [node_term(source)]}}
    spec = {
        "affinity": affinity,
        "initContainers": [wait_container(source, image)],
        "containers": [{name: value for name, value in engine.items() if value}],
        "volumes": volumes(host_path),
    }
    return {"spec": spec}
