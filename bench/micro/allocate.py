"""Time how pools of GPUs are shared: 10,000 workloads over 50 node groups, which pools have in common.

Prints the median CPU time of one allocation where GPUs suffice for a part of the replicas, and where they suffice for
all. A pool consists of one to eight node groups, and one pool in ten of all. Replicas have 1, 2, 4 or 8 GPUs.
On known nodes, present replicas run in one node group each, and nodes have any number of GPUs.
With quotas, each workload belongs to one of 200 tenants, and ten tenants are in one cohort.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.core.allocate.pools import share
from autoscaler.core.model.fleet import Fleet, NodeGroup, NodeGroups, Obstacles, Pod, Pool, Workload, WorkloadRef
from autoscaler.core.model.quotas import Quota, Quotas
from autoscaler.core.model.spec import Spec
from autoscaler.core.observe.pending import Claims
from bench.micro import fleets

PRIORITIES, SIZES = (100.0, 500.0, 900.0), (1.0, 1.0, 1.0, 2.0, 4.0, 8.0)
MOST_GROUPS = 8
"""Node groups of a pool that does not consist of all."""

TENANTS, COHORTS = 200, 20

LARGEST_COUNT = 16
"""Each workload desires up to this many replicas."""

NODES = 40
"""Nodes of each node group."""

CASES = {
    "scarce": (0.5, 0.0, False),
    "nearly_enough": (0.95, 0.0, False),
    "plentiful": (4.0, 0.0, False),
    "scarce_on_known_nodes": (0.5, 0.0, True),
    "nearly_enough_on_known_nodes": (0.95, 0.0, True),
    "quotas": (4.0, 0.5, False),
    "quotas_and_scarce": (0.5, 0.5, False),
    "quotas_that_suffice": (0.5, 4.0, False),
}
"""GPUs of node groups and nominal ones of tenants, by GPUs requested; 0: no quotas. Whether the nodes are known."""


def measure(
    workloads: int,
    groups: int,
    fraction: float,
    repeats: int,
    quota: float = 0.0,
    on_nodes: bool = False,
    seed: int = 1,
) -> tuple[float, float]:
    """Return the median CPU seconds of one allocation, and the fraction of GPUs requested that it allocates.

    fraction: GPUs of all node groups by GPUs requested. quota: nominal GPUs of all tenants, likewise; 0: no quotas.
    on_nodes: replicas run where they fit, so their node groups are known.
    """
    random = np.random.default_rng(seed)
    pools = 2 * groups
    admitted = np.zeros((pools, groups), dtype=bool)
    for pool in range(pools):
        count = groups if pool % 10 == 9 else random.integers(1, min(MOST_GROUPS, groups) + 1)
        admitted[pool, random.choice(groups, count, replace=False)] = True
    desired = random.integers(1, LARGEST_COUNT + 1, workloads).astype(float)
    current = np.floor(desired * random.random(workloads))
    each = random.choice(SIZES, workloads)
    supply = random.dirichlet(np.full(groups, 4.0)) * fraction * float(desired @ each)
    tenant = random.integers(0, TENANTS, workloads)
    nominal = np.floor(random.dirichlet(np.full(TENANTS, 4.0)) * quota * float(desired @ each))
    quotas = Quotas(
        quotas=tuple(
            Quota(f"team-{row}", "nvidia.com/gpu", cohort=f"cohort-{row % COHORTS}") for row in range(TENANTS)
        ),
        nominal=nominal,
        borrowing_limit=np.where(np.arange(TENANTS) % 2, nominal, np.inf),
        lending_limit=np.floor(nominal / 2),
        used_by_others=np.zeros(TENANTS),
        tenant=tenant,
        charged=np.eye(TENANTS, dtype=bool),
    )
    none, many, yes = np.zeros(workloads), np.full(workloads, np.inf), np.ones(workloads, dtype=bool)
    no_pods = np.zeros(0)
    cluster = Fleet(
        time_s=0.0,
        workloads=tuple(Workload(WorkloadRef("team", f"model-{number}")) for number in range(workloads)),
        workload_id=np.arange(workloads),
        replicas=current,
        paused=~yes,
        other_owner=("",) * workloads,
        gpus_per_replica=each,
        pool=random.integers(0, pools, workloads),
        obstacles=Obstacles.none(workloads),
        pods=(),
        pod_id=no_pods.astype(np.int64),
        pod_workload=no_pods.astype(np.int64),
        pod_ready=no_pods.astype(bool),
        pod_terminating=no_pods.astype(bool),
        pod_pending=no_pods.astype(np.int64),
        pod_created_s=no_pods,
        pod_scheduled_s=no_pods,
        pod_started_s=no_pods,
        pod_ready_s=no_pods,
        pools=tuple(Pool("nvidia.com/gpu", "H100", f"pool={number}") for number in range(pools)),
        groups=NodeGroups(
            groups=tuple(NodeGroup("nvidia.com/gpu", "H100", f"group={number}") for number in range(groups)),
            allocatable=np.floor(supply),
            used_by_others=np.zeros(groups),
            used=np.full(groups, np.nan),
            can_add=np.zeros(groups),
            closed=np.zeros(groups, dtype=bool),
            admitted=admitted,
        ),
        quotas=(quotas,) if quota else (),
    )
    if on_nodes:
        cluster = run(cluster, random)
        current = cluster.replicas
    columns = {**fleets.SPEC, "priority": random.choice(PRIORITIES, workloads), "weight": random.choice(3, workloads)}
    spec = Spec(
        **{name: np.broadcast_to(np.asarray(value, float), workloads).copy() for name, value in columns.items()}
    )
    idle = random.random(workloads) < 0.05
    arrivals, base = random.random(workloads), np.ceil(desired / 2)
    took = []
    for _ in range(repeats):
        began = time.process_time()
        allocated = share(
            desired, base, cluster, spec, Claims(many, many, many, ~yes, ~yes), yes, yes, idle, current, arrivals, none
        )
        took.append(time.process_time() - began)
    return statistics.median(took), float(allocated @ each) / float(desired @ each)


def run(cluster: Fleet, random: np.random.Generator) -> Fleet:
    """Return the fleet with the pods of its present replicas on nodes, as far as they fit."""
    groups, free = cluster.groups, cluster.groups.allocatable.copy()
    own = [np.flatnonzero(row) for row in groups.admitted]
    rows, nodes = [], []
    for row in random.permutation(np.repeat(np.arange(len(cluster.workloads)), cluster.replicas.astype(int))).tolist():
        group = int(random.choice(own[cluster.pool[row]]))
        if free[group] >= cluster.gpus_per_replica[row]:
            free[group] -= cluster.gpus_per_replica[row]
            rows.append(row)
            nodes.append(f"node-{group}-{random.integers(NODES)}")
    yes, times = np.ones(len(rows), dtype=bool), np.zeros(len(rows))
    return replace(
        cluster,
        replicas=np.bincount(rows, minlength=len(cluster.workloads)).astype(float),
        pods=tuple(Pod("team", f"pod-{place}", node=node) for place, node in enumerate(nodes)),
        pod_id=np.arange(len(rows)),
        pod_workload=np.array(rows),
        pod_ready=yes,
        pod_terminating=~yes,
        pod_pending=np.zeros(len(rows), dtype=np.int64),
        pod_created_s=times,
        pod_scheduled_s=times,
        pod_started_s=times,
        pod_ready_s=times,
        groups=replace(
            groups,
            of_node={f"node-{group}-{n}": (group,) for group in range(len(groups.groups)) for n in range(NODES)},
            by_node=tuple(np.floor((gpus + np.arange(NODES)) / NODES) for gpus in groups.allocatable),
        ),
        gpus_per_pod=cluster.gpus_per_replica,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workloads", type=int, default=10_000, help="number of workloads")
    options.add_argument("--groups", type=int, default=50, help="number of node groups")
    options.add_argument("--repeats", type=int, default=9, help="number of allocations to measure")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    args = options.parse_args()
    result: dict[str, float] = {"workloads": args.workloads, "groups": args.groups}
    for name, (fraction, quota, on_nodes) in CASES.items():
        took_s, part = measure(args.workloads, args.groups, fraction, args.repeats, quota, on_nodes)
        result |= {f"{name}_ms": round(took_s * 1e3, 2), f"{name}_allocated": round(part, 3)}
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.workloads} workloads over {args.groups} node groups, one allocation:")
    for name in CASES:
        words = name.replace("_", " ")
        print(f"{words}: {result[f'{name}_ms']} ms, {result[f'{name}_allocated']:.1%} of what is requested")


if __name__ == "__main__":
    main()
