"""Metrics of the webhook, in a registry of its own: the daemon does not run in this process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

RESULTS = ("patched", "unchanged", "unreadable", "busy", "late", "failed")
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class WebhookMetrics:
    """Counts reviews, and tells when the certificate expires."""

    def __init__(self, expires_s: Callable[[], float]) -> None:
        """expires_s: Unix time at which the present certificate expires; 0: there is none."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._reviews = Counter(
            "vllm_autoscaler_webhook_reviews",
            "Pods that the API server asked about, by what became of them.",
            ["result"],
            registry=self._registry,
        )
        for result in RESULTS:
            self._reviews.labels(result)
        self._seconds = Histogram(
            "vllm_autoscaler_webhook_review_seconds",
            "Time from the first byte of a review to its answer.",
            registry=self._registry,
            buckets=BUCKETS_S,
        )
        expiry = Gauge(
            "vllm_autoscaler_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served expires; 0 without one.",
            registry=self._registry,
        )
        expiry.set_function(expires_s)

    def count(self, result: str, took_s: float) -> None:
        """result: one of RESULTS."""
        self._reviews.labels(result).inc()
        self._seconds.observe(took_s)

    def render(self) -> bytes:
        """Return the metrics as text of Prometheus."""
        return generate_latest(self._registry)
