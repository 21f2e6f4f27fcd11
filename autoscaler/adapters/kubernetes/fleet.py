"""The cluster as one synced `Fleet`: watches on one side, columns on the other.

Events only change rows of tables; a snapshot is made when a tick asks for one, and shares with the last one whatever
has not changed. While watches are broken the last view stands, and `Fleet.time_s` says since when.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import structlog

from autoscaler.adapters.kubernetes.api import objects
from autoscaler.adapters.kubernetes.api.client import ApiError, Kube
from autoscaler.adapters.kubernetes.api.reflector import Receiver, Resource, Watch, WatchTimes
from autoscaler.adapters.kubernetes.autoscalers.hpa_limits import Hold, fails, hold, lacks, table
from autoscaler.adapters.kubernetes.autoscalers.hpas import Hands, HpaTable, TargetKey
from autoscaler.adapters.kubernetes.autoscalers.scaledobjects import Asked, ScaledObjectTable
from autoscaler.adapters.kubernetes.gpu_pools import Layout, NodeTable
from autoscaler.adapters.kubernetes.own_writes import OwnWrites
from autoscaler.adapters.kubernetes.pods.store import PodRows, PodTable
from autoscaler.adapters.kubernetes.pods.template import tolerating
from autoscaler.adapters.kubernetes.workloads.annotations import worded
from autoscaler.adapters.kubernetes.workloads.store import ReplicaSets, Targets, TargetTable
from autoscaler.adapters.kubernetes.workloads.targets import DEPLOYMENT, KINDS, LEADER_WORKER_SET, STATEFUL_SET, Row
from autoscaler.config.annotations import PREFIX
from autoscaler.config.policy.compile import NO_POLICY
from autoscaler.config.settings import Mode
from autoscaler.core.model.fleet import Fleet, Held, Joint, Obstacles, Pool, Workload, WorkloadRef
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.ports import Clock, Leadership, ScaledObject, Unavailable, Wakeup

log = structlog.get_logger(__name__)

HEARTBEAT_S = 5.0
HEARTBEAT_PATH = "/version"  # every authenticated client may read it, so it needs no verb of its own
NOT_ALIVE = (401, 429)
_ANNOTATED = f"the annotation {PREFIX}policy on a Deployment, StatefulSet or LeaderWorkerSet"
NEEDED = {
    Mode.DIRECT: _ANNOTATED,
    Mode.DRY_RUN: _ANNOTATED,
    Mode.KEDA: "a ScaledObject with an external trigger that names a policy",
}
"""What makes a workload one of ours."""


class _WorkloadRows(NamedTuple):
    """The workload half of a Fleet."""

    workloads: tuple[Workload, ...]
    workload_id: IntColumn
    replicas: FloatColumn
    paused: BoolColumn
    other_owner: tuple[str, ...]
    gpus_per_replica: FloatColumn
    pool: IntColumn
    layout: Layout
    pool_gpus: FloatColumn
    listed: BoolColumn
    fits: FloatColumn
    held: Held | None
    unable: tuple[str, ...]  # why the HPA of each cannot change the count; "": it can, or there is none


class _Managed(NamedTuple):
    """Facts of one workload of ours, beside its row."""

    workload: Workload
    paused: bool
    other_owner: str
    hold: Hold = Hold()


class KubeFleet:
    """The cluster behind a `Kube`: implements WorkloadSource and ScaledObjects. `run` it in a task.

    In direct and dry-run mode the workloads are those with the annotation `vllm-autoscaler.io/policy`; in keda mode
    those that a ScaledObject targets whose external trigger names a policy. In dry-run no other owner counts: what the
    owner of the count does is what the recommendation is compared with.
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
    ) -> None:
        """`writes` and `leadership` are the actuator's; `wakeup` is set when the cluster is first known."""
        self._kube = kube
        self._clock = clock
        self._mode = mode
        self._heartbeat_s = heartbeat_s
        self._wakeup = wakeup
        self._writes = writes = writes or OwnWrites(clock)
        self._pods = PodTable(clock)
        self.hands = Hands(clock, writes, leadership)
        self._nodes = NodeTable(clock)
        self._hpas = HpaTable()
        self._scaled = ScaledObjectTable(self._hpas)
        self._targets = TargetTable(self._pods, self.hands, writes, self._autoscaler)
        self._times = times or WatchTimes()
        self._watches = self._plan(tuple(dict.fromkeys(namespaces)) or ("",))
        self._true_s = math.nan  # when the view was last known to be true
        self._problems: dict[WorkloadRef, str] = {}
        self._obstructed: dict[WorkloadRef, str] = {}  # as of the last fleet
        self._workload_rows: _WorkloadRows | None = None
        self._workload_state: object = None
        self._pod_rows: PodRows | None = None
        self._pod_place: IntColumn = np.empty(0, dtype=np.int64)
        self._pod_version = -1
        self._pod_ids = self._pod_place

    async def run(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as tasks:
            for watch in self._watches:
                tasks.create_task(watch.run(), name=f"watch {watch.resource.plural} {watch.namespace}".strip())
            tasks.create_task(self._beat(), name="heartbeat")

    def fleet(self) -> Fleet:
        """Return the latest view. Raises Unavailable, naming what is missing, until everything was listed once."""
        self._require_sync()
        workloads = self._workloads()
        pods = self._rows_of_pods(workloads)
        pool_gpus, joint, fits = self._with_strays(workloads, pods)
        return Fleet(
            time_s=self._true_s,
            workloads=workloads.workloads,
            workload_id=workloads.workload_id,
            replicas=workloads.replicas,
            paused=workloads.paused,
            other_owner=workloads.other_owner,
            gpus_per_replica=workloads.gpus_per_replica,
            pool=workloads.pool,
            obstacles=self._obstacles(workloads, pods, fits),
            pods=pods.pods,
            pod_id=pods.pod_id,
            pod_workload=self._pod_place,
            pod_ready=pods.ready,
            pod_terminating=pods.terminating,
            pod_blocked=pods.blocked,
            pod_created_s=pods.created_s,
            pod_scheduled_s=pods.scheduled_s,
            pod_started_s=pods.started_s,
            pod_ready_s=pods.ready_s,
            pools=workloads.layout.pools,
            pool_gpus=pool_gpus,
            joint=joint,
            held=workloads.held,
        )

    def scaled_object(self, namespace: str, name: str) -> ScaledObject | None:
        """Return a ScaledObject with an external trigger. Raises Unavailable until the first sync."""
        self._require_sync()
        return self._scaled.port(namespace, name)

    def problems(self) -> dict[WorkloadRef, str]:
        """Return what is wrong with the declarations of workloads, in words; as of the last `fleet()`."""
        return dict(self._problems)

    def obstructed(self) -> dict[WorkloadRef, str]:
        """Return why replicas of workloads do not come, in the cluster's words; as of the last `fleet()`."""
        return dict(self._obstructed)

    def limits(self) -> list[str]:
        """Return the pools whose size is taken for a limit although it may grow, one line each."""
        if self._workload_rows is None:
            return []
        layout = self._workload_rows.layout
        return [_limit(pool, size) for pool, size in zip(layout.pools, layout.gpus, strict=True) if pool.grows]

    def watch_problems(self) -> list[str]:
        """Return why watches do not work now, one line each."""
        return [watch.problem for watch in self._watches if watch.problem]

    def _plan(self, namespaces: Sequence[str]) -> list[Watch[Any]]:
        """Decide what is watched. A kind that a mode does not need is not asked for, nor is a right to it."""
        apps, keda = DEPLOYMENT.root, "/apis/keda.sh/v1alpha1"
        kinds: list[tuple[Resource[Any], Receiver[Any]]] = [
            (Resource(apps, "deployments", objects.Target), Targets(self._targets, DEPLOYMENT)),
            (Resource(apps, "statefulsets", objects.Target), Targets(self._targets, STATEFUL_SET)),
            (
                Resource(LEADER_WORKER_SET.root, LEADER_WORKER_SET.plural, objects.LeaderWorkerSet, optional=True),
                Targets(self._targets, LEADER_WORKER_SET),
            ),
            (Resource(apps, "replicasets", objects.Object, metadata_only=True), ReplicaSets(self._targets)),
            (Resource("/api/v1", "pods", objects.Pod), self._pods),
            (Resource("/api/v1", "nodes", objects.Node, namespaced=False, optional=True), self._nodes),
        ]
        if self._mode is not Mode.DRY_RUN:
            needed = self._mode is Mode.KEDA
            kinds += [
                (
                    Resource("/apis/autoscaling/v2", "horizontalpodautoscalers", objects.HorizontalPodAutoscaler),
                    self._hpas,
                ),
                (Resource(keda, "scaledobjects", objects.ScaledObject, optional=not needed), self._scaled),
            ]
        return [
            Watch(self._kube, resource, receiver, self._clock, namespace, self._times, self._on_sync)
            for resource, receiver in kinds
            for namespace in (namespaces if resource.namespaced else ("",))
        ]

    async def _beat(self) -> None:
        """Ask for a sign of life now and then: a silent watch does not tell a quiet cluster from a dead server."""
        missed = False
        while True:
            sent_s = self._clock.now_s()
            alive = await self._alive()
            if alive and missed:  # connections opened before the outage may be half-open: follow on new ones
                for watch in self._watches:
                    watch.renew()
            missed = not alive
            if alive and all(watch.synced and watch.live for watch in self._watches):
                self._true_s = sent_s
            await self._clock.sleep(self._heartbeat_s)

    async def _alive(self) -> bool:
        try:
            await self._kube.request("GET", HEARTBEAT_PATH)
        except ApiError as error:
            return 0 < error.status < 500 and error.status not in NOT_ALIVE
        return True

    def _on_sync(self) -> None:
        if all(watch.synced for watch in self._watches):
            self._true_s = self._clock.now_s()
            if self._wakeup is not None:
                self._wakeup.set()

    def _require_sync(self) -> None:
        if not math.isnan(self._true_s):
            return
        missing = next(watch for watch in self._watches if not watch.synced)
        where = f" in {missing.namespace}" if missing.namespace else ""
        reason = missing.problem or "its first list is not complete yet"
        raise Unavailable(f"the cluster is not known yet: {missing.resource.plural}{where}: {reason}")

    def _workloads(self) -> _WorkloadRows:
        """Lay out the managed workloads, or return what was laid out last if nothing has changed since."""
        state = (
            self._targets.version,
            self._pods.strangers,
            self._pods.tolerances,
            self._hpas.version,
            self._scaled.version,
            self._nodes.settle(),
            self.hands.holding(),
        )
        if self._workload_rows is not None and state == self._workload_state:
            return self._workload_rows
        told, self._problems = self._problems, {}
        managed: list[tuple[int, Row, _Managed]] = []
        for target_id in sorted(self._targets.rows):
            row = self._targets.rows[target_id]
            found = self._by_trigger(row) if self._mode is Mode.KEDA else self._by_annotation(row)
            if found is not None:
                managed.append((target_id, row, found))
        if self._mode is Mode.KEDA:
            self._miss_targets()
        self._tell(told, len(managed))
        tolerated = self._pods.tolerations()
        layout = self._nodes.pools(
            [tolerating(row.facts, tolerated.get(target_id, frozenset())) for target_id, row, _ in managed]
        )
        workload_id = np.array([target_id for target_id, _, _ in managed], dtype=np.int64)
        before = self._workload_rows
        if before is not None and np.array_equal(before.workload_id, workload_id):
            workload_id = before.workload_id  # the same object: then the pods need not be laid out anew
        self._workload_state = state
        limits = self.limits()
        self._workload_rows = _WorkloadRows(
            workloads=tuple(found.workload for *_, found in managed),
            workload_id=workload_id,
            replicas=np.array([float(row.replicas) for _, row, _ in managed]),
            paused=np.array([found.paused for *_, found in managed], dtype=bool),
            other_owner=tuple(found.other_owner for *_, found in managed),
            gpus_per_replica=np.array([row.facts.gpus for _, row, _ in managed]),
            pool=np.array(layout.rows, dtype=np.int64),
            layout=layout,
            pool_gpus=np.array(layout.gpus),
            listed=np.ones(len(managed), dtype=bool),
            fits=np.array(layout.fits),
            held=table([found.hold for *_, found in managed]),
            unable=tuple(found.hold.unable for *_, found in managed),
        )
        for limit in self.limits():
            if limit not in limits:
                log.info("today's nodes are the limit of a pool", pool=limit)
        return self._workload_rows

    def _with_strays(self, rows: _WorkloadRows, pods: PodRows) -> tuple[FloatColumn, tuple[Joint, ...], FloatColumn]:
        """Return the sizes of pools, of those that overlap, and what fits, with the pods on other nodes added.

        Such a pod was placed before its node got a taint, or its template a selector. It serves on, and its GPUs are no
        others' to have.
        """
        layout, strays = rows.layout, np.zeros(len(rows.workloads))
        partial = [admitted is not None for admitted in layout.admitted]
        if any(partial):
            for pod in np.flatnonzero(np.array(partial)[self._pod_place]).tolist():
                row = int(self._pod_place[pod])
                group, admitted = self._nodes.group(pods.pods[pod].node), layout.admitted[row]
                strays[row] += admitted is not None and group >= 0 and group not in admitted
        if not strays.any():
            return rows.pool_gpus, layout.joint, rows.fits
        gpus = np.where((rows.pool >= 0) & (strays > 0), strays * rows.gpus_per_replica, 0.0)
        more = np.bincount(np.fmax(rows.pool, 0), gpus, len(layout.pools))
        joint = tuple(each._replace(gpus=each.gpus + float(more[list(each.pools)].sum())) for each in layout.joint)
        return rows.pool_gpus + more, joint, rows.fits + strays

    def _obstacles(self, rows: _WorkloadRows, pods: PodRows, fits: FloatColumn) -> Obstacles:
        """Return why replicas do not come, as controllers, scheduler, kubelet and API server say."""
        count = len(rows.workloads)
        failed, words = np.zeros(count, dtype=bool), [""] * count
        refused, retry_s = np.full((2, count), np.nan)
        place = {target: row for row, target in enumerate(rows.workload_id.tolist())} if self._hindered(pods) else {}
        for target, said in pods.words.items():
            if target in place:
                words[place[target]] = said
        for target, said in self._targets.failures.items():
            if target in place:
                failed[place[target]], words[place[target]] = True, said
        for row in (row for row, said in enumerate(rows.unable) if said):
            refused[row], words[row] = np.inf, rows.unable[row]  # it does not say which count it asked for
        refusals = self._writes.refusals()
        for row, workload in enumerate(rows.workloads if refusals else ()):
            if workload.uid in refusals:
                refusal = refusals[workload.uid]
                refused[row], retry_s[row], words[row] = refusal.replicas, refusal.retry_s, refusal.words
        self._obstructed = {each.ref: said for each, said in zip(rows.workloads, words, strict=True) if said}
        return Obstacles(rows.listed, failed, fits, refused, retry_s, tuple(words))

    def _hindered(self, pods: PodRows) -> bool:
        return bool(pods.words or self._targets.failures)

    def _tell(self, told: Mapping[WorkloadRef, str], managed: int) -> None:
        """Log what has become of problems, of which `told` were told before, and that there is nothing to do."""
        for ref, problem in sorted(self._problems.items() - told.items()):
            log.warning("what a workload declares has a problem", workload=str(ref), problem=problem)
        for ref in sorted(told.keys() - self._problems.keys()):
            log.info("what a workload declares has no problem any more", workload=str(ref))
        if not managed and (self._workload_rows is None or self._workload_rows.workloads):
            namespaces = sorted({watch.namespace for watch in self._watches if watch.resource.namespaced} - {""})
            log.warning("no workload is to be scaled", needed=NEEDED[self._mode], namespaces=namespaces or "all")

    def _by_annotation(self, row: Row) -> _Managed | None:
        """Return what is known of a target whose annotation names a policy."""
        declared = row.declared
        if declared.policy is None:
            return None
        if problem := worded((declared.problem, row.facts.unclear)):
            self._problems[row.ref] = problem
        other_owner = "" if self._mode is Mode.DRY_RUN else self._other_owner(row)
        return _Managed(row.workload, declared.paused, other_owner)

    def _other_owner(self, row: Row) -> str:
        return self._autoscaler(row.key) or self._targets.served_by(row) or self.hands.owner(row.uid)

    def _autoscaler(self, target: TargetKey) -> str:
        """Name the autoscaler of a target; "": there is none."""
        scaled = self._scaled.of(target)
        return f"ScaledObject/{scaled[0].port.name}" if scaled else self._hpas.owner(target)

    def _by_trigger(self, row: Row) -> _Managed | None:
        """Return what is known of a target that one of our ScaledObjects names."""
        claims = self._scaled.of(row.key)
        asked = next((claim for claim in claims if claim.ours), None)
        if asked is None:
            return None
        hpa = self._hpas.made_by(asked.port.name, row.key)
        problem = worded(
            (_told(asked), lacks(asked, hpa), fails(hpa), row.declared.problem, _unread(row, asked), row.facts.unclear)
        )
        if problem:
            self._problems[row.ref] = problem
        others = [claim.port.name for claim in claims if claim is not asked]
        other = f"ScaledObject/{others[0]}" if others else self._hpas.owner(row.key, ours=asked.port.name)
        other_owner = other or self._targets.served_by(row)
        policy = NO_POLICY if asked.port.problem else asked.policy
        workload = row.workload._replace(policy=policy, overrides=asked.overrides, bounds=asked.bounds)
        return _Managed(workload, row.declared.paused or asked.paused, other_owner, hold(asked, hpa, row.replicas))

    def _miss_targets(self) -> None:
        """Tell of ScaledObjects whose target does not exist."""
        present = {row.key for row in self._targets.rows.values()}
        for asked in self._scaled.all():
            if asked.ours and asked.target not in present:
                told = self._problems.get(asked.port.target, "")  # several may name one target
                absent = "the target does not exist" if asked.target.kind in KINDS else ""  # others are not watched
                self._problems[asked.port.target] = worded((told, _told(asked), absent))

    def _rows_of_pods(self, workloads: _WorkloadRows) -> PodRows:
        ids = workloads.workload_id
        rows = self._pod_rows
        if rows is None or self._pod_version != self._pods.version or ids is not self._pod_ids:
            rows = self._pods.rows(ids)
            if self._pod_rows is not None and rows.pods == self._pod_rows.pods:
                rows = rows._replace(pods=self._pod_rows.pods)
            self._pod_rows, self._pod_version, self._pod_ids = rows, self._pods.version, ids
            self._pod_place = np.searchsorted(ids, rows.target_id).astype(np.int64)
        return rows


def _limit(pool: Pool, size: float) -> str:
    """Word that today's nodes are the limit of a pool."""
    name = " ".join(part for part in (pool.product or pool.resource, pool.nodes and f"({pool.nodes})") if part)
    allowed = "to have no limit, take the right to list nodes out of the daemon's role"
    return f"{name}: the {size:g} GPUs of today's nodes are the limit, although {pool.grows} may get more; {allowed}"


def _told(asked: Asked) -> str:
    """Word what is wrong with a ScaledObject."""
    words = asked.port.problem or asked.beside
    return f"ScaledObject/{asked.port.name}: {words}" if words else ""


def _unread(row: Row, asked: Asked) -> str:
    """Word which overrides stand where KEDA mode does not look; those of the trigger itself may be repeated there."""
    paths = ", ".join(path for path, _ in sorted(set(row.declared.overrides) - set(asked.overrides)))
    return f"{paths}: an annotation has no effect in KEDA mode; allowed: the metadata of the trigger" if paths else ""
