"""The memory of the stages of one workload."""

import math

import numpy as np
import pytest

from tests.core.world import Story, fleet, spec


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
