"""The engine model compared with closed forms, with a slow step-by-step model, and with the recorded server."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.sim.engine.profiles import Profile
from autoscaler.sim.engine.replica import Replica
from autoscaler.sim.engine.request import Ending, Request

PLAIN = Profile(
    step_s=0.01,
    sequence_s=0.0,
    kv_token_s=0.0,
    prompt_token_s=0.0,
    kv_capacity_tokens=1_000_000,
    max_num_seqs=4,
    max_model_len=100_000,
    block_size=1,
)
RICH = replace(PLAIN, sequence_s=1e-4, kv_token_s=1e-6, prompt_token_s=2e-5, max_batched_tokens=512, max_num_seqs=8)


def serve(profile: Profile, requests: list[Request], until_s: float) -> Replica:
    """Run requests, in order of arrival, through one replica."""
    replica = Replica(profile, 0.0)
    for request in requests:
        replica.advance(request.arrived_s)
        replica.submit(request, request.arrived_s)
    replica.advance(until_s)
    return replica


def poisson(rate_per_s: float, count: int, mean_tokens: float, seed: int) -> list[Request]:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate_per_s, count))
    tokens = rng.geometric(1 / mean_tokens, count)
    return [Request(float(at), 1, int(output)) for at, output in zip(times, tokens, strict=True)]


def erlang_c_wait_s(arrivals_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait in an M/M/c queue (Erlang 1917)."""
    load = arrivals_per_s * service_s
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last) * service_s / (servers - load)


def test_request_takes_a_prefill_step_and_a_step_per_token() -> None:
    request = Request(5.0, 100, 11)
    serve(replace(PLAIN, prompt_token_s=1e-3), [request], 100.0)
    assert request.ttft_s == pytest.approx(0.01 + 0.1)
    assert request.itl_s == pytest.approx(0.01)
    assert request.ended_s == pytest.approx(5.0 + 0.11 + 10 * 0.01)


def test_step_grows_with_batch_and_kv_tokens() -> None:
    profile = replace(PLAIN, sequence_s=1e-3, kv_token_s=1e-5)
    requests = [Request(0.0, 100, 51) for _ in range(4)]
    replica = Replica(profile, 0.0)
    for request in requests:
        replica.submit(request, 0.0)
    replica.advance(100.0)
    # 50 decode steps; the k-th reads 4 x (101 + k) tokens.
    expected_s = sum(0.01 + 4 * 1e-3 + 1e-5 * 4 * (101 + k) for k in range(50))
    assert requests[0].ended_s - requests[0].first_token_s == pytest.approx(expected_s)


def test_long_prompt_is_chunked_and_slows_decoding() -> None:
    profile = replace(PLAIN, prompt_token_s=1e-4, max_batched_tokens=101)
    running, long = Request(0.0, 1, 1000), Request(1.0, 350, 2)
    replica = serve(profile, [running, long], 1.0 + 4 * 0.02 + 0.02)
    # 100 tokens a step beside the one decoding request: four steps of 0.01 + 0.01 s, the last with 50 tokens.
    assert long.ttft_s == pytest.approx(3 * 0.02 + 0.015, abs=0.011)  # up to a step until it joins
    assert replica.metrics.token_gap.counts[1] >= 4  # gaps between 10 and 25 ms
    assert replica.metrics.prompt_tokens == 351


def test_request_waits_when_the_token_budget_is_used_up() -> None:
    """Three prompts of 150 tokens, 100 per step of 0.11 s: each waits until a step has tokens left."""
    replica = Replica(replace(PLAIN, prompt_token_s=1e-3, max_batched_tokens=100), 0.0)
    requests = [Request(0.0, 150, 50) for _ in range(3)]
    for request in requests:
        replica.submit(request, 0.0)
    for at_s, running in ((0.05, 1), (0.15, 2), (0.25, 2), (0.35, 3)):
        replica.advance(at_s)
        assert (replica.running, replica.waiting) == (running, 3 - running)
    replica.advance(10.0)
    assert [round(request.scheduled_s, 2) for request in requests] == [0.0, 0.11, 0.33]
    assert replica.metrics.queue.total == pytest.approx(0.44, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "usage"), [(1, 0.6), (4, 0.8)])
