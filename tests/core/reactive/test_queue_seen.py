"""How soon a queue is answered that a real server shows, under the shipped policy and without a stated capacity."""

import pytest

from tests.core.looped_recording import IDLE, LIGHT, measure_reaction
from tests.core.recordings import series
from tests.core.test_closed_loop import shipped
from tests.core.world import Story, fleet

GOAL_S = 10.0


@pytest.mark.slow
@pytest.mark.parametrize("phase_s", [0, pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize(
    ("before", "before_s"), [(IDLE, 60), pytest.param(IDLE, 300, marks=pytest.mark.long), (LIGHT, 300)]
)
def test_a_queue_is_answered_within_ten_seconds(before, before_s, phase_s):
    found = measure_reaction(shipped("interactive"), before, before_s, 5, phase_s)
    assert found.waiting >= 5
    assert found.seconds <= GOAL_S


def test_a_queue_is_answered_with_the_next_reading_when_rare():
    assert measure_reaction(shipped("interactive"), LIGHT, 300, 15).seconds <= 15


@pytest.mark.parametrize(("name", "second"), [*(("load", second) for second in range(29, 34)), ("kv-bound", 7)])
def test_a_queue_is_answered_in_the_tick_that_shows_it(name, second):
    """Each run is read every 5 s, with another second as the first that shows a queue, after half a minute of quiet."""
    story, moments = Story(shipped("interactive")), series(name)
    for moment in (*moments[:1] * 6, *moments[second % 5 : second + 1 : 5]):
        decision = story.tick(fleet([1]), 5.0, **moment.columns)
    assert moment.columns["waiting"] >= 4
    assert decision.replicas[0] > 1
