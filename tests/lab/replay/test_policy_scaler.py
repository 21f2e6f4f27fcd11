"""The shipped policy in replay runs, with other limits than computing."""

import dataclasses
from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pytest

from autoscaler.config.policy.parse import load
from autoscaler.config.policy.schema import Policy, Prewarm
from autoscaler.core.model.weights import PodCache
from autoscaler.lab.compare.experiment import goal_from_policy, with_start_replicas
from autoscaler.lab.replay.case import Case, Trace, View
from autoscaler.lab.replay.policy_scaler import PolicyBatchScaler, PolicyScaler
from autoscaler.lab.replay.run import run, run_fleet
from autoscaler.lab.replay.score import compute_score
from autoscaler.sim.engine.profiles import find_profile
from autoscaler.sim.engine.traffic import Lengths, Shape
from tests.lab.replay import synthetic
from tests.lab.replay.synthetic import generate


@pytest.mark.slow
def test_few_slots_with_short_gaps_meet_the_goal() -> None:
    """Requests queue for slots while gaps stay short: the replica is full, not idle."""
    replica_spec = find_profile("8b-h100")
    few = dataclasses.replace(replica_spec.profile, max_num_seqs=24)
    rng = np.random.default_rng(1)
    quiet, rush = np.sort(rng.uniform(0, 2700, 810)), np.sort(rng.uniform(2700, 5400, 32_400))
    arrival_s = np.concatenate([quiet, rush])
    prompts, outputs = (np.clip(rng.lognormal(np.log(300), s, len(arrival_s)), 4, 1500).astype(int) for s in (0.8, 0.6))
    trace = Trace("few-slots", arrival_s, prompts, outputs, 5400.0)
    policy = load().policies["interactive"]
    case = with_start_replicas(
        Case(trace, few, goal_from_policy(policy), cold_start_s=60.0, gpus_per_replica=replica_spec.gpus)
    )
    assert compute_score(case, run(case, PolicyScaler(case, policy))).attainment > 0.9


@pytest.mark.slow
def test_a_surge_orders_what_clears_its_queue_and_no_more() -> None:
    """A quiet replica gets more than it can serve. Its batch is full then, which does not say how high the load is.

    Two replicas serve the load, and two more clear what has queued in a cold start within another one.
    """
    case = synthetic.case_of(synthetic.poisson([0.3, 0.3, 30.0, 30.0, 30.0], 600.0, seed=1), cold_start_s=240.0)
    result = run(case, PolicyScaler(case, load().policies["interactive"]))
    assert 3 <= result.timeline[:, 1].max() <= 8


class EveryTick(PolicyScaler):
    """Skips no tick."""

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        self._observed = None
        return super().decide_all(views)


class Counting(PolicyScaler):
    """Counts its ticks."""

    def __init__(self, case: Case, policy: Policy) -> None:
        super().__init__(case, policy)
        self.ticked_s: list[float] = []

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        before, counts = self.tick_input, super().decide_all(views)
        if self.tick_input is not before:
            self.ticked_s.append(views[0].now_s)
        return counts


@pytest.mark.slow
@pytest.mark.parametrize("cold_start_s", [pytest.param(60.0, marks=pytest.mark.long), 240.0])
def test_skipped_ticks_change_decisions_little(cold_start_s: float) -> None:
    """With a scrape every 15 s, two of three ticks are skipped, but none while replicas start.

    A turn of the planner then waits for the next scrape, so it may see another part of a surge.
    """
    rates = [4.0, 4.0, 30.0, 60.0, 30.0, 4.0, 4.0, 4.0]
    case = synthetic.case_of(synthetic.poisson(rates, 300.0, seed=5), cold_start_s=cold_start_s, start_replicas=2)
    policy, every = load().policies["interactive"], 5.0
    counting = Counting(case, policy)
    few, all_of_them = run(case, counting), run(case, EveryTick(case, policy))
    assert few.change_to[-1] == all_of_them.change_to[-1] == 4
    assert abs(few.change_to.max() - all_of_them.change_to.max()) <= 1
    assert all(case.goal.is_met_by(compute_score(case, each).attainment) for each in (few, all_of_them))
    whole = case.trace.duration_s / every
    assert whole / 3 <= len(counting.ticked_s) < 0.7 * whole
    assert few.replica_s == pytest.approx(all_of_them.replica_s, rel=0.15)
    asked_s = few.change_s[np.argmax(np.diff(few.change_to) > 0) + 1]
    starting_s = np.arange(asked_s + every, asked_s + 0.5 * cold_start_s, every)
    assert np.isin(starting_s, counting.ticked_s).all()


