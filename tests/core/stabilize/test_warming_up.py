"""While the planner warms up the load grows no fleet, unless requests wait."""

import copy
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autoscaler.core import snapshot
from autoscaler.core.choose import PLANNER_DUE_S
from autoscaler.core.model.spec import Schedule
from autoscaler.core.model.types import Signal, Stage
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from tests.core.serving import LEARNED, Serving
from tests.core.world import fleet, spec, world

pytestmark = pytest.mark.slow

NAN = math.nan
RUNNING = 80.0  # requests a pod, far more than is assumed of one; the replicas could do as much again
RULES = {**LEARNED, "target_usage": 0.8, "min_replicas": 3.0}


class Dense(Serving):
    """Replicas that run so many requests that their count alone recommends more replicas."""

    def __init__(self, rules=None):
        super().__init__(rules or spec(**RULES))
        self.changes = {}  # of the readings

    def counted(self, cluster, *args, **how):
        return super().counted(cluster, *args, **how) | {"running": RUNNING * cluster.pod_ready} | self.changes

    def most(self, cluster, for_s, demand=1.2):
        """Return the highest desired count meanwhile."""
        return max(self.serve(cluster, demand, 5.0).replicas[0] for _ in range(round(for_s / 5.0)))

    def restart(self, cluster, with_state):
        known = snapshot.take(self.memory, cluster.workloads, self.now_s, self.now_s)
        self.memory = Memory.empty()
        if with_state:
            self.memory, _ = snapshot.restore(known, self.memory, cluster, self.now_s, self.now_s)


@cache
def played():
    story = Dense()
    assert story.serve(fleet([3]), 1.2, 1800.0, 15.0).replicas[0] == 3
    return story


def watched():
    """Half an hour in which the planner spoke, and three replicas were enough."""
    return copy.deepcopy(played())


@pytest.mark.parametrize("with_state", [True, False])
def test_a_restart_grows_nothing_when_no_request_waits(with_state):
    cluster = fleet([3])
    story = watched()
    story.restart(cluster, with_state)
    decision = story.serve(cluster, 1.2, 5.0)
    assert decision.recommendations[Signal.CONCURRENCY, 0] > 3 and np.isnan(decision.recommendations[Signal.PLANNER, 0])
    assert (decision.replicas[0], decision.stages[Stage.UNKNOWN, 0]) == (3, 3)
    assert story.most(cluster, 600.0) == 3


@pytest.mark.parametrize("hole_s", [45.0, 65.0, pytest.param(600.0, marks=pytest.mark.long)])
def test_a_gap_in_readings_grows_nothing_when_no_request_waits(hole_s):
    cluster = fleet([3])
    story = watched()
    story.changes = {"time_s": story.now_s}
    assert story.most(cluster, hole_s) == 3
    story.changes = {}
    assert story.most(cluster, 600.0) == 3


@pytest.mark.parametrize("queue", [{"waiting": 40.0}, {"gateway_waiting": 20.0}])
def test_a_long_queue_grows_the_fleet_with_the_first_reading(queue):
    cluster = fleet([3])
    story = watched()
    story.restart(cluster, True)
    story.changes = queue
    assert story.serve(cluster, 1.2, 5.0).replicas[0] > 3


def test_a_lasting_queue_grows_the_fleet_once_its_wait_is_known():
    """Nothing is learned yet: signals count as soon as the wait of the queue is known."""
    cluster = fleet([3])
    story = watched()
    story.restart(cluster, False)
    story.changes = {"waiting": 5.0}  # of 0.2 requests/s each
    assert story.serve(cluster, 1.2, 5.0).replicas[0] == 3
    decision = story.serve(cluster, 1.2, 5.0)
    assert decision.observation.queue_wait_s[0] > story.spec.max_wait_s[0]
    assert decision.replicas[0] > 3


def test_planner_updates_out_of_turn_when_a_queue_lasts():
    cluster = fleet([3])
    story = watched()
    story.restart(cluster, True)
    story.changes = {"waiting": 5.0}
    assert np.isnan(story.serve(cluster, 1.2, 5.0).recommendations[Signal.PLANNER, 0])
    assert story.serve(cluster, 1.2, 5.0).recommendations[Signal.PLANNER, 0] >= 3


