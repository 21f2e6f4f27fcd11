"""The memory of the stages of one workload."""

import math

import numpy as np
import pytest

from tests.core.world import Story, fleet, spec

pytestmark = pytest.mark.slow


def test_what_lasts_follows_the_load_over_about_one_cold_start():
    story, cluster = Story(spec(cold_start_s=120.0, concurrency=10.0)), fleet([4], pod_ready_s=np.full(4, np.nan))
    story.watch(cluster, 600, running=10.0)
    assert story.memory.workloads.stabilize.lasting[0] == pytest.approx(4.0, rel=0.01)
    story.watch(cluster, 60, running=0.0)  # one time constant
    assert story.memory.workloads.stabilize.lasting[0] == pytest.approx(4.0 / math.e, rel=0.02)


def test_the_queue_is_no_part_of_what_lasts():
    story = Story(spec(cold_start_s=60.0, concurrency=10.0))
    story.watch(fleet([2]), 600, running=10.0, waiting=500.0, ttft_s=60.0)
    assert story.memory.workloads.stabilize.lasting[0] == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("window_s", [0.0, 60.0, 300.0])
def test_zero_comes_after_the_idle_time_whatever_the_window(window_s):
    story, cluster = Story(spec(idle_after_s=20.0, down_stabilization_s=window_s)), fleet([1])
    story.watch(cluster, 300, running=4.0, gateway_arrivals_per_s=1.0)
    decision = story.watch(cluster, 15, every_s=5, gateway_arrivals_per_s=0.0)
    assert decision.replicas[0] == 1
    assert story.tick(cluster, gateway_arrivals_per_s=0.0).replicas[0] == 0


def test_replicas_leave_in_steps_after_the_idle_time():
    story, cluster = Story(spec(idle_after_s=20.0, down_stabilization_s=300.0, down_step_replicas=1.0)), fleet([4])
    story.watch(cluster, 300, running=10.0)
    story.watch(cluster, 15, every_s=5)
    assert story.tick(cluster).replicas[0] == 3


def test_window_holds_before_the_idle_time():
    story, cluster = Story(spec(idle_after_s=600.0, down_stabilization_s=60.0)), fleet([4])
    story.watch(cluster, 300, running=10.0)
    assert story.watch(cluster, 50, every_s=5).replicas[0] == 4
    assert story.watch(cluster, 30, every_s=5).replicas[0] == 1
