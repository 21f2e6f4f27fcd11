"""How many replicas should find their weights."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.chain import Cause
from autoscaler.core.model.forecast import BIN_S, BINS, Forecast
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from autoscaler.core.wishes.wants import (
    AHEAD_S,
    BUCKET_S,
    BUCKETS,
    Peaks,
    add_expected,
    expected_replicas,
    needed_replicas,
    peak_of_copies,
)
from tests.core.chain.clusters import windows
from tests.core.world import fleet, no_schedule, quotas, spec, world

IDS = np.array([3, 7])


def test_peak_is_remembered_for_three_days():
    peaks = Peaks.none().update(IDS, np.array([8.0, 1.0]), 0.0)
    peaks = peaks.update(IDS, np.array([2.0, 1.0]), (BUCKETS - 1) * BUCKET_S)
    assert peaks.spare(np.array([2.0, 1.0])).tolist() == [8.0, 1.0]
    peaks = peaks.update(IDS, np.array([2.0, 1.0]), BUCKETS * BUCKET_S)
    assert peaks.spare(np.array([2.0, 1.0])).tolist() == [1.0, 1.0]


def test_workloads_keep_their_peaks_when_rows_move():
    peaks = Peaks.none().update(IDS, np.array([8.0, 4.0]), 0.0).update(np.array([7, 9]), np.array([1.0, 1.0]), 1.0)
    assert peaks.spare(np.array([1.0, 1.0])).tolist() == [4.0, 1.0]


@given(st.integers(0, 1000))
def test_peak_of_former_copies_wants_no_more_of_them(copies: int):
    peak = peak_of_copies(np.array([float(copies)]))
    assert copies - 1 <= (Peaks.none().update(IDS[:1], peak, 0.0).spare(np.zeros(1)))[0] <= copies


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1e6)), max_size=20))
def test_needed_and_spare_cover_the_peak_at_any_load(seen: list[tuple[float, float]]):
    peaks, wall_s = Peaks.none(), 0.0
    for replicas, pass_s in seen:
        wall_s += pass_s
        needed = np.array([replicas])
        peaks = peaks.update(IDS[:1], needed, wall_s)
        assert (peaks.spare(needed) + needed >= peaks.replicas.max(axis=0) - 1e-9).all()


def at(now_s: float, forecast: Forecast, **columns: float) -> tuple[TickInput, Decision]:
    """Return a tick of one replica under a forecast."""
    inp = world(now_s, fleet([1]), spec(1, **{"concurrency": np.nan} | columns), no_schedule(1))
    decision, _ = tick(inp, Memory.empty())
    return inp, replace(decision, plan=replace(decision.plan, forecast=forecast))


def test_weights_are_wanted_from_an_hour_before_a_rise():
    replicas = np.array([1.0] * 6 + [5.0, 1.0, 1.0])[:, None]
    forecast = Forecast(replicas, np.zeros((BINS, 1), dtype=bool), np.zeros(1))
    due_s, end_s = 5 * BIN_S, 7 * BIN_S
    for now_s, expected in ((due_s - AHEAD_S - 1, 1), (due_s - AHEAD_S, 5), (end_s - 1, 5), (end_s, 1)):
        inp, decision = at(now_s, forecast)
        assert expected_replicas(inp, decision)[0] == expected
        assert needed_replicas(inp, decision)[0] == 1  # nothing else wants more, and no peak is remembered
    assert expected_replicas(*at(due_s, forecast, max_replicas=3.0))[0] == 3
    assert expected_replicas(*at(due_s, forecast, concurrency=8.0))[0] == 0
    assert expected_replicas(*at(due_s, Forecast.blank(1)))[0] == 0


def test_weights_are_wanted_at_their_link_when_they_take_longer():
    inp, decision = at(0.0, Forecast.blank(1))
    link_s = np.array([[np.nan], [AHEAD_S - 10], [np.nan]])
    chain = replace(decision.chain, starts_s=link_s, replicas=np.array([4.0]), cause=np.array([Cause.WEEK_AGO]))
    later = replace(decision, chain=chain)
    assert (expected_replicas(inp, later)[0], needed_replicas(inp, later)[0]) == (4, 1)
    window = replace(decision, chain=replace(chain, cause=np.array([Cause.WINDOW])))
    assert (expected_replicas(inp, window)[0], needed_replicas(inp, window)[0]) == (0, 4)


def test_weights_are_wanted_for_what_quotas_allow():
    """Four windows of one tenant, and a forecast of another that may use one GPU more."""
    seen = fleet([1, 1, 1, 1, 1], quotas=(quotas([0, 0, 0, 0, 1], [6, 2]),))
    schedule = windows(*[[(60.0, 100)]] * 4, [])
    inp = world(0.0, seen, spec(5, max_replicas=200.0, priority=[0, 0, 0, 9, 0], concurrency=np.nan), schedule)
    decision, _ = tick(inp, Memory.empty())
    needed = needed_replicas(inp, decision)
    assert needed.tolist() == [1, 1, 1, 3, 1]
    replicas = np.tile([9.0, 0.0, 0.0, 0.0, 9.0], (BINS, 1))
    forecast = Forecast(replicas, np.zeros((BINS, 5), dtype=bool), np.zeros(5))
    later = replace(decision, plan=replace(decision.plan, forecast=forecast))
    assert add_expected(inp, later, needed).tolist() == [1, 1, 1, 3, 2]
    free = replace(inp, fleet=replace(seen, quotas=()))
    assert needed_replicas(free, decision).tolist() == [100, 100, 100, 100, 1]
