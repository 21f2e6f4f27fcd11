"""The order in which replicas leave: fewest requests, emptiest node, dearest, spot."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.allocate.victims import Serving, find_victims, order
from autoscaler.core.model.fleet import NodeGroup, NodeGroups, PendingCause, Pod, Pool
from tests.core.supply.test_running import X, Y, cluster
from tests.core.world import fleet, spec, world

NOW_S = 1000.0
ONE = np.ones(2)


def serving(count, **columns):
    plain = {
        "requests": [0.0],
        "node": [0],
        "node_devices": [1.0],
        "price": [1.0],
        "is_spot": [False],
        "ready_s": [0.0],
    }
    values = {name: np.resize(np.array(columns.get(name, value)), count) for name, value in plain.items()}
    return Serving(**values)


def test_each_property_breaks_the_ties_of_those_before_it():
    pods = serving(
        7,
        requests=[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.inf],
        node_devices=[1.0, 8.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        price=[9.0, 9.0, 2.0, 3.0, 2.0, 2.0, 9.0],
        is_spot=[True, True, False, False, True, False, True],
        ready_s=[9.0, 9.0, 5.0, 1.0, 1.0, 7.0, 9.0],
    )
    assert order(pods).tolist() == [3, 4, 5, 2, 1, 0, 6]


COUNTS = st.integers(0, 4).map(float)
PODS = st.lists(
    st.tuples(st.one_of(COUNTS, st.just(np.inf)), st.integers(0, 3), COUNTS, COUNTS, st.booleans(), COUNTS),
    min_size=1,
    max_size=12,
    unique=True,
)


def as_serving(rows):
    return Serving(*(np.array(column) for column in zip(*rows, strict=True)))


@given(PODS)
def test_replicas_with_the_fewest_requests_leave(rows):
    requests = np.array([row[0] for row in rows])[order(as_serving(rows))]
    assert (requests[1:] >= requests[:-1]).all()


@given(PODS, st.randoms(use_true_random=False))
def test_order_does_not_depend_on_the_order_of_rows(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert [rows[place] for place in order(as_serving(rows))] == [
        shuffled[place] for place in order(as_serving(shuffled))
    ]


@given(PODS)
def test_idle_replicas_of_one_node_leave_together(rows):
    same = [(0.0, node, 1.0, 1.0, False, ready_s) for _, node, _, _, _, ready_s in rows]
    nodes = [same[place][1] for place in order(as_serving(same))]
    assert len(list(dict.fromkeys(nodes))) == 1 + sum(a != b for a, b in zip(nodes[1:], nodes, strict=False))


def names(pods):
    return [pod.name for pod in pods]


def test_victims_are_serving_pods_of_the_shrinking_workload():
    cluster = fleet([3, 3], [1, 0])
    cluster.pod_terminating[0] = True
    found = find_victims(world(NOW_S, cluster, spec(2), running=[9, 5, 4, 0, 3, 3, 3]), np.array([2.0]), [0], ONE)
    assert {row: names(pods) for row, pods in found.items()} == {0: ["p2", "p1"]}


def test_pods_without_a_fresh_reading_leave_last():
    inp = world(NOW_S, fleet([3]), spec(), running=[0.0, 7.0, np.nan], time_s=[NOW_S - 900.0, NOW_S, NOW_S])
    assert names(find_victims(inp, np.array([2.0]), [0], ONE)[0]) == ["p1", "p0", "p2"]


def test_hidden_requests_of_a_sleeping_engine_count():
    inp = world(NOW_S, fleet([2]), spec(), running=[0.0, 1.0], held=[5.0, 1.0])
    assert names(find_victims(inp, np.array([2.0]), [0], ONE)[0]) == ["p1", "p0"]


def test_emptiest_node_counts_the_replicas_of_all_workloads():
    cluster = fleet([3, 2])
    nodes = ["a", "b", "c", "a", "b"]
    cluster = replace(
        cluster,
        pods=tuple(Pod("ns", f"p{place}", node=node) for place, node in enumerate(nodes)),
        gpus_per_replica=np.array([1.0, 4.0]),
    )
    assert names(find_victims(world(NOW_S, cluster, spec(2)), np.array([2.0]), [0], ONE)[0])[0] == "p2"


def test_dearest_node_group_and_then_spot_leave_first():
    groups = [NodeGroup("nvidia.com/gpu", "L4"), NodeGroup("nvidia.com/gpu", "L4", capacity_type="spot")]
    groups += [NodeGroup("nvidia.com/gpu", "H100"), NodeGroup("cpu", "", capacity_type="spot")]
    pools = [Pool(each.resource, each.product) for each in groups]
    of_node = {"l4": (0, 3), "spot": (1,), "h100": (3, 2)}
    cluster = replace(
        fleet([4], pools=tuple(pools)),
        pods=tuple(Pod("ns", name, node=name) for name in ("unknown", "l4", "spot", "h100")),
        groups=replace(NodeGroups.of_pools(pools, np.ones(4)), groups=tuple(groups), of_node=of_node),
    )
    found = find_victims(world(NOW_S, cluster, spec()), np.array([1.0, 1.0, 5.0, 99.0]), [0], np.ones(1))
    assert names(found[0]) == ["h100", "spot", "l4", "unknown"]


def test_a_replica_whose_gpus_are_awaited_leaves_first():
    """The first fits on one group only, where the busier replica of the second runs."""
    seen = cluster([1, 1], [[X], [X, Y]], [0, 1], [[], [X, Y]])
    inp = world(NOW_S, seen, spec(2), running=[5.0, 1.0])
    assert names(find_victims(inp, np.full(2, 2.0), [1], np.array([1.0, 1.0]))[1]) == ["p0", "p1"]
    assert names(find_victims(inp, np.full(2, 2.0), [1], np.array([0.0, 1.0]))[1]) == ["p1", "p0"]
    anywhere = replace(inp, fleet=cluster([1, 1], [[X, Y], [X, Y]], [0, 1], [[], [X, Y]]))
    assert names(find_victims(anywhere, np.full(2, 2.0), [1], np.array([1.0, 1.0]))[1]) == ["p1", "p0"]


def test_workloads_with_one_group_yield_gpus_before_others():
    """Two wait, one for each group. The third can leave either group, and the fourth only the first."""
    seen = cluster([2, 1], [[X], [Y], [X, Y]], [0, 1, 2, 2], [[], [], [X, Y], [X]])
    inp = world(NOW_S, seen, spec(4), running=[0.0, 5.0, 9.0])
    found = find_victims(inp, np.full(2, 2.0), [2, 3], np.array([1.0, 1.0, 1.0, 0.0]))
    assert names(found[2])[0] == "p1"


def test_replicas_that_are_not_ready_make_room_before_others():
    """A ReplicaSet removes the replica that is not ready, and the first can use its GPU."""
    seen = cluster([2, 1], [[X], [X, Y]], [0, 1], [[], [X, Y, X]])
    seen.pod_ready[2] = False
    inp = world(NOW_S, seen, spec(2), running=[5.0, 1.0, 0.0])
    assert names(find_victims(inp, np.full(2, 2.0), [1], np.array([1.0, 1.0]))[1]) == ["p1", "p0"]


def test_pods_that_a_queue_holds_back_await_no_gpus():
    seen = cluster([1, 1], [[X], [X, Y]], [0, 1], [[X], [X, Y]])
    seen.pod_ready[0] = False
    seen.pod_pending[0] = PendingCause.QUEUED
    inp = world(NOW_S, seen, spec(2), running=[0.0, 5.0, 1.0])
    assert names(find_victims(inp, np.full(2, 2.0), [1], np.array([1.0, 1.0]))[1]) == ["p2", "p1"]
