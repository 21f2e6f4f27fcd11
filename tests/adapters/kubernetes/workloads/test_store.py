"""The controller that serves in place of a target at zero replicas."""

from typing import Any

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api import objects, pod_objects, target_objects
from autoscaler.adapters.kubernetes.manual_overrides import OverrideTracker
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.adapters.kubernetes.workloads.store import ReplicaSetStore, TargetKindStore, TargetStore
from autoscaler.adapters.kubernetes.workloads.targets import DEPLOYMENT
from autoscaler.catalog.scale_targets import BY_KIND
from tests.adapters.kubernetes.pods.test_store import FixedClock

LABELS = {"app": "llama"}


class Cluster:
    """The stores of one namespace, filled from plain objects."""

    def __init__(self) -> None:
        clock = FixedClock()
        writes = OwnWrites(clock)
        self.pods = PodStore(clock)
        self.targets = TargetStore(self.pods, OverrideTracker(clock, writes), writes, lambda key: "")
        self.replica_sets = ReplicaSetStore(self.targets)

    def deployment(self, name: str, replicas: int, controller: str = "", labels: dict[str, str] = LABELS) -> None:
        body = {
            "metadata": metadata(name, controller),
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}},
        }
        TargetKindStore(self.targets, DEPLOYMENT).put(
            msgspec.json.decode(msgspec.json.encode(body), type=target_objects.TargetObject)
        )

    def replica_set(self, name: str, controller: str, labels: dict[str, str] | None = None) -> None:
        body = {"metadata": metadata(name, controller) | {"labels": labels}}
        self.replica_sets.put(msgspec.convert(body, objects.Object))

    def pod(self, name: str, replica_set: str, labels: dict[str, str] = LABELS) -> None:
        body = {"metadata": metadata(name, f"ReplicaSet/{replica_set}") | {"labels": labels}}
        self.pods.put(msgspec.json.decode(msgspec.json.encode(body), type=pod_objects.PodObject))

    def find_replacement(self, name: str) -> str:
        target = next(target for target in self.targets.targets.values() if target.ref.name == name)
        return self.targets.find_replacement(target)


def metadata(name: str, controller: str = "") -> dict[str, Any]:
    kind, _, owner = controller.partition("/")
    owners = [{"kind": kind, "name": owner, "uid": f"{kind}-{owner}", "controller": True}] if controller else []
    if kind == "ReplicaSet":
        owners[0]["uid"] = owner
    return {"name": name, "namespace": "ns", "uid": name, "ownerReferences": owners}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize(("partition", "gpus"), [(4, 1.0), (3, 2.0), (0, 2.0)])
def test_next_replica_is_like_its_pods_below_a_partition(cluster: Cluster, partition: int, gpus: float):
    """Three pods of one GPU are beside a template of two."""

    def template(count: int) -> dict[str, Any]:
        limits = {"nvidia.com/gpu": str(count)}
        return {"containers": [{"name": "vllm", "resources": {"limits": limits}}]}

    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}
    spec = {"replicas": 3, "updateStrategy": strategy, "template": {"spec": template(2)}}
    seen = msgspec.json.decode(
        msgspec.json.encode({"metadata": metadata("llama"), "spec": spec}), type=target_objects.TargetObject
    )
    TargetKindStore(cluster.targets, BY_KIND["StatefulSet"]).put(seen)
    for number in range(3):
        body = {"metadata": metadata(f"llama-{number}", "StatefulSet/x"), "spec": template(1)}
        body["metadata"]["ownerReferences"][0]["uid"] = "llama"
        cluster.pods.put(msgspec.json.decode(msgspec.json.encode(body), type=pod_objects.PodObject))
    (target_id,) = cluster.targets.targets
    cluster.targets.follow_pods([target_id])
    target = cluster.targets.targets[target_id]
    assert (target.facts.gpus, target.follows_pods) == (gpus, gpus == 1.0)


def test_rollout_replaces_a_deployment_at_zero(cluster: Cluster):
    cluster.pod("llama-abc-1", "llama-abc")
    cluster.replica_set("llama-abc", "Rollout/canary")
    cluster.deployment("llama", 0)
    assert cluster.find_replacement("llama") == "Rollout/canary"
    before = cluster.targets.version
    cluster.replica_sets.remove("ns", "llama-abc")
    assert cluster.find_replacement("llama") == ""
    assert cluster.targets.version > before


def test_rollout_is_found_by_labels_when_it_has_no_pod(cluster: Cluster):
    cluster.deployment("llama", 0)
    cluster.replica_set("llama-abc", "Rollout/llama", {**LABELS, "rollouts-pod-template-hash": "abc"})
    assert cluster.find_replacement("llama") == "Rollout/llama"


@pytest.mark.parametrize(
    ("replicas", "controller", "labels"),
    [
        (1, "Rollout/llama", LABELS),  # it has replicas of its own
        (0, "Rollout/llama", {"app": "mistral"}),
        (0, "Deployment/other", LABELS),
        (0, "", LABELS),
    ],
)
def test_no_replacement_is_found_for_other_labels_or_owners(
    cluster: Cluster, replicas: int, controller: str, labels: dict[str, str]
):
    cluster.deployment("llama", replicas)
    cluster.replica_set("llama-abc", controller, labels)
    cluster.pod("llama-abc-1", "llama-abc", labels)
    assert cluster.find_replacement("llama") == ""


def test_primary_of_a_canary_replaces_a_deployment_at_zero(cluster: Cluster):
    cluster.deployment("llama", 0)
    cluster.deployment("llama-primary", 3, "Canary/llama", {"app": "llama-primary"})
    assert cluster.find_replacement("llama") == "Canary/llama"
    assert cluster.find_replacement("llama-primary") == ""


def test_primary_without_canary_is_another_deployment(cluster: Cluster):
    cluster.deployment("llama", 0)
    cluster.deployment("llama-primary", 3, "", {"app": "llama-primary"})
    assert cluster.find_replacement("llama") == ""
