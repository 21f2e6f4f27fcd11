"""Groups of pods that serve together, by their names: the server sums their histograms before it takes a quantile.

The 95th percentile of a workload covers all its requests; a mean over pods would be wrong. It needs the buckets of all
pods, some 20 series each, so the server sums them and returns one series per group. The server knows the workload of
a pod only by the pod name without the suffix that a controller appends. Namespaces, jobs and clusters separate groups.

Names can be ambiguous. `GroupJoin` detects groups with pods of several workloads.
"""

from __future__ import annotations

import re

from autoscaler.adapters.prometheus.owners import POD_NAME_PREFIX
from autoscaler.catalog.series import Labels

GROUP = "group"  # label with the name of the group
_TARGETS = "targets"  # group of all targets of a job without pods
_POD_NAME_PREFIX = re.compile(POD_NAME_PREFIX)

LabelPairs = tuple[tuple[str, str], ...]  # pairs of `POD_LABELS` that name pods in a backend
Group = tuple[str, ...]  # name of the group, and the values of all other identifying labels


def with_group_label(vector: str, identity: tuple[str, ...], pairs: LabelPairs) -> str:
    """Return an expression that adds the label `group`, from the labels that name pods."""
    if "instance" in identity:
        return f'label_replace({vector}, "{GROUP}", "{_TARGETS}", "instance", ".+")'
    for _, pod in reversed(pairs):  # the first pair is written last, so it takes precedence
        vector = f'label_replace({vector}, "{GROUP}", "$1$2$3", "{pod}", "{POD_NAME_PREFIX}")'
    return vector


def group_labels(identity: tuple[str, ...], pairs: LabelPairs) -> tuple[str, ...]:
    """Return the labels that identify a group of pods."""
    members = {"instance", *(pod for _, pod in pairs)}
    return (*(label for label in identity if label not in members), GROUP)


def group_of(labels: Labels, identity: tuple[str, ...], pairs: LabelPairs) -> Group:
    """Return the group of a series of a pod or of a group; see `with_group_label`."""
    *others, _ = group_labels(identity, pairs)
    return (group_name(labels, pairs), *(labels.get(label, "") for label in others))


def group_name(labels: Labels, pairs: LabelPairs) -> str:
    """Return the name of the group of a pod, or of a series that is of a group already."""
    if GROUP in labels:
        return labels[GROUP]
    for _, label in pairs:
        if (pod := labels.get(label)) and (found := _POD_NAME_PREFIX.fullmatch(pod)):
            return "".join(filter(None, found.groups()))
    return _TARGETS if labels.get("instance") else ""
