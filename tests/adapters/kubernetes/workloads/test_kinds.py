"""Kinds of scale targets: those that are wanted, their API paths, and why a target is not known."""

import pytest

from autoscaler.adapters.kubernetes.api.discovery import ServedKind
from autoscaler.adapters.kubernetes.autoscalers.by_target import target_key
from autoscaler.adapters.kubernetes.workloads.kinds import TargetKinds
from autoscaler.catalog.scale_targets import BY_KIND, TARGETS
from autoscaler.core.model.fleet import WorkloadRef

ROLLOUTS = "rollouts.argoproj.io"


def ref(kind: str, api_version: str) -> WorkloadRef:
    return WorkloadRef("ns", "x", kind, api_version)


def test_known_custom_kinds_are_wanted_by_default():
    assert TargetKinds().preferred == {row.resource: row.version for row in TARGETS if row.group != "apps"}


@pytest.mark.parametrize(
    ("named", "preferred"),
    [
        ((ROLLOUTS,), {ROLLOUTS: "v1alpha1"}),
        (("models.example.com", ROLLOUTS, ROLLOUTS), {"models.example.com": "", ROLLOUTS: "v1alpha1"}),
        (("none",), {}),
    ],
)
def test_named_kinds_are_the_only_ones(named: tuple[str, ...], preferred: dict[str, str]):
    assert TargetKinds(named).preferred == preferred


def test_path_has_the_version_that_is_served():
    kinds, adapter = TargetKinds(), ref("DynamoGraphDeploymentScalingAdapter", "nvidia.com/v1alpha1")
    plural = "dynamographdeploymentscalingadapters"
    assert kinds.locate(adapter) == ("/apis/nvidia.com/v1alpha1", plural)
    row, refusal = kinds.serve(ServedKind(f"{plural}.nvidia.com", adapter.kind, "v1beta1", scalable=True))
    assert (row, refusal) == (BY_KIND[adapter.kind], "")
    assert kinds.locate(adapter) == ("/apis/nvidia.com/v1beta1", plural)


@pytest.mark.parametrize(
    ("kind", "api_version"),
    [
        ("RayService", "ray.io/v1"),
        ("Deployment", "example.com/v1"),
        ("InferenceService", "inference.example.com/v1"),
        ("Model", "example.com/v1"),
        ("Pod", "v1"),
    ],
)
def test_kind_that_cannot_be_scaled_has_no_path(kind: str, api_version: str):
    assert TargetKinds().locate(ref(kind, api_version)) is None


def test_version_without_scale_subresource_is_refused():
    row, refusal = TargetKinds().serve(ServedKind("vllmruntimes.production-stack.vllm.ai", "VLLMRuntime", "v1", False))
    assert row is BY_KIND["VLLMRuntime"]
    assert refusal.startswith("version v1 of vllmruntimes.production-stack.vllm.ai has no scale subresource")


def test_kind_without_row_is_read_in_the_usual_way():
    kinds = TargetKinds(("models.example.com",))
    row, refusal = kinds.serve(ServedKind("models.example.com", "Model", "v2", scalable=True))
    assert (row.api_version, row.replicas, refusal) == ("example.com/v2", ("spec", "replicas"), "")
    assert kinds.locate(ref("Model", "example.com/v2")) == ("/apis/example.com/v2", "models")


@pytest.mark.parametrize(
    ("kind", "api_version", "words"),
    [
        ("Deployment", "apps/v1", "the target does not exist"),
        ("Rollout", "argoproj.io/v1alpha1", "the target does not exist"),
        ("NodeSet", "slinky.slurm.net/v1beta1", "nodesets.slinky.slurm.net cannot be listed: 403"),
        ("PodClique", "grove.io/v1alpha1", "the API server does not serve podcliques.grove.io"),
        ("Model", "example.com/v1", "Model of example.com is not watched; allowed: --target-kind=<plural>.example.com"),
        ("DaemonSet", "apps/v1", ""),
        ("RayService", "ray.io/v1", ""),
    ],
)
def test_absence_of_a_target_is_explained(kind: str, api_version: str, words: str):
    kinds = TargetKinds()
    for resource, served in ((ROLLOUTS, "Rollout"), ("nodesets.slinky.slurm.net", "NodeSet")):
        kinds.serve(ServedKind(resource, served, BY_KIND[served].version, scalable=True))
    target = ref(kind, api_version)
    assert kinds.describe_absence(target, target_key(target), {"nodesets.slinky.slurm.net": "403"}) == words


def test_kind_that_the_setting_leaves_out_is_named():
    target = ref("Rollout", "argoproj.io/v1alpha1")
    words = "Rollout is not watched; allowed: --target-kind=rollouts.argoproj.io"
    assert TargetKinds(("none",)).describe_absence(target, target_key(target), {}) == words
