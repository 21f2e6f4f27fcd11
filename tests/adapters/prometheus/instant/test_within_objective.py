"""The number of queries for objectives, and failures of them, over HTTP on loopback."""

import re

import numpy as np
import pytest

from autoscaler.adapters.prometheus.instant.within_objective import BOUNDS_PERIOD_S, NO_BOUNDS_PERIOD_S
from autoscaler.adapters.prometheus.promql.within_objective import MAX_OBJECTIVES
from tests.adapters.prometheus.fleets import fleet_of
from tests.adapters.prometheus.query_server import FLEET, HandClock, Server, healthy, report
from tests.adapters.prometheus.responses import pod, vector
from tests.harness.exposition import Answer
from tests.harness.objectives import objectives

NAN = float("nan")
TTFT, PER_REQUEST = "time_to_first_token_seconds_bucket", "request_time_per_output_token_seconds_bucket"
PROMPT = "request_prefill_time_seconds_bucket"
BOUNDS = vector(*(({"le": le}, 3) for le in ("0.1", "0.25", "0.5", "1.0", "+Inf")))
BOUNDS_QUERY = f"^topk.*{TTFT}"


def counted(**more: Answer | str | float) -> dict[str, Answer | str | float]:
    """Rules of a server with TTFT histograms, and a rule by the text of each query to its buckets."""
    return {BOUNDS_QUERY: BOUNDS, **more, **healthy(request_success=100.0)}


def buckets(server: Server, histogram: str = TTFT) -> list[str]:
    """The queries that read single buckets; those of quantiles take all."""
    queries = [form["query"] for form in server.queried if histogram in form["query"] and "rate(" not in form["query"]]
    return [query for query in queries if not query.startswith("topk")]


def bounds_queries(server: Server) -> int:
    return sum(re.search(BOUNDS_QUERY, form["query"]) is not None for form in server.queried)


async def test_each_objective_takes_one_query():
    for workloads in (2, 400):
        fleet = fleet_of({f"llm/w{number}": [f"w{number}-0"] for number in range(workloads)})
        promised = objectives(fleet, ttft_s=np.where(np.arange(workloads) % 2, 1.0, 0.15))
        server = Server(**counted())
        samples = await server.sample(fleet, promised=promised)
        assert len(buckets(server)) == 2
        assert bounds_queries(server) == 1
        assert report(samples).queries == len(server.queried)
        assert report(samples).failed == 0


async def test_without_objectives_nothing_is_queried():
    server = Server(**counted())
    await server.sample()
    assert buckets(server) == buckets(server, PER_REQUEST) == []
    assert bounds_queries(server) == 0


async def test_each_workload_is_counted_by_its_own_objective():
    server = Server(**counted(**{r'\(max by .*le=~"1\|1\[\.\]0"': 70.0, 'le="0.25"': 40.0}))
    promised = objectives(FLEET, ttft_s=np.array([1.0, 0.25]))
    samples = await server.sample(promised=promised)
    assert samples.pods.ttft_met.tolist() == [70, 70, 40]
    assert np.isnan(samples.pods.itl_met).all()


async def test_rare_objectives_are_uncounted_and_reported():
    rows = MAX_OBJECTIVES + 3
    fleet = fleet_of({f"llm/w{number}": ["a-0"] for number in range(rows)})
    server = Server(**counted(**{"le=": 5.0}))
    samples = await server.sample(fleet, promised=objectives(fleet, ttft_s=np.linspace(0.3, 0.4, rows)))
    assert len(buckets(server)) == MAX_OBJECTIVES
    left_out = "ttft_met, prefill_met: counted for the 12 most common objectives; 3 workloads have others"
    assert left_out in report(samples).problems


async def test_prefill_counts_to_the_next_bound_or_stays_silent():
    server = Server(**counted(**{f"^topk.*{PROMPT}": BOUNDS, f'{PROMPT}.*le="0.25"': 6.0, "le=": 5.0}))
    samples = await server.sample(promised=objectives(FLEET, ttft_s=0.2))
    assert samples.pods.prefill_met.tolist() == [6, 6, 6]
    assert report(samples).problems == ()
    silent = await Server(**counted(**{"le=": 5.0})).sample(promised=objectives(FLEET, ttft_s=0.2))
    assert np.isnan(silent.pods.prefill_met).all()
    assert report(silent).problems == ()


async def test_a_failed_query_affects_only_its_objective():
    server = Server(**counted(**{'le="0.25"': Answer("", status=503), "le=": 70.0}))
    samples = await server.sample(promised=objectives(FLEET, ttft_s=np.array([1.0, 0.25])))
    assert samples.pods.ttft_met == pytest.approx([70, 70, NAN], nan_ok=True)
    assert report(samples).failed == 1
    assert report(samples).problems[0].startswith("ttft_met: ")


async def test_a_missing_histogram_is_unknown_and_reported():
    server = Server(**counted(**{"le=": vector((pod("a-0"), 7), (pod("b-0"), 7))}))
    samples = await server.sample(promised=objectives(FLEET, ttft_s=1.0))
    assert samples.pods.ttft_met == pytest.approx([7, NAN, 7], nan_ok=True)
    (problem,) = report(samples).problems
    histogram = "no buckets of the histogram vllm:time_to_first_token_seconds, nor a native one"
    assert problem.startswith(f"ttft_met: {histogram}, on 1 pods that finish requests: TTFT misses are neither learned")
    server.rules["request_success"] = 0.0
    assert report(await server.sample(promised=objectives(FLEET, ttft_s=1.0))).problems == ()


async def test_bounds_are_queried_periodically_and_sooner_if_unknown():
    clock, server = HandClock(), Server(**counted(**{"le=": 5.0}))
    promised = objectives(FLEET, ttft_s=1.0)
    async with server.source(clock) as source:
        for pause_s, queried in ((5, 1), (NO_BOUNDS_PERIOD_S, 1), (BOUNDS_PERIOD_S, 1), (0, 2)):
            await source.sample(FLEET, promised, 5)
            assert bounds_queries(server) == queried
            clock.time_s += pause_s
    server.rules[BOUNDS_QUERY] = vector()
    server.queried.clear()
    async with server.source(clock) as source:
        for pause_s, queried in ((5, 1), (NO_BOUNDS_PERIOD_S, 1), (0, 2)):
            samples = await source.sample(FLEET, promised, 5)
            assert np.isnan(samples.pods.ttft_met).all()
            assert bounds_queries(server) == queried
            clock.time_s += pause_s


@pytest.mark.parametrize("answer", [Answer("", status=503), vector(({"le": "7"}, 1), isPartial=True)])
async def test_known_bounds_stay_after_a_partial_answer(answer: Answer | str):
    clock, server = HandClock(), Server(**counted(**{"le=": 5.0}))
    promised = objectives(FLEET, ttft_s=1.0)
    async with server.source(clock) as source:
        await source.sample(FLEET, promised, 5)
        server.rules[BOUNDS_QUERY] = answer
        clock.time_s += BOUNDS_PERIOD_S
        assert (await source.sample(FLEET, promised, 5)).pods.ttft_met.tolist() == [5, 5, 5]
    assert len(set(buckets(server))) == 1
