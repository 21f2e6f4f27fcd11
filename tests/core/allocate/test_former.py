"""Replicas of an earlier template, in pools and quotas that are too small for as many of the new one."""

from dataclasses import replace

import numpy as np
import pytest

from tests.core.world import Story, fleet, spec


@pytest.mark.parametrize(("former", "running", "expected"), [(4.0, 40.0, 4), (None, 40.0, 2), (4.0, 2.0, 1)])
def test_replicas_that_serve_stay_when_the_template_grows(former, running, expected):
    """Four replicas of 1 GPU fill the pool, and the template now states 2. Without load they leave all the same."""
    cluster = fleet([4], pool_gpus=np.array([4.0]), gpus_per_replica=np.array([2.0]))
    cluster = replace(cluster, former=None if former is None else np.array([former]))
    story = Story(spec(1, down_stabilization_s=10.0))
    decision = story.watch(cluster, 120, running=running / 4)
    assert decision.replicas[0] == expected
