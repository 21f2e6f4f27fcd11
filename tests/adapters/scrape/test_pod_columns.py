"""Columns from metrics text, by the table of each engine.

The texts are short and made from the names, labels and types that the engines' own sources have (see
`catalog/engines.py`), version by version; vLLM 0.32 is recorded from a real server and read in `test_findings.py`.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.scrape.exposition import Exposition, SeriesLabels, parse
from autoscaler.adapters.scrape.pod_columns import (
    MAX_BUCKETS,
    gauges_and_counters,
    histogram,
    sample_names,
    start_time_s,
)
from autoscaler.catalog.engines import ENGINES, QUANTILES, Engine
from autoscaler.catalog.spellings import all_spellings, spelled
from autoscaler.core.table.histogram import quantile

VLLM = ENGINES["vllm"]


def parsed(engine: Engine, text: str) -> Exposition:
    found = parse(text.encode(), sample_names(engine))
    assert not found.broken
    return found


def read(engine: Engine, text: str) -> dict[str, float]:
    """The known columns, without NaN."""
    values = gauges_and_counters(engine, parsed(engine, text))
    return {column: value for column, value in values.items() if not math.isnan(value)}


def p95(engine: Engine, column: str, text: str) -> float:
    found = histogram(engine.readings[column], parsed(engine, text))
    return math.nan if found is None else float(quantile(0.95, found.bounds, found.counts))


def buckets(name: str, labels: str, **counts: int) -> str:
    """A histogram's text; bounds as keyword: le_0_5=3."""
    lines = []
    for key, count in counts.items():
        bound = "+Inf" if key == "le_inf" else key.removeprefix("le_").replace("_", ".")
        lines.append(f'{name}_bucket{{le="{bound}"{"," if labels else ""}{labels}}} {count}')
    return "\n".join(lines) + "\n"


# vLLM, rename by rename.

V0 = 'model_name="m"'
V1 = 'engine="0",model_name="m"'


def test_vllm_0_6_has_old_kv_names_and_swapped_requests() -> None:
    text = f"""
vllm:num_requests_running{{{V0}}} 3.0
vllm:num_requests_swapped{{{V0}}} 2.0
vllm:num_requests_waiting{{{V0}}} 5.0
vllm:gpu_cache_usage_perc{{{V0}}} 0.25
vllm:cpu_cache_usage_perc{{{V0}}} 0.9
vllm:num_preemptions_total{{{V0}}} 1.0
vllm:prompt_tokens_total{{{V0}}} 100.0
vllm:generation_tokens_total{{{V0}}} 200.0
vllm:request_success_total{{finished_reason="stop",{V0}}} 4.0
vllm:request_success_total{{finished_reason="length",{V0}}} 6.0
vllm:cache_config_info{{block_size="16",cache_dtype="auto",num_gpu_blocks="100"}} 1.0
vllm:time_to_first_token_seconds_count{{{V0}}} 12.0
"""
    assert read(VLLM, text) == {
        "running": 3.0,
        "waiting": 7.0,
        "kv_usage": 0.25,
        "preemptions": 1.0,
        "prompt_tokens": 100.0,
        "generation_tokens": 200.0,
        "finished": 10.0,
        "first_tokens": 12.0,
    }


def test_vllm_0_6_ttft_ends_at_10_s() -> None:
    ttft = buckets("vllm:time_to_first_token_seconds", V0, le_0_5=50, le_1_0=90, le_10_0=100, le_inf=100)
    gap = buckets("vllm:time_per_output_token_seconds", V0, le_0_05=94, le_0_1=96, le_inf=96)
    assert p95(VLLM, "ttft_s", ttft) == pytest.approx(5.5)
    assert p95(VLLM, "itl_s", gap) == pytest.approx(0.05 * 91.2 / 94)


def test_vllm_0_7_v1_has_no_engine_label_yet() -> None:
    text = f"vllm:num_requests_running{{{V0}}} 3\nvllm:gpu_cache_usage_perc{{{V0}}} 0.5\n"
    assert read(VLLM, text) == {"running": 3.0, "kv_usage": 0.5}


def test_vllm_0_8_5_labels_data_parallel_engines() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {i + 1}\n'
        f'vllm:gpu_cache_usage_perc{{engine="{i}",model_name="m"}} 0.{i + 1}\n'
        for i in range(4)
    )
    assert read(VLLM, text) == {"running": 10.0, "kv_usage": 0.4}


