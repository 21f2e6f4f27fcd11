"""How busy replicas are, and the offered load: the replicas that arriving requests keep busy."""

import numpy as np
import pytest

from autoscaler.core.measure.offered_load import compute_busy_share
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from tests.core.measure.counted_work import NAN, count, read
from tests.core.planner.interval_stats import WORK_S, make_stats, run, update

IDLE_GAP_S = np.array([0.01])
NO_SLOTS = np.array([np.nan])


def test_demand_is_arrivals_times_the_work_of_a_request():
    assert run([3.0] * 100).offered_load.demand[0] == pytest.approx(3.0, rel=0.01)


def test_prompt_tokens_are_the_demand_of_a_prefill_workload():
    """No gaps: 2 replicas are busy for half of 100 s and compute 5,000 tokens/s each, so a busy one computes 10,000."""

    def stats(tokens_per_s, busy=1.0):
        pod_s = 2 * UPDATE_INTERVAL_S
        totals = {
            **dict.fromkeys(("generating_pods", "token_rate", "queue_growth"), 0.0),
            "shortest_gap_s": NAN,
            "prompt_tokens": tokens_per_s * pod_s,
            "prompt_s": pod_s,
            "prompt_busy_s": busy * pod_s,
            "first_tokens": 60.0,
            "arrivals": 60.0,
        }
        return make_stats(1.0, replicas=2, totals=totals, prefill=True)

    state = update(run([0.0], prefill=True), stats(5000.0, busy=0.5))
    assert np.isnan(state.replicas), "not known after 30 busy seconds"
    for _ in range(40):
        state = update(state, stats(5000.0, busy=0.5))
    assert state.speed.prompt_tokens_per_s[0] == pytest.approx(10_000)
    assert state.offered_load.demand[0] == pytest.approx(1.0, rel=0.01)
    for _ in range(60):
        state = update(state, stats(8000.0, busy=0.8))
    assert state.offered_load.demand[0] == pytest.approx(1.6, rel=0.05), "longer prompts show within half an hour"


