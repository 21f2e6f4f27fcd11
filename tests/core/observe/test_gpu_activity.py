"""GPU activity: loaded, active and idle pods, by DCGM."""

import math

import numpy as np
import pytest

from autoscaler.core.observe.gpu_activity import MAX_GPU_AGE_S
from tests.core.world import Story, fleet, observe_first, spec

GPU = {"gpu_time_s": 995.0, "fb_usage": 0.9, "tensor_active": 0.0, "sm_active": 0.0, "dram_active": 0.0}


def test_gpu_columns_are_nan_without_gpu_metrics():
    found = observe_first(fleet([2]))
    assert all(math.isnan(found[name]) for name in ("gpu_loaded", "gpu_active", "loaded_idle_s"))


def test_framebuffer_alone_shows_loaded_but_not_idle():
    found = observe_first(fleet([2]), gpu_time_s=995.0, fb_usage=np.array([0.9, 0.02]))
    assert found["gpu_loaded"] == 1
    assert math.isnan(found["gpu_active"])
    assert math.isnan(found["loaded_idle_s"])


@pytest.mark.parametrize("witness", ["tensor_active", "sm_active", "dram_active"])
def test_gpu_is_active_when_any_unit_works(witness):
    assert observe_first(fleet([2]), **{**GPU, witness: np.array([0.3, 0.0])})["gpu_active"] == 1


def test_old_gpu_reading_is_ignored():
    found = observe_first(fleet([1]), **{**GPU, "gpu_time_s": 1000.0 - MAX_GPU_AGE_S - 1})
    assert math.isnan(found["gpu_loaded"])
    assert math.isnan(found["gpu_active"])


def idle_seconds(for_s=60.0, every_s=5.0, **columns):
    story = Story(spec())
    story.tick(fleet([2]), every_s, **{**GPU, "gpu_time_s": story.now_s, **columns})
    for _ in range(int(for_s / every_s)):
        story.tick(fleet([2]), every_s, **{**GPU, "gpu_time_s": story.now_s, **columns})
    return story.memory.workloads.observe.loaded_idle_s[0]


def test_loaded_idle_seconds_add_up_over_replicas_and_time():
    assert idle_seconds() == pytest.approx(120)


def test_pod_is_not_idle_when_its_gpu_or_engine_works():
    assert idle_seconds(tensor_active=np.array([0.2, 0.0])) == pytest.approx(60)
    assert idle_seconds(running=np.array([0.0, 1.0])) == pytest.approx(60)


def test_pod_is_not_idle_when_its_engine_does_not_answer():
    assert idle_seconds(running=np.array([np.nan, 0.0])) == pytest.approx(60)


def test_long_pause_of_the_daemon_adds_no_idle_time():
    assert idle_seconds(for_s=7200.0, every_s=3600.0) <= 2 * 2 * MAX_GPU_AGE_S


def test_loaded_idle_time_of_a_long_pause_is_limited():
    story = Story(spec())
    for pause_s in (5.0, 3600.0):
        story.tick(fleet([1]), pause_s, **{**GPU, "gpu_time_s": story.now_s + pause_s})
    assert story.memory.workloads.observe.loaded_idle_s[0] == MAX_GPU_AGE_S
