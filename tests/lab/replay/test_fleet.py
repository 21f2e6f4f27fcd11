"""Several cases in one run, with plenty of GPUs and with too few."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.policy.parse import load
from autoscaler.config.policy.schema import Policy
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.replay.case import Case, RunOutcome, Scaler, View
from autoscaler.lab.replay.engine.gpu_pool import GpuClaim, GpuPool
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler, PolicyScaler
from autoscaler.lab.replay.run import run, run_fleet
from tests.lab.replay import synthetic
from tests.lab.replay.cases import ConstantScaler, FunctionScaler, make_case, trace_of

INTERACTIVE = load().policies["interactive"]


def assert_equal(one: RunOutcome, other: RunOutcome) -> None:
    for name in ("ttft_s", "itl_s", "e2e_s", "change_s", "change_to", "timeline"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.replica_s == other.replica_s


def fleet(**changes: object) -> list[Case]:
    """Make three models: a busy one, one with waves, and a longer one that is mostly silent."""
    traces = [
        synthetic.poisson([25.0, 25.0, 25.0], 200.0, seed=1),
        synthetic.poisson([2.0, 60.0, 2.0], 200.0, seed=2),
        synthetic.poisson([0.0, 0.2, 0.0], 220.0, seed=3, output=2000),
    ]
    return [
        replace(
            synthetic.case_of(trace, cold_start_spread=0.3, seed=seed, **changes), trace=replace(trace, name=f"m{seed}")
        )
        for seed, trace in enumerate(traces)
    ]


def with_priority(name: str, priority: int) -> Policy:
    metadata = INTERACTIVE.metadata.model_copy(update={"name": name})
    spec = INTERACTIVE.spec.model_copy(update={"priority": priority})
    return INTERACTIVE.model_copy(update={"metadata": metadata, "spec": spec})


class RecordingPool(GpuPool):
    """A pool that records the GPUs in use after every change."""

    def __init__(self, gpus: float) -> None:
        super().__init__(gpus)
        self.taken: list[float] = []

    def request(self, claim: GpuClaim, now_s: float) -> None:
        super().request(claim, now_s)
        self.taken.append(self.gpus - self.free_gpus)

    def release_gpus(self, claim: GpuClaim, now_s: float) -> None:
        super().release_gpus(claim, now_s)
        self.taken.append(self.gpus - self.free_gpus)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hpa-inflight", "knative-kpa"])
def test_cases_are_independent_with_plenty_of_gpus(name: str) -> None:
    cases = fleet(crash_every_s=360.0)
    baseline = BASELINES[name]
    params = [baseline.grid(case)[0] for case in cases]
    scalers = [baseline(case, setting) for case, setting in zip(cases, params, strict=True)]
    together = run_fleet(cases, scalers, GpuPool(1000))
    for case, setting, outcome in zip(cases, params, together, strict=True):
        assert_equal(outcome, run(case, baseline(case, setting)))
    assert sum(len(outcome.change_s) for outcome in together) > 3


@pytest.mark.slow
def test_one_tick_for_all_decides_like_one_for_each() -> None:
    cases = fleet()
    together = run_fleet(cases, PolicyFleetScaler(cases, [INTERACTIVE] * 3, gpus=1000), GpuPool(1000))
    alone = [run(case, PolicyScaler(case, INTERACTIVE)) for case in cases]
    # Strategies are evaluated a few seconds apart, which is two to five replicas after a surge.
    for one, other in zip(together, alone, strict=True):
        assert one.replica_s == pytest.approx(other.replica_s, rel=0.35)
    paid_s, paid_alone_s = (sum(outcome.replica_s for outcome in outcomes) for outcomes in (together, alone))
    assert paid_s == pytest.approx(paid_alone_s, rel=0.25)
    assert sum(len(outcome.change_s) for outcome in together) > 0


@pytest.mark.slow
@given(
    desired=st.lists(st.lists(st.integers(0, 6), min_size=8, max_size=8), min_size=2, max_size=3),
    gpus=st.sampled_from([1.0, 3.0, 4.5]),
    each=st.sampled_from([0.5, 1.0]),
    spread=st.sampled_from([0.0, 0.5]),
)
def test_gpus_in_use_never_exceed_the_pool(desired: list[list[int]], gpus: float, each: float, spread: float) -> None:
    held: list[int] = []  # replicas with GPUs, at each decision
    ends_s: list[float] = []

    class Script:
        name = "script"
        period_s = 15.0

        def decide_all(self, views: Sequence[View]) -> Sequence[int]:
            held.append(sum(int((~view.pods.unschedulable).sum()) for view in views))
            ends_s.append(views[0].now_s)
            return [counts[int(view.now_s // 30) % 8] for view, counts in zip(views, desired, strict=True)]

    trace = trace_of(np.arange(0.5, 240.0, 1.7).tolist(), 700, duration_s=240.0)
    cases = [
        make_case(trace, gpus_per_replica=each, cold_start_spread=spread, start_replicas=2, seed=seed, drain_s=20.0)
        for seed in range(len(desired))
    ]
    pool = RecordingPool(gpus)
    outcomes = run_fleet(cases, Script(), pool)
    assert max(pool.taken) <= gpus + 1e-6
    assert max(held) * each <= gpus + 1e-6
    assert sum(outcome.replica_s for outcome in outcomes) * each <= gpus * (ends_s[-1] + 15.0)


def leaver(from_s: float, until_replicas: int = 1, to_replicas: int = 0) -> FunctionScaler:
    return FunctionScaler(lambda view: until_replicas if view.now_s < from_s else to_replicas)


def test_replica_waits_for_gpus_and_starts_when_one_ends() -> None:
    seen: list[tuple[float, int, int, bool]] = []

    def wants_one(view: View) -> int:
        waits = bool(view.pods.unschedulable.any())
        seen.append((view.now_s, view.ready, view.starting, waits))
        return 1

    idle = make_case(trace_of([], duration_s=240.0))
    late = make_case(trace_of([1.0], 10, duration_s=240.0), start_replicas=0)
    outcomes = run_fleet([idle, late], [leaver(45.0), FunctionScaler(wants_one)], GpuPool(1))
    # Requested at 15 s, assigned at 45 s, serving 60 s later.
    assert outcomes[1].ttft_s.tolist() == pytest.approx([104.01])
    assert [outcome.replica_s for outcome in outcomes] == pytest.approx([45.0, 240.0 - 45.0])
    by_time = {now_s: state for now_s, *state in seen}
    assert by_time[30.0] == [0, 1, True]
    assert by_time[60.0] == [0, 1, False]
    assert by_time[105.0] == [1, 0, False]


def test_gpus_are_reassigned_once_a_draining_replica_is_empty() -> None:
    busy = make_case(trace_of([40.0], 1000, duration_s=240.0))  # ten seconds of work, until 50 s
    late = make_case(trace_of([1.0], 10, duration_s=240.0), start_replicas=0)
    outcomes = run_fleet([busy, late], [leaver(45.0), ConstantScaler(1)], GpuPool(1))
    assert outcomes[0].e2e_s.tolist() == pytest.approx([10.0])
    assert outcomes[0].replica_s == pytest.approx(50.0)
    serving_s = 1.0 + outcomes[1].ttft_s[0] - 0.01
    assert 110.0 <= serving_s <= 111.0  # terminating replicas are polled every second
    assert outcomes[1].replica_s == pytest.approx(240.0 - (serving_s - 60.0))


def test_withdrawn_replica_leaves_the_queue_and_costs_nothing() -> None:
    idle = make_case(trace_of([], duration_s=240.0))
    fickle = make_case(trace_of([], duration_s=240.0), start_replicas=0)
    outcomes = run_fleet([idle, fickle, fickle], [leaver(90.0), leaver(60.0), FunctionScaler(late_one)], GpuPool(1))
    assert [outcome.replica_s for outcome in outcomes] == pytest.approx([90.0, 0.0, 150.0])


def late_one(view: View) -> int:
    return 1 if view.now_s >= 30 else 0


def test_waiting_replicas_are_removed_first() -> None:
    counts: list[tuple[int, int]] = []

    def rule(view: View) -> int:
        counts.append((view.ready, view.starting))
        return 4 if view.now_s < 60 else 2

    run_fleet([make_case(trace_of([], duration_s=120.0))], [FunctionScaler(rule)], GpuPool(2))
    assert counts[3] == (1, 3)  # one serves, one starts, two wait
    assert counts[4] == (2, 0)


def test_initial_replicas_wait_when_gpus_are_short() -> None:
    first, second = (make_case(trace_of([1.0], 10, duration_s=240.0), start_replicas=1) for _ in range(2))
    outcomes = run_fleet([first, second], [leaver(30.0), ConstantScaler(1)], GpuPool(1))
    assert outcomes[0].ttft_s.tolist() == pytest.approx([0.01])
    assert outcomes[1].ttft_s.tolist() == pytest.approx([89.01])  # free at 30 s, a whole cold start later


@pytest.mark.slow
@pytest.mark.parametrize("favoured", [pytest.param(0, marks=pytest.mark.long), 1])
def test_ours_gives_scarce_gpus_to_the_higher_priority(favoured: int) -> None:
    trace = synthetic.poisson([200.0], 900.0, output=200)
    cases = [replace(synthetic.case_of(trace, seed=1), trace=replace(trace, name=name)) for name in ("a", "b")]
    policies = [with_priority(f"p{number}", 100 if number == favoured else 1) for number in range(2)]
    gpus = 8.0  # each could use all of them: prompts alone keep seven replicas busy
    outcomes = run_fleet(cases, PolicyFleetScaler(cases, policies, gpus), GpuPool(gpus))
    high, low = (outcomes[place].timeline[20:60, 2] for place in (favoured, 1 - favoured))
    assert high.tolist() == [7.0] * 40
    assert low.tolist() == [1.0] * 40  # its minimum
    assert np.mean(outcomes[favoured].ttft_s <= 1.0) > np.mean(outcomes[1 - favoured].ttft_s <= 1.0)


def test_node_is_fresh_once_and_phases_show_as_they_pass() -> None:
    rows: dict[float, list[tuple[bool, bool, bool]]] = {}

    def rule(view: View) -> int:
        pods = view.pods
        moments = zip(pods.scheduled_s, pods.started_s, pods.ready_s, strict=True)
        rows[view.now_s] = [tuple(not np.isnan(moment) for moment in each) for each in moments]  # type: ignore[misc]
        return 1 + (view.now_s >= 30) + (view.now_s >= 270)

    case = make_case(trace_of([1.0], 10, duration_s=400.0), start_replicas=0, cold_start_uncached_s=240.0)
    outcome = run(replace(case, profile=replace(case.profile, weight_bytes=16e9)), FunctionScaler(rule))
    # The first is requested at 15 s on a fresh node: up after 114 s, image after 184 s, serving after 240 s. The second
    # comes at 30 s to the same node and waits for it; the third finds image and weights.
    assert outcome.ttft_s.tolist() == pytest.approx([254.01])
    assert rows[120.0] == [(False, False, False)] * 2
    assert rows[135.0] == [(True, False, False)] * 2
    assert rows[210.0] == [(True, True, False)] * 2
    assert rows[270.0] == [(True, True, True)] * 2
    assert rows[285.0] == [(True, True, True)] * 2 + [(True, True, False)]
    assert rows[330.0] == [(True, True, True)] * 3


def test_ninth_replica_needs_a_second_node() -> None:
    took: list[list[float]] = []

    def rule(view: View) -> int:
        took.append((view.pods.ready_s - view.pods.created_s)[1:].tolist())
        return 10

    case = make_case(trace_of([1.0], 10, duration_s=400.0), start_replicas=1, cold_start_uncached_s=240.0)
    run(case, FunctionScaler(rule))
    assert took[-1] == pytest.approx([60.0] * 7 + [240.0] * 2)  # seven beside the first one, two on a second node


def test_finished_case_counts_nothing_more() -> None:
    short = make_case(trace_of([1.0], 10, duration_s=30.0))
    long = make_case(trace_of([1.0], 10, duration_s=300.0))
    grows = FunctionScaler(lambda view: 1 + int(view.now_s // 60))
    outcomes = run_fleet([short, long], [grows, ConstantScaler(1)])
    assert outcomes[0].change_s.tolist() == []
    assert [outcome.replica_s for outcome in outcomes] == pytest.approx([30.0, 300.0])


def test_replica_larger_than_the_pool_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gpus_per_replica is 4, a node has 2"):
        run_fleet([make_case(trace_of([1.0]), gpus_per_replica=4.0)], [ConstantScaler(1)], GpuPool(2))


def test_each_case_has_a_scaler() -> None:
    scalers: Sequence[Scaler] = [ConstantScaler(1)]
    with pytest.raises(ValueError, match="zip"):
        run_fleet([make_case(trace_of([1.0]))] * 2, scalers)
