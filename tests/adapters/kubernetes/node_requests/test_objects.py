"""The objects that request nodes: a pod that goes where a replica would go."""

import math

import pytest

from autoscaler.adapters.kubernetes.node_requests.objects import (
    DEPLOYMENTS,
    MOST_PODS,
    TEMPLATES,
    PlaceRequest,
    RequestKind,
    count_pods,
    is_supported,
    make_objects,
    object_name,
)
from autoscaler.adapters.kubernetes.pods.needs import NAME_FIELD, Needs, NodeExpression, PodToleration
from autoscaler.core.model.fleet import WorkloadRef

GPU = "nvidia.com/gpu"
LLAMA = WorkloadRef("team-a", "llama")
NEEDS = Needs(resource=GPU, largest=2.0, smallest=2.0, total=2.0, cpu=3.5, memory=2.0**30)
US = "vllm-autoscaler/vllm-autoscaler"


def pod_of(needs: Needs) -> dict:
    (body,) = make_objects(PlaceRequest(LLAMA, 1, needs), US, "pause", "low", None).values()
    return body["spec"]["template"]["spec"]


def test_a_placeholder_requests_what_a_pod_of_the_replica_does():
    pod = pod_of(NEEDS)
    (container,) = pod["containers"]
    assert container["resources"] == {
        "requests": {GPU: "2", "cpu": "3500m", "memory": "1073741824"},
        "limits": {GPU: "2"},
    }
    assert (pod["priorityClassName"], pod["terminationGracePeriodSeconds"]) == ("low", 0)
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("image", "is_pulled"),
    [
        ("vllm/vllm-openai:v0.20.0", True),
        ("registry.example:5000/a/b@sha256:" + "0" * 64, True),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("-a", False),
        ("a" * 501, False),
    ],
)
def test_placeholder_pulls_the_image_and_runs_nothing_of_it(image: str, is_pulled: bool):
    request = PlaceRequest(LLAMA, 1, NEEDS, image)
    (body,) = make_objects(request, US, "pause", "low", None).values()
    pod = body["spec"]["template"]["spec"]
    volume = {"name": "pulled", "image": {"reference": image, "pullPolicy": "IfNotPresent"}}
    assert pod.get("volumes") == ([volume] if is_pulled else None)
    (container,) = pod["containers"]
    assert container["image"] == "pause" and "volumeMounts" not in container
    template, _ = make_objects(request, US, "pause", "low", RequestKind("/apis/a/v1", "capacitybuffers")).values()
    assert "volumes" not in template["template"]["spec"]


def test_a_placeholder_goes_where_the_replica_may_go():
    needs = NEEDS._replace(
        selector=(("pool", "gpu"),),
        terms=(
            (
                NodeExpression("zone", "In", ("a", "b")),
                NodeExpression("spot", "DoesNotExist"),
                NodeExpression(NAME_FIELD, "In", ("n",)),
            ),
        ),
        tolerations=(
            PodToleration(GPU, "Exists"),
            PodToleration("team", "Equal", "a", "NoSchedule"),
            PodToleration(operator="Exists"),
        ),
    )
    pod = pod_of(needs)
    assert pod["nodeSelector"] == {"pool": "gpu"}
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {
        "matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a", "b"]},
            {"key": "spot", "operator": "DoesNotExist"},
        ],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
    }
    assert pod["tolerations"] == [
        {"key": GPU, "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"operator": "Exists"},
    ]


def test_a_buffer_has_a_template_of_its_name():
    buffers = RequestKind("/apis/autoscaling.x-k8s.io/v1", "capacitybuffers")
    objects = make_objects(PlaceRequest(LLAMA, 3, NEEDS), US, "pause", "low", buffers)
    name = object_name(LLAMA, US)
    assert objects.keys() == {(TEMPLATES, name), (buffers, name)}
    assert objects[buffers, name]["apiVersion"] == "autoscaling.x-k8s.io/v1"
    assert objects[buffers, name]["spec"] == {"podTemplateRef": {"name": name}, "replicas": 3}
    assert "priorityClassName" not in objects[TEMPLATES, name]["template"]["spec"]


def test_names_differ_by_workload_and_installation():
    others = [LLAMA._replace(namespace="b"), LLAMA._replace(kind="StatefulSet"), LLAMA._replace(name="x" * 253)]
    names = {object_name(ref, US) for ref in (LLAMA, *others)} | {object_name(LLAMA, "other/us")}
    assert len(names) == 5
    assert all(len(name) <= 63 for name in names)


@pytest.mark.parametrize(
    ("largest", "total", "places", "pods"), [(2, 2, 3, 3), (8, 16, 3, 6), (8, 12, 1, 2), (1, 1, 1000, MOST_PODS)]
)
def test_a_replica_of_several_pods_has_several_places(largest: float, total: float, places: int, pods: int):
    assert count_pods(PlaceRequest(LLAMA, places, NEEDS._replace(largest=largest, total=total))) == pods


def test_unknown_and_claimed_devices_are_not_supported():
    assert is_supported(NEEDS)
    for needs in (
        NEEDS._replace(resource=""),
        NEEDS._replace(resource="gpu.example.com"),
        NEEDS._replace(largest=math.nan),
        NEEDS._replace(largest=0.0),
        NEEDS._replace(devices=(NodeExpression("a", "In"),)),
    ):
        assert not is_supported(needs)


def test_a_deployment_is_applied_with_the_count_of_pods():
    ((kind, name),) = objects = make_objects(PlaceRequest(LLAMA, 2, NEEDS), US, "pause", "low", None)
    assert kind == DEPLOYMENTS
    assert objects[kind, name]["spec"]["replicas"] == 2
    assert objects[kind, name]["metadata"]["annotations"] == {"vllm-autoscaler.io/workload": "team-a/llama"}
