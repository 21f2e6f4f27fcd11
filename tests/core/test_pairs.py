"""Prefill and decode pairs in a whole tick: sized by their own work, within the ratio, at zero together, explained."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.fleet import Pool, Workload, WorkloadRef
from autoscaler.core.model.pairs import DECODE, PREFILL, Pairs
from autoscaler.core.model.types import Signal, Stage
from autoscaler.core.model.variants import Variants
from tests.core.explain.claims import check
from tests.core.explain.stories import ExplainedStory
from tests.core.world import fleet, observe_once, quotas, spec

pytestmark = pytest.mark.slow

NAN = math.nan
SIDES = tuple(Workload(WorkloadRef("ns", f"m-{role}"), service="m", role=role) for role in (PREFILL, DECODE))
PAIRS = Pairs(np.array([True, False]), np.array([False, True]), np.array([1, 0]))


class Paired(ExplainedStory):
    """A prefill and a decode workload; every explanation is checked."""

    pairs = PAIRS

    def tick(self, cluster, after_s=5.0, **columns):
        decision = super().tick(replace(cluster, workloads=SIDES), after_s, **columns)
        for row in range(2):
            check(self.input, self.decision, row, self.explain(row))
        return decision


def pods(*counts, prefill, decode):
    """Return a column of pods, with one value for each side."""
    return np.repeat([prefill, decode], counts).astype(float)


def sized(ready, running, watched_s=0.0, current=None, **rules):
    """Return the story after a tick with this many requests running at each side, 10 of which fill a replica."""
    story = Paired(spec(2, **rules))
    cluster = fleet(ready, replicas=current)
    each = pods(*ready, prefill=running[0] / max(ready[0], 1), decode=running[1] / max(ready[1], 1))
    if watched_s:
        story.watch(cluster, watched_s, running=each)
    story.tick(cluster, running=each)
    return story


def counts(story):
    return story.decision.replicas.tolist()


def test_each_side_is_sized_by_its_own_requests():
    assert counts(sized([2, 2], [20.0, 70.0])) == [2, 7]
    assert counts(sized([2, 2], [20.0, 70.0], min_decode_per_prefill=1, max_decode_per_prefill=4)) == [2, 7]


def test_smaller_side_is_raised_to_the_ratio_and_says_so():
    story = sized([2, 2], [40.0, 20.0], min_decode_per_prefill=2.0)
    assert counts(story) == [4, 8]
    assert story.explain(0).bound == ""
    assert "its prefill workload m-prefill needs 4, so the pair needs 8 here" in story.explain(1).sentence
    assert story.explain(1).bound == "pair"
    assert story.explain(0).pair == story.explain(1).pair.replace(
        "prefill workload m-prefill", "decode workload m-decode"
    )
    assert story.explain(0).pair == (
        "with the decode workload m-decode: 4 prefill and 8 decode replicas (at least 2 decode per prefill "
        "replica); prefill is the larger side, so decode gets more than it needs alone"
    )


def test_more_prefill_replicas_when_decode_has_too_many_for_them():
    story = sized([1, 2], [5.0, 90.0], max_decode_per_prefill=3.0)
    assert counts(story) == [3, 9]
    assert story.explain(0).bound == "pair"


def test_raised_replicas_count_as_base_when_gpus_are_short():
    """Headroom of a neighbour does not take what one side needs of the other."""
    story = sized([2, 2], [40.0, 20.0], min_decode_per_prefill=2.0)
    assert story.decision.base_replicas.tolist() == [4, 8]


def test_no_side_goes_to_zero_before_the_other():
    """Decode still generates when the last prompt is computed; at the end both are idle."""
    story = Paired(spec(2, idle_after_s=60.0, down_stabilization_s=0.0))
    cluster = fleet([1, 1])
    story.watch(cluster, 300.0, running=np.array([0.0, 4.0]))
    assert counts(story) == [1, 1]
    assert story.decision.stages[Stage.BOUNDS].tolist() == [0, 1]
    story.watch(cluster, 65.0)
    assert counts(story) == [0, 0]


def test_idle_side_keeps_its_count_when_the_other_works():
    """Prefill rests between prompts. Both go to zero after `idleAfter`, whatever the window of scaling down."""
    story = Paired(spec(2, idle_after_s=20.0, down_stabilization_s=300.0))
    cluster = fleet([3, 1])
    story.watch(cluster, 300.0, running=pods(3, 1, prefill=10.0, decode=4.0))
    story.watch(cluster, 60.0, running=pods(3, 1, prefill=0.0, decode=4.0), every_s=5.0)
    assert counts(story) == [3, 1]
    story.watch(cluster, 15.0, every_s=5.0)
    assert counts(story) == [3, 1]
    story.tick(cluster, 5.0)
    assert counts(story) == [0, 0]


def test_a_floor_of_one_side_keeps_both_awake():
    story = Paired(spec(2, idle_after_s=[60.0, NAN], down_stabilization_s=0.0))
    story.watch(fleet([1, 1]), 300.0)
    assert counts(story) == [1, 1]


@pytest.mark.parametrize("waiting", [[2.0, NAN], [NAN, 2.0], [2.0, 2.0]])
def test_a_queue_at_the_gateway_of_either_side_wakes_both(waiting):
    story = Paired(spec(2, idle_after_s=60.0))
    cluster = fleet([0, 0], replicas=[0, 0])
    story.tick(cluster, gateway_waiting=np.zeros(2))
    story.tick(cluster, gateway_waiting=np.array(waiting))
    assert counts(story) == [1, 1]


def test_a_pair_wakes_up_within_its_ratio():
    story = Paired(spec(2, idle_after_s=60.0, min_decode_per_prefill=2.0))
    story.tick(fleet([0, 0], replicas=[0, 0]), gateway_waiting=np.array([1.0, 1.0]))
    assert counts(story) == [1, 2]


def test_a_queue_at_prefill_wakes_decode():
    story = sized([1, 0], [5.0, 0.0], current=[1, 0], idle_after_s=60.0)
    assert counts(story) == [1, 1]


def test_both_sides_have_the_gateway_of_either():
    """Otherwise the side that no gateway names would never go to zero, and with it the other."""
    story = Paired(spec(2, idle_after_s=60.0))
    decision = story.tick(fleet([1, 1]), gateway_waiting=np.array([NAN, 3.0]))
    assert decision.observation.gateway_waiting.tolist() == [3, 3]


@pytest.mark.parametrize(("gpus", "expected"), [(10.0, [3, 6]), (6.0, [2, 4]), (3.0, [1, 2]), (1.0, [0, 0])])
def test_both_sides_are_cut_together_when_gpus_are_short(gpus, expected):
    rules = spec(2, min_replicas=0.0, min_decode_per_prefill=2.0, priority=[9.0, 1.0], down_stabilization_s=0.0)
    story = Paired(rules)
    cluster = fleet([1, 1], pool_gpus=[gpus])
    story.watch(cluster, 60.0, running=np.array([30.0, 60.0]))
    assert counts(story) == expected
    if gpus == 3:  # prefill alone would get all of them
        assert story.decision.stages[Stage.ALLOCATION].tolist() == [3, 0]
        assert "m-decode gets 2, so no more than 1 are of use here" in story.explain(0).sentence
        assert "m-prefill gets 1, which leaves GPUs for 2" in story.explain(1).sentence


def test_gpus_that_a_pair_cannot_use_go_to_others():
    """One GPU holds no pair. A third workload of lower priority gets it."""
    cluster = fleet([0, 0, 0], replicas=[0, 0, 0], pool_gpus=[1.0])
    story = ExplainedStory(spec(3, idle_after_s=60.0, priority=[5.0, 5.0, 1.0], min_replicas=0.0))
    story.pairs = Pairs(np.array([True, False, False]), np.array([False, True, False]), np.array([1, 0, -1]))
    story.tick(replace(cluster, workloads=(*SIDES, Workload(WorkloadRef("ns", "other")))), gateway_waiting=np.ones(3))
    assert counts(story) == [0, 0, 1]


def test_a_paused_side_leaves_the_other_alone_and_says_so():
    story = Paired(spec(2, min_decode_per_prefill=2.0, idle_after_s=60.0))
    story.tick(replace(fleet([4, 1]), paused=np.array([True, False])), running=pods(4, 1, prefill=10.0, decode=10.0))
    assert counts(story) == [4, 1]
    assert story.explain(1).pair == (
        "with the prefill workload m-prefill: m-prefill is paused, so each side is sized alone"
    )


def test_a_side_with_another_owner_leaves_the_other_alone():
    story = Paired(spec(2, min_decode_per_prefill=2.0))
    cluster = replace(fleet([4, 1]), other_owner=("HorizontalPodAutoscaler/x", ""))
    story.tick(cluster, running=pods(4, 1, prefill=10.0, decode=10.0))
    assert counts(story) == [4, 1]
    assert "HorizontalPodAutoscaler/x owns the count of m-prefill" in story.explain(1).pair


def test_a_side_without_a_policy_leaves_the_other_alone():
    rules = spec(2, min_decode_per_prefill=2.0, max_replicas=[NAN, 9.0])
    story = Paired(rules)
    story.tick(fleet([4, 1]), running=pods(4, 1, prefill=10.0, decode=10.0))
    assert counts(story) == [4, 1]


def test_a_side_without_metrics_keeps_its_count_and_the_ratio():
    """Silence never shrinks: its count stands, and decode is enough for it."""
    story = Paired(spec(2, min_decode_per_prefill=1.0, down_stabilization_s=0.0, idle_after_s=60.0))
    cluster = fleet([4, 2])
    silent = pods(4, 2, prefill=NAN, decode=2.0)
    story.watch(cluster, 300.0, running=silent, waiting=0 * silent, time_s=pods(4, 2, prefill=NAN, decode=1e9))
    assert counts(story) == [4, 4]


def test_transfers_are_no_queue_for_a_side_of_a_pair():
    cluster = fleet([1, 1, 1])
    readings = {"running": 4.0, "waiting": 6.0, "deferred": 5.0}
    observation, _ = observe_once(cluster, **readings)
    assert observation.waiting.tolist() == [6, 6, 6]
    pairs = Pairs(np.array([True, False, False]), np.array([False, True, False]), np.array([1, 0, -1]))
    observation, _ = observe_once(cluster, pairs=pairs, **readings)
    assert observation.waiting.tolist() == [1, 1, 6]
    observation, _ = observe_once(cluster, pairs=pairs, running=4.0, waiting=NAN, deferred=5.0)
    assert np.isnan(observation.waiting).all()


def test_sides_of_a_pair_do_not_take_over_load_from_each_other():
    story = Paired(spec(2))
    story.variants = Variants(np.array([-1, -1]), np.array([1.0, 5.0]))
    story.tick(fleet([2, 2]), running=pods(2, 2, prefill=5.0, decode=30.0))
    assert counts(story) == [1, 6] or counts(story) == [2, 6]


def test_prompt_tokens_are_no_signal_for_decode():
    story = Paired(spec(2, concurrency=NAN, prefill_tokens_per_s=[1000.0, NAN], tolerance=0.0))
    for tokens in (0.0, 30_000.0, 60_000.0):
        decision = story.tick(fleet([1, 1]), 15.0, prompt_tokens=tokens, running=1.0)
    assert decision.recommendations[Signal.PREFILL, 0] > 1
    assert np.isnan(decision.recommendations[Signal.PREFILL, 1])


@given(
    ready=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    load=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    at_gateway=st.sampled_from([NAN, 0.0, 3.0]),
    limits=st.sampled_from([(NAN, NAN), (1.0, 2.0), (0.5, 1.0), (2.0, NAN), (NAN, 1.5), (1.5, 1.5)]),
    idle_after_s=st.sampled_from([NAN, 5.0, math.inf]),
    gpus=st.sampled_from([NAN, 0.0, 1.0, 3.0, 7.0, 30.0]),
    priority=st.sampled_from([[1.0, 1.0], [9.0, 1.0], [1.0, 9.0]]),
)
def test_no_side_is_alone_and_the_ratio_holds(ready, load, at_gateway, limits, idle_after_s, gpus, priority):
    rules = spec(
        2,
        min_decode_per_prefill=limits[0],
        max_decode_per_prefill=limits[1],
        idle_after_s=idle_after_s,
        down_stabilization_s=0.0,
        priority=priority,
    )
    story = Paired(rules)
    cluster = fleet(list(ready), pool_gpus=[gpus])
    each = pods(*ready, prefill=load[0] / max(ready[0], 1), decode=load[1] / max(ready[1], 1))
    for _ in range(4):
        story.tick(cluster, running=each, gateway_waiting=np.full(2, at_gateway))
    needed, paired, got = (story.decision.stages[stage] for stage in (Stage.BOUNDS, Stage.PAIR, Stage.PARTNER))
    assert (paired >= needed).all()
    for prefill, decode in (paired, got):
        assert (prefill > 0) == (decode > 0) or not story.decision.trusted.all()
        if prefill > 1:
            assert decode >= math.ceil(prefill * np.nan_to_num(limits[0]) - 1e-6)
        if prefill > 0 and not np.isnan(limits[1]):
            assert decode <= max(prefill * limits[1], math.ceil(prefill * np.nan_to_num(limits[0])), 1)
    assert np.isnan(gpus) or not story.decision.trusted.all() or got.sum() <= gpus


@pytest.mark.parametrize("limit", ["quota", "pool"])
def test_what_cuts_a_side_is_said_when_its_partner_ends_at_zero(limit):
    """The decode side would get one replica of six, but its prefill side gets none."""
    story = Paired(spec(2, min_replicas=0.0))
    by_quota = {"quotas": (quotas([0, 1], [0, 1]),)}
    pools = tuple(Pool("nvidia.com/gpu", "H100", f"team={side}") for side in "ab")
    by_pool = {"pool": np.array([0, 1]), "pools": pools, "pool_gpus": [0.0, 1.0]}
    cluster = fleet([2, 6], **(by_quota if limit == "quota" else by_pool))
    story.tick(cluster, running=10.0, waiting=5.0)
    assert story.decision.replicas.tolist() == [0, 0]
    sentence = story.explain(1).sentence
    assert "allocates 1 of " in sentence
    assert "did not start" not in sentence
