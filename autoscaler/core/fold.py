"""From pods to their workloads: what is known of each pod, added up, averaged, or the extreme of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.core.columns import BoolColumn, FloatColumn, IntColumn, fitting


@dataclass(frozen=True)
class Fold:
    """Of values, float64[P], one for each workload, float64[W]. NaN is not known."""

    pod_workload: IntColumn  # int64[P]
    workloads: int

    def counts(self, masks: Sequence[BoolColumn]) -> Iterator[FloatColumn]:
        """Count the pods of each of these, bool[P]."""
        for some in self._fitting(masks):
            yield from self._added(np.array(masks[some]))

    def sums(self, columns: Sequence[tuple[FloatColumn, BoolColumn]]) -> Iterator[FloatColumn]:
        """Sum each of these over its pods, bool[P]: 0 where there is none."""
        for some in self._fitting(columns):
            values, where = (np.array(each) for each in zip(*columns[some], strict=True))
            yield from self._added(np.where(where, values, 0.0))

    def totals(self, columns: Sequence[FloatColumn], where: BoolColumn) -> Iterator[FloatColumn]:
        """Sum each of these over the pods that know it; NaN where none does."""
        for some in self._fitting(columns):
            values = np.array(columns[some])
            known = where & ~np.isnan(values)
            yield from np.where(self._added(known) > 0, self._added(np.where(known, values, 0.0)), np.nan)

    def means(
        self, columns: Sequence[FloatColumn], weights: Sequence[FloatColumn], where: BoolColumn
    ) -> Iterator[FloatColumn]:
        """Average each of these over the pods that know it, by its weights; NaN where none does."""
        for some in self._fitting(columns):
            values, weight = np.array(columns[some]), np.array(weights[some])
            known = where & ~np.isnan(values)
            total, of = (self._added(np.where(known, each, 0.0)) for each in (values * weight, weight))
            with np.errstate(invalid="ignore"):
                yield from total / of  # 0 / 0 where none knows

    def largest(self, values: FloatColumn) -> FloatColumn:
        """Return the largest value of the pods that know; NaN where none does."""
        return self._extreme(np.fmax, values)

    def smallest(self, values: FloatColumn) -> FloatColumn:
        """Return the smallest value of the pods that know; NaN where none does."""
        return self._extreme(np.fmin, values)

    def _extreme(self, extreme: np.ufunc, values: FloatColumn) -> FloatColumn:
        found = np.full(self.workloads, np.nan)
        extreme.at(found, self.pod_workload, values)
        return found

    def _fitting(self, columns: Sequence[object]) -> Iterator[slice]:
        return fitting(len(columns), len(self.pod_workload))

    def _added(self, values: npt.NDArray[np.float64 | np.bool_]) -> FloatColumn:
        """Add up the pods of each workload; [n, P] to float64[n, W]. One call for all columns: few rows cost little."""
        place = self.pod_workload
        if len(values) > 1:
            place = (place + self.workloads * np.arange(len(values))[:, None]).ravel()
        added = np.bincount(place, values.ravel(), len(values) * self.workloads)
        return added.reshape(len(values), -1).astype(np.float64, copy=False)  # of no pods it makes whole numbers
