"""Values of recognized queries on simulated signals."""

import numpy as np
import pytest

from autoscaler.config.rules.query import NotRecognized, at_time, recognize
from autoscaler.lab.baselines.query_value import elements
from autoscaler.lab.baselines.signals import BOUNDS
from tests.lab.replay.synthetic import FakeView, observed

STEP_S, END_S = 15.0, 600.0
TTFT, E2E = "vllm:time_to_first_token_seconds_bucket", "vllm:e2e_request_latency_seconds_bucket"
COMMON = np.intersect1d(BOUNDS["ttft"], BOUNDS["e2e"])
TIMES_S = {"ttft": 0.3, "e2e": 9.0, "queue": 0.4, "inference": 8.6, "prefill": 0.9, "decode": 7.7, "tpot": 0.03}


@pytest.fixture(scope="module")
def view() -> FakeView:
    """Two replicas for ten minutes: 7 arrivals and 6 ends per second, two first tokens of 0.3 s, a growing queue."""
    found = FakeView(desired=3, ready=2)
    for now in np.arange(STEP_S, END_S + 1, STEP_S).tolist():
        found.scrape(
            now,
            running=np.array([10.0, 20.0]),
            waiting=np.array([1.0, now / STEP_S]),
            kv_usage=np.array([0.3, 0.5]),
            gateway_waiting=3.0,
            arrivals=7.0 * now,
            finished=6.0 * now,
            first_tokens=2.0 * now,
            latencies=observed(found.totals, **{name: np.full(30, each_s) for name, each_s in TIMES_S.items()}),
        )
    return found


