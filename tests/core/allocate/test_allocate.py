"""Services whose variants share pools with others: another variant takes what one pool cannot allocate."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.fleet import Obstacles, PendingCause
from autoscaler.core.model.types import Stage
from autoscaler.core.model.variants import Variants
from tests.core.serving import LEARNED, Serving
from tests.core.world import Story, fleet, node_groups, quotas, spec

pytestmark = pytest.mark.slow


def test_load_taken_over_from_a_variant_is_no_headroom():
    """The cheaper variant shares a pool with a workload of higher priority, and holds headroom there."""
    story = Serving(spec(3, priority=[10.0, 10.0, 1000.0], max_replicas=12.0, cold_start_s=60.0, **LEARNED))
    story.variants = Variants(service=np.array([0, 0, -1]), cost=np.array([1.0, 9.0, 1.0]))
    pools = {"pool": np.array([0, 1, 0]), "pools": fleet([1]).pools * 2, "pool_gpus": np.array([8.0, 100.0])}
    few, many = fleet([2, 2, 2], **pools), fleet([2, 2, 6], **pools)
    story.learn(few)
    story.serve(many, np.array([1.0, 1.0, 5.5]), 120)
    assert story.serve(many, np.array([1.0, 1.0, 1.0]), 300).replicas.tolist() == [2, 2, 6]
    crowded = story.serve(many, np.array([1.9, 1.9, 1.0]), 180)
    assert crowded.plan.base_replicas.tolist() == [4, 4, 2]
    assert crowded.plan.replicas.tolist() == [5, 5, 8]
    assert crowded.replicas.tolist() == [6, 2, 2]  # eight for the service, none of them headroom
    assert crowded.base_replicas.tolist() == [6, 2, 2]


@pytest.mark.parametrize(
    ("pool_gpus", "kinds"),
    [
        ((4.0, 100.0), ()),
        pytest.param((math.nan, math.nan), (), marks=pytest.mark.long),
        ((100.0, 100.0), (quotas([0, -1], [4]),)),
        pytest.param(
            (math.nan, math.nan), (quotas([0, 1], [4, 20], cohort="all", borrowing=[0, 0]),), marks=pytest.mark.long
        ),
    ],
    ids=["sizes known", "pods wait for GPUs", "quota", "quota of a cohort"],
)
def test_a_dearer_variant_grows_when_a_cheaper_finds_no_gpu(pool_gpus, kinds):
    """Eighty requests in flight behind one router, ten for each replica; the cheaper variant has four GPUs."""
    story = Story(spec(2, max_replicas=20.0, down_stabilization_s=60.0))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))
    cheap, waits, dear = 4, 0, 2
    for _ in range(120):
        each = 80 / (cheap + dear)
        seen = fleet(
            [cheap, dear],
            [waits, 0],
            pool_gpus=np.array(pool_gpus),
            pool=np.array([0, 1]),
            pools=fleet([1]).pools * 2,
            starting_since_s=story.now_s - 600,
            quotas=kinds,
        )
        seen = replace(seen, pod_pending=np.where(seen.pod_ready, 0, PendingCause.UNSCHEDULABLE).astype(np.int64))
        decision = story.tick(seen, 5, running=min(each, 10.0), waiting=max(each - 10.0, 0.0))
        wanted, dear = (int(count) for count in decision.replicas)
        cheap, waits = min(wanted, 4), max(wanted - 4, 0)
    assert cheap == 4
    assert dear >= 4


def test_a_pool_limits_others_while_a_service_moves_load():
    story = Story(spec(3, max_replicas=20.0))
    story.variants = Variants(np.array([0, 0, -1]), np.array([1.0, 9.0, 1.0]))
    pools = {"pool": np.array([0, 1, 2]), "pools": fleet([1]).pools * 3, "pool_gpus": np.array([4.0, 100.0, 1.0])}
    decision = story.watch(fleet([4, 2, 1], **pools), 60, running=10.0, waiting=np.array([5.0] * 6 + [25.0]))
    assert decision.replicas[1] > 2
    assert decision.stages[Stage.VARIANT, 2] > decision.stages[Stage.ALLOCATION, 2] == 1


def test_a_pending_pod_of_a_rollout_moves_no_load():
    """The rollout adds a pod beyond the count while GPUs are short. All four of the old version serve."""
    story = Story(spec(2))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))
    assert story.watch(fleet([4, 2]), 120, running=10.0).replicas.tolist() == [4, 2]
    rolled = fleet([4, 2], [1, 0], replicas=[4, 2])
    rolled = replace(rolled, pod_pending=np.where(rolled.pod_ready, 0, PendingCause.UNSCHEDULABLE).astype(np.int64))
    assert story.watch(rolled, 120, running=10.0).replicas.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("cheap_gpus", "quota", "settled"),
    [(8.0, 9.0, (6, 1)), pytest.param(4.0, 9.0, (4, 2), marks=pytest.mark.long), (8.0, 4.0, (4, 2))],
    ids=["free GPUs", "none", "none within the quota"],
)
def test_a_dear_replica_is_replaced_when_it_has_overpaid(cheap_gpus, quota, settled):
    """Sixty requests, ten for each replica. A dear one costs 9 times a cheap one, which takes 60 s to start.

    The count of each variant is rounded up, so both together keep one replica more than six.
    """
    story = Story(spec(2, min_replicas=1.0, max_replicas=20.0))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))
    pools = {"pool": np.array([0, 1]), "pools": fleet([1]).pools * 2, "pool_gpus": np.array([cheap_gpus, 100.0])}
    pools["quotas"] = (quotas([0, -1], [quota]),)
    cheap, starting, since_s, dear, exchanges = 4, 0, 0.0, 2, []
    for _ in range(60):
        if starting and story.now_s - since_s >= 60:
            cheap, starting = cheap + starting, 0
        present = fleet([cheap, dear], [starting, 0], starting_since_s=since_s, **pools)
        decision = story.tick(present, 15, running=60 / (cheap + dear))
        exchanges.append(decision.stages[Stage.EXCHANGE, 0] > decision.stages[Stage.VARIANT, 0])
        wanted, dear = (int(count) for count in decision.replicas)
        if wanted > cheap and not starting:
            since_s = story.now_s
        starting, cheap = max(wanted - cheap, 0), min(wanted, cheap)
        assert (cheap + dear) * 10 >= 60
    assert (cheap, dear) == settled
    assert not exchanges[0]
    assert any(exchanges) == (settled != (4, 2))


@pytest.mark.parametrize(
    "obstacle",
    [
        "refused",
        pytest.param("crashing", marks=pytest.mark.long),
        pytest.param("queued", marks=pytest.mark.long),
        "no node",
    ],
)
def test_variant_is_tried_less_often_when_its_replicas_fail(obstacle):
    """Fifty requests, ten for each replica. Of the cheap variant only one replica ever runs.

    GPUs for it are free, or an autoscaler could create their nodes, but refuses.
    """
    story = Story(spec(2, min_replicas=1.0, max_replicas=20.0, down_stabilization_s=10.0, cold_start_s=1.0))
    story.variants = Variants(np.array([0, 0]), np.array([1.0, 9.0]))
    causes = {"crashing": PendingCause.CRASH_LOOP, "queued": PendingCause.QUEUED, "no node": PendingCause.NO_NODE}
    why = causes.get(obstacle)
    groups = node_groups([1.0 if obstacle == "no node" else 100.0, 100.0], [0], [1])
    groups = replace(groups, can_add=np.array([math.inf if obstacle == "no node" else 0.0, 0.0]))
    wanted, dear, tried = 1, 1, []
    for _ in range(120):
        failing = wanted - 1 if why else 0
        failed = np.array([wanted > 1 and not why, False])
        present = fleet(
            [1, dear],
            [failing, 0],
            replicas=[wanted, dear],
            obstacles=replace(Obstacles.none(2), creation_failed=failed),
            starting_since_s=story.now_s,
            pool=np.array([0, 1]),
            pools=fleet([1]).pools * 2,
            groups=groups,
        )
        present = replace(present, pod_pending=np.where(present.pod_ready, 0, why or 0).astype(np.int64))
        before, each = wanted, 50 / (1 + dear)
        decision = story.tick(present, 30, running=min(each, 10.0), waiting=max(each - 10.0, 0.0))
        wanted, dear = (int(count) for count in decision.replicas)
        if wanted > max(before, 1):
            tried.append(story.now_s)
    assert dear >= 4
    assert 2 <= len(tried) <= 9
    assert tried[-1] - tried[-2] > 900
