"""The scale target behind a pod."""

import pytest

from autoscaler.adapters.prometheus.owners import of_model, owner_of
from autoscaler.core.fleet import WorkloadRef

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
def test_kube_state_metrics_tells_the_owner(controller: tuple[str, str], target: WorkloadRef):
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
def test_without_it_the_name_of_the_pod_tells(pod: str, name: str, kind: str):
    assert owner_of("llm", pod, "model", ("", ""), {}) == WorkloadRef("llm", name, kind)


def test_words_at_the_end_of_a_name_are_no_hash():
    assert owner_of("llm", "meta-llama-model", "m", ("", ""), {}).kind == "Model"


def test_a_controller_that_nobody_can_scale_is_not_taken():
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
    assert of_model("job", model).name == name