def test_waits_match_an_m_m_c_queue_with_a_constant_step(servers: int, usage: float) -> None:
    mean_tokens, warm_up = 500, 2000
    profile = replace(PLAIN, step_s=0.001, max_num_seqs=servers)
    service_s = mean_tokens * 0.001
    rate = usage * servers / service_s
    means = []
    for seed in range(4):
        requests = poisson(rate, 22_000, mean_tokens, seed)
        serve(profile, requests, math.inf)
        means.append(np.mean([request.scheduled_s - request.arrived_s for request in requests[warm_up:]]))
    assert np.mean(means) == pytest.approx(erlang_c_wait_s(rate, service_s, servers), rel=0.1)


def test_no_request_waits_with_more_slots_than_requests() -> None:
    requests = poisson(5.0, 2000, 100, seed=1)
    serve(replace(PLAIN, max_num_seqs=1000), requests, math.inf)
    assert max(request.scheduled_s - request.arrived_s for request in requests) <= 0.01  # the step under way


def slow(profile: Profile, requests: list[Request], until_s: float) -> tuple[list[tuple[float, float]], int]:
    """Simulate the same engine one step at a time; return (first token, end) of each request, and the tokens."""
    clock, due, waiting, running, made = 0.0, list(requests), [], [], 0
    left = {id(r): r.prompt_tokens for r in requests}
    done: dict[int, list[float]] = {id(r): [] for r in requests}  # time of each token
    while clock < until_s:
        while due and due[0].arrived_s <= clock:
            waiting.append(due.pop(0))
        while waiting and len(running) < profile.max_num_seqs:
            running.append(waiting.pop(0))
        if not running:
            if not due:
                break
            clock = due[0].arrived_s
            continue
        decoding = [r for r in running if not left[id(r)]]
        read = sum(r.prompt_tokens + len(done[id(r)]) for r in decoding)
        budget, chunk = profile.max_batched_tokens - len(decoding), 0
        for r in running:
            part = min(left[id(r)], budget - chunk)
            left[id(r)] -= part
            chunk += part
        step_s = profile.step_s + profile.sequence_s * len(decoding) + profile.kv_token_s * read
        clock += step_s + profile.prompt_token_s * chunk
        if clock > until_s:
            break
        for r in [r for r in running if not left[id(r)]]:
            done[id(r)].append(clock)
            made += 1
            if len(done[id(r)]) == r.output_tokens:
                running.remove(r)
    return [(tokens[0], tokens[-1]) for tokens in done.values()], made


@pytest.mark.parametrize("seed", range(3))
def test_event_jumps_match_single_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(0.12, 150))
    requests = [Request(float(at), int(rng.integers(1, 900)), int(rng.integers(1, 80))) for at in times]
    expected, made = slow(RICH, requests, 1000.0)
    replica = serve(RICH, requests, 1000.0)
    assert [request.first_token_s for request in requests] == pytest.approx([first for first, _ in expected])
    assert [request.ended_s for request in requests] == pytest.approx([last for _, last in expected])
    assert replica.metrics.generation_tokens == made == sum(request.output_tokens for request in requests)
    assert replica.metrics.token_gap.count == made - len(requests)
    assert replica.metrics.step_tokens.total == made - len(requests) + sum(r.prompt_tokens for r in requests)


def test_result_is_independent_of_the_step_size() -> None:
    def requests() -> list[Request]:
        return [Request(r.arrived_s, 50 + r.output_tokens, r.output_tokens) for r in poisson(9.0, 300, 40, seed=5)]

    once, often = requests(), requests()
    first = serve(RICH, once, 100.0)
    second = Replica(RICH, 0.0)
    at_s = 0.0
    for request in often:
        while at_s < request.arrived_s:
            second.advance(at_s)
            at_s += 0.0037
        second.advance_if_needed(request.arrived_s)
        second.submit(request, request.arrived_s)
    second.advance(100.0)
    assert [r.ended_s for r in often] == pytest.approx([r.ended_s for r in once])
    assert second.metrics.generation_tokens == first.metrics.generation_tokens