def test_vllm_0_9_2_may_have_both_kv_names() -> None:
    text = f"vllm:gpu_cache_usage_perc{{{V1}}} 0.5\nvllm:kv_cache_usage_perc{{{V1}}} 0.5\n"
    assert read(VLLM, text) == {"kv_usage": 0.5}


def test_vllm_0_10_2_has_both_token_gap_names() -> None:
    new = buckets("vllm:inter_token_latency_seconds", V1, le_0_05=100, le_0_1=100, le_inf=100)
    old = buckets("vllm:time_per_output_token_seconds", V1, le_0_05=0, le_0_1=100, le_inf=100)
    per_request = buckets("vllm:request_time_per_output_token_seconds", V1, le_0_05=0, le_0_1=0, le_inf=100)
    assert p95(VLLM, "itl_s", old + new + per_request) == pytest.approx(0.0475)
    assert p95(VLLM, "itl_s", old + per_request) == pytest.approx(0.0975)


def test_the_gap_per_request_of_vllm_0_16_is_not_the_token_gap() -> None:
    per_request = buckets("vllm:request_time_per_output_token_seconds", V1, le_0_05=0, le_0_1=0, le_inf=100)
    assert math.isnan(p95(VLLM, "itl_s", per_request))


def test_vllm_0_11_2_reports_sleep() -> None:
    states = "".join(
        f'vllm:engine_sleep_state{{{V1},sleep_state="{state}"}} {value}\n'
        for state, value in (("awake", 0), ("weights_offloaded", 1), ("discard_all", 0))
    )
    assert read(VLLM, states) == {"asleep": 1.0}
    assert read(VLLM, states.replace('awake"} 0', 'awake"} 1')) == {"asleep": 0.0}
    assert "asleep" not in read(VLLM, f"vllm:num_requests_running{{{V1}}} 3\n")


def test_vllm_0_20_queue_reasons_are_not_added_to_the_queue() -> None:
    text = f"""
vllm:num_requests_waiting{{{V1}}} 7
vllm:num_requests_waiting_by_reason{{{V1},reason="capacity"}} 5
vllm:num_requests_waiting_by_reason{{{V1},reason="deferred"}} 2
"""
    assert read(VLLM, text) == {"waiting": 7.0, "deferred": 2.0}


def test_vllm_0_33_counts_rejections_by_reason() -> None:
    text = """
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 10
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_tokens"} 3
"""
    assert read(VLLM, text) == {"rejections": 13.0}


def test_vllm_names_without_colons_are_read() -> None:
    text = 'vllm_num_requests_waiting{model_name="m"} 4\nvllm_generation_tokens{model_name="m"} 9\n'
    assert read(VLLM, text) == {}
    assert read(spelled(VLLM, all_spellings()), text) == {"waiting": 4.0, "generation_tokens": 9.0}


def test_the_production_stack_router_is_no_engine() -> None:
    text = (
        'vllm:num_requests_running{server="http://10.0.0.7:8000"} 9\nvllm:num_requests_waiting{server="http://x"} 9\n'
    )
    assert read(VLLM, text) == {}


def test_an_engine_is_read_with_a_label_server_from_its_job() -> None:
    labels = 'engine="0",model_name="m",server="gpu-node-7"'
    text = f'vllm:num_requests_running{{{labels}}} 9\nvllm:engine_sleep_state{{{labels},sleep_state="awake"}} 1\n'
    assert read(VLLM, text) == {"running": 9.0, "asleep": 0.0}


def test_lora_adapters_of_one_engine_are_one_pod() -> None:
    text = (
        f"vllm:num_requests_running{{{V1}}} 3\n"
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e9\n'
        'vllm:generation_tokens_total{engine="0",model_name="a"} 10\n'
        'vllm:generation_tokens_total{engine="0",model_name="b"} 5\n'
    )
    assert read(VLLM, text) == {"running": 3.0, "generation_tokens": 15.0}


def test_vllm_prompt_tokens_are_those_that_it_computed() -> None:
    total = f"vllm:prompt_tokens_total{{{V1}}} 100\n"
    old_hits = f"vllm:gpu_prefix_cache_hits_total{{{V1}}} 30\n"
    hits = f"vllm:prefix_cache_hits_total{{{V1}}} 30\nvllm:external_prefix_cache_hits_total{{{V1}}} 50\n"
    sources = {"local_compute": 15, "local_cache_hit": 35, "external_kv_transfer": 50}
    by_source = "".join(
        f'vllm:prompt_tokens_by_source_total{{{V1},source="{source}"}} {tokens}\n' for source, tokens in sources.items()
    )
    assert read(VLLM, total) == {"prompt_tokens": 100.0}
    assert read(VLLM, total + old_hits) == {"prompt_tokens": 70.0}
    assert read(VLLM, total + old_hits + hits) == {"prompt_tokens": 20.0}
    assert read(VLLM, total + old_hits + hits + by_source) == {"prompt_tokens": 15.0}


