"""Reads DCGM exporters directly: framebuffer and activity of the GPUs, or MIG slices, of each pod.

DCGM collects every 30 s from a short sample, so a short request may not show in one reading. Activity is therefore the
maximum of the last minutes, per pod.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import fields
from typing import Self

import numpy as np

from autoscaler.adapters.scrape.exposition import Exposition
from autoscaler.adapters.scrape.report import ReportBuilder
from autoscaler.adapters.scrape.urls import UrlReader
from autoscaler.catalog import gpus
from autoscaler.catalog.series import Readings, first, pod_of
from autoscaler.config.settings import ScrapeSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import GatewaySamples, Objectives, PodSamples, Samples
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import Clock

WINDOW_S = 180.0  # six collections of DCGM
SLOT_S = 15.0

_SAMPLE_NAMES = frozenset(name.encode() for name in gpus.metric_names())
_Device = tuple[str, ...]


class DcgmScraper:
    """A SampleSource for the DCGM exporters of the settings. An async context manager."""

    def __init__(self, settings: ScrapeSettings, clock: Clock) -> None:
        """Raises ValueError for an invalid URL."""
        self._reader = UrlReader(settings.dcgm, settings)
        self._clock = clock
        self._peaks: dict[int, dict[str, _Peak]] = {}  # by pod_id and column

    async def __aenter__(self) -> Self:
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.__aexit__()

    async def sample(self, fleet: Fleet, objectives: Objectives, deadline_s: float) -> Samples:
        """Read every exporter within `deadline_s` seconds; NaN for pods without a series."""
        begin_s = self._clock.now_s()
        builder = ReportBuilder()
        row_of = {(pod.namespace, pod.name): row for row, pod in enumerate(fleet.pods)}
        columns = {column.name: np.full(len(fleet.pods), np.nan) for column in fields(PodSamples)}

        for exposition in (await self._reader.read(_SAMPLE_NAMES, deadline_s, builder)).values():
            _fill(columns, exposition, row_of, self._clock.now_s())
        self._keep_peaks(fleet, columns)
        report = builder.build("dcgm", self._clock.now_s() - begin_s)
        return Samples(PodSamples(**columns), GatewaySamples.filled(len(fleet.workloads)), (report,))

    def _keep_peaks(self, fleet: Fleet, columns: dict[str, FloatColumn]) -> None:
        """Replace each activity by its maximum within the window; forget deleted pods."""
        before, self._peaks = self._peaks, {}
        for row, pod_id in enumerate(fleet.pod_id.tolist()):
            peaks = before.get(pod_id, {})
            for column in gpus.COLUMNS:
                value = columns[column][row]
                if not np.isnan(value):
                    columns[column][row] = peaks.setdefault(column, _Peak()).push(columns["gpu_time_s"][row], value)
            if peaks:
                self._peaks[pod_id] = peaks


class _Peak:
    """The maximum of the last minutes, in a bounded number of slots."""

    def __init__(self) -> None:
        self._slots: deque[tuple[float, float]] = deque()

    def push(self, now_s: float, value: float) -> float:
        if self._slots and now_s - self._slots[-1][0] < SLOT_S:
            self._slots[-1] = (self._slots[-1][0], max(self._slots[-1][1], value))
        else:
            self._slots.append((now_s, value))
        while self._slots[0][0] < now_s - WINDOW_S:
            self._slots.popleft()
        return max(value for _, value in self._slots)


def _fill(
    columns: dict[str, FloatColumn], exposition: Exposition, row_of: Mapping[tuple[str, str], int], now_s: float
) -> None:
    """Write the readings of one exporter into the columns: the largest of the devices of each pod."""
    readings: dict[str, dict[int, dict[_Device, float]]] = {}  # metric, row, device
    sliced: set[int] = set()  # rows with MIG instances
    for name, samples in exposition.series.items():
        for labels, value in samples:
            pod = pod_of(labels)
            row = row_of.get(pod) if pod else None
            if row is not None and any(map(labels.get, gpus.MIG_LABELS)):
                sliced.add(row)
            if row is not None and 0 <= value <= gpus.max_value(name):
                readings.setdefault(name, {}).setdefault(row, {})[gpus.device_of(labels)] = value
    found = {"fb_usage": _largest(gpus.FB_RATIO, readings) | _framebuffer(readings)}
    found |= {column: _largest(rows, readings) for column, rows in gpus.ACTIVITY.items()}
    found = {column: {row: min(value, 1.0) for row, value in values.items()} for column, values in found.items()}
    whole = {"gpu_util": _largest(gpus.GPU_UTIL, readings)}
    for column, directions in gpus.LINKS.items():
        sent, received = (_largest(first(name), readings) for name in directions)
        whole[column] = {row: max(sent.get(row, 0.0), received.get(row, 0.0)) for row in sent | received}
    for column, values in whole.items():
        found[column] = {row: value for row, value in values.items() if row not in sliced}
    for column, values in found.items():
        for row, value in values.items():
            columns[column][row] = np.fmax(columns[column][row], value)
            columns["gpu_time_s"][row] = now_s


def _framebuffer(readings: Mapping[str, Mapping[int, Mapping[_Device, float]]]) -> dict[int, float]:
    """Return used / (used + free) of the fullest device that reports both, by row."""
    usage: dict[int, float] = {}
    for row, devices in readings.get(gpus.FB_USED, {}).items():
        free_of = readings.get(gpus.FB_FREE, {}).get(row, {})
        for device, used in devices.items():
            total = used + free_of.get(device, np.nan)
            if total > 0:
                usage[row] = max(usage.get(row, 0.0), used / total)
    return usage


def _largest(alternatives: Readings, readings: Mapping[str, Mapping[int, Mapping[_Device, float]]]) -> dict[int, float]:
    """Return the largest value over devices of the first alternative that is present, by row."""
    values: dict[int, float] = {}
    for alternative in alternatives:
        for row, devices in readings.get(alternative.name, {}).items():
            values.setdefault(row, max(devices.values()))
    return values
