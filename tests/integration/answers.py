"""Workloads behind KEDA, and the answers that it would get."""

from typing import Any

from tests.integration.cluster import Cluster, Daemon

TRIGGER: dict[str, Any] = {
    "type": "external-push",
    "metadata": {"scalerAddress": "vllm-autoscaler-keda:6000", "policy": "quick"},
}
AT_ONCE = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 100, "periodSeconds": 15}]}


async def scaled(cluster: Cluster, name: str, replicas: int, **metadata: str) -> None:
    """Create a workload behind a ScaledObject, and the HPA that KEDA makes of it. metadata: of its trigger."""
    await cluster.workload(name, replicas, policy=None)
    trigger = TRIGGER | {"metadata": TRIGGER["metadata"] | metadata}
    await cluster.site.scaled_object(name, name, trigger, minReplicaCount=1)
    await cluster.site.hpa(f"keda-hpa-{name}", name, scaled_object=name)
    behavior = {"spec": {"behavior": {"scaleUp": AT_ONCE, "scaleDown": AT_ONCE}}}
    await cluster.site.patch("HorizontalPodAutoscaler", f"keda-hpa-{name}", behavior, "autoscaling/v2")


def answers(daemon: Daemon, *names: str) -> list[int]:
    assert daemon.last is not None
    return [int(daemon.last.decision.replicas[daemon.row(name)]) for name in names]
