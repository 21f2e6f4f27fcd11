"""The cluster as one synced `Fleet`: watches update stores, and a tick lays the stores out as columns.

A view shares with the previous one whatever has not changed. While watches are broken the last view stays valid, and
`Fleet.time_s` tells when it was last true.
"""

from __future__ import annotations

from autoscaler.adapters.kubernetes.api.client import Kube
from autoscaler.adapters.kubernetes.api.text import join_problems
from autoscaler.adapters.kubernetes.autoscalers.by_target import target_key
from autoscaler.adapters.kubernetes.cluster_watch import ClusterWatch
from autoscaler.adapters.kubernetes.fleet_layout import FleetLayout, pool_limits
from autoscaler.adapters.kubernetes.managed import ManagedWorkloads
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.needs import Needs
from autoscaler.adapters.kubernetes.pods.status import Key
from autoscaler.adapters.kubernetes.stores import NAMESPACES, RESOURCE_QUOTAS, ClusterStores, Scope
from autoscaler.adapters.kubernetes.weights.planning import SeenFleet
from autoscaler.core.model.fleet import Fleet, WorkloadRef
from autoscaler.ports import Clock, Leadership, ScaledObjectFields, Unavailable, Wakeup

OTHERS_UNKNOWN = (
    "GPUs held by pods of other namespaces are not known and count as free, because only some namespaces are watched"
)


