"""Group the rows of pods by workload: count, sum, mean, maximum and minimum per workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, cache_sized_slices, stack_rows


@dataclass(frozen=True)
class GroupBy:
    """Turn columns of pods, float64[P], into columns of workloads, float64[W]. NaN is unknown.

    Methods that take several columns return one result per column: few rows then cost few array operations.
    """

    pod_workload: IntColumn  # int64[P]
    workloads: int

    def count(self, masks: Sequence[BoolColumn]) -> Iterator[FloatColumn]:
        """Count the pods in each mask, bool[P]."""
        for some in self._slices(masks):
            yield from self._counts(stack_rows(masks[some]))

    def sum(self, columns: Sequence[tuple[FloatColumn, BoolColumn]]) -> Iterator[FloatColumn]:
        """Sum each column over the pods in its mask, bool[P]: 0 for a workload without any."""
        for some in self._slices(columns):
            values, where = zip(*columns[some], strict=True)
            yield from self._sums(stack_rows(values), stack_rows(where))

    def sum_known(self, columns: Sequence[FloatColumn], where: BoolColumn) -> Iterator[FloatColumn]:
        """Sum each column over the pods in `where` that have a value: NaN for a workload without any."""
        for some in self._slices(columns):
            values = stack_rows(columns[some])
            known = where & ~np.isnan(values)
            yield from np.where(self._counts(known) > 0, self._sums(values, known), np.nan)

    def mean(
        self, columns: Sequence[FloatColumn], weights: Sequence[FloatColumn], where: BoolColumn
    ) -> Iterator[FloatColumn]:
        """Average each column, by its weights, over the pods in `where` that have a value: NaN if none has."""
        for some in self._slices(columns):
            values, weight = stack_rows(columns[some]), stack_rows(weights[some])
            known = where & ~np.isnan(values)
            with np.errstate(invalid="ignore"):
                yield from self._sums(values * weight, known) / self._sums(weight, known)  # 0 / 0: no pod has a value

    def max(self, values: FloatColumn) -> FloatColumn:
        """Return the largest value per workload; NaN if no pod has a value."""
        return self._extreme(np.fmax, values)

    def min(self, values: FloatColumn) -> FloatColumn:
        """Return the smallest value per workload; NaN if no pod has a value."""
        return self._extreme(np.fmin, values)

    def _extreme(self, extreme: np.ufunc, values: FloatColumn) -> FloatColumn:
        result = np.full(self.workloads, np.nan)
        if self._first_pods is None:
            known = np.flatnonzero(~np.isnan(values))
            extreme.at(result, self.pod_workload[known], values[known])
        else:
            result[self.pod_workload[self._first_pods]] = extreme.reduceat(values, self._first_pods)
        return result

    def _slices(self, columns: Sequence[object]) -> Iterator[slice]:
        return cache_sized_slices(len(columns), len(self.pod_workload))

    def _counts(self, where: BoolColumn) -> FloatColumn:
        """Count the pods of each workload, [n, P] to float64[n, W]; if most are in `where`, by those that are not."""
        if len(where) == 1 and 2 * np.count_nonzero(where) > where.size:
            return self._pods - self._counts(~where)
        return self._sums(where, where)

    def _sums(self, values: npt.NDArray[np.float64 | np.bool_], where: BoolColumn) -> FloatColumn:
        """Sum over the pods of each workload, [n, P] to float64[n, W], in one call of `bincount`."""
        index, columns = self.pod_workload, len(values)
        if columns > 1:
            index = (index + self.workloads * np.arange(columns)[:, None]).ravel()
            sums = np.bincount(index, np.where(where, values, 0.0).ravel(), columns * self.workloads)
        elif 2 * np.count_nonzero(where) > where.size:
            sums = np.bincount(index, np.where(where[0], values[0], 0.0), self.workloads)
        else:
            some = np.flatnonzero(where)
            sums = np.bincount(index[some], values[0][some], self.workloads)
        return sums.reshape(columns, -1).astype(np.float64, copy=False)  # without pods `bincount` returns integers

    @cached_property
    def _first_pods(self) -> IntColumn | None:
        """The first pod of each workload that has one; None if the pods are not in the order of their workloads."""
        steps = np.diff(self.pod_workload, prepend=-1)
        return None if (steps < 0).any() else np.flatnonzero(steps)

    @cached_property
    def _pods(self) -> FloatColumn:
        return np.bincount(self.pod_workload, minlength=self.workloads).astype(np.float64)
