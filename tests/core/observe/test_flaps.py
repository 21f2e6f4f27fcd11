"""Flaps: changes of the count that are undone within one cold start."""

import math

import numpy as np
import pytest

from autoscaler.core import snapshot
from autoscaler.core.explain.format import seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.explain.warnings import warnings
from autoscaler.core.observe.flaps import Flaps, update
from tests.core.world import Story, fleet, spec, world

COLD_START_S = 222.0


def flaps_of(*counts: tuple[float, float]) -> float:
    """Return the flaps of one workload. counts: seconds and replicas of each tick."""
    state = Flaps.blank(1)
    for now_s, replicas in counts:
        state = update(state, np.array([replicas]), np.array([COLD_START_S]), now_s)
    return float(state.count[0])


def test_change_undone_within_one_cold_start_is_a_flap():
    assert flaps_of((0, 1), (10, 2), (71, 1)) == 1  # an up, and a down 61 s later
    assert flaps_of((0, 1), (10, 2), (71, 1), (200, 2)) == 2


def test_later_change_and_further_step_are_no_flap():
    assert flaps_of((0, 1), (10, 2), (10 + COLD_START_S, 1)) == 0
    assert flaps_of((0, 1), (10, 2), (71, 3), (80, 4)) == 0


def test_first_and_unknown_counts_are_no_change():
    assert flaps_of((0, 3), (10, math.nan), (20, 3), (30, 3)) == 0


def story_with_flap() -> Story:
    story = Story(spec(cold_start_s=COLD_START_S))
    for replicas in (1, 2, 1, 1):
        story.tick(fleet([replicas]), 5.0)
    return story


def test_observation_counts_flaps_of_the_cluster():
    story = story_with_flap()
    decision = story.tick(fleet([1]), 5.0)
    assert decision.observation.flaps.tolist() == [1]
    assert decision.observation.flap_age_s.tolist() == [10]


def test_flaps_survive_a_restart():
    story = story_with_flap()
    stored = snapshot.take(story.memory, fleet([1]).workloads, story.now_s, 1e9)
    assert stored.columns["changes.flaps"].tolist() == [1]


@pytest.mark.parametrize(("later_s", "warned"), [(0.0, True), (10_000.0, False)])
def test_recent_flap_is_told_as_a_warning(later_s: float, warned: bool):
    story = story_with_flap()
    decision = story.tick(fleet([1]), 5.0 + later_s)
    row = TickRow(world(story.now_s, fleet([1]), story.spec), decision, 0)
    cold_start = seconds(float(decision.observation.cold_start_s[0]))
    told = (f"1 change of its replicas was undone within one cold start ({cold_start}), 10 s ago",)
    assert warnings(row) == (told if warned else ())