@pytest.mark.parametrize(
    ("begin", "changed", "opens_s"),
    [
        ("2026-06-01T08:55+00:00", {}, 300),
        ("2026-06-01T08:50+00:00", {"lead": "5m"}, 300),
        ("2026-06-01T08:55+00:00", {"lead": "auto"}, 240),  # a cold start
        ("2026-06-01T08:55+02:00", {"timezone": "Europe/Berlin"}, 300),
        ("2026-10-25T08:55+01:00", {"timezone": "Europe/Berlin"}, 300),  # the clocks went back in this night
        (None, {"from": "5 0 * * mon"}, 300),  # a trace without a date
        (None, {"from": "5 0 * * tue"}, None),
    ],
)
def test_window_opens_at_its_time_of_the_trace(begin: str | None, changed: dict[str, str], opens_s: float | None):
    window = {"from": "0 9 * * *", "until": "0 17 * * *", "replicas": 4, "lead": "0s"} | changed
    policy = load().policies["interactive"]
    policy = policy.model_copy(
        update={"spec": policy.spec.model_copy(update={"prewarm": (Prewarm.model_validate(window),)})}
    )
    trace = synthetic.trace(np.arange(0.0, 420.0, 60.0), prompt=100, output=10, duration_s=420.0)
    if begin is not None:
        trace = dataclasses.replace(trace, start_s=datetime.fromisoformat(begin).timestamp())
    case = synthetic.case_of(trace)
    result = run(case, PolicyScaler(case, policy))
    opened_s = result.change_s[result.change_to >= 4]
    assert opened_s[:1].tolist() == ([] if opens_s is None else pytest.approx([opens_s], abs=30))


class Expecting(PolicyScaler):
    """Remembers the start that the next replica would have, by the cache state of its node."""

    def __init__(self, case: Case, policy: Policy) -> None:
        super().__init__(case, policy)
        self.expected: dict[PodCache, list[float]] = {}

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        counts = super().decide_all(views)
        assert self.decision is not None
        starts = self.decision.starts
        if not starts.new_node[0] and starts.seen[0] >= 3:
            state = PodCache(int(starts.cache[0]))
            self.expected.setdefault(state, []).append(float(self.decision.observation.cold_start_s[0]))
        return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "state", "least_s", "most_s"),
    [
        pytest.param(1.0, PodCache.HELD, 58.0, 72.0, marks=pytest.mark.long),
        (0.0, PodCache.ABSENT, 73.0, 100.0),
    ],
)
def test_tick_expects_the_start_of_the_node_that_is_next(
    share: float, state: PodCache, least_s: float, most_s: float
) -> None:
    """It takes 60 s with the weights, and 77 s if 140 GB have to be fetched."""
    policy = load().policies["interactive"]
    waves = synthetic.poisson([2.0, 60.0] * 6, 600.0)
    profile = dataclasses.replace(synthetic.llama(), weight_bytes=140e9)
    case = synthetic.case_of(waves, goal=goal_from_policy(policy), weights_on=share, cold_start_uncached_s=300.0)
    scaler = Expecting(dataclasses.replace(case, profile=profile), policy)
    run(case, scaler)
    assert scaler.expected.keys() == {state}
    assert least_s < np.median(scaler.expected[state]) < most_s


@pytest.mark.slow
def test_runs_that_share_ticks_do_not_affect_each_other() -> None:
    policy = load().policies["interactive"]
    cases = [
        Case(
            generate(f"run{number}", Shape(rate, Lengths(600, 0.8, 4000), Lengths(120, 0.8, 1000)), 1200.0, number),
            find_profile("8b-h100-3g").profile,
            goal_from_policy(policy),
            cold_start_s,
            start_replicas=1,
        )
        for number, (rate, cold_start_s) in enumerate([(3.0, 60.0), (12.0, 240.0), (0.1, 30.0)])
    ]
    together = run_fleet(cases, PolicyBatchScaler(cases, [policy] * 3))
    alone = [run_fleet([case], PolicyBatchScaler([case], [policy]))[0] for case in cases]
    assert any(len(outcome.change_s) for outcome in alone)
    for one, other in zip(together, alone, strict=True):
        assert one.change_s.tolist() == other.change_s.tolist()
        assert one.change_to.tolist() == other.change_to.tolist()
        assert one.replica_s == other.replica_s
