"""Labels that name pods, scrape targets and clusters in series, and labels that the queries add."""

from __future__ import annotations

from itertools import chain

from autoscaler.catalog.series import POD_LABELS

METRIC = "metric"  # label that keeps the name of a metric through functions that drop `__name__`

PART = "part"  # label that keeps series apart which `or` would drop

Matchers = tuple[tuple[str, tuple[str, ...]], ...]  # (label, allowed values) pairs
# `k8s_cluster_name` is OpenTelemetry's; the others are usual in installations of many clusters.
CLUSTER_LABELS = (
    "cluster",
    "k8s_cluster_name",
    "k8s_cluster",
    "kubernetes_cluster",
    "cluster_name",
    "cluster_id",
    "clusterID",
    "managed_cluster",
)
SCRAPE_LABELS = (
    "job",
    "exported_job",
    *CLUSTER_LABELS,
)  # they name the scrape of a pod, and are equal for all engines in it
Identity = tuple[str, ...]  # labels that name a pod and the scrape it comes from
POD: Identity = (*chain.from_iterable(POD_LABELS), *SCRAPE_LABELS)
TARGET: Identity = ("job", "instance", *CLUSTER_LABELS)  # for plain scrape configurations, which know no pods
NO_POD: Matchers = tuple((pod, ("",)) for _, pod in POD_LABELS)  # matches series that name no pod


def names_pods(identity: Identity) -> bool:
    """Return whether an identity names pods and not scrape targets."""
    return any(pod in identity for _, pod in POD_LABELS)


PLACE = "place"  # label that distinguishes devices without a UUID, and gateways outside of pods
