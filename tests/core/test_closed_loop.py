"""The tick and a small service in a closed loop: decisions settle, with the shipped policies and without flapping."""

import math
from copy import deepcopy
from itertools import groupby, product

import numpy as np
import pytest

from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import load
from autoscaler.core.model.pairs import DECODE, PREFILL
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import Decision, Signal
from tests.core.fluid_queue import SERVICE_S, FluidQueue
from tests.core.paired_engines import PairedEngines
from tests.core.world import spec

pytestmark = pytest.mark.slow

BOOK = load(())


def shipped(name: str, **changes: float) -> Spec:
    row = Spec(*(np.array([value]) for value in spec_row(BOOK.policies[name].spec)))
    return Spec(**{**vars(row), **{field: np.array([float(value)]) for field, value in changes.items()}})


def moves(counts: list[int]) -> list[int]:
    """The counts in their order, each once while it stands."""
    return [count for count, _ in groupby(counts)]


def turns(counts: list[int]) -> int:
    """How often growing turned into shrinking or back."""
    steps = np.diff(moves(counts))
    return int(np.count_nonzero(np.diff(np.sign(steps))))


def enough(per_s: float, rules: Spec, slots: int = 16) -> int:
    """Return the replicas by Little's law, at the target usage of the policy."""
    return math.ceil(per_s * SERVICE_S / (slots * rules.target_usage[0]) - 1e-6)


