"""The simulator against closed forms: warm-up removed, several seeds, whole runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.table.columns import IntColumn
from autoscaler.lab.replay.case import RunOutcome
from autoscaler.lab.replay.run import run
from autoscaler.sim.engine.profiles import Profile
from tests.lab.replay.cases import PLAIN, ConstantScaler, make_case, trace_of

REQUESTS, WARM_UP = 60_000, 5_000
STEP_S = 0.001
CONSTANT = replace(PLAIN, step_s=STEP_S)  # a token takes a millisecond, whatever the batch
SHARED = replace(
    PLAIN, step_s=0.0, sequence_s=STEP_S, max_num_seqs=4096, max_batched_tokens=8192
)  # the batch shares it


def serve(profile: Profile, rate_per_s: float, tokens: IntColumn, seed: int) -> RunOutcome:
    """Serve Poisson arrivals with one constant replica."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, len(tokens)))
    case = replace(make_case(trace_of(times.tolist(), tokens.tolist())), profile=profile, scrape_s=600.0)
    return run(case, ConstantScaler(1, period_s=600.0))


def geometric(mean_tokens: int, seed: int) -> IntColumn:
    return np.random.default_rng((seed, 9)).geometric(1 / mean_tokens, REQUESTS)


def waits_s(outcome: RunOutcome) -> float:
    """Return the mean wait: without a prompt, the first token takes one step."""
    return float(np.mean(outcome.ttft_s[WARM_UP:])) - STEP_S


def erlang_c_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait in an M/M/c queue (Erlang 1917)."""
    load = rate_per_s * service_s
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last) * service_s / (servers - load)


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "usage"), [(1, 0.5), (4, 0.8), (16, 0.9)])
def test_constant_step_is_an_m_m_c_queue(servers: int, usage: float) -> None:
    service_s = 400 * STEP_S
    rate = usage * servers / service_s
    profile = replace(CONSTANT, max_num_seqs=servers)
    means = [waits_s(serve(profile, rate, geometric(400, seed), seed)) for seed in range(5)]
    assert np.mean(means) == pytest.approx(erlang_c_wait_s(rate, service_s, servers), rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("usage", [0.5, 0.8])
def test_one_slot_with_equal_requests_is_an_m_d_1_queue(usage: float) -> None:
    service_s = 400 * STEP_S
    profile, tokens = replace(CONSTANT, max_num_seqs=1), np.full(REQUESTS, 400)
    means = [waits_s(serve(profile, usage / service_s, tokens, seed)) for seed in range(5)]
    # Pollaczek 1930, Khinchine 1932: half the wait of M/M/1.
    assert np.mean(means) == pytest.approx(usage * service_s / (2 * (1 - usage)), rel=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "geometric", "two kinds"])
def test_growing_step_is_processor_sharing(kind: str) -> None:
    """In an M/G/1 queue with processor sharing the mean time depends on the mean length alone (Kleinrock 1967)."""
    usage, mean = 0.7, 1000
    means = []
    for seed in range(5):
        tokens = {
            "equal": np.full(REQUESTS, mean),
            "geometric": geometric(mean, seed),
            "two kinds": np.where(np.random.default_rng(seed).random(REQUESTS) < 0.9, 500, 5500),
        }[kind]
        outcome = serve(SHARED, usage / (mean * STEP_S), tokens, seed)
        means.append(np.mean(outcome.e2e_s[WARM_UP:]))
    assert np.mean(means) == pytest.approx(mean * STEP_S / (1 - usage), rel=0.06)


@pytest.mark.slow
def test_double_length_takes_double_time_when_sharing() -> None:
    tokens = np.where(np.random.default_rng(1).random(REQUESTS) < 0.5, 600, 1200)
    outcome = serve(SHARED, 0.7 / (900 * STEP_S), tokens, seed=1)
    long = tokens[WARM_UP:] == 1200
    took_s = outcome.e2e_s[WARM_UP:]
    assert took_s[long].mean() / took_s[~long].mean() == pytest.approx(2.0, rel=0.03)


def test_littles_law_holds_between_metrics_and_latencies() -> None:
    rate, service_s = 8.0, 400 * STEP_S
    case = make_case(trace_of(np.cumsum(np.random.default_rng(4).exponential(1 / rate, REQUESTS)).tolist(), 400))
    case = replace(case, profile=replace(CONSTANT, max_num_seqs=4), scrape_s=5.0)
    outcome = run(case, ConstantScaler(1, period_s=600.0))
    inside = outcome.timeline[60:, 3].mean() + outcome.timeline[60:, 4].mean()
    assert inside == pytest.approx(rate * outcome.e2e_s.mean(), rel=0.1)
    assert outcome.timeline[60:, 3].mean() == pytest.approx(rate * service_s, rel=0.1)
