"""The stores of what is read of a cluster, and which kinds fill them in which mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoscaler.adapters.kubernetes.api import node_objects, objects, pod_objects, target_objects
from autoscaler.adapters.kubernetes.api.discovery import ServedKind
from autoscaler.adapters.kubernetes.api.reflector import ObjectStore, Resource, Stores, WatchTimes
from autoscaler.adapters.kubernetes.autoscalers.hpas import HpaStore
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import ScaledObjectStore
from autoscaler.adapters.kubernetes.cluster_watch import KindStore, Watched
from autoscaler.adapters.kubernetes.inventory.devices import store as devices
from autoscaler.adapters.kubernetes.inventory.elastic import STATUS_OBJECT, Elastic
from autoscaler.adapters.kubernetes.inventory.nodes import NodeStore
from autoscaler.adapters.kubernetes.manual_overrides import OverrideTracker
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.node_events import NodeEvents
from autoscaler.adapters.kubernetes.pods.store import PodStore
from autoscaler.adapters.kubernetes.quotas import kueue
from autoscaler.adapters.kubernetes.quotas.view import QuotaView, Stated
from autoscaler.adapters.kubernetes.weights import fluid_datasets, kserve
from autoscaler.adapters.kubernetes.weights.fluid_datasets import Datasets
from autoscaler.adapters.kubernetes.weights.kserve import LocalModels
from autoscaler.adapters.kubernetes.weights.view import WeightsView
from autoscaler.adapters.kubernetes.workloads.kinds import TargetKinds
from autoscaler.adapters.kubernetes.workloads.store import ReplicaSetStore, TargetKindStore, TargetStore
from autoscaler.adapters.kubernetes.workloads.targets import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET
from autoscaler.adapters.kubernetes.workloads.teams import Teams
from autoscaler.config.settings import Mode
from autoscaler.config.system_namespaces import NONE_ALLOWED, SystemNamespaces
from autoscaler.core.model.fleet import Workload
from autoscaler.ports import Clock, Leadership

CUSTOM_KINDS = dict.fromkeys(kueue.KINDS, kueue.VERSION) | dict.fromkeys(devices.KINDS, devices.VERSION)
"""Kinds that are watched where they are served, in addition to scale targets, with their versions."""
OTHER_CACHES = {**kserve.KINDS, **fluid_datasets.KINDS}  # of weights
CUSTOM_TYPES: dict[str, type[objects.Object]] = {**devices.KINDS, fluid_datasets.DATASETS: objects.Dataset}
CLUSTER_WIDE = frozenset({*kueue.CLUSTER_SCOPED, *devices.CLUSTER_SCOPED, *kserve.KINDS})

NODE_POOLS = Resource(
    "/apis/karpenter.sh/v1", "nodepools", node_objects.NodePool, namespaced=False, optional=True, auxiliary=True
)
AUTOSCALER_STATUS = Resource(
    "/api/v1", "configmaps", objects.ConfigMap, optional=True, auxiliary=True, only=STATUS_OBJECT
)
RESOURCE_QUOTAS = Resource("/api/v1", "resourcequotas", node_objects.ResourceQuota, optional=True, auxiliary=True)
NAMESPACES = Resource(
    "/api/v1", "namespaces", objects.Object, namespaced=False, optional=True, auxiliary=True, metadata_only=True
)


@dataclass(frozen=True)
class Scope:
    """The stores that a process reads of a cluster."""

    mode: Mode
    namespaces: Sequence[str] = ()  # (): all of them
    target_kinds: Sequence[str] = ()  # custom kinds that may be scaled ("rollouts.argoproj.io"); (): all that are known
    node_group_max: Mapping[str, int] = field(default_factory=dict)
    """The largest number of nodes with a label, "key=value", which an autoscaler may create."""
    stated_quotas: Stated = tuple
    """Returns the quotas of a file, for workloads that no quota of the cluster charges."""
    weights_gb: Callable[[Workload], float] = lambda _: 0.0
    """Returns the weights that a workload or its policy states, in 10^9 bytes; 0: none."""
    team_label: str = "team"  # of workloads, their pods or namespaces; its value names their team
    with_caches: bool = False  # also what other caches of weights hold on nodes
    system: SystemNamespaces = NONE_ALLOWED  # namespaces that are refused
    times: WatchTimes | None = None


class ClusterStores:
    """One store for each kind of objects."""

    def __init__(self, clock: Clock, scope: Scope, writes: OwnWrites, leadership: Leadership | None = None) -> None:
        self.scope = scope
        self.pods = PodStore(clock)
        self.manual_overrides = OverrideTracker(clock, writes, leadership)
        self.devices = devices.DeviceStore(clock)
        self.nodes = NodeStore(clock, self.devices.has_devices)
        self.elastic = Elastic(scope.node_group_max)
        self.node_events = NodeEvents(clock)
        self.quotas = QuotaView(scope.stated_quotas)
        self.weights = WeightsView(clock, scope.weights_gb)
        self.local_models = LocalModels(self.weights.reports)
        self.datasets = Datasets(self.weights.reports)
        self.hpas = HpaStore()
        self.scaled_objects = ScaledObjectStore(self.hpas)
        self.targets = TargetStore(self.pods, self.manual_overrides, writes, self.scaled_objects.owner)
        self.kinds = TargetKinds(scope.target_kinds)
        self.teams = Teams(scope.team_label)

    def watched(self) -> Watched:
        """Return the kinds to watch; custom ones where they are served."""
        others = OTHER_CACHES if self.scope.with_caches else {}
        custom = {**self.kinds.preferred, **CUSTOM_KINDS, **others}
        return Watched(self._resources(), custom, self._open_kind, CLUSTER_WIDE)

    def _resources(self) -> list[tuple[Resource[Any], ObjectStore[Any]]]:
        """Return the kinds to watch. A kind that the mode does not need is not watched, and needs no permission."""
        each_node = Stores(self.nodes, self.weights.reports, self.datasets.nodes)
        apps, keda = "/apis/apps/v1", "/apis/keda.sh/v1alpha1"
        stores: list[tuple[Resource[Any], ObjectStore[Any]]] = [
            (Resource(apps, "deployments", target_objects.TargetObject), TargetKindStore(self.targets, DEPLOYMENT)),
            (Resource(apps, "statefulsets", target_objects.TargetObject), TargetKindStore(self.targets, STATEFUL_SET)),
            (Resource(apps, "replicasets", objects.Object, metadata_only=True), ReplicaSetStore(self.targets)),
            (Resource("/api/v1", "pods", pod_objects.PodObject), self.pods),
            (Resource("/api/v1", "nodes", node_objects.NodeObject, namespaced=False, optional=True), each_node),
            (NODE_POOLS, self.elastic.node_pools),
            (AUTOSCALER_STATUS, self.elastic.status),
            (RESOURCE_QUOTAS, self.quotas.resource_quotas),
        ]
        names: list[tuple[str, str] | None] = [("", namespace) for namespace in self.scope.namespaces] or [None]
        stores += [(replace(NAMESPACES, only=name), self.teams) for name in names]
        stores += [(resource, self.node_events) for resource in self.node_events.resources()]
        stores += [(resource, self.pods.image_pulls) for resource in self.pods.image_pulls.resources()]
        if self.scope.mode is not Mode.DRY_RUN:
            is_optional = self.scope.mode is not Mode.KEDA
            stores += [
                (
                    Resource(
                        "/apis/autoscaling/v2", "horizontalpodautoscalers", target_objects.HorizontalPodAutoscaler
                    ),
                    self.hpas,
                ),
                (
                    Resource(keda, "scaledobjects", target_objects.ScaledObject, optional=is_optional),
                    self.scaled_objects,
                ),
            ]
        return stores

    def _open_kind(self, served: ServedKind) -> tuple[Resource[Any], KindStore]:
        """Return the watch of a custom kind and its store. Of a kind that cannot be scaled only metadata are read."""
        name = served.resource
        if name in CUSTOM_KINDS or name in OTHER_CACHES:
            plural, _, group = name.partition(".")
            root, is_namespaced = f"/apis/{group}/{served.version}", name not in CLUSTER_WIDE
            type_: type[objects.Object] = CUSTOM_TYPES.get(name, objects.Untyped)
            return Resource(root, plural, type_, namespaced=is_namespaced, optional=True), self._store_of(name)
        row, refusal = self.kinds.serve(served)
        kind: type[objects.Object] = (
            target_objects.LeaderWorkerSet if row is LEADER_WORKER_SET else target_objects.CustomTarget
        )
        if refusal:
            kind = objects.AnnotatedObject
        root = f"/apis/{row.group}/{served.version}"
        resource = Resource(root, row.plural, kind, optional=True, metadata_only=bool(refusal))
        return resource, TargetKindStore(self.targets, row, refusal)

    def _store_of(self, resource: str) -> KindStore:
        """Return the store of a custom kind that is no scale target."""
        if resource in devices.KINDS:
            store: KindStore = self.devices.store_of(resource)
            return store
        if resource in kserve.KINDS:
            return self.local_models.store_of(resource)
        return self.datasets if resource == fluid_datasets.DATASETS else self.quotas.kueue.open(resource)
