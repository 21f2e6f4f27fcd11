"""Which images are pulled where weights are fetched, and by what pods."""

from __future__ import annotations

import pytest

from autoscaler.adapters.kubernetes.node_requests.images import MOST_IMAGES, Warmed, images_to_pull
from autoscaler.adapters.kubernetes.node_requests.objects import (
    MOST_PODS,
    ImageRequest,
    PlaceRequest,
    make_image_objects,
    make_objects,
)
from autoscaler.adapters.kubernetes.pods.needs import Needs, PodToleration
from autoscaler.core.model.fleet import WorkloadRef

NEEDS = Needs(
    resource="nvidia.com/gpu",
    largest=8.0,
    smallest=8.0,
    total=8.0,
    cpu=4.0,
    selector=(("pool", "gpu"),),
    tolerations=(PodToleration("nvidia.com/gpu", "Exists"),),
)
A, B = WorkloadRef("team-a", "a"), WorkloadRef("team-b", "b")
NODES = tuple(f"n{number:03d}" for number in range(150))


def pulled(warmed: Warmed, images: dict[WorkloadRef, str], known: bool = True) -> list[tuple[WorkloadRef, str, int]]:
    found = images_to_pull(warmed, lambda ref: images.get(ref, ""), lambda _: NEEDS if known else None)
    return [(each.ref, each.pulled, len(each.nodes)) for each in found]


@pytest.mark.parametrize(
    ("warmed", "images", "expected"),
    [
        ({}, {A: "vllm:1"}, []),
        ({A: ("n1", "n2")}, {A: "vllm:1"}, [(A, "vllm:1", 2)]),
        ({A: ("n1",)}, {}, []),
        ({A: ("n1",)}, {A: "a b"}, []),
        ({A: ("n1", "n2"), B: ("n2", "n3")}, {A: "vllm:1", B: "vllm:1"}, [(A, "vllm:1", 2), (B, "vllm:1", 1)]),
        ({A: ("n1",), B: ("n1",)}, {A: "vllm:1", B: "vllm:1"}, [(A, "vllm:1", 1)]),
        ({A: NODES}, {A: "vllm:1"}, [(A, "vllm:1", MOST_PODS)]),
    ],
)
def test_each_image_is_pulled_once_for_a_node(
    warmed: Warmed, images: dict[WorkloadRef, str], expected: list[tuple[WorkloadRef, str, int]]
) -> None:
    assert pulled(warmed, images) == expected
    assert pulled(warmed, images, known=False) == []


def test_namespaces_take_turns_when_a_node_has_few_images() -> None:
    crowd = [WorkloadRef("a-crowd", f"w{number}") for number in range(100)]
    warmed = dict.fromkeys([*crowd, B], ("n1",))
    found = pulled(warmed, {ref: f"{ref.namespace}/{ref.name}:1" for ref in warmed})
    assert len(found) == MOST_IMAGES
    assert B in [ref for ref, _, _ in found]


def test_pods_are_bound_to_their_nodes_and_request_nothing() -> None:
    request = ImageRequest(A, ("n1", "n2"), NEEDS, "vllm:1")
    ((kind, name),) = objects = make_image_objects(request, "us/us", "pause", "low")
    spec = objects[kind, name]["spec"]
    pod = spec["template"]["spec"]
    assert (spec["replicas"], pod["priorityClassName"]) == (2, "low")
    assert pod["volumes"] == [{"name": "pulled", "image": {"reference": "vllm:1", "pullPolicy": "IfNotPresent"}}]
    assert "resources" not in pod["containers"][0]
    assert "nodeSelector" not in pod and "imagePullSecrets" not in pod
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["n1"], ["n2"]]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"]
    assert (kind, name) not in make_objects(PlaceRequest(A, 1, NEEDS), "us/us", "pause", "low", None)
