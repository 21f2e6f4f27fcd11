"""Lists objects of many kinds once, as they are, for `preflight` and `report`. Read only, by pages, and bounded.

Of pods only those that hold an accelerator are kept, and of each object what the checks read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.client import ApiError, Kube, object_path
from autoscaler.adapters.kubernetes.api.discovery import discover
from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.config.findings import UNREADABLE
from autoscaler.config.preflight.objects import CLUSTER_SCOPED

PAGE_OBJECTS = 200
MAX_OBJECTS = 20_000  # of one kind
IN_FLIGHT = 4
_CORE: Mapping[str, str] = MappingProxyType(
    {"nodes": "Node", "pods": "Pod", "services": "Service", "resourcequotas": "ResourceQuota"}
)
_GROUPS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "deployments.apps": ("v1", "Deployment"),
        "statefulsets.apps": ("v1", "StatefulSet"),
        "horizontalpodautoscalers.autoscaling": ("v2", "HorizontalPodAutoscaler"),
        "poddisruptionbudgets.policy": ("v1", "PodDisruptionBudget"),
        "priorityclasses.scheduling.k8s.io": ("v1", "PriorityClass"),
        "scaledobjects.keda.sh": ("v1alpha1", "ScaledObject"),
        "scaledjobs.keda.sh": ("v1alpha1", "ScaledJob"),
        "triggerauthentications.keda.sh": ("v1alpha1", "TriggerAuthentication"),
        "clustertriggerauthentications.keda.sh": ("v1alpha1", "ClusterTriggerAuthentication"),
        "verticalpodautoscalers.autoscaling.k8s.io": ("v1", "VerticalPodAutoscaler"),
        "podautoscalers.autoscaling.aibrix.ai": ("v1alpha1", "PodAutoscaler"),
        "leaderworkersets.leaderworkerset.x-k8s.io": ("v1", "LeaderWorkerSet"),
        "llminferenceservices.serving.kserve.io": ("v1alpha2", "LLMInferenceService"),
        "inferenceservices.serving.kserve.io": ("v1beta1", "InferenceService"),
        "rayservices.ray.io": ("v1", "RayService"),
        "rayclusters.ray.io": ("v1", "RayCluster"),
        "nodepools.karpenter.sh": ("v1", "NodePool"),
        "clusterqueues.kueue.x-k8s.io": ("v1beta2", "ClusterQueue"),
        "localqueues.kueue.x-k8s.io": ("v1beta2", "LocalQueue"),
        "cohorts.kueue.x-k8s.io": ("v1beta2", "Cohort"),
        "applications.argoproj.io": ("v1alpha1", "Application"),
        "applicationsets.argoproj.io": ("v1alpha1", "ApplicationSet"),
        "kustomizations.kustomize.toolkit.fluxcd.io": ("v1", "Kustomization"),
        "helmreleases.helm.toolkit.fluxcd.io": ("v2", "HelmRelease"),
        "podmonitors.monitoring.coreos.com": ("v1", "PodMonitor"),
        "servicemonitors.monitoring.coreos.com": ("v1", "ServiceMonitor"),
        "prometheuses.monitoring.coreos.com": ("v1", "Prometheus"),
        "prometheusagents.monitoring.coreos.com": ("v1alpha1", "PrometheusAgent"),
        "scrapeconfigs.monitoring.coreos.com": ("v1alpha1", "ScrapeConfig"),
        "prometheusrules.monitoring.coreos.com": ("v1", "PrometheusRule"),
    }
)
# Its kind has the name of one above, so it is listed where it is named alone.
_NAMED_ALONE: Mapping[str, tuple[str, str]] = MappingProxyType({"services.serving.knative.dev": ("v1", "Service")})
CONFIG_MAPS = "configmaps"  # those alone that a check reads, each by its name
RESOURCES = (*_CORE, *_GROUPS, CONFIG_MAPS)
MAX_CONFIG_MAPS = 64
# Images of programs whose ConfigMaps are read: prometheus-adapter, endpoint pickers of inference pools.
_CONFIGURED = re.compile(r"prometheus-adapter|[/-]epp\b|endpoint-picker|inference-scheduler")


class Listed(NamedTuple):
    """The objects of a cluster, and the kinds that could not be listed, with the reason."""

    objects: tuple[dict[str, Any], ...]
    problems: Mapping[str, str]  # by kind
    kinds: frozenset[str] = frozenset()  # of which all objects of the cluster are here


class _PageMetadata(msgspec.Struct, frozen=True):
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    items: list[dict[str, Any]]
    metadata: _PageMetadata = _PageMetadata()


_PAGE = msgspec.json.Decoder(_Page)


async def list_all(kube: Kube, namespaces: Sequence[str] = (), resources: Sequence[str] = RESOURCES) -> Listed:
    """List all kinds that the cluster serves. namespaces: the only ones that are read; (): all.

    resources: as "deployments.apps".

    Raises ApiError if the server does not answer at all; a kind that is refused is a problem of the result.
    """
    groups = {name: row for name, row in {**_GROUPS, **_NAMED_ALONE}.items() if name in resources}
    scoped = {name for name, (_, kind) in groups.items() if kind in CLUSTER_SCOPED}
    served = await discover(kube, {name: version for name, (version, _) in groups.items()}, scoped)
    problems = {kind: "its API cannot be discovered" for name, (_, kind) in groups.items() if name not in served}
    paths = [("/api/v1", plural, kind, "v1") for plural, kind in _CORE.items() if plural in resources]
    for name, found in served.items():
        if found is not None:
            plural, _, group = name.partition(".")
            paths.append((f"/apis/{group}/{found.version}", plural, found.kind, f"{group}/{found.version}"))
    turns = asyncio.Semaphore(IN_FLIGHT)
    objects: list[dict[str, Any]] = []

    async def one(root: str, plural: str, kind: str, version: str) -> None:
        for namespace in ("",) if kind in CLUSTER_SCOPED else namespaces or ("",):
            found: list[dict[str, Any]] = []
            async with turns:
                try:
                    async for item in _pages(kube, object_path(root, namespace, plural), kind, version):
                        found.append(item)  # noqa: PERF401  (an error keeps those before it)
                except ApiError as error:
                    problems[kind] = f"{error.status or 'no answer'}: {error.message}"
            objects.extend(found)

    await asyncio.gather(*(one(*path) for path in paths))
    for namespace, name in _config_maps(objects) if CONFIG_MAPS in resources else ():
        try:
            answer = await kube.request("GET", object_path("/api/v1", namespace, CONFIG_MAPS, name))
            kept = _kept(_mapping(msgspec.json.decode(answer)), "ConfigMap", "v1")
        except ApiError as error:
            if error.status != 404:
                problems["ConfigMap"] = f"{error.status or 'no answer'}: {error.message}"
        except UNREADABLE as error:
            problems["ConfigMap"] = f"not an object: {error}"
        else:
            objects += [kept] if kept is not None else []
    asked = {kind for _, kind in groups.values()} | {kind for plural, kind in _CORE.items() if plural in resources}
    return Listed(tuple(objects), problems, frozenset() if namespaces else frozenset(asked - problems.keys()))


def _config_maps(objects: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return namespace and name of the ConfigMaps that matter: what programs mount, and the settings of Argo CD."""
    wanted: dict[tuple[str, str], None] = {}
    for each in objects:
        namespace = _mapping(each.get("metadata")).get("namespace")
        if each["kind"] == "Application":
            wanted[str(namespace), "argocd-cm"] = None
        if each["kind"] != "Deployment":
            continue
        spec = _mapping(_mapping(_mapping(each.get("spec")).get("template")).get("spec"))
        images = [str(container.get("image")) for container in map(_mapping, _list(spec.get("containers")))]
        if any(_CONFIGURED.search(image[:1000]) for image in images):
            for volume in map(_mapping, _list(spec.get("volumes"))):
                if isinstance(name := _mapping(volume.get("configMap")).get("name"), str):
                    wanted[str(namespace), name] = None
    return list(wanted)[:MAX_CONFIG_MAPS]


