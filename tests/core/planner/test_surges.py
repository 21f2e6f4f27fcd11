"""Surges that were seen: how much of one the load has shown, and when one counts as a single one."""

import numpy as np
import pytest

from autoscaler.core.planner.select import StrategyState
from autoscaler.core.planner.strategies import STEADY_LIMIT
from autoscaler.core.planner.surges import compute_unseen_share
from autoscaler.core.table.columns import TRANSIENT
from tests.core.planner.interval_stats import run

pytestmark = pytest.mark.slow

HOUR = 120  # intervals
QUIET, HIGH = 3.0, 12.0


def follow(*parts, **columns):
    """Return the state after parts of this many intervals at a load, always served by as many replicas as it needs."""
    demands = [load for intervals, load in parts for _ in range(intervals)]
    return run(demands, **columns)


def unseen(state, cold_start_s=60.0):
    requests_per_s = state.budget.served / state.budget.served_s
    return float(compute_unseen_share(state.surges, requests_per_s, np.array([cold_start_s]))[0])


def queue_missed(state):
    return float(state.shadow.queue_missed[STEADY_LIMIT, 0])


def test_whole_surge_is_unseen_when_the_load_is_steady():
    assert unseen(follow((2 * HOUR, QUIET))) == 1


def test_surge_is_seen_though_the_real_fleet_missed_none():
    """The replicas follow the load at once, so no request misses. A fleet with a usual margin would have lost many."""
    state = follow((HOUR, QUIET), (HOUR // 2, HIGH))
    assert state.budget.missed[0] == 0
    assert unseen(state) == 0


@pytest.mark.parametrize(
    "rise",
    [((10, HIGH),), ((15, HIGH / 2), (10, 3 * HIGH)), ((10, HIGH), (5, QUIET), (10, HIGH))],
    ids=["one step", "a step upon a step", "twice in minutes"],
)
def test_surge_is_unseen_while_it_may_still_rise(rise):
    """The prior pays for what a surge may still become: a small one is often the beginning of a large one."""
    state = follow((3 * HOUR, QUIET), *rise)
    assert unseen(state) == 1
    state = run([HIGH] * 25, state, float(state.last_updated_s[0]))
    assert unseen(state) < 0.1


def test_surge_is_unseen_when_a_restart_comes_in_its_midst():
    state = follow((3 * HOUR, QUIET), (10, HIGH))
    now_s = float(state.last_updated_s[0])
    blank, marks = StrategyState.blank(1).columns(), StrategyState.marks()
    state = state.with_columns({path: blank[path] for path in blank if TRANSIENT in marks[path]})
    assert unseen(run([HIGH] * 10, state, now_s)) == 1


def test_surge_stays_seen_when_the_load_has_stayed_high():
    assert unseen(follow((HOUR, QUIET), (6 * HOUR, HIGH))) == pytest.approx(0.0, abs=0.05)


def test_misses_without_a_queue_show_no_surge():
    assert unseen(follow((2 * HOUR, QUIET), late=0.5)) == 1


@pytest.mark.parametrize(
    ("parts", "is_forgotten"),
    [
        (((HOUR, QUIET), (60, HIGH), (150, QUIET)), False),
        (((HOUR, QUIET), (60, HIGH), (210, QUIET)), True),
        (((HOUR, QUIET), (6 * HOUR, HIGH)), False),
        (((HOUR, QUIET), (60, HIGH), (150, QUIET), (60, HIGH), (6 * HOUR, QUIET)), False),
    ],
    ids=["soon after", "as long after as before its end", "still going on", "it came again"],
)
def test_queues_are_forgotten_when_a_surge_stays_alone(parts, is_forgotten):
    assert (queue_missed(follow(*parts)) == 0) == is_forgotten


def test_a_young_service_waits_for_as_long_as_it_was_watched():
    """Peaks are held for ten cold starts, which is 40 minutes here; nobody would wait that long after a first surge."""
    beginning = (20, QUIET), (20, HIGH)
    assert queue_missed(follow(*beginning, (35, QUIET), cold_start_s=240.0)) > 0
    assert queue_missed(follow(*beginning, (50, QUIET), cold_start_s=240.0)) == 0