@pytest.mark.parametrize(
    ("name", "per_s"),
    [
        ("realtime", 1.0),
        ("interactive", 9.0),
        *(
            pytest.param(name, per_s, marks=pytest.mark.long)
            for name, per_s in product(("realtime", "interactive"), (1.0, 2.5, 4.0, 9.0))
            if (name, per_s) not in (("realtime", 1.0), ("interactive", 9.0))
        ),
    ],
)
def test_constant_load_settles_on_what_it_needs_and_stays_there(name, per_s):
    rules = shipped(name)
    service = FluidQueue(rules, replicas=1, every_s=10.0)
    service.run(lambda _: per_s, 1800)
    last_half = service.counts[len(service.counts) // 2 :]
    assert len(set(last_half)) == 1
    assert enough(per_s / (1 + rules.tolerance[0]), rules) <= last_half[0] <= enough(per_s, rules) + 1
    assert turns(service.counts) <= 1  # up, and at most once down again to what is needed
    assert max(service.waits[len(service.waits) // 2 :]) == 0


@pytest.mark.parametrize("name", [pytest.param("realtime", marks=pytest.mark.long), "interactive"])
def test_a_step_is_followed_within_two_cold_starts(name):
    rules = shipped(name, concurrency=16.0)
    service = FluidQueue(rules, replicas=enough(2.0, rules))
    service.run(lambda _: 2.0, 600)
    service.counts.clear()
    service.run(lambda _: 8.0, 1800)
    needed = enough(8.0, rules)
    reached = next(number for number, count in enumerate(service.counts) if count >= needed) * service.every_s
    assert reached <= 60
    assert max(service.counts) <= 1.5 * needed
    assert service.counts[-1] <= needed + 1
    assert turns(service.counts) <= 1
    assert max(service.waits[-240:]) == 0


@pytest.mark.long
def test_a_slow_ramp_is_followed_without_a_wait_and_only_upward():
    rules = shipped("interactive", concurrency=16.0)
    service = FluidQueue(rules, replicas=1)
    service.run(lambda t: 1 + 11 * t / 3600, 3600)
    assert moves(service.counts) == sorted(set(service.counts))
    assert service.counts[-1] == pytest.approx(enough(12.0, rules), abs=1)
    assert np.mean(np.array(service.waits) > rules.max_wait_s[0]) < 0.01


def test_a_short_burst_is_queued_and_orders_nothing():
    """35 extra within five seconds, gone long before a replica could come.

    Replicas that are ordered once the queue is gone serve the full batch that it left behind.
    """
    rules = spec(max_wait_s=5.0, concurrency=16.0, tolerance=0.1, target_usage=0.8, down_stabilization_s=300.0)
    service = FluidQueue(rules, replicas=4)
    service.run(lambda _: 9.0, 120)  # it has been full before, so that it is known what it can do
    service.run(lambda _: 3.5, 900)
    before, began = service.counts[-1], len(service.waits)
    service.run(lambda t: 11.0 if t < 5 else 3.5, 600)
    after = list(zip(service.waits[began:], service.counts[began:], strict=True))
    queued = [count for wait, count in after if wait > 0]
    assert queued
    assert set(queued) == {before}
    assert max(count for _, count in after) <= math.ceil(before / rules.target_usage[0])


def test_an_overload_that_lasts_is_no_burst():
    rules = spec(max_wait_s=5.0, concurrency=16.0, tolerance=0.1, target_usage=0.8)
    service = FluidQueue(rules, replicas=2)
    service.run(lambda _: 2.0, 600)
    service.run(lambda _: 6.0, 60)
    assert service.counts[-1] >= enough(6.0, rules)


@pytest.mark.long
def test_fleet_ends_at_the_floor_or_at_zero_when_load_ends():
    stays = FluidQueue(shipped("interactive", concurrency=16.0), replicas=4)
    stays.run(lambda t: 4.0 if t < 600 else 0.0, 3600)
    assert stays.counts[-1] == 1
    assert turns(stays.counts) == 0
    rests = FluidQueue(shipped("batch", concurrency=16.0), replicas=4, gateway=True)
    rests.run(lambda t: 4.0 if t < 600 else 0.0, 3600)
    assert rests.counts[-1] == 0
    assert turns(rests.counts) == 0


@pytest.mark.parametrize("name", ["batch", "development"])
def test_zero_is_left_at_the_next_tick_and_nobody_is_lost(name):
    service = FluidQueue(shipped(name), replicas=0, gateway=True)
    service.run(lambda _: 0.0, 300)
    service.run(lambda t: 0.2 if t < 20 else 0.0, 10)
    assert service.counts[-1] == 1
    service.run(lambda t: 0.2 if t < 20 else 0.0, 200)
    assert service.done == pytest.approx(6.0, abs=0.2)
    assert service.lost == 0


@pytest.mark.long
def test_without_a_stated_capacity_the_slots_are_found():
    service = FluidQueue(shipped("interactive"), replicas=1, slots=4)
    decision = service.run(lambda _: 2.0, 3600)
    assert decision.capacity.concurrency[0] == pytest.approx(4, abs=0.5)
    assert service.counts[-1] == pytest.approx(enough(2.0, shipped("interactive"), slots=4), abs=1)


@pytest.mark.long
def test_a_wave_is_followed_with_two_turns_a_period():
    rules = shipped("interactive", concurrency=16.0)
    service = FluidQueue(rules, replicas=4, every_s=15.0)
    service.run(lambda t: 5 + 4 * math.sin(2 * math.pi * t / 7200), 3 * 7200)
    service.counts, service.waits = service.counts[-960:], service.waits[-960:]
    assert turns(service.counts) <= 4
    assert np.mean(np.array(service.waits) > rules.max_wait_s[0]) < 0.01


def with_gaps(replicas: int) -> FluidQueue:
    """A service whose engines tell their gaps, so that a rule comes into force."""
    return FluidQueue(shipped("interactive"), replicas=replicas, every_s=15.0, idle_gap_s=0.01, full_kv_usage=0.1)


def busy(per_s: float) -> float:
    """Replicas that this many requests keep busy: their share of the slots."""
    return per_s * SERVICE_S / 16


@pytest.fixture(scope="module")
def ramped() -> tuple[FluidQueue, Decision]:
    """Ten minutes of little load, an hour in which it grows tenfold, and two in which it stays."""
    service = with_gaps(3)
    service.run(lambda _: 0.4, 600)
    return service, service.run(lambda t: min(0.4 + t / 1000, 4.0), 3 * 3600)


def test_planner_takes_over_and_settles_when_gaps_are_counted(ramped):
    service, decision = ramped
    assert decision.recommendations[Signal.PLANNER, 0] == decision.plan.replicas[0]
    assert np.isnan(decision.recommendations[Signal.CONCURRENCY, 0])
    assert decision.plan.idle_gap_s[0] == pytest.approx(0.01, rel=0.1)
    assert decision.plan.demand[0] == pytest.approx(busy(4.0), rel=0.15)
    last_hour = service.counts[-240:]
    assert turns(last_hour) <= 1  # one cheaper strategy is tried, and left when it recommends as many
    assert busy(4.0) < min(last_hour) <= max(last_hour) <= 2 * busy(4.0)
    assert max(service.waits) == 0


def test_planner_drains_a_queue_within_five_cold_starts(ramped):
    service = deepcopy(ramped[0])
    before = len(service.waits)
    decision = service.run(lambda _: 8.0, 3600)
    waits, counts = service.waits[before:], service.counts[before:]
    assert max(waits) > 1
    assert max(waits[round(5 * service.cold_start_s / service.every_s) :]) == 0
    assert decision.recommendations[Signal.PLANNER, 0] > 0
    assert decision.plan.demand[0] == pytest.approx(busy(8.0), rel=0.15)
    assert busy(8.0) < counts[-1] <= 2.5 * busy(8.0)
    assert max(counts) <= 3 * busy(8.0)
    assert decision.plan.missed_fraction[0] > 0.001


def test_replicas_are_kept_when_no_engine_was_ever_idle():
    """Half of ten are busy from the start, so the speed of an idle engine is unknown."""
    service = with_gaps(10)
    decision = service.run(lambda _: 8.0, 1800)
    assert decision.recommendations[Signal.PLANNER, 0] > 0
    assert min(service.counts) >= busy(8.0)
    assert service.counts[-1] <= 2 * busy(8.0)
    assert max(service.waits) == 0


@pytest.mark.long
def test_planner_follows_a_wave_and_few_requests_wait():
    service = with_gaps(4)
    service.run(lambda _: 0.4, 600)
    decision = service.run(lambda t: 5 - 4.6 * math.cos(2 * math.pi * t / 7200), 3 * 7200)
    assert decision.recommendations[Signal.PLANNER, 0] > 0
    counts, waits = np.array(service.counts[-960:]), np.array(service.waits[-960:])
    assert turns(counts.tolist()) <= 30  # at the edge between two counts it may give one up and take it back
    assert np.mean(waits > 1.0) < 0.01
    assert np.mean(counts) <= 2 * busy(5.0)
    assert counts.min() <= 2
    assert busy(9.6) <= counts.max() <= 2 * busy(9.6)


def test_a_stated_capacity_stands_and_no_rule_overrides_it():
    service = FluidQueue(shipped("interactive", concurrency=16.0), replicas=3, every_s=15.0, idle_gap_s=0.01)
    decision = service.run(lambda _: 4.0, 1800)
    assert np.isnan(decision.recommendations[Signal.PLANNER, 0])
    assert decision.recommendations[Signal.CONCURRENCY, 0] > 0


def paired(**changes: float) -> Spec:
    """The policy `interactive`, as it applies to both sides of a pair."""
    rows = np.array([spec_row(BOOK.policies["interactive"].spec, role=role) for role in (PREFILL, DECODE)]).T
    return Spec(**{**vars(Spec(*rows)), **{field: np.full(2, float(value)) for field, value in changes.items()}})


def test_each_side_of_a_pair_is_sized_by_its_own_work():
    """15 requests/s of 2,000 prompt tokens are 1.2 busy replicas of prefill; their answers are 0.4 of decode."""
    pair = PairedEngines(paired(), (4, 2), transfer_s=0.5)
    pair.run(lambda _: 15.0, 900)
    pair.prefilled.clear()
    decision = pair.run(lambda _: 15.0, 1500)
    assert (decision.recommendations[Signal.PLANNER] > 0).all()
    assert decision.plan.demand[0] == pytest.approx(15 * 1960 / 25_000, rel=0.25)
    assert 1 / decision.plan.prompt_token_s[0] == pytest.approx(25_000, rel=0.2)
    assert decision.plan.demand[1] < 0.6
    assert np.mean([request.ttft_s > 1.0 for request in pair.prefilled]) < 0.01
    prefill, decode = zip(*pair.counts[-60:], strict=True)
    assert 2 <= min(prefill) <= max(prefill) <= 4
    assert set(decode) <= {1, 2}


@pytest.mark.long
def test_transferred_prompts_are_no_work_of_decode():
    """Three times the prompts: the work of prefill grows as much, and that of decode stays below one busy replica.

    At 0.7 to 0.9 of a busy replica the planner may add a third one to decode for a while, and give it up again.
    """
    pair = PairedEngines(paired(), (2, 2), prompt_tokens=1000)
    pair.run(lambda _: 15.0, 1200)
    before = pair.counts[-1]
    pair.prompt_tokens = 3000
    decision = pair.run(lambda _: 15.0, 1800)
    assert pair.counts[-1][0] > before[0]
    assert pair.counts[-1][1] <= before[1] + 1
    assert decision.plan.demand[0] > 1.2
    assert decision.plan.demand[1] < 1


@pytest.mark.long
def test_a_pair_follows_a_wave_within_its_ratio():
    pair = PairedEngines(paired(min_decode_per_prefill=0.5, max_decode_per_prefill=1.0), (3, 2))
    pair.run(lambda t: 12 - 9 * math.cos(2 * math.pi * t / 3600), 3600)
    assert all(0.5 * prefill <= decode <= max(prefill, 1) for prefill, decode in pair.counts)
    assert len({prefill for prefill, _ in pair.counts}) > 1


def test_a_pair_goes_to_zero_and_returns_as_one():
    pair = PairedEngines(paired(idle_after_s=300.0, max_decode_per_prefill=2.0), (1, 1), gateway=True)
    pair.run(lambda t: 2.0 if t < 600 else 0.0, 1800)
    pair.run(lambda t: 2.0 if t < 300 else 0.0, 900)
    awake = [(prefill > 0, decode > 0) for prefill, decode in pair.counts]
    assert all(prefill == decode for prefill, decode in awake)
    assert [both for both, _ in groupby(awake)] == [(True, True), (False, False), (True, True), (False, False)]
    assert len(pair.prefilled) > 1500
    assert len(pair.done) >= len(pair.prefilled) - 5  # those that ran in a replica that was removed