def test_sglang_prompt_tokens_are_those_that_it_computed() -> None:
    text = 'sglang:prompt_tokens_total{model_name="m"} 100\n'
    text += "".join(
        f'sglang:cached_tokens_total{{cache_source="{source}",model_name="m"}} {tokens}\n'
        for source, tokens in (("device", 30), ("host", 20), ("storage", 10))
    )
    assert read(ENGINES["sglang"], text) == {"prompt_tokens": 40.0}


# The other engines, one test each.


def test_sglang_counts_tensor_parallel_groups_once() -> None:
    text = ""
    for dp, tp in ((0, 0), (0, 1), (1, 2), (1, 3)):
        labels = f'dp_rank="{dp}",engine_type="unified",model_name="m",pp_rank="0",tp_rank="{tp}"'
        text += f"sglang:num_running_reqs{{{labels}}} {4 + dp}\nsglang:num_queue_reqs{{{labels}}} {dp}\n"
        text += f"sglang:num_grammar_queue_reqs{{{labels}}} 1\nsglang:token_usage{{{labels}}} 0.{dp + 2}\n"
        text += f"sglang:max_total_num_tokens{{{labels}}} 1000\nsglang:num_retracted_requests_total{{{labels}}} 2\n"
    group = 'engine_type="unified",model_name="m"'
    text += f"sglang:prompt_tokens_total{{{group}}} 50\nsglang:generation_tokens_total{{{group}}} 70\n"
    text += f"sglang:num_requests_total{{{group}}} 8\nsglang:num_aborted_requests_total{{{group}}} 3\n"
    text += f"sglang:time_to_first_token_seconds_count{{{group}}} 9\n"
    assert read(ENGINES["sglang"], text) == {
        "running": 9.0,
        "waiting": 3.0,
        "kv_usage": 0.3,
        "prompt_tokens": 50.0,
        "generation_tokens": 70.0,
        "finished": 8.0,
        "first_tokens": 9.0,
        "preemptions": 4.0,
    }


