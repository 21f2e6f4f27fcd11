"""Missing and pending replicas: the GPUs that they claim, for how long, and their explanation."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.fleet import NodeGroups, Obstacles, PendingCause, PendingClass, Pool
from autoscaler.core.model.types import Stage
from autoscaler.core.model.variants import Variants
from autoscaler.core.observe import pending
from tests.core.explain.stories import ExplainedStory
from tests.core.world import Story, fleet, node_groups, spec

pytestmark = pytest.mark.slow

NAN = np.nan
RANKS = {"priority": [900.0, 100.0], "down_stabilization_s": 10.0}


def two(ready, waiting=(0, 0), why=PendingCause.UNSCHEDULABLE, gpus=8.0, replicas=None, **columns):
    """Two workloads with this many ready and pending pods each; the first has a higher priority."""
    cluster = fleet(list(ready), list(waiting), replicas=replicas, pool_gpus=np.array([gpus]), **columns)
    return replace(cluster, pod_pending=np.where(cluster.pod_ready, PendingCause.NONE, why).astype(np.int64))


def report(rows=1, **columns):
    return replace(Obstacles.none(rows), **columns)


def loads(cluster, *running):
    """This many requests run per workload, spread over its ready pods."""
    return {"running": np.array(running, dtype=float)[cluster.pod_workload]}


@pytest.mark.parametrize("failed", [True, False])
def test_missing_replicas_claim_no_gpus(failed):
    """A quota allows two of eight replicas, so six have no pod."""
    obstacles = report(2, creation_failed=np.array([failed, False]))
    cluster = two([2, 1], replicas=[8, 1], obstacles=obstacles)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 40, 60)
    first = story.tick(cluster, **load)
    assert first.replicas.tolist() == ([8, 6] if failed else [7, 1])  # without an error pods may still be created
    later = story.watch(cluster, pending.MISSING_S, **load)
    assert later.replicas.tolist() == [8, 6]
    assert later.observation.missing_pods.tolist() == [6, 0]


def test_workload_claims_no_gpus_when_its_hpa_cannot_scale():
    """In KEDA mode the API server refuses the HPA, which does not report the refused count."""
    obstacles = report(
        2, refused_replicas=np.array([np.inf, NAN]), messages=("admission webhook denied the request", "")
    )
    cluster = two([2, 1], obstacles=obstacles)
    story = ExplainedStory(spec(2, **RANKS))
    decision = story.watch(cluster, 60, **loads(cluster, 40, 60))
    assert decision.replicas.tolist() == [8, 6]
    assert "its HPA cannot change the count: admission webhook denied the request" in story.explain(0).sentence


def test_sentence_names_overlapping_pools_when_they_are_short():
    """Two pools share all their nodes, and have eight GPUs together."""
    pools = (Pool("nvidia.com/gpu", "H100", "team=a"), Pool("nvidia.com/gpu", "H100", "team=b"))
    cluster = fleet(
        [2, 2],
        pool=np.array([0, 1]),
        pools=pools,
        groups=node_groups([8.0], [0], [0]),
    )
    story = ExplainedStory(spec(2))
    story.watch(cluster, 60, **loads(cluster, 30, 30))
    assert (
        "the pool of 8 GPUs on the node groups of H100 (team=a) and H100 (team=b) allocates 4 of 6"
        in story.explain(0).sentence
    )
    alone = replace(cluster, groups=NodeGroups.of_pools(pools, np.array([3.0, 8.0])))
    story.watch(alone, 60, **loads(cluster, 30, 30))
    assert "the pool of 3 H100 (team=a) allocates 3 of 6" in story.explain(0).sentence


def test_no_replicas_are_added_while_some_are_pending():
    cluster = fleet([2, 2], replicas=[1, 3], pool_gpus=np.array([4.0]))
    story = ExplainedStory(spec(2, down_stabilization_s=10.0))
    decision = story.watch(cluster, 60, **loads(cluster, 0, 40))
    assert decision.replicas.tolist() == [1, 3]
    assert decision.stages[Stage.ALLOCATION].tolist() == [1, 3]


def test_replicas_are_not_missing_while_another_one_starts():
    """A StatefulSet creates its next pod when the previous one is ready."""
    cluster = fleet([2], [1], replicas=[8], pool_gpus=np.array([8.0]))
    assert Story(spec()).watch(cluster, 300, running=10.0).observation.missing_pods.tolist() == [0]


def test_unschedulable_pod_claims_no_gpus_when_gpus_are_free():
    """Two GPUs are free on different nodes, and the replica needs both; a smaller replica may get them."""
    cluster = two([1, 1], [1, 0], gpus=5.0, gpus_per_replica=np.array([2.0, 1.0]))
    story, load = Story(spec(2, **RANKS)), loads(cluster, 20, 40)
    story.tick(cluster, **load)
    assert story.tick(cluster, **load).replicas.tolist() == [2, 1]
    assert story.watch(cluster, pending.PENDING_S, **load).replicas.tolist() == [2, 3]


def test_pod_claims_no_gpus_that_only_a_move_would_free():
    """The first fills the only node of the second, and could run on the node of the third. No pod is ever moved."""
    pools = tuple(Pool("nvidia.com/gpu", "H100", nodes) for nodes in ("", "team=a", "team=b"))
    groups = replace(node_groups([1.0, 1.0], [0, 1], [0], [1]), used=np.array([1.0, 0.0]))
    cluster = fleet([1, 0, 0], [0, 1, 0], pool=np.array([0, 1, 2]), pools=pools, groups=groups, replicas=[1, 1, 0])
    cluster = replace(cluster, pod_pending=np.where(cluster.pod_ready, 0, PendingCause.UNSCHEDULABLE))
    story = Story(spec(3, priority=[900.0, 500.0, 100.0]))
    assert story.tick(cluster, running=5.0).replicas.tolist() == [1, 1, 0]
    assert story.watch(cluster, pending.PENDING_S + 5, running=5.0).replicas.tolist() == [1, 1, 1]


def test_free_gpus_depend_on_the_pods_of_each_workload():
    """Nodes of 3 GPUs hold a replica of two pods with 2 GPUs each, and none of one pod with 4."""
    groups = replace(node_groups([6.0], (0,)), by_node=(np.array([3.0, 3.0]),))
    for pods in ([2.0, 4.0], [4.0, 2.0]):
        cluster = two([0, 0], waiting=(1, 1), gpus_per_replica=np.full(2, 4.0), groups=groups)
        found = pending.has_free_gpus(replace(cluster, gpus_per_pod=np.array(pods)))
        assert found.tolist() == [size == 2 for size in pods]


def test_gpus_free_on_several_nodes_are_none_for_one_pod():
    """Two pods of 1 GPU run on nodes of 4. A pod of 4 GPUs has room only if both are on the same node."""
    groups = replace(
        node_groups([8.0], (0,)), by_node=(np.array([4.0, 4.0]),), of_node={"a": (0,), "b": (0,)}, used=np.array([2.0])
    )
    sizes = np.array([1.0, 4.0])
    cluster = two([2, 0], waiting=(0, 1), gpus_per_replica=sizes, groups=groups, gpus_per_pod=sizes)
    for nodes, is_free in ((("a", "b"), False), (("a", "a"), True)):
        pods = [pod._replace(node=node) for pod, node in zip(cluster.pods, (*nodes, ""), strict=True)]
        assert pending.has_free_gpus(replace(cluster, pods=tuple(pods))).tolist() == [False, is_free]


def test_unschedulable_pod_gets_gpus_of_others_by_priority():
    cluster = two([1, 4], [1, 0], gpus=5.0)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 20, 10)
    assert story.watch(cluster, 600, **load).replicas.tolist() == [2, 3]


def test_crashing_workload_takes_no_serving_replica():
    cluster = two([1, 3], [2, 0], why=PendingCause.CRASH_LOOP, gpus=6.0)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 50, 50)
    story.tick(cluster, **load)
    assert story.watch(cluster, pending.PENDING_S, **load).replicas.tolist() == [1, 5]


def test_crashing_replicas_keep_gpus_that_others_do_not_need():
    cluster = two([1, 1], [2, 0], why=PendingCause.CRASH_LOOP, gpus=8.0)
    assert Story(spec(2, **RANKS)).watch(cluster, 300, **loads(cluster, 30, 10)).replicas.tolist() == [3, 1]


def test_backoff_doubles_after_each_crash():
    """A crashed replica is removed and desired again. Without a backoff the other would lose replicas each minute."""
    crashing = two([1, 3], [2, 0], why=PendingCause.CRASH_LOOP, gpus=6.0)
    cut = two([1, 5], gpus=6.0)
    story, load = Story(spec(2, **RANKS)), {"running": 50.0}
    story.tick(crashing, **load)
    story.watch(crashing, pending.PENDING_S + 5, **load)
    waits = pending.FIRST_BACKOFF_S
    assert story.watch(cut, waits - 10, **load).replicas[1] == 5
    assert story.watch(cut, 20, **load).replicas[1] < 5
    story.watch(crashing, pending.PENDING_S + 5, **load)
    assert story.watch(cut, 2 * waits - 10, **load).replicas[1] == 5
    recovered = two([2, 4], gpus=6.0)
    assert story.watch(recovered, 10, **load).replicas[1] < 4  # a replica of the first has become ready


def test_refused_count_is_retried_later_and_claims_no_gpus():
    refused = report(2, refused_replicas=np.array([4.0, NAN]), retry_at_s=np.array([1100.0, NAN]))
    cluster = two([1, 1], gpus=5.0, obstacles=refused)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 50, 60)
    decision = story.tick(cluster, **load)
    assert decision.stages[Stage.ALLOCATION].tolist() == [5, 4]
    assert decision.replicas.tolist() == [1, 4]
    assert story.watch(cluster, 100, **load).replicas.tolist() == [5, 4]  # tried again


def test_lower_count_than_the_refused_one_is_tried_at_once():
    refused = report(refused_replicas=np.array([8.0]), retry_at_s=np.array([9e9]))
    story = Story(spec())
    assert story.tick(fleet([1], obstacles=refused), running=40.0).replicas.tolist() == [4]
    assert story.tick(fleet([1], obstacles=refused), running=90.0).replicas.tolist() == [1]
    shrunk = report(refused_replicas=np.array([2.0]), retry_at_s=np.array([9e9]))
    story = Story(spec(down_stabilization_s=10.0))
    assert story.watch(fleet([4], obstacles=shrunk), 60, running=2.0).replicas.tolist() == [4]
    assert story.watch(fleet([4], obstacles=shrunk), 60, running=7.0).replicas.tolist() == [3]


def test_other_variant_takes_the_load_when_replicas_are_missing():
    story = Story(spec(2, max_replicas=20.0))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))
    obstacles = report(2, creation_failed=np.array([True, False]))
    cluster = fleet([2, 2], replicas=[4, 2], obstacles=obstacles)
    assert story.watch(cluster, 60, running=10.0, waiting=10.0).replicas[1] > 2


def test_nodes_on_demand_take_the_load_when_spot_is_taken_away():
    story = Story(spec(2, max_replicas=20.0, on_demand_floor=2))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 1.0]), np.array([False, True]))
    assert story.watch(fleet([2, 4]), 60, running=9.0).replicas.tolist() == [2, 4]
    queued = np.array([PendingCause.NONE] * 3 + [PendingCause.UNSCHEDULABLE] * 3)
    taken = fleet([2, 1], [0, 3], replicas=[2, 4], pod_pending=queued)
    on_demand, spot = story.watch(taken, 60, running=18.0).replicas.tolist()
    assert (on_demand >= 5, spot) == (True, 1)


def test_pod_is_pending_when_it_starts_for_too_long():
    story = Story(spec())
    endless = fleet([1], [1], starting_since_s=900.0)
    assert story.watch(endless, 1680, 60, running=5.0).observation.pending.tolist() == [0]
    assert story.watch(endless, 240, 60, running=5.0).observation.pending.tolist() == [1]
    served = Story(spec())
    served.watch(fleet([2]), 60, running=5.0)
    flapping = fleet([2], pod_ready=np.array([True, False]))
    assert served.tick(flapping, running=5.0).observation.pending.tolist() == [0]


def sentence(cluster, **load):
    story = ExplainedStory(spec(2, **RANKS))
    story.watch(cluster, 60, **load)
    return story.explain().sentence


def test_sentence_says_how_many_pods_are_pending_and_why():
    quota = report(2, creation_failed=np.array([True, False]), messages=("FailedCreate: exceeded quota: gpus", ""))
    assert "; 6 replicas have no pod: FailedCreate: exceeded quota: gpus (metrics" in sentence(
        two([2, 1], replicas=[8, 1], obstacles=quota), running=30.0
    )
    unscheduled = report(2, messages=("0/2 nodes are available", ""))
    assert "; 1 pod is pending (unschedulable): 0/2 nodes are available (metrics" in sentence(
        two([2, 1], [1, 0], obstacles=unscheduled), running=12.0
    )
    image = two([2, 1], [2, 0], why=PendingCause.IMAGE_PULL, obstacles=report(2, messages=("ImagePullBackOff", "")))
    assert "; 2 pods are crashing (image cannot be pulled): ImagePullBackOff (metrics" in sentence(image, running=15.0)


@pytest.mark.parametrize(
    ("retry_s", "phrase"),
    [
        (1090.0, "the API server refuses 4 replicas, next try in 30 s: GPU quota (metrics"),
        (1050.0, "the API server last refused 4 replicas: GPU quota (metrics"),
    ],
)
def test_sentence_says_that_a_count_was_refused(retry_s, phrase):
    refused = report(
        2, refused_replicas=np.array([4.0, NAN]), retry_at_s=np.array([retry_s, NAN]), messages=("GPU quota", "")
    )
    assert phrase in sentence(two([1, 1], obstacles=refused), running=50.0)


def classes(decision, row=0):
    """Return the classes of replicas that are not ready, without those that are empty."""
    counts = decision.pending_by_class[:, row]
    return {each: counts[each] for each in PendingClass if counts[each]}


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (PendingCause.NONE, PendingClass.STARTING),
        (PendingCause.NODE_COMING, PendingClass.NODE_COMING),
        (PendingCause.QUEUED, PendingClass.QUEUED),
        (PendingCause.SCHEDULING_GATED, PendingClass.QUEUED),
        (PendingCause.UNSCHEDULABLE, PendingClass.NO_ROOM),
        (PendingCause.NO_NODE, PendingClass.NO_ROOM),
        (PendingCause.IMAGE_PULL, PendingClass.CRASHING),
        (PendingCause.CRASH_LOOP, PendingClass.CRASHING),
        (PendingCause.OUT_OF_MEMORY, PendingClass.CRASHING),
        (PendingCause.CONFIG_ERROR, PendingClass.CRASHING),
        (PendingCause.LOST_STARTS, PendingClass.CRASHING),
        (PendingCause.NOT_SCHEDULED, PendingClass.STUCK_STARTING),
    ],
)
def test_class_of_a_pod_follows_its_cause(why, expected):
    cluster = two([1, 1], [2, 0], why=why)
    decision = Story(spec(2, **RANKS)).tick(replace(cluster, pod_created_s=np.full(4, 900.0)), running=12.0)
    assert classes(decision) == {expected: 2}
    assert classes(decision, 1) == {}


def test_class_of_pods_that_the_nodes_cannot_hold_is_impossible():
    cluster = two([1, 1], [3, 0], obstacles=report(2, fits=np.array([2.0, np.inf])))
    decision = Story(spec(2, **RANKS)).tick(cluster, running=12.0)
    assert classes(decision) == {PendingClass.NO_ROOM: 1, PendingClass.IMPOSSIBLE: 2}


def test_replicas_that_no_node_holds_count_when_not_requested():
    cluster = two([1, 1], obstacles=report(2, fits=np.array([1.0, np.inf])))
    decision = Story(spec(2, **RANKS)).tick(cluster, **loads(cluster, 25, 5))
    assert decision.replicas[0] == 1
    assert classes(decision) == {PendingClass.IMPOSSIBLE: 2}


def test_replicas_without_pod_are_starting_and_then_quota():
    cluster, story = two([2, 1], replicas=[5, 1]), Story(spec(2, **RANKS))
    assert classes(story.tick(cluster, running=10.0)) == {PendingClass.STARTING: 3}
    assert classes(story.watch(cluster, 20, running=10.0)) == {PendingClass.QUOTA: 3}


def test_class_of_refused_replicas_is_quota():
    refused = report(2, refused_replicas=np.array([4.0, NAN]), retry_at_s=np.array([9e9, NAN]))
    cluster = two([1, 1], obstacles=refused)
    assert classes(Story(spec(2, **RANKS)).tick(cluster, **loads(cluster, 50, 5))) == {PendingClass.QUOTA: 3}
    by_hpa = replace(cluster, obstacles=report(2, refused_replicas=np.array([np.inf, NAN])))
    assert classes(Story(spec(2, **RANKS)).tick(by_hpa, **loads(cluster, 50, 5))) == {PendingClass.QUOTA: 4}


def test_pod_is_stuck_starting_when_it_starts_for_too_long():
    story, endless = Story(spec()), fleet([0], [1], starting_since_s=900.0)  # no cold start is known yet
    assert classes(story.watch(endless, 3400, 60, running=5.0)) == {PendingClass.STARTING: 1}
    assert classes(story.watch(endless, 240, 60, running=5.0)) == {PendingClass.STUCK_STARTING: 1}


@pytest.mark.parametrize(
    ("why", "fits", "phrase"),
    [
        (PendingCause.NODE_COMING, np.inf, "; 2 pods wait for a node that is being created (metrics"),
        (PendingCause.QUEUED, np.inf, "; 2 pods are queued (waiting for admission) (metrics"),
        (
            PendingCause.NO_NODE,
            np.inf,
            "; 2 pods are pending (unschedulable, and the cluster autoscaler creates no node)",
        ),
        (PendingCause.SCHEDULING_GATED, np.inf, "; 2 pods are queued (scheduling gate) (metrics"),
        (PendingCause.CONFIG_ERROR, np.inf, "; 2 pods are crashing (container configuration is invalid) (metrics"),
        (PendingCause.CRASH_LOOP, np.inf, "; 2 pods are crashing (crash loop) (metrics"),
        (PendingCause.OUT_OF_MEMORY, np.inf, "; 2 pods are crashing (out of memory) (metrics"),
        (PendingCause.NOT_SCHEDULED, np.inf, "; 2 pods are pending (no scheduler has placed them) (metrics"),
        (PendingCause.LOST_STARTS, np.inf, "; 2 pods are crashing (pods before them ended before they were ready) (m"),
        (
            PendingCause.UNSCHEDULABLE,
            2.0,
            "1 pod is pending (unschedulable) and 1 pod is impossible to schedule (more than the nodes can hold)",
        ),
    ],
)
def test_sentence_names_the_class_of_pods(why, fits, phrase):
    cluster = two([1, 1], [2, 0], why=why, obstacles=report(2, fits=np.array([fits, np.inf])))
    assert phrase in sentence(replace(cluster, pod_created_s=np.full(4, 1000.0)), running=10.0)


def test_load_stays_with_a_variant_whose_node_is_being_created():
    """The same pods without a word of the autoscaler: their load goes to a variant that costs nine times as much."""
    story = Story(spec(2, max_replicas=20.0))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))
    cluster = fleet([2, 1], [3, 0], starting_since_s=1000.0, pod_scheduled_s=np.full(6, NAN))
    coming = replace(cluster, pod_pending=np.where(cluster.pod_ready, 0, PendingCause.NODE_COMING))
    decision = story.watch(coming, 300, running=10.0, waiting=6.0)
    assert decision.replicas[0] >= 5
    assert decision.replicas[1] == 1
    waits = replace(cluster, pod_pending=np.where(cluster.pod_ready, 0, PendingCause.NO_NODE))
    assert story.watch(waits, 60, running=10.0, waiting=6.0).replicas[1] > 1


def elastic(why=PendingCause.UNSCHEDULABLE, can_add=8.0):
    """A cheap variant whose new pods do not fit on the nodes of today, and one that costs nine times as much."""
    groups = replace(node_groups([2.0, 20.0], [0], [1]), can_add=np.array([can_add, 0.0]))
    pools = tuple(Pool("nvidia.com/gpu", name) for name in ("L4", "H100"))
    cluster = fleet([2, 1], [3, 0], starting_since_s=1000.0, pools=pools, pool=np.array([0, 1]), groups=groups)
    return replace(cluster, pod_pending=np.where(cluster.pod_ready, 0, why))


def test_load_stays_while_an_autoscaler_may_create_a_node():
    """Autoscalers say within seconds whether they create a node for a pod; without a word the load moves."""
    variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))

    def after(duration_s, cluster):
        story = Story(spec(2, max_replicas=20.0))
        story.variants = variants
        return story.watch(cluster, duration_s, running=10.0, waiting=6.0).replicas

    assert after(20, elastic())[1] == 1
    assert after(20, elastic())[0] >= 5
    assert after(60, elastic())[1] > 1
    assert after(20, elastic(PendingCause.NO_NODE))[1] > 1
    assert after(20, elastic(can_add=0.0))[1] > 1


def test_pod_keeps_its_gpus_when_its_node_is_being_created():
    cluster = two([1, 3], [2, 0], why=PendingCause.NODE_COMING, gpus=6.0)
    cluster = replace(cluster, pod_created_s=np.full(6, 1000.0))
    decision = Story(spec(2, **RANKS)).watch(cluster, 300, **loads(cluster, 30, 60))
    assert decision.replicas.tolist() == [3, 3]


GIVE_UP = [why for why in PendingCause if why > PendingCause.NODE_COMING]


@pytest.mark.parametrize("why", GIVE_UP)
def test_no_other_cause_keeps_free_gpus_from_others_for_long(why):
    """Two of eight GPUs are free by the pods, and the neighbour needs them."""
    cluster = two([1, 3], [2, 0], why=why, gpus=8.0)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 30, 60)
    story.tick(cluster, **load)
    assert story.watch(cluster, pending.PENDING_S, **load).replicas[1] >= 5


def test_time_of_nodes_is_learned_and_delays_the_next_replica():
    story = Story(spec(cold_start_s=100.0))
    coming = fleet([1], [1], starting_since_s=1000.0)
    pod = np.array([0, PendingCause.NODE_COMING])
    waits = replace(coming, pod_pending=pod, pod_scheduled_s=np.array([-10_000.0, NAN]))
    decision = story.watch(waits, 40, running=5.0)
    cold_start_s = decision.observation.cold_start_s[0]
    assert decision.observation.next_ready_s[0] == (cold_start_s - 40.0) + cold_start_s  # of the node, and of the pod
    assert decision.observation.starting_replica_s[0] == 0.0
    ready = fleet([2], pod_id=np.arange(2), created_s=1000.0)
    ready = replace(ready, pod_scheduled_s=np.array([1000.0, 1240.0]), pod_ready_s=np.array([1060.0, 1300.0]))
    story.now_s = 1300.0
    story.tick(ready, running=5.0)
    assert story.memory.workloads.observe.cold_start.node_wait_s.tolist() == [240.0]
    story.tick(replace(waits, pod_id=np.array([0, 7]), pod_created_s=np.array([1000.0, story.now_s])), running=5.0)
    assert story.memory.workloads.observe.cold_start.node_wait_s.tolist() == [240.0]


def test_crashing_workload_grows_only_when_most_replicas_serve():
    for pools in ({"pool": np.array([-1])}, {}, {"pool_gpus": np.array([50.0])}):
        crashing = fleet([1], [2], pod_pending=np.array([0, *[PendingCause.OUT_OF_MEMORY] * 2]), **pools)
        story = ExplainedStory(spec())
        story.tick(crashing, running=10.0, waiting=90.0)
        decision = story.watch(crashing, 60, running=10.0, waiting=90.0)
        assert decision.replicas.tolist() == [3]
        assert "no more than 3 are requested while some of them do not run" in story.explain().sentence
        one = fleet([3], [1], pod_pending=np.array([0, 0, 0, PendingCause.CRASH_LOOP]), **pools)
        assert Story(spec()).watch(one, 60, running=10.0, waiting=90.0).replicas[0] > 4


def test_pod_is_stuck_sooner_when_the_cold_start_is_known():
    story = Story(spec())
    story.watch(fleet([1], created_s=950.0), 60, running=5.0)
    starting = fleet([1], [1], starting_since_s=story.now_s)
    assert classes(story.watch(starting, 1740, 60, running=5.0)) == {PendingClass.STARTING: 1}
    assert classes(story.watch(starting, 120, 60, running=5.0)) == {PendingClass.STUCK_STARTING: 1}


def misfit(why=PendingCause.UNSCHEDULABLE, can_add=0.0, **columns):
    """One replica serves on a node that was relabelled; no node of today holds another, and two others wait."""
    groups = node_groups([8.0], [])
    groups = replace(groups, can_add=np.array([can_add]))
    waits = np.array([PendingCause.NONE, why, why])
    return fleet([1], [2], groups=groups, pod_pending=waits, **columns)


def test_replicas_that_no_node_can_hold_are_cancelled_but_one():
    story = ExplainedStory(spec())
    assert story.tick(misfit(), running=40.0).replicas[0] >= 3
    decision = story.watch(misfit(), 60, running=40.0)
    assert decision.replicas.tolist() == [2]
    assert classes(decision) == {PendingClass.IMPOSSIBLE: 3}
    assert "no node can hold a replica, so no more than 2 of 4 are requested" in story.explain().sentence
    assert "2 pods are impossible to schedule" in story.explain().sentence


@pytest.mark.parametrize(("why", "replicas"), [(PendingCause.UNSCHEDULABLE, 4), (PendingCause.NO_NODE, 2)])
def test_autoscaler_may_create_a_node_unless_it_says_otherwise(why, replicas):
    assert Story(spec()).watch(misfit(why, can_add=16.0), 60, running=40.0).replicas.tolist() == [replicas]


def test_replica_whose_pods_end_is_pending_while_it_has_none():
    """Two of three replicas lose their pods again and again: at every other tick they have none."""
    lost = two([1, 3], [2, 0], why=PendingCause.LOST_STARTS, gpus=6.0, replicas=[3, 3])
    gone = two([1, 3], gpus=6.0, replicas=[3, 3])
    story = Story(spec(2, **RANKS))
    for _ in range(5):
        story.watch(lost, 5, **loads(lost, 30, 60))
        decision = story.watch(gone, 5, **loads(gone, 30, 60))
    assert decision.replicas[1] == 5


def test_pod_that_serves_briefly_takes_nothing_from_others():
    """The first workload's pod restarts every minute, soon after it became ready, and its queue stays."""
    story, load = Story(spec(2, **RANKS)), {}
    for _ in range(3):
        for ready, waiting, seconds in ((1, 1, 50), (2, 0, 10)):
            cluster = two([ready, 2], [waiting, 0], PendingCause.CRASH_LOOP, gpus=4.0)
            doubted = np.arange(len(cluster.pods)) == 1
            cluster = replace(cluster, pod_pending=np.where(doubted, PendingCause.CRASH_LOOP, cluster.pod_pending))
            load = loads(cluster, 60, 60)
            decision = story.watch(cluster, seconds, **load)
    assert decision.replicas.tolist() == [2, 2]
