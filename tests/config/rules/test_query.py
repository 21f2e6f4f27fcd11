"""Which signals a PromQL query is computed from, for the spellings that guides, charts and people use."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.promql import MAX_CHARS
from autoscaler.config.rules.query import NotRecognized, QueryPart, recognize

KNOWN = [
    # vLLM production stack: helm/values.yaml and docs/source/use_cases/autoscaling-keda.rst
    ("vllm:num_requests_waiting", "waiting"),
    ("sum(rate(vllm:num_incoming_requests_total[1m]) > bool 0)", "arrivals"),
    ('vllm:num_requests_waiting{model="llama", namespace="a"}', "waiting"),
    # KServe: docs/model-serving/generative-inference/autoscaling, and its prefix of names
    ('vllm:num_requests_running{model_name="opt-125m"}', "running"),
    ('sum(kserve_vllm:num_requests_waiting{namespace="a"})', "waiting"),
    # llm-d: guides/workload-autoscaling, and rules of prometheus-adapter in its repositories
    ('sum(inference_extension_flow_control_queue_size{inference_pool="pool"})', "gateway_waiting"),
    ("sum(llm_d_epp_flow_control_queue_size)", "gateway_waiting"),
    ('inference_pool_average_queue_size{name="pool"}', "waiting"),
    ("avg(inference_pool_average_kv_cache_utilization)", "kv_usage"),
    ("sum(inference_objective_running_requests)", "inflight"),
    ("max(llm_d_epp_average_running_requests) * llm_d_epp_ready_endpoints", "ready running"),
    # KEDA, kube-state-metrics and charts of people
    ("sum(rate(vllm:request_success_total[2m]))", "finished"),
    ('avg(vllm:gpu_cache_usage_perc{namespace="a",model_name="m"}) * 100', "kv_usage"),
    ('max(vllm:num_requests_running{model_name="m"}) / scalar(vector(32))', "running"),
    ("sum(vllm:num_requests_waiting) / count(vllm:num_requests_waiting)", "waiting"),
    ("sum(vllm:num_requests_waiting) or vector(0)", "waiting"),
    ("sum(vllm_num_requests_running) + sum(vllm_num_requests_waiting)", "running waiting"),
    ('sum by (model_name) (ray_vllm:num_requests_waiting{application="a"})', "waiting"),
    ('sum without (pod, instance) ({__name__="vllm:num_requests_waiting", namespace="a"})', "waiting"),
    ("histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", "ttft"),
    ("histogram_quantile(0.95,\n  sum(rate(vllm:inter_token_latency_seconds_bucket[2m])) by (le)) # p95", "itl"),
    ("histogram_quantile(0.9, rate(vllm_time_per_output_token_seconds_bucket[5m]))", "itl"),
    (
        "sum(rate(vllm:time_to_first_token_seconds_sum[5m])) / sum(rate(vllm:time_to_first_token_seconds_count[5m]))",
        "first_tokens ttft_sum_s",
    ),
    ("histogram_quantile(0.9, sum by (le, job) (rate(vllm:request_queue_time_seconds_bucket[30s])))", "queue"),
    (
        "sum(rate(vllm:e2e_request_latency_seconds_sum[5m]))\n"
        "/ clamp_min(sum(rate(vllm:e2e_request_latency_seconds_count[5m])), 1e-9)",
        "e2e_count e2e_sum_s",
    ),
    ("histogram_quantile(0.99, sum(rate(ray_vllm_request_prefill_time_seconds_bucket[1m])) by (le))", "prefill"),
    ('1 - sum(rate(vllm:time_to_first_token_seconds_bucket{le="0.5"}[5m]))', "ttft"),
    ("max_over_time(sum(vllm:num_requests_waiting)[5m:30s])", "waiting"),
    ("avg(avg_over_time(vllm:kv_cache_usage_perc[2m]))", "kv_usage"),
    ("topk(1, vllm:num_requests_waiting)", "waiting"),
    ("clamp_max(sum(vllm:num_requests_waiting offset 1m), 50)", "waiting"),
    ('label_replace(sum(vllm:num_requests_waiting), "a", "$1", "b", "(.*)")', "waiting"),
    ("sum(sglang:num_queue_reqs) + sum(tgi_queue_size)", "waiting"),
    ("sum(rate(vllm:generation_tokens_total[1m])) / count(up)", "generation_tokens up"),
    ('kube_deployment_status_replicas_ready{deployment="llama"} * sum(vllm:num_requests_waiting)', "ready waiting"),
]


@pytest.mark.parametrize(("query", "columns"), KNOWN)
def test_query_is_computed_from_the_signals(query: str, columns: str) -> None:
    assert " ".join(sorted(recognize(query, "a").columns())) == columns


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("sum(http_requests_total)", "http_requests_total is no metric whose meaning is known"),
        ("sum(vllm:request_success_total)", "is a counter, and it has no rate"),
        ('sum(rate(vllm:request_success_total{finished_reason="stop"}[1m]))', "the label finished_reason"),
        ("sum(rate(vllm:num_requests_waiting[1m]))", "rate is over vllm:num_requests_waiting"),
        ('sum(vllm:num_requests_waiting{namespace="b"})', "'b', and the workload is in 'a'"),
        ('vllm:num_requests_waiting{pod="llama-1"}', "it selects one pod, by pod"),
        ('sum({__name__=~"vllm:num_requests_.*"})', "the name of its metric is a pattern"),
        ("quantile(scalar(sum(up)), up)", "a parameter is computed from what is not a number"),
        ("changes(vllm:num_requests_waiting[5m])", "the function changes is not supported"),
        ("deriv(vllm:request_success_total[5m])", "deriv is over vllm:request_success_total, which is a counter"),
        ("sum(vllm:num_requests_waiting @ end())", "fixed in time by @"),
        ("max_over_time(vllm:num_requests_waiting[1d])", "a window of 86,400 s"),
        ("max_over_time(max_over_time(sum(up)[6h:1m])[6h:1m])", "samples and steps for one value"),
        ("sum(rate(vllm:prefix_cache_hits_total[1m]))", "vllm:prefix_cache_hits_total is not simulated"),
        ("histogram_quantile(0.9, rate(vllm:e2e_request_latency_seconds[5m]))", "alone is a native histogram"),
        ("sum(vllm:e2e_request_latency_seconds_sum)", "is a counter, and it has no rate"),
        ("avg(DCGM_FI_DEV_GPU_UTIL)", "DCGM_FI_DEV_GPU_UTIL is not simulated"),
        ("vector(1)", "it depends on no signal of the workload"),
        ("sum(", "it is no PromQL"),
        ("", "it is no PromQL"),
        ("sum by (finished_reason) (vllm:num_requests_waiting)", "the label finished_reason"),
        ("topk(3, vllm:num_requests_waiting)", "the aggregation topk is not supported"),
        ('vllm:num_requests_waiting{le="1"}', "which vllm:num_requests_waiting does not have"),
    ],
)
def test_reason_is_told_when_a_meaning_is_not_known(query: str, reason: str) -> None:
    with pytest.raises(NotRecognized, match="(?s).*" + re.escape(reason)):
        recognize(query, "a")


RECORDED = {
    "team:queue:sum": 'sum(vllm:num_requests_waiting{namespace="a"})',
    "team:queue": "team:queue:sum / 2",
    "team:other": "sum(something_else)",
    "round": "round + 1",
}


@pytest.mark.parametrize(
    ("query", "columns"),
    [("team:queue:sum", "waiting"), ("max_over_time(team:queue[5m])", "waiting"), ("team:queue + 1", "waiting")],
)
def test_recording_rules_are_followed(query: str, columns: str) -> None:
    assert " ".join(sorted(recognize(query, "a", RECORDED).columns())) == columns


@pytest.mark.parametrize(
    ("query", "reason"),
    [("team:other", "recording rule team:other: something_else"), ("round", "refers to itself")],
)
def test_recording_rule_that_is_not_known_is_named(query: str, reason: str) -> None:
    with pytest.raises(NotRecognized, match=reason):
        recognize(query, "a", RECORDED)


@pytest.mark.parametrize(
    "query",
    [
        "(" * 4000,
        "sum(" * 800 + "up" + ")" * 800,
        "-" * 4000 + "up",
        "up" + "+up" * 2000,
        "a" * (MAX_CHARS + 1),
        "up{" + 'a="b",' * 600 + "}",
        '"' * 4001,
        "vllm:num_requests_waiting offset Inf",
    ],
    ids=["open", "deep", "signs", "long", "text", "labels", "quotes", "a panic of the parser"],
)
def test_hostile_query_is_refused_at_once(query: str) -> None:
    with pytest.raises(NotRecognized):
        recognize(query)


def test_recording_rules_that_multiply_are_refused() -> None:
    """60 references in each of four rules would be 13 million parts."""
    rules = {f"r:{number}": "+".join([f"r:{number + 1}"] * 60) for number in range(4)}
    with pytest.raises(NotRecognized, match="with its recording rules it has more than 5,000 parts"):
        recognize("r:0", recorded={**rules, "r:4": "sum(vllm:num_requests_running)"})


@given(st.text(alphabet='sumratevl:_()[]{}=~"\\#,.0159+-*/ \n', max_size=60))
def test_any_text_is_a_meaning_or_a_reason(text: str) -> None:
    try:
        assert isinstance(recognize(text), QueryPart)
    except NotRecognized as error:
        assert str(error)


WORDS = [
    "sum",
    "by",
    "(",
    ")",
    "[",
    "]",
    "5m",
    "1y",
    "offset",
    "@",
    "start()",
    "end()",
    "a",
    '"x"',
    "=~",
    "1e400",
    "NaN",
    "Inf",
    "-Inf",
    "0x1",
    "rate",
    "[5m:",
    "1h]",
    ":",
    ",",
    "and",
    "on",
    "bool",
    ">",
    "-",
    "^",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
def test_words_of_promql_in_any_order_are_a_meaning_or_a_reason(text: str) -> None:
    try:
        assert isinstance(recognize(text), QueryPart)
    except NotRecognized as error:
        assert str(error)
