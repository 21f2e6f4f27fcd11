"""How many requests a replica can run at once. How fast it is, is in `test_step_time`."""

import numpy as np
import pytest

from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from tests.core.planner.interval_stats import NAN, make_stats, run, update


def find_slots(before, busy, running, running_with_queue, after_s=UPDATE_INTERVAL_S):
    """Return the slots known after an interval with these peaks of running requests."""
    totals = {"peak_running": running, "running_with_queue": running_with_queue, "slots": NAN}
    return update(before, make_stats(3.0, replicas=4, busy=busy, totals=totals), after_s).speed.slots[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("busy", "running_with_queue", "slots"), [(0.6, 24.0, 24.0), (0.6, 22.0, 24.0), (0.6, 20.0, NAN), (0.8, 24.0, NAN)]
)
def test_slots_are_learned_when_a_full_pod_computes_little(busy, running_with_queue, slots):
    np.testing.assert_equal(find_slots(run([3.0] * 100), busy, 24.0, running_with_queue), slots)


@pytest.mark.parametrize(("days", "slots"), [(20.0, 64.0), (36.0, 32.0)])
def test_slots_shrink_within_weeks_when_an_engine_has_fewer(days, slots):
    before = run([3.0] * 100).with_columns({"speed.peak_running": np.full(1, 64.0), "speed.slots": np.full(1, 64.0)})
    assert find_slots(before, 0.6, 32.0, 32.0, after_s=days * 86_400) == slots
