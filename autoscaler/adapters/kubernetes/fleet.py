"""The cluster as one synced `Fleet`: watches update stores, and a tick lays the stores out as columns.

A view shares with the previous one whatever has not changed. While watches are broken the last view stays valid, and
`Fleet.time_s` tells when it was last true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import structlog

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.discovery import ServedKind
from autoscaler.adapters.kubernetes.api.reflector import ObjectStore, Resource, Stores, WatchTimes
from autoscaler.adapters.kubernetes.api.text import join_problems
from autoscaler.adapters.kubernetes.autoscalers.by_target import target_key
from autoscaler.adapters.kubernetes.autoscalers.hpa_limits import (
    to_columns,
)
from autoscaler.adapters.kubernetes.autoscalers.hpas import HpaStore
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import ScaledObjectStore
from autoscaler.adapters.kubernetes.cluster_watch import HEARTBEAT_S, ClusterWatch, KindStore
from autoscaler.adapters.kubernetes.inventory.devices import store as devices
from autoscaler.adapters.kubernetes.inventory.elastic import STATUS_OBJECT, Elastic
from autoscaler.adapters.kubernetes.inventory.model_fit import misfit
from autoscaler.adapters.kubernetes.inventory.nodes import NodeStore
from autoscaler.adapters.kubernetes.inventory.pools import Layout, lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import Usage, count_usage
from autoscaler.adapters.kubernetes.managed import NEEDED, Managed, ManagedWorkloads
from autoscaler.adapters.kubernetes.manual_overrides import OverrideTracker
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.pods.node_events import NodeEvents
from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.adapters.kubernetes.pods.store import PodRows, PodStore
from autoscaler.adapters.kubernetes.pods.template import Facts, add_tolerations
from autoscaler.adapters.kubernetes.quotas import kueue
from autoscaler.adapters.kubernetes.quotas.columns import Applicant
from autoscaler.adapters.kubernetes.quotas.view import QuotaView, Stated
from autoscaler.adapters.kubernetes.weights import fluid, kserve
from autoscaler.adapters.kubernetes.weights.fluid import Datasets
from autoscaler.adapters.kubernetes.weights.kserve import LocalModels
from autoscaler.adapters.kubernetes.weights.planning import SeenFleet
from autoscaler.adapters.kubernetes.weights.view import WeightsView
from autoscaler.adapters.kubernetes.workloads.kinds import TargetKinds
from autoscaler.adapters.kubernetes.workloads.store import ReplicaSetStore, TargetKindStore, TargetStore
from autoscaler.adapters.kubernetes.workloads.targets import DEPLOYMENT, LEADER_WORKER_SET, STATEFUL_SET, Target
from autoscaler.config.settings import Mode
from autoscaler.config.system_namespaces import NONE_ALLOWED, SystemNamespaces
from autoscaler.config.weights.report import LABEL_PREFIX
from autoscaler.core.model.fleet import Fleet, ForeignCounts, HpaLimits, Obstacles, Pool, Workload, WorkloadRef
from autoscaler.core.model.phases import PodStarts
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import Clock, Leadership, ScaledObjectFields, Unavailable, Wakeup

log = structlog.get_logger(__name__)

CUSTOM_KINDS = dict.fromkeys(kueue.KINDS, kueue.VERSION) | dict.fromkeys(devices.KINDS, devices.VERSION)
"""Kinds that are watched where they are served, in addition to scale targets, with their versions."""
OTHER_CACHES = {**kserve.KINDS, **fluid.KINDS}  # of weights
CUSTOM_TYPES: dict[str, type[objects.Object]] = {**devices.KINDS, fluid.DATASETS: objects.Dataset}
CLUSTER_WIDE = frozenset({*kueue.CLUSTER_SCOPED, *devices.CLUSTER_SCOPED, *kserve.KINDS})

NODE_POOLS = Resource(
    "/apis/karpenter.sh/v1", "nodepools", objects.NodePool, namespaced=False, optional=True, auxiliary=True
)
AUTOSCALER_STATUS = Resource(
    "/api/v1", "configmaps", objects.ConfigMap, optional=True, auxiliary=True, only=STATUS_OBJECT
)
RESOURCE_QUOTAS = Resource("/api/v1", "resourcequotas", objects.ResourceQuota, optional=True, auxiliary=True)
LONGEST_START_S = 7200.0  # a pod that is older than this and not ready has no start that could be learned
OTHERS_UNKNOWN = (
    "GPUs held by pods of other namespaces are not known and count as free, because only some namespaces are watched"
)


class _WorkloadRows(NamedTuple):
    """The columns of a Fleet that describe workloads."""

    workloads: tuple[Workload, ...]
    workload_id: IntColumn
    replicas: FloatColumn
    paused: BoolColumn
    other_owner: tuple[str, ...]
    foreign: ForeignCounts | None  # None: no count is foreign
    gpus_per_replica: FloatColumn
    pool: IntColumn
    layout: Layout
    listed: BoolColumn
    hpa_limits: HpaLimits | None
    drain_s: FloatColumn
    of_kserve: BoolColumn  # their pods are those of an InferenceService
    steered: BoolColumn  # by their templates, to nodes that hold the weights
    hpa_errors: tuple[str, ...]  # why the HPA of each cannot change the count; "": it can, or there is none
    applicants: list[Applicant]  # for quotas


class KubeFleet:
    """The cluster behind a `Kube`: implements WorkloadSource and ScaledObjects. `run` it in a task.

    In dry-run no other owner is reported: the recommendation is compared with what the owner does.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        mode: Mode,
        namespaces: Sequence[str] = (),
        writes: OwnWrites | None = None,
        times: WatchTimes | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        wakeup: Wakeup | None = None,
        leadership: Leadership | None = None,
        target_kinds: Sequence[str] = (),
        node_group_max: Mapping[str, int] | None = None,
        stated_quotas: Stated = tuple,
        weights_gb: Callable[[Workload], float] = lambda _: 0.0,
        with_caches: bool = False,
        system: SystemNamespaces = NONE_ALLOWED,
    ) -> None:
        """`writes` and `leadership` are those of the actuator; `wakeup` is set when the cluster is first known.

        target_kinds: custom kinds that may be scaled ("rollouts.argoproj.io"); (): all that are known.
        node_group_max: the largest number of nodes with a label, "key=value", which an autoscaler may create.
        stated_quotas: returns the quotas of a file, for workloads that no quota of the cluster charges.
        with_caches: read what other caches of weights hold on nodes. system: namespaces that are refused.
        weights_gb: returns the weights that a workload or its policy states, in 10^9 bytes; 0: none.
        """
        self._mode = mode
        self._clock = clock
        self._writes = writes = writes or OwnWrites(clock)
        self._pods = PodStore(clock)
        self.manual_overrides = OverrideTracker(clock, writes, leadership)
        self._devices = devices.DeviceStore(clock)
        self._nodes = NodeStore(clock, self._devices.has_devices)
        self._elastic = Elastic(node_group_max)
        self._node_events = NodeEvents(clock)
        self._quotas = QuotaView(stated_quotas)
        self._weights_gb = weights_gb
        self._weights = WeightsView(clock, weights_gb)
        self.local_models = LocalModels(self._weights.reports)
        self._datasets = Datasets(self._weights.reports)
        self._each_node = Stores(self._nodes, self._weights.reports, self._datasets.nodes)
        self._hpas = HpaStore()
        self._scaled_objects = ScaledObjectStore(self._hpas)
        self._targets = TargetStore(self._pods, self.manual_overrides, writes, self._scaled_objects.owner)
        self.kinds = TargetKinds(target_kinds)
        on_sync = wakeup.set if wakeup is not None else None
        self._watch = ClusterWatch(
            kube,
            clock,
            self._stores(),
            namespaces,
            times,
            heartbeat_s,
            on_sync,
            {**self.kinds.preferred, **CUSTOM_KINDS, **(OTHER_CACHES if with_caches else {})},
            self._open_kind,
            CLUSTER_WIDE,
        )
        self._managed = ManagedWorkloads(
            mode,
            self._targets,
            self._scaled_objects,
            self._hpas,
            self.manual_overrides,
            lambda ref, target: self.kinds.describe_absence(ref, target, self._watch.unlisted()),
            self._watch.refused,
            system,
        )
        self._obstructed: dict[WorkloadRef, str] = {}  # as of the last fleet
        self._workload_rows: _WorkloadRows | None = None
        self._workload_versions: object = None
        self._inventory: object = None  # versions of nodes and autoscalers as of the last layout
        self._facts: list[Facts] = []
        self._weights_labels: frozenset[str] = frozenset()  # that templates require
        self._usage: Usage | None = None
        self._usage_versions: object = None
        self._usage_layout: Layout | None = None
        self._pod_rows: PodRows | None = None
        self._pod_workload: IntColumn = np.empty(0, dtype=np.int64)
        self._pod_version = -1
        self._pod_workload_ids = self._pod_workload

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._watch.run()

    def fleet(self) -> Fleet:
        """Return the latest view. Raises Unavailable, naming the missing kind, until everything was listed once."""
        self._watch.require_sync()
        workloads = self._lay_out_workloads()
        self._quotas.update(workloads.applicants)
        pods = self._lay_out_pods(workloads)
        usage = self._count_usage(workloads)
        causes = self._node_events.causes(pods, self._pods)
        return Fleet(
            time_s=self._watch.true_s,
            workloads=workloads.workloads,
            workload_id=workloads.workload_id,
            replicas=workloads.replicas,
            paused=workloads.paused,
            other_owner=workloads.other_owner,
            foreign=workloads.foreign,
            gpus_per_replica=workloads.gpus_per_replica,
            gpus_per_pod=usage.gpus_per_pod,
            former=usage.former,
            pods_of_replica=usage.pods_of_replica,
            parts=self._pods.parts(pods.pod_id, lambda pod: workloads.layout.resource_of(self._pod_workload[pod])),
            pool=workloads.pool,
            obstacles=self._find_obstacles(workloads, self._pods.messages(pods, causes), usage),
            pods=pods.pods,
            pod_id=pods.pod_id,
            pod_workload=self._pod_workload,
            pod_ready=pods.ready,
            pod_terminating=pods.terminating,
            pod_pending=causes,
            pod_created_s=pods.created_s,
            pod_scheduled_s=pods.scheduled_s,
            pod_started_s=pods.started_s,
            pod_ready_s=pods.ready_s,
            pod_slots=pods.slots,
            pools=workloads.layout.pools,
            groups=usage.groups,
            hpa_limits=workloads.hpa_limits,
            allowances=self._quotas.allowances(workloads.applicants),
            quotas=self._quotas.count(pods, self._pod_workload, workloads.gpus_per_replica, self._clock.now_s()),
            drain_s=workloads.drain_s,
            starts=self._lay_out_starts(pods),
            weights=self._weights.columns(
                workloads.workloads, workloads.steered, workloads.layout, usage.held, pods, self._pod_workload
            ),
        )

    def scaled_object(self, namespace: str, name: str) -> ScaledObjectFields | None:
        """Return a ScaledObject with an external trigger.

        Raises Unavailable until the first sync, and while its namespace may not be read.
        """
        self._watch.require_sync()
        if reason := self._watch.refused().get(namespace):
            raise Unavailable(f"namespace {namespace} may not be read: {reason}")
        return self._scaled_objects.get(namespace, name, self._managed.find_ref)

    def needs_of(self, ref: WorkloadRef) -> Needs | None:
        """Return what a replica of a target needs of nodes; None: it is not known, or other objects tell it."""
        target = self._targets.find(target_key(ref))
        if target is None or target.facts.has_open_requests:
            return None
        return target.facts.needs._replace(resource=target.facts.resource)

    def image_of(self, ref: WorkloadRef) -> str:
        """Return the image of the engine of a target, as its template states it; "": it is not known."""
        target = self._targets.find(target_key(ref))
        return target.facts.image if target is not None else ""

    def deletion_cost(self, pod: Key) -> float | None:
        """Return the deletion cost of a pod; None: it is gone, or no ReplicaSet controls it."""
        return self._pods.deletion_cost(pod)

    @property
    def weights(self) -> WeightsView:
        """The weights of the models, and what nodes say about them."""
        return self._weights

    def inventory(self) -> SeenFleet | None:
        """Return the inputs of a plan of weights, as of the last `fleet()`; None: no source is known."""
        workloads, usage, pods, weights = self._workload_rows, self._usage, self._pod_rows, self._weights.last
        if workloads is None or usage is None or pods is None or weights is None:
            return None
        return SeenFleet(
            workloads.workloads,
            workloads.workload_id,
            weights,
            workloads.layout,
            usage.held,
            [pod.node for pod in pods.pods],
            self._pod_workload,
            {name: node.labels for name, node in self._nodes.nodes.items()},
            workloads.of_kserve,
        )

    def problems(self) -> dict[WorkloadRef, str]:
        """Return what is wrong with the declarations of workloads, as of the last `fleet()`."""
        found = dict(self._managed.problems)
        workloads = self._workload_rows.workloads if self._workload_rows is not None else ()
        for row, problem in self._quotas.kueue.of_workloads.items():
            ref = workloads[row].ref
            found[ref] = join_problems((found.get(ref, ""), problem))
        return found

    def obstructed(self) -> dict[WorkloadRef, str]:
        """Return why replicas of workloads are missing, in the cluster's words, as of the last `fleet()`."""
        return dict(self._obstructed)

    def limits(self) -> list[str]:
        """Return how the nodes cap the counts of replicas, one line each."""
        if self._workload_rows is None:
            return []
        layout = self._workload_rows.layout
        lines = [*_pool_limits(layout), *self._elastic.describe(layout.node_groups)]
        return lines + [OTHERS_UNKNOWN] * bool(self._watch.namespaces and layout.groups)

    def quota_problems(self) -> list[str]:
        """Return what is not known of the quotas of the cluster, one line each."""
        refusals = self._watch.refusals(RESOURCE_QUOTAS.plural)[:1]
        unlisted = [f"resourcequotas are not read, so they are no limit: {refusal}" for refusal in refusals]
        return unlisted + self._quotas.problems()

    def unlisted_kinds(self) -> dict[str, str]:
        """Return why objects of custom kinds that the API server serves cannot be listed, by resource."""
        return self._watch.unlisted()

    def watch_problems(self) -> list[str]:
        """Return why watches do not work now, one line each."""
        nodes = [f"node {name}: {problem}" for name, problem in sorted(self._nodes.problems.items())]
        reports = [*self._weights.reports.problems(), *self._weights.problems()]
        return [*self._watch.problems(), *nodes, *reports, *self._devices.problems()]

    def _stores(self) -> list[tuple[Resource[Any], ObjectStore[Any]]]:
        """Return the kinds to watch. A kind that the mode does not need is not watched, and needs no permission."""
        apps, keda = "/apis/apps/v1", "/apis/keda.sh/v1alpha1"
        stores: list[tuple[Resource[Any], ObjectStore[Any]]] = [
            (Resource(apps, "deployments", objects.TargetObject), TargetKindStore(self._targets, DEPLOYMENT)),
            (Resource(apps, "statefulsets", objects.TargetObject), TargetKindStore(self._targets, STATEFUL_SET)),
            (Resource(apps, "replicasets", objects.Object, metadata_only=True), ReplicaSetStore(self._targets)),
            (Resource("/api/v1", "pods", objects.PodObject), self._pods),
            (Resource("/api/v1", "nodes", objects.NodeObject, namespaced=False, optional=True), self._each_node),
            (NODE_POOLS, self._elastic.node_pools),
            (AUTOSCALER_STATUS, self._elastic.status),
            (RESOURCE_QUOTAS, self._quotas.resource_quotas),
        ]
        stores += [(resource, self._node_events) for resource in self._node_events.resources()]
        stores += [(resource, self._pods.image_pulls) for resource in self._pods.image_pulls.resources()]
        if self._mode is not Mode.DRY_RUN:
            is_optional = self._mode is not Mode.KEDA
            stores += [
                (
                    Resource("/apis/autoscaling/v2", "horizontalpodautoscalers", objects.HorizontalPodAutoscaler),
                    self._hpas,
                ),
                (Resource(keda, "scaledobjects", objects.ScaledObject, optional=is_optional), self._scaled_objects),
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
        kind: type[objects.Object] = objects.LeaderWorkerSet if row is LEADER_WORKER_SET else objects.CustomTarget
        if refusal:
            kind = objects.AnnotatedObject
        root = f"/apis/{row.group}/{served.version}"
        resource = Resource(root, row.plural, kind, optional=True, metadata_only=bool(refusal))
        return resource, TargetKindStore(self._targets, row, refusal)

    def _store_of(self, resource: str) -> KindStore:
        """Return the store of a custom kind that is no scale target."""
        if resource in devices.KINDS:
            store: KindStore = self._devices.store_of(resource)
            return store
        if resource in kserve.KINDS:
            return self.local_models.store_of(resource)
        return self._datasets if resource == fluid.DATASETS else self._quotas.kueue.open(resource)

    def _lay_out_workloads(self) -> _WorkloadRows:
        """Return the columns of the managed workloads: the previous ones if nothing has changed."""
        versions = (
            self._targets.version,
            self._pods.unowned_version,
            self._pods.tolerations_version,
            self._pods.facts_version,
            self._hpas.version,
            self._scaled_objects.version,
            self._nodes.update(),
            self._elastic.version,
            self._devices.update(),
            self._weights.reports.version if self._weights_labels else 0,
            self.manual_overrides.active(),
            sorted(self._watch.refused()),
        )
        before = self._workload_rows
        if before is not None and versions == self._workload_versions:
            return before
        problems_before = self._managed.problems
        limits_before = _pool_limits(before.layout) if before is not None else []
        managed, known = self._managed.find(), self._targets.version
        self._targets.select_pods([each.target_id for each in managed])
        self._targets.follow_pods([each.target_id for each in managed])
        if self._targets.version != known:  # pods show what no template states
            managed = self._managed.find()
        self._managed.note_overlaps(managed)
        managed = self._settle_devices(managed)
        tolerations = self._pods.tolerations()
        facts = [add_tolerations(each.target.facts, tolerations.get(each.target_id, frozenset())) for each in managed]
        self._weights_labels = _weights_labels(facts)
        labelled = self._weights.reports.version if self._weights_labels else 0
        inventory = self._nodes.update(), self._elastic.version, self._devices.update(), labelled
        if before is not None and (inventory, facts) == (self._inventory, self._facts):  # only counts have changed
            layout = before.layout
        else:
            nodes = self._weights.reports.label(self._nodes.nodes, self._weights_labels)
            layout = lay_out_pools(self._devices.add_to(nodes), facts, self._elastic)
        self._inventory, self._facts = inventory, facts
        self._note_misfits(managed, layout)
        self._managed.note_models(managed)
        self._log_problems(problems_before, len(managed))
        workload_id = np.array([each.target_id for each in managed], dtype=np.int64)
        if before is not None and np.array_equal(before.workload_id, workload_id):
            workload_id = before.workload_id  # with the same object the rows of pods can be reused
        self._workload_versions = versions
        self._workload_rows = _WorkloadRows(
            workloads=tuple(each.workload for each in managed),
            workload_id=workload_id,
            replicas=np.array([float(max(each.target.replicas, each.former)) for each in managed]),
            paused=np.array([each.paused for each in managed], dtype=bool),
            other_owner=tuple(each.other_owner for each in managed),
            foreign=_foreign_counts(managed),
            gpus_per_replica=np.array([each.target.facts.gpus for each in managed]),
            pool=np.array(layout.rows, dtype=np.int64),
            layout=layout,
            listed=np.array([each.target.pod_selector != () for each in managed], dtype=bool),
            hpa_limits=to_columns([each.limit for each in managed]),
            drain_s=np.array([each.target.facts.drain_s for each in managed]),
            of_kserve=np.array([kserve.SERVICE_LABEL in each.target.labels for each in managed], dtype=bool),
            steered=np.array([each.target.facts.steered for each in managed], dtype=bool),
            hpa_errors=tuple(each.limit.error for each in managed),
            applicants=[_applicant(each.target, each_facts) for each, each_facts in zip(managed, facts, strict=True)],
        )
        for limit in _pool_limits(layout):
            if limit not in limits_before:
                log.info("today's nodes are the limit of a pool", pool=limit)
        return self._workload_rows

    def _lay_out_pods(self, workloads: _WorkloadRows) -> PodRows:
        ids, rows = workloads.workload_id, self._pod_rows
        if rows is None or self._pod_version != self._pods.version or ids is not self._pod_workload_ids:
            rows = self._pods.rows(ids)
            if self._pod_rows is not None and rows.pods == self._pod_rows.pods:
                rows = rows._replace(pods=self._pod_rows.pods)
            self._pod_rows, self._pod_version, self._pod_workload_ids = rows, self._pods.version, ids
            self._pod_workload = np.searchsorted(ids, rows.target_id).astype(np.int64)
        return rows

    def _lay_out_starts(self, pods: PodRows) -> PodStarts:
        """Return what is known of the starts of pods. Nothing is looked up for pods that have started long ago."""
        now_s = self._clock.now_s()
        offset_s = now_s - self._clock.wall_s()
        node_created_s = np.full(len(pods.pods), np.nan)
        for row in np.flatnonzero(now_s - pods.created_s <= LONGEST_START_S).tolist():
            wall_s = self._nodes.created_wall_s.get(pods.pods[row].node)
            if wall_s is not None:
                node_created_s[row] = wall_s + offset_s
        return PodStarts(node_created_s, pods.image_s, pods.pulling_since_s, pods.weights_s, pods.fetching_since_s)

    def _count_usage(self, workloads: _WorkloadRows) -> Usage:
        """Return what pods hold on the nodes: the previous counts if nothing has changed."""
        preempts = np.array([self._pods.preempts(each) for each in workloads.workload_id.tolist()], dtype=np.float64)
        inventory = self._devices.claims.version, self._devices.update()
        versions = self._pods.holdings.version, inventory, preempts.tobytes()
        if self._usage is None or self._usage_versions != versions or self._usage_layout is not workloads.layout:
            held = self._devices.add_held(self._pods.held(), self._pods.target_of, self._pods.holdings.priority)
            self._usage = count_usage(workloads.layout, held, workloads.workload_id, preempts)
            self._usage_versions, self._usage_layout = versions, workloads.layout
        return self._usage

    def _find_obstacles(self, workloads: _WorkloadRows, of_pods: Mapping[int, str], usage: Usage) -> Obstacles:
        """Return why replicas are missing, as controllers, scheduler, kubelet and API server say.

        of_pods: by target, why one of its pods is blocked.
        """
        count = len(workloads.workloads)
        failed, messages = np.zeros(count, dtype=bool), [""] * count
        refused, retry_s = np.full((2, count), np.nan)
        if of_pods or self._targets.failures:
            row_of = {target_id: row for row, target_id in enumerate(workloads.workload_id.tolist())}
            for target_id, message in of_pods.items():
                if target_id in row_of:
                    messages[row_of[target_id]] = message
            for target_id, message in self._targets.failures.items():
                if target_id in row_of:
                    failed[row_of[target_id]], messages[row_of[target_id]] = True, message
        for row in (row for row, error in enumerate(workloads.hpa_errors) if error):
            refused[row], messages[row] = np.inf, workloads.hpa_errors[row]  # the HPA does not tell which count failed
        refusals = self._writes.refusals()
        for row, workload in enumerate(workloads.workloads if refusals else ()):
            if workload.uid in refusals:
                refusal = refusals[workload.uid]
                refused[row], retry_s[row], messages[row] = refusal.replicas, refusal.retry_s, refusal.message
        self._obstructed = {
            each.ref: message for each, message in zip(workloads.workloads, messages, strict=True) if message
        }
        return Obstacles(workloads.listed, failed, usage.fits, refused, retry_s, tuple(messages), usage.room)

    def _log_problems(self, before: Mapping[WorkloadRef, str], managed: int) -> None:
        """Log new and solved problems, and that no workload is managed."""
        for ref, problem in sorted(self._managed.problems.items() - before.items()):
            log.warning("declaration of a workload has a problem", workload=ref.label, problem=problem)
        for ref in sorted(before.keys() - self._managed.problems.keys()):
            log.info("declaration of a workload has no problem any more", workload=ref.label)
        if not managed and (self._workload_rows is None or self._workload_rows.workloads):
            namespaces = self._watch.namespaces or "all"
            log.warning("no workload is managed", needed=NEEDED[self._mode], namespaces=namespaces)

    def _settle_devices(self, managed: Sequence[Managed]) -> list[Managed]:
        """Return the workloads with the devices that they ask for, and note the problem of those that are not known."""
        settled = []
        known = [(each.target.ref.namespace, each.target.facts) for each in managed]
        for each, facts in zip(managed, self._devices.settle(known), strict=True):
            settled.append(each._replace(target=each.target._replace(facts=facts)))
            self._managed.note(each.target.ref, facts.unclear)
        return settled

    def _note_misfits(self, managed: Sequence[Managed], layout: Layout) -> None:
        """Note the problem of targets whose model fits on no device that they may get."""
        for row, each in enumerate(managed):
            facts = each.target.facts._replace(engine=each.workload.engine)
            self._managed.note(each.target.ref, misfit(facts, self._weights_gb(each.workload), layout, row))


def _weights_labels(facts: Sequence[Facts]) -> frozenset[str]:
    """Return the node labels of weights that templates require."""
    return frozenset(key for each in facts for key in each.needs.label_keys() if key.startswith(LABEL_PREFIX))


def _applicant(target: Target, facts: Facts) -> Applicant:
    is_named = facts.gpus > 0 and not facts.needs.devices  # quotas count the devices of claims by class
    known = facts.resource if is_named else ""
    return Applicant(target.ref.namespace, known, facts.needs, target.labels, facts.priority_class)


def _foreign_counts(managed: Sequence[Managed]) -> ForeignCounts | None:
    if not any(each.former >= 0 or each.is_nameless_zero or each.owned_until_s > 0 for each in managed):
        return None
    return ForeignCounts(
        reset_to=np.array([float(each.target.replicas) if each.former >= 0 else np.nan for each in managed]),
        reset_by=tuple(each.target.writer.manager if each.former >= 0 else "" for each in managed),
        nameless_zero=np.array([each.is_nameless_zero for each in managed], dtype=bool),
        owned_until_s=np.array([each.owned_until_s for each in managed]),
    )


def _pool_limits(layout: Layout) -> list[str]:
    """Return a line for each pool whose present nodes count as its limit, although it may grow."""
    return [
        _pool_limit(pool, size)
        for pool, size in zip(layout.pools, layout.node_groups.pool_gpus.tolist(), strict=True)
        if pool.grows
    ]


def _pool_limit(pool: Pool, size: float) -> str:
    """Say that the present nodes of a pool count as its limit."""
    name = " ".join(part for part in (pool.product or pool.resource, pool.nodes and f"({pool.nodes})") if part)
    allowed = f"state the most nodes with --node-group-max {pool.grows}:NODES"
    return f"{name}: the {size:g} GPUs of today's nodes are the limit, although {pool.grows} may get more; {allowed}"
