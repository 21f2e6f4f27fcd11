"""Pods that a backend shows more than once: read by several scrape jobs, or of one name in several clusters.

Such a pod counts once. Which reading counts is for the callers to say; that others were left out is worded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS
from autoscaler.catalog.series import POD_LABELS, Labels
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import IntColumn

MAX_LOOKED_AT = 2_000  # series of pods seen twice whose labels are looked at; of the others only the number is told
NAMED = 3  # jobs or clusters named in one line

Name = tuple[str, str]  # (namespace, pod)
Found = TypeVar("Found", str, "Cluster")


class Cluster(NamedTuple):
    """A cluster as a series names it."""

    name: str
    label: str


class Seen(NamedTuple):
    """One way in which a backend shows a pod."""

    job: str
    cluster: Cluster | None
    pod_label: str  # the label that names the pod


def seen(labels: Labels) -> Seen:
    """Return how a series shows its pod."""
    return Seen(
        job=labels.get("exported_job") or labels.get("job", ""),
        cluster=cluster_of(labels),
        pod_label=next((pod for _, pod in POD_LABELS if labels.get(pod)), ""),
    )


def cluster_of(labels: Labels) -> Cluster | None:
    """Return the cluster that a series names; None: it names none."""
    return next((Cluster(labels[label], label) for label in CLUSTER_LABELS if labels.get(label)), None)


def doubled(vector: Vector, rows: IntColumn, fleet: Fleet) -> dict[Name, set[Seen]]:
    """Return how the pods are seen that several series of one answer are about; see `PodJoin.rows` for `rows`."""
    times = np.bincount(rows[rows >= 0], minlength=len(fleet.pods))
    found: dict[Name, set[Seen]] = {}
    if not (times > 1).any():
        return found
    twice = (rows >= 0) & (times[rows] > 1)
    for index in np.flatnonzero(twice)[:MAX_LOOKED_AT].tolist():
        pod = fleet.pods[rows[index]]
        found.setdefault((pod.namespace, pod.name), set()).add(seen(parse_labels(vector.labels[index])))
    return found


def tell_doubles(pods: Mapping[Name, set[Seen]]) -> tuple[str, ...]:
    """Say which pods are seen twice, and why: a line for clusters, one for jobs, and one for ways to name a pod."""
    lines: list[str] = []
    rest = {name: ways for name, ways in pods.items() if len(ways) > 1}
    clusters = {name: {way.cluster for way in ways if way.cluster} for name, ways in rest.items()}
    if of_clusters := {name: values for name, values in clusters.items() if len(values) > 1}:
        lines.append(tell_clusters("pod", of_clusters))
    rest = {name: ways for name, ways in rest.items() if name not in of_clusters}
    jobs = {name: {way.job for way in ways} for name, ways in rest.items()}
    if of_jobs := {name: values for name, values in jobs.items() if len(values) > 1}:
        pod, more, values = _first(of_jobs)
        lines.append(
            f"pod {pod}{more} is read by {len(values)} scrape jobs ({_some(values)}); it counts once, as the job says "
            "that shows the most"
        )
    if others := {name: {way.pod_label for way in ways} for name, ways in rest.items() if name not in of_jobs}:
        pod, more, values = _first(others)
        lines.append(f"pod {pod}{more} is named by the labels {_some(values)} of different series; it counts once")
    return tuple(lines)


def tell_clusters(kind: str, found: Mapping[Name, Iterable[Cluster]]) -> str:
    """Say that things of one name are of several clusters, and how to choose one."""
    name, more, clusters = _first(found)
    chosen = clean(clusters[0].name).replace("'", "").replace('"', "")
    example = f'{clusters[0].label}="{chosen}"'
    return (
        f"{kind} {name}{more} has series of {len(clusters)} clusters ({_some([each.name for each in clusters])}), "
        f"which are taken for one; choose a cluster, for example --prometheus-selector '{example}'"
    )


def _first(found: Mapping[Name, Iterable[Found]]) -> tuple[str, str, list[Found]]:
    """Return the first name for people, how many more there are, and what was found of the first."""
    name = min(found)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return clean("/".join(filter(None, name))), more, sorted(found[name])


def _some(values: list[str]) -> str:
    more = f" and {len(values) - NAMED} more" if len(values) > NAMED else ""
    return ", ".join(clean(value) or "none" for value in values[:NAMED]) + more
