"""What serves in place of a target that another controller keeps at zero."""

from typing import Any

import msgspec
import pytest

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.autoscalers.hpas import Hands
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.store import PodTable
from autoscaler.adapters.kubernetes.workloads.store import ReplicaSets, Targets, TargetTable
from autoscaler.adapters.kubernetes.workloads.targets import DEPLOYMENT
from tests.adapters.kubernetes.pods.test_store import StillClock

LABELS = {"app": "llama"}


class Cluster:
    """The tables of one namespace, filled from plain objects."""

    def __init__(self) -> None:
        clock = StillClock()
        writes = OwnWrites(clock)
        self.pods = PodTable(clock)
        self.targets = TargetTable(self.pods, Hands(clock, writes), writes, lambda key: "")
        self.replica_sets = ReplicaSets(self.targets)

    def deployment(self, name: str, replicas: int, controller: str = "", labels: dict[str, str] = LABELS) -> None:
        body = {
            "metadata": metadata(name, controller),
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}},
        }
        Targets(self.targets, DEPLOYMENT).put(msgspec.convert(body, objects.Target))

    def replica_set(self, name: str, controller: str, labels: dict[str, str] | None = None) -> None:
        body = {"metadata": metadata(name, controller) | {"labels": labels}}
        self.replica_sets.put(msgspec.convert(body, objects.Object))

    def pod(self, name: str, replica_set: str, labels: dict[str, str] = LABELS) -> None:
        body = {"metadata": metadata(name, f"ReplicaSet/{replica_set}") | {"labels": labels}}
        self.pods.put(msgspec.json.decode(msgspec.json.encode(body), type=objects.Pod))

    def served_by(self, name: str) -> str:
        row = next(row for row in self.targets.rows.values() if row.ref.name == name)
        return self.targets.served_by(row)


def metadata(name: str, controller: str = "") -> dict[str, Any]:
    kind, _, owner = controller.partition("/")
    owners = [{"kind": kind, "name": owner, "uid": f"{kind}-{owner}", "controller": True}] if controller else []
    if kind == "ReplicaSet":
        owners[0]["uid"] = owner
    return {"name": name, "namespace": "ns", "uid": name, "ownerReferences": owners}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_pods_of_a_rollout_serve_for_a_deployment_at_zero(cluster: Cluster):
    cluster.pod("llama-abc-1", "llama-abc")
    cluster.replica_set("llama-abc", "Rollout/canary")
    cluster.deployment("llama", 0)
    assert cluster.served_by("llama") == "Rollout/canary"
    before = cluster.targets.version
    cluster.replica_sets.remove("ns", "llama-abc")
    assert cluster.served_by("llama") == ""
    assert cluster.targets.version > before


def test_a_rollout_at_zero_is_known_by_the_labels_of_its_replica_set(cluster: Cluster):
    cluster.deployment("llama", 0)
    cluster.replica_set("llama-abc", "Rollout/llama", {**LABELS, "rollouts-pod-template-hash": "abc"})
    assert cluster.served_by("llama") == "Rollout/llama"


@pytest.mark.parametrize(
    ("replicas", "controller", "labels"),
    [
        (1, "Rollout/llama", LABELS),  # it serves itself
        (0, "Rollout/llama", {"app": "mistral"}),
        (0, "Deployment/other", LABELS),
        (0, "", LABELS),
    ],
)
def test_nothing_else_serves_for_a_deployment(cluster: Cluster, replicas: int, controller: str, labels: dict[str, str]):
    cluster.deployment("llama", replicas)
    cluster.replica_set("llama-abc", controller, labels)
    cluster.pod("llama-abc-1", "llama-abc", labels)
    assert cluster.served_by("llama") == ""


def test_a_canarys_primary_serves_for_a_deployment_at_zero(cluster: Cluster):
    cluster.deployment("llama", 0)
    cluster.deployment("llama-primary", 3, "Canary/llama", {"app": "llama-primary"})
    assert cluster.served_by("llama") == "Canary/llama"
    assert cluster.served_by("llama-primary") == ""


def test_a_primary_that_no_canary_made_is_another_deployment(cluster: Cluster):
    cluster.deployment("llama", 0)
    cluster.deployment("llama-primary", 3, "", {"app": "llama-primary"})
    assert cluster.served_by("llama") == ""
