from dataclasses import replace

import pytest

from autoscaler.core.model.fleet import PendingCause
from autoscaler.sim.demo.cluster import NODE_IDLE_S, DemoCluster, Deployment
from autoscaler.sim.engine.request import Ending, Request
from tests.sim.demo.scenarios import SETUP, WARM_S, pool


def make_cluster(*setups: Deployment, nodes: int = 1, elastic_nodes: int = 0) -> DemoCluster:
    return DemoCluster([pool(nodes, elastic_nodes)], setups or (SETUP,), seed=1, now_s=0.0)


def advance_stepwise(cluster: DemoCluster, from_s: float, to_s: float) -> None:
    """Advance time, one change after the other."""
    while from_s < to_s:
        from_s = min(cluster.next_change_s(from_s), to_s)
        cluster.change(from_s)


def test_initial_pods_serve_at_once() -> None:
    cluster = make_cluster(replace(SETUP, replicas=3))
    assert [pod.ready(0.0) for pod in cluster.pods] == [True] * 3
    assert len({pod.name for pod in cluster.pods}) == 3


def test_new_pod_passes_its_phases_in_order() -> None:
    cluster = make_cluster()
    cluster.scale(0, 2, 100.0)
    pod = cluster.pods[1]
    assert (pod.scheduled_s, pod.started_s) == (100.5, 101.5)
    advance_stepwise(cluster, 100.0, pod.serving_s - 0.1)
    assert pod.replica is None
    advance_stepwise(cluster, pod.serving_s - 0.1, pod.serving_s)
    assert pod.replica is not None
    assert not pod.ready(pod.serving_s)
    assert pod.ready_s == pytest.approx(100.0 + WARM_S)
    assert pod.ready(pod.ready_s)


def test_sleeping_pod_is_unready_until_its_probe_sees_it_awake() -> None:
    cluster = make_cluster()
    (pod,) = cluster.pods
    assert pod.replica is not None
    pod.replica.pause("wait", 10.0)
    advance_stepwise(cluster, 10.0, 100.0)
    assert not pod.ready(100.0)
    pod.replica.wake_up((), 100.0, 1.0)
    cluster.change(101.0)
    assert not pod.ready(101.0)
    advance_stepwise(cluster, 101.0, 110.0)
    assert pod.ready(110.0)


def test_shrinking_removes_a_sleeping_pod_first() -> None:
    cluster = make_cluster(replace(SETUP, replicas=2))
    oldest, _ = cluster.pods
    assert oldest.replica is not None
    oldest.replica.pause("wait", 10.0)
    cluster.change(11.0)
    cluster.scale(0, 1, 12.0)
    assert oldest.terminating


def test_pod_is_unschedulable_until_a_device_is_free() -> None:
    cluster = make_cluster(replace(SETUP, replicas=4), replace(SETUP, name="other", replicas=0))
    cluster.scale(1, 1, 10.0)
    waiting = cluster.live(1)[0]
    assert cluster.blocked(waiting) is PendingCause.UNSCHEDULABLE
    assert waiting.node is None
    cluster.scale(0, 3, 20.0)
    advance_stepwise(cluster, 20.0, 30.0)
    assert cluster.blocked(waiting) is PendingCause.NONE
    assert list(cluster.held_devices) == [3, 1]


def test_devices_of_one_pod_come_from_one_node() -> None:
    cluster = make_cluster(SETUP, replace(SETUP, name="large", replicas=0, devices=4), nodes=2)
    cluster.scale(1, 2, 0.0)
    first, second = cluster.live(1)
    assert first.node is not None
    assert len(set(first.devices)) == 4
    assert second.node is None  # three devices are free on the other node, which is not enough


def test_pods_gather_on_the_fullest_node_that_has_their_weights() -> None:
    cluster = make_cluster(SETUP, nodes=3)
    cluster.scale(0, 4, 0.0)
    assert len({pod.node for pod in cluster.pods}) == 1


def test_elastic_node_wakes_for_a_pod_and_leaves_when_empty() -> None:
    cluster = make_cluster(replace(SETUP, replicas=4), elastic_nodes=1)
    assert [node.asleep for node in cluster.nodes] == [False, True]
    assert cluster.device_counts() == [8]
    cluster.scale(0, 5, 0.0)
    pod = cluster.pods[-1]
    assert pod.scheduled_s == 100.0  # the node
    assert pod.ready_s == pytest.approx(100 + 1 + 40 + 20 + 32)  # image and weights as well
    cluster.scale(0, 4, 500.0)
    advance_stepwise(cluster, 500.0, 501.0 + NODE_IDLE_S - 1)
    assert not cluster.nodes[1].asleep
    cluster.change(501.0 + NODE_IDLE_S)
    assert cluster.nodes[1].asleep
    assert not cluster.nodes[1].weights_s


