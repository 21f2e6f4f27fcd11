"""The compiled engine model compared with `sim.engine.replica`, request by request and counter by counter."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.engine import kernel
from autoscaler.lab.replay.engine.compiled import compiled as compiling
from autoscaler.lab.replay.engine.latencies import RequestTimes
from autoscaler.lab.replay.engine.state import EngineParams, EngineState, Records, empty_gateway
from autoscaler.sim.demo.router import Router
from autoscaler.sim.engine.profiles import Profile
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Request

ROOMY = Profile(
    step_s=0.01,
    sequence_s=1e-4,
    kv_token_s=1e-6,
    prompt_token_s=2e-5,
    kv_capacity_tokens=100_000,
    max_num_seqs=8,
    max_model_len=10_000,
    max_batched_tokens=512,
)
TIGHT = replace(ROOMY, kv_capacity_tokens=1300, max_model_len=1024, max_batched_tokens=64)


def random_trace(requests: int, gap_s: float, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(gap_s, requests))
    return Trace("random", arrival_s, rng.integers(1, 900, requests), rng.integers(1, 80, requests), arrival_s[-1] + 1)


def compiled(profile: Profile, trace: Trace, replicas: int, patience_s: float, steps_s: list[float]) -> EngineState:
    """Serve a trace with the compiled model, in steps that end at the given moments."""
    state, engine, gateway = (
        EngineState.create(trace, profile.max_num_seqs, replicas),
        EngineParams.from_profile(profile, patience_s),
        empty_gateway(),
    )
    rows = np.arange(replicas)
    for row in rows:
        state.start_replica(row, 0.0)
    for to_s in steps_s:
        kernel.arrive(state, (engine,), gateway, rows, to_s, True)
        for row in rows:
            kernel.advance(state, engine, row, to_s)
    return state


def plain(
    profile: Profile, trace: Trace, replicas: int, patience_s: float, end_s: float
) -> tuple[list[Request], list[Replica]]:
    """Serve a trace with the plain model behind the plain router."""
    router, servers = Router(), [Replica(profile, 0.0) for _ in range(replicas)]
    requests = [
        Request(float(at_s), int(prompt), int(output), patience_s)
        for at_s, prompt, output in zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True)
    ]
    for request in requests:
        for server in servers:
            server.advance_if_needed(request.arrived_s)
        router.arrive(request, servers, request.arrived_s)
    for server in servers:
        server.advance(end_s)
    return requests, servers


def assert_same(state: EngineState, requests: list[Request], servers: list[Replica]) -> None:
    first_s = [math.inf if math.isnan(request.first_token_s) else request.first_token_s for request in requests]
    done = [request.ending is not None and request.ending.value == "finished" for request in requests]
    end_s = [request.ended_s if over else math.inf for request, over in zip(requests, done, strict=True)]
    assert state.requests["first_s"].tolist() == pytest.approx(first_s, abs=1e-9)
    assert state.requests["end_s"].tolist() == pytest.approx(end_s, abs=1e-9)
    for row, server in enumerate(servers):
        it, its = state.replicas[row], server.metrics
        assert it["held"] == server.held
        assert it["decoding"] + it["prefilling"] == server.running
        assert it["waiting"] + it["preempted"] == server.waiting
        assert it["generation_tokens"] == its.generation_tokens
        assert it["prompt_tokens"] == its.prompt_tokens
        assert it["finished"] == its.finished_length
        assert it["preemptions"] == its.preemptions
        assert it["first_tokens"] == its.ttft.count
        assert state.ttft_counts[row].tolist() == its.ttft.counts
        assert state.gap_counts[row].sum() == its.token_gap.count
        assert it["itl_sum_s"] == pytest.approx(its.token_gap.total)
        assert state.prefill_counts[row].tolist() == its.prefill.counts
        assert it["ttft_sum_s"] == pytest.approx(its.ttft.total)
    for name, times in RequestTimes(state, 0, 1).until(math.inf).items():
        of_servers = [getattr(server.metrics, {"tpot": "request_token_gap"}.get(name, name)) for server in servers]
        assert np.diff(times.counts, prepend=0).tolist() == np.sum([each.counts for each in of_servers], 0).tolist()
        assert times.sum_s == pytest.approx(sum(each.total for each in of_servers))


@pytest.mark.slow
@pytest.mark.parametrize("profile", [ROOMY, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("patience_s", [math.inf, 2.0])
def test_kernel_serves_every_request_like_the_plain_engine(profile: Profile, replicas: int, patience_s: float) -> None:
    for seed in range(3):
        trace = random_trace(600, 0.12 / replicas, seed)
        end_s = trace.duration_s + 1000
        state = compiled(profile, trace, replicas, patience_s, [end_s])
        requests, servers = plain(profile, trace, replicas, patience_s, end_s)
        assert_same(state, requests, servers)
        assert (profile is ROOMY) == (state.replicas["preemptions"].sum() == 0)


def test_times_of_a_scrape_are_the_same_however_late_it_is_asked() -> None:
    state = compiled(TIGHT, random_trace(100, 0.1, seed=3), 2, math.inf, [1000.0])
    ends_s = np.sort(state.requests["end_s"])
    for asked_first in range(3):
        times, nothing = RequestTimes(state, 0, kept=2), np.zeros(85)  # the first scrape is forgotten
        scrapes = [times.scrape(float(at_s), nothing, 0.0, 0.0) for at_s in ends_s[[20, 50, 80]]]
        assert scrapes[asked_first]["e2e"].counts[-1] == (21, 51, 81)[asked_first]
        assert [scrape["queue"].counts[-1] for scrape in scrapes] == [21, 51, 81]


def test_round_robin_alternates_over_three_replicas() -> None:
    trace = random_trace(600, 0.05, seed=8)
    end_s = trace.duration_s + 1000
    state, engine, rows = (
        EngineState.create(trace, TIGHT.max_num_seqs, 3),
        EngineParams.from_profile(TIGHT),
        np.arange(3),
    )
    for row in rows:
        state.start_replica(row, 0.0)
    kernel.arrive(state, (engine,), empty_gateway(), rows, end_s, False)
    for row in rows:
        kernel.advance(state, engine, row, end_s)
        part = replace(
            trace,
            arrival_s=trace.arrival_s[row::3],
            prompt_tokens=trace.prompt_tokens[row::3],
            output_tokens=trace.output_tokens[row::3],
        )
        requests, (server,) = plain(TIGHT, part, 1, math.inf, end_s)
        assert state.requests["end_s"][row::3].tolist() == pytest.approx([request.ended_s for request in requests])
        assert state.replicas["preemptions"][row] == server.metrics.preemptions > 0


def test_kernel_and_plain_engine_agree_during_a_run() -> None:
    trace = random_trace(400, 0.1, seed=7)
    middle_s = float(trace.arrival_s[-1]) + 0.003
    requests, servers = plain(TIGHT, trace, 2, math.inf, middle_s)
    assert_same(compiled(TIGHT, trace, 2, math.inf, [middle_s]), requests, servers)
    assert sum(server.held for server in servers) > 10


@pytest.mark.slow
@pytest.mark.parametrize("patience_s", [math.inf, 3.0])
@pytest.mark.parametrize("seed", [5, 6, 7])
def test_result_is_independent_of_the_step_size(patience_s: float, seed: int) -> None:
    trace = random_trace(300, 0.1, seed)
    end_s = trace.duration_s + 300
    once = compiled(TIGHT, trace, 2, patience_s, [end_s])
    often = compiled(TIGHT, trace, 2, patience_s, [*np.arange(0.0, end_s, 0.037), end_s])
    assert often.requests["end_s"] == pytest.approx(once.requests["end_s"])
    for name in ("generation_tokens", "finished", "preemptions", "prompt_tokens"):
        assert often.replicas[name].tolist() == once.replicas[name].tolist()
    assert np.array_equal(often.gap_counts, once.gap_counts)
    assert math.isinf(patience_s) == bool(np.isfinite(once.requests["end_s"]).all())


@given(
    # Never at the same time, where the second request may miss the step that begins, in one of the models.
    rows=st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(1, 900), st.integers(1, 120)), min_size=1, max_size=60),
    replicas=st.integers(1, 3),
    patience_s=st.sampled_from([0.3, 5.0, math.inf]),
)
def test_kernel_and_plain_engine_agree_on_random_requests(
    rows: list[tuple[float, int, int]], replicas: int, patience_s: float
) -> None:
    gaps, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    arrival_s = np.cumsum(gaps)
    trace = Trace("any", arrival_s, prompts, outputs, float(arrival_s[-1]) + 1)
    end_s = trace.duration_s + 500
    state = compiled(TIGHT, trace, replicas, patience_s, [end_s])
    assert_same(state, *plain(TIGHT, trace, replicas, patience_s, end_s))
    assert not state.replicas["held"].any()
    assert not state.replicas["decode_tokens"].any()


def test_gaps_of_growing_steps_are_counted_one_by_one() -> None:
    """One event in the model is 3,000 steps in the histogram: from 10 to over 16 ms, in three buckets."""
    profile = replace(ROOMY, step_s=0.008, sequence_s=0.0, kv_token_s=1e-5)
    trace = Trace("one", np.zeros(1), np.array([100]), np.array([3001]), 100.0)
    state = compiled(profile, trace, 1, math.inf, [500.0])
    gaps = 0.008 + 1e-5 * (101 + np.arange(3000))
    expected = np.histogram(gaps, [0.0, 0.01, 0.025, 0.05, 1.0])[0]
    assert expected.tolist() == [99, 1500, 1401, 0]
    assert state.gap_counts[0][:4] == pytest.approx(expected, abs=1)  # one gap lies on a bound
    assert state.replicas["itl_sum_s"][0] == pytest.approx(gaps.sum())


def serve(least: bool, serving: list[list[int]], arrivals: int) -> tuple[EngineState, Records]:
    """Serve arrivals with the given lists of replicas, ten seconds each."""
    trace = Trace("t", np.arange(arrivals) + 0.5, np.full(arrivals, 10), np.full(arrivals, 1000), arrivals + 1.0)
    state, engine, gateway = (
        EngineState.create(trace, ROOMY.max_num_seqs, 4),
        EngineParams.from_profile(ROOMY, 25.0),
        empty_gateway(),
    )
    for row in range(4):
        state.start_replica(row, 0.0)
    for number, rows in enumerate(serving):
        now = np.array(rows, np.int64)
        kernel.release(state, (engine,), gateway, now, 10.0 * number, least)
        kernel.arrive(state, (engine,), gateway, now, 10.0 * (number + 1), least)
    return state, gateway


@pytest.mark.parametrize("least", [True, False])
def test_requests_spread_over_serving_replicas(least: bool) -> None:
    state, _ = serve(least, [[0, 1, 3]], arrivals=9)
    assert state.replicas["held"].tolist() == [3, 3, 0, 3]


def test_gateway_holds_requests_and_drops_those_that_left() -> None:
    state, gateway = serve(True, [[], []], arrivals=15)
    assert gateway["held"][0] == 15
    state, gateway = serve(True, [[], [], [], [2]], arrivals=15)
    assert gateway["held"][0] == 0
    assert state.replicas["held"].tolist() == [
        0,
        0,
        10,
        0,
    ]  # after 30 s the first five have left, after 25 s of patience
    assert state.requests["since_s"][5:].tolist() == [30.0] * 10


def test_code_compiles_without_a_writable_cache() -> None:
    names: dict[str, Callable[[int], int]] = {}
    exec("def double(number):\n    return 2 * number", names)  # without a file there is no place for a cache
    assert compiling(names["double"])(21) == 42
