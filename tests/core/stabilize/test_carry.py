"""A shrink leaves replicas for the requests that run now."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.explain.stories import ExplainedStory
from tests.core.world import Story, fleet, spec

FAST = {"down_stabilization_s": 0.0, "down_period_s": 1.0, "tolerance": 0.0, "min_replicas": 1.0}


def shrunk(story: Story, count: int = 4, **readings: object) -> float:
    for _ in range(3):
        decision = story.tick(fleet([count]), **readings)
    return float(decision.replicas[0])


def test_kv_cache_in_use_stays_when_requests_need_fewer_replicas():
    story = ExplainedStory(spec(concurrency=100.0, **FAST))
    assert shrunk(story, running=10.0, kv_usage=0.6) == 3
    assert "the running requests and their KV cache need 3" in story.explain().sentence


def test_slots_in_use_stay_when_the_stated_capacity_is_larger():
    assert shrunk(Story(spec(concurrency=100.0, **FAST)), running=10.0, max_running=16.0) == 3
    assert shrunk(Story(spec(concurrency=100.0, **FAST)), running=10.0) == 1


def test_cache_of_an_idle_fleet_holds_no_replica():
    assert shrunk(Story(spec(concurrency=100.0, **FAST)), running=0.0, kv_usage=0.7) == 1


def test_growth_and_the_maximum_are_not_affected():
    assert shrunk(Story(spec(concurrency=100.0, max_replicas=2.0, **FAST)), running=10.0, kv_usage=0.7) == 2
    assert shrunk(Story(spec(concurrency=1.0, max_replicas=8.0, **FAST)), running=10.0, kv_usage=0.7) == 8


@pytest.mark.slow
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 40), st.floats(0.0, 1.0), st.booleans()), min_size=6, max_size=6),
    st.sampled_from([np.nan, 16.0, 64.0]),
    st.sampled_from([np.nan, 4.0, 500.0]),
)
def test_remaining_replicas_hold_the_present_requests(count, pods, slots, concurrency):
    running, kv_usage, leaving = (np.array(column, dtype=float)[:count] for column in zip(*pods, strict=True))
    cluster = fleet([count], pod_terminating=leaving.astype(bool))
    running, kv_usage = np.fmin(running, np.nan_to_num(slots, nan=40.0)), np.where(running > 0, kv_usage, 0.0)
    story = Story(spec(concurrency=concurrency, max_replicas=100.0, **FAST))
    for _ in range(3):
        decision = story.tick(cluster, running=running, kv_usage=kv_usage, max_running=slots)
    after = float(decision.replicas[0])
    if after < count:
        assert kv_usage.sum() <= after + 1e-6
        assert running.sum() <= after * np.nan_to_num(slots, nan=np.inf) + 1e-6


@pytest.mark.parametrize("leaves", [1, 2, 4])
def test_preempted_pods_take_no_replica_with_them(leaves: int):
    story = Story(spec(concurrency=10.0, **FAST))
    leaving = np.arange(4) < leaves
    for _ in range(10):
        decision = story.tick(fleet([4], pod_terminating=leaving), running=9.0, kv_usage=0.5)
    assert decision.replicas[0] == 4
