"""Replicas that cannot come: what they keep from others, for how long, and what is said of them."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.fleet import Obstacles, PendingClass, Pool, PoolOverlap
from autoscaler.core.model.types import Stage
from autoscaler.core.model.variants import Variants
from autoscaler.core.observe import pending
from tests.core.explain.stories import ExplainedStory
from tests.core.world import Story, fleet, spec

NAN = np.nan
RANKS = {"priority": [900.0, 100.0], "down_stabilization_s": 10.0}


def two(ready, waiting=(0, 0), why=PendingClass.UNSCHEDULABLE, gpus=8.0, replicas=None, **columns):
    """The first ranks higher. Of each so many are ready, and so many are blocked."""
    cluster = fleet(list(ready), list(waiting), replicas=replicas, pool_gpus=np.array([gpus]), **columns)
    return replace(cluster, pod_pending=np.where(cluster.pod_ready, PendingClass.NONE, why).astype(np.int64))


def told(rows=1, **columns):
    return replace(Obstacles.none(rows), **columns)


def loads(cluster, *running):
    """So many requests run for each workload, spread over its ready pods."""
    return {"running": np.array(running, dtype=float)[cluster.pod_workload]}


@pytest.mark.parametrize("failed", [True, False])
def test_replicas_that_do_not_exist_leave_their_gpus_to_others(failed):
    """A quota allows two of the eight that are asked for, and no pod is waiting."""
    hindered = told(2, creation_failed=np.array([failed, False]))
    cluster = two([2, 1], replicas=[8, 1], obstacles=hindered)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 40, 60)
    first = story.tick(cluster, **load)
    assert first.replicas.tolist() == ([8, 6] if failed else [7, 1])  # without word of it they may be on their way
    later = story.watch(cluster, pending.MISSING_S, **load)
    assert later.replicas.tolist() == [8, 6]
    assert later.observation.missing_pods.tolist() == [6, 0]


def test_a_count_that_its_hpa_cannot_change_takes_no_gpus():
    """In KEDA mode the HPA is refused, and it does not tell which count it asked for."""
    hindered = told(2, refused_replicas=np.array([np.inf, NAN]), messages=("admission webhook denied the request", ""))
    cluster = two([2, 1], obstacles=hindered)
    story = ExplainedStory(spec(2, **RANKS))
    decision = story.watch(cluster, 60, **loads(cluster, 40, 60))
    assert decision.replicas.tolist() == [8, 6]
    assert "its HPA cannot change the count: admission webhook denied the request" in story.explain(0).sentence


def test_the_sentence_names_the_pools_that_are_short_together():
    """Two pools of eight overlap in all their nodes: eight GPUs in all."""
    pools = (Pool("nvidia.com/gpu", "H100", "team=a"), Pool("nvidia.com/gpu", "H100", "team=b"))
    cluster = fleet(
        [2, 2],
        pool=np.array([0, 1]),
        pools=pools,
        pool_gpus=np.array([8.0, 8.0]),
        pool_overlaps=(PoolOverlap((0, 1), 8.0),),
    )
    story = ExplainedStory(spec(2))
    story.watch(cluster, 60, **loads(cluster, 30, 30))
    assert "the pool of 8 GPUs shared by H100 (team=a) and H100 (team=b) allocates 4 of 6" in story.explain(0).sentence
    alone = replace(cluster, pool_gpus=np.array([3.0, 8.0]), pool_overlaps=(PoolOverlap((0, 1), 11.0),))
    story.watch(alone, 60, **loads(cluster, 30, 30))
    assert "the pool of 3 H100 (team=a) allocates 3 of 6" in story.explain(0).sentence


def test_no_more_replicas_are_ordered_while_some_of_them_do_not_come():
    cluster = fleet([2, 2], replicas=[1, 3], pool_gpus=np.array([4.0]))
    story = ExplainedStory(spec(2, down_stabilization_s=10.0))
    decision = story.watch(cluster, 60, **loads(cluster, 0, 40))
    assert decision.replicas.tolist() == [1, 3]
    assert decision.stages[Stage.ALLOCATION].tolist() == [1, 3]


def test_replicas_are_on_their_way_while_another_starts():
    """A StatefulSet makes its next pod when the one before is ready."""
    cluster = fleet([2], [1], replicas=[8], pool_gpus=np.array([8.0]))
    assert Story(spec()).watch(cluster, 300, running=10.0).observation.missing_pods.tolist() == [0]


def test_a_pod_that_finds_no_node_though_gpus_are_free_claims_none():
    """Two GPUs are free, each on another node, and the replica needs both: a smaller one may have them."""
    cluster = two([1, 1], [1, 0], gpus=5.0, gpus_per_replica=np.array([2.0, 1.0]))
    story, load = Story(spec(2, **RANKS)), loads(cluster, 20, 40)
    story.tick(cluster, **load)
    assert story.tick(cluster, **load).replicas.tolist() == [2, 1]
    assert story.watch(cluster, pending.PENDING_S, **load).replicas.tolist() == [2, 3]


def test_a_pod_that_waits_for_gpus_that_others_hold_gets_them_by_priority():
    cluster = two([1, 4], [1, 0], gpus=5.0)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 20, 10)
    assert story.watch(cluster, 600, **load).replicas.tolist() == [2, 3]


def test_no_serving_replica_is_taken_for_one_whose_pods_crash():
    cluster = two([1, 3], [2, 0], why=PendingClass.CRASH_LOOP, gpus=6.0)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 50, 10)
    story.tick(cluster, **load)
    assert story.watch(cluster, pending.PENDING_S, **load).replicas.tolist() == [1, 3]


def test_crashing_replicas_keep_their_gpus_where_nobody_else_needs_them():
    cluster = two([1, 1], [2, 0], why=PendingClass.CRASH_LOOP, gpus=8.0)
    assert Story(spec(2, **RANKS)).watch(cluster, 300, **loads(cluster, 30, 10)).replicas.tolist() == [3, 1]


@pytest.mark.slow
def test_after_a_crash_gpus_are_claimed_again_later_each_time():
    """What crashed was cut, and is wanted again: without a pause the neighbour would lose its replicas each minute."""
    crashing = two([1, 3], [2, 0], why=PendingClass.CRASH_LOOP, gpus=6.0)
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


def test_a_count_that_was_refused_is_put_off_and_claims_nothing():
    refused = told(2, refused_replicas=np.array([4.0, NAN]), retry_at_s=np.array([1100.0, NAN]))
    cluster = two([1, 1], gpus=5.0, obstacles=refused)
    story, load = Story(spec(2, **RANKS)), loads(cluster, 50, 60)
    decision = story.tick(cluster, **load)
    assert decision.stages[Stage.ALLOCATION].tolist() == [5, 4]
    assert decision.replicas.tolist() == [1, 4]
    assert story.watch(cluster, 100, **load).replicas.tolist() == [5, 4]  # asked for again


def test_fewer_than_were_refused_may_be_asked_for_at_once():
    refused = told(refused_replicas=np.array([8.0]), retry_at_s=np.array([9e9]))
    story = Story(spec())
    assert story.tick(fleet([1], obstacles=refused), running=40.0).replicas.tolist() == [4]
    assert story.tick(fleet([1], obstacles=refused), running=90.0).replicas.tolist() == [1]
    shrunk = told(refused_replicas=np.array([2.0]), retry_at_s=np.array([9e9]))
    story = Story(spec(down_stabilization_s=10.0))
    assert story.watch(fleet([4], obstacles=shrunk), 60, running=2.0).replicas.tolist() == [4]
    assert story.watch(fleet([4], obstacles=shrunk), 60, running=7.0).replicas.tolist() == [3]


def test_a_variant_whose_replicas_do_not_come_leaves_the_load_to_others():
    story = Story(spec(2, max_replicas=20.0))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))
    hindered = told(2, creation_failed=np.array([True, False]))
    cluster = fleet([2, 2], replicas=[4, 2], obstacles=hindered)
    assert story.watch(cluster, 60, running=10.0, waiting=10.0).replicas[1] > 2


def test_a_pod_that_starts_for_ever_is_blocked_and_one_that_served_is_not():
    story = Story(spec())
    endless = fleet([1], [1], starting_since_s=900.0)
    assert story.watch(endless, 3400, 60, running=5.0).observation.pending.tolist() == [0]
    assert story.watch(endless, 240, 60, running=5.0).observation.pending.tolist() == [1]
    served = Story(spec())
    served.watch(fleet([2]), 60, running=5.0)
    flapping = fleet([2], pod_ready=np.array([True, False]))
    assert served.tick(flapping, running=5.0).observation.pending.tolist() == [0]


def sentence(cluster, **load):
    story = ExplainedStory(spec(2, **RANKS))
    story.watch(cluster, 60, **load)
    return story.explain().sentence


def test_the_sentence_says_what_does_not_come_and_why():
    quota = told(2, creation_failed=np.array([True, False]), messages=("FailedCreate: exceeded quota: gpus", ""))
    assert "; 6 replicas have no pod: FailedCreate: exceeded quota: gpus (metrics" in sentence(
        two([2, 1], replicas=[8, 1], obstacles=quota), running=30.0
    )
    unplaced = told(2, messages=("0/2 nodes are available", ""))
    assert "; 1 pod is pending (unschedulable): 0/2 nodes are available (metrics" in sentence(
        two([2, 1], [1, 0], obstacles=unplaced), running=12.0
    )
    image = two([2, 1], [2, 0], why=PendingClass.IMAGE_PULL, obstacles=told(2, messages=("ImagePullBackOff", "")))
    assert "; 2 pods are pending (image cannot be pulled): ImagePullBackOff (metrics" in sentence(image, running=15.0)


@pytest.mark.parametrize(
    ("retry_s", "said"),
    [
        (1090.0, "the API server refuses 4 replicas, next try in 30 s: GPU quota (metrics"),
        (1050.0, "the API server last refused 4 replicas: GPU quota (metrics"),
    ],
)
def test_the_sentence_says_that_a_count_was_refused(retry_s, said):
    refused = told(
        2, refused_replicas=np.array([4.0, NAN]), retry_at_s=np.array([retry_s, NAN]), messages=("GPU quota", "")
    )
    assert said in sentence(two([1, 1], obstacles=refused), running=50.0)
