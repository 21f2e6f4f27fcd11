"""Replay runs: start times, costs, the view of a scaler, and laws of queues."""

import itertools
import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import quantile
from autoscaler.lab.baselines.signals import TTFT
from autoscaler.lab.replay.case import Goal, ReplicaRows, RunOutcome, Totals, Trace, View
from autoscaler.lab.replay.engine.front import Front
from autoscaler.lab.replay.engine.gpu_pool import GpuClaim, GpuPool, Machine
from autoscaler.lab.replay.engine.replicas import SimulatedReplica, SimulatedReplicas, removal_order
from autoscaler.lab.replay.run import run
from autoscaler.sim.engine.profiles import Profile
from autoscaler.sim.engine.traffic import Lengths, Shape
from tests.lab.replay.cases import PLAIN, ConstantScaler, FunctionScaler, make_case, trace_of
from tests.lab.replay.synthetic import generate

SHAPE = Shape(4.0, Lengths(200, 0.5, 2000), Lengths(100, 0.5, 1000))


def test_request_on_a_free_replica_takes_one_step_per_token() -> None:
    outcome = run(make_case(trace_of([5.0, 7.0], [101, 1], duration_s=20.0)), ConstantScaler(1))
    assert outcome.ttft_s.tolist() == pytest.approx([0.01, 0.01])
    assert outcome.itl_s.tolist() == pytest.approx([0.01, 0.0])
    assert outcome.e2e_s.tolist() == pytest.approx([1.01, 0.01])
    assert outcome.replica_s == pytest.approx(20.0)


def test_timeline_has_a_row_for_every_scrape() -> None:
    arrivals = [*np.linspace(80.0, 81.0, 100).tolist(), 100.0]
    outcome = run(
        make_case(trace_of(arrivals, 400, duration_s=240.0)), FunctionScaler(lambda view: 2 if view.now_s >= 120 else 1)
    )
    time_s, desired, _, running, waiting = outcome.timeline.T
    assert time_s.tolist() == [0.0, *np.arange(7.5, 240.0, 15.0).tolist(), 247.5]
    assert (running + waiting)[time_s == 82.5] == 100
    assert desired.tolist() == [1.0] * 9 + [2.0] * 9  # decided at 120 s


def test_run_continues_until_all_requests_are_served() -> None:
    outcome = run(make_case(trace_of([5.0], 2000, duration_s=6.0)), ConstantScaler(1))
    assert outcome.e2e_s[0] == pytest.approx(20.0)
    assert outcome.replica_s == pytest.approx(25.0)


def test_run_reports_the_progress_of_its_trace() -> None:
    shares: list[float] = []
    run(make_case(trace_of([5.0], 4000, duration_s=20.0)), ConstantScaler(1), shares.append)
    assert shares == sorted(shares)
    assert shares[:3] == [0.0, 0.375, 0.75]  # by its scrapes
    assert shares[-2:] == [1.0, 1.0]


def test_gateway_holds_requests_until_a_replica_serves() -> None:
    seen: list[float] = []

    def desired(view: View) -> int:
        seen.append(view.totals.gateway_waiting)
        return 1 if view.now_s >= 30 else 0

    outcome = run(make_case(trace_of([10.0, 20.0], 10, duration_s=120.0), start_replicas=0), FunctionScaler(desired))
    # Requested at 30 s, serving 60 s later: both requests begin together.
    assert outcome.ttft_s.tolist() == pytest.approx([80.01, 70.01])
    assert outcome.replica_s == pytest.approx(90.0)
    assert seen[:3] == [0.0, 2.0, 2.0]  # the first scrape after the start is at 7.5 s
    assert seen[-1] == 0.0
    assert (outcome.change_s.tolist(), outcome.change_to.tolist()) == ([30.0], [1])


def test_run_ends_when_no_replica_is_ever_requested() -> None:
    outcome = run(make_case(trace_of([10.0], 10), start_replicas=0), ConstantScaler(0))
    assert outcome.ttft_s.tolist() == outcome.itl_s.tolist() == outcome.e2e_s.tolist() == [math.inf]
    assert outcome.replica_s == 0.0


