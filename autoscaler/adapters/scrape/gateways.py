"""Reads gateways and routers directly: requests they hold and the arrival rate, also for workloads without a pod.

`adapters.gateways` maps series to workloads. This module keeps what one reading lacks: the last value of each counter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from yarl import URL

from autoscaler.adapters.gateways import add_known, read_gateways
from autoscaler.adapters.scrape.exposition import MAX_SAMPLES, Exposition
from autoscaler.adapters.scrape.pod_columns import start_time_s
from autoscaler.adapters.scrape.report import ReportBuilder
from autoscaler.adapters.scrape.urls import UrlReader, loggable
from autoscaler.catalog.engines import START_TIME
from autoscaler.catalog.gateways import GATEWAYS, metric_names
from autoscaler.catalog.series import Labels
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import GatewaySamples, Objectives, PodSamples, Samples
from autoscaler.core.readings import counter_falls
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import increase
from autoscaler.ports import Clock

_SAMPLE_NAMES = frozenset(name.encode() for name in (START_TIME, *metric_names()))
_COUNTERS = frozenset(part.name for row in GATEWAYS.values() for one in row.arrivals for part in one.parts())

Key = tuple[str, frozenset[tuple[str, str]]]  # name and labels of a counter


@dataclass
class _Gateway:
    """State kept about one URL."""

    read_s: float = -math.inf  # time of the last answer
    counts: dict[Key, float] = field(default_factory=dict)
    workloads: frozenset[int] = frozenset()  # ids of the workloads that it reported on
    start_s: float = math.nan  # Unix time of the start of its process; NaN if unknown
    rejected: frozenset[Key] = frozenset()  # counters of the last answer that were rejected
    fell_s: float = -math.inf  # time of the last rejected counter


class GatewayScraper:
    """A SampleSource for the gateways of the settings. An async context manager."""

    def __init__(self, settings: ScrapeSettings, clock: Clock) -> None:
        """Raises ValueError for an invalid URL."""
        self._reader = UrlReader(settings.gateways, settings, gateways=True)
        self._gateways = {url: _Gateway() for url in self._reader.urls}
        self._clock = clock
        self._window_s = settings.window_s
        self._counted_s: dict[int, float] = {}  # time of the last reading with its arrivals, by workload_id

    async def __aenter__(self) -> Self:
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.__aexit__()

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read every gateway within `deadline_s` seconds; NaN for workloads without a series.

        Several gateways, such as replicas of one, are added. While one of them is silent its share is missing: the rest
        remains as a lower bound, but 0 becomes unknown.
        """
        begin_s = self._clock.now_s()
        builder = ReportBuilder()
        answers = await self._reader.read(_SAMPLE_NAMES, deadline_s, builder)
        gateways = self._read_gateways(fleet, answers, self._clock.now_s(), builder)
        report = builder.build("gateway", self._clock.now_s() - begin_s)
        return Samples(PodSamples.filled(len(fleet.pods)), gateways, (report,))

    def _read_gateways(
        self, fleet: Fleet, answers: dict[URL, Exposition], now_s: float, builder: ReportBuilder
    ) -> GatewaySamples:
        waiting = np.full(len(fleet.workloads), np.nan)
        arrived = waiting.copy()
        partial = np.zeros(len(fleet.workloads), dtype=bool)
        for url, gateway in self._gateways.items():
            if url not in answers:
                partial |= np.isin(fleet.workload_id, list(gateway.workloads))
                continue
            series = answers[url].series
            increases = self._increases(gateway, answers[url], now_s)
            if now_s - gateway.fell_s <= counter_falls.REPORTED_S:
                builder.note(loggable(url), counter_falls.PROBLEM)
            own_waiting, own_arrived = read_gateways(fleet, series, increases)
            known = ~np.isnan(own_waiting) | ~np.isnan(own_arrived)
            gateway.workloads = frozenset(fleet.workload_id[known].tolist())
            waiting = add_known(waiting, own_waiting)
            arrived = add_known(arrived, own_arrived)
        rates = self._rates(fleet, arrived, now_s)
        waiting = np.where(partial & (waiting == 0), np.nan, waiting)
        rates = np.where(partial & (rates == 0), np.nan, rates)
        known = ~np.isnan(waiting) | ~np.isnan(rates)
        return GatewaySamples(np.where(known, now_s, np.nan), waiting, rates)

    def _increases(
        self, gateway: _Gateway, exposition: Exposition, now_s: float
    ) -> dict[str, list[tuple[Labels, float]]]:
        """Return the growth of each counter since the last answer of the gateway.

        A counter that decreased was reset and counts from 0. So does a new counter, because many gateways create a
        series with the first request. The first answer, or one after a long silence, only sets the base. If the process
        did not restart, a counter that decreased is rejected once; if it is still low in the next answer, it counts
        from there, as in `core.observe.counter_falls`.
        """
        fresh = now_s - gateway.read_s > 2 * self._window_s
        counts = {
            (name, frozenset(labels.items())): value
            for name in _COUNTERS & exposition.series.keys()
            for labels, value in exposition.series[name]
            if 0 <= value < math.inf
        }
        start_s = start_time_s(exposition)
        same_process = start_s == gateway.start_s and not fresh
        fell = frozenset(key for key in counts if same_process and counts[key] < gateway.counts.get(key, 0.0))
        confirmed = fell & gateway.rejected
        gateway.start_s, gateway.rejected = start_s, fell - confirmed
        if gateway.rejected:
            gateway.fell_s = now_s
            counts = {key: value for key, value in counts.items() if key not in gateway.rejected}
        after = np.array(list(counts.values()))
        known = {**gateway.counts, **{key: counts[key] for key in confirmed}} if confirmed else gateway.counts
        before = after if fresh else np.array([known.get(key, 0.0) for key in counts])
        increases: dict[str, list[tuple[Labels, float]]] = {}
        for (name, labels), grown in zip(counts, increase(before, after).tolist(), strict=True):
            increases.setdefault(name, []).append((dict(labels), grown))
        # A series that disappears for a while must not count from 0 later; the size stays bounded.
        gateway.counts = counts if fresh or len(gateway.counts) > 2 * MAX_SAMPLES else {**gateway.counts, **counts}
        gateway.read_s = now_s
        return increases

    def _rates(self, fleet: Fleet, arrived: FloatColumn, now_s: float) -> FloatColumn:
        """Return the rate of arrivals since the reading before, float64[W], requests per second; NaN at the first.

        A request that made a series came after an earlier reading of its gateway, so it counts at once.
        """
        before, known = self._counted_s, ~np.isnan(arrived)
        elapsed_s = now_s - np.array([before.get(workload_id, np.nan) for workload_id in fleet.workload_id.tolist()])
        self._counted_s = {
            workload_id: now_s if is_known else before[workload_id]
            for workload_id, is_known in zip(fleet.workload_id.tolist(), known.tolist(), strict=True)
            if is_known or workload_id in before
        }
        elapsed_s = np.where(np.isnan(elapsed_s) & (arrived > 0), self._window_s, elapsed_s)
        return np.where((elapsed_s > 0) & (elapsed_s <= 2 * self._window_s), arrived, np.nan) / elapsed_s
