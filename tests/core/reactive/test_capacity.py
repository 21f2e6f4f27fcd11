"""The capacity of one replica: stated, assumed, or learned from busy replicas."""

import math

import numpy as np
import pytest

from autoscaler.core.reactive.capacity import CONFIDENT_AFTER_S, LEARNING_WINDOW_S, PRIOR_CONCURRENCY
from tests.core.recordings import replay
from tests.core.world import Story, fleet, intervals, spec

pytestmark = pytest.mark.slow

NAN = math.nan


class Engine:
    """One workload of equal pods that write tokens; steps a story and shows what was learned."""

    def __init__(self, pods=1, **rules):
        self.story, self.cluster = Story(spec(**{"concurrency": NAN, **rules})), fleet([pods])
        self.tokens = 0.0

    def run(self, for_s, running, waiting=0.0, tokens_per_s=500.0, **columns):
        for interval_s in intervals(for_s):
            self.tokens += tokens_per_s * interval_s
            counters = {"generation_tokens": self.tokens, "finished": self.tokens / 100}
            readings = {"running": running, "waiting": waiting, **counters, **columns}
            decision = self.story.tick(self.cluster, interval_s, **readings)
        return {name: column[0] for name, column in vars(decision.capacity).items()}


def test_what_the_policy_states_is_certain():
    known = Engine(concurrency=12.0, prefill_tokens_per_s=5e3, decode_tokens_per_s=1e3).run(5, running=3)
    assert known == {"concurrency": 12, "prefill_tokens_per_s": 5e3, "decode_tokens_per_s": 1e3, "confidence": 1}


def test_capacity_is_an_uncertain_prior_before_any_reading():
    known = Engine().run(60, running=3)
    assert known["concurrency"] == PRIOR_CONCURRENCY
    assert known["confidence"] == 0
    assert math.isnan(known["decode_tokens_per_s"])


def test_slots_that_are_known_bound_what_is_assumed():
    assert Engine().run(5, running=3, max_running=8.0)["concurrency"] == 8


def test_capacity_grows_when_more_requests_run_within_objective():
    assert Engine().run(5, running=48, itl_s=0.05)["concurrency"] == 48


def test_with_requests_waiting_what_runs_is_what_fits():
    engine = Engine()
    engine.run(30, running=40)
    known = engine.run(120, running=4, waiting=30)
    assert known["concurrency"] == pytest.approx(4, abs=2)
    assert known["confidence"] == pytest.approx(1 - math.exp(-120 / CONFIDENT_AFTER_S), abs=0.05)
    known = engine.run(300, running=4, waiting=30)
    assert known["concurrency"] == pytest.approx(4, abs=0.1)
    assert known["confidence"] > 0.7


def test_one_unlucky_reading_does_not_decide():
    """A burst that arrived this instant waits beside the two that ran: it is admitted at the next step."""
    engine = Engine()
    engine.run(60, running=2)
    assert engine.run(5, running=2, waiting=20)["concurrency"] > PRIOR_CONCURRENCY / 2


def test_the_recorded_server_is_learned_to_have_four_slots():
    """Finding 12: with a full queue `running` reads 3 of 4 for one scrape now and then."""
    learned = [d.capacity.concurrency[0] for t, d in replay("load", spec(concurrency=NAN)) if 65 < t < 75]
    assert all(3.8 < slots < 5 for slots in learned)


def test_where_the_cache_binds_the_batch_that_fits_is_learned():
    """Finding 5: 16 slots, of which the cache lets 3 to 6 be used."""
    learned = [d.capacity.concurrency[0] for t, d in replay("kv-bound", spec(concurrency=NAN)) if 45 < t < 50]
    assert all(3 < slots <= 6 for slots in learned)


def test_nothing_is_learned_when_a_queue_waits_for_prompts():
    """Two wait, five are served each second: gone in less than half a second."""
    engine = Engine()
    engine.run(60, running=10)
    assert engine.run(300, running=10, waiting=2)["concurrency"] == PRIOR_CONCURRENCY


def test_capacity_shrinks_in_proportion_when_gaps_are_too_long():
    known = Engine(itl_objective_s=0.1).run(600, running=30, itl_s=0.15)
    assert known["concurrency"] == pytest.approx(20, rel=0.05)


def test_capacity_stays_when_a_slow_batch_is_over():
    """The ITL quantile speaks of the large batch for as long as its histogram reaches back."""
    engine = Engine(itl_objective_s=0.1)
    engine.run(120, running=30, itl_s=0.08)
    before = engine.run(30, running=40, itl_s=0.12)["concurrency"]
    after = engine.run(120, running=2, itl_s=0.12)["concurrency"]
    assert after == before > 25


def test_an_objective_that_is_not_stated_makes_nothing_slow():
    assert Engine(itl_objective_s=NAN).run(60, running=40, itl_s=9.0)["concurrency"] == 40