def test_working_off_a_queue_is_no_demand():
    totals = {"first_tokens": 60.0, "arrivals": 15.0, "queue_growth": -45.0}
    after = update(run([3.0] * 100), make_stats(1.0, replicas=4, busy=0.95, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx(1.0, abs=0.15)


def test_demand_is_measured_by_arrivals_when_gaps_are_too_few():
    totals = {"generating_pods": 0.0, "token_rate": 0.0, "first_tokens": 0.0}
    before = run([3.0] * 100)
    after = update(before, make_stats(1.0, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx(1.0, rel=0.01)
    assert after.offered_load.requests[0] == before.offered_load.requests[0], "what was served weighs as much as before"


def test_demand_is_scaled_to_pods_that_were_not_read():
    arrivals = 1.5 * UPDATE_INTERVAL_S / WORK_S
    totals = {"covered_s": 2 * UPDATE_INTERVAL_S, "arrivals": arrivals, "first_tokens": 0.0}
    before = run([3.0] * 100)
    after = update(before, make_stats(3.0, replicas=4, busy=0.75, totals=totals))
    assert after.offered_load.demand[0] == pytest.approx(3.0, rel=0.01)
    assert after.budget.served[0] - before.budget.served[0] == pytest.approx(45.0, rel=0.1)


def test_demand_follows_when_answers_become_longer():
    state = run([3.0] * 100)
    for _ in range(60):  # as many requests, each with twice the work
        state = update(state, make_stats(6.0, totals={"arrivals": 45.0, "first_tokens": 45.0, "ttft_counted": 0.0}))
    assert state.offered_load.demand[0] == pytest.approx(6.0, rel=0.05)


# --- how busy


def test_pod_is_two_thirds_busy_when_gaps_are_tripled():
    totals = count(read(100.0), read(130.0, gap_s=30.0, gaps=1000.0))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(2 / 3)


def test_kv_cache_in_use_adds_to_the_busy_share():
    """8 ms when idle, 20 ms now, a quarter of the cache in use: 1 - 0.4 x 0.75."""
    totals = count(read(100.0), read(130.0, gap_s=20.0, gaps=1000.0, kv_usage=0.25))
    assert compute_busy_share(totals, np.array([0.008]), NO_SLOTS)[0] == pytest.approx(0.7)
    full = count(read(100.0), read(130.0, gap_s=10.0, gaps=1000.0, kv_usage=1.0))
    assert compute_busy_share(full, IDLE_GAP_S, NO_SLOTS)[0] == 1


def test_busy_share_is_zero_when_gaps_are_below_the_idle_gap():
    totals = count(read(100.0), read(130.0, gap_s=1.0, gaps=1000.0))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == 0


def test_busy_share_is_unknown_when_gaps_are_too_few():
    totals = count(read(100.0), read(130.0, gap_s=0.5, gaps=19.0))
    assert np.isnan(compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0])
    assert totals.step_sums[0, 0] == 0


def test_busy_share_is_unknown_when_the_idle_gap_is():
    totals = count(read(100.0), read(130.0, gap_s=20.0, gaps=1000.0))
    assert np.isnan(compute_busy_share(totals, np.array([NAN]), NO_SLOTS)[0])


def test_each_pod_counts_once_whatever_it_generated():
    """One generates 900 tokens 40 ms apart, one 100 tokens 10 ms apart: three quarters busy, and not at all."""
    totals = count(read(100.0, pods=2), read(130.0, pods=2, gap_s=[36.0, 1.0], gaps=[900.0, 100.0]))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(0.75 / 2)


@pytest.mark.parametrize(
    ("gaps", "running", "waiting", "busy"),
    [
        (0.0, 0.0, 0.0, 0.75 / 2),  # idle
        (10.0, 0.0, 0.0, 0.75 / 2),  # a short answer, and idle again
        (0.0, 1.0, 0.0, 0.75),  # unknown: it has a request whose tokens are still to come
        (0.0, 0.0, 1.0, 0.75),
        (NAN, 0.0, 0.0, 0.75),  # not reported
    ],
)
def test_pod_without_tokens_is_idle_when_it_has_no_request(gaps, running, waiting, busy):
    """The other pod has gaps four times as long as an idle engine."""
    columns = {
        "gap_s": [40.0, 0.01 * gaps],
        "gaps": [1000.0, gaps],
        "running": [9.0, running],
        "waiting": [0.0, waiting],
    }
    totals = count(read(100.0, pods=2), read(130.0, pods=2, **columns))
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(busy)


def test_full_pod_does_not_make_the_other_pods_busy():
    """A surge has filled the cache, or the slots, of one pod. Three that became ready since have idle gaps."""
    columns = {"gap_s": 10.0, "gaps": 1000.0}
    by_cache = count(read(100.0, pods=4), read(130.0, pods=4, kv_usage=[1.0, 0.0, 0.0, 0.0], **columns))
    assert compute_busy_share(by_cache, IDLE_GAP_S, NO_SLOTS)[0] == pytest.approx(0.25)
    by_slots = count(read(100.0, pods=4), read(130.0, pods=4, running=[24.0, 0.0, 0.0, 0.0], **columns))
    assert compute_busy_share(by_slots, IDLE_GAP_S, np.array([24.0]))[0] == pytest.approx(0.25)


def test_pod_beyond_its_cache_and_slots_counts_as_full():
    beyond = {"kv_usage": [1.0, 0.0], "running": [1e5, 0.0], "max_running": [24.0, 24.0]}
    totals = count(read(100.0, pods=2), read(130.0, pods=2, gap_s=10.0, gaps=1000.0, **beyond))
    assert compute_busy_share(totals, IDLE_GAP_S, np.array([24.0]))[0] == pytest.approx(0.5)


def test_replica_is_busy_when_its_slots_are_full():
    totals = count(read(100.0), read(115.0, gap_s=10.0, gaps=1000.0, running=24.0))
    assert compute_busy_share(totals, IDLE_GAP_S, np.array([24.0]))[0] == 1
    assert compute_busy_share(totals, IDLE_GAP_S, np.array([48.0]))[0] == pytest.approx(0.5)
    assert compute_busy_share(totals, IDLE_GAP_S, NO_SLOTS)[0] == 0
