"""The cluster as the tick sees it: workloads, their pods, and the pools they compete for.

Rows are workloads (W) and pods (P). Sources number workloads and pods once, in ascending order, when they first see
them; `workload_id` and `pod_id` never change or repeat while a source lives, so memory can follow rows that move.
All times are seconds on the clock of the tick; a source converts wall time at the rim.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn


class WorkloadRef(NamedTuple):
    """The scale target: anything with a scale subresource."""

    namespace: str
    name: str
    kind: str = "Deployment"
    api_version: str = "apps/v1"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Workload(NamedTuple):
    """What does not change from tick to tick: identity and declarations. Everything here came from outside."""

    ref: WorkloadRef
    uid: str = ""
    policy: str = ""  # name of a policy; "": the default policy
    overrides: tuple[tuple[str, str], ...] = ()  # single policy fields, ("replicas.max", "8"), validated by config
    bounds: tuple[float, float] = (0.0, inf)  # least and most replicas that hold whatever the policy says
    service: str = ""  # model endpoint this workload is a variant of; "": itself
    model: str = ""  # model name as the engine or gateway reports it; "": unknown
    engine: str = "vllm"  # row of the engine table
    metrics_port: int = 8000
    metrics_scheme: str = "http"
    metrics_path: str = ""  # "": that of the engine


class ServedNames(NamedTuple):
    """The names under which an engine's command line has its model reported."""

    names: tuple[str, ...] = ()  # (): not known
    or_path: bool = False  # the engine may report instead where the model's files are

    def include(self, reported: str, stated: str = "") -> bool:
        """Say whether an engine may report this name: it is one of them, or has the same last part of a path.

        Where the names are not known, or none is reported, it may. stated: a name that the workload declares.
        """
        if not self.names or reported in ("", stated):
            return True
        if self.or_path and (reported[0] == "/" or "://" in reported):
            return True
        last = _last_part(reported)
        return any(_last_part(name) == last for name in self.names)


def _last_part(name: str) -> str:
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


class Pool(NamedTuple):
    """GPUs of one resource name and product, on the nodes that admit a workload."""

    resource: str  # "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"
    product: str = ""  # "NVIDIA-H100-80GB-HBM3"; "": any
    nodes: str = ""  # what tells its nodes from others with this product, "team=a"; "": there are no others
    grows: str = ""  # label of its nodes by which a cluster autoscaler may add more; "": none, or no limit is assumed


class Joint(NamedTuple):
    """Pools that have nodes in common, and what they have together: less than the sum of their sizes."""

    pools: tuple[int, ...]  # indices into the pools of the fleet
    gpus: float  # NaN: unknown


class Blocked(IntEnum):
    """Why a pod that is not ready will not be helped by waiting, or by more replicas."""

    NO = 0
    UNSCHEDULABLE = 1  # no node has room: reason Unschedulable
    GATED = 2  # held by scheduling gates; not a lack of capacity
    IMAGE = 3  # ImagePullBackOff, ErrImagePull
    CRASHING = 4  # CrashLoopBackOff
    MISCONFIGURED = 5  # CreateContainerConfigError and the like


@dataclass(frozen=True)
class Obstacles:
    """What keeps replicas from coming, as far as the cluster tells; every field [W]."""

    listed: BoolColumn  # bool[W], all pods of the workload are known, so that one that is wanted and absent is missing
    failed: BoolColumn  # bool[W], its controller says that it cannot create pods
    fits: FloatColumn  # float64[W], replicas that the nodes that admit it can hold in all; infinity: not known
    refused: FloatColumn  # float64[W], a count that the API server refused lately; infinity: any; NaN: none
    retry_s: FloatColumn  # float64[W], moment from which it may be asked for again; NaN: none was refused
    words: tuple[str, ...]  # [W], why, in the words of the API server, the scheduler or the kubelet; "": not known

    @classmethod
    def none(cls, rows: int, listed: bool = True) -> Obstacles:
        """Return what is known where nothing is told."""
        never, unknown = np.zeros(rows, dtype=bool), np.full(rows, np.nan)
        return cls(np.full(rows, listed), never, np.full(rows, np.inf), unknown, unknown, ("",) * rows)


@dataclass(frozen=True)
class Held:
    """What becomes of a decision where others carry it out, and may be told to keep a count where it is."""

    least: FloatColumn  # float64[W], replicas below which the count does not go, whatever is decided; 0: no such bound
    most: FloatColumn  # float64[W], replicas above which it does not go; infinity: no such bound
    to_zero: BoolColumn  # bool[W], it goes to zero all the same
    shared: BoolColumn  # bool[W], something else decides as well: what stands may stay, whatever is decided
    reason: tuple[str, ...]  # [W], what holds the count, in words; "": nothing does


@dataclass(frozen=True)
class Fleet:
    """A synced snapshot. Row order is the source's; ids ascend."""

    time_s: float  # when this was known to be true; the age of the cluster view is now - time_s

    workloads: tuple[Workload, ...]  # [W]
    workload_id: IntColumn  # int64[W], ascending
    replicas: FloatColumn  # float64[W], spec.replicas as it stands in the cluster
    paused: BoolColumn  # bool[W], the operator said hands off
    other_owner: tuple[str, ...]  # [W], who else owns the replica count ("HorizontalPodAutoscaler/x"); "": nobody
    gpus_per_replica: FloatColumn  # float64[W]; NaN: unknown
    pool: IntColumn  # int64[W], index into pools; -1: unknown
    obstacles: Obstacles  # [W]

    pods: tuple[Pod, ...]  # [P]
    pod_id: IntColumn  # int64[P], ascending
    pod_workload: IntColumn  # int64[P], row of the workload
    pod_ready: BoolColumn  # bool[P], Ready condition
    pod_terminating: BoolColumn  # bool[P], deletionTimestamp set or DisruptionTarget; still holds its GPU
    pod_blocked: IntColumn  # int64[P], Blocked
    pod_created_s: FloatColumn  # float64[P]
    pod_scheduled_s: FloatColumn  # float64[P]; NaN: not yet
    pod_started_s: FloatColumn  # float64[P], engine's container first ran; NaN: not yet, or it was started again since
    pod_ready_s: FloatColumn  # float64[P], Ready became true; NaN: not ready

    pools: tuple[Pool, ...]  # [N]
    pool_gpus: FloatColumn  # float64[N], allocatable devices; NaN: unknown, then the pool is not shared out
    joint: tuple[Joint, ...] = ()  # pools that overlap, the smallest set first
    held: Held | None = None  # None: what is decided is what will be