@pytest.mark.parametrize("every_s", [100.0, 0.1, 0.0037])
def test_request_joins_when_the_one_before_it_leaves(every_s: float) -> None:
    """The second and the third need 9,110 tokens of 9,000 beside the first; the third alone would fit."""
    replica = Replica(replace(PLAIN, kv_capacity_tokens=9000, max_model_len=8192), 0.0)
    requests = [Request(0.0, 6000, 2000, 5.0), Request(0.105, 3000, 10, 5.0), Request(2.005, 100, 10, 5.0)]
    moments = [(float(at_s), None) for at_s in np.arange(0.0, 30.0, every_s)]
    for at_s, request in sorted([*moments, *((each.arrived_s, each) for each in requests)], key=lambda pair: pair[0]):
        replica.advance_if_needed(at_s) if request else replica.advance(at_s)
        if request:
            replica.submit(request, at_s)
    replica.advance(100.0)
    assert [request.ending for request in requests] == [Ending.FINISHED, Ending.GIVEN_UP, Ending.FINISHED]
    assert requests[2].scheduled_s == pytest.approx(5.11)  # the end of the step in which the second left
    assert requests[2].ttft_s == pytest.approx(5.12 - 2.005)


def test_advance_if_needed_holds_the_same_requests() -> None:
    lazy, eager = Replica(RICH, 0.0), Replica(RICH, 0.0)
    for request in poisson(8.0, 400, 60, seed=2):
        lazy.advance_if_needed(request.arrived_s)
        eager.advance(request.arrived_s)
        assert lazy.held == eager.held
        lazy.submit(replace(request), request.arrived_s)
        eager.submit(replace(request), request.arrived_s)


def test_every_request_has_exactly_one_state() -> None:
    profile = replace(RICH, kv_capacity_tokens=100_100)
    replica, endings = Replica(profile, 0.0), Counter[Ending | None]()
    for sent, request in enumerate(poisson(30.0, 1500, 60, seed=3), start=1):
        request.patience_s = 0.5
        replica.advance(request.arrived_s)
        replica.submit(request, request.arrived_s)
        endings.update(ended.ending for ended in replica.take_ended())
        assert sent == sum(endings.values()) + replica.running + replica.waiting
        assert replica.running <= profile.max_num_seqs
    metrics = replica.metrics
    assert endings[Ending.FINISHED] == metrics.finished_length > 0
    assert endings[Ending.GIVEN_UP] > 0
    replica.advance(math.inf)
    assert metrics.ttft.count == metrics.finished_length
    assert replica.held == 0


TIGHT = replace(PLAIN, max_num_seqs=16, kv_capacity_tokens=3000, max_model_len=2048, block_size=128)


def test_full_kv_cache_preempts_while_slots_are_free() -> None:
    """As in the recording `kv-bound`: usage near 1, preemptions, few of 16 slots running, about 20 waiting."""
    requests = [Request(4.0 + 0.3 * number, 340, 500) for number in range(30)]
    replica = Replica(TIGHT, 0.0)
    usage, running, waiting = [], [], []
    for request in requests:
        replica.advance(request.arrived_s)
        replica.submit(request, request.arrived_s)
    for at_s in np.arange(13.0, 20.0, 0.5):
        replica.advance(float(at_s))
        usage.append(replica.kv_usage)
        running.append(replica.running)
        waiting.append(replica.waiting)
    assert min(usage) > 0.75
    assert max(running) < 8
    assert max(waiting) >= 15
    assert replica.metrics.preemptions > 0
    replica.advance(200.0)
    ended = replica.take_ended()
    assert [r.ending for r in ended] == [Ending.FINISHED] * 30
    metrics = replica.metrics
    # No counter shows the work wasted by preemption: each prompt and each token counts once.
    assert metrics.prompt_tokens == metrics.prefix_cache_queries == 30 * 340
    assert metrics.generation_tokens == 30 * 500
    assert metrics.ttft.count == 30
    assert sum(r.preemptions for r in ended) == metrics.preemptions
    assert sum(metrics.token_gap.counts[11:]) > 0  # the interruptions show as gaps above a second
    assert metrics.token_gap.count == 30 * 499


def test_kv_usage_does_not_show_a_queue_for_slots() -> None:
    replica = serve(PLAIN, [Request(0.0, 100, 400) for _ in range(34)], 2.0)
    assert (replica.running, replica.waiting) == (4, 30)
    assert replica.kv_usage < 0.01


