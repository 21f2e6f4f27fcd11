"""How soon a queue is answered that a real server shows, under the shipped policy and without a stated capacity."""

import pytest

from tests.core.looped_recording import IDLE, LIGHT, measure_reaction
from tests.core.test_closed_loop import shipped

GOAL_S = 10.0


@pytest.mark.slow
@pytest.mark.parametrize("phase_s", [0, 2, 4])
@pytest.mark.parametrize(("before", "before_s"), [(IDLE, 60), (IDLE, 300), (LIGHT, 300)])
def test_a_queue_is_answered_within_ten_seconds(before, before_s, phase_s):
    found = measure_reaction(shipped("interactive"), before, before_s, 5, phase_s)
    assert found.waiting >= 5
    assert found.seconds <= GOAL_S


def test_a_queue_is_answered_with_the_next_reading_when_rare():
    assert measure_reaction(shipped("interactive"), LIGHT, 300, 15).seconds <= 15