@pytest.mark.parametrize("label", ["tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "pid"])
def test_sglang_counts_a_group_once_when_a_label_repeats_it(label: str) -> None:
    text = ""
    for rank in range(4):
        labels = f'dp_rank="0",model_name="m",{label}="{900 + rank}"'
        text += f"sglang:num_running_reqs{{{labels}}} 10\nsglang:num_queue_reqs{{{labels}}} 2\n"
        text += f"sglang:num_paused_reqs{{{labels}}} 3\nsglang:time_to_first_token_seconds_count{{{labels}}} 7\n"
        text += buckets("sglang:time_to_first_token_seconds", labels, le_1_0=5, le_inf=7)
    assert read(ENGINES["sglang"], text) == {"running": 10.0, "waiting": 5.0, "first_tokens": 7.0}
    found = histogram(ENGINES["sglang"].readings["ttft_s"], parsed(ENGINES["sglang"], text))
    assert found is not None
    assert found.counts.tolist() == [5.0, 7.0]


@pytest.mark.parametrize("queue", ["decode_transfer", "prefill_inflight"])
def test_sglang_requests_in_transfer_are_deferred_at_either_side(queue: str) -> None:
    text = f'sglang:num_queue_reqs{{model_name="m"}} 1\nsglang:num_{queue}_queue_reqs{{model_name="m"}} 3\n'
    assert read(ENGINES["sglang"], text) == {"waiting": 4.0, "deferred": 3.0}


def test_sglang_counts_queues_once_and_adds_priorities() -> None:
    """With priorities, a queue is reported as a whole and per priority; streamed requests are counted separately."""
    text = ""
    for priority, running, queued in (("", 5, 4), ("0", 2, 0), ("7", 3, 4)):
        labels = f'model_name="m",priority="{priority}",tp_rank="0"'
        text += f"sglang:num_running_reqs{{{labels}}} {running}\nsglang:num_queue_reqs{{{labels}}} {queued}\n"
        text += f"sglang:num_decode_transfer_queue_reqs{{{labels}}} {queued}\n"
    for streaming, priority, tokens in (("true", "0", 100), ("false", "0", 50), ("true", "7", 7)):
        labels = f'is_streaming="{streaming}",model_name="m",priority="{priority}"'
        text += f"sglang:generation_tokens_total{{{labels}}} {tokens}\nsglang:num_requests_total{{{labels}}} 1\n"
    found = {"running": 5.0, "waiting": 8.0, "deferred": 4.0, "generation_tokens": 157.0, "finished": 3.0}
    assert read(ENGINES["sglang"], text) == found


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_sglang_token_gap_names_differ_by_version(name: str) -> None:
    text = buckets(f"sglang:{name}", 'model_name="m"', le_0_01=0, le_0_02=100, le_inf=100)
    assert p95(ENGINES["sglang"], "itl_s", text) == pytest.approx(0.0195)


def test_tgi_has_tokens_in_histograms_and_rejections_in_failures() -> None:
    text = """
tgi_batch_current_size 6
tgi_queue_size 2
tgi_request_input_length_sum 1200
tgi_request_generated_tokens_sum 900
tgi_request_success{method="generate"} 30
tgi_request_failure{err="overloaded"} 5
tgi_request_failure{err="generation"} 2
tgi_request_failure{err="validation"} 50
"""
    assert read(ENGINES["tgi"], text) == {
        "running": 6.0,
        "waiting": 2.0,
        "prompt_tokens": 1200.0,
        "generation_tokens": 900.0,
        "finished": 32.0,
        "rejections": 5.0,
    }
    gap = buckets("tgi_request_mean_time_per_token_duration", "", le_0_02=50, le_0_04=100, le_inf=100)
    assert p95(ENGINES["tgi"], "itl_s", gap) == pytest.approx(0.038)


TRTLLM_TEXT = """
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 3
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 4
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.5
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 100
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="m"} 7
trtllm_request_success_total{engine_type="trtllm",finished_reason="length",model_name="m"} 1
trtllm_time_to_first_token_seconds_count{engine_type="trtllm",model_name="m"} 9
"""


@pytest.mark.parametrize("prefix", ["trtllm_", ""])
def test_tensorrt_llm_is_read_with_and_without_prefix(prefix: str) -> None:
    text = TRTLLM_TEXT.replace("\ntrtllm_", f"\n{prefix}")
    assert read(ENGINES["trtllm"], text) == {
        "running": 3.0,
        "waiting": 4.0,
        "kv_usage": 0.5,
        "finished": 8.0,
        "first_tokens": 9.0,
    }
    assert ENGINES["trtllm"].path == "/prometheus/metrics"
    ttft = buckets(f"{prefix}time_to_first_token_seconds", 'model_name="m"', le_1_0=100, le_inf=100)
    gap = buckets(f"{prefix}time_per_output_token_seconds", 'model_name="m"', le_0_1=100, le_inf=100)
    assert p95(ENGINES["trtllm"], "ttft_s", ttft) == pytest.approx(0.95)
    assert p95(ENGINES["trtllm"], "itl_s", gap) == pytest.approx(0.095)


def test_triton_counts_a_request_once_per_ensemble() -> None:
    text = ""
    for kind, value in (("waiting", 2), ("context", 1), ("scheduled", 4), ("max", 512), ("active", 5)):
        text += f'nv_trt_llm_request_metrics{{model="tensorrt_llm",request_type="{kind}",version="1"}} {value}\n'
    for kind, value in (("used", 10), ("free", 90), ("max", 100), ("tokens_per", 64), ("fraction", 0.1)):
        labels = f'kv_cache_block_type="{kind}",model="tensorrt_llm",version="1"'
        text += f"nv_trt_llm_kv_cache_block_metrics{{{labels}}} {value}\n"
    for model in ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble"):
        text += f'nv_inference_request_success{{model="{model}",version="1"}} 20\n'
        text += f'nv_inference_pending_request_count{{model="{model}",version="1"}} 3\n'
    text += 'nv_inference_request_failure{model="ensemble",reason="BACKEND",version="1"} 1\n'
    text += 'nv_inference_request_failure{model="ensemble",reason="OTHER",version="1"} 1\n'
    assert read(ENGINES["triton"], text) == {
        "running": 5.0,
        "waiting": 2.0,
        "max_running": 512.0,
        "kv_usage": 0.1,
        "finished": 22.0,
    }


def test_triton_reports_its_queue_without_engine_gauges() -> None:
    text = "".join(f'nv_inference_pending_request_count{{model="{m}",version="1"}} 3\n' for m in ("a", "ensemble"))
    assert read(ENGINES["triton"], text) == {"waiting": 3.0}


def test_milliseconds_of_triton_become_seconds() -> None:
    text = buckets(
        "nv_inference_first_response_histogram_ms", 'model="m",version="1"', le_100=0, le_500=100, le_inf=100
    )
    assert p95(ENGINES["triton"], "ttft_s", text) == pytest.approx(0.48)


# Histograms that are not whole.


def test_histograms_with_other_bounds_are_merged_where_exact() -> None:
    one = buckets("vllm:time_to_first_token_seconds", 'engine="0"', le_0_5=5, le_1_0=10, le_inf=10)
    other = buckets("vllm:time_to_first_token_seconds", 'engine="1"', le_1_0=10, le_2_0=10, le_inf=10)
    found = histogram(VLLM.readings["ttft_s"], parsed(VLLM, one + other))
    assert found is not None
    np.testing.assert_array_equal(found.bounds, [1.0, math.inf])
    np.testing.assert_array_equal(found.counts, [20.0, 20.0])


@pytest.mark.parametrize(
    "line",
    [
        "vllm:time_to_first_token_seconds_bucket 5",
        'vllm:time_to_first_token_seconds_bucket{le="much"} 5',
        'vllm:time_to_first_token_seconds_bucket{le="NaN"} 5',
        'vllm:time_to_first_token_seconds_bucket{le="2.0"} NaN',
        'vllm:time_to_first_token_seconds_bucket{le="2.0"} -1',
        'vllm:time_to_first_token_seconds_bucket{le="2.0"} +Inf',
    ],
)
def test_a_histogram_with_a_senseless_bucket_is_unknown(line: str) -> None:
    text = buckets("vllm:time_to_first_token_seconds", "", le_1_0=10, le_inf=10)
    assert not math.isnan(p95(VLLM, "ttft_s", text))
    assert math.isnan(p95(VLLM, "ttft_s", text + line + "\n"))


def test_a_histogram_of_absurdly_many_buckets_is_unknown() -> None:
    lines = "".join(f'vllm:time_to_first_token_seconds_bucket{{le="{i}"}} {i}\n' for i in range(MAX_BUCKETS + 1))
    assert math.isnan(p95(VLLM, "ttft_s", lines + 'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 999\n'))


def test_a_histogram_that_lost_its_last_bucket_is_unknown() -> None:
    assert math.isnan(p95(VLLM, "ttft_s", buckets("vllm:time_to_first_token_seconds", "", le_1_0=10, le_2_0=10)))


def test_a_usage_above_one_is_unknown() -> None:
    assert read(VLLM, f"vllm:kv_cache_usage_perc{{{V1}}} 55\nvllm:num_requests_running{{{V1}}} 1\n") == {"running": 1.0}


def test_the_start_of_the_process_is_read_if_present() -> None:
    assert start_time_s(parsed(VLLM, "process_start_time_seconds 1.7e9\n")) == 1.7e9
    assert math.isnan(start_time_s(parsed(VLLM, f"vllm:num_requests_running{{{V1}}} 1\n")))


# Whatever arrives.

odd_labels = st.dictionaries(
    st.sampled_from(["le", "engine", "server", "sleep_state", "tp_rank", "block_size", "num_gpu_blocks", "err", "x"]),
    st.sampled_from(["", "0", "1", "+Inf", "NaN", "-1", "1e999", "awake", "None", "\u2028", "0x1", "1_0"]),
    max_size=4,
)
odd_numbers = st.one_of(st.floats(), st.integers(-5, 5).map(float), st.sampled_from([1e308, -1e308, 5e-324]))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
@given(data=st.data())
def test_any_series_give_valid_or_unknown_columns(engine: Engine, data: st.DataObject) -> None:
    names = sorted(name.decode() for name in sample_names(engine))
    series = data.draw(
        st.dictionaries(st.sampled_from(names), st.lists(st.tuples(odd_labels, odd_numbers), min_size=1, max_size=5))
    )
    found = {name: [(SeriesLabels(labels), value) for labels, value in samples] for name, samples in series.items()}
    exposition = Exposition(series=found)
    for column, value in gauges_and_counters(engine, exposition).items():
        assert math.isnan(value) or 0 <= value < math.inf, column
    for column in QUANTILES & engine.readings.keys():
        found = histogram(engine.readings[column], exposition)
        assert found is None or (len(found.bounds) >= 2 and bool(np.all(np.diff(found.bounds) > 0)))
