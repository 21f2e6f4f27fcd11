"""The history of all services: a value of each in each step of a span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autoscaler.adapters.prometheus.range.service_queries import ORDERED, PODS, ServiceName
from autoscaler.core.table.columns import BoolColumn, FloatColumn

Steps = npt.NDArray[Any]
"""float32[T, W], a value of each service in each step; NaN: unknown."""

MOST_ODD, MOST_SILENT = 0.01, 0.5
"""Shares of the steps with impossible numbers, and silent ones, beyond which a service is not judged."""

MOST_CELLS = 4_500_000
"""Steps of all services. A report over as many takes some 800 MiB, at whatever resolution."""


DUST = 1e-6
"""A number above 0 and below this is taken as 0: no engine has a millionth of a request, and work divided by it has no
end."""


class Span(NamedTuple):
    """An even grid of steps. Step t ends at `start_s` + (t + 1) x `step_s`."""

    start_s: float  # Unix time
    step_s: float
    steps: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.steps * self.step_s

    @property
    def ends_s(self) -> FloatColumn:
        """Return the Unix time at which each step ends; float64[T]."""
        return np.asarray(self.start_s + self.step_s * np.arange(1.0, self.steps + 1), np.float64)


@dataclass(frozen=True)
class FleetHistory:
    """The history of all services, W, in T steps."""

    span: Span
    services: tuple[ServiceName, ...]
    columns: Mapping[str, Steps]  # those of `service_queries.COLUMNS` that any service has, and `column_of` them
    problems: tuple[str, ...] = ()  # one line each
    queries: int = 0  # that the server answered
    impossible: FloatColumn = field(default_factory=lambda: np.zeros(1))  # [W], or one for all: share of the steps
    # with numbers that cannot be true; they count as unknown

    def __post_init__(self) -> None:
        for values in self.columns.values():
            values[(values > 0) & (values < DUST)] = 0.0

    def column(self, name: str) -> Steps:
        """Return a column, NaN where no service has it."""
        found = self.columns.get(name)
        return np.full((self.span.steps, len(self.services)), np.nan, np.float32) if found is None else found

    def only(self, namespaces: Sequence[str]) -> FleetHistory:
        """Return the services of some namespaces; all if none is given. Raises ValueError if there is none."""
        rows = [row for row, name in enumerate(self.services) if not namespaces or name.namespace in namespaces]
        if not rows:
            known = ", ".join(sorted({name.namespace for name in self.services})[:10])
            raise ValueError(f"no service in namespace {' or '.join(namespaces)}; found: {known}")
        return self.take(rows)

    def take(self, rows: Sequence[int]) -> FleetHistory:
        """Return some services, in this order."""
        place = list(rows)
        columns = {name: values[:, place] for name, values in self.columns.items()}
        impossible = np.broadcast_to(self.impossible, len(self.services))[place]
        names = tuple(self.services[row] for row in place)
        return replace(self, services=names, columns=columns, impossible=impossible)

    def from_first(self, least_steps: int) -> FleetHistory:
        """Return the history since anything was seen; all of it if that is less than `least_steps`."""
        seen = self.seen.any(axis=1)
        first = int(np.argmax(seen)) if seen.any() else 0
        if not first or self.span.steps - first < least_steps:
            return self
        span = Span(self.span.start_s + first * self.span.step_s, self.span.step_s, self.span.steps - first)
        return replace(self, span=span, columns={name: values[first:] for name, values in self.columns.items()})

    @property
    def seen(self) -> BoolColumn:
        """Return the steps in which the service is known to have reported, or to have had no replica; bool[T, W]."""
        reported, silent = self._reports()
        return np.asarray(reported | (silent & ~self._ended & ~(self.column(ORDERED) > 0)))

    @property
    def _ended(self) -> BoolColumn:
        """Return the steps after the last in which anything told of a service; bool[T, W].

        It may have been renamed or deleted, so nothing is charged to it there.
        """
        told = (self.column(PODS) > 0) | ~np.isnan(self.column(ORDERED))
        return ~np.asarray(np.maximum.accumulate(told[::-1], axis=0)[::-1])

    @property
    def ended(self) -> tuple[ServiceName, ...]:
        """Return the services of which nothing was told at the end, while others reported."""
        gone = np.any(self._ended & self._reports()[1], axis=0)
        return tuple(self.services[row] for row in np.flatnonzero(gone))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Return why the history of each service is not believed; "": it is. [W]."""
        odd = np.broadcast_to(self.impossible, len(self.services)).tolist()
        untold = (self._reports()[1] & ~self._ended & np.isnan(self.column(ORDERED))).mean(axis=0).tolist()
        return tuple(
            f"its engines reported numbers that cannot be true in {impossible:.0%} of the steps"
            if impossible > MOST_ODD
            else f"it was silent in {silent:.0%} of the span, and no kube-state-metrics tells whether it had replicas"
            if silent > MOST_SILENT
            else ""
            for impossible, silent in zip(odd, untold, strict=True)
        )

    def _reports(self) -> tuple[BoolColumn, BoolColumn]:
        """Return when a service reported, and when it was silent after it had and others were not; bool[T, W]."""
        reported = self.column(PODS) > 0
        began = np.maximum.accumulate(reported, axis=0)
        return reported, began & reported.any(axis=1, keepdims=True) & ~reported