@pytest.mark.parametrize(
    ("rules", "readings"),
    [
        ({}, {"gaps": NAN, "gap_s": NAN}),  # the engine reports no gaps, which the planner needs
        ({"concurrency": 20.0}, {}),  # what an operator states stands
        ({"ttft_objective_s": NAN, "max_wait_s": NAN}, {}),  # there is no objective to plan for
    ],
)
def test_planner_is_not_awaited_when_it_cannot_recommend(rules, readings):
    story = Dense(spec(**{**RULES, **rules}))
    story.changes = readings
    assert story.serve(fleet([3]), 1.2, 5.0).replicas[0] > 3


def test_planner_is_awaited_for_a_limited_time():
    story, cluster = Dense(), fleet([3])
    story.changes = {"finished": NAN, "first_tokens": NAN}
    assert story.most(cluster, PLANNER_DUE_S) == 3
    assert story.most(cluster, 10.0) > 3


def test_a_woken_workload_grows_when_requests_wait_too_long():
    """The held requests run with its first reading, which says nothing of its speed."""
    story = Dense(spec(**{**RULES, "min_replicas": 1.0}))
    story.changes = {"gateway_waiting": 0.0}
    story.serve(fleet([0]), 0.0, 300.0)
    story.serve(fleet([0], [1], starting_since_s=story.now_s), 0.0, 60.0)
    woken = fleet([1], created_s=story.now_s - 60.0)
    story.changes = {"time_s": NAN}
    assert story.serve(woken, 0.0, 5.0).replicas[0] == 1
    story.changes = {"waiting": 40.0}
    assert story.serve(woken, 0.5, 5.0).replicas[0] == 1
    assert story.serve(woken, 0.5, 5.0).replicas[0] == 2


@pytest.mark.parametrize("ready_s", [NAN, 0.0, 980.0])
def test_single_reading_grows_the_fleet_when_a_queue_fills_slots(ready_s):
    """A single look is all that `--once` has, and nothing but an engine may tell of a pod that it is ready."""
    cluster = fleet([2], pod_ready_s=np.full(2, ready_s))
    inp = world(1000.0, cluster, spec(**{**RULES, "min_replicas": 1.0}), running=8.0, waiting=40.0, gaps=0.0)
    assert tick(inp, Memory.empty())[0].replicas[0] > 2


@pytest.mark.parametrize("before", [fleet([0]), fleet([0], [1])])
def test_a_first_replica_grows_nothing_when_no_request_waits(before):
    story, cluster = Dense(spec(**{**RULES, "min_replicas": 1.0})), fleet([1], created_s=1000.0)
    story.serve(before, 0.0, 60.0)
    assert story.most(cluster, 30.0, 0.5) == 1


def test_one_waiting_request_is_no_queue_when_ttft_was_slow():
    """The requests that a wake-up held are in the histogram, long after all were answered."""
    story = Dense(spec(**{**RULES, "min_replicas": 1.0}))
    story.changes = {"running": 2.0, "ttft_s": 6.0, "gaps": NAN}  # the planner is silent
    story.serve(fleet([1]), 0.3, 30.0)
    story.changes |= {"waiting": 1.0}
    assert story.serve(fleet([1]), 0.3, 5.0).replicas[0] == 1


def test_refused_requests_are_not_put_off_while_warming_up():
    cluster = fleet([3])
    story = watched()
    story.restart(cluster, True)
    story.serve(cluster, 1.2, 5.0)
    story.changes = {"rejections": 0.0}
    story.serve(cluster, 1.2, 5.0)
    story.changes = {"rejections": 10.0}
    assert story.serve(cluster, 1.2, 5.0).replicas[0] > 3


def test_a_window_is_not_put_off_while_warming_up():
    cluster = fleet([3])
    story = watched()
    story.restart(cluster, True)
    story.now_s += 5.0
    inp = world(story.now_s, cluster, story.spec, **story.counted(cluster, 1.2, 5.0))
    opens = Schedule(*(np.array([[value]]) for value in (story.now_s, story.now_s + 60, 5.0, 0.0)))
    assert tick(replace(inp, schedule=opens), story.memory)[0].replicas[0] == 5
