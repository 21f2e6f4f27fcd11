"""Objects of quotas and workloads for tests of the quotas, without an API server."""

from typing import Any

import msgspec

from autoscaler.adapters.kubernetes.api import node_objects, objects
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.quotas.columns import Applicant, QuotaLayout
from autoscaler.adapters.kubernetes.quotas.kueue import (
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    LOCAL_QUEUES,
    QUEUE_LABEL,
    KueueStore,
)

GPU = "nvidia.com/gpu"


def workload(namespace: str = "team-a", resource: str = GPU, queue: str = "", **needs: Any) -> Applicant:
    labels = {QUEUE_LABEL: queue} if queue else {}
    return Applicant(namespace, resource, Needs(cpu=1.0)._replace(**needs), labels, "")


def charged(layout: QuotaLayout | None, row: int) -> list[str]:
    """Return the sources and flavors of the quotas that charge a workload."""
    if layout is None or layout.tenant[row] < 0:
        return []
    return [
        f"{each.quota.source} {each.quota.flavor}".strip()
        for each, is_charged in zip(layout.rows, layout.charged[layout.tenant[row]], strict=True)
        if is_charged
    ]


def resource_quota(
    name: str, hard: dict[str, Any], used: dict[str, Any] | None = None, namespace: str = "team-a", **spec: Any
) -> node_objects.ResourceQuota:
    return decoded(
        {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"hard": hard, **spec},
            "status": {"used": used or {}},
        },
        node_objects.ResourceQuota,
    )


def decoded(value: dict[str, Any], kind: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


class Kueue:
    """The objects of one installation of Kueue."""

    def __init__(self) -> None:
        self.store = KueueStore()
        self._kinds = {kind: self.store.open(kind) for kind in (CLUSTER_QUEUES, COHORTS, FLAVORS, LOCAL_QUEUES)}

    def put(self, kind: str, name: str, spec: Any, status: Any = None, namespace: str = "") -> None:
        value = {"metadata": {"name": name, "namespace": namespace}, "spec": spec, "status": status}
        self._kinds[kind].put(decoded(value, objects.Untyped))

    def remove(self, kind: str, name: str, namespace: str = "") -> None:
        self._kinds[kind].remove(namespace, name)

    def cluster_queue(
        self, name: str, flavors: dict[str, dict[str, Any]], used: dict[str, int] | None = None, **spec: Any
    ) -> None:
        """flavors: the quota of GPUs of each."""
        status = {
            "flavorsReservation": [
                {"name": flavor, "resources": [{"name": GPU, "total": str(total)}]}
                for flavor, total in (used or {}).items()
            ]
        }
        self.put(CLUSTER_QUEUES, name, {"resourceGroups": groups(flavors), **spec}, status)

    def local_queue(self, name: str, of: str, namespace: str = "team-a", **spec: Any) -> None:
        self.put(LOCAL_QUEUES, name, {"clusterQueue": of, **spec}, namespace=namespace)

    def cohort(self, name: str, flavors: dict[str, dict[str, Any]] | None = None, **spec: Any) -> None:
        self.put(COHORTS, name, {"resourceGroups": groups(flavors or {}), **spec})

    def flavor(self, name: str, **spec: Any) -> None:
        self.put(FLAVORS, name, spec)


def groups(flavors: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return resource groups that cover GPUs and CPU."""
    return [
        {
            "coveredResources": [GPU, "cpu"],
            "flavors": [
                {"name": name, "resources": [{"name": GPU, **quota}, {"name": "cpu", "nominalQuota": "999"}]}
                for name, quota in flavors.items()
            ],
        }
    ]
