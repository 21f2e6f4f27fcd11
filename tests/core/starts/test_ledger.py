"""The ledger of phases: quantiles from few starts, shared between cells, robust, and the same after a restart."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.model.phases import PHASES, Phase
from autoscaler.core.model.weights import PodCache
from autoscaler.core.starts.ledger import ENTRIES, Ledger, select, split
from autoscaler.core.starts.start_prior import SLOTS, WEIGHTS_ABSENT, WEIGHTS_HELD, Prior, expect
from tests.core.world import fleet

ROW = np.array([0])


def prior_of(**phases_s: float) -> Prior:
    slots_s = np.full((SLOTS, 1), 10.0)
    for name, seconds in phases_s.items():
        slots_s[Phase[name]] = seconds
    slots_s[WEIGHTS_ABSENT], slots_s[WEIGHTS_HELD] = 100.0, 10.0
    return Prior(slots_s, np.zeros(1), np.array([60.0]))


PRIOR = prior_of()
ELSEWHERE, HERE = np.zeros(1), np.array([7.0])


def phases(**seconds: float) -> np.ndarray:
    """Return the phases of one start; those not named took 1 s, and its node existed before."""
    took_s = np.ones((PHASES, 1))
    took_s[Phase.NODE] = np.nan
    for name, value in seconds.items():
        took_s[Phase[name]] = value
    return took_s


def add(ledger: Ledger, cache: PodCache = PodCache.UNKNOWN, group: float = 0.0, loader: float = 0.0, **seconds: float):
    """Add a start, with the prior for its own cell."""
    weights_prior_s = {PodCache.UNKNOWN: 10.0, PodCache.ABSENT: 100.0, PodCache.HELD: 10.0}[cache]
    of_start = np.array([[float(cache)], [weights_prior_s], [loader], [group], [np.nan]])
    return ledger.add(ROW, phases(**seconds), of_start)


def quantiles(ledger: Ledger, phase: Phase, cache: PodCache = PodCache.UNKNOWN, group=ELSEWHERE, new_node=False):
    """Return the median and the 90th percentile of a phase in a cell."""
    expected = ledger.expect(PRIOR, group).expected
    of_cell = np.array([int(cache)]), np.array([new_node])
    return tuple(float(select(each, ROW, *of_cell)[phase, 0]) for each in (expected.p50_s, expected.p90_s))


def test_prior_is_expected_before_any_start():
    median, most = quantiles(Ledger.blank(1), Phase.ENGINE)
    assert median == pytest.approx(10.0)
    assert 14 < most <= 17


def test_one_start_tells_most_of_what_there_is_to_know():
    median, most = quantiles(add(Ledger.blank(1), ENGINE=40.0), Phase.ENGINE)
    assert 25 < median < 40 <= most < 50


def test_even_starts_narrow_the_quantiles_to_their_length():
    ledger = Ledger.blank(1)
    for _ in range(ENTRIES):
        ledger = add(ledger, ENGINE=40.0)
    median, most = quantiles(ledger, Phase.ENGINE)
    assert median == pytest.approx(40.0, rel=0.02)
    assert 40 <= most < 48


@pytest.mark.slow
def test_ninety_percent_of_starts_are_within_the_90th_percentile():
    rng, within = np.random.default_rng(1), []
    ledger = Ledger.blank(1)
    for number in range(400):
        took_s = 60 * np.exp(rng.normal(0, 0.25))
        if number > 5:
            within.append(took_s <= quantiles(ledger, Phase.ENGINE)[1])
        ledger = add(ledger, ENGINE=took_s)
    assert 0.84 <= np.mean(within) <= 0.96


def test_new_starts_replace_old_ones():
    ledger = Ledger.blank(1)
    for took_s in [200.0] * ENTRIES + [20.0] * 8:
        ledger = add(ledger, ENGINE=took_s)
    assert quantiles(ledger, Phase.ENGINE)[0] < 40


def test_cached_weights_and_fetched_weights_are_told_apart():
    ledger = Ledger.blank(1)
    for _ in range(4):
        ledger = add(ledger, PodCache.HELD, WEIGHTS=8.0)
        ledger = add(ledger, PodCache.ABSENT, WEIGHTS=240.0)
    assert quantiles(ledger, Phase.WEIGHTS, PodCache.HELD)[1] < 30
    assert quantiles(ledger, Phase.WEIGHTS, PodCache.ABSENT)[0] > 150


def test_cell_without_starts_learns_from_the_ratio_of_others():
    """Fetched weights took twice what the prior said, so weights from the node's disk do so as well, to a part."""
    ledger = Ledger.blank(1)
    for _ in range(ENTRIES):
        ledger = add(ledger, PodCache.ABSENT, WEIGHTS=200.0)
    median, _ = quantiles(ledger, Phase.WEIGHTS, PodCache.HELD)
    assert 11 < median < 20


