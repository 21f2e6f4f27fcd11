"""Labels that name pods, targets and clusters in series, and labels that our queries add."""

from __future__ import annotations

from itertools import chain

from autoscaler.catalog.series import POD_LABELS

METRIC = "metric"  # label that keeps the name of a metric through functions that drop `__name__`

PART = "part"  # label that parts the series which are added to others

Where = tuple[tuple[str, tuple[str, ...]], ...]  # label and the values it may have
# The second is OpenTelemetry's; the others those that fleets of clusters give their metrics.
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
SCRAPE_LABELS = ("job", "exported_job", *CLUSTER_LABELS)  # of who scraped a pod: all of its engines have the same
Identity = tuple[str, ...]  # the labels that name a pod, and say who scraped it
POD: Identity = (*chain.from_iterable(POD_LABELS), *SCRAPE_LABELS)
TARGET: Identity = ("job", "instance", *CLUSTER_LABELS)  # of a plain scrape configuration, which knows no pods
NO_POD: Where = tuple((pod, ("",)) for _, pod in POD_LABELS)  # what passes names no pod


PLACE = "place"  # label that tells devices without a UUID apart
