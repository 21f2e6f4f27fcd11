"""Which images to pull to which nodes, in addition to the weights that are fetched there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from autoscaler.adapters.kubernetes.node_requests.objects import MOST_PODS, ImageRequest, is_image
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.core.model.fleet import WorkloadRef

Warmed = Mapping[WorkloadRef, Sequence[str]]
"""Nodes to which the weights of a workload are fetched, for managed workloads that may have their weights fetched."""

MOST_IMAGES = 4  # on one node: engines have about 10 GB each, and a pod keeps its image from being removed
MOST_WORKLOADS = 64


def images_to_pull(
    warmed: Warmed, image_of: Callable[[WorkloadRef], str], needs_of: Callable[[WorkloadRef], Needs | None]
) -> list[ImageRequest]:
    """Return the images to pull, each once for a node. Namespaces take turns, so that none fills the nodes alone."""
    turns: Counter[str] = Counter()
    ordered = []
    for ref in sorted(warmed, key=str):
        ordered.append((turns[ref.namespace], str(ref), ref))
        turns[ref.namespace] += 1
    images: dict[str, set[str]] = {}  # by node
    found: list[ImageRequest] = []
    for _, _, ref in sorted(ordered, key=lambda each: each[:2]):
        needs, image = needs_of(ref), image_of(ref)
        if needs is None or not is_image(image) or len(found) >= MOST_WORKLOADS:
            continue
        nodes: list[str] = []
        for node in sorted(warmed[ref]):
            own = images.setdefault(node, set())
            if image not in own and len(own) < MOST_IMAGES and len(nodes) < MOST_PODS:
                own.add(image)
                nodes.append(node)
        if nodes:
            found.append(ImageRequest(ref, tuple(nodes), needs, image))
    return found
