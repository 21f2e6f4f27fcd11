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

from autoscaler.catalog.engines import ENGINES
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
}


@lru_cache(maxsize=1)
def query_signals() -> Mapping[str, QuerySignal]:
    """Return the signal of each metric name, in every spelling that platforms and pipelines write."""
    found: dict[str, QuerySignal] = {}
    for name, signal in (*_engine_signals(), *_gateway_signals(), *_MORE.items()):
        for spelling in all_spellings():
            found.setdefault(spelling.name(name), signal)
    return MappingProxyType(found)


def _engine_signals() -> Iterator[tuple[str, QuerySignal]]:
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
                    yield f"{row.name}_bucket", QuerySignal(SeriesShape.HISTOGRAM, histogram, 1 / row.scale)
                    yield f"{row.name}_sum", QuerySignal(SeriesShape.POD_COUNTER, f"{histogram}_sum_s", 1 / row.scale)
                    yield f"{row.name}_count", QuerySignal(SeriesShape.POD_COUNTER, f"{histogram}_count")


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
