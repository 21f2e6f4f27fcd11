"""Objects in the real API server, which tests create in place of controllers, scheduler and kubelet."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.deletion_costs import DeletionCosts
from autoscaler.adapters.kubernetes.fleet import KubeFleet
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.scale import ScaleActuator
from autoscaler.adapters.kubernetes.workloads.kinds import TargetKinds
from autoscaler.catalog.scale_targets import BY_KIND
from autoscaler.core.model.fleet import Fleet
from autoscaler.ports import Leadership, Unavailable
from tests.harness.kube_api import KubeApi, load_manifests
from tests.harness.process import PATIENCE_S, eventually

MANIFESTS = Path(__file__).parents[3] / "manifests"
PREFIX = "vllm-autoscaler.io/"
LWS = "leaderworkerset.x-k8s.io/v1"
KEDA = "keda.sh/v1alpha1"
EARLY, LATER, LATEST = "2026-01-01T00:00:10Z", "2026-01-01T00:01:00Z", "2026-01-01T00:03:00Z"


def shipped_roles(overlay: str) -> list[dict[str, Any]]:
    """Return the Roles and ClusterRoles that an overlay ships."""
    paths = [MANIFESTS / overlay / "rbac.yaml", MANIFESTS / "status-reader" / "rbac.yaml"]
    if overlay != "dry-run":
        paths.append(MANIFESTS / "lease" / "role.yaml")
    return [document for document in load_manifests(*paths) if document["kind"] in ("Role", "ClusterRole")]


def shipped_target_roles() -> list[dict[str, Any]]:
    """Return the ClusterRoles for further kinds of scale targets."""
    paths = (MANIFESTS / "targets" / "read.yaml", MANIFESTS / "targets" / "scale.yaml")
    return [document for document in load_manifests(*paths) if document["kind"] == "ClusterRole"]


def kueue_role() -> dict[str, Any]:
    """Return the ClusterRole for Kueue's quotas."""
    return load_manifests(MANIFESTS / "kueue" / "rbac.yaml")[0]


def annotated(**annotations: str) -> dict[str, str]:
    """Return annotations with our prefix: `min_replicas="1"`."""
    return {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}


