"""Cold starts: how long the next one takes, learned from pods that became ready, and when those that start are due."""

import math

import numpy as np
import pytest

from autoscaler.core.starts.cold_start import LONGEST_COLD_START_S
from tests.core.world import Story, fleet, observe_first, spec


def started(story, created_s, ready_s, *, old=1, **columns):
    """A tick on a fleet of `old` settled pods and those given."""
    settled = [-10_000.0] * old, [-9_900.0] * old
    cluster = fleet(
        [old + len(created_s)],
        pod_created_s=np.array([*settled[0], *created_s]),
        pod_ready_s=np.array([*settled[1], *ready_s]),
        **columns,
    )
    return story.tick(cluster).observation.cold_start_s[0]


def test_until_one_was_seen_the_stated_cold_start_holds():
    assert observe_first(fleet([0], [1]), rules=spec(cold_start_s=90.0))["cold_start_s"] == 90


def test_cold_start_is_learned_from_pod_conditions():
    story = Story(spec(cold_start_s=300.0))
    assert started(story, [900.0], [980.0], old=0) == pytest.approx(80 + 2 * 20)


def test_even_cold_starts_narrow_the_estimate_to_their_length():
    story, created, ready = Story(spec()), [], []
    for number in range(12):
        created, ready = [*created, 900.0 + 10 * number], [*ready, 980.0 + 10 * number]
        cold_start_s = started(story, created, ready, old=0)
    assert 80 <= cold_start_s <= 82


def test_fastest_of_several_new_pods_counts():
    story = Story(spec())
    assert started(story, [900.0, 900.0], [990.0, 960.0], old=0) == pytest.approx(60 * 1.5)


def test_a_pod_teaches_once_however_often_it_becomes_ready_again():
    story = Story(spec())
    before = started(story, [900.0], [960.0], old=0)
    story.tick(fleet([0], [1], pod_created_s=np.array([900.0])))
    assert started(story, [900.0], [1500.0], old=0) == before


@pytest.mark.parametrize("ready_s", [899.0, 900.0 + LONGEST_COLD_START_S + 1, np.nan])
def test_absurd_cold_starts_teach_nothing(ready_s):
    assert started(Story(spec(cold_start_s=77.0)), [900.0], [ready_s], old=0) == 77


def waited(story, wait_s, start_s):
    """The cold start once a second pod has waited for a GPU, then was put on a node and became ready."""
    settled = {"pod_created_s": -10_000.0, "pod_scheduled_s": -10_000.0, "pod_ready_s": -9_910.0}
    story.tick(fleet([1], **{name: np.array([moment]) for name, moment in settled.items()}))
    created_s, now_s = story.now_s, story.now_s + wait_s + start_s
    moments = {"pod_created_s": created_s, "pod_scheduled_s": created_s + wait_s, "pod_ready_s": now_s}
    both = fleet([2], **{name: np.array([settled[name], moment]) for name, moment in moments.items()})
    return story.tick(both, wait_s + start_s).observation.cold_start_s[0]


def test_wait_for_a_held_gpu_is_not_part_of_the_cold_start():
    assert waited(Story(spec()), 3000.0, 90.0) <= 200  # 90 s is usual
    assert waited(Story(spec()), 30_000.0, 90.0) == waited(Story(spec()), 3000.0, 90.0)  # however long it was


def test_wait_for_a_new_node_is_part_of_the_cold_start():
    """It takes minutes, as the start itself does: an image to pull, weights to load."""
    story = Story(spec())
    waited(story, 80.0, 90.0)
    assert story.memory.workloads.observe.cold_start.mean_s[0] == pytest.approx(90 + 80 / 4)


def test_single_long_cold_start_counts_for_three_usual_ones():
    story = Story(spec())
    assert started(story, [900.0], [960.0], old=0) == pytest.approx(90)
    assert started(story, [900.0, 1000.0], [960.0, 4000.0], old=0) < 3 * 90


def test_first_cold_start_counts_up_to_three_stated_ones():
    assert started(Story(spec(cold_start_s=60.0)), [900.0], [3900.0], old=0) == pytest.approx(180 * 1.5)
    stated = Story(spec(cold_start_s=0.1))  # shorter than any real start
    assert started(stated, [900.0], [940.0], old=0) == pytest.approx(40 * 1.5)


def test_longer_cold_starts_are_learned_within_a_few():
    story, created, ready = Story(spec()), [900.0], [960.0]
    started(story, created, ready, old=0)
    for number in range(4):
        created, ready = [*created, 1000.0 + number], [*ready, 1600.0 + number]
        cold_start_s = started(story, created, ready, old=0)
    assert cold_start_s > 600


def test_nothing_is_learned_when_the_engine_has_restarted():
    """The engine crashed 50 min after the pod was created; the time of its first start is unknown."""
    story = Story(spec(cold_start_s=77.0))
    cold_start_s = started(story, [900.0], [3900.0], old=0, pod_started_s=np.array([np.nan]))
    assert cold_start_s == 77


def test_restarted_daemon_learns_from_ready_pods():
    story = Story(spec(cold_start_s=300.0))
    observation = story.tick(fleet([4])).observation  # each took 60 s, long ago
    assert observation.cold_start_s[0] == pytest.approx(90)


def test_pods_that_leave_or_wait_teach_nothing():
    cluster = fleet([1], [1], pod_terminating=np.array([True, False]))
    assert observe_first(cluster, rules=spec(cold_start_s=77.0))["cold_start_s"] == 77


def test_the_next_replica_is_due_when_the_first_starting_one_is():
    cluster = fleet([0], [2], pod_created_s=np.array([960.0, 990.0]))
    found = observe_first(cluster, rules=spec(cold_start_s=100.0))
    assert found["next_ready_s"] == 60
    assert found["starting_replica_s"] == 40 + 10  # what both will have served in 100 s


def test_wait_for_a_gpu_delays_the_expected_start():
    cluster = fleet([0], [1], pod_created_s=np.array([-2000.0]), pod_scheduled_s=np.array([990.0]))
    found = observe_first(cluster, rules=spec(cold_start_s=100.0))
    assert (found["next_ready_s"], found["starting_replica_s"]) == (40, 60)  # 10 s and half a cold start of its wait


def test_an_overdue_pod_is_expected_but_not_counted_on_for_now():
    found = observe_first(fleet([0], [1], pod_created_s=np.array([0.0])), rules=spec(cold_start_s=100.0))
    assert found["next_ready_s"] == pytest.approx(10)


def test_nothing_starting_is_nothing_to_wait_for():
    found = observe_first(fleet([2]))
    assert math.isnan(found["next_ready_s"])
    assert found["starting_replica_s"] == 0
