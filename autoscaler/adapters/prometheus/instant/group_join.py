"""Maps the values of groups of pods onto the pods of a fleet; see `promql.pod_groups`.

A group is mixed if it has pods of two workloads, or a pod that was never in the fleet. The quantile of a mixed group
belongs to no workload, so it is not used.
"""

from __future__ import annotations

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector
from autoscaler.adapters.prometheus.instant.pod_join import MAX_REMEMBERED, LabelSlots, PodJoin
from autoscaler.adapters.prometheus.promql.pod_groups import Group, LabelPairs, group_of
from autoscaler.catalog.series import Labels
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import BoolColumn, FloatColumn


class GroupJoin:
    """Maps values of groups to pods, using series that name the pods."""

    def __init__(self, pods: PodJoin, identity: tuple[str, ...], pairs: LabelPairs) -> None:
        """identity: labels that tell series apart. pods: aligned by the caller."""
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

    def update(self, members: list[bytes], fleet: Fleet) -> BoolColumn:
        """Update the members of all groups; return which pods of the fleet are in mixed groups, bool[P].

        members: labels of series that each name a pod.
        """
        if len(self._labels) > MAX_REMEMBERED:
            self._forget()
        self._slots, rows = self._labels.of(members), self._pods.rows(members)
        known, groups = rows >= 0, len(self._slot_of_group)
        workload = fleet.pod_workload[rows[known]].astype(np.float64)
        first, last = np.full(groups, np.inf), np.full(groups, -np.inf)
        np.minimum.at(first, self._slots[known], workload)
        np.maximum.at(last, self._slots[known], workload)
        mixed = first < last
        mixed[self._slots[self._pods.is_outside_fleet(members)]] = True
        self._mixed = mixed[self._slots]
        self._members = Vector(np.nan, members, self._mixed.astype(np.float64))
        return np.asarray(self._pods.column(self._members) > 0)

    def column(self, vector: Vector) -> FloatColumn:
        """Return the value of the group of each pod, float64[P]; NaN if the group has none or is mixed."""
        slots = self._labels.of(vector.labels)
        value = np.full(len(self._slot_of_group), np.nan)
        np.fmax.at(value, slots, vector.values)
        of_members = np.where(self._mixed, np.nan, value[self._slots])
        return self._pods.column(Vector(vector.time_s, self._members.labels, of_members))
