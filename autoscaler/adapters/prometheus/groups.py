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

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector
from autoscaler.adapters.prometheus.join import MAX_REMEMBERED, LabelSlots, PodJoin
from autoscaler.adapters.prometheus.owners import SERVES_WITH
from autoscaler.catalog.series import Labels
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import BoolColumn, FloatColumn

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


class GroupJoin:
    """Brings the values of groups onto the pods of a fleet, by way of series that name the pods."""

    def __init__(self, pods: PodJoin, identity: tuple[str, ...], pairs: Pairs) -> None:
        """identity: labels that tell series apart, whichever way they name pods; `pods` is aligned by its owner."""
        self._pods = pods
        self._identity = identity
        self.pairs = pairs
        self._members = Vector(np.nan, [], np.empty(0))
        self._slots = np.empty(0, dtype=np.int64)
        self._mixed = np.empty(0, dtype=np.bool_)
        self._forget()

    def _forget(self) -> None:
        self._slot_of_group: dict[Group, int] = {}
        self._labels = LabelSlots(self._slot)

    def _slot(self, labels: Labels) -> int:
        return self._slot_of_group.setdefault(group_of(labels, self._identity, self.pairs), len(self._slot_of_group))

    def gather(self, members: list[bytes], fleet: Fleet) -> BoolColumn:
        """Take over which pods there are, of all that the server knows; return which of a fleet are in mixed groups.

        members: labels of series, each of which names a pod.
        """
        if len(self._labels) > MAX_REMEMBERED:
            self._forget()
        self._slots, rows = self._labels.of(members), self._pods.rows(members)
        here, groups = rows >= 0, len(self._slot_of_group)
        workload = fleet.pod_workload[rows[here]].astype(np.float64)
        first, last = np.full(groups, np.inf), np.full(groups, -np.inf)
        np.minimum.at(first, self._slots[here], workload)
        np.maximum.at(last, self._slots[here], workload)
        mixed = first < last
        mixed[self._slots[self._pods.strange(members)]] = True
        self._mixed = mixed[self._slots]
        self._members = Vector(np.nan, members, self._mixed.astype(np.float64))
        return np.asarray(self._pods.column(self._members) > 0)

    def column(self, vector: Vector) -> FloatColumn:
        """Return float64[P]: for each pod the value of its group; NaN: the group has none, or is mixed."""
        slots = self._labels.of(vector.labels)
        value = np.full(len(self._slot_of_group), np.nan)
        np.fmax.at(value, slots, vector.values)
        of_members = np.where(self._mixed, np.nan, value[self._slots])
        return self._pods.column(Vector(vector.time_s, self._members.labels, of_members))
