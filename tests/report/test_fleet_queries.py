"""Queries of many services at once: the values that each service has on its own."""

import numpy as np
import pytest

from autoscaler.config.rules.query import recognize
from autoscaler.lab.baselines.query_value import elements
from autoscaler.report.fleet_queries import FleetPast, FleetQuery, FleetTotals, NotAlike
from autoscaler.report.rule import ServicePast, totals_of
from tests.lab.baselines.test_query_value import VALUES

SERVICES, STEPS, STEP_S, KEEPS_S = 5, 30, 60.0, 900.0
ROWS = np.array([0, 2, 3, 4])

MORE = [
    "sum(rate(vllm:generation_tokens_total[90s] offset 2m))",
    "max(rate(vllm:request_success_total[10m]))",
    "count by (pod) (rate(vllm:request_success_total[10m]))",
    "group(vllm:num_requests_running)",
    "histogram_quantile(0.99, sum by (le, pod) (rate(vllm:inter_token_latency_seconds_bucket[5m])))",
    "sum(rate(vllm:inter_token_latency_seconds_sum[5m])) / sum(rate(vllm:inter_token_latency_seconds_count[5m]))",
    "sum(vllm:num_requests_running) or sum(vllm:num_requests_waiting)",
    "vllm:num_requests_running unless vllm:num_requests_running > 5",
    "sum(vllm:num_requests_running) == bool 3",
    "absent(sum(vllm:num_requests_running))",
    "ln(sum(vllm:num_requests_running offset 4m))",
    "2 ^ sum(vllm:kv_cache_usage_perc)",
    "clamp_max(vllm:num_requests_waiting, 3)",
    "histogram_quantile(0.9, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
    "sum(rate(vllm:request_queue_time_seconds_sum[5m])) / sum(rate(vllm:request_queue_time_seconds_count[5m]))",
]
OF_SEVERAL_TIMES = [  # pods of two moments, of which there may be fewer or more
    "vllm:num_requests_running - vllm:num_requests_running offset 3m",
    "vllm:num_requests_waiting or rate(vllm:request_success_total[2m] offset 3m)",
    "min by (pod) (vllm:kv_cache_usage_perc * (up + vllm:num_requests_running offset 5m))",
]
USUAL = [
    "sum(vllm:num_requests_waiting)",
    "avg(vllm:kv_cache_usage_perc) * 100",
    "sum(rate(vllm:num_incoming_requests_total[1m]))",
    "histogram_quantile(0.5, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))",
]


@pytest.fixture(scope="module")
def pasts() -> tuple[FleetPast, list[ServicePast]]:
    """Services with nought to four pods, of which some are not scraped in some steps, or first late."""
    rng = np.random.default_rng(5)
    together = FleetPast(FleetTotals.nothing(SERVICES), KEEPS_S, np.zeros(SERVICES, bool))
    alone = [ServicePast(KEEPS_S) for _ in range(SERVICES)]
    totals = FleetTotals.nothing(SERVICES)
    for step in range(STEPS):
        pods = rng.integers(0, 5, SERVICES).astype(float)
        counters = {name: getattr(totals, name) + rng.integers(0, 99, SERVICES) for name in COUNTERS}
        gauges = {name: rng.integers(0, 9, SERVICES).astype(float) for name in ("running", "waiting")}
        latencies = {
            name: type(each)(each.counts + np.sort(rng.integers(0, 50, each.counts.shape)), each.sum_s + rng.random())
            for name, each in totals.latencies.items()
        }
        totals = totals._replace(
            time_s=np.full(SERVICES, step * STEP_S),
            pods=pods,
            kv_usage=rng.random(SERVICES),
            gateway_waiting=np.where(pods > 0, 0.0, 3.0),
            latencies=latencies,
            **counters,
            **gauges,
        )
        scraped = (rng.random(SERVICES) > 0.2) & ((np.arange(SERVICES) != 3) | (step > 20))
        together.add(step * STEP_S, totals, scraped)
        for row in np.flatnonzero(scraped):
            alone[row].add(totals_of(row, together.totals))
    return together, alone


COUNTERS = ("arrivals", "finished", "first_tokens", "prompt_tokens", "generation_tokens")


@pytest.mark.parametrize("query", [*(query for query, _ in VALUES), *MORE, *OF_SEVERAL_TIMES])
def test_many_services_have_the_values_of_each(query: str, pasts: tuple[FleetPast, list[ServicePast]]) -> None:
    together, alone = pasts
    node, now_s = recognize(query), (STEPS - 1) * STEP_S
    try:
        shared = FleetQuery(node, ROWS)
    except NotAlike:  # it tells replicas apart, or looks at single samples
        assert query not in (*USUAL, *MORE)
        return
    for after_s in (0.0, 15.0, 45.0):
        found = shared.values(together, now_s + after_s)
        for index, row in enumerate(ROWS.tolist()):
            alone[row].now_s = now_s + after_s
            assert found.elements(index) == pytest.approx(elements(node, alone[row])), row
