"""Replicas that run stay where they are: what others are promised, which replica leaves, and that it comes to rest."""

from dataclasses import replace

import numpy as np

from autoscaler.core.allocate import pools
from autoscaler.core.model.fleet import Pod
from autoscaler.core.model.running import list_running
from autoscaler.core.observe.pending import Claims, has_gpus
from tests.core.world import fleet, node_groups, spec

X, Y = 0, 1


def cluster(gpus, admitted, pool, runs, **columns):
    """Return workloads whose replicas run on these node groups. admitted: groups of each pool. runs: by workload."""
    names = [f"node-{group}" for group in range(len(gpus))]
    seen = fleet(
        [len(groups) for groups in runs],
        pool=np.array(pool),
        pools=fleet([1]).pools * len(admitted),
        groups=replace(node_groups(gpus, *admitted), of_node={name: (group,) for group, name in enumerate(names)}),
        **columns,
    )
    nodes = [names[group] for groups in runs for group in groups]
    return replace(seen, pods=tuple(Pod("ns", f"p{place}", node=node) for place, node in enumerate(nodes)))


def share(seen, desired, base=None, **ranks):
    rows = len(desired)
    desired = np.array(desired, float)
    base = desired if base is None else np.array(base, float)
    none, many, yes = np.zeros(rows), np.full(rows, np.inf), np.ones(rows, dtype=bool)
    scheduled = np.bincount(seen.pod_workload[has_gpus(seen)], minlength=rows).astype(float)
    claims, rules = Claims(many, many, many, ~yes, ~yes), spec(rows, **{"min_replicas": 0.0, **ranks})
    return pools.share(desired, base, seen, rules, claims, yes, yes, ~yes, scheduled, none, none).tolist()


RANKS = {"priority": [900.0, 500.0, 100.0]}


def test_no_replica_is_promised_gpus_that_only_a_move_would_free():
    """The first runs on the only group of the second, and could run on that of the third, which serves there."""
    seen = cluster([1, 1], [[X, Y], [X], [Y]], [0, 1, 2], [[X], [], [Y]])
    assert share(seen, [1, 1, 1], **RANKS) == [1, 0, 1]


def test_free_gpus_elsewhere_are_no_place_for_a_replica_that_runs():
    seen = cluster([1, 1], [[X, Y], [X]], [0, 1], [[X], []])
    assert share(seen, [1, 1], priority=[900.0, 500.0]) == [1, 0]


def test_a_higher_priority_takes_gpus_where_it_fits():
    """The last has a replica on each group. It keeps the one on the group that the first cannot use."""
    seen = cluster([1, 1], [[X], [X, Y]], [0, 1], [[], [X, Y]])
    assert share(seen, [1, 2], priority=[900.0, 500.0]) == [1, 1]
    assert share(seen, [1, 2], priority=[900.0, 500.0], min_replicas=[1.0, 1.0]) == [1, 1]
    assert share(cluster([1, 1], [[Y], [X, Y]], [0, 1], [[], [X, Y]]), [1, 2], min_replicas=1.0) == [1, 1]


def test_a_workload_shrinks_before_it_grows_elsewhere():
    """The first takes the GPU of one of two replicas. Both groups of the second have room for a third."""
    seen = cluster([1, 3], [[X], [X, Y]], [0, 1], [[], [X, Y]])
    assert share(seen, [1, 4], priority=[900.0, 500.0]) == [1, 1]
    assert share(cluster([1, 3], [[X], [X, Y]], [0, 1], [[], [Y]]), [1, 4], priority=[900.0, 500.0]) == [1, 3]


def test_first_replicas_come_before_second_ones_of_other_pools():
    for groups in ([X, Y], [Y, X]):
        assert share(cluster([1, 1], [[X], [X, Y]], [0, 1], [[], groups]), [1, 2]) == [1, 1]


def test_replicas_may_be_anywhere_where_more_run_than_there_are_gpus():
    """The nodes offer fewer GPUs than before, and no replica is stopped for that while another group has room."""
    seen = cluster([1, 3], [[X, Y], [X]], [0, 1], [[X, X], []])
    assert share(seen, [2, 1], priority=[500.0, 900.0]) == [2, 1]


def test_replicas_that_are_not_ready_leave_first():
    seen = cluster([2, 2], [[X, Y]], [0], [[X, Y, X]])
    seen.pod_ready[:] = [False, True, True]
    running = list_running(seen, has_gpus(seen))
    assert running.group.tolist() == [Y, X, X]
    assert running.let_leave(np.array([np.inf, 5.0])).group.tolist() == [X, X, Y]
