"""Pods whose histograms the server adds up before it takes a quantile: those whose names say that they serve together.

The 95th percentile of a workload is that of all its requests, and no mean of its pods' own. It takes the buckets of all
pods, some 20 series for each; so the server adds them up, and answers with one series for each group of pods. It knows
a pod's workload by the pod's name alone, without what a controller appends to it.

Names can mislead. Which pods are in a group is told by the series that name each pod: a group with pods of two
workloads, or with a pod that never was in the fleet, is mixed, and its quantile is nobody's. Everything else that tells
series apart (namespaces, scrape jobs, clusters) tells groups apart too.
"""

from __future__ import annotations

import re

from autoscaler.adapters.prometheus.owners import SERVES_WITH
from autoscaler.catalog.series import Labels

GROUP = "group"  # label that names the group of a series
_TARGETS = "targets"  # of a job, whose series name no pod
_SERVES_WITH = re.compile(SERVES_WITH)

Pairs = tuple[tuple[str, str], ...]  # of `POD_LABELS`, those that name pods in a backend
Group = tuple[str, ...]  # the group's name, and all other labels that tell series apart


def grouped(vector: str, identity: tuple[str, ...], pairs: Pairs) -> str:
    """Return an expression for the same series with the name of their group, by the labels that name their pods."""
    if "instance" in identity:
        return f'label_replace({vector}, "{GROUP}", "{_TARGETS}", "instance", ".+")'
    for _, pod in reversed(pairs):  # the first pair is written last: it decides
        vector = f'label_replace({vector}, "{GROUP}", "$1$2$3", "{pod}", "{SERVES_WITH}")'
    return vector


def group_labels(identity: tuple[str, ...], pairs: Pairs) -> tuple[str, ...]:
    """Return the labels of a group of pods that `identity` names."""
    members = {"instance", *(pod for _, pod in pairs)}
    return (*(label for label in identity if label not in members), GROUP)


def group_of(labels: Labels, identity: tuple[str, ...], pairs: Pairs) -> Group:
    """Return the group of a series, be it of a pod or of the whole group; see `grouped`."""
    *others, _ = group_labels(identity, pairs)
    return (_name(labels, pairs), *(labels.get(label, "") for label in others))


def _name(labels: Labels, pairs: Pairs) -> str:
    if GROUP in labels:
        return labels[GROUP]
    for _, label in pairs:
        if (pod := labels.get(label)) and (found := _SERVES_WITH.fullmatch(pod)):
            return "".join(filter(None, found.groups()))
    return _TARGETS if labels.get("instance") else ""
