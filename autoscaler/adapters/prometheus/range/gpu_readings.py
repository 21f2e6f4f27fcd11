"""Readings of the GPU and the engine of each pod at moments of a span, a day at a time.

The queries are those of a tick, evaluated at these moments, so a diagnosis of them is what the daemon would have said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.duplicates import cluster_of
from autoscaler.adapters.prometheus.pod_labels import Name, pod_name, scrape_of
from autoscaler.adapters.prometheus.promql.engines import Over, over_query
from autoscaler.adapters.prometheus.promql.expressions import by, or_join
from autoscaler.adapters.prometheus.promql.gpus import GPU_WINDOW_S, gpu_queries
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, Identity, names_pods
from autoscaler.adapters.prometheus.promql.pod_groups import GROUP, group_name
from autoscaler.adapters.prometheus.range.fair_query import query_fairly
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import FoundEngines, ServiceName, service_of
from autoscaler.catalog.series import POD_LABELS, Labels
from autoscaler.config.findings import name_some
from autoscaler.core.model.samples import PodSamples
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn, or_zero, replace

DAY_S = 86_400.0
LEAST_STEP_S, MOST_STEP_S = 300.0, 3600.0
MOST_VALUES = 4_000_000
"""Values that are read. Beyond it the moments are further apart."""

ENGINE = {
    "running": ("running", "max_over_time"),
    "waiting": ("waiting", "max_over_time"),
    "deferred": ("deferred", "max_over_time"),
    "always_running": ("running", "min_over_time"),
    "generation_tokens": ("generation_tokens", "increase"),
    "prompt_tokens": ("prompt_tokens", "increase"),
    "finished": ("finished", "increase"),
    "steps": ("steps", "increase"),
}
"""Column and function over the window of DCGM's peaks, by the name of the reading."""

MOST_APART = 0.01
"""Part by which what several exporters tell of one pod may differ and still be the same."""

GROWTHS = ("generation_tokens", "prompt_tokens", "finished", "steps")


PodKey = tuple[str, Name]
"""The cluster of a pod, "" for none, and its name."""


class PodMoments(NamedTuple):
    """Readings of pods with an engine; N of them, a row for each pod and moment."""

    service: IntColumn  # int64[N], of `services`
    services: tuple[ServiceName, ...]
    samples: PodSamples  # [N]; `gpu_time_s` is its age as a negative number
    stuck: BoolColumn  # bool[N], a request ran for the whole window, and no counter of the engine moved


def choose_step_s(pods: float, span_s: tuple[float, float]) -> float:
    """Return the time between two moments. pods: that report at a time, in the mean."""
    columns = len(ENGINE) + 7
    wanted_s = (span_s[1] - span_s[0]) * pods * columns / MOST_VALUES
    return float(min(max(math.ceil(wanted_s / 60) * 60.0, LEAST_STEP_S), MOST_STEP_S))


def read_gpus(
    reader: RangeReader,
    found: FoundEngines,
    span_s: tuple[float, float],
    step_s: float,
    progress: Callable[[float], None] = lambda _: None,
    problems: dict[str, None] | None = None,
) -> Iterator[PodMoments]:
    """Yield the readings of each day; a day on which no GPU was read is left out. Raises Unavailable.

    problems: namespaces that were left out are told here.
    """
    problems = {} if problems is None else problems
    gpus = {query.column: query.expression for query in gpu_queries(_POD)}
    engines = dict(_engine_queries(found))
    start_s, end_s = span_s
    days = math.ceil((end_s - start_s) / DAY_S)
    for number in range(days):
        progress(number / days)
        first_s = start_s + number * DAY_S + step_s
        grid = _Grid(first_s, min(first_s + DAY_S - step_s, end_s), step_s)
        if grid.moments <= 0:
            return
        for column, expression in gpus.items():
            grid.add(column, reader, expression, problems)
        if grid.pods and engines:
            for column, expression in engines.items():
                grid.add(column, reader, expression, problems)
            yield grid.readings(tuple(gpus))


_POD: Identity = (*dict.fromkeys(chain.from_iterable(POD_LABELS)), *CLUSTER_LABELS)


def _engine_queries(found: FoundEngines) -> Iterator[tuple[str, str]]:
    """Yield the reading and the query over all engines that name their pods."""
    for name, (column, function) in ENGINE.items():
        parts = [
            f"max {by(*_POD)} ({over_query(engine, column, identity, Over(function, GPU_WINDOW_S))})"
            for engine, identity in found.engines
            if names_pods(identity)
            and column in engine.readings
            # One that counts nothing before a request ends may just give a long answer (`core.readings.progress`).
            and (name != "always_running" or {"gaps", "steps"} & engine.readings.keys())
        ]
        if parts:
            yield name, or_join(parts)