def test_latency_histograms_lag_the_load_by_the_queue() -> None:
    """Waiting x tokens per request / token rate gives the wait at once; histograms show it when it is over."""
    replica = Replica(PLAIN, 0.0)
    burst = [Request(10.0, 10, 400) for _ in range(40)]
    replica.advance(10.0)
    for request in burst:
        replica.submit(request, 10.0)
    replica.advance(12.0)
    assert replica.waiting == 36
    predicted_s = replica.waiting * 400 / (replica.metrics.generation_tokens / 2.0)
    longest_s = 9 * 4.0  # ten rounds of four
    assert predicted_s == pytest.approx(longest_s, rel=0.05)
    assert replica.metrics.ttft.total / replica.metrics.ttft.count < 0.1  # all is well, says the histogram
    replica.advance(44.0)
    seen_s, seen = replica.metrics.ttft.total, replica.metrics.ttft.count
    queued_s, queued = replica.metrics.queue.total, replica.metrics.queue.count
    replica.advance(60.0)
    assert replica.waiting == 0
    metrics = replica.metrics
    assert (metrics.ttft.total - seen_s) / (metrics.ttft.count - seen) == pytest.approx(longest_s, rel=0.05)
    assert (metrics.queue.total - queued_s) / (metrics.queue.count - queued) > 0.9 * longest_s - 4.0


def test_clients_that_leave_appear_in_no_engine_counter() -> None:
    replica = Replica(PLAIN, 0.0)
    for _ in range(20):
        replica.submit(Request(0.0, 10, 1000, patience_s=2.0), 0.0)
    replica.advance(1.0)
    assert (replica.running, replica.waiting) == (4, 16)
    replica.advance(2.0)
    assert (replica.running, replica.waiting) == (4, 0)
    metrics = replica.metrics
    assert metrics.finished_abort == metrics.finished_length == 0
    assert metrics.queue.count == metrics.e2e.count == 0
    assert metrics.http_ok == 16  # as a 200
    replica.advance(50.0)
    assert (metrics.finished_length, metrics.queue.count, metrics.http_ok) == (4, 4, 20)
    assert Counter(request.ending for request in replica.take_ended()) == {Ending.GIVEN_UP: 16, Ending.FINISHED: 4}


def asleep(replica: Replica, level: int, now_s: float, mode: str = "abort") -> Replica:
    replica.pause(mode, now_s)
    replica.release(level, 0.1)
    return replica


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sleeping_replica_accepts_and_hides_requests(level: int) -> None:
    replica = asleep(Replica(PLAIN, 0.0), level, 5.0)
    for number in range(6):
        replica.advance(6.0 + number)
        replica.submit(Request(6.0 + number, 10, 100), 6.0 + number)
    replica.advance(60.0)
    assert (replica.running, replica.waiting, replica.held) == (0, 0, 6)
    assert replica.metrics.generation_tokens == 0
    replica.wake_up((), 60.0, 1.0)
    replica.advance(60.02)
    assert (replica.running, replica.waiting) == (4, 2)
    replica.advance(100.0)
    assert replica.metrics.finished_length == 6


@pytest.mark.parametrize("level", [0, 1, 2])
def test_going_to_sleep_aborts_what_runs_and_counts_it(level: int) -> None:
    replica = asleep(serve(PLAIN, [Request(0.0, 10, 1000) for _ in range(6)], 1.0), level, 1.0)
    assert replica.held == 0
    assert replica.metrics.finished_abort == replica.metrics.e2e.count == 6
    assert {request.ending for request in replica.take_ended()} == {Ending.FAILED}


def test_paused_replica_ends_what_runs_when_it_may_wait() -> None:
    replica = serve(PLAIN, [Request(0.0, 10, 100) for _ in range(6)], 1.0)
    replica.pause("wait", 1.0)
    assert replica.sleep_state.paused
    ended, held = replica.metrics.finished_length, replica.held
    assert (replica.running, replica.waiting) == (4, held - 4)
    replica.advance(30.0)
    assert (replica.running, replica.waiting, replica.held) == (0, 0, held - 4)
    assert replica.metrics.finished_length == ended + 4
    replica.wake_up((), 30.0, 0.0)
    replica.advance(60.0)
    assert replica.metrics.finished_length == 6


@pytest.mark.parametrize("level", [0, 1])
def test_kept_requests_go_on_after_the_wake_up(level: int) -> None:
    replica = serve(PLAIN, [Request(0.0, 10, 1000) for _ in range(6)], 1.0)
    generated = replica.metrics.generation_tokens
    asleep(replica, level, 1.0, "keep")
    replica.advance(100.0)
    assert (replica.running, replica.held, replica.metrics.generation_tokens) == (0, 6, generated)
    replica.wake_up((), 100.0, 1.0)
    replica.advance(1000.0)
    assert (replica.metrics.finished_length, replica.metrics.finished_abort) == (6, 0)
    assert replica.metrics.generation_tokens == 6000