def test_new_replica_costs_at_once_and_serves_after_its_start() -> None:
    states: list[tuple[float, int, int]] = []

    def desired(view: View) -> int:
        states.append((view.now_s, view.ready, view.starting))
        if view.starting:
            assert view.starting_since_s.tolist() == [30.0]
        return 2 if view.now_s >= 30 else 1

    outcome = run(make_case(trace_of([1.0], 1, duration_s=120.0)), FunctionScaler(desired))
    assert states == [
        (15.0, 1, 0),
        (30.0, 1, 0),
        (45.0, 1, 1),
        (60.0, 1, 1),
        (75.0, 1, 1),
        (90.0, 2, 0),
        (105.0, 2, 0),
        (120.0, 2, 0),
    ]
    assert outcome.replica_s == pytest.approx(120.0 + 90.0)


def test_initial_replicas_show_the_length_of_their_start() -> None:
    """The status of a pod shows the same."""
    told: list[FloatColumn] = []

    def desired(view: View) -> int:
        told.append(view.pods.ready_s - view.pods.created_s)
        assert (view.pods.scheduled_s <= view.pods.started_s).all()
        assert (view.pods.scheduled_s - view.pods.created_s < told[0] / 2).all()  # it did not wait for a GPU
        return 300

    case = make_case(trace_of([1.0], 1, duration_s=40.0), cold_start_spread=0.5, cold_start_s=60.0, start_replicas=300)
    run(case, FunctionScaler(desired))
    assert told[0].mean() == pytest.approx(60.0, rel=0.1)
    assert np.log(told[0]).std() == pytest.approx(0.5, rel=0.15)


