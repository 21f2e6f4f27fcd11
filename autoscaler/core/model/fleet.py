"""The cluster as the tick sees it: workloads, their pods, and the GPU pools they compete for.

Rows are workloads (W) and pods (P). A source gives each workload and pod an id when it first sees it. Ids ascend, and
never change or repeat while the source runs, so memory can follow rows that move. All times are seconds on the clock
of the tick; the source converts them from Unix time.
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
    """Identity and declarations of a workload, which do not change from tick to tick. None of it is validated."""

    ref: WorkloadRef
    uid: str = ""
    policy: str = ""  # name of its policy; "": the default policy
    overrides: tuple[tuple[str, str], ...] = ()  # single policy fields, ("replicas.max", "8"), validated by config
    bounds: tuple[float, float] = (0.0, inf)  # least and most replicas, whatever the policy says
    service: str = ""  # model endpoint of which it is a variant; "": it is no variant
    model: str = ""  # model name that the engine or gateway reports; "": unknown
    engine: str = "vllm"  # name of its row in `catalog.engines`
    metrics_port: int = 8000
    metrics_scheme: str = "http"
    metrics_path: str = ""  # "": that of the engine


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
    nodes: str = ""  # label that separates its nodes from others with this product, "team=a"; "": no others
    grows: str = ""  # node label by which a cluster autoscaler adds nodes; "": none, or the pool is unlimited


class PoolOverlap(NamedTuple):
    """Pools that share nodes. Together they have fewer GPUs than the sum of their sizes."""

    pools: tuple[int, ...]  # indices into the pools of the fleet
    gpus: float  # of all these pools together; NaN: unknown


class PendingClass(IntEnum):
    """Why a pod does not become ready: a cause that neither time nor more replicas remove."""

    NONE = 0  # no such cause is known
    UNSCHEDULABLE = 1  # no node has room: reason Unschedulable
    SCHEDULING_GATED = 2  # the pod has scheduling gates: reason SchedulingGated
    IMAGE_PULL = 3  # ImagePullBackOff, ErrImagePull and the like
    CRASH_LOOP = 4  # CrashLoopBackOff
    CONFIG_ERROR = 5  # CreateContainerConfigError and the like


@dataclass(frozen=True)
class Obstacles:
    """Reasons why replicas cannot be created or scheduled, as the cluster reports them; every field [W]."""

    listed: BoolColumn  # bool[W], all pods of the workload are known, so a replica without a pod is missing
    creation_failed: BoolColumn  # bool[W], its controller reports that it cannot create pods
    fits: FloatColumn  # float64[W], replicas that fit on the nodes that admit the workload; infinity: unknown
    refused_replicas: FloatColumn  # float64[W], count that the API server refused lately; infinity: any; NaN: none
    retry_at_s: FloatColumn  # float64[W], time from which that count may be tried again; NaN: none was refused
    messages: tuple[str, ...]  # [W], message of the API server, the scheduler or the kubelet; "": none

    @classmethod
    def none(cls, rows: int, listed: bool = True) -> Obstacles:
        """Return obstacles of workloads for which the cluster reports none."""
        never, unknown = np.zeros(rows, dtype=bool), np.full(rows, np.nan)
        return cls(np.full(rows, listed), never, np.full(rows, np.inf), unknown, unknown, ("",) * rows)


@dataclass(frozen=True)
class HpaLimits:
    """Limits of the HPAs that carry out the decisions in KEDA mode."""

    min_replicas: FloatColumn  # float64[W], the HPA keeps at least so many, whatever is decided; 0: no limit
    max_replicas: FloatColumn  # float64[W], the HPA keeps at most so many; infinity: no limit
    to_zero: BoolColumn  # bool[W], the workload may go to zero all the same
    shared: BoolColumn  # bool[W], another trigger decides too, so the present count may stay
    reason: tuple[str, ...]  # [W], why the HPA keeps its count, in words; "": it has no such reason


@dataclass(frozen=True)
class Fleet:
    """A snapshot of a synced cluster view. Rows are in the order of their ids."""

    time_s: float  # time of this view of the cluster

    workloads: tuple[Workload, ...]  # [W]
    workload_id: IntColumn  # int64[W], ascending
    replicas: FloatColumn  # float64[W], spec.replicas in the cluster
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
    pod_pending: IntColumn  # int64[P], PendingClass
    pod_created_s: FloatColumn  # float64[P]
    pod_scheduled_s: FloatColumn  # float64[P]; NaN: not yet
    pod_started_s: FloatColumn  # float64[P], start of the engine's container; NaN: not yet, or it has restarted since
    pod_ready_s: FloatColumn  # float64[P], time at which Ready became true; NaN: not ready

    pools: tuple[Pool, ...]  # [N]
    pool_gpus: FloatColumn  # float64[N], allocatable devices; NaN: unknown, then GPUs are not allocated
    pool_overlaps: tuple[PoolOverlap, ...] = ()  # the smallest set of pools first
    hpa_limits: HpaLimits | None = None  # None: decisions are carried out without an HPA