def test_node_groups_are_told_apart():
    ledger = Ledger.blank(1)
    for _ in range(6):
        ledger = add(ledger, group=float(HERE[0]), ENGINE=20.0)
        ledger = add(ledger, group=9.0, ENGINE=80.0)
    assert quantiles(ledger, Phase.ENGINE, group=HERE)[0] < 35
    assert quantiles(ledger, Phase.ENGINE, group=np.array([9.0]))[0] > 45


def test_a_new_loader_does_not_wait_for_old_starts_to_fade():
    ledger = Ledger.blank(1)
    for _ in range(ENTRIES):
        ledger = add(ledger, loader=5.0, WEIGHTS=120.0)
    for _ in range(3):
        ledger = add(ledger, loader=0.0, WEIGHTS=12.0)
    assert quantiles(ledger, Phase.WEIGHTS)[0] < 20


def test_images_are_pulled_on_new_nodes_only():
    ledger = Ledger.blank(1)
    for _ in range(6):
        ledger = add(ledger, NODE=110.0, IMAGE=90.0)
        ledger = add(ledger, IMAGE=0.0)
    assert quantiles(ledger, Phase.IMAGE, new_node=True)[0] > 70
    assert quantiles(ledger, Phase.IMAGE)[1] < 15
    assert quantiles(ledger, Phase.NODE) == (0.0, 0.0)


def test_first_token_belongs_to_the_newest_start():
    ledger = add(add(Ledger.blank(1)), FIRST_TOKEN=np.nan).set_first_token(ROW, np.array([3.0]))
    assert ledger.set_first_token(ROW, np.array([9.0])) is ledger
    assert ledger.took_s[Phase.FIRST_TOKEN, :2, 0].tolist() == [3.0, 1.0]


def test_quantiles_are_computed_when_something_has_changed():
    once = add(Ledger.blank(1)).expect(PRIOR, ELSEWHERE)
    assert once.expect(PRIOR, ELSEWHERE) is once
    assert once.expect(PRIOR, HERE) is not once
    assert once.expect(prior_of(ENGINE=99.0), ELSEWHERE) is not once


def test_each_workload_has_starts_of_its_own():
    ledger = Ledger.blank(3)
    ledger = ledger.add(np.array([1]), phases(ENGINE=50.0), np.ones((5, 1)))
    assert ledger.starts.tolist() == [0, 1, 0]
    assert ledger.take(np.array([1])).took_s[Phase.ENGINE, 0, 0] == 50


positive = st.floats(0.1, 5000)


@given(
    total=st.floats(0, 7200),
    medians=st.lists(positive, min_size=3, max_size=3),
    wide=st.lists(positive, min_size=3, max_size=3),
)
def test_parts_of_a_time_add_up_to_it(total, medians, wide):
    p50_s = np.array(medians)[:, None]
    parts_s = split(np.array([total]), p50_s, p50_s + np.array(wide)[:, None])
    assert (parts_s >= 0).all()
    assert parts_s.sum() == pytest.approx(total, abs=1e-6)


def test_difference_goes_to_the_phase_that_varies():
    parts_s = split(np.array([60.0]), np.array([[10.0], [30.0]]), np.array([[12.0], [70.0]]))
    assert parts_s[:, 0] == pytest.approx([10.05, 49.95], abs=0.01)


@given(st.lists(st.tuples(st.sampled_from(PodCache), positive), max_size=ENTRIES))
def test_quantiles_ascend_and_stay_near_what_was_seen(starts):
    ledger, seen = Ledger.blank(1), [10.0]
    for cache, took_s in starts:
        ledger = add(ledger, cache, ENGINE=took_s)
        seen.append(took_s)
    median, most = quantiles(ledger, Phase.ENGINE)
    assert min(seen) / 2 <= median <= most <= max(seen) * 2


def test_prior_is_bytes_over_bandwidth_scaled_to_the_start():
    cluster = fleet([0, 0])
    fast = cluster.workloads[0]._replace(loader="instanttensor")
    prior = expect(replace(cluster, workloads=(fast, cluster.workloads[1])), np.array([300.0, 300.0]))
    held_s, absent_s = prior.slots_s[WEIGHTS_HELD], prior.slots_s[WEIGHTS_ABSENT]
    assert held_s[0] < held_s[1] / 4
    assert (held_s < absent_s).all()
    until_ready = [Phase.SCHEDULE, Phase.CONTAINER, Phase.WEIGHTS, Phase.ENGINE, Phase.READY]
    parts_s = prior.slots_s[until_ready, 1]
    assert 290 < parts_s.sum() + np.sqrt(((np.exp(0.5) - 1) ** 2 * parts_s**2).sum()) <= 300


@pytest.mark.parametrize("stated_s", [np.nan, 0.0])
def test_prior_without_a_stated_start_is_known_all_the_same(stated_s):
    assert np.isfinite(expect(fleet([0]), np.array([stated_s])).slots_s).all()
