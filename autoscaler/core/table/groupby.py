"""From pods to their workloads: what is known of each pod, added up, averaged, or the extreme of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, fitting, stacked


@dataclass(frozen=True)
class Fold:
    """Of values, float64[P], one for each workload, float64[W]. NaN is not known."""

    pod_workload: IntColumn  # int64[P]
    workloads: int

    def counts(self, masks: Sequence[BoolColumn]) -> Iterator[FloatColumn]:
        """Count the pods of each of these, bool[P]."""
        for some in self._fitting(masks):
            yield from self._counted(stacked(masks[some]))

    def sums(self, columns: Sequence[tuple[FloatColumn, BoolColumn]]) -> Iterator[FloatColumn]:
        """Sum each of these over its pods, bool[P]: 0 where there is none."""
        for some in self._fitting(columns):
            values, where = zip(*columns[some], strict=True)
            yield from self._summed(stacked(values), stacked(where))

    def totals(self, columns: Sequence[FloatColumn], where: BoolColumn) -> Iterator[FloatColumn]:
        """Sum each of these over the pods that know it; NaN where none does."""
        for some in self._fitting(columns):
            values = stacked(columns[some])
            known = where & ~np.isnan(values)
            yield from np.where(self._counted(known) > 0, self._summed(values, known), np.nan)

    def means(
        self, columns: Sequence[FloatColumn], weights: Sequence[FloatColumn], where: BoolColumn
    ) -> Iterator[FloatColumn]:
        """Average each of these over the pods that know it, by its weights; NaN where none does."""
        for some in self._fitting(columns):
            values, weight = stacked(columns[some]), stacked(weights[some])
            known = where & ~np.isnan(values)
            with np.errstate(invalid="ignore"):
                yield from self._summed(values * weight, known) / self._summed(weight, known)  # 0 / 0: none knows

    def largest(self, values: FloatColumn) -> FloatColumn:
        """Return the largest value of the pods that know; NaN where none does."""
        return self._extreme(np.fmax, values)

    def smallest(self, values: FloatColumn) -> FloatColumn:
        """Return the smallest value of the pods that know; NaN where none does."""
        return self._extreme(np.fmin, values)

    def _extreme(self, extreme: np.ufunc, values: FloatColumn) -> FloatColumn:
        found, known = np.full(self.workloads, np.nan), np.flatnonzero(~np.isnan(values))
        extreme.at(found, self.pod_workload[known], values[known])
        return found

    def _fitting(self, columns: Sequence[object]) -> Iterator[slice]:
        return fitting(len(columns), len(self.pod_workload))

    def _counted(self, where: BoolColumn) -> FloatColumn:
        """Count the pods of each workload, [n, P] to float64[n, W]: of nearly all pods those that are left out."""
        if len(where) == 1 and 2 * np.count_nonzero(where) > where.size:
            return self._pods - self._counted(~where)
        return self._summed(where, where)

    def _summed(self, values: npt.NDArray[np.float64 | np.bool_], where: BoolColumn) -> FloatColumn:
        """Add up the pods of each workload, [n, P] to float64[n, W]. One call for all columns: few rows cost little."""
        place, columns = self.pod_workload, len(values)
        if columns > 1:
            place = (place + self.workloads * np.arange(columns)[:, None]).ravel()
            added = np.bincount(place, np.where(where, values, 0.0).ravel(), columns * self.workloads)
        elif 2 * np.count_nonzero(where) > where.size:
            added = np.bincount(place, np.where(where[0], values[0], 0.0), self.workloads)
        else:  # of many pods few, or none
            some = np.flatnonzero(where)
            added = np.bincount(place[some], values[0][some], self.workloads)
        return added.reshape(columns, -1).astype(np.float64, copy=False)  # of no pods it makes whole numbers

    @cached_property
    def _pods(self) -> FloatColumn:
        return np.bincount(self.pod_workload, minlength=self.workloads).astype(np.float64)
