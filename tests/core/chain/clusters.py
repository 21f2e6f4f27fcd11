"""Small clusters, and the windows of their workloads."""

from dataclasses import replace

import numpy as np

from autoscaler.core.model.fleet import Fleet, NodeGroups, Pod, Pool
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import TickInput
from tests.core.world import fleet, spec, world

NAN = np.nan
GPU = "nvidia.com/gpu"


def windows(*rows: list[tuple[float, float]], lead_s: float = NAN) -> Schedule:
    """One row per workload, of windows as begin and replicas; all last an hour."""
    most = max(map(len, rows), default=0)
    column = np.full((4, len(rows), most), NAN)
    for row, each in enumerate(rows):
        for slot, (begin_s, replicas) in enumerate(each):
            column[:, row, slot] = begin_s, begin_s + 3600, replicas, lead_s
    name = np.where(np.isnan(column[0]), -1, 0)
    return Schedule(*column, name=name, names=("office",))


def cluster(ready: list[int], free: float, can_add: float = np.inf, **columns: object) -> Fleet:
    """One pool of one group of fixed nodes with this many free GPUs, whose autoscaler may add others."""
    node = tuple(Pod("ns", f"p{place}", node="n") for place in range(sum(ready)))
    pools = (Pool(GPU, "H100"),)
    groups = NodeGroups.of_pools(pools, np.array([sum(ready) + free]))
    groups = replace(groups, can_add=np.array([can_add]), of_node={"n": (0,)})
    return fleet(ready, pods=node, pools=pools, groups=groups, **columns)


def look(now_s: float, seen: Fleet, schedule: Schedule, requests_nodes: bool = True, **columns: float) -> TickInput:
    inp = world(now_s, seen, spec(len(seen.workloads), **{"concurrency": NAN} | columns), schedule)
    return replace(inp, requests_nodes=np.full(len(seen.workloads), True) if requests_nodes else None)