class _Grid:
    """The readings of one day: a row for each pod, a column for each moment."""

    def __init__(self, first_s: float, last_s: float, step_s: float) -> None:
        self.moments = int((last_s - first_s) // step_s) + 1
        self.pods: dict[PodKey, ServiceName] = {}
        self._span = (first_s, last_s, step_s)
        self._values = dict[str, dict[PodKey, FloatColumn]]()

    def add(self, column: str, reader: RangeReader, expression: str, problems: dict[str, None]) -> None:
        first_s, last_s, step_s = self._span
        told: dict[PodKey, dict[str, FloatColumn]] = {}  # by `scrape_of`: any scraped pod may write of others
        for row in query_fairly(reader, expression, first_s, last_s, step_s, problems):
            labels: Labels = row["metric"]
            name, cluster = pod_name(labels), cluster_of(labels)
            if not name[1]:
                continue
            key = (cluster.name if cluster else "", name)
            self.pods.setdefault(key, service_of({**labels, GROUP: group_name(labels, POD_LABELS)}))
            at_s, read = row["values"].T
            place = np.round((at_s - first_s) / step_s).astype(np.int64)
            usable = (place >= 0) & (place < self.moments) & np.isfinite(read) & (read >= 0)
            values = told.setdefault(key, {}).setdefault(scrape_of(labels), np.full(self.moments, np.nan))
            values[place[usable]] = np.fmax(values[place[usable]], read[usable])
        self._values[column] = self._believe(told, problems)

    def _believe(
        self, told: Mapping[PodKey, Mapping[str, FloatColumn]], problems: dict[str, None]
    ) -> dict[PodKey, FloatColumn]:
        """Return what a pod's own scrape tells, else what others tell alike, or one alone.

        problems: contradictions are told here.
        """
        odd: dict[str, dict[str, None]] = {}
        found: dict[PodKey, FloatColumn] = {}
        for key, scrapes in told.items():
            first, *others = [scrapes[""]] if "" in scrapes else scrapes.values()
            alike = np.ones(self.moments, bool)
            for each in others:
                alike &= np.isclose(first, each, rtol=MOST_APART, atol=0.0) | np.isnan(first) | np.isnan(each)
                first = np.fmax(first, each)
            found[key] = np.where(alike, first, np.nan)
            if not alike.all():
                odd.setdefault(name_some(sorted(scrapes)), {})[str(self.pods[key])] = None
        for named, services in odd.items():
            said = f"pods of {named} contradict each other about pods of {name_some([*services])}"
            problems[f"{said}: none is believed"] = None
        return found

    def readings(self, gpu_columns: tuple[str, ...]) -> PodMoments:
        """Return what was read of the pods whose engine reported."""
        none = np.full(self.moments, np.nan)
        rows = [key for key in self.pods if key in self._values["running"]]
        table = {
            column: np.concatenate([of_pods.get(key, none) for key in rows] or [none[:0]])
            for column, of_pods in self._values.items()
        }
        services = tuple(dict.fromkeys(self.pods[key] for key in rows))
        number = {name: place for place, name in enumerate(services)}
        service = np.repeat(np.array([number[self.pods[key]] for key in rows], np.int64), self.moments)
        reports = ~np.isnan(table["running"])
        table = {column: values[reports] for column, values in table.items()}
        # Engines differ in what they count; one that counts nothing is never stuck.
        unknown = np.full(int(reports.sum()), np.nan)
        grown = np.array([table.get(name, unknown) for name in GROWTHS])
        stands = (or_zero(grown) == 0).all(axis=0) & ~np.isnan(grown).all(axis=0)
        stuck = stands & (table.get("always_running", np.zeros(len(stands))) > 0)
        at_s = np.tile(self._span[0] + self._span[2] * np.arange(self.moments), len(rows))[reports]
        known = {name: table[name] for name in ("running", "waiting", "deferred", *gpu_columns) if name in table}
        samples = replace(
            PodSamples.filled(int(reports.sum())), **known | {"gpu_time_s": np.minimum(table["gpu_time_s"] - at_s, 0.0)}
        )
        return PodMoments(service[reports], services, samples, stuck)
