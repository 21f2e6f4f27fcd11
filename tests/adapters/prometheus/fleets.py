"""Small fleets of named workloads and pods."""

import numpy as np

from autoscaler.core.model.fleet import Fleet, NodeGroups, Obstacles, Pod, Pool, Workload, WorkloadRef

POOLS = (Pool("nvidia.com/gpu"),)


def fleet_of(
    pods: dict[str, list[str]],
    *,
    first_pod_id: int = 0,
    ready: bool = True,
    **workload: str,
) -> Fleet:
    """A fleet of `{"namespace/workload": [pod names]}`; `workload` sets fields of every Workload."""
    refs = [WorkloadRef(*name.split("/")) for name in pods]
    names = [Pod(ref.namespace, pod) for ref, members in zip(refs, pods.values(), strict=True) for pod in members]
    rows = np.repeat(np.arange(len(refs)), [len(members) for members in pods.values()])
    nothing = np.full(len(names), np.nan)
    return Fleet(
        time_s=0.0,
        workloads=tuple(Workload(ref, **workload) for ref in refs),
        workload_id=np.arange(len(refs)),
        replicas=np.bincount(rows, minlength=len(refs)).astype(np.float64),
        paused=np.zeros(len(refs), dtype=bool),
        other_owner=("",) * len(refs),
        gpus_per_replica=np.ones(len(refs)),
        pool=np.zeros(len(refs), dtype=np.int64),
        obstacles=Obstacles.none(len(refs)),
        pods=tuple(names),
        pod_id=np.arange(first_pod_id, first_pod_id + len(names)),
        pod_workload=rows,
        pod_ready=np.full(len(names), ready),
        pod_terminating=np.zeros(len(names), dtype=bool),
        pod_pending=np.zeros(len(names), dtype=np.int64),
        pod_created_s=nothing,
        pod_scheduled_s=nothing,
        pod_started_s=nothing,
        pod_ready_s=nothing,
        pools=POOLS,
        groups=NodeGroups.of_pools(POOLS, np.array([np.nan])),
    )
