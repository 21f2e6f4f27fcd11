"""Names of the metrics of inference engines: one row per engine, for the scraper and the Prometheus adapter.

A new engine or a renamed metric is a change in this table only. Units are converted here (`Series.scale`), so each
column has the unit that `core.model.samples.PodSamples` states.

Sources: vLLM 0.6.0 to 0.33.0 (`vllm/engine/metrics.py`, `vllm/v1/metrics/loggers.py`), SGLang 0.4.0 to 0.5.23, TGI
v3.3.7, TensorRT-LLM `trtllm-serve`, Triton with the TensorRT-LLM backend, the observability page of NIM for LLMs 1.x;
vLLM 0.32 as recorded from a real server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from autoscaler.catalog.series import Aggregation, Readings, Series, counter, first, renamed

# Columns are read in the same way for every engine; those not listed here are read as they are.
# Gauges can be unknown to a server: a negative one makes the whole reading unknown, because a sum with or without it
# would be too small.
GAUGES = frozenset({"running", "waiting", "deferred", "kv_usage", "max_running"})
QUANTILES = frozenset({"ttft_s", "itl_s"})  # quantiles of histograms
# Counts within an objective, from histograms: the column of `core.model.samples.Objectives` with the limit.
WITHIN: Mapping[str, str] = MappingProxyType({"ttft_met": "ttft_s", "itl_met": "itl_s", "prefill_met": "ttft_s"})
# Those counted up to the next bound above the objective: requests beyond it certainly miss it.
ROUNDED_UP = frozenset({"prefill_met"})
UNCOUNTED: Mapping[str, str] = MappingProxyType(  # what is lost without the column, to be reported
    {
        "ttft_met": "TTFT misses are neither learned by load nor counted against the error budget",
        "itl_met": "ITL misses are neither learned by load nor counted against the error budget",
    }
)
DEFAULT_ENGINE, DEFAULT_PORT = "vllm", 8000
START_TIME = "process_start_time_seconds"  # of any engine; changes when the process restarts
CPU_TIME = "process_cpu_seconds_total"  # of that process
HISTOGRAMS = QUANTILES | WITHIN.keys()  # their rows name a histogram, without `_bucket`

# Largest possible readings; beyond them, and below 0, a reading is unknown. Other columns have no limit.
LIMITS: Mapping[str, float] = MappingProxyType({"kv_usage": 1.0, "asleep": 1.0})


@dataclass(frozen=True)
class Engine:
    """How to read one engine."""

    name: str
    readings: Mapping[str, Readings]  # alternatives by column of PodSamples; the engine does not report absent columns
    path: str = "/metrics"
    port: int = DEFAULT_PORT  # unless options or the container state another
    model_label: str = ""  # label with the name of the model; "" if there is none
    served_label: str = ""  # that label, if the command line sets its value
    process_labels: bool = False  # gauges may be labelled with the process that wrote them, and its rank
    load_path: str = ""  # endpoint that returns {"server_load": n}; "" if there is none

    def series(self) -> tuple[Series, ...]:
        """Return all rows of the engine with nested ones, each once."""
        rows = (part for readings in self.readings.values() for row in readings for part in row.parts())
        return tuple(dict.fromkeys(rows))

    @cached_property
    def histograms(self) -> Mapping[Readings, tuple[str, ...]]:
        """The columns that are read from a histogram, by its readings: several columns use the TTFT histogram."""
        found: dict[Readings, tuple[str, ...]] = {}
        for column, readings in self.readings.items():
            if column in HISTOGRAMS:
                found[readings] = (*found.get(readings, ()), column)
        return MappingProxyType(found)

    def renamed(self, *renames: Callable[[str], str]) -> Engine:
        """Return this engine under the names of each of `renames`, in that order."""
        readings = {column: renamed(rows, *renames) for column, rows in self.readings.items()}
        return replace(self, readings=MappingProxyType(readings))


# The router of vLLM's production stack exposes the engines' names with a label `server` and is not an engine. Every
# engine sets `model_name`, and a scrape job may add a label `server` to its targets.
_ROUTER = ("server", "model_name")


def _vllm(*names: str, aggregation: Aggregation = Aggregation.SUM) -> Readings:
    return tuple(Series(name, aggregation, foreign=_ROUTER) for name in names)


def _vllm_counter(name: str) -> Readings:
    return _vllm(f"{name}_total", name)


# Prompt tokens that this engine computed. Tokens from a cache, or from another pod with its KV cache, are no prefill
# here. From 0.16 on they are separated by source. Before, hits are counted when a request is scheduled, slightly before
# its prompt, so the difference may decrease by one request. Up to 0.11.0 a request that was preempted is looked up
# again and hits its own blocks. These lookups count as queries, but not as prompt tokens.
_VLLM_COMPUTED = (
    Series("vllm:prompt_tokens_by_source_total", where=(("source", ("local_compute",)),)),
    *(
        replace(
            row,
            minus=(
                first("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
                first("vllm:external_prefix_cache_hits_total"),
            ),
            again=first("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        )
        for row in _vllm_counter("vllm:prompt_tokens")
    ),
)

VLLM = Engine(
    name="vllm",
    model_label="model_name",
    served_label="model_name",
    load_path="/load",
    readings=MappingProxyType(
        {
            "running": _vllm("vllm:num_requests_running"),
            # From 0.20 on this includes the deferred queue; a pod with either must not be removed.
            # 0.6 to 0.9 (V0) count requests swapped out to the CPU separately.
            "waiting": (Series("vllm:num_requests_waiting", foreign=_ROUTER, plus=_vllm("vllm:num_requests_swapped")),),
            # Where prefill and decode are separate: requests whose KV cache is on its way. From 0.20 on.
            "deferred": (
                Series("vllm:num_requests_waiting_by_reason", where=(("reason", ("deferred",)),), foreign=_ROUTER),
            ),
            # awake = 0 is sleep of any level; level 0 sets no other state.
            "asleep": (
                Series(
                    "vllm:engine_sleep_state",
                    Aggregation.MAX,
                    where=(("sleep_state", ("awake",)),),
                    foreign=_ROUTER,
                    inverted=True,
                ),
            ),
            "kv_usage": _vllm("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", aggregation=Aggregation.MAX),
            "prompt_tokens": _VLLM_COMPUTED,
            "generation_tokens": _vllm_counter("vllm:generation_tokens"),
            "finished": _vllm_counter("vllm:request_success"),
            "first_tokens": _vllm("vllm:time_to_first_token_seconds_count"),
            "ttft_met": _vllm("vllm:time_to_first_token_seconds"),
            "gap_s": _vllm("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum"),
            "gaps": _vllm("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count"),
            # One value per request, from 0.11 on; `time_per_output_token` has one per token.
            "itl_judged": _vllm("vllm:request_time_per_output_token_seconds_count"),
            "itl_met": _vllm("vllm:request_time_per_output_token_seconds"),
            # From scheduling to the first token, without the queue.
            "prefill_judged": _vllm("vllm:request_prefill_time_seconds_count"),
            "prefill_met": _vllm("vllm:request_prefill_time_seconds"),
            "preemptions": _vllm_counter("vllm:num_preemptions"),
            "rejections": _vllm_counter("vllm:admission_rejections"),
            "ttft_s": _vllm("vllm:time_to_first_token_seconds"),
            "itl_s": _vllm("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        }
    ),
)


def _sglang(*names: str, aggregation: Aggregation = Aggregation.SUM, repeated: tuple[str, ...] = ()) -> Readings:
    return tuple(Series(f"sglang:{name}", aggregation, repeated=repeated) for name in names)


def _sglang_queue(name: str) -> Series:
    """With priorities, a queue is reported as a whole with priority="", and again per priority."""
    return _sglang(name, repeated=("priority",))[0]


SGLANG = Engine(
    name="sglang",
    port=30_000,
    model_label="model_name",
    served_label="model_name",
    process_labels=True,
    readings=MappingProxyType(
        {
            "running": (_sglang_queue("num_running_reqs"),),
            "waiting": (
                replace(
                    _sglang_queue("num_queue_reqs"),
                    plus=tuple(
                        _sglang_queue(f"num_{name}_reqs")
                        for name in (
                            "paused",
                            "grammar_queue",
                            "prefill_bootstrap_queue",
                            "prefill_prealloc_queue",
                            "prefill_inflight_queue",
                            "decode_prealloc_queue",
                            "decode_transfer_queue",
                        )
                    ),
                ),
            ),
            # A server sets the gauge of its own side.
            "deferred": tuple(
                _sglang_queue(f"num_{name}_queue_reqs") for name in ("decode_transfer", "prefill_inflight")
            ),
            "kv_usage": _sglang("token_usage", aggregation=Aggregation.MAX),
            "prompt_tokens": tuple(
                replace(row, minus=(_sglang("cached_tokens_total"),))
                for row in _sglang("prompt_tokens_total", "prompt_tokens")
            ),
            "generation_tokens": _sglang("generation_tokens_total", "generation_tokens"),
            "finished": _sglang("num_requests_total", "num_requests"),  # includes aborted ones
            "first_tokens": _sglang("time_to_first_token_seconds_count"),
            "ttft_met": _sglang("time_to_first_token_seconds"),
            "gap_s": _sglang("inter_token_latency_seconds_sum", "time_per_output_token_seconds_sum"),
            "gaps": _sglang("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"),
            "itl_judged": _sglang("request_time_per_output_token_seconds_count"),  # from 0.5.23 on
            "itl_met": _sglang("request_time_per_output_token_seconds"),
            "preemptions": _sglang("num_retracted_requests_total", "num_retracted_requests"),
            "ttft_s": _sglang("time_to_first_token_seconds"),
            "itl_s": _sglang("inter_token_latency_seconds", "time_per_output_token_seconds"),
        }
    ),
)


def _tgi_batches(method: str, plus: Readings = ()) -> Series:
    return Series("tgi_batch_inference_success", where=(("method", (method,)),), plus=plus)


TGI = Engine(
    name="tgi",
    port=80,  # of its image; its launcher alone takes 3000
    readings=MappingProxyType(
        {
            "running": first("tgi_batch_current_size"),
            "waiting": first("tgi_queue_size"),
            "prompt_tokens": first("tgi_request_input_length_sum"),
            "generation_tokens": first("tgi_request_generated_tokens_sum"),  # increases when a request ends
            "finished": (
                Series(
                    "tgi_request_success",
                    plus=(Series("tgi_request_failure", where=(("err", ("generation", "dropped")),)),),
                ),
            ),
            "rejections": (Series("tgi_request_failure", where=(("err", ("overloaded",)),)),),
            "steps": (_tgi_batches("decode", plus=(_tgi_batches("prefill"),)),),
            # Per request with prefill (inference time / tokens), so it cannot be compared with an objective.
            "itl_s": first("tgi_request_mean_time_per_token_duration"),
        }
    ),
)

_TRTLLM = Engine(
    name="trtllm",
    path="/prometheus/metrics",
    model_label="model_name",
    readings=MappingProxyType(
        {
            "running": first("trtllm_num_requests_running"),
            "waiting": first("trtllm_num_requests_waiting"),
            "kv_usage": first("trtllm_kv_cache_utilization", aggregation=Aggregation.MAX),
            "finished": counter("trtllm_request_success"),
            "first_tokens": first("trtllm_time_to_first_token_seconds_count"),
            "ttft_met": first("trtllm_time_to_first_token_seconds"),
            # One value per request of two tokens or more, so there is no sum over token gaps.
            "itl_judged": first("trtllm_time_per_output_token_seconds_count"),
            "itl_met": first("trtllm_time_per_output_token_seconds"),
            "ttft_s": first("trtllm_time_to_first_token_seconds"),
            "itl_s": first("trtllm_time_per_output_token_seconds"),
        }
    ),
)
# Release candidates of 1.1 have no prefix. NIM uses the same names, except for the usage of its cache.
_BARE = _TRTLLM.renamed(str, lambda name: name.removeprefix("trtllm_"))
TRTLLM = replace(
    _BARE,
    readings={
        **_BARE.readings,
        "running": (*_TRTLLM.readings["running"], Series("num_requests_running", beside="kv_cache_utilization")),
    },
)

# NIM for LLMs 1.x. Its documentation does not state whether its histogram of gaps counts tokens or requests.
NIM = Engine(
    name="nim",
    path="/v1/metrics",
    model_label="model_name",
    readings=MappingProxyType(
        {
            "running": (Series("num_requests_running", beside="gpu_cache_usage_perc"),),
            "waiting": first("num_requests_waiting"),
            "max_running": first("num_request_max"),
            "kv_usage": first("gpu_cache_usage_perc", aggregation=Aggregation.MAX),
            "prompt_tokens": counter("prompt_tokens"),
            "generation_tokens": counter("generation_tokens"),
            "finished": (
                *counter("request_finish"),
                Series("request_success_total", plus=first("request_failure_total")),
            ),
            "first_tokens": first("time_to_first_token_seconds_count"),
            "ttft_met": first("time_to_first_token_seconds"),
            "ttft_s": first("time_to_first_token_seconds"),
            "itl_s": first("time_per_output_token_seconds"),
        }
    ),
)

# Each model of an ensemble counts a request: pre-processing, engine, post-processing and the ensemble itself.
_ENSEMBLE = ("model", "version")


def _triton_requests(kind: str) -> Series:
    return Series("nv_trt_llm_request_metrics", where=(("request_type", (kind,)),))


TRITON = Engine(
    name="triton",
    port=8002,  # for metrics; requests use other ports
    model_label="model",
    readings=MappingProxyType(
        {
            "running": (_triton_requests("active"),),
            "waiting": (
                _triton_requests("waiting"),
                Series("nv_inference_pending_request_count", repeated=_ENSEMBLE),
            ),
            "max_running": (_triton_requests("max"),),
            "kv_usage": (
                Series(
                    "nv_trt_llm_kv_cache_block_metrics",
                    Aggregation.MAX,
                    where=(("kv_cache_block_type", ("fraction",)),),
                ),
            ),
            "finished": (
                Series(
                    "nv_inference_request_success",
                    repeated=_ENSEMBLE,
                    plus=(Series("nv_inference_request_failure", repeated=_ENSEMBLE),),
                ),
            ),
            "steps": (Series("nv_trt_llm_general_metrics", where=(("general_type", ("iteration_counter",)),)),),
            "first_tokens": first("nv_inference_first_response_histogram_ms_count"),
            "ttft_met": (Series("nv_inference_first_response_histogram_ms", scale=1e-3),),
            "ttft_s": (Series("nv_inference_first_response_histogram_ms", scale=1e-3),),
        }
    ),
)

# Histograms of the time from the arrival of a request to its last token. Only the model of demand reads them.
# NIM documents its name as that of vLLM without a prefix; Triton has only sums.
REQUEST_TIMES: Mapping[str, Readings] = MappingProxyType(
    {
        "vllm": _vllm("vllm:e2e_request_latency_seconds"),
        "sglang": _sglang("e2e_request_latency_seconds"),
        "tgi": first("tgi_request_duration"),
        "trtllm": first("trtllm_e2e_request_latency_seconds", "e2e_request_latency_seconds"),
        "nim": first("e2e_request_latency_seconds"),
    }
)

ENGINES: Mapping[str, Engine] = MappingProxyType(
    {engine.name: engine for engine in (VLLM, SGLANG, TGI, TRTLLM, TRITON, NIM)}
)
