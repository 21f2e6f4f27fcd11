"""The metric families of vLLM 0.32's `/metrics`, in their order, and the source of each value in a simulated replica.

Names, help texts, labels and order are recorded from the real server; change them only with a new recording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoscaler.sim.engine.metrics import EngineHistogram, EngineMetrics
from autoscaler.sim.engine.profiles import MEMORY_UTILIZATION, Profile
from autoscaler.sim.engine.replica import Replica

Labels = dict[str, str]
Value = float | Callable[[Replica], float]


@dataclass(frozen=True)
class Simple:
    """A gauge or counter family. A counter also exports a gauge with the creation time of each series."""

    name: str
    kind: str
    help: str
    series: tuple[tuple[Labels, Value], ...]


@dataclass(frozen=True)
class Buckets:
    """A histogram family, with its creation times."""

    name: str
    help: str
    series: tuple[tuple[Labels, Callable[[EngineMetrics], EngineHistogram]], ...]


@dataclass(frozen=True)
class SumAndCount:
    """A summary family without quantiles: count and sum."""

    name: str
    help: str
    series: tuple[tuple[Labels, Value, Value], ...]


Family = Simple | Buckets | SumAndCount


def process(started_wall_s: float) -> tuple[Family, ...]:
    def by_generation(*counts: float) -> tuple[tuple[Labels, Value], ...]:
        return tuple(({"generation": str(generation)}, count) for generation, count in enumerate(counts))

    python = {"implementation": "CPython", "major": "3", "minor": "11", "patchlevel": "7", "version": "3.11.7"}

    def cpu_s(replica: Replica) -> float:
        return 6.78 + 0.2 * (replica.decode_s + replica.prefill_s)

    return (
        Simple(
            "python_gc_objects_collected_total",
            "counter",
            "Objects collected during gc",
            by_generation(15687, 1946, 637),
        ),
        Simple(
            "python_gc_objects_uncollectable_total",
            "counter",
            "Uncollectable objects found during GC",
            by_generation(0, 0, 0),
        ),
        Simple(
            "python_gc_collections_total",
            "counter",
            "Number of times this generation was collected",
            by_generation(1564, 142, 10),
        ),
        Simple("python_info", "gauge", "Python platform information", ((python, 1),)),
        Simple("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", (({}, 2.139754496e9),)),
        Simple("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", (({}, 6.48167424e8),)),
        Simple(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            (({}, started_wall_s),),
        ),
        Simple(
            "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", (({}, cpu_s),)
        ),
        Simple("process_open_fds", "gauge", "Number of open file descriptors.", (({}, lambda r: 32 + r.held),)),
        Simple("process_max_fds", "gauge", "Maximum number of open file descriptors.", (({}, 20000),)),
    )


def engine(identity: Labels, profile: Profile) -> tuple[Family, ...]:
    def split(label: str, first: Value, *others: str, of: str) -> tuple[tuple[Labels, Value], ...]:
        """Return the series of one label: `of` has the value, the `others` stay at 0."""
        return (({**identity, label: of}, first), *(({**identity, label: other}, 0.0) for other in others))

    def counter(name: str, text: str, value: Value = 0.0) -> Simple:
        return Simple(f"vllm:{name}_total", "counter", text, ((identity, value),))

    def gauge(name: str, text: str, *series: tuple[Labels, Value]) -> Simple:
        return Simple(f"vllm:{name}", "gauge", text, series)

    def histogram(name: str, text: str, of: Callable[[EngineMetrics], EngineHistogram]) -> Buckets:
        return Buckets(f"vllm:{name}", text, ((identity, of),))

    def at_level(level: int) -> Value:
        return lambda r: float(r.sleep_state.paused and r.sleep_state.level == level)

    sleep: tuple[tuple[Labels, Value], ...] = (
        ({**identity, "sleep_state": "awake"}, lambda r: float(not r.sleep_state.paused)),
        ({**identity, "sleep_state": "weights_offloaded"}, at_level(1)),
        ({**identity, "sleep_state": "discard_all"}, at_level(2)),
    )
    finished: tuple[tuple[Labels, Value], ...] = (
        ({**identity, "finished_reason": "stop"}, 0.0),
        ({**identity, "finished_reason": "length"}, lambda r: r.metrics.finished_length),
        ({**identity, "finished_reason": "abort"}, lambda r: r.metrics.finished_abort),
        ({**identity, "finished_reason": "error"}, 0.0),
        ({**identity, "finished_reason": "repetition"}, 0.0),
    )
    model = {"model_name": identity["model_name"]}
    rejections: tuple[tuple[Labels, Value], ...] = (
        ({**model, "reason": "max_num_queued_reqs"}, 0.0),
        ({**model, "reason": "max_num_queued_tokens"}, 0.0),
    )
    return (
        counter(
            "estimated_flops_per_gpu",
            "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        ),
        counter(
            "estimated_read_bytes_per_gpu",
            "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        ),
        counter(
            "estimated_write_bytes_per_gpu",
            "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        ),
        gauge(
            "num_requests_running", "Number of requests in model execution batches.", (identity, lambda r: r.running)
        ),
        gauge("num_requests_waiting", "Number of requests waiting to be processed.", (identity, lambda r: r.waiting)),
        gauge(
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
            "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all "
            "reasons equals vllm:num_requests_waiting.",
            *split("reason", lambda r: r.waiting, "deferred", of="capacity"),
        ),
        gauge(
            "engine_sleep_state",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
            "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
            *sleep,
        ),
        gauge(
            "kv_cache_usage_perc",
            "KV-cache usage. 1 means 100 percent usage.",
            (identity, lambda r: r.kv_usage),
        ),
        counter(
            "prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            lambda r: r.metrics.prefix_cache_queries,
        ),
        counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
        counter(
            "external_prefix_cache_queries",
            "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of "
            "queried tokens.",
        ),
        counter(
            "external_prefix_cache_hits",
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of "
            "cached tokens.",
        ),
        counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items."),
        counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
        counter(
            "num_preemptions",
            "Cumulative number of preemption from the engine.",
            lambda r: r.metrics.preemptions,
        ),
        counter("prompt_tokens", "Number of prefill tokens processed.", lambda r: r.metrics.prompt_tokens),
        Simple(
            "vllm:prompt_tokens_by_source_total",
            "counter",
            "Number of prompt tokens by source.",
            split(
                "source",
                lambda r: r.metrics.prompt_tokens,
                "local_cache_hit",
                "external_kv_transfer",
                of="local_compute",
            ),
        ),
        counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external)."),
        Simple(
            "vllm:prompt_tokens_cached_by_source_total",
            "counter",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to "
            "DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; "
            "sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
            split("source", 0.0, "host", "p2p", "disk", "external_unspecified", of="device"),
        ),
        counter("generation_tokens", "Number of generation tokens processed.", lambda r: r.metrics.generation_tokens),
        Simple("vllm:request_success_total", "counter", "Count of successfully processed requests.", finished),
        Simple(
            "vllm:admission_rejections_total",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
            rejections,
        ),
        histogram("request_prompt_tokens", "Number of prefill tokens processed.", lambda m: m.request_prompt),
        histogram("request_generation_tokens", "Number of generation tokens processed.", lambda m: m.request_output),
        histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", lambda m: m.step_tokens),
        histogram(
            "request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            lambda m: m.request_output,
        ),
        histogram("request_params_n", "Histogram of the n request parameter.", lambda m: m.samples),
        histogram(
            "request_params_max_tokens", "Histogram of the max_tokens request parameter.", lambda m: m.request_output
        ),
        histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", lambda m: m.ttft),
        histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", lambda m: m.token_gap),
        histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            lambda m: m.request_token_gap,
        ),
        histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda m: m.e2e),
        histogram(
            "request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            lambda m: m.queue,
        ),
        histogram(
            "request_inference_time_seconds",
            "Histogram of time spent in RUNNING phase for request.",
            lambda m: m.inference,
        ),
        histogram(
            "request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            lambda m: m.prefill,
        ),
        histogram(
            "request_decode_time_seconds",
            "Histogram of time spent in DECODE phase for request.",
            lambda m: m.decode,
        ),
        histogram(
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            lambda m: m.request_preemptions,
        ),
        histogram(
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            lambda m: m.request_prompt,
        ),
        gauge("cache_config_info", "Information of the LLMEngine CacheConfig", (_cache_config(profile), 1.0)),
    )


def _cache_config(profile: Profile) -> Labels:
    block = str(profile.block_size)
    blocks = str(profile.kv_capacity_tokens // profile.block_size)
    return {
        "_block_size_resolved": "True",
        "block_size": block,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": "None",
        "effective_attention_block_size": block,
        "enable_mamba_shared_prefix_checkpoint": "False",
        "enable_prefix_caching": "True",
        "engine": "0",
        "gpu_memory_utilization": str(MEMORY_UTILIZATION),
        "hash_block_size": "None",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_cache_layout": "None",
        "kv_cache_max_concurrency": str(profile.kv_capacity_tokens / profile.max_model_len),
        "kv_cache_memory_bytes": "None",
        "kv_cache_size_tokens": str(profile.kv_capacity_tokens),
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": "None",
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": "None",
        "num_gpu_blocks": blocks,
        "num_gpu_blocks_override": "None",
        "prefix_cache_retention_interval": "0",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "replayssm_buffer_len": "16",
        "skip_page_size_padded": "None",
        "sliding_window": "None",
        "swa_bounded_replay": "True",
        "use_kda_recoverssm": "False",
        "use_replayssm": "False",
        "user_specified_block_size": "False",
    }


def sleep_mode(slept: bool, woken: bool) -> tuple[Family, ...]:
    """Return the families of the sleep mode, which appear with the first call of a sleep endpoint."""
    series: list[tuple[Labels, Callable[[EngineMetrics], EngineHistogram]]] = []
    if slept:
        series.append(({"operation": "sleep"}, lambda m: m.sleep))
    if woken:
        series.append(({"operation": "wake"}, lambda m: m.wake_up))
    if not series:
        return ()
    return (
        Buckets("vllm:sleep_mode_operation_duration_seconds", "Duration of one sleep-mode operation.", tuple(series)),
        Simple(
            "vllm:sleep_mode_operations_in_flight",
            "gauge",
            "Sleep-mode operations currently awaited.",
            tuple((names, 0.0) for names, _ in series),
        ),
    )


def http(answered: bool) -> tuple[Family, ...]:
    """Return the families of the HTTP middleware. Those with a handler have no series before its first request."""
    handler = {"handler": "/v1/completions"}
    call = {**handler, "method": "POST"}
    tail = " Only value of header is respected. Otherwise ignored. No percentile calculated. "
    return (
        Simple(
            "http_requests_total",
            "counter",
            "Total number of requests by method, status and handler.",
            (({**call, "status": "2xx"}, lambda r: r.metrics.http_ok),) if answered else (),
        ),
        SumAndCount(
            "http_request_size_bytes",
            f"Content length of incoming requests by handler.{tail}",
            ((handler, lambda r: r.metrics.http_ok, lambda r: 440.0 * r.metrics.http_ok),) if answered else (),
        ),
        SumAndCount(
            "http_response_size_bytes",
            f"Content length of outgoing responses by handler.{tail}",
            # streamed responses have no content length
            ((handler, lambda r: r.metrics.http_ok, 0.0),) if answered else (),
        ),
        Buckets(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
            (({}, lambda m: m.http_fine),),
        ),
        Buckets(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
            ((call, lambda m: m.http),) if answered else (),
        ),
    )