def test_pod_waits_for_its_node_and_for_shared_weights() -> None:
    cluster = make_cluster(
        replace(SETUP, replicas=0), replace(SETUP, name="other", replicas=0), nodes=0, elastic_nodes=1
    )
    cluster.scale(0, 2, 0.0)
    cluster.change(10.0)
    cluster.scale(1, 1, 10.0)
    cluster.scale(0, 3, 120.0)
    assert [pod.node for pod in cluster.pods] == [cluster.nodes[0]] * 4
    # Node 100 s, container 1 s, image 40 s; weights 20 s; 30 s to the port, 2 s to ready.
    assert [pod.scheduled_s for pod in cluster.pods] == [100.0, 100.0, 100.0, 120.5]
    assert [pod.started_s for pod in cluster.pods] == [141.0] * 4
    assert [pod.serving_s for pod in cluster.pods] == pytest.approx([191.0] * 4)
    assert [pod.ready_s for pod in cluster.pods] == pytest.approx([193.0] * 4)
    cluster.scale(0, 0, 300.0)
    cluster.scale(1, 0, 300.0)
    advance_stepwise(cluster, 300.0, 302.0 + NODE_IDLE_S)
    cluster.scale(0, 1, 1000.0)
    assert cluster.pods[0].ready_s == pytest.approx(1193.0)


def test_initial_pods_leave_no_pending_times_on_their_node() -> None:
    cluster = make_cluster(replace(SETUP, replicas=3), nodes=0, elastic_nodes=1)
    assert [pod.ready(0.0) for pod in cluster.pods] == [True] * 3
    assert all(pod.scheduled_s < pod.started_s < pod.serving_s < pod.ready_s for pod in cluster.pods)
    cluster.scale(0, 4, 1.0)
    assert cluster.pods[3].ready_s == pytest.approx(1.0 + WARM_S)


def test_scale_down_order_matches_a_replicaset() -> None:
    cluster = make_cluster(replace(SETUP, replicas=3))
    cluster.scale(0, 5, 0.0)
    pods = cluster.pods
    order = []
    for replicas in (4, 3, 2, 1):
        before = set(cluster.live(0))
        cluster.scale(0, replicas, 1.0)
        order += [pods.index(pod) for pod in before - set(cluster.live(0))]
    assert order == [4, 3, 2, 1]


def test_terminating_pod_finishes_its_requests() -> None:
    cluster = make_cluster(replace(SETUP, replicas=2))
    replica = cluster.pods[1].replica
    assert replica is not None
    request = Request(0.0, 10, 2000)  # 20 s
    replica.submit(request, 0.0)
    cluster.scale(0, 1, 0.5)
    for at_s in range(1, 20):
        replica.advance(float(at_s))
        assert cluster.change(float(at_s)) == []
        assert len(cluster.pods) == 2
        assert cluster.held_devices[0] == 2
    replica.advance(21.0)
    cluster.change(21.0)
    assert len(cluster.pods) == 1
    assert cluster.held_devices[0] == 1
    assert request.ending is Ending.FINISHED


def test_requests_beyond_the_grace_period_are_lost() -> None:
    cluster = make_cluster(replace(SETUP, replicas=1, grace_s=5.0))
    replica = cluster.pods[0].replica
    assert replica is not None
    for _ in range(9):
        replica.submit(Request(0.0, 10, 4000), 0.0)
    cluster.scale(0, 0, 0.0)
    replica.advance(4.9)
    assert cluster.change(4.9) == []
    ((workload, lost),) = cluster.change(5.0)
    assert workload == 0
    assert [request.ending for request in lost] == [Ending.FAILED] * 9
    assert cluster.pods == []


def test_crash_loses_requests_and_restarts_on_the_same_node() -> None:
    cluster = make_cluster(replace(SETUP, crash_every_s=3600.0))
    pod = cluster.pods[0]
    first, node, crash_s = pod.replica, pod.node, pod.crash_s
    assert first is not None
    first.submit(Request(0.0, 10, 4000), 0.0)
    ((_, lost),) = cluster.change(crash_s)
    assert [request.ending for request in lost] == [Ending.FAILED]
    assert (cluster.crashes, pod.ready(crash_s), pod.node) == (1, False, node)
    advance_stepwise(cluster, crash_s, pod.ready_s)
    assert pod.ready_s == pytest.approx(crash_s + 10 + 30 + 2)
    assert pod.replica is not None
    assert pod.replica is not first
    assert pod.replica.metrics.generation_tokens == 0


@pytest.mark.parametrize("replicas", [-1, 1001])
def test_replicas_out_of_bounds_are_refused(replicas: int) -> None:
    cluster = make_cluster()
    with pytest.raises(ValueError, match=f"replicas of chat is {replicas}; allowed: 0 to 1000"):
        cluster.scale(0, replicas, 0.0)
    assert cluster.desired == [1]
