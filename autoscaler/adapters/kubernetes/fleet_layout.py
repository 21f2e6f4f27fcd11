"""Lays the stores of a cluster out as columns. A column shares with the one before whatever has not changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import structlog

from autoscaler.adapters.kubernetes.autoscalers.hpa_limits import to_columns
from autoscaler.adapters.kubernetes.inventory.model_fit import misfit
from autoscaler.adapters.kubernetes.inventory.pools import Layout, lay_out_pools
from autoscaler.adapters.kubernetes.inventory.usage import Usage, count_usage
from autoscaler.adapters.kubernetes.managed import NEEDED, Managed, ManagedWorkloads
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.rows import PodRows
from autoscaler.adapters.kubernetes.pods.template import Facts, add_tolerations
from autoscaler.adapters.kubernetes.quotas.columns import Applicant
from autoscaler.adapters.kubernetes.stores import ClusterStores
from autoscaler.adapters.kubernetes.weights import kserve
from autoscaler.adapters.kubernetes.workloads.targets import Target
from autoscaler.config.remembered import Remembered
from autoscaler.config.weights.report import LABEL_PREFIX
from autoscaler.core.model.fleet import ForeignCounts, HpaLimits, Obstacles, Pool, Workload, WorkloadRef
from autoscaler.core.model.phases import PodStarts
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import Clock

log = structlog.get_logger(__name__)

LONGEST_START_S = 7200.0  # a pod that is older than this and not ready has no start that could be learned


class WorkloadRows(NamedTuple):
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


class FleetLayout:
    """The columns of a fleet, from its stores."""

    def __init__(self, stores: ClusterStores, managed: ManagedWorkloads, writes: OwnWrites, clock: Clock) -> None:
        self.obstructed: dict[WorkloadRef, str] = {}  # why replicas are missing, as of the last fleet
        self.pod_workload: IntColumn = np.empty(0, dtype=np.int64)  # int64[P], as of the last `pods`
        self._stores = stores
        self._managed = managed
        self._writes = writes
        self._clock = clock
        self._workloads, self._pools = Remembered[WorkloadRows](), Remembered[Layout]()
        self._usage, self._pods = Remembered[Usage](), Remembered[PodRows]()
        self._weights_labels: frozenset[str] = frozenset()  # that templates require

    @property
    def last(self) -> tuple[WorkloadRows, PodRows, Usage] | None:
        """The columns of the last fleet; None: there was none."""
        if self._workloads.last is None or self._pods.last is None or self._usage.last is None:
            return None
        return self._workloads.last, self._pods.last, self._usage.last

    def workloads(self) -> WorkloadRows:
        """Return the columns of the managed workloads."""
        stores = self._stores
        return self._workloads.get(
            self._lay_out_workloads,
            stores.targets.version,
            stores.pods.unowned_version,
            stores.pods.tolerations_version,
            stores.pods.facts_version,
            stores.hpas.version,
            stores.scaled_objects.version,
            stores.teams.version,
            *self._inventory(),
            stores.manual_overrides.active(),
            self._managed.refused_namespaces(),
        )

    def _inventory(self) -> tuple[object, ...]:
        """Return the versions of what pools are laid out from."""
        stores = self._stores
        labelled = stores.weights.reports.version if self._weights_labels else 0
        return stores.nodes.update(), stores.elastic.version, stores.devices.update(), labelled

    def _lay_out_workloads(self) -> WorkloadRows:
        stores, before, problems_before = self._stores, self._workloads.last, self._managed.problems
        managed, known = self._managed.find(), stores.targets.version
        stores.targets.select_pods([each.target_id for each in managed])
        stores.targets.follow_pods([each.target_id for each in managed])
        if stores.targets.version != known:  # pods show what no template states
            managed = self._managed.find()
        self._managed.note_overlaps(managed)
        managed = self._settle_devices(managed)
        tolerations = stores.pods.tolerations()
        facts = [add_tolerations(each.target.facts, tolerations.get(each.target_id, frozenset())) for each in managed]
        self._weights_labels = _weights_labels(facts)
        limits_before = pool_limits(before.layout) if before is not None else []
        layout = self._pools.get(lambda: self._lay_out_pools(facts), self._inventory(), facts)
        self._note_misfits(managed, layout)
        self._managed.note_models(managed)
        self._log_problems(problems_before, len(managed))
        for limit in pool_limits(layout):
            if limit not in limits_before:
                log.info("today's nodes are the limit of a pool", pool=limit)
        workload_id = np.array([each.target_id for each in managed], dtype=np.int64)
        if before is not None and np.array_equal(before.workload_id, workload_id):
            workload_id = before.workload_id  # with the same object the rows of pods can be reused
        return _workload_rows(managed, workload_id, facts, layout)

    def _lay_out_pools(self, facts: Sequence[Facts]) -> Layout:
        stores = self._stores
        nodes = stores.weights.reports.label(stores.nodes.nodes, self._weights_labels)
        return lay_out_pools(stores.devices.add_to(nodes), facts, stores.elastic)

    def pods(self, workloads: WorkloadRows) -> PodRows:
        """Return the columns of the pods of these workloads."""
        return self._pods.get(
            lambda: self._lay_out_pods(workloads.workload_id), self._stores.pods.version, workloads.workload_id
        )

    def _lay_out_pods(self, workload_id: IntColumn) -> PodRows:
        rows, before = self._stores.pods.rows(workload_id), self._pods.last
        self.pod_workload = np.searchsorted(workload_id, rows.target_id).astype(np.int64)
        return rows._replace(pods=before.pods) if before is not None and rows.pods == before.pods else rows

    def usage(self, workloads: WorkloadRows) -> Usage:
        """Return what pods hold on the nodes."""
        stores = self._stores
        preempts = np.array([stores.pods.preempts(each) for each in workloads.workload_id.tolist()], dtype=np.float64)

        def count() -> Usage:
            held = stores.devices.add_held(stores.pods.held(), stores.pods.holder_of, stores.pods.holdings.priority)
            return count_usage(workloads.layout, held, workloads.workload_id, preempts)

        inventory = stores.devices.claims.version, stores.devices.update(), self._pools.number
        return self._usage.get(count, stores.pods.holdings.version, inventory, preempts.tobytes())

    def starts(self, pods: PodRows) -> PodStarts:
        """Return what is known of the starts of pods. Nothing is looked up for pods that have started long ago."""
        now_s = self._clock.now_s()
        offset_s = now_s - self._clock.wall_s()
        node_created_s = np.full(len(pods.pods), np.nan)
        for row in np.flatnonzero(now_s - pods.created_s <= LONGEST_START_S).tolist():
            wall_s = self._stores.nodes.created_wall_s.get(pods.pods[row].node)
            if wall_s is not None:
                node_created_s[row] = wall_s + offset_s
        return PodStarts(node_created_s, pods.image_s, pods.pulling_since_s, pods.weights_s, pods.fetching_since_s)

    def obstacles(self, workloads: WorkloadRows, of_pods: Mapping[int, str], usage: Usage) -> Obstacles:
        """Return why replicas are missing, as controllers, scheduler, kubelet and API server say.

        of_pods: by target, why one of its pods is blocked.
        """
        count = len(workloads.workloads)
        failed, messages = np.zeros(count, dtype=bool), [""] * count
        refused, retry_s = np.full((2, count), np.nan)
        if of_pods or self._stores.targets.failures:
            row_of = {target_id: row for row, target_id in enumerate(workloads.workload_id.tolist())}
            for target_id, message in of_pods.items():
                if target_id in row_of:
                    messages[row_of[target_id]] = message
            for target_id, message in self._stores.targets.failures.items():
                if target_id in row_of:
                    failed[row_of[target_id]], messages[row_of[target_id]] = True, message
        for row in (row for row, error in enumerate(workloads.hpa_errors) if error):
            refused[row], messages[row] = np.inf, workloads.hpa_errors[row]  # the HPA does not tell which count failed
        refusals = self._writes.refusals()
        for row, workload in enumerate(workloads.workloads if refusals else ()):
            if workload.uid in refusals:
                refusal = refusals[workload.uid]
                refused[row], retry_s[row], messages[row] = refusal.replicas, refusal.retry_s, refusal.message
        self.obstructed = {
            each.ref: message for each, message in zip(workloads.workloads, messages, strict=True) if message
        }
        return Obstacles(workloads.listed, failed, usage.fits, refused, retry_s, tuple(messages), usage.room)

    def _log_problems(self, before: Mapping[WorkloadRef, str], managed: int) -> None:
        """Log new and solved problems, and that no workload is managed."""
        for ref, problem in sorted(self._managed.problems.items() - before.items()):
            log.warning("declaration of a workload has a problem", workload=ref.label, problem=problem)
        for ref in sorted(before.keys() - self._managed.problems.keys()):
            log.info("declaration of a workload has no problem any more", workload=ref.label)
        if not managed and (self._workloads.last is None or self._workloads.last.workloads):
            scope = self._stores.scope
            namespaces = scope.namespaces or "all"
            log.warning("no workload is managed", needed=NEEDED[scope.mode], namespaces=namespaces)

    def _settle_devices(self, managed: Sequence[Managed]) -> list[Managed]:
        """Return the workloads with the devices that they ask for, and note the problem of those that are not known."""
        settled = []
        known = [(each.target.ref.namespace, each.target.facts) for each in managed]
        for each, facts in zip(managed, self._stores.devices.settle(known), strict=True):
            settled.append(each._replace(target=each.target._replace(facts=facts)))
            self._managed.note(each.target.ref, facts.unclear)
        return settled

    def _note_misfits(self, managed: Sequence[Managed], layout: Layout) -> None:
        """Note the problem of targets whose model fits on no device that they may get."""
        for row, each in enumerate(managed):
            facts = each.target.facts._replace(engine=each.workload.engine)
            weights_gb = self._stores.scope.weights_gb(each.workload)
            self._managed.note(each.target.ref, misfit(facts, weights_gb, layout, row))


def _workload_rows(
    managed: Sequence[Managed], workload_id: IntColumn, facts: Sequence[Facts], layout: Layout
) -> WorkloadRows:
    return WorkloadRows(
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


def pool_limits(layout: Layout) -> list[str]:
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