async def _pages(kube: Kube, path: str, kind: str, version: str) -> Any:
    """Yield the objects of a kind. Raises ApiError."""
    after, count = "", 0
    while True:
        query = [("limit", str(PAGE_OBJECTS)), *([("continue", after)] if after else [])]
        try:
            page = _PAGE.decode(await kube.request("GET", path, query=query))
        except UNREADABLE as error:
            raise ApiError(f"GET {path}", 0, f"not a list: {error}") from error
        for item in page.items:
            yielded = _kept(item, kind, version)
            if yielded is not None:
                count += 1
                yield yielded
        after = page.metadata.continue_
        if not after:
            return
        if count >= MAX_OBJECTS:
            raise ApiError(f"GET {path}", 0, f"more than {MAX_OBJECTS} objects; the first are read")


def _kept(item: dict[str, Any], kind: str, version: str) -> dict[str, Any] | None:
    """Return the parts of an object that are read; None: nothing of it is."""
    if kind == "Pod":
        spec = _mapping(item.get("spec"))
        devices = [{"resources": {"limits": limits}} for limits in _devices(spec)]
        if not devices:
            return None
        status = {"phase": _mapping(item.get("status")).get("phase")}
        item = {
            "metadata": item.get("metadata"),
            "spec": {"nodeName": spec.get("nodeName"), "containers": devices},
            "status": status,
        }
    metadata = dict(_mapping(item.get("metadata")))
    fields = metadata.pop("managedFields", None)
    if kind in ("Deployment", "StatefulSet"):
        metadata["managedFields"] = [
            {
                "manager": each.get("manager"),
                "subresource": each.get("subresource"),
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            }
            for each in map(_mapping, fields if isinstance(fields, list) else [])
            if "f:replicas" in _mapping(_mapping(each.get("fieldsV1")).get("f:spec"))
        ]
    kept = {
        key: value
        for key, value in item.items()
        if key in ("spec", "data", "value", "preemptionPolicy", "globalDefault")
    }
    if kind == "Node":
        taints = _mapping(item.get("spec")).get("taints")
        kept = {"spec": {"taints": taints}, "status": {"allocatable": _mapping(item.get("status")).get("allocatable")}}
    if kind == "Pod":
        kept["status"] = item["status"]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **kept}


def _devices(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    containers = spec.get("containers")
    for each in containers if isinstance(containers, list) else []:
        limits = _mapping(_mapping(_mapping(each).get("resources")).get("limits"))
        found = {name: amount for name, amount in limits.items() if is_accelerator(name)}
        if found:
            yield found


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
