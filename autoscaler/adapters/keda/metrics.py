"""Metrics of KEDA mode: calls, streams, unknown ScaledObjects, and counts that the HPA's tolerance hides."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from autoscaler.adapters.keda.answers import Answers

MAX_SWALLOWED = 1000  # workloads with a series of their own


class Calls:
    """Counts calls by method and status; at most 5 methods x 17 codes."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def count(self, method: str, code: str) -> None:
        key = (method, code)
        self.counts[key] = self.counts.get(key, 0) + 1


class KedaCollector(Collector):
    """Collects the metrics at scrape time. It must be registered with the registry of /metrics."""

    def __init__(self, answers: Answers, calls: Calls) -> None:
        self._answers = answers
        self._calls = calls

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "vllm_autoscaler_keda_calls", "Calls from KEDA by method and gRPC status.", labels=("method", "code")
        )
        for (method, code), count in sorted(self._calls.counts.items()):
            calls.add_metric((method, code), count)
        yield calls

        yield GaugeMetricFamily(
            "vllm_autoscaler_keda_streams", "Open StreamIsActive calls.", value=self._answers.watchers
        )
        yield GaugeMetricFamily(
            "vllm_autoscaler_keda_unknown_scaled_objects",
            "ScaledObjects that KEDA's calls name and that are not known; `keda_refused` of /readyz names them.",
            value=len(self._answers.refusals.unknown()),
        )
        swallowed = sorted(self._answers.swallowed_workloads())
        yield GaugeMetricFamily(
            "vllm_autoscaler_keda_swallowed_workloads",
            "Workloads whose desired count the HPA's tolerance hides from it.",
            value=len(swallowed),
        )
        each = GaugeMetricFamily(
            "vllm_autoscaler_keda_swallowed",
            "1 while the HPA's tolerance hides the desired count of a workload; absent otherwise. "
            "At most 1,000 are named.",
            labels=("namespace", "workload", "kind"),
        )
        for ref in swallowed[:MAX_SWALLOWED]:
            each.add_metric((ref.namespace, ref.name, ref.kind), 1)
        yield each