def template(labels: Mapping[str, str], gpus: int = 1, **spec: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    containers = [
        {"name": "proxy", "image": "proxy"},
        {
            "name": "vllm",
            "image": "vllm",
            "args": ["--model", "m", "--max-num-seqs=24"],
            "resources": {"limits": limits},
        },
    ]
    return {"metadata": {"labels": dict(labels)}, "spec": {"containers": containers, **spec}}


def condition(kind: str, status: str = "True", at: str = EARLY, reason: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": at, "reason": reason}


SCHEDULED = condition("PodScheduled")
RUNNING_STATUS = {
    "phase": "Running",
    "podIP": "10.1.2.3",
    "conditions": [SCHEDULED, condition("Ready", "False", LATER)],
    "containerStatuses": [
        {"name": name, "image": "i", "imageID": "", "ready": True, "restartCount": 0}
        | {"state": {"running": {"startedAt": LATER}}}
        for name in ("proxy", "vllm")
    ],
}
READY_STATUS = RUNNING_STATUS | {"conditions": [SCHEDULED, condition("Ready", "True", LATEST)]}


def waiting_status(reason: str) -> dict[str, Any]:
    state = {"name": "vllm", "image": "i", "imageID": "", "ready": False, "restartCount": 3}
    return {
        "phase": "Pending",
        "conditions": [SCHEDULED],
        "containerStatuses": [state | {"state": {"waiting": {"reason": reason}}}],
    }


class World:
    """One namespace. It creates objects like a controller."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.api = api
        self.namespace = namespace

    async def deployment(
        self, name: str, replicas: int = 1, annotations: Mapping[str, str] | None = None, gpus: int = 1, **spec: Any
    ) -> dict[str, Any]:
        """Create a Deployment and its ReplicaSet; by default with the policy `realtime`."""
        annotations = annotated(policy="realtime") if annotations is None else annotations
        return await self._workload("Deployment", name, replicas, annotations, gpus, spec)

    async def stateful_set(self, name: str, replicas: int = 1) -> dict[str, Any]:
        return await self._workload("StatefulSet", name, replicas, annotated(policy="realtime"), 1, {})

    async def leader_worker_set(self, name: str, replicas: int = 1, size: int = 4, gpus: int = 8) -> dict[str, Any]:
        metadata = {"name": name, "annotations": annotated(policy="realtime")}
        spec = {"replicas": replicas, "leaderWorkerTemplate": {"size": size, "workerTemplate": template({}, gpus)}}
        return await self._apply({"apiVersion": LWS, "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec})

    async def target(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        selector: str = "",
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Create a custom scale target and its status, like its controller; by default with the policy `realtime`."""
        row = BY_KIND[kind]
        annotations = annotated(policy="realtime") if annotations is None else annotations
        metadata = {"name": name, "annotations": dict(annotations)}
        body = {"apiVersion": row.api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}
        created = await self._apply(body)
        if selector:
            status = {row.selector[-1]: selector, "replicas": 1}
            await self.api.set_status(row.api_version, kind, self.namespace, name, status)
        return created

    async def owned_pod(
        self, name: str, owner: str, labels: Mapping[str, str], status: Mapping[str, Any] | None = None, gpus: int = 1
    ) -> None:
        """Create a pod of any controller. owner: "Kind/name", of which nothing needs to exist."""
        kind, _, of = owner.partition("/")
        uid = f"{zlib.crc32(owner.encode()):08x}-0000-4000-8000-000000000000"
        reference = {"apiVersion": "example.com/v1", "kind": kind, "name": of, "uid": uid, "controller": True}
        metadata = {"name": name, "labels": dict(labels), "ownerReferences": [reference]}
        body = template({}, gpus, nodeName="node-1")["spec"]
        await self._apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})
        if status is not None:
            await self.status(name, status)

    async def pod(
        self,
        workload: str,
        name: str,
        status: Mapping[str, Any] | None = None,
        kind: str = "Deployment",
        labels: Mapping[str, str] | None = None,
        node: str = "node-1",
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Create a pod with its owner, a node unless it is unscheduled, and a status like the kubelet's."""
        owner_kind = {"Deployment": "ReplicaSet"}.get(kind, kind)
        owner_name = f"{workload}-1" if kind == "Deployment" else workload
        api_version = LWS if kind == "LeaderWorkerSet" else "apps/v1"
        owner = await self.api.get(api_version, owner_kind, self.namespace, owner_name)
        reference = {
            "apiVersion": api_version,
            "kind": owner_kind,
            "name": owner_name,
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        metadata = {"name": name, "labels": {"app": workload, **(labels or {})}, "ownerReferences": [reference]}
        metadata["annotations"] = dict(annotations or {})
        body = template({}, 1, nodeName=node)["spec"]
        created = await self._apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})
        if status is not None:
            await self.status(name, status)
        return created

    async def status(self, pod: str, status: Mapping[str, Any]) -> None:
        await self.api.set_status("v1", "Pod", self.namespace, pod, status)

    async def hpa(self, name: str, target: str, scaled_object: str = "") -> None:
        metadata: dict[str, Any] = {"name": name}
        if scaled_object:
            owner = await self.api.get(KEDA, "ScaledObject", self.namespace, scaled_object)
            metadata["ownerReferences"] = [
                {
                    "apiVersion": KEDA,
                    "kind": "ScaledObject",
                    "name": scaled_object,
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                }
            ]
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
        spec: dict[str, Any] = {"maxReplicas": 10, "scaleTargetRef": reference}
        if scaled_object:  # as KEDA writes it
            metric = {"name": "s0-replicas", "selector": {"matchLabels": {"scaledobject.keda.sh/name": scaled_object}}}
            value = {"type": "AverageValue", "averageValue": "1"}
            spec["metrics"] = [{"type": "External", "external": {"metric": metric, "target": value}}]
        hpa = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
        await self._apply(hpa)

    async def scaled_object(self, name: str, target: str, *triggers: Mapping[str, Any], **spec: Any) -> dict[str, Any]:
        created = {
            "apiVersion": KEDA,
            "kind": "ScaledObject",
            "metadata": {"name": name},
            "spec": {"scaleTargetRef": {"name": target}, "triggers": list(triggers), **spec},
        }
        return await self._apply(created)

    async def scale(self, name: str, replicas: int, by: str, kind: str = "Deployment", api: str = "apps/v1") -> None:
        """Change a count like another client: `kubectl scale`, `kubectl edit`."""
        path = await self.api.path(api, kind, self.namespace, name, "scale")
        merge = "application/merge-patch+json"
        await self.api.request("PATCH", path, {"spec": {"replicas": replicas}}, content_type=merge, fieldManager=by)

    async def replicas(self, name: str, kind: str = "Deployment", api: str = "apps/v1") -> int:
        scale = await self.api.get(api, kind, self.namespace, name, "scale")
        count: int = scale["spec"].get("replicas", 0)
        return count

    async def patch(self, kind: str, name: str, patch: Mapping[str, Any], api_version: str = KEDA) -> None:
        """Change an object like its author; None removes a field."""
        path = await self.api.path(api_version, kind, self.namespace, name)
        await self.api.request("PATCH", path, patch, content_type="application/merge-patch+json")

    async def delete(self, kind: str, name: str, api_version: str = "apps/v1") -> None:
        await self.api.delete(api_version, kind, self.namespace, name)

    async def _workload(
        self, kind: str, name: str, replicas: int, annotations: Mapping[str, str], gpus: int, spec: Mapping[str, Any]
    ) -> dict[str, Any]:
        labels = {"app": name}
        body: dict[str, Any] = {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template(labels, gpus, **spec),
        }
        metadata = {"name": name, "annotations": dict(annotations)}
        created = await self._apply({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": body})
        if kind == "Deployment":
            owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": created["metadata"]["uid"]}
            metadata = {"name": f"{name}-1", "ownerReferences": [owner | {"controller": True}]}
            await self._apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": body})
        return created

    async def _apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return (await self.api.apply(manifest, namespace=self.namespace))[0]


@asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[None]:
    """Run each part in a task during the test."""
    tasks = [asyncio.create_task(part.run()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def patient_actuator(
    kube: Kube,
    writes: OwnWrites,
    leadership: Leadership | None = None,
    kinds: TargetKinds | None = None,
    deletion_costs: DeletionCosts | None = None,
) -> ScaleActuator:
    """Return an actuator that waits for a busy API server."""
    return ScaleActuator(
        kube, writes, leadership, kinds, deletion_costs, read_timeout_s=PATIENCE_S, write_timeout_s=PATIENCE_S
    )


async def synced(fleet: KubeFleet) -> Fleet:
    """Wait for the first view."""

    async def known() -> Fleet | None:
        try:
            return fleet.fleet()
        except Unavailable:
            return None

    found = await eventually(known, "the cluster is known")
    assert found is not None
    return found


async def until(fleet: KubeFleet, what: str, holds: Any, timeout_s: float = PATIENCE_S) -> Fleet:
    """Wait for a view for which `holds(view)` is true."""

    async def view() -> Fleet | None:
        seen = fleet.fleet()
        return seen if holds(seen) else None

    found = await eventually(view, what, timeout_s)
    assert found is not None
    return found


def row(fleet: Fleet, name: str) -> int:
    return next(index for index, workload in enumerate(fleet.workloads) if workload.ref.name == name)


def pod_row(fleet: Fleet, name: str) -> int:
    return next(index for index, pod in enumerate(fleet.pods) if pod.name == name)


def names(fleet: Fleet) -> list[str]:
    return [workload.ref.name for workload in fleet.workloads]
