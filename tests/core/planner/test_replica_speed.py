"""How many requests a replica can run; how fast it is, is in `test_speed`."""

import numpy as np
import pytest

from autoscaler.core.planner.strategies import EVERY_S
from tests.core.shown import NAN, judged, live, seen


def slots_after(known, busy, running, full, after_s=EVERY_S):
    """Slots known after a step in which the fullest pod ran so many requests, and the fullest with a queue so many."""
    fullest = {"most_running": running, "full_running": full, "slots": NAN}
    return judged(known, seen(3.0, replicas=4, busy=busy, tally=fullest), after_s).engine.slots[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("busy", "full", "slots"), [(0.6, 24.0, 24.0), (0.6, 22.0, 24.0), (0.6, 20.0, NAN), (0.8, 24.0, NAN)]
)
def test_who_has_a_queue_has_full_slots_if_it_computes_little_and_runs_about_as_many_as_any_ever_did(busy, full, slots):
    np.testing.assert_equal(slots_after(live([3.0] * 100), busy, 24.0, full), slots)


@pytest.mark.parametrize(("days", "slots"), [(20.0, 64.0), (36.0, 32.0)])
def test_half_as_many_slots_are_believed_within_weeks(days, slots):
    known = live([3.0] * 100).with_columns({"engine.most_running": np.full(1, 64.0), "engine.slots": np.full(1, 64.0)})
    assert slots_after(known, 0.6, 32.0, 32.0, after_s=days * 86_400) == slots