def test_replica_sleeps_until_all_of_it_is_awake() -> None:
    replica = asleep(Replica(PLAIN, 0.0), 1, 0.0)
    replica.submit(Request(0.0, 10, 10), 0.0)
    replica.wake_up(["weights"], 10.0, 1.0)
    replica.advance(20.0)
    assert replica.sleep_state.paused
    assert replica.held == 1
    replica.wake_up(["kv_cache"], 20.0, 1.0)
    replica.advance(30.0)
    assert not replica.sleep_state.paused
    assert [request.ending for request in replica.take_ended()] == [Ending.FINISHED]


@pytest.mark.parametrize(("reloads", "ending"), [(True, Ending.FINISHED), (False, Ending.FAILED)])
def test_answers_after_level_2_need_reloaded_weights(reloads: bool, ending: Ending) -> None:
    replica = asleep(Replica(PLAIN, 0.0), 2, 0.0)
    assert not replica.sleep_state.reload_weights(), "they have no memory"
    replica.wake_up(["weights"], 10.0, 1.0)
    if reloads:
        assert replica.sleep_state.reload_weights()
    replica.wake_up(["kv_cache"], 20.0, 1.0)
    replica.submit(Request(20.0, 10, 10), 20.0)
    replica.advance(30.0)
    assert [request.ending for request in replica.take_ended()] == [ending]


def test_request_beyond_max_model_len_is_refused() -> None:
    with pytest.raises(ValueError, match=r"request has 2000 \+ 49 tokens, max_model_len is 2048"):
        Replica(TIGHT, 0.0).submit(Request(0.0, 2000, 49), 0.0)


OPERATION = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 900), st.integers(1, 120), st.sampled_from([0.3, 5.0, math.inf])),
    st.tuples(st.just("wait"), st.floats(0.001, 3.0)),
    st.tuples(st.just("sleep"), st.integers(0, 1), st.sampled_from(["abort", "wait", "keep"])),
    st.tuples(st.just("pause"), st.sampled_from(["abort", "wait", "keep"])),
    st.tuples(st.just("wake")),
)


@given(operations=st.lists(OPERATION, max_size=60))
def test_no_request_is_lost_or_served_twice(operations: list[tuple[object, ...]]) -> None:
    """Slots, KV cache, patience and sleep together, with a cache so small that preemption is common."""
    profile = replace(RICH, kv_capacity_tokens=1300, max_model_len=1024, max_batched_tokens=64, block_size=16)
    replica, now_s, sent, ended = Replica(profile, 0.0), 0.0, [], []
    for kind, *rest in operations:
        if kind == "submit":
            prompt, output, patience_s = rest
            sent.append(Request(now_s, int(str(prompt)), int(str(output)), float(str(patience_s))))
            replica.submit(sent[-1], now_s)
        elif kind == "wait":
            now_s += float(str(rest[0]))
            replica.advance(now_s)
        elif kind == "sleep":
            asleep(replica, int(str(rest[0])), now_s, str(rest[1]))
        elif kind == "pause":
            replica.pause(str(rest[0]), now_s)
        else:
            replica.wake_up((), now_s, 0.0)
        ended += replica.take_ended()
        assert replica.held == len(sent) - len(ended)
        assert replica.running <= profile.max_num_seqs
        assert 0 <= replica.kv_usage <= 1
        assert replica.clock_s <= now_s
    replica.wake_up((), now_s, 0.0)
    replica.advance(now_s + 1000)
    ended += replica.take_ended()
    assert replica.held == 0
    assert replica.kv_usage == 0
    assert Counter(map(id, ended)) == Counter(map(id, sent))
    finished = [request for request in ended if request.ending is Ending.FINISHED]
    metrics = replica.metrics
    assert metrics.finished_length == metrics.e2e.count - metrics.finished_abort == len(finished)
    for request in finished:
        assert request.arrived_s <= request.scheduled_s < request.first_token_s <= request.ended_s
    if not metrics.finished_abort:
        assert metrics.generation_tokens == sum(request.output_tokens for request in finished)
        assert metrics.prompt_tokens == sum(request.prompt_tokens for request in finished)