VALUES = [
    ("sum(vllm:num_requests_waiting)", [41.0]),
    ("vllm:num_requests_waiting", [1.0, 40.0]),
    ("avg(vllm:kv_cache_usage_perc) * 100", [40.0]),
    ("max(vllm:num_requests_running)", [20.0]),
    ("min by (model_name) (vllm:num_requests_running)", [10.0]),
    ("count(up)", [2.0]),
    ("quantile(0.5, vllm:num_requests_running)", [15.0]),
    ("stddev(vllm:num_requests_running)", [5.0]),
    ("quantile(1 - 1 / 4, vllm:num_requests_running)", [17.5]),
    ("histogram_quantile(95 / 100, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", [0.4875]),
    ("sum by (pod) (vllm:num_requests_running) > 15", [20.0]),
    ("sum(vllm:num_requests_running > bool 15)", [1.0]),
    ("sum(vllm:num_requests_running) > 100", []),
    ("sum(vllm:num_requests_running) > 100 or vector(0)", [0.0]),
    ("5 < sum(vllm:num_requests_running)", [30.0]),
    ("sum(vllm:num_requests_running) / sum(vllm:num_requests_waiting)", [30 / 41]),
    ("vllm:num_requests_running / vllm:num_requests_waiting", [10.0, 0.5]),
    ("vllm:num_requests_running / sum(vllm:num_requests_running)", []),  # their labels differ
    ("vllm:num_requests_running / on() group_left sum(vllm:num_requests_running)", [1 / 3, 2 / 3]),
    ("vllm:num_requests_running and vllm:num_requests_waiting > 5", [20.0]),
    ("vllm:num_requests_running unless vllm:num_requests_waiting > 5", [10.0]),
    ("absent(vllm:num_requests_running > 100)", [1.0]),
    ("scalar(sum(vllm:num_requests_running)) * 2", [60.0]),
    ("-sum(up)", [-2.0]),
    ("sum(up) ^ 3 % 5", [3.0]),
    ("round(sum(vllm:num_requests_running) / 7)", [4.0]),
    ("clamp(sum(vllm:num_requests_running), 0, 12)", [12.0]),
    ("clamp_min(sum(vllm:num_requests_waiting), 50)", [50.0]),
    ("sqrt(sum(vllm:num_requests_running) + 6)", [6.0]),
    ("sum(rate(vllm:request_success_total[1m]))", [6.0]),
    ("rate(vllm:request_success_total[1m])", [3.0, 3.0]),
    ("sum(increase(vllm:request_success_total[2m]))", [720.0]),
    ("sum(irate(vllm:request_success_total[5m]))", [6.0]),
    ("sum(rate(vllm:num_incoming_requests_total[1m]))", [7.0]),
    ("histogram_quantile(0.5, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", [0.375]),
    ("histogram_quantile(0.5, rate(vllm:time_to_first_token_seconds_bucket[5m]))", [0.375, 0.375]),
    ("histogram_quantile(1.5, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", [np.inf]),
    ("histogram_quantile(-1, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", [-np.inf]),
    (  # nothing lies in the first bucket
        "histogram_quantile(0, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))) >= 0 or vector(7)",
        [7.0],
    ),
    ('sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.25"}[5m]))', [0.0]),
    ('sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.5"}[5m]))', [2.0]),
    ("sum(rate(vllm:time_to_first_token_seconds_count[5m]))", [2.0]),
    ("sum(rate(vllm:time_to_first_token_seconds_sum[5m]))", [2 * 0.3]),
    ("histogram_quantile(0.5, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))", [7.5]),
    ("histogram_quantile(0.5, sum by (service, le) (increase(vllm_e2e_request_latency_seconds_bucket[2m])))", [7.5]),
    ("max(histogram_quantile(0.5, rate(kserve_vllm:request_queue_time_seconds_bucket[1m])))", [0.4]),
    (
        "sum(rate(vllm:request_queue_time_seconds_sum[5m])) / sum(rate(vllm:request_queue_time_seconds_count[5m]))",
        [0.4],
    ),
    ("avg(rate(vllm:time_in_queue_requests_sum[5m]) / rate(vllm:time_in_queue_requests_count[5m]))", [0.4]),
    ("avg by (pod) (increase(vllm:e2e_request_latency_seconds_sum[1m]))", [9.0 * 60, 9.0 * 60]),
    ('1 - sum(rate(vllm:e2e_request_latency_seconds_bucket{le="5.0"}[5m])) / 2', [1.0]),
    ("sum(rate(vllm:request_prefill_time_seconds_sum[5m]))", [1.8]),
    ("sum(rate(vllm:request_decode_time_seconds_sum[5m]))", [15.4]),
    ("sum(rate(vllm:request_inference_time_seconds_sum[5m]))", [17.2]),
    ("histogram_quantile(0.5, sum by (le) (rate(vllm:request_decode_time_seconds_bucket[5m])))", [7.5]),
    ("histogram_quantile(1, sum by (le) (rate(vllm:request_time_per_output_token_seconds_bucket[5m])))", [0.05]),
    ("sum(rate(sglang:queue_time_seconds_sum[5m])) + sum(rate(tgi_request_queue_duration_sum[5m]))", [1.6]),
    ("sum(rate(trtllm_e2e_request_latency_seconds_sum[5m])) - sum(rate(tgi_request_duration_sum[5m]))", [0.0]),
    ("sum(rate(nv_inference_queue_duration_us[1m])) / sum(rate(nv_inference_compute_infer_duration_us[1m]))", [4 / 86]),
    ("sum(rate(nv_inference_request_duration_us[1m]))", [18e6]),
    ("sum(vllm:num_requests_waiting offset 1m)", [37.0]),
    ("max_over_time(vllm:num_requests_waiting[1m])", [40.0, 40.0]),  # pods are not told apart in the past
    ("sum_over_time(sum(vllm:num_requests_running)[1m:15s])", [120.0]),
    ("min_over_time(sum(vllm:num_requests_waiting)[1m:15s])", [38.0]),
    ("avg_over_time(sum(vllm:num_requests_waiting)[1m:15s])", [39.5]),
    ("last_over_time(sum(vllm:num_requests_waiting)[1m:15s])", [41.0]),
    ("count_over_time(up[1m])", [4.0, 4.0]),
    ("sum(deriv(vllm:num_requests_waiting[5m]))", [1 / STEP_S]),
    ("delta(sum(vllm:num_requests_waiting)[2m:15s])", [8.0]),
    ("sum(idelta(vllm:num_requests_waiting[2m]))", [1.0]),
    *(
        (f"{function}((sum(vllm:num_requests_waiting) / 0)[2m:15s]) == bool 1", [0.0])  # infinite, so no number
        for function in ("delta", "idelta", "deriv", "stddev_over_time", "stdvar_over_time")
    ),
    ("sum(predict_linear(vllm:num_requests_waiting[5m], 60))", [45.0]),
    ("predict_linear(sum(vllm:num_requests_waiting)[10m:1m], 10 * 60)", [81.0]),
    ("stdvar_over_time(sum(vllm:num_requests_running)[1m:15s])", [0.0]),
    ("present_over_time(up[1m])", [1.0, 1.0]),
    ("deriv(up[10s])", []),
    ("inference_pool_average_queue_size", [20.5]),
    ("inference_extension_flow_control_queue_size", [3.0]),
    ("inference_pool_ready_pods", [2.0]),
    ("kube_deployment_spec_replicas", [3.0]),
    ("inference_objective_running_requests", [71.0]),
    ("sum(interceptor_request_concurrency)", [74.0]),
    # Buckets beside other series, as nobody should write them.
    ("vector(scalar(sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))) >= 0 or vector(7)", [7.0]),
    (f"count(rate({TTFT}[5m]) or up)", [2.0 * len(BOUNDS["ttft"]) + 2]),
    (f"count(rate({TTFT}[5m]) * rate({E2E}[5m]))", [2.0 * len(COMMON)]),
    ("sum_over_time(vector(1e308)[1m:15s]) * count(up)", [np.inf]),
]


