"""Each model is read whole once, then one a day, and one that a peer refuses at most once an hour."""

from __future__ import annotations

from autoscaler.weights.check_schedule import RECHECK_S, SUSPECT_S, CheckSchedule


def test_one_model_a_day_is_checked_again() -> None:
    schedule, keys = CheckSchedule(0.0), ["a", "b"]
    for key in keys:
        assert schedule.next(keys, 1.0) == key
        schedule.passed(key, 1.0 if key == "a" else 2.0)
    assert schedule.next(keys, RECHECK_S - 1) is None
    assert schedule.next(keys, RECHECK_S) == "a"
    schedule.passed("a", RECHECK_S)
    assert schedule.next(keys, RECHECK_S + 1) is None
    assert schedule.next(keys, 2 * RECHECK_S) == "b"
    assert schedule.next([], 9 * RECHECK_S) is None


def test_refused_model_is_checked_once_an_hour_at_most() -> None:
    schedule = CheckSchedule(0.0)
    schedule.suspect("a", 0.0)  # it is checked anyhow
    schedule.passed("a", 1.0)
    for moment_s, due in ((2.0, "a"), (10.0, None), (SUSPECT_S, None), (SUSPECT_S + 3.0, "a")):
        schedule.suspect("a", moment_s)
        assert schedule.next(["a"], moment_s) == due
        schedule.passed("a", moment_s)
    schedule.keep([])
    assert schedule.next(["a"], SUSPECT_S + 4.0) == "a"
