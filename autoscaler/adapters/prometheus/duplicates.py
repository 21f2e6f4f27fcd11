"""Pods that a backend reports more than once: scraped by several jobs, or with one name in several clusters.

Such a pod counts once. The callers choose which series counts; this module describes the duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS
from autoscaler.catalog.series import POD_LABELS, Labels, is_moved
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import IntColumn

MAX_INSPECTED = 2_000  # series of duplicate pods whose labels are parsed
MAX_NAMED = 3  # jobs or clusters named in one line

Name = tuple[str, str]  # (namespace, pod)
Found = TypeVar("Found", str, "NamedCluster")


class NamedCluster(NamedTuple):
    """A cluster as a series names it."""

    name: str
    label: str


class SeriesOrigin(NamedTuple):
    """The scrape that a series of a pod comes from."""

    job: str
    cluster: NamedCluster | None
    pod_label: str  # the label that names the pod


def origin_of(labels: Labels) -> SeriesOrigin:
    """Return which scrape a series comes from."""
    return SeriesOrigin(
        job=labels.get("exported_job") or labels.get("job", ""),
        cluster=cluster_of(labels),
        pod_label=next((pod for _, pod in POD_LABELS if labels.get(pod)), ""),
    )


def cluster_of(labels: Labels) -> NamedCluster | None:
    """Return the cluster that a series names, or None."""
    return next((NamedCluster(labels[label], label) for label in CLUSTER_LABELS if labels.get(label)), None)


def find_duplicates(vector: Vector, rows: IntColumn, fleet: Fleet) -> dict[Name, set[SeriesOrigin]]:
    """Return the origins of pods that have several series in one answer. rows: as `PodJoin.rows` returns them.

    Series of others about a pod that is scraped itself do not count, and any pod may write them, so their jobs and
    clusters are not told.
    """
    series_per_pod = np.bincount(rows[rows >= 0], minlength=len(fleet.pods))
    found: dict[Name, dict[bool, set[SeriesOrigin]]] = {}  # by whether another pod may have written the series
    if not (series_per_pod > 1).any():
        return {}
    duplicate = (rows >= 0) & (series_per_pod[rows] > 1)
    for index in np.flatnonzero(duplicate)[:MAX_INSPECTED].tolist():
        pod = fleet.pods[rows[index]]
        labels = parse_labels(vector.labels[index])
        origins = found.setdefault((pod.namespace, pod.name), {})
        origins.setdefault(is_moved(labels), set()).add(origin_of(labels))
    return {name: _own_words(origins) for name, origins in found.items()}


def _own_words(origins: Mapping[bool, set[SeriesOrigin]]) -> set[SeriesOrigin]:
    """Return the origins of a pod; of series of others only the label that names it, where it is scraped itself."""
    own = origins.get(False, set())
    told = origins.get(True, set())
    return own | {next(iter(own))._replace(pod_label=each.pod_label) for each in told} if own else told


def describe_duplicates(pods: Mapping[Name, set[SeriesOrigin]]) -> tuple[str, ...]:
    """Describe duplicate pods: one line each for several clusters, several jobs and several pod labels."""
    lines: list[str] = []
    several = {name: origins for name, origins in pods.items() if len(origins) > 1}
    clusters = {name: {each.cluster for each in origins if each.cluster} for name, origins in several.items()}
    if in_clusters := {name: values for name, values in clusters.items() if len(values) > 1}:
        lines.append(describe_clusters("pod", in_clusters))
    several = {name: origins for name, origins in several.items() if name not in in_clusters}
    jobs = {name: {each.job for each in origins} for name, origins in several.items()}
    if in_jobs := {name: values for name, values in jobs.items() if len(values) > 1}:
        pod, more, values = _first(in_jobs)
        lines.append(
            f"pod {pod}{more} is read by {len(values)} scrape jobs ({_some(values)}); it counts once, with "
            "the largest reading"
        )
    if others := {
        name: {each.pod_label for each in origins} for name, origins in several.items() if name not in in_jobs
    }:
        pod, more, values = _first(others)
        lines.append(f"pod {pod}{more} is named by the labels {_some(values)} of different series; it counts once")
    return tuple(lines)


def describe_clusters(kind: str, found: Mapping[Name, Iterable[NamedCluster]]) -> str:
    """Describe pods, workloads or metrics that several clusters have under one name, and how to choose a cluster."""
    name, more, clusters = _first(found)
    chosen = clean(clusters[0].name).replace("'", "").replace('"', "")
    example = f'{clusters[0].label}="{chosen}"'
    return (
        f"{kind} {name}{more} has series of {len(clusters)} clusters ({_some([each.name for each in clusters])}), "
        f"which count as one; choose a cluster, for example --prometheus-selector '{example}'"
    )


def _first(found: Mapping[Name, Iterable[Found]]) -> tuple[str, str, list[Found]]:
    """Return the first name, a text for how many more there are, and the values of the first, sorted."""
    name = min(found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return clean("/".join(filter(None, name))), more, sorted(found[name])


def _some(values: list[str]) -> str:
    more = f" and {len(values) - MAX_NAMED} more" if len(values) > MAX_NAMED else ""
    return ", ".join(clean(value) or "none" for value in values[:MAX_NAMED]) + more
