"""Facts of services in the last tick of a record: policies with what workloads override, slots, and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.adapters.record.reader import Record
from autoscaler.config.prices import Prices
from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe import load as observed_load
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.ports import Unavailable
from autoscaler.report.facts import ServiceFacts


@dataclass(frozen=True)
class LastTick:
    """The input of the last recorded tick, seen from the services of a report."""

    input: TickInput | None  # None: it is not kept
    why_not: str  # "": it is kept
    rows: IntColumn  # int64[W], rows of the tick's workloads; -1: it does not have the service

    @classmethod
    def of(cls, record: Record, at_s: float, services: tuple[ServiceName, ...]) -> LastTick:
        """Read the last tick up to a Unix time."""
        try:
            made = record.input(at_s)
        except Unavailable as error:
            return cls(None, str(error), np.full(len(services), -1))
        row_of = {(each.ref.namespace, each.ref.name): row for row, each in enumerate(made.fleet.workloads)}
        return cls(made, "", np.array([row_of.get((each.namespace, each.name), -1) for each in services], np.int64))

    def take(self, rows: list[int]) -> LastTick:
        """Return it for some services, in this order."""
        return replace(self, rows=self.rows[rows])

    def in_force(self, spec: Spec) -> Spec:
        """Return the policies of services, float64[W], with what single workloads override."""
        if self.input is None:
            return spec
        known = np.flatnonzero(~np.isnan(self._of_services(self.input.spec.attainment)))
        return spec.with_rows(known, self.input.spec.take(self.rows[known]))

    @property
    def slots(self) -> FloatColumn:
        """Requests that a replica runs at once, as its engine or its command line says; float64[W], NaN: unknown."""
        if self.input is None:
            return np.full(len(self.rows), np.nan)
        fleet = self.input.fleet
        told = observed_load.slots(fleet, observed_load.with_stated_slots(fleet, self.input.samples.pods))
        found = self._of_services(told)
        return np.where(np.isfinite(found), found, np.nan)

    def _of_services(self, column: FloatColumn) -> FloatColumn:
        """Return a column of the tick's workloads by service; float64[W], NaN: the tick does not have it."""
        return np.append(column, np.nan)[self.rows]

    def price(self, facts: ServiceFacts, stated: Mapping[str, float]) -> tuple[ServiceFacts, list[str]]:
        """Return the facts with the prices that the tick would have had, and what keeps its recorded one."""
        if self.input is None:
            return facts, [f"stated prices are not used, the recorded ones stand: {self.why_not}"]
        prices = Prices(stated)
        variants = prices.variants(self.input.fleet)
        usd, reasons = facts.usd_per_hour.copy(), list(facts.reasons)
        here = np.flatnonzero(self.rows >= 0)
        for place in here:
            row = self.rows[place]
            usd[place], reasons[place] = variants.cost[row], variants.why[row]
        gone, services = len(self.rows) - len(here), len(self.rows)
        told = [f"{gone} of {services} services keep their recorded price: they were gone at the end"] * bool(gone)
        return replace(facts, usd_per_hour=usd, reasons=tuple(reasons)), [*told, *prices.problems]
