"""What a metric in somebody's scaling query measures, in terms of the signals that a simulation has.

The names are those of `engines.py` and `gateways.py` in all their spellings, and some more that only queries use.
Sources of these: llm-d-router `docs/metrics.md` and gateway-api-inference-extension v1.5.0 (pool metrics),
production-stack 0.1.12 `src/vllm_router/services/metrics_service` (router), kube-state-metrics 2.17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from autoscaler.catalog.engines import ENGINES, REQUEST_TIMES
from autoscaler.catalog.gateways import GATEWAYS
from autoscaler.catalog.spellings import all_spellings


class SeriesShape(StrEnum):
    """Which series a metric has, and what becomes of their values."""

    POD_GAUGE = "a gauge of each pod"
    POD_COUNTER = "a counter of each pod"
    HISTOGRAM = "buckets of each pod"
    GAUGE = "one gauge"
    COUNTER = "one counter"


class QuerySignal(NamedTuple):
    """A signal of a simulation."""

    shape: SeriesShape
    column: str  # "running"; `lab.baselines.query_value` knows all of them
    scale: float = 1.0  # to the unit of the metric
    mean: bool = False  # one gauge that is the mean over the pods


_GAUGES = ("running", "waiting", "kv_usage")
_COUNTERS = ("finished", "first_tokens", "prompt_tokens", "generation_tokens")
_HISTOGRAMS = {"ttft_s": "ttft", "itl_s": "itl"}
# Histograms of the times of single requests: "tpot" is the mean gap between the tokens of one.
_REQUEST_TIMES: Mapping[str, str] = {
    **{row.name: "e2e" for readings in REQUEST_TIMES.values() for row in readings},
    "vllm:request_queue_time_seconds": "queue",
    "vllm:time_in_queue_requests": "queue",  # 0.6, V0
    "vllm:request_inference_time_seconds": "inference",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:request_decode_time_seconds": "decode",
    "vllm:request_time_per_output_token_seconds": "tpot",
    "sglang:queue_time_seconds": "queue",
    "sglang:request_time_per_output_token_seconds": "tpot",
    "tgi_request_queue_duration": "queue",
    "tgi_request_inference_duration": "inference",
    "tgi_request_mean_time_per_token_duration": "tpot",
    **{
        f"{prefix}{name}": latency
        for prefix in ("trtllm_", "")
        for name, latency in {"request_queue_time_seconds": "queue", "time_per_output_token_seconds": "tpot"}.items()
    },
}
_POOL = ("inference_pool", "llm_d_epp")  # older and newer prefix of the endpoint picker

_MORE: Mapping[str, QuerySignal] = {
    **{
        f"{prefix}_{name}": signal
        for prefix in _POOL
        for name, signal in {
            "average_queue_size": QuerySignal(SeriesShape.GAUGE, "waiting", mean=True),
            "average_running_requests": QuerySignal(SeriesShape.GAUGE, "running", mean=True),
            "average_kv_cache_utilization": QuerySignal(SeriesShape.GAUGE, "kv_usage", mean=True),
            "per_pod_queue_size": QuerySignal(SeriesShape.POD_GAUGE, "waiting"),
            "per_endpoint_queue_size": QuerySignal(SeriesShape.POD_GAUGE, "waiting"),
            "ready_pods": QuerySignal(SeriesShape.GAUGE, "ready"),
            "ready_endpoints": QuerySignal(SeriesShape.GAUGE, "ready"),
            "running_requests": QuerySignal(SeriesShape.GAUGE, "inflight"),
        }.items()
    },
    "inference_objective_running_requests": QuerySignal(SeriesShape.GAUGE, "inflight"),
    "inference_model_running_requests": QuerySignal(SeriesShape.GAUGE, "inflight"),
    "vllm:healthy_pods_total": QuerySignal(SeriesShape.GAUGE, "ready"),
    "up": QuerySignal(SeriesShape.POD_GAUGE, "up"),
    "kube_deployment_status_replicas_ready": QuerySignal(SeriesShape.GAUGE, "ready"),
    "kube_deployment_status_replicas_available": QuerySignal(SeriesShape.GAUGE, "ready"),
    "kube_deployment_status_replicas": QuerySignal(SeriesShape.GAUGE, "desired"),
    "kube_deployment_spec_replicas": QuerySignal(SeriesShape.GAUGE, "desired"),
    "vllm:request_success": QuerySignal(SeriesShape.POD_COUNTER, "finished"),
    # Triton has sums alone, in microseconds.
    "nv_inference_request_duration_us": QuerySignal(SeriesShape.POD_COUNTER, "e2e_sum_s", 1e6),
    "nv_inference_queue_duration_us": QuerySignal(SeriesShape.POD_COUNTER, "queue_sum_s", 1e6),
    "nv_inference_compute_infer_duration_us": QuerySignal(SeriesShape.POD_COUNTER, "inference_sum_s", 1e6),
}


@lru_cache(maxsize=1)
def query_signals() -> Mapping[str, QuerySignal]:
    """Return the signal of each metric name, in every spelling that platforms and pipelines write."""
    found: dict[str, QuerySignal] = {}
    for name, signal in (*_engine_signals(), *_gateway_signals(), *_MORE.items()):
        for spelling in all_spellings():
            found.setdefault(spelling.name(name), signal)
    return MappingProxyType(found)


def _latency_signals(name: str, latency: str, scale: float = 1.0) -> Iterator[tuple[str, QuerySignal]]:
    yield f"{name}_bucket", QuerySignal(SeriesShape.HISTOGRAM, latency, scale)
    yield f"{name}_sum", QuerySignal(SeriesShape.POD_COUNTER, f"{latency}_sum_s", scale)
    yield f"{name}_count", QuerySignal(SeriesShape.POD_COUNTER, f"{latency}_count")


def _engine_signals() -> Iterator[tuple[str, QuerySignal]]:
    for name, latency in _REQUEST_TIMES.items():
        yield from _latency_signals(name, latency)
    for engine in ENGINES.values():
        for column, readings in engine.readings.items():
            for row in readings:
                if row.where or row.inverted:  # some series of a metric, or the opposite of it
                    continue
                if column in _GAUGES:
                    yield row.name, QuerySignal(SeriesShape.POD_GAUGE, column, 1 / row.scale)
                elif column in _COUNTERS:
                    yield row.name, QuerySignal(SeriesShape.POD_COUNTER, column, 1 / row.scale)
                elif histogram := _HISTOGRAMS.get(column):
                    yield from _latency_signals(row.name, histogram, 1 / row.scale)


def _gateway_signals() -> Iterator[tuple[str, QuerySignal]]:
    for gateway in GATEWAYS.values():
        for row in gateway.waiting:
            yield (
                row.name,
                QuerySignal(SeriesShape.GAUGE, "held" if gateway.waiting_includes_served else "gateway_waiting"),
            )
        for row in gateway.arrivals:
            if not row.where:
                yield row.name, QuerySignal(SeriesShape.COUNTER, "arrivals")