def test_cold_starts_vary_around_their_mean_by_seed() -> None:
    took: list[FloatColumn] = []

    def desired(view: View) -> int:
        if view.now_s > 380:
            took.append(view.pods.ready_s - view.pods.created_s)
        return 400

    case = make_case(trace_of([1.0], 1, duration_s=400.0), cold_start_spread=0.5, cold_start_s=60.0, start_replicas=0)
    for seed in (1, 1, 2):
        run(replace(case, seed=seed), FunctionScaler(desired))
    first, again, other = took[0], took[len(took) // 3], took[-1]
    assert first.mean() == pytest.approx(60.0, rel=0.1)
    assert np.log(first).std() == pytest.approx(0.5, rel=0.15)
    assert np.array_equal(first, again)
    assert not np.array_equal(first[:9], other[:9])


def test_terminating_replica_finishes_its_requests_and_costs() -> None:
    # At 15 s the younger of two replicas terminates; it serves the second request until 10 + 12 s.
    case = make_case(trace_of([9.0, 10.0], 1200, duration_s=100.0), start_replicas=2, drain_s=30.0)
    outcome = run(case, ConstantScaler(1))
    assert outcome.e2e_s.tolist() == pytest.approx([12.0, 12.0])
    assert outcome.replica_s == pytest.approx(100.0 + 22.0)


def test_requests_beyond_the_drain_time_are_lost() -> None:
    case = make_case(trace_of([9.0, 10.0], 1200, duration_s=100.0), start_replicas=2, drain_s=3.0)
    outcome = run(case, ConstantScaler(1))
    assert outcome.ttft_s.tolist() == pytest.approx([0.01, 0.01])  # it had begun
    assert outcome.itl_s.tolist() == pytest.approx([0.01, math.inf])
    assert outcome.replica_s == pytest.approx(100.0 + 18.0)


def test_scale_down_removes_unready_then_youngest_replicas() -> None:
    rows: list[tuple[float, list[int], list[bool]]] = []
    wants = iter([3, 2, 1, 1])

    def desired(view: View) -> int:
        rows.append((view.now_s, view.pods.id.tolist(), view.pods.terminating.tolist()))
        return next(wants, 1)

    case = make_case(trace_of([0.5, 0.6], 6500, duration_s=70.0), start_replicas=2)
    run(case, FunctionScaler(desired))
    # 30 s: number 2 starts. 45 s: it is removed at once. 60 s: number 1 terminates, still with its request.
    assert [row[1:] for row in rows[:4]] == [
        ([0, 1], [False, False]),
        ([0, 1, 2], [False, False, False]),
        ([0, 1], [False, False]),
        ([0, 1], [False, True]),
    ]


@pytest.mark.parametrize("removal", ["youngest", "replica-set"])
def test_replica_with_the_lowest_deletion_cost_leaves_first(removal: str) -> None:
    left: list[list[int]] = []

    def desired(view: View) -> int:
        left.append(view.pods.id[~view.pods.terminating].tolist())
        view.set_deletion_costs({0: -2, 2: -1})
        return {15.0: 3, 30.0: 2}.get(view.now_s, 1)

    run(make_case(trace_of([0.5], duration_s=70.0), start_replicas=4, removal=removal), FunctionScaler(desired))
    assert left[:4] == [[0, 1, 2, 3], [1, 2, 3], [1, 3], left[3]]
    assert len(left[3]) == 1


def test_replica_set_removes_from_full_nodes_then_the_young() -> None:
    full, other = Machine(0.0), Machine(0.0)

    def pod(number: int, node: Machine | None, ready_s: float = math.inf, cost: int = 0) -> SimulatedReplica:
        claim = GpuClaim("m", 1.0, lambda _now_s, _place: None, node)
        placed_s = math.inf if node is None else 0.0
        row = number if ready_s <= 1000.0 else -1
        return SimulatedReplica(
            number,
            0.0,
            0.0,
            1.0,
            claim,
            placed_s=placed_s,
            started_s=placed_s,
            ready_s=ready_s,
            row=row,
            deletion_cost=cost,
        )

    pods = [
        pod(0, other, ready_s=990.0),
        pod(1, full, ready_s=100.0),
        pod(2, full, ready_s=700.0),
        pod(3, full, ready_s=600.0),  # as old as pod 2 by the logarithm
        pod(4, other, ready_s=100.0, cost=-1),
        pod(5, full),  # starting
        pod(6, None),
    ]
    orders = {
        tuple(each.id for each in sorted(pods, key=removal_order(pods, seed, now_s=1000.0))) for seed in range(20)
    }
    assert orders == {(6, 5, 4, 2, 3, 1, 0), (6, 5, 4, 3, 2, 1, 0)}


def test_impatient_client_leaves_without_a_counter() -> None:
    counted: list[Totals] = []

    def desired(view: View) -> int:
        counted.append(view.totals)
        return 1

    profile = replace(PLAIN, max_num_seqs=1)
    case = make_case(trace_of([1.0, 1.1, 1.2], 500, duration_s=60.0), patience_s=7.0)
    outcome = run(replace(case, profile=profile), FunctionScaler(desired))
    assert np.isfinite(outcome.e2e_s).tolist() == [True, True, False]
    assert (counted[-1].arrivals, counted[-1].finished, counted[-1].first_tokens) == (3, 2, 2)
    assert counted[-1].waiting.tolist() == [0.0]


@pytest.mark.parametrize("seed", range(4))
def test_impatient_clients_leave_whatever_the_scrape_interval(seed: int) -> None:
    """With a full cache, a request behind a client that leaves joins at that time."""
    rng = np.random.default_rng(seed)
    trace = Trace(
        "made", np.cumsum(rng.exponential(0.15, 1200)), rng.integers(20, 1500, 1200), rng.integers(1, 500, 1200), 200.0
    )
    tight = Profile(0.008, 2e-4, 1.5e-6, 1e-4, kv_capacity_tokens=9000, max_num_seqs=12, max_model_len=4096)
    case = make_case(trace, profile=tight, start_replicas=4, patience_s=4.0)
    rare, often = (run(replace(case, scrape_s=scrape_s), ConstantScaler(4)) for scrape_s in (600.0, 1.0))
    assert 0 < np.isinf(rare.e2e_s).sum() < 600
    for name in ("ttft_s", "itl_s", "e2e_s"):
        assert getattr(often, name) == pytest.approx(getattr(rare, name), abs=1e-6)


def test_crash_loses_requests_and_resets_counters() -> None:
    pods: list[ReplicaRows] = []
    totals: list[Totals] = []

    def desired(view: View) -> int:
        pods.append(view.pods)
        totals.append(view.totals)
        return 1

    trace = generate("made", SHAPE, 3600.0, seed=1)
    case = make_case(trace, crash_every_s=720.0, cold_start_s=20.0)
    outcome = run(replace(case, profile=replace(PLAIN, max_num_seqs=64)), FunctionScaler(desired))
    lost = np.isinf(outcome.e2e_s)
    assert 1 <= lost.sum() < 0.05 * len(lost)
    assert any(np.isnan(rows.ready_s).all() for rows in pods)  # it starts again, under the same number
    assert all(rows.id.tolist() == [0] for rows in pods)
    generated = np.array([rows.generation_tokens[0] for rows in pods])
    assert (np.diff(generated[~np.isnan(generated)]) < 0).any()
    assert (np.diff([seen.generation_tokens for seen in totals]) >= 0).all()
    assert totals[-1].arrivals == (trace.arrival_s < totals[-1].time_s).sum()
    assert outcome.replica_s == pytest.approx(3600.0, rel=0.02)  # a crash is no discount


def test_metrics_of_a_crashed_engine_stay_until_the_next_scrape() -> None:
    notes: list[tuple[float, float, bool, float]] = []  # now, the last scrape, ready, tokens

    def desired(view: View) -> int:
        (ready_s,), (tokens,) = view.pods.ready_s, view.pods.generation_tokens
        notes.append((view.now_s, view.totals.time_s, not math.isnan(ready_s), float(tokens)))
        return 1

    case = make_case(generate("made", SHAPE, 3600.0, seed=1), crash_every_s=720.0, cold_start_s=40.0)
    run(replace(case, profile=replace(PLAIN, max_num_seqs=64)), FunctionScaler(desired, period_s=1.0))
    down = [(before, after) for before, after in itertools.pairwise(notes) if before[2] and not after[2]]
    assert len(down) >= 2
    assert any(after[3] == before[3] for before, after in down)
    for (alive_s, *_), (down_s, *_) in down:
        for now_s, scraped_s, ready, tokens in notes:
            if down_s <= now_s < down_s + 39:
                assert not ready
                assert math.isnan(tokens) == (scraped_s > alive_s)


def test_restart_back_off_grows_with_repeated_crashes() -> None:
    """The kubelet waits 10, 20, 40 s and so on up to five minutes, and starts over after ten minutes of uptime."""
    case = make_case(trace_of([1.0], duration_s=1e6), cold_start_s=60.0, start_replicas=1)
    replicas = SimulatedReplicas(case, GpuPool.for_cases([case]), Front([case]))
    (pod,) = replicas.pods
    waits_s, now_s = [], 0.0
    for ran_s in (90.0, 90.0, 90.0, 90.0, 90.0, 90.0, 90.0, 90.0, 599.0, 600.0, 90.0, 700.0):
        now_s = (pod.started_s if waits_s else 0.0) + ran_s
        pod.crash_s = replicas._next_change_s = now_s
        replicas.advance(now_s)
        waits_s.append(pod.started_s - now_s)
        assert pod.ready_s == pytest.approx(pod.started_s + 60.0)
        replicas.advance(pod.ready_s)
    assert waits_s == pytest.approx([0, 10, 20, 40, 80, 160, 300, 300, 300, 0, 10, 0])


def test_proxy_does_not_count_clients_that_left() -> None:
    counted: list[float] = []

    def desired(view: View) -> int:
        counted.append(view.live_concurrency())
        return 0

    case = make_case(trace_of([8.0, 12.0], 10, duration_s=30.0), start_replicas=0, patience_s=5.0, scrape_s=120.0)
    run(case, FunctionScaler(desired))
    assert counted[:2] == [1.0, 0.0]


def observed(**changes: object) -> tuple[RunOutcome, list[tuple[float, Totals, ReplicaRows, View]]]:
    """Run an hour of traffic with a varying replica count; return the outcome and the views."""
    notes = []

    def desired(view: View) -> int:
        notes.append((view.now_s, view.totals, view.pods, view))
        return 2 + int(view.now_s // 600) % 3

    trace = generate("made", SHAPE, 3600.0, seed=3)
    profile = replace(PLAIN, sequence_s=5e-4, prompt_token_s=1e-4, max_num_seqs=8)
    return run(replace(make_case(trace, start_replicas=2), profile=profile, **changes), FunctionScaler(desired)), notes


@pytest.mark.parametrize("router", ["least-requests", "round-robin"])
def test_totals_add_up_at_every_scrape(router: str) -> None:
    outcome, notes = observed(router=router)
    assert np.isfinite(outcome.e2e_s).all()
    for now_s, seen, pods, _ in notes:
        assert 0 <= now_s - seen.time_s <= 15
        observations = {name: latency.counts[-1] for name, latency in seen.latencies.items()}
        assert observations.pop("ttft") == seen.first_tokens
        assert observations.pop("itl") <= seen.generation_tokens - seen.first_tokens
        assert set(observations.values()) == {seen.finished}
        known = ~np.isnan(pods.time_s)
        if not pods.terminating.any():
            assert pods.running[known].tolist() == seen.running.tolist()
            assert seen.arrivals == seen.finished + seen.running.sum() + seen.waiting.sum() + seen.gateway_waiting
        assert (pods.generation_tokens[known] <= seen.generation_tokens).all()
        assert np.all((seen.kv_usage >= 0) & (seen.kv_usage <= 1))
    last = notes[-1][1]
    assert last.generation_tokens >= 0.98 * last.finished * 50


def test_ready_replica_has_no_metrics_until_it_is_scraped() -> None:
    _, notes = observed(scrape_s=60.0)
    silent = [(now_s, pods) for now_s, _, pods, _ in notes if (~np.isnan(pods.ready_s) & np.isnan(pods.running)).any()]
    assert silent
    for now_s, pods in silent:
        row = int(np.argmax(~np.isnan(pods.ready_s) & np.isnan(pods.running)))
        assert now_s - pods.ready_s[row] <= 60
        assert np.isnan(pods.time_s[row])
        assert np.isnan(pods.ttft_s[row])


def test_totals_ago_returns_the_scrape_of_the_right_age() -> None:
    _, notes = observed()
    view = notes[-1][3]  # the view is mutable and now shows the end
    for seconds in (0.0, 30.0, 60.0, 300.0):
        assert seconds <= view.now_s - view.totals_ago(seconds).time_s < seconds + 15.0 + 1e-6
    assert view.totals_ago(1e9).time_s == 0.0
    assert view.totals_ago(0.0) is view.totals


def test_latencies_are_quantiles_of_the_last_minute() -> None:
    outcome, notes = observed()
    ttfts = [pods.ttft_s[~np.isnan(pods.ttft_s)] for now_s, _, pods, _ in notes if now_s > 300]
    assert max(len(found) for found in ttfts) > 1
    assert all(len(set(found)) <= 1 for found in ttfts)
    assert np.median(np.concatenate(ttfts)) == pytest.approx(float(np.quantile(outcome.ttft_s, 0.9)), rel=1.0)
    gaps = np.concatenate([pods.itl_s[~np.isnan(pods.itl_s)] for _, _, pods, _ in notes])
    assert 0.01 <= np.median(gaps) <= 0.05


def test_live_concurrency_needs_no_scrape() -> None:
    counted: list[tuple[float, float]] = []

    def desired(view: View) -> int:
        counted.append((view.live_concurrency(), view.totals.running.sum() + view.totals.waiting.sum()))
        return 1

    run(make_case(trace_of(np.arange(8.0, 15.0, 1.0).tolist(), 3000, duration_s=20.0)), FunctionScaler(desired))
    assert counted[0] == (7.0, 0.0)  # the scrape was at 7.5 s


def test_decisions_are_periodic_and_counts_are_clamped() -> None:
    times: list[float] = []

    def desired(view: View) -> int:
        times.append(view.now_s)
        return 10 if view.now_s < 10 else -3

    outcome = run(make_case(trace_of([1.0], 1, duration_s=20.0), max_replicas=4), FunctionScaler(desired, period_s=2.0))
    assert times[:4] == [2.0, 4.0, 6.0, 8.0]
    assert outcome.change_to.tolist() == [4, 0]


def test_the_same_seed_gives_the_same_run() -> None:
    first, _ = observed()
    again, _ = observed()
    assert np.array_equal(first.e2e_s, again.e2e_s)
    assert first.replica_s == again.replica_s


def test_run_has_room_for_a_thousand_replicas() -> None:
    trace = trace_of(np.linspace(0, 50, 3000).tolist(), 400, duration_s=60.0)
    outcome = run(make_case(trace, start_replicas=1000), ConstantScaler(1000))
    assert np.isfinite(outcome.e2e_s).all()
    assert outcome.replica_s == pytest.approx(60_000, rel=0.02)


@pytest.mark.slow
@given(
    wants=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    drain_s=st.sampled_from([0.0, 3.0, 60.0]),
    crash_every_s=st.sampled_from([72.0, math.inf]),
    patience_s=st.sampled_from([4.0, math.inf]),
    router=st.sampled_from(["least-requests", "round-robin"]),
)
def test_no_request_is_lost_and_every_second_is_paid(
    wants: list[int], drain_s: float, crash_every_s: float, patience_s: float, router: str
) -> None:
    views: list[tuple[Totals, ReplicaRows]] = []
    left = iter(wants)

    def desired(view: View) -> int:
        views.append((view.totals, view.pods))
        return next(left, 2)

    case = make_case(
        generate("made", SHAPE, 400.0, seed=2),
        profile=replace(PLAIN, sequence_s=1e-3, prompt_token_s=1e-4, max_num_seqs=8, kv_capacity_tokens=101_000),
        cold_start_s=11.0,
        cold_start_spread=0.3,
        drain_s=drain_s,
        crash_every_s=crash_every_s,
        patience_s=patience_s,
        router=router,
    )
    outcome = run(case, FunctionScaler(desired, period_s=7.0))
    lost = np.isinf(outcome.e2e_s)
    if drain_s == 60.0 and math.isinf(crash_every_s) and math.isinf(patience_s):
        assert not lost.any()
    assert (outcome.ttft_s >= 0.01 - 1e-9).all()
    finished = outcome.e2e_s[~lost]
    assert (finished >= outcome.ttft_s[~lost] - 1e-9).all()
    # A token takes at least 10 ms with eight requests at a time, which bounds the paid time from below.
    assert outcome.replica_s >= (case.trace.output_tokens[~lost].sum() * 0.01) / 8
    for before, after in itertools.pairwise(views):
        assert after[0].finished >= before[0].finished
        assert after[0].arrivals >= before[0].arrivals
        assert len(np.unique(after[1].id)) == len(after[1].id)
    assert views[-1][0].finished <= (~lost).sum()


def test_slot_queue_shows_late_in_histograms() -> None:
    """As on the recorded server, the TTFT of present first tokens differs from that of present arrivals."""
    views: list[Totals] = []

    def desired(view: View) -> int:
        views.append(view.totals)
        return 1

    arrivals = np.concatenate([np.arange(0.0, 100.0, 1.0), np.arange(100.0, 140.0, 0.2), np.arange(140.0, 400.0, 1.0)])
    case = make_case(trace_of(arrivals.tolist(), 300, duration_s=400.0))
    outcome = run(case, FunctionScaler(desired))
    calm, rush, after = (next(seen for seen in views if seen.time_s > at_s) for at_s in (90.0, 130.0, 160.0))
    felt = np.median(outcome.ttft_s[(arrivals > 120) & (arrivals < 140)])
    told = quantile(0.5, TTFT, rush.latencies["ttft"].counts - calm.latencies["ttft"].counts)
    assert told < 0.5 * felt
    assert after.waiting.sum() > 50
    assert after.kv_usage[0] < 1.5 * calm.kv_usage[0]
    before, later = calm.latencies["itl"], after.latencies["itl"]
    gap_s = (later.sum_s - before.sum_s) / (later.counts[-1] - before.counts[-1])
    assert gap_s == pytest.approx(before.sum_s / before.counts[-1])


def test_trace_without_requests_costs_its_replicas() -> None:
    outcome = run(make_case(trace_of([], duration_s=100.0)), ConstantScaler(2))
    assert len(outcome.ttft_s) == 0
    assert outcome.replica_s == pytest.approx(100.0 + 85.0)


@pytest.mark.slow
def test_demo_does_not_need_the_compiler() -> None:
    demo = "autoscaler.app.demo"
    code = f"import sys, {demo}; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cold_start_s": -1.0}, "cold_start_s is -1; it must be a finite number, 0 or more"),
        ({"cold_start_uncached_s": 59.0}, "takes 59 s on a fresh node; it must be at least the 60 s of any other"),
        ({"weights_on": 1.5, "cold_start_uncached_s": 240.0}, "weights_on is 1.5; allowed: 0 to 1"),
        ({"weights_on": 0.5}, "weights_on is 0.5; allowed: 0 to 1, with cold_start_uncached_s"),
        ({"scrape_s": 0.0}, "scrape_s is 0; it must be above 0"),
        ({"router": "magic"}, "router is 'magic'; allowed: least-requests, round-robin"),
        ({"max_replicas": 0}, "max_replicas is 0; it must be at least 1"),
        ({"start_replicas": 1001}, "start_replicas is 1001; allowed: 0 to max_replicas (1000)"),
        ({"trace": trace_of([2.0, 1.0])}, "request 1 of trace small arrives before the one before it"),
        ({"trace": trace_of([2.0], duration_s=1.0)}, "request 0 of trace small arrives outside of 0..1 s"),
        ({"trace": trace_of([math.nan], duration_s=1.0)}, "request 0 of trace small arrives outside of 0..1 s"),
        ({"trace": trace_of([2.0], 0)}, "request 0 of trace small has no output token"),
        ({"trace": trace_of([2.0], 100_000)}, "has more tokens than max_model_len 100000: arrival 2 s, 1 + 100000"),
        ({"profile": replace(PLAIN, step_s=0.0)}, "step_s and sequence_s of the profile are 0"),
        ({"goal": Goal(1.0, 0.005, 0.99)}, "ITL 5 ms is below the step time of this profile (10 ms)"),
        ({"goal": Goal(0.001, 0.05, 0.99)}, "TTFT 1 ms is below the time this profile takes for one token (10 ms)"),
        (
            {"profile": replace(PLAIN, prompt_token_s=12.0)},
            "TTFT 1 s is below the time this profile takes for one token (12 s)",
        ),
        ({"goal": Goal(1.0, 0.05, 99.0)}, "attainment is 99; it must be above 0 and at most 1"),
        ({"profile": replace(PLAIN, kv_token_s=-1.0)}, "kv_token_s of the profile is -1; it must be"),
    ],
)
def test_invalid_case_is_refused_by_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(replace(make_case(trace_of([1.0])), **change), ConstantScaler(1))  # type: ignore[arg-type]


def test_scaler_without_an_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="period_s of scaler fixed is 0; it must be a number above 0"):
        run(make_case(trace_of([1.0])), ConstantScaler(1, period_s=0.0))
