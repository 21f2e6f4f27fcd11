"""The readings up to which work is counted, by id of the pod."""

from dataclasses import replace

import numpy as np

from autoscaler.core.observe.pod_deltas import COUNTERS, PodReadings
from autoscaler.core.planner.groups import CountedReadings

NAN = np.nan


def counted(pod_id, time_s):
    readings = replace(PodReadings.blank(len(pod_id)), time_s=np.array(time_s))
    return CountedReadings(np.array(pod_id, dtype=np.int64), readings)


def test_readings_are_found_by_pod_id():
    before = counted([2, 5, 9], [20.0, 50.0, 90.0])
    found = before.find(np.array([1, 5, 9, 12]))
    assert found.pod_id.tolist() == [1, 5, 9, 12]
    np.testing.assert_array_equal(found.readings.time_s, [NAN, 50.0, 90.0, NAN])
    assert found.readings.counter.shape == (len(COUNTERS), 4)
    assert before.find(np.array([2, 5, 9])).readings is before.readings
    assert np.isnan(CountedReadings.blank(0).find(np.array([4])).readings.time_s).all()
    assert len(before.find(np.empty(0, dtype=np.int64)).readings.time_s) == 0


def test_newer_readings_of_other_pods_are_ignored():
    before = counted([2, 5, 9], [20.0, 50.0, 90.0])
    after = before.update(counted([1, 5], [100.0, 100.0]))
    assert after.pod_id.tolist() == [2, 5, 9]
    assert after.readings.time_s.tolist() == [20, 100, 90]
    assert before.update(counted([1], [100.0])) is before
