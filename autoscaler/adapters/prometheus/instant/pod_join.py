"""Which pod each series is about. Labels are parsed once per series ever; after that their bytes are looked up.

Three steps, each remembered on its own: labels to a slot (a pod's name, whether or not such a pod exists, and whether
moved labels hold it), slot to the pod's id, and id to the row of the present fleet. A pod that comes or goes thus costs
nothing for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, parse_labels
from autoscaler.adapters.prometheus.pod_labels import Name, pod_name
from autoscaler.catalog.series import Labels, is_moved
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, find

MAX_REMEMBERED = 1_000_000  # different label sets; past it all are forgotten, so hostile labels cost time, not memory
ORDERS = 3  # orders of series that are remembered as a whole: both servers keep to one, but for Prometheus' quantiles

LabelSet = frozenset[tuple[str, str]]


class LabelSlots:
    """A number for the labels of each series, as `number` gives it. Labels are parsed once, then their bytes known."""

    def __init__(self, number: Callable[[Labels], int]) -> None:
        self._number = number
        self._slot_of: dict[bytes, int] = {}
        self._orders: list[tuple[list[bytes], IntColumn]] = []  # the one used last comes last

    def __len__(self) -> int:
        return len(self._slot_of)

    def of(self, labels: list[bytes]) -> IntColumn:
        """Return the number of each series, int64[N]."""
        for place, (known, slots) in enumerate(self._orders):
            if known == labels:
                self._orders.append(self._orders.pop(place))  # the one used last is forgotten last
                return slots
        slots = np.fromiter(map(self._slot_of.get, labels, repeat(-1)), np.int64, len(labels))
        for index in np.flatnonzero(slots < 0):
            slots[index] = self._slot_of[labels[index]] = self._number(parse_labels(labels[index]))
        self._orders = [*self._orders, (labels, slots)][-ORDERS:]
        return slots


class PodJoin:
    """Brings vectors onto the rows of one fleet after the other. The fleets must come from one source."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._foreign: Mapping[LabelSet, int] = {}  # labels of series to leave out, and the id of their pod
        self._forget()

    def _forget(self) -> None:
        self._labels = LabelSlots(lambda labels: self._slot(pod_name(labels), is_moved(labels)))
        self._slot_of_name: dict[tuple[Name, bool], int] = {}
        self._id_of_slot = np.full(1024, -1, dtype=np.int64)  # grows by doubling; -1: no such pod was ever seen
        self._row_of_slot = self._id_of_slot
        self._moved = np.zeros(1024, dtype=bool)  # the name of this slot stood in labels that were moved
        self._pod_ids = np.empty(0, dtype=np.int64)

    def align(self, fleet: Fleet) -> None:
        """Take over the pods of a fleet; call it before `rows` whenever there is another one."""
        if len(self._slot_of_name) + len(self._labels) > self._max_remembered:
            self._forget()
        _, known = find(fleet.pod_id, self._pod_ids)  # a workload that is governed from now on has older pods
        for row in np.flatnonzero(~known):
            pod = fleet.pods[row]
            for moved in (False, True):
                slot = self._slot((pod.namespace, pod.name), moved)
                self._id_of_slot[slot] = fleet.pod_id[row]
        self._pod_ids = fleet.pod_id
        self._place()

    def rows(self, labels: list[bytes]) -> IntColumn:
        """Return the row in the fleet of each series, int64[N]; -1: its pod is gone, or it names none."""
        return np.asarray(self._row_of_slot[self._slots(labels)])

    def leave_out(self, foreign: Mapping[LabelSet, int]) -> None:
        """Let no column have series with exactly these labels. foreign: with the row in the fleet of the pod."""
        self._foreign = {labels: int(self._pod_ids[row]) for labels, row in foreign.items()}

    def strange(self, labels: list[bytes]) -> BoolColumn:
        """Say which series are of something else than a pod that is, or was, in the fleet, or are left out; bool[N]."""
        slots = self._slots(labels)
        rows = self._row_of_slot[slots]
        left_out = (rows >= 0) & (self._without_foreign(labels, rows) < 0)
        return np.asarray((self._id_of_slot[slots] < 0) | left_out)

    def column(self, vector: Vector, *, whole: bool = False) -> FloatColumn:
        """Return float64[P]: each pod's value, the largest where several series are about one pod; NaN: none is.

        Series of the pod's own scrape count before those whose labels were moved: any pod that is scraped can write
        labels that Prometheus moves, and name a neighbour. whole: what is to be left out counts as well.
        """
        slots = self._slots(vector.labels)
        rows = self._row_of_slot[slots]
        if not whole:
            rows = self._without_foreign(vector.labels, rows)
        here, moved = rows >= 0, self._moved[slots]
        column = np.full(len(self._pod_ids), np.nan)
        np.fmax.at(column, rows[here & ~moved], vector.values[here & ~moved])
        if (here & moved).any():
            others = np.full(len(self._pod_ids), np.nan)
            np.fmax.at(others, rows[here & moved], vector.values[here & moved])
            column = np.where(np.isnan(column), others, column)
        return column

    def _without_foreign(self, labels: list[bytes], rows: IntColumn) -> IntColumn:
        if not self._foreign:
            return rows
        doubtful = np.isin(self._pod_ids, list(self._foreign.values()))
        kept = rows.copy()
        for index in np.flatnonzero((rows >= 0) & doubtful[rows]).tolist():
            if frozenset(parse_labels(labels[index]).items()) in self._foreign:
                kept[index] = -1
        return kept

    def _slots(self, labels: list[bytes]) -> IntColumn:
        known = len(self._slot_of_name)
        slots = self._labels.of(labels)
        if len(self._slot_of_name) > known:
            self._place()
        return slots

    def _slot(self, name: Name, moved: bool) -> int:
        slot = self._slot_of_name.setdefault((name, moved), len(self._slot_of_name))
        if slot >= len(self._id_of_slot):
            self._id_of_slot = np.concatenate([self._id_of_slot, np.full(len(self._id_of_slot), -1)])
            self._moved = np.concatenate([self._moved, np.zeros(len(self._moved), dtype=bool)])
        self._moved[slot] = moved
        return slot

    def _place(self) -> None:
        rows, known = find(self._id_of_slot, self._pod_ids)
        self._row_of_slot = np.where(known, rows, -1)
