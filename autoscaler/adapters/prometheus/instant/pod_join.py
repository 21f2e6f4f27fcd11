"""Maps series to pods of the fleet. Labels are parsed once per series; later their bytes are looked up.

The lookup has three cached steps: from labels to a slot, from slot to the pod id, from id to the row in the fleet.
Each pod name has two slots, whether or not such a pod exists: an even one for series that name it, and the odd one
after it for series whose moved labels do. A pod that comes or goes therefore costs nothing for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from autoscaler.adapters.prometheus.decode import ORDERS, Vector, parse_labels
from autoscaler.adapters.prometheus.pod_labels import Name, pod_name, scrape_of
from autoscaler.catalog.series import Labels, is_moved
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, fill_unknown, find_ids

MOST_APART = 0.01  # of readings of one device that count as alike
MAX_REMEMBERED = 1_000_000  # label sets cached; beyond it the cache is cleared, so hostile labels cost time, not memory

LabelSet = frozenset[tuple[str, str]]


class LabelSlots:
    """Maps the labels of series to numbers that `number` assigns; parses each set of labels once."""

    def __init__(self, number: Callable[[Labels], int]) -> None:
        self._number = number
        self._slot_of: dict[bytes, int] = {}
        self._orders: list[tuple[list[bytes], IntColumn]] = []  # least recently used first

    def __len__(self) -> int:
        return len(self._slot_of)

    def of(self, labels: list[bytes]) -> IntColumn:
        """Return the number of each series, int64[N]."""
        for place, (known, slots) in enumerate(self._orders):
            if known is labels or known == labels:
                self._orders.append(self._orders.pop(place))  # move to the end
                return slots
        slots = np.fromiter(map(self._slot_of.get, labels, repeat(-1)), np.int64, len(labels))
        for index in np.flatnonzero(slots < 0):
            slots[index] = self._slot_of[labels[index]] = self._number(parse_labels(labels[index]))
        self._orders = [*self._orders, (labels, slots)][-ORDERS:]
        return slots


@dataclass(frozen=True)
class Merge:
    """How the series of a pod are merged that come from several sources. Other series are not affected."""

    rows: IntColumn  # of the pods that have several sources, in the fleet
    left_out: frozenset[LabelSet]  # labels of series that do not count
    process: Mapping[LabelSet, LabelSet]  # by the labels of a series: those of the first series of the same process
    first: Mapping[LabelSet, LabelSet]  # those of the first series of the same scrape, to which processes are added


class PodJoin:
    """Maps vectors onto the rows of successive fleets, which must come from one source."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._foreign: Mapping[LabelSet, int] = {}  # labels of excluded series, and the id of their pod
        self._merge: Merge | None = None
        self._label_sets: dict[bytes, LabelSet] = {}  # of series of several sources
        self._forget()

    def _forget(self) -> None:
        self._labels = LabelSlots(lambda labels: self._slot(pod_name(labels), is_moved(labels)))
        self._slot_of_name: dict[Name, int] = {}  # the even ones
        self._id_of_slot = np.full(1024, -1, dtype=np.int64)  # grows by doubling; -1 if there never was such a pod
        self._row_of_slot = self._id_of_slot
        self._pod_ids = np.empty(0, dtype=np.int64)

    def align(self, fleet: Fleet) -> None:
        """Take over the pods of a fleet. To be called for each new fleet, before `rows`."""
        if len(self._slot_of_name) + len(self._labels) > self._max_remembered:
            self._forget()
        _, known = find_ids(fleet.pod_id, self._pod_ids)  # a workload that joins the fleet has older pods
        for row in np.flatnonzero(~known):
            pod = fleet.pods[row]
            slot = self._slot((pod.namespace, pod.name), False)
            self._id_of_slot[slot : slot + 2] = fleet.pod_id[row]
        self._pod_ids = fleet.pod_id
        self._update_rows()

    def rows(self, labels: list[bytes]) -> IntColumn:
        """Return the row in the fleet of each series, int64[N]; -1 if its pod is gone or it names none."""
        return np.asarray(self._row_of_slot[self._slots(labels)])

    def exclude(self, foreign: Mapping[LabelSet, int]) -> None:
        """Exclude series with exactly these labels from columns. foreign: row of the pod, by labels."""
        self._foreign = {labels: int(self._pod_ids[row]) for labels, row in foreign.items()}

    def merge(self, merge: Merge | None) -> None:
        """Merge the sources of pods like this from now on."""
        self._merge = merge
        if merge is None or len(self._label_sets) > self._max_remembered:
            self._label_sets.clear()

    def is_outside_fleet(self, labels: list[bytes]) -> BoolColumn:
        """Return which series name no pod that is, or was, in the fleet, or are excluded; bool[N]."""
        slots = self._slots(labels)
        rows = self._row_of_slot[slots]
        excluded = (rows >= 0) & (self._drop_excluded(labels, rows) < 0)
        return np.asarray((self._id_of_slot[slots] < 0) | excluded)

    def column(
        self,
        vector: Vector,
        *,
        include_excluded: bool = False,
        together: Callable[..., float] = math.fsum,
        alike: bool = False,
    ) -> FloatColumn:
        """Return the value of each pod, float64[P]: the largest of its series, NaN if it has none.

        Series from the scrape of the pod take precedence over series with moved labels, because any pod can expose
        such labels and name another pod. include_excluded: excluded series count as well. together: of the values of
        the processes in a pod, if it has several. alike: moved labels of several namespaces count only if their values
        are alike, as those of exporters are that read one device.
        """
        slots = self._slots(vector.labels)
        rows, values = self._row_of_slot[slots], vector.values
        if not include_excluded:
            rows = self._drop_excluded(vector.labels, rows)
        if self._merge is not None:
            values = self._merge_sources(self._merge, vector, rows, together)
        known, moved = rows >= 0, slots % 2 == 1
        column = np.full(len(self._pod_ids), np.nan)
        np.fmax.at(column, rows[known & ~moved], values[known & ~moved])
        if (known & moved).any():
            others = np.full(len(self._pod_ids), np.nan)
            np.fmax.at(others, rows[known & moved], values[known & moved])
            if alike:
                others[self._contradicted(vector, np.where(moved, rows, -1))] = np.nan
            column = fill_unknown(column, others)
        return column

    def _contradicted(self, vector: Vector, rows: IntColumn) -> list[int]:
        """Return the rows of pods about which scrapes in different namespaces differ. rows: of each series, or -1."""
        told: dict[int, dict[str, float]] = {}
        several = np.bincount(rows[rows >= 0], minlength=len(self._pod_ids)) > 1
        for index in np.flatnonzero((rows >= 0) & several[rows]).tolist():
            scrapes, value = told.setdefault(int(rows[index]), {}), float(vector.values[index])
            scrape = scrape_of(parse_labels(vector.labels[index]))
            scrapes[scrape] = float(np.fmax(scrapes.get(scrape, np.nan), value))
        return [
            row
            for row, scrapes in told.items()
            if not np.nanmax([*scrapes.values()], initial=0.0) * (1 - MOST_APART)
            <= np.nanmin([*scrapes.values()], initial=np.inf)
        ]

    def _merge_sources(
        self, merge: Merge, vector: Vector, rows: IntColumn, together: Callable[..., float]
    ) -> FloatColumn:
        """Return the values with that of a scrape at one of its series, and NaN at the others."""
        values = vector.values.copy()
        places: dict[LabelSet, int] = {}  # of the series that gets the value, by scrape
        processes: dict[LabelSet, dict[LabelSet, float]] = {}  # the largest value of each process, by scrape
        for index in np.flatnonzero(np.isin(rows, merge.rows)).tolist():
            raw = vector.labels[index]
            if (key := self._label_sets.get(raw)) is None:
                key = self._label_sets[raw] = frozenset(parse_labels(raw).items())
            if key in merge.left_out:
                values[index] = np.nan
            elif key in merge.first:
                of_scrape = processes.setdefault(merge.first[key], {})
                process = merge.process[key]
                of_scrape[process] = np.fmax(of_scrape.get(process, np.nan), values[index])
                places.setdefault(merge.first[key], index)
                values[index] = np.nan
        for scrape, of_scrape in processes.items():
            if known := [value for value in of_scrape.values() if not math.isnan(value)]:
                values[places[scrape]] = together(known)
        return values

    def _drop_excluded(self, labels: list[bytes], rows: IntColumn) -> IntColumn:
        if not self._foreign:
            return rows
        candidates = np.isin(self._pod_ids, list(self._foreign.values()))
        kept = rows.copy()
        for index in np.flatnonzero((rows >= 0) & candidates[rows]).tolist():
            if frozenset(parse_labels(labels[index]).items()) in self._foreign:
                kept[index] = -1
        return kept

    def _slots(self, labels: list[bytes]) -> IntColumn:
        known = len(self._slot_of_name)
        slots = self._labels.of(labels)
        if len(self._slot_of_name) > known:
            self._update_rows()
        return slots

    def _slot(self, name: Name, moved: bool) -> int:
        slot = self._slot_of_name.setdefault(name, 2 * len(self._slot_of_name))
        if slot >= len(self._id_of_slot):
            self._id_of_slot = np.concatenate([self._id_of_slot, np.full(len(self._id_of_slot), -1)])
        return slot + moved

    def _update_rows(self) -> None:
        rows, known = find_ids(self._id_of_slot, self._pod_ids)
        self._row_of_slot = np.where(known, rows, -1)