def test_token_rate_is_trusted_after_minutes_of_full_replicas():
    engine = Engine(pods=2)
    engine.run(60, running=4, waiting=30)
    assert math.isnan(engine.run(60, running=4, waiting=30)["decode_tokens_per_s"])
    known = engine.run(CONFIDENT_AFTER_S, running=4, waiting=30)
    assert known["decode_tokens_per_s"] == pytest.approx(500, rel=0.01)  # of each of the two


def test_a_best_rate_is_taken_at_once_and_given_up_slowly():
    engine = Engine()
    engine.run(CONFIDENT_AFTER_S + 60, running=4, waiting=30)
    assert engine.run(300, running=4, waiting=30, tokens_per_s=800)["decode_tokens_per_s"] == pytest.approx(
        800, rel=0.01
    )
    slower = engine.run(LEARNING_WINDOW_S, running=4, waiting=30, tokens_per_s=500)["decode_tokens_per_s"]
    assert 550 < slower < 750


def test_an_engine_that_hangs_teaches_no_token_rate():
    engine = Engine()
    before = engine.run(CONFIDENT_AFTER_S + 60, running=4, waiting=30)["decode_tokens_per_s"]
    after = engine.run(1200, running=4, waiting=30, tokens_per_s=0.0)["decode_tokens_per_s"]
    assert after > 0.5 * before


def test_sleeping_engines_teach_nothing():
    engine = Engine()
    known = engine.run(600, running=0, waiting=0, asleep=1.0, held=6.0, tokens_per_s=0.0)
    assert (known["concurrency"], known["confidence"]) == (PRIOR_CONCURRENCY, 0)


def test_silence_teaches_nothing():
    engine = Engine()
    known = engine.run(600, running=4, waiting=30, time_s=NAN)
    assert (known["concurrency"], known["confidence"]) == (PRIOR_CONCURRENCY, 0)


@pytest.mark.parametrize("slots", [np.inf, -5.0, NAN])
def test_absurd_slot_counts_bound_nothing(slots):
    assert Engine().run(5, running=48, max_running=slots)["concurrency"] == 48


@pytest.mark.parametrize(
    ("reported", "stated", "slots"), [(NAN, 8.0, 8), (16.0, 8.0, 16), (NAN, NAN, PRIOR_CONCURRENCY)]
)
def test_stated_slots_count_when_the_engine_reports_none(reported, stated, slots):
    engine = Engine()
    engine.cluster = fleet([1], pod_slots=np.array([stated]))
    assert engine.run(5, running=3, max_running=reported)["concurrency"] == slots


def test_stated_slots_bound_nothing_when_a_pod_runs_more():
    engine = Engine()
    engine.cluster = fleet([1], pod_slots=np.array([8.0]))
    assert engine.run(5, running=48)["concurrency"] == 48


def test_learned_capacity_is_between_one_request_and_the_slots():
    assert Engine(itl_objective_s=0.001).run(1200, running=3, itl_s=5.0)["concurrency"] == 1
    assert Engine().run(60, running=48, max_running=40.0)["concurrency"] == 40


class Uneven:
    """Two pods of one workload; the first is full, and the second has hardly anything to do."""

    def __init__(self, **rules):
        self.story, self.cluster = Story(spec(**{"concurrency": NAN, **rules})), fleet([2])
        self.tokens = np.zeros(2)

    def run(self, for_s, **columns):
        for interval_s in intervals(for_s):
            self.tokens += np.array([320.0, 80.0]) * interval_s
            counters = {
                "generation_tokens": self.tokens,
                "finished": self.tokens / 100,
                "first_tokens": self.tokens / 100,
            }
            decision = self.story.tick(self.cluster, interval_s, **counters, **columns)
        return {name: column[0] for name, column in vars(decision.capacity).items()}


def test_only_a_full_pod_teaches_how_many_fill_one():
    known = Uneven().run(600, running=np.array([8.0, 2.0]), waiting=np.array([30.0, 0.0]))
    assert known["concurrency"] == pytest.approx(8, rel=0.01)
    assert known["confidence"] > 0.8
    assert known["decode_tokens_per_s"] == pytest.approx(320, rel=0.01)


def test_a_full_pod_teaches_when_many_idle_ones_stand_beside_it():
    """Three wait in all: fewer than there are pods, and all of them in the one that is full."""
    known = Uneven().run(600, running=np.array([8.0, 0.0]), waiting=np.array([20.0, 0.0]))
    assert known["concurrency"] == pytest.approx(8, rel=0.01)


def test_a_slow_batch_is_that_of_the_pod_that_writes():
    """Gaps are those of the pod that runs 40; an idle one beside it has no part in them."""
    known = Uneven(itl_objective_s=0.1).run(900, running=np.array([40.0, 10.0]), itl_s=np.array([0.15, 0.05]))
    assert known["concurrency"] > 24
