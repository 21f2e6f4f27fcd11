"""How many requests a replica can run at once. How fast it is, is in `test_step_time`."""

import numpy as np
import pytest

from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from tests.core.planner.interval_stats import NAN, make_stats, run, update


def find_slots(before, running, running_with_queue, after_s=UPDATE_INTERVAL_S):
    """Return the slots known after an interval with these peaks of running requests."""
    totals = {"peak_running": running, "running_with_queue": running_with_queue, "slots": NAN}
    return update(before, make_stats(3.0, replicas=4, totals=totals), after_s).speed.slots[0]


@pytest.mark.slow
@pytest.mark.parametrize(("running_with_queue", "slots"), [(24.0, 24.0), (22.0, 24.0), (20.0, NAN), (NAN, NAN)])
def test_slots_are_learned_from_a_full_pod_with_a_queue(running_with_queue, slots):
    np.testing.assert_equal(find_slots(run([3.0] * 100), 24.0, running_with_queue), slots)


@pytest.mark.parametrize(("days", "slots"), [(20.0, 64.0), (36.0, 32.0)])
def test_slots_shrink_within_weeks_when_an_engine_has_fewer(days, slots):
    before = run([3.0] * 100).with_columns({"speed.peak_running": np.full(1, 64.0), "speed.slots": np.full(1, 64.0)})
    assert find_slots(before, 32.0, 32.0, after_s=days * 86_400) == slots
