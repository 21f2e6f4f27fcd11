"""Brings the values of groups of pods onto the pods of a fleet."""

from __future__ import annotations

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector
from autoscaler.adapters.prometheus.instant.pod_join import MAX_REMEMBERED, LabelSlots, PodJoin
from autoscaler.adapters.prometheus.promql.pod_groups import Group, Pairs, group_of
from autoscaler.catalog.series import Labels
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import BoolColumn, FloatColumn


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
