"""The scale target of a pod."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.prometheus.owners import (
    model_workload,
    name_in_pods,
    owner_of,
    pod_name_patterns,
    pod_name_patterns_of_any,
)
from autoscaler.core.model.fleet import WorkloadRef

REPLICA_SETS = {("llm", "llama-7d9c5b6f4"): ("Deployment", "llama"), ("llm", "canary-5b"): ("Rollout", "canary")}


@pytest.mark.parametrize(
    ("controller", "target"),
    [
        (("ReplicaSet", "llama-7d9c5b6f4"), WorkloadRef("llm", "llama")),
        (("ReplicaSet", "bare-rs"), WorkloadRef("llm", "bare-rs", "ReplicaSet")),
        (("ReplicaSet", "canary-5b"), WorkloadRef("llm", "canary", "Rollout", "argoproj.io/v1alpha1")),
        (("StatefulSet", "mixtral"), WorkloadRef("llm", "mixtral", "StatefulSet")),
        (
            ("LeaderWorkerSet", "deepseek"),
            WorkloadRef("llm", "deepseek", "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"),
        ),
    ],
)
def test_the_owner_comes_from_kube_state_metrics(controller: tuple[str, str], target: WorkloadRef):
    assert owner_of("llm", "some-pod", "model", controller, REPLICA_SETS) == target


@pytest.mark.parametrize(
    ("pod", "name", "kind"),
    [
        ("llama-7d9c5b6f4-x2x8k", "llama", "Deployment"),
        ("llama-3-8b-7d9c5b6f4-x2x8k", "llama-3-8b", "Deployment"),
        ("mixtral-0", "mixtral", "StatefulSet"),
        ("mixtral-12", "mixtral", "StatefulSet"),
    ],
)
def test_the_owner_is_inferred_from_the_pod_name(pod: str, name: str, kind: str):
    assert owner_of("llm", pod, "model", ("", ""), {}) == WorkloadRef("llm", name, kind)


SAFE = st.sampled_from("bcdfghjklmnpqrstvwxz2456789")
HASHES = st.text(SAFE, min_size=6, max_size=10)
SUFFIXES = st.text(SAFE, min_size=5, max_size=5)
# Words with a vowel cannot be taken for a hash.
LONG_NAMES = st.integers(1, 120).map(lambda length: ("meta-llama-" * 12)[:length].rstrip("-") + "a")


def pod_of_deployment(name: str, pod_hash: str, suffix: str) -> str:
    """Make a name as Kubernetes does: `names.SimpleNameGenerator` over the ReplicaSet's name and a dash."""
    return f"{name}-{pod_hash}-"[:58] + suffix


@given(LONG_NAMES, HASHES, SUFFIXES)
def test_the_owner_is_inferred_from_a_name_that_was_cut(name: str, pod_hash: str, suffix: str):
    pod = pod_of_deployment(name, pod_hash, suffix)
    assert len(pod) <= 63
    ref = owner_of("llm", pod, "model", ("", ""), {})
    assert ref.kind == "Deployment"
    assert ref.name == name_in_pods(name) == (name if len(name) < 58 else name[:58])


@given(LONG_NAMES, HASHES, SUFFIXES)
def test_pods_are_found_by_their_names_when_kubernetes_cut_them(name: str, pod_hash: str, suffix: str):
    pod = pod_of_deployment(name, pod_hash, suffix)
    for expressions in (pod_name_patterns(name), pod_name_patterns_of_any([name, "other"])):
        assert any(re.fullmatch(each, pod) for each in expressions)
        assert any(re.fullmatch(each, f"{name}-7") for each in expressions)


def test_safe_letters_before_the_suffix_belong_to_a_long_name():
    name = "deepseek-r1-distill-qwen-instruct-for-the-whole-agency-7b"
    assert len(name) == 57
    assert owner_of("llm", f"{name}-x2x8k", "m", ("", ""), {}).name == name


def test_words_at_the_end_of_a_name_are_no_hash():
    assert owner_of("llm", "meta-llama-model", "m", ("", ""), {}).kind == "Model"


def test_a_controller_that_cannot_be_scaled_is_ignored():
    assert owner_of("llm", "agent", "m", ("DaemonSet", "agent"), {}) == WorkloadRef("llm", "m", "Model", "")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama-llama-3.1-8b"),
        ("../../etc/passwd", "etc-passwd"),
        ("<script>", "script"),
        ("///", "unnamed"),
        ("x" * 1000, "x" * 253),
    ],
)
def test_a_model_gives_a_name_fit_for_an_address(model: str, name: str):
    assert model_workload("job", model).name == name
