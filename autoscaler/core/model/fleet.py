"""The cluster as the tick sees it: workloads, their pods, and the GPU pools they compete for.

Rows are workloads (W) and pods (P). A source gives each workload and pod an id when it first sees it. Ids ascend, and
never change or repeat while the source runs, so memory can follow rows that move. All times are seconds on the clock
of the tick; the source converts them from Unix time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.phases import PodStarts
from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.model.quotas import Allowance, Quotas
from autoscaler.core.model.weights import Weights
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn

UNKNOWN_CLIENT = "a manual change by an unknown client"
SPOT, ON_DEMAND, RESERVED = "spot", "on-demand", "reserved"
"""Ways of paying for a node."""


class WorkloadRef(NamedTuple):
    """The scale target: anything with a scale subresource."""

    namespace: str
    name: str
    kind: str = "Deployment"
    api_version: str = "apps/v1"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def label(self) -> str:
        """The name for people; with the kind unless it is a Deployment, so that two workloads of one name differ."""
        is_plain = self.kind == "Deployment" or not self.api_version
        return str(self) if is_plain else f"{self} ({self.kind})"


class Workload(NamedTuple):
    """Identity and declarations of a workload, which do not change from tick to tick. None of it is validated."""

    ref: WorkloadRef
    uid: str = ""
    policy: str = ""  # name of its policy; "": the default policy
    overrides: tuple[tuple[str, str], ...] = ()  # single policy fields, ("replicas.max", "8"), validated by config
    bounds: tuple[float, float] = (0.0, inf)  # least and most replicas, whatever the policy says
    service: str = ""  # model endpoint of which it is a variant, or one side of a pair; "": of none
    role: str = ""  # one of `pairs.ROLES`; "": it computes prompts and generates
    model: str = ""  # model name that the engine or gateway reports; "": unknown
    engine: str = "vllm"  # name of its row in `catalog.engines`
    metrics_port: int = 8000
    metrics_scheme: str = "http"
    metrics_path: str = ""  # "": that of the engine
    weights: str = ""  # source of its model's weights, "hf://org/name@revision"; "": unknown
    loader: str = ""  # load format by which its engine loads them; "": the engine's own
    pins_weights: bool = False  # nodes hold them before those of others
    team: str = ""  # value of the label that names teams; "": none


class ServedNames(NamedTuple):
    """Model names that an engine reports, according to its command line."""

    names: tuple[str, ...] = ()  # (): unknown
    or_path: bool = False  # the engine may report the path of the model's files instead

    def include(self, reported: str, stated: str = "") -> bool:
        """Tell whether the engine may report this name: it equals one of the names, or the last part of its path does.

        True if the names are unknown, or if `reported` is empty. stated: a name that the workload declares.
        """
        if not self.names or reported in ("", stated):
            return True
        if self.or_path and (reported[0] == "/" or "://" in reported):
            return True
        last = last_part(reported)
        return any(last_part(name) == last for name in self.names)


def last_part(name: str) -> str:
    """Return the name of a model without its path, for comparison."""
    return name.casefold().rstrip("/").rpartition("/")[2]


class Pod(NamedTuple):
    """Identity and address of one pod."""

    namespace: str
    name: str
    ip: str = ""
    metrics_port: int = 8000
    node: str = ""
    metrics_scheme: str = "http"
    metrics_path: str = ""  # "": that of the engine
    served: ServedNames = ServedNames()  # by its own command line
    engine: str = ""  # by its own command line, or image; "": that of its workload
    weights: str = ""  # source of the weights that it loads, as `Workload.weights`


class PodPart(NamedTuple):
    """A pod of a replica of several pods."""

    pod: int  # row of the replica, which is that of its first pod
    node: str
    gpus: float  # it holds


class HeldDevices(NamedTuple):
    """Devices of nodes that pods of managed workloads hold, by what the pods themselves request.

    Templates do not tell: pods of an earlier one may hold others. Nor do node groups: what strays hold is in groups of
    its own there, and in those of its nodes here.
    """

    workload: IntColumn  # int64[H]
    pod: IntColumn  # int64[H], row of the replica; -1: none is known
    group: IntColumn  # int64[H], the node group that has them
    devices: FloatColumn  # float64[H]
    allocatable: FloatColumn  # float64[G], devices of each node group but those of strays, which are the last ones

    def on_rows(self, pod_id: IntColumn) -> HeldDevices:
        """Return these with rows instead of ids of replicas. pod_id: int64[P], ascending."""
        row = np.searchsorted(pod_id, self.pod)
        return self._replace(pod=np.where(np.append(pod_id, -1)[row] == self.pod, row, -1))


class Pool(NamedTuple):
    """GPUs of one resource name and product, on the nodes that admit a workload."""

    resource: str  # "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
    product: str = ""  # "NVIDIA-H100-80GB-HBM3"; "": any
    nodes: str = ""  # label that separates its nodes from others with this product, "team=a"; "": no others
    grows: str = ""  # node label by which a cluster autoscaler adds nodes; "": none, or the pool is unlimited
    capacity_type: str = (
        ""  # "spot", "on-demand", "reserved"; several joined by " or ", with "unknown" among them; "": unknown
    )

    @property
    def may_be_spot(self) -> bool:
        """Whether a replica in this pool may be on a node that its provider takes away at any time."""
        return SPOT in self.capacity_type.split(" or ")


class NodeGroup(NamedTuple):
    """Devices of one resource on nodes that a scheduler sees alike."""

    resource: str
    product: str = ""  # "": unknown
    nodes: str = ""  # labels that set its nodes apart, "team=a"; "": none
    zone: str = ""
    capacity_type: str = ""  # "spot", "on-demand", "reserved"; "": unknown
    sharing: str = ""  # "time-slicing", "mps"; "": a replica has its devices to itself
    grows: str = ""  # label or name of the group that a cluster autoscaler enlarges; "": its nodes are fixed
    sharers: int = 1  # pods that share a device; 1: it is not shared, 0: unknown


@dataclass(frozen=True)
class NodeGroups:
    """The devices that there are, by node group, and the groups that admit the replicas of each pool.

    A group may be in several pools. A limit that several groups share is a row of its own, without devices.
    """

    groups: tuple[NodeGroup, ...]  # [G], one for each node group and resource
    allocatable: FloatColumn  # float64[G], devices; NaN: unknown
    used_by_others: FloatColumn  # float64[G], devices held by pods of no managed workload, as far as pods are read
    used: FloatColumn  # float64[G], devices held by pods of managed workloads; NaN: unknown
    can_add: FloatColumn  # float64[G], devices that a cluster autoscaler may still add; infinity: no limit is known
    closed: BoolColumn  # bool[G], its nodes accept no new pod: they are cordoned or being reconfigured
    admitted: BoolColumn  # bool[N, G], node groups of each pool
    of_node: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # rows of each node, by its name
    by_node: tuple[FloatColumn, ...] = ()  # [G], devices that managed workloads may share; a node each, as in of_node

    @classmethod
    def of_pools(cls, pools: Sequence[Pool], gpus: FloatColumn) -> NodeGroups:
        """Return one fixed group for each pool. gpus: float64[N]; NaN: unknown."""
        none, count = np.zeros(len(pools)), len(pools)
        groups = tuple(NodeGroup(pool.resource, pool.product, pool.nodes, grows=pool.grows) for pool in pools)
        return cls(
            groups, np.array(gpus), none, np.full(count, np.nan), none, none.astype(bool), np.eye(count, dtype=bool)
        )

    def add_to_pools(self, pools: Sequence[Pool], gpus: FloatColumn) -> NodeGroups:
        """Return these groups, and one more for each pool that has other GPUs to itself. gpus: float64[N]."""
        grown = np.flatnonzero(gpus != 0)
        more = NodeGroups.of_pools([pools[pool] for pool in grown.tolist()], gpus[grown])
        own = np.zeros((len(pools), len(grown)), dtype=bool)
        own[grown, np.arange(len(grown))] = True
        return NodeGroups(
            groups=self.groups + more.groups,
            allocatable=np.concatenate([self.allocatable, more.allocatable]),
            used_by_others=np.concatenate([self.used_by_others, more.used_by_others]),
            used=np.concatenate([self.used, more.used]),
            can_add=np.concatenate([self.can_add, more.can_add]),
            closed=np.concatenate([self.closed, more.closed]),
            admitted=np.hstack([self.admitted, own]),
            of_node=self.of_node,
            by_node=(*self.by_node, *[np.zeros(0)] * len(grown)) if self.by_node else (),
        )

    @cached_property
    def gpus(self) -> FloatColumn:
        """Devices that managed workloads may share, float64[G]; infinity: no limit is known; NaN: unknown."""
        shared = np.maximum(self.allocatable - self.used_by_others, 0.0) + self.can_add
        return np.where(self.closed, self.used, shared)

    @cached_property
    def pool_gpus(self) -> FloatColumn:
        """Devices of each pool, float64[N]; NaN: unknown or without limit. Pools that overlap count some twice."""
        limited = np.isfinite(self.gpus)
        known = self.admitted.any(axis=1) & ~self.admitted[:, ~limited].any(axis=1)
        return np.where(known, self.admitted @ np.where(limited, self.gpus, 0.0), np.nan)


class PendingCause(IntEnum):
    """Why a pod is not ready: a cause that more replicas do not remove, the mildest first."""

    NONE = 0  # no such cause is known
    NODE_COMING = 1  # a cluster autoscaler creates a node for the pod
    QUEUED = 2  # a queue admits the pod later: a gate of Kueue or Volcano, a scheduler with queues
    UNSCHEDULABLE = 3  # no node has room: reason Unschedulable
    NO_NODE = 4  # no node has room, and the cluster autoscaler creates none
    SCHEDULING_GATED = 5  # the pod has other scheduling gates: reason SchedulingGated
    NOT_SCHEDULED = 6  # no scheduler has answered for the pod, or only with an error of its own
    IMAGE_PULL = 7  # ImagePullBackOff, ErrImagePull and the like
    CRASH_LOOP = 8  # CrashLoopBackOff, restarts without ever being ready, or soon after it was
    OUT_OF_MEMORY = 9  # likewise, after the kernel has killed its process: OOMKilled
    CONFIG_ERROR = 10  # CreateContainerConfigError and the like
    LOST_STARTS = 11  # the pods before it ended before they were ready, and it is no older than they were


QUEUED = (PendingCause.QUEUED, PendingCause.SCHEDULING_GATED)
WITHOUT_ROOM = (PendingCause.UNSCHEDULABLE, PendingCause.NO_NODE)
CRASHING = (
    PendingCause.IMAGE_PULL,
    PendingCause.CRASH_LOOP,
    PendingCause.OUT_OF_MEMORY,
    PendingCause.CONFIG_ERROR,
    PendingCause.LOST_STARTS,
)


class PendingClass(PublishedEnum):
    """Why a replica is not ready, by what follows from it."""

    STARTING = 0  # it will be ready after a cold start
    NODE_COMING = 1, "waiting for a node"  # likewise, after its node has been created
    QUEUED = 2  # its pod waits for admission by a queue, or for another controller that removes its scheduling gates
    NO_ROOM = 3, "without room"  # its pod waits for GPUs or other resources that pods hold
    QUOTA = 4, "refused or without pod"  # by a quota or an admission policy, or because its controller does nothing
    IMPOSSIBLE = 5  # the nodes that admit it cannot hold the desired replicas, even if they were empty
    CRASHING = 6  # its container crashes, or cannot be started, or its pods end before they are ready
    STUCK_STARTING = 7  # it has been starting for longer than any cold start, or no scheduler answers for its pod


@dataclass(frozen=True)
class Obstacles:
    """Reasons why replicas cannot be created or scheduled, as the cluster reports them; every field [W]."""

    listed: BoolColumn  # bool[W], all pods of the workload are known, so a replica without a pod is missing
    creation_failed: BoolColumn  # bool[W], its controller reports that it cannot create pods
    fits: FloatColumn  # float64[W], replicas that fit on the nodes that admit the workload; infinity: unknown
    refused_replicas: FloatColumn  # float64[W], count that the API server refused lately; infinity: any; NaN: none
    retry_at_s: FloatColumn  # float64[W], time from which that count may be tried again; NaN: none was refused
    messages: tuple[str, ...]  # [W], message of the API server, the scheduler or the kubelet; "": none
    room: FloatColumn | None = None  # float64[W], replicas that fit next to all present pods; None, NaN: unknown

    @classmethod
    def none(cls, rows: int, listed: bool = True) -> Obstacles:
        """Return obstacles of workloads for which the cluster reports none."""
        never, unknown = np.zeros(rows, dtype=bool), np.full(rows, np.nan)
        return cls(np.full(rows, listed), never, np.full(rows, np.inf), unknown, unknown, ("",) * rows)


@dataclass(frozen=True)
class HpaDelays(Columns):
    """How long KEDA and an HPA may take to begin to follow a count; every field float64[W], seconds."""

    wake_s: FloatColumn  # from zero: KEDA's polling
    grow_s: FloatColumn  # its stabilization window, and the period of a policy
    shrink_s: FloatColumn  # likewise
    zero_s: FloatColumn  # to zero: KEDA's cooldown and polling; infinity: KEDA never goes to zero


@dataclass(frozen=True)
class HpaLimits:
    """Limits of the HPAs that carry out the decisions in KEDA mode."""

    min_replicas: FloatColumn  # float64[W], the HPA keeps at least this many, whatever is decided; 0: no limit
    max_replicas: FloatColumn  # float64[W], the HPA keeps at most this many; infinity: no limit
    to_zero: BoolColumn  # bool[W], the workload may go to zero all the same
    shared: BoolColumn  # bool[W], another trigger decides too, so the present count may stay
    reason: tuple[str, ...]  # [W], why the HPA keeps its count, in words; "": it has no such reason
    delays: HpaDelays | None = None  # None: not known, so that no answer counts as not followed


@dataclass(frozen=True)
class ForeignCounts:
    """Counts that somebody else has set; [W]."""

    reset_to: FloatColumn  # float64[W], spec.replicas that a deployment carried along, which is undone; NaN: it did not
    reset_by: tuple[str, ...]  # [W], who did; "": unknown, or nobody
    nameless_zero: BoolColumn  # bool[W], somebody set the count to zero, and it is not known who
    owned_until_s: (
        FloatColumn  # float64[W], end of another owner's time; infinite: until it raises the count; NaN: unknown
    )


@dataclass(frozen=True)
class Fleet:
    """A snapshot of a synced cluster view. Rows are in the order of their ids."""

    time_s: float  # time of this view of the cluster

    workloads: tuple[Workload, ...]  # [W]
    workload_id: IntColumn  # int64[W], ascending
    replicas: FloatColumn  # float64[W], spec.replicas; before a reset that is undone
    paused: BoolColumn  # bool[W], the operator has paused the workload
    other_owner: tuple[str, ...]  # [W], other owner of the replica count ("HorizontalPodAutoscaler/x"); "": none
    gpus_per_replica: FloatColumn  # float64[W]; NaN: unknown
    pool: IntColumn  # int64[W], index into pools; -1: unknown
    obstacles: Obstacles  # [W]

    pods: tuple[Pod, ...]  # [P]
    pod_id: IntColumn  # int64[P], ascending
    pod_workload: IntColumn  # int64[P], row of the workload
    pod_ready: BoolColumn  # bool[P], Ready condition
    pod_terminating: BoolColumn  # bool[P], deletionTimestamp set or DisruptionTarget; still holds its GPU
    pod_pending: IntColumn  # int64[P], PendingCause; NONE: it is starting, or ready without doubt
    pod_created_s: FloatColumn  # float64[P]
    pod_scheduled_s: FloatColumn  # float64[P]; NaN: not yet
    pod_started_s: FloatColumn  # float64[P], start of the engine's container; NaN: not yet, or it has restarted since
    pod_ready_s: FloatColumn  # float64[P], time at which Ready became true; NaN: not ready

    pools: tuple[Pool, ...]  # [N]
    groups: NodeGroups  # of these pools
    hpa_limits: HpaLimits | None = None  # None: decisions are carried out without an HPA
    quotas: tuple[Quotas, ...] = ()  # one for each kind of source; several where scopes of ResourceQuotas differ
    allowances: tuple[Allowance, ...] = ()  # of other quotas, which bound what is requested before there are pods
    gpus_per_pod: FloatColumn | None = None  # float64[W], divides those of each pod of a replica; NaN, None: unknown
    former: FloatColumn | None = None  # float64[W], replicas on nodes that an earlier template made; None: none
    drain_s: FloatColumn | None = None  # float64[W], time for the requests of a replica that leaves; NaN, None: unknown
    weights: Weights | None = None  # where the weights of models are; None: unknown
    starts: PodStarts | None = None  # [P], of phases of cold starts; None: unknown
    pods_of_replica: Mapping[int, tuple[float, ...]] = field(
        default_factory=dict
    )  # GPUs of each, by row if they differ
    parts: tuple[PodPart, ...] = ()  # of replicas of several pods, those that are on nodes
    pod_slots: FloatColumn | None = None  # float64[P], requests it runs at once by its command line; NaN, None: unknown
    foreign: ForeignCounts | None = None  # None: no count is foreign
    held: HeldDevices | None = None  # None: each replica holds what its template states

    @cached_property
    def is_ours(self) -> BoolColumn:
        """Whether the daemon sets the count: the workload is not paused and has no other owner; bool[W]."""
        return np.asarray(~self.paused & np.array([not owner for owner in self.other_owner], dtype=bool))

    @property
    def present_replicas(self) -> FloatColumn:
        """spec.replicas in the cluster, float64[W]: also where a reset is undone."""
        if self.foreign is None:
            return self.replicas
        return np.where(np.isnan(self.foreign.reset_to), self.replicas, self.foreign.reset_to)

    def leave_stopped(self, goes_to_zero: BoolColumn) -> Fleet:
        """Return the fleet with an owner for each count of zero that somebody else must have set.

        goes_to_zero: bool[W], the policy does so too. Such a zero may be that of an earlier version of the daemon.
        """
        if self.foreign is None or not (stopped := self.foreign.nameless_zero & ~goes_to_zero).any():
            return self
        owners = tuple(
            owner or (UNKNOWN_CLIENT if stop else "")
            for owner, stop in zip(self.other_owner, stopped.tolist(), strict=True)
        )
        until_s = np.where(np.isnan(self.foreign.owned_until_s), np.inf, self.foreign.owned_until_s)
        until_s = np.where(stopped, until_s, self.foreign.owned_until_s)
        return replace(self, other_owner=owners, foreign=replace(self.foreign, owned_until_s=until_s))

    @property
    def pool_gpus(self) -> FloatColumn:
        """Devices of each pool, float64[N]; NaN: unknown, then its GPUs are not allocated."""
        return self.groups.pool_gpus
