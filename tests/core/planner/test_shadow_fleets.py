"""Cost and misses of shadow fleets."""

import numpy as np
import pytest

from autoscaler.core.measure.batch_room import compute_batch_room_s
from autoscaler.core.measure.offered_load import compute_work_s
from autoscaler.core.measure.step_time import compute_prompt_share
from autoscaler.core.planner import strategies
from autoscaler.core.planner.select import StrategyState, inherit_record, update_strategies
from autoscaler.core.planner.shadow_fleets import REAL_FLEET_S, follow_mean_load
from autoscaler.core.planner.strategies import CONSTANT_COUNTS, CONSTANTS, LADDER, UPDATE_INTERVAL_S
from autoscaler.core.readings.pod_deltas import MAX_INTERVAL_S
from tests.core.measure.counted_work import count, read
from tests.core.planner.interval_stats import NAN, make_silent_stats, make_stats, run, update
from tests.core.planner.plain_shadow_fleet import PlainShadowFleet
from tests.core.planner.planned import PEAK_STRATEGIES

pytestmark = pytest.mark.slow

HOUR = int(3600 / UPDATE_INTERVAL_S)  # updates


def misses(**columns):
    """Return the requests that each strategy misses with a sharp rise every half hour."""
    half_hour = [*[2.0] * (HOUR // 2 - 6), *[6.0] * 6]
    return run(half_hour * 6, cold_start_s=240.0, **columns).shadow.missed[:, 0]


def test_sleeping_replicas_serve_a_rise_shorter_than_a_start():
    without, asleep = misses(), misses(kept_asleep=4.0, wake_s=15.0)
    few, slow = misses(kept_asleep=1.0, wake_s=15.0), misses(kept_asleep=4.0, wake_s=240.0)
    assert (asleep <= few).all()
    assert (few <= without).all()
    assert asleep[0] < 0.85 * without[0], "of the strategy without a margin"
    assert (slow == without).all(), "a wake-up as long as a start changes nothing"


def test_neighbour_with_sleeping_replicas_changes_nothing():
    alone = run([2.0, 9.0, 2.0] * 30, kept_asleep=0.0)
    both = run([[2.0, 2.0], [9.0, 9.0], [2.0, 2.0]] * 30, kept_asleep=[0.0, 3.0], wake_s=15.0)
    assert (both.shadow.missed[:, 0] == alone.shadow.missed[:, 0]).all()


def requested_by_count(state):
    """Return the replicas that each constant count requests, by count."""
    requested = state.shadow.requested[PEAK_STRATEGIES:, 0].tolist()
    return dict(zip(CONSTANT_COUNTS, requested, strict=True))


@pytest.mark.parametrize(
    ("cold_start_s", "slots", "kept_asleep", "wake_s"),
    [
        pytest.param(30.0, 0.0, 0.0, 0.0, marks=pytest.mark.long),
        (60.0, 0.0, 0.0, 0.0),
        (120.0, 4.0, 0.0, 0.0),
        pytest.param(120.0, 0.0, 2.0, 15.0, marks=pytest.mark.long),
        (120.0, 0.0, 2.0, 45.0),
    ],
)
def test_shadow_fleets_equal_their_plain_versions(cold_start_s, slots, kept_asleep, wake_s):
    """A large initial fleet, waves, spikes, two silent intervals, and a rise that leaves queues at the end."""
    random = np.random.default_rng(7)
    updates = 300
    spikes = 8.0 * (random.random(updates) < 0.03)
    waves = 4 + 3 * np.sin(np.arange(updates) / 12) + random.uniform(0, 1, updates) + spikes
    columns = {"cold_start_s": cold_start_s, "first_token_limit_s": 1.0, "floor": 2.0, "ceiling": 12.0}
    columns |= {"kept_asleep": kept_asleep, "wake_s": wake_s}
    plain = [
        PlainShadowFleet(strategy, **columns)
        for strategy in range(0, len(strategies.STRATEGIES), 2)
        if not strategies.IS_SEASONAL[strategy]
    ]
    state, now_s, totals = StrategyState.blank(1), 1000.0, {"slots": slots or NAN}
    for number, demand in enumerate([*waves, 9.0, 10.0]):
        now_s += UPDATE_INTERVAL_S
        replicas = 24.0 if number < 4 else None
        stats = make_stats(demand, replicas=replicas, late=0.02, totals=totals, **columns)
        stats = make_silent_stats(**columns) if number in (70, 71) else stats
        state = update_strategies(state, stats, now_s)
        # Half of the answer of a request in the batch is left, and `make_stats` makes answers half of the work.
        work_s = float(compute_work_s(state.offered_load)[0])
        room_s = 0.5 * slots * work_s * float(1 - compute_prompt_share(state.speed.step_sums)[0])
        for fleet in plain:
            arrivals, serving = float(stats.totals.arrivals[0]), float(stats.replicas[0])
            fleet.update(state, arrivals, serving, room_s if room_s >= 0 else 0.0)
    assert max(fleet.missed for fleet in plain) > 2 * min(fleet.missed for fleet in plain) > 0
    assert max(fleet.backlog for fleet in plain) > 0
    for fleet in plain:
        described = strategies.STRATEGIES[fleet.strategy]
        for name in ("cost", "missed"):
            value = float(getattr(state.shadow, name)[fleet.strategy, 0])
            assert value == pytest.approx(getattr(fleet, name), rel=1e-4), (described, name)
        assert state.shadow.requested[fleet.strategy, 0] == fleet.compute_replicas(fleet.peaks[-1])
        assert state.shadow.backlog[fleet.strategy, 0] == pytest.approx(fleet.backlog, rel=1e-3, abs=1e-2)


def test_replicas_are_ready_one_cold_start_after_the_request():
    fast, slow = (run([2.0] * 300 + [8.0] * 8, cold_start_s=cold_start_s) for cold_start_s in (30.0, 240.0))
    assert (slow.shadow.missed >= 0.999 * fast.shadow.missed).all()
    assert (slow.shadow.missed > 2 * fast.shadow.missed).any()


def test_strategies_without_a_prediction_inherit_a_record():
    """In the first day there is no load of a day ago."""
    state = run([3.0, 1.0, 5.0] * 40)
    selected = int(state.strategy[0])
    assert not strategies.IS_SEASONAL[selected]
    for name in ("cost", "queue_missed", "missed", "queue_sum"):
        records = getattr(state.shadow, name)
        assert (records[strategies.IS_SEASONAL] == records[selected]).all(), name
    assert len(np.unique(state.shadow.cost)) > 5, "other strategies keep their own"


def test_records_are_inherited_by_workload():
    state = run([[3.0, 3.0], [1.0, 6.0]] * 20)
    asleep = np.zeros((len(strategies.STRATEGIES), 2), bool)
    asleep[0, 0] = asleep[2, 1] = True
    after = inherit_record(state.shadow, np.array([4, 5]), asleep)
    for name in ("cost", "queue_missed", "missed", "queue_sum"):
        before, now = getattr(state.shadow, name), getattr(after, name)
        np.testing.assert_array_equal(now[0], np.stack([before[4][..., 0], before[0][..., 1]], axis=-1))
        np.testing.assert_array_equal(now[2], np.stack([before[2][..., 0], before[5][..., 1]], axis=-1))
        np.testing.assert_array_equal(now[4:], before[4:])


def test_window_costs_every_strategy_and_serves_once_ready():
    """A surge from 0.5 to 6 replicas, for which a window has 8. Half of the time none of them is ready."""
    surge = {"ceiling": 100.0, "cold_start_s": 240.0}
    quiet = run([0.5] * HOUR, replicas=1.0, **surge)
    now_s = float(quiet.last_updated_s[0])
    alone = run([6.0] * 6, quiet, now_s, replicas=1.0, **surge)
    loading, ready = (
        run([6.0] * 6, quiet, now_s, replicas=replicas, window_floor=8.0, **surge) for replicas in (1.0, 8.0)
    )
    np.testing.assert_array_equal(loading.shadow.queue_missed, alone.shadow.queue_missed)
    assert alone.shadow.queue_missed.max() > 0 == ready.shadow.queue_missed.max()
    few = (alone.shadow.requested[:, 0] < 8) & ~strategies.IS_SEASONAL
    assert few.any()
    assert (ready.shadow.cost[few] > alone.shadow.cost[few]).all()
    assert (ready.shadow.requested == alone.shadow.requested).all(), "the schedule itself asks for them"


def test_queue_is_forgotten_and_nothing_counted_after_a_gap():
    before = run([3.0] * 50 + [60.0] * 3, replicas=6.0)
    assert before.shadow.backlog.max() > 0
    after = update(before, make_stats(3.0), MAX_INTERVAL_S + 1)
    assert after.shadow.backlog.max() == 0
    np.testing.assert_array_equal(after.shadow.cost, before.shadow.cost)
    np.testing.assert_array_equal(after.shadow.missed, before.shadow.missed)


def test_fewer_requests_are_late_when_batches_take_in_a_surge():
    """Demand exceeds the capacity for half a minute now and then. A replica runs eight requests at once."""
    surges = [2.0] * 250 + ([2.0] * 9 + [3.1]) * 12
    states = (run(surges, replicas=4.0, totals={"slots": slots}) for slots in (NAN, 8.0))
    without, within = (state.shadow.queue_missed[PEAK_STRATEGIES:, 0] for state in states)
    three = CONSTANT_COUNTS.index(3)
    assert without[three] > 0 == within[three]
    assert (within <= without).all()


def test_constant_count_stays_the_same_when_load_falls():
    """Demand of 4 replicas, then of 0.1. While demand is 4, counts below 5 request what the load needs."""
    by_day = run([4.0] * (2 * HOUR), replicas=4.0)
    assert requested_by_count(by_day) == {count: max(count, 5.0) for count in CONSTANT_COUNTS}
    by_night = run([4.0] * (2 * HOUR) + [0.1] * (3 * HOUR), replicas=4.0)
    assert requested_by_count(by_night) == {count: count for count in CONSTANT_COUNTS}


@pytest.mark.parametrize(("load", "least"), [(0.1, 2), (7.0, 2), (12.0, 6), (30.0, 15), (1000.0, 459)])
def test_constant_counts_lie_about_the_mean_load(load, least):
    counts = run([load] * 4, ceiling=1e5).shadow.counts[PEAK_STRATEGIES:, 0]
    assert counts[0] == least
    assert counts[-1] > 8 * load
    assert (np.diff(counts) <= np.maximum(1, 0.23 * counts[:-1])).all()


def test_a_new_count_has_the_record_of_the_nearest_one():
    """The mean load rises from 4 to 14 replicas, and five counts give way to larger ones."""
    state = run([4.0] * (2 * HOUR), ceiling=1000.0)
    busy = state.shadow.with_columns({"arrived": 14 / 4 * state.shadow.arrived})
    after = follow_mean_load(busy, compute_work_s(state.offered_load))
    assert after.counts[PEAK_STRATEGIES:, 0].tolist() == LADDER[5 : 5 + CONSTANTS].tolist()
    for name in ("cost", "queue_missed", "queue_sum", "missed", "backlog"):
        before, now = (getattr(each, name)[:, 0] for each in (state.shadow, after))
        np.testing.assert_array_equal(now[:PEAK_STRATEGIES], before[:PEAK_STRATEGIES])
        np.testing.assert_array_equal(now[PEAK_STRATEGIES:-5], before[PEAK_STRATEGIES + 5 :])
        if name != "cost":
            assert (now[-5:] == before[-1]).all()
    assert after.cost[-1, 0] == pytest.approx(after.counts[-1, 0] * 7200, rel=0.03), "as if it had stood all the time"
    assert follow_mean_load(after, compute_work_s(state.offered_load)) is after
    stored = busy.with_columns({"counts": np.full_like(busy.counts, 1e9)})
    assert (follow_mean_load(stored, compute_work_s(state.offered_load)).counts == after.counts)[PEAK_STRATEGIES:].all()


def test_a_large_fleet_fits_its_load_when_a_rise_is_over():
    """From 30 to 90 busy replicas, which 92 carry. No count of up to 60 would have met the rise."""
    large = {"cold_start_s": 240.0, "ceiling": 1000.0}
    quiet = run([30.0] * HOUR, replicas=30.0, **large)
    risen = run([90.0] * HOUR, quiet, float(quiet.last_updated_s[0]), replicas=90.0, late=0.05, **large)
    assert 92 <= risen.replicas[0] < 1.3 * 92


def test_strategies_are_not_charged_for_the_first_ten_minutes():
    """Demand rises from 1 to 6 replicas while the initial fleet has 10."""
    early, late = (run([1.0] * updates + [6.0] * 6, replicas=10, cold_start_s=60.0) for updates in (10, 60))
    assert early.shadow.observed_s[0] <= REAL_FLEET_S < late.shadow.observed_s[0]
    assert early.shadow.queue_missed.max() == early.shadow.backlog.max() == 0
    assert early.shadow.requested.min() == 10  # no strategy gives up the initial fleet
    assert late.shadow.queue_missed.max() > 0
    assert late.shadow.backlog.max() > 0


def test_past_requests_are_judged_by_the_present_miss_curve():
    """Half of the requests begin to miss at a load without misses so far. The hour before is judged by that, too."""
    before = run([18.75] * HOUR, replicas=25)
    after = run([18.75] * HOUR, before, float(before.last_updated_s[0]), replicas=25, late=0.5)
    of_busy = before.shadow.queue_sum[:, 0] > 0
    steepness = after.shadow.missed[of_busy, 0] / after.shadow.queue_sum[of_busy, 0]
    assert of_busy.any()
    assert (after.shadow.queue_missed[of_busy] == 0).all()
    assert steepness == pytest.approx(np.full(of_busy.sum(), steepness[0]))
    assert steepness[0] > 3 * (before.shadow.missed[of_busy, 0] / before.shadow.queue_sum[of_busy, 0]).max()


def test_columns_by_strategy_have_single_precision():
    state = run([3.0] * 100)
    for name in ("requested", "backlog", "cost", "queue_missed", "queue_sum", "missed"):
        assert getattr(state.shadow, name).dtype == np.float32, name
    assert state.history.peaks.dtype == state.history.lows.dtype == np.float32


# --- the room in batches


def test_batch_room_is_limited_by_slots_cache_and_gaps():
    """The cache fits 96 requests of 2 s. A third of each is the prompt, and half of the rest is still to come."""
    totals = count(read(100.0), read(130.0, running=24.0, kv_usage=0.25))
    work_s, third = np.array([2.0]), np.array([1 / 3])

    def room_s(slots, max_running):
        return compute_batch_room_s(totals, work_s, third, np.array([slots]), np.array([max_running]))[0]

    assert room_s(NAN, NAN) == pytest.approx(96 * 2 / 3)
    assert room_s(48.0, NAN) == pytest.approx(48 * 2 / 3)
    assert room_s(48.0, 30.0) == pytest.approx(30 * 2 / 3)
    assert room_s(48.0, -5.0) == 0  # the gaps exceed the objective even for a single request


def test_batch_room_is_zero_when_slots_and_cache_are_unknown():
    totals = count(read(100.0), read(130.0, running=24.0, kv_usage=NAN))
    room_s = compute_batch_room_s(totals, np.array([2.0]), np.array([0.3]), np.array([NAN]), np.array([50.0]))
    assert room_s[0] == 0
    for work_s, prompts in ((NAN, 0.3), (2.0, NAN)):
        room_s = compute_batch_room_s(
            totals, np.array([work_s]), np.array([prompts]), np.array([24.0]), np.array([NAN])
        )
        assert room_s[0] == 0