class KubeFleet:
    """The cluster behind a `Kube`: implements WorkloadSource and ScaledObjects. `run` it in a task.

    In dry-run no other owner is reported: the recommendation is compared with what the owner does.
    """

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        scope: Scope,
        writes: OwnWrites | None = None,
        leadership: Leadership | None = None,
        wakeup: Wakeup | None = None,
    ) -> None:
        """`writes` and `leadership` are those of the actuator; `wakeup` is set when the cluster is first known."""
        self._clock = clock
        writes = writes or OwnWrites(clock)
        self._stores = stores = ClusterStores(clock, scope, writes, leadership)
        self.manual_overrides, self.kinds = stores.manual_overrides, stores.kinds
        self.weights, self.local_models = stores.weights, stores.local_models
        on_sync = wakeup.set if wakeup is not None else None
        self._watch = ClusterWatch(kube, clock, stores.watched(), scope.namespaces, scope.times, on_sync)
        self._managed = ManagedWorkloads(
            scope.mode,
            stores.targets,
            stores.scaled_objects,
            stores.hpas,
            stores.manual_overrides,
            lambda ref, target: stores.kinds.describe_absence(ref, target, self._watch.unlisted()),
            self._watch.refused,
            stores.teams,
            scope.system,
        )
        self._layout = FleetLayout(stores, self._managed, writes, clock)

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._watch.run()

    def fleet(self) -> Fleet:
        """Return the latest view. Raises Unavailable, naming the missing kind, until everything was listed once."""
        self._watch.require_sync()
        layout, stores = self._layout, self._stores
        workloads = layout.workloads()
        stores.quotas.update(workloads.applicants)
        pods, usage = layout.pods(workloads), layout.usage(workloads)
        causes, pod_workload = stores.node_events.causes(pods, stores.pods), layout.pod_workload
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
            parts=stores.pods.parts(pods.pod_id, lambda pod: workloads.layout.resource_of(pod_workload[pod])),
            pool=workloads.pool,
            obstacles=layout.obstacles(workloads, stores.pods.messages(pods, causes), usage),
            pods=pods.pods,
            pod_id=pods.pod_id,
            pod_workload=pod_workload,
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
            held=usage.of_pods and usage.of_pods.on_rows(pods.pod_id),
            hpa_limits=workloads.hpa_limits,
            allowances=self._stores.quotas.allowances(workloads.applicants),
            quotas=self._stores.quotas.count(pods, pod_workload, workloads.gpus_per_replica, self._clock.now_s()),
            drain_s=workloads.drain_s,
            starts=layout.starts(pods),
            weights=self._stores.weights.columns(
                workloads.workloads, workloads.steered, workloads.layout, usage.held, pods, pod_workload
            ),
        )

    def scaled_object(self, namespace: str, name: str) -> ScaledObjectFields | None:
        """Return a ScaledObject with an external trigger.

        Raises Unavailable until the first sync, and while its namespace may not be read.
        """
        self._watch.require_sync()
        if reason := self._watch.refused().get(namespace):
            raise Unavailable(f"namespace {namespace} may not be read: {reason}")
        return self._stores.scaled_objects.get(namespace, name, self._managed.find_ref)

    def needs_of(self, ref: WorkloadRef) -> Needs | None:
        """Return what a replica of a target needs of nodes; None: it is not known, or other objects tell it."""
        target = self._stores.targets.find(target_key(ref))
        if target is None or target.facts.has_open_requests:
            return None
        return target.facts.needs._replace(resource=target.facts.resource)

    def image_of(self, ref: WorkloadRef) -> str:
        """Return the image of the engine of a target, as its template states it; "": it is not known."""
        target = self._stores.targets.find(target_key(ref))
        return target.facts.image if target is not None else ""

    def deletion_cost(self, pod: Key) -> float | None:
        """Return the deletion cost of a pod; None: it is gone, or no ReplicaSet controls it."""
        return self._stores.pods.deletion_cost(pod)

    def inventory(self) -> SeenFleet | None:
        """Return the inputs of a plan of weights, as of the last `fleet()`; None: no source is known."""
        last, weights = self._layout.last, self._stores.weights.last
        if last is None or weights is None:
            return None
        workloads, pods, usage = last
        return SeenFleet(
            workloads.workloads,
            workloads.workload_id,
            weights,
            workloads.layout,
            usage.held,
            [pod.node for pod in pods.pods],
            self._layout.pod_workload,
            {name: node.labels for name, node in self._stores.nodes.nodes.items()},
            workloads.of_kserve,
        )

    def problems(self) -> dict[WorkloadRef, str]:
        """Return what is wrong with the declarations of workloads, as of the last `fleet()`."""
        found = dict(self._managed.problems)
        if (last := self._layout.last) is None:
            return found
        for row, problem in self._stores.quotas.kueue.of_workloads.items():
            ref = last[0].workloads[row].ref
            found[ref] = join_problems((found.get(ref, ""), problem))
        return found

    def obstructed(self) -> dict[WorkloadRef, str]:
        """Return why replicas of workloads are missing, in the cluster's words, as of the last `fleet()`."""
        return dict(self._layout.obstructed)

    def limits(self) -> list[str]:
        """Return how the nodes cap the counts of replicas, one line each."""
        if self._layout.last is None:
            return []
        layout = self._layout.last[0].layout
        lines = [*pool_limits(layout), *self._stores.elastic.describe(layout.node_groups)]
        return lines + [OTHERS_UNKNOWN] * bool(self._watch.namespaces and layout.groups)

    def quota_problems(self) -> list[str]:
        """Return what is not known of the quotas of the cluster, one line each."""
        refusals = self._watch.refusals(RESOURCE_QUOTAS.plural)[:1]
        unlisted = [f"resourcequotas are not read, so they are no limit: {refusal}" for refusal in refusals]
        return unlisted + self._stores.quotas.problems()

    def unlisted_kinds(self) -> dict[str, str]:
        """Return why namespaces, or objects of custom kinds that the API server serves, cannot be listed."""
        found = self._watch.unlisted()
        found.update((NAMESPACES.plural, refusal) for refusal in self._watch.refusals(NAMESPACES.plural))
        return found

    def watch_problems(self) -> list[str]:
        """Return why watches do not work now, one line each."""
        nodes = [f"node {name}: {problem}" for name, problem in sorted(self._stores.nodes.problems.items())]
        reports = [*self._stores.weights.reports.problems(), *self._stores.weights.problems()]
        return [*self._watch.problems(), *nodes, *reports, *self._stores.devices.problems()]
