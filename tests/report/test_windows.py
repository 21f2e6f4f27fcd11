"""The pre-warm windows of policies over a history: they count for the planner, and are not drafted a second time."""

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from autoscaler.config.policy.schedule import ScheduleWindows
from autoscaler.config.policy.schema import MAX_PREWARM, Policy
from autoscaler.demand.halves import Half
from autoscaler.demand.shape import hours_of
from autoscaler.demand.windows import missing_windows
from autoscaler.report.columns import PolicyColumn
from autoscaler.report.fluid import Reserve, follow
from autoscaler.report.windows import with_windows
from tests.report.loads import START_S, interactive, load_of, profiles_of

HOURS = 30
WINDOW = {"from": "0 9 * * *", "until": "0 17 * * *", "replicas": 4}


def policy(*windows: dict[str, object]) -> Policy:
    document = {"metadata": {"name": "p"}, "apiVersion": "vllm-autoscaler.io/v1", "kind": "Policy"}
    return Policy.model_validate({**document, "spec": {"prewarm": list(windows)}})


def quiet(services: int, hours: int = HOURS):
    demand = np.full((hours * 60, services), 0.4)
    return load_of(demand, np.ones_like(demand))


def clock(load, step: int) -> str:
    return datetime.fromtimestamp(START_S + step * load.span.step_s, UTC).strftime("%H:%M")


@pytest.mark.parametrize(
    ("changed", "begins", "ends"),
    [
        ({"lead": "10m"}, "08:50", "17:00"),
        ({}, "08:58", "17:00"),  # a cold start
        ({"lead": "0s", "timezone": "America/New_York"}, "13:00", "21:00"),  # in summer
        ({"lead": "0s", "until": "0 2 * * *"}, "09:00", "02:00"),
    ],
)
def test_window_asks_from_its_lead_until_its_end(changed, begins, ends):
    load = with_windows(quiet(2), [policy(WINDOW | changed), policy()], np.full(2, 120.0))
    floors = load.floors[:, 0]
    edges = np.flatnonzero(np.diff(np.nan_to_num(floors))) + 1
    assert {clock(load, step) for step in edges if floors[step] == 4} == {begins}
    assert {clock(load, step) for step in edges if np.isnan(floors[step])} == {ends}
    assert np.isnan(load.floors[:, 1]).all()
    assert load.only([1, 0]).floors[:, 1] == pytest.approx(floors, nan_ok=True)


@pytest.mark.parametrize("begins", ["2026-03-28T12:00", "2026-10-24T12:00", "2026-04-04T06:00"])  # clocks change
def test_windows_ask_for_what_the_daemon_starts_in_each_step(begins):
    start_s = datetime.fromisoformat(begins).replace(tzinfo=UTC).timestamp()
    windows = (
        WINDOW | {"from": "30 2 * * *", "until": "0 5 * * *", "timezone": "Europe/Berlin"},
        WINDOW | {"until": "30 9 * * *", "timezone": "Australia/Lord_Howe", "replicas": 7, "lead": "20m"},
        WINDOW | {"from": "0 0 * * sun", "until": "0 4 * * *", "replicas": 3, "lead": "0s"},
    )
    load, cold_start_s = quiet(1), np.array([90.0])
    load = with_windows(replace(load, span=load.span._replace(start_s=start_s)), [policy(*windows)], cold_start_s)
    daemon = ScheduleWindows([policy(*windows).spec.prewarm], np.zeros(1, np.int64))
    moments_s = start_s + np.arange(0.0, HOURS * 3600, 30.0)
    asked = [daemon.at(at_s, at_s).find_floor(at_s, cold_start_s)[0] for at_s in moments_s.tolist()]
    np.testing.assert_array_equal(load.floors[:, 0], np.fmax.reduce(np.reshape(asked, (-1, 2)), axis=1))


def test_overlapping_windows_ask_for_the_largest_allowed_count():
    windows = (WINDOW | {"lead": "0s"}, {"from": "0 10 * * *", "until": "0 11 * * *", "replicas": 40, "lead": "0s"})
    load = with_windows(quiet(1, 16), [policy(*windows)], np.full(1, 120.0))
    assert set(np.unique(load.floors[~np.isnan(load.floors)]).tolist()) == {4.0, 40.0}
    profiles, spec = profiles_of(1), interactive(1)
    course = follow(PolicyColumn(load, profiles, spec), load, profiles, reserve=Reserve.of(spec))
    assert course.wanted.max() == spec.max_replicas[0] == 16
    assert (course.wanted[load.floors[:, 0] == 4, 0] >= 4).all()
    assert course.wanted[1 : np.flatnonzero(load.floors[:, 0] == 4)[0]].max() < 4


def test_window_of_the_present_policy_is_not_drafted_again():
    """Demand jumps at 9 on each day. Another window does not cover that."""
    step_s = 600.0
    hour = (np.arange(7 * 24 * 6) * step_s + START_S) / 3600 % 24
    demand = np.where((hour >= 9) & (hour < 17), 2.6, 0.4)[:, None]
    load = load_of(demand, np.full_like(demand, 3.0), step_s=step_s)
    found = []
    other = WINDOW | {"from": "0 1 * * *", "until": "0 2 * * *"}
    for windows in ((), (WINDOW,), (other,), (other,) * MAX_PREWARM):
        with_today = with_windows(load, [policy(*windows)], np.full(1, 120.0))
        half = Half(with_today, profiles_of(1), hours_of(with_today, ZoneInfo("UTC")), [policy(*windows)])
        found += missing_windows(half)
    assert [window and window.cron[0] for window in found] == ["0 9 * * *", None, "0 9 * * *", None]