@pytest.mark.parametrize(("query", "values"), VALUES)
def test_query_has_the_value_that_prometheus_gives(query: str, values: list[float], view: FakeView) -> None:
    assert elements(recognize(query), view) == pytest.approx(values)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("sum(vllm:num_requests_waiting)", []),
        ("sum(vllm:num_requests_waiting) or vector(0)", [0.0]),
        ("sum(rate(vllm:request_success_total[1m]))", []),
        ("count(up)", []),
        ("inference_pool_average_queue_size", [0.0]),
        ("inference_extension_flow_control_queue_size", [4.0]),
        ("sum(rate(vllm:num_incoming_requests_total[1m]))", [0.5]),
        ("histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", []),
        ("quantile by (pod) (0.5, rate(vllm:time_to_first_token_seconds_bucket[5m]))", []),
    ],
)
def test_metrics_of_pods_are_gone_when_there_is_no_pod(query: str, values: list[float]) -> None:
    view = FakeView(desired=0, ready=0)
    for now in (15.0, 30.0, 60.0, 90.0):
        view.scrape(now, gateway_waiting=4.0, arrivals=now / 2)
    assert elements(recognize(query), view) == pytest.approx(values)


SUNDAY_S = 1_788_654_600.0  # 2026-09-06T00:30Z


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("sum(vllm:num_requests_waiting) * hour()", [0.0]),
        ("sum(vllm:num_requests_waiting) * (minute() >= bool 30)", [41.0]),
        ("sum(vllm:num_requests_waiting) and on() day_of_week() == 0", [41.0]),
        ("sum(vllm:num_requests_waiting) and on() (hour() >= 8 < 20)", []),
        ("sum(vllm:num_requests_waiting) * 0 + day_of_month() * 100 + month()", [609.0]),
        ("sum(vllm:num_requests_waiting) * 0 + day_of_year() + days_in_month() + year()", [249.0 + 30 + 2026]),
        ("sum(vllm:num_requests_waiting) * 0 + time() % 86400", [1800.0]),
    ],
)
def test_clock_is_that_of_the_evaluation(query: str, values: list[float], view: FakeView) -> None:
    assert elements(at_time(recognize(query), SUNDAY_S), view) == pytest.approx(values)


def test_clock_of_a_recorded_rule_is_that_of_its_offset(view: FakeView) -> None:
    recorded = {"by:clock": "sum(vllm:num_requests_waiting) * 0 + on () minute()"}
    now, before = (recognize(query, recorded=recorded) for query in ("by:clock", "by:clock offset 2m"))
    assert [elements(at_time(node, SUNDAY_S), view).tolist() for node in (now, before)] == [[30.0], [28.0]]


def test_clock_over_a_range_is_not_recognized() -> None:
    with pytest.raises(NotRecognized, match="reads the clock over a range"):
        recognize("max_over_time((sum(vllm:num_requests_waiting) * hour())[1h:1m])")
