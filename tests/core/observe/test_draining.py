"""Requests on pods that terminate or are no longer ready still count as load."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.types import Signal
from autoscaler.core.observe import draining
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.world import Story, fleet, observe_first, spec, world

LEAVES = np.array([True, True, False, False])


def lost(leaves: np.ndarray = LEAVES, **columns: object) -> Fleet:
    """Return a fleet of four, some of whose pods are preempted while they still serve."""
    return fleet([4], replicas=[4], pod_terminating=leaves, **columns)


def asks(cluster: Fleet, rules: object = None, **columns: object) -> np.ndarray:
    decision, _ = tick(world(1000.0, cluster, rules or spec(), **columns), Memory.empty())
    return decision.recommendations[:, 0]


def test_requests_on_draining_pods_have_a_column_of_their_own():
    found = observe_first(lost(), running=9.0, waiting=np.array([0.0, 2.0, 1.0, 0.0]))
    assert (found["running"], found["waiting"], found["draining_requests"]) == (18, 1, 20)


def test_draining_pods_are_load_but_no_capacity():
    assert asks(lost(), running=9.0)[Signal.CONCURRENCY] == pytest.approx(3.6)


def test_requests_are_load_when_their_pod_is_no_longer_ready():
    cluster = replace(fleet([4]), pod_ready=np.array([False, True, True, True]))
    inp = world(1000.0, fleet([4]), spec(), running=9.0)
    decision, _ = tick(replace(inp, fleet=replace(cluster, time_s=1000.0)), Memory.empty())
    assert decision.recommendations[Signal.CONCURRENCY, 0] == pytest.approx(3.6)


def test_load_remains_when_all_pods_drain():
    assert asks(lost(np.full(4, True)), running=9.0)[Signal.CONCURRENCY] == pytest.approx(3.6)


def test_draining_pod_without_a_recent_reading_is_no_load():
    heard_s = np.array([900.0, math.nan, 1000.0, 1000.0])
    assert observe_first(lost(), time_s=heard_s, running=9.0)["draining_requests"] == 0


def test_cache_and_tokens_of_draining_pods_are_load():
    rules = spec(decode_tokens_per_s=100.0)
    story = Story(rules)
    for second in range(0, 60, 5):
        decision = story.tick(lost(), running=9.0, generation_tokens=60.0 * second, kv_usage=0.9)
    assert decision.recommendations[Signal.DECODE, 0] == pytest.approx(2.4)
    assert decision.recommendations[Signal.KV_CACHE, 0] == pytest.approx(4 * 0.9 / 0.8)


def test_replicas_stay_when_some_are_preempted():
    story = Story(spec(down_stabilization_s=2.0, down_period_s=5.0))
    for _ in range(4):
        assert story.tick(fleet([4], replicas=[4]), running=9.0).replicas[0] == 4
    for _ in range(15):
        assert story.tick(lost(), running=9.0).replicas[0] == 4
    for _ in range(15):  # the replacements are ready, and the other pods are gone
        assert story.tick(fleet([4], replicas=[4]), running=9.0).replicas[0] == 4


def test_scale_down_does_not_repeat_while_pods_drain():
    story = Story(spec(down_stabilization_s=2.0, down_period_s=5.0))
    cluster = fleet([4], replicas=[2], pod_terminating=LEAVES)
    for _ in range(10):
        assert story.tick(cluster, running=4.5).replicas[0] == 2


def test_arrivals_stay_when_requests_end_on_a_draining_pod():
    """Four pods have a steady load; one of them terminates, and finishes one request per tick."""
    story, finished = Story(spec()), np.zeros(4)
    for _ in range(30):
        finished = finished + 1.0
        story.tick(fleet([4], replicas=[4]), running=9.0, finished=finished)
    before = story.memory.workloads.observe.arrivals.per_s[0]
    for left in range(8, -1, -1):
        finished = finished + np.array([1.0, 4 / 3, 4 / 3, 4 / 3])
        running = np.array([float(left), 9.0, 9.0, 9.0])
        story.tick(lost(np.array([True, False, False, False])), running=running, finished=finished)
    assert story.memory.workloads.observe.arrivals.per_s[0] == pytest.approx(before, rel=0.1)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 5),
)
def test_load_never_falls_when_a_pod_begins_to_drain(pods: list[tuple[int, int, bool]], chosen: int):
    running, waiting, leaves = (np.array(column) for column in zip(*pods, strict=True))
    more = leaves.copy()
    more[chosen % len(more)] = True
    before, after = (
        asks(
            fleet([len(pods)], pod_terminating=each),
            running=running.astype(float),
            waiting=waiting.astype(float),
        )[Signal.CONCURRENCY]
        for each in (leaves, more)
    )
    assert math.isnan(before) or math.isnan(after) or after >= before - 1e-9


@pytest.mark.parametrize(("replicas", "expected"), [(4, [True, True, False, False]), (2, [False] * 4)])
def test_planner_counts_draining_pods_only_if_they_are_lost(replicas: int, expected: list[bool]):
    inp = world(1000.0, fleet([4], replicas=[replicas], pod_terminating=LEAVES), spec(), running=9.0)
    assert draining.is_lost(inp, ~LEAVES, inp.samples.pods).tolist() == expected


def test_sentence_names_requests_on_draining_pods():
    inp = world(1000.0, lost(), spec(), running=9.0)
    decision, _ = tick(inp, Memory.empty())
    sentence = explain(inp, decision, ["quick"], {}, 0).sentence
    assert "recommends 3.6 for 18 running, 0 waiting and 18 on pods that stop serving, at 10 requests" in sentence


def test_sentence_names_requests_on_pods_that_are_not_ready():
    cluster = replace(fleet([4]), pod_ready=np.array([True, True, False, False]), time_s=1000.0)
    inp = replace(world(1000.0, fleet([4]), spec(), running=9.0), fleet=cluster)
    sentence = explain(inp, tick(inp, Memory.empty())[0], ["quick"], {}, 0).sentence
    assert "18 running, 0 waiting and 18 on pods that are not ready, at 10 requests" in sentence
