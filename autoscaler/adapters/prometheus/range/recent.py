"""The last hours of a whole fleet, for a daemon that starts without memory: the columns of each tick, at coarse steps.

The queries are those of the ticks themselves, over a range instead of at an instant, and only for the workloads asked
for: some at a time, so that no answer is large, the largest first, until all are read or time or room is used up.
Gateways and GPUs are not looked back at: nothing is learned from them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.decode import Vector
from autoscaler.adapters.prometheus.owners import named_like, owner_of, pods_of_any
from autoscaler.adapters.prometheus.pod_labels import Name, pod_name
from autoscaler.adapters.prometheus.promql.conventions import Conventions, convention_query, read_conventions
from autoscaler.adapters.prometheus.promql.engines import (
    bounds_query,
    engine_queries,
    narrowed,
    process_start_query,
    quantile_queries,
)
from autoscaler.adapters.prometheus.promql.expressions import Quantiles
from autoscaler.adapters.prometheus.promql.labels import METRIC, NO_POD, POD, SCRAPE_LABELS, TARGET, Identity, Where
from autoscaler.adapters.prometheus.promql.pod_groups import Group, group_of
from autoscaler.adapters.prometheus.promql.within_objective import (
    MAX_BOUNDS,
    Bounds,
    commonest,
    count_expression,
    read_bounds,
)
from autoscaler.adapters.prometheus.range.reader import RangeReader, Rows, beside
from autoscaler.catalog.engines import ENGINES, WITHIN, Engine
from autoscaler.catalog.series import POD_LABELS
from autoscaler.catalog.spellings import Spelling, all_spellings, engines_spelled
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.recent import Recent
from autoscaler.core.model.samples import Objectives
from autoscaler.core.table.columns import FloatColumn
from autoscaler.ports import Clock, Unavailable

STEP_S = 60.0  # of usual scrapes every fourth; shorter than what is learned takes to change
MOST_PODS = 2500  # altogether, gone ones too: each takes some 90 KB while it is read and learned from
PART_PODS = 250  # of one query, as far as the fleet tells: its answer then is about a megabyte
PART_CHARACTERS = 150  # names in one query, which is sent within a URL
QUERY_TIMEOUT_S = 5.0  # whoever ends the daemon waits no longer for a query that is on its way
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:/-]{0,251}[A-Za-z0-9])?")  # others do not get into a query


@dataclass
class _Part:
    """Workloads that are asked for together, all of one engine."""

    engine: str
    rows: list[int] = field(default_factory=list)
    pods: int = 0
    characters: int = 0


class RecentHistory:
    """A HistorySource over one server: `await RecentHistory(settings, clock).recent(fleet, objectives, 3600, 20)`."""

    def __init__(self, settings: PrometheusSettings, clock: Clock) -> None:
        """Raises ValueError where the settings contradict themselves."""
        timeout_s = min(settings.timeout_s, QUERY_TIMEOUT_S)
        self._settings = settings.model_copy(update={"timeout_s": timeout_s})
        self._credentials = Credentials(settings)
        self._clock = clock

    async def recent(self, fleet: Fleet, objectives: Objectives, span_s: float, deadline_s: float) -> Recent:
        """Return what was read within `deadline_s` seconds of the last `span_s`. Raises Unavailable: nothing was."""
        reader = RangeReader(self._settings, self._credentials, time.monotonic() + deadline_s)
        offset_s = self._clock.now_s() - self._clock.wall_s()  # from Unix time to the clock of the tick
        until_s, steps = math.floor(self._clock.wall_s()), max(int(span_s // STEP_S), 1)
        window_s, spellings = self._settings.rate_window_s, all_spellings(self._settings.metric_prefixes)
        reading = _Reading(reader, fleet, objectives, until_s, steps, window_s, spellings)
        try:
            return await beside(reading.read, offset_s)
        finally:
            reader.close()


class _Reading:
    """One look back; used by one thread."""

    def __init__(
        self,
        reader: RangeReader,
        fleet: Fleet,
        objectives: Objectives,
        until_s: float,
        steps: int,
        window_s: float,
        spellings: tuple[Spelling, ...],
    ) -> None:
        """until_s: Unix time of the last of `steps` + 1 moments. window_s: range of histogram quantiles."""
        self._reader = reader
        self._fleet = fleet
        self._objectives = objectives
        self._steps = steps
        self._until_s = until_s
        self._window_s = window_s
        self._spellings = spellings
        self._conventions = Conventions()
        self._bounds: dict[tuple[str, str], Bounds] = {}
        self._workload_of = {(each.ref.namespace, each.ref.name): row for row, each in enumerate(fleet.workloads)}
        for row, each in enumerate(fleet.workloads):
            self._workload_of.setdefault((each.ref.namespace, named_like(each.ref.name)), row)
        self._pod_of = {(pod.namespace, pod.name): row for row, pod in enumerate(fleet.pods)}
        self._pods: dict[Name, int] = {}  # of those read, to their place
        self._workload: list[int] = []  # by place
        self._columns: dict[str, list[tuple[int, FloatColumn]]] = {}  # place and values, by column

    def read(self, offset_s: float) -> Recent:
        """Return what could be read; `offset_s` leads from Unix time to the clock of the tick."""
        problem, failures = "", list[Unavailable]()
        asked = self._reader.ask(convention_query(self._spellings), self._until_s, self._until_s, STEP_S)
        self._conventions = read_conventions(
            {row["metric"].get(METRIC, ""): float(row["values"][-1][1]) for row in asked}
        )
        for part in self._parts():
            if len(self._pods) + part.pods > MOST_PODS:
                problem = f"no more than {MOST_PODS} pods are read from history"
                continue  # smaller ones may still fit
            before = len(self._pods)
            try:
                self._read_part(part)
            except Unavailable as error:
                problem = str(error)
                self._drop(before)
                failures.append(error)
                if len(failures) == 2:  # in a row: it is not this part that is too much for the server
                    break
            else:
                failures.clear()
        if failures and not self._pods:
            raise failures[0]
        return self._recent(offset_s, problem)

    def _parts(self) -> Iterator[_Part]:
        """Yield workloads in parts, the largest first; those whose names cannot be asked for are left out."""
        most_characters = PART_CHARACTERS // len(self._conventions.spellings)  # each spelling has its selectors
        present = np.bincount(self._fleet.pod_workload, minlength=len(self._fleet.workloads))
        size = np.maximum(np.nan_to_num(self._fleet.replicas), present)
        parts: dict[str, _Part] = {}
        for row in np.argsort(-size, kind="stable").tolist():
            workload = self._fleet.workloads[row]
            name, namespace = workload.ref.name, workload.ref.namespace
            if workload.engine not in ENGINES or not (_NAME.fullmatch(name) and _NAME.fullmatch(namespace)):
                continue
            part = parts.setdefault(workload.engine, _Part(workload.engine))
            characters = len(name) + len(namespace)
            if part.rows and (part.pods + size[row] > PART_PODS or part.characters + characters > most_characters):
                yield part
                part = parts[workload.engine] = _Part(workload.engine)
            part.rows.append(row)
            part.pods += int(size[row])
            part.characters += characters
        yield from (part for part in parts.values() if part.rows)

    def _read_part(self, part: _Part) -> None:
        for identity, where in self._wheres(part):
            self._read_narrowed(part, identity, where)

    def _read_narrowed(self, part: _Part, identity: Identity, where: Where) -> None:
        engine = engines_spelled(self._conventions.spellings)[part.engine]
        engine = narrowed(engine, where, own=identity != TARGET)
        wanted = set(part.rows)
        self._read_columns(engine, identity, wanted)
        for column, aim in WITHIN.items():
            if not (readings := engine.readings.get(column)):
                continue
            limits_s = np.full(len(self._fleet.workloads), np.nan)
            limits_s[part.rows] = getattr(self._objectives, aim)[part.rows]
            for objective_s in commonest(limits_s, part.pods)[0]:
                bounds = self._known_bounds(part.engine, column)
                if expression := count_expression(column, readings, identity, objective_s, bounds):
                    rows = set(np.flatnonzero(limits_s == objective_s).tolist())
                    self._take(column, self._ask(expression), rows)

    def _read_columns(self, engine: Engine, identity: Identity, wanted: set[int]) -> None:
        """Read what depends on no objective; quantiles of groups as `PrometheusSource` does."""
        pairs = tuple(pair for pair in POD_LABELS if pair[1] in identity)
        workloads: dict[Group, set[int | None]] = {}  # of the pods in a group; None: of none that is wanted
        places: dict[Group, set[int]] = {}
        start = process_start_query(engine, identity)
        for query in (*engine_queries(engine, identity, Quantiles(self._window_s, pairs)), start):
            rows = self._ask(query.expression)
            if not query.grouped:
                self._take(query.column, rows, wanted)
            if query.column == "time_s":
                for row in rows:
                    group, place = (
                        group_of(row["metric"], identity, pairs),
                        self._place(pod_name(row["metric"]), wanted),
                    )
                    workloads.setdefault(group, set()).add(None if place is None else self._workload[place])
                    places.setdefault(group, set()).update(() if place is None else (place,))
            if query.grouped:
                for row in rows:
                    group = group_of(row["metric"], identity, pairs)
                    if len(workloads.get(group, ())) == 1:
                        read = self._values(row["values"])
                        self._columns.setdefault(query.column, []).extend((place, read) for place in places[group])
        mixed = {group for group, of_group in workloads.items() if len(of_group) > 1}
        for query in quantile_queries(engine, identity, Quantiles(self._window_s)) if mixed else ():
            rows = self._ask(query.expression)
            self._take(query.column, [row for row in rows if group_of(row["metric"], identity, pairs) in mixed], wanted)

    def _wheres(self, part: _Part) -> Iterator[tuple[Identity, Where]]:
        """Yield what narrows queries to a part, for each pair of labels that may name its pods.

        It lets a few others through, which `_take` leaves out.
        """
        refs = [self._fleet.workloads[row].ref for row in part.rows]
        namespaces = tuple(sorted({ref.namespace for ref in refs}))
        inside = tuple(map(_quoted, namespaces)) if len(namespaces) > 1 else namespaces
        names = pods_of_any(ref.name for ref in refs)
        if POD in self._conventions.identities:
            for pair in self._conventions.pod_labels:
                before = NO_POD[: POD_LABELS.index(pair)]
                yield (*pair, *SCRAPE_LABELS), (*before, (pair[0], inside), (pair[1], names))
        if TARGET in self._conventions.identities and any(not ref.api_version for ref in refs):
            yield TARGET, ((TARGET[0], inside),)

    def _known_bounds(self, engine: str, column: str) -> Bounds:
        """Return the bounds of a histogram, those of all pods together, as ticks use them."""
        if (engine, column) not in self._bounds:
            readings = engines_spelled(self._conventions.spellings)[engine].readings[column]
            asked = self._reader.ask(bounds_query(readings, MAX_BOUNDS), self._until_s, self._until_s, STEP_S)
            labels = [msgspec.json.encode(row["metric"]) for row in asked]
            counts = np.array([self._values(row["values"])[-1] for row in asked], dtype=np.float64)
            self._bounds[engine, column] = read_bounds(Vector(self._until_s, labels, counts), readings[0].scale)
        return self._bounds[engine, column]

    def _ask(self, expression: str) -> Rows:
        start_s = self._until_s - self._steps * STEP_S
        return self._reader.ask(expression, start_s, self._until_s, STEP_S)

    def _take(self, column: str, rows: Rows, wanted: set[int]) -> None:
        """Put the series of pods of the wanted workloads into a column."""
        for row in rows:
            place = self._place(pod_name(row["metric"]), wanted)
            if place is not None:
                self._columns.setdefault(column, []).append((place, self._values(row["values"])))

    def _values(self, points: FloatColumn) -> FloatColumn:
        """Lay the points of one series, float64[n, 2], on the steps, float64[T]; NaN where there is none."""
        at_s, read = points.T
        step = np.round(self._steps - (self._until_s - at_s) / STEP_S)
        here = (step >= 0) & (step <= self._steps)
        values = np.full(self._steps + 1, np.nan)
        values[step[here].astype(np.int64)] = read[here]
        return values

    def _place(self, name: Name, wanted: set[int]) -> int | None:
        """Return where a pod is kept; None: it belongs to none of the wanted workloads."""
        if (pod := self._pod_of.get(name)) is not None:
            workload: int | None = int(self._fleet.pod_workload[pod])
        else:
            ref = owner_of(*name, "", ("", ""), {})
            workload = self._workload_of.get((ref.namespace, ref.name))
        if workload is None or workload not in wanted:
            return None
        if name not in self._pods:
            if len(self._pods) >= 2 * MOST_PODS:  # far more have come and gone than are there
                return None
            self._pods[name] = len(self._pods)
            self._workload.append(workload)
        return self._pods[name]

    def _drop(self, before: int) -> None:
        """Forget the pods of a part that could not be read to its end."""
        self._pods = {name: place for name, place in self._pods.items() if place < before}
        del self._workload[before:]
        for column, read in self._columns.items():
            self._columns[column] = [(place, values) for place, values in read if place < before]

    def _recent(self, offset_s: float, problem: str) -> Recent:
        shape = (self._steps + 1, len(self._pods))
        columns = {}
        for name, read in self._columns.items():
            columns[name] = column = np.full(shape, np.nan)
            for place, values in read:
                known = column[:, place]
                column[:, place] = np.fmax(known, values)  # as a tick does
        if "time_s" in columns:
            columns["time_s"] += offset_s
        return Recent(
            time_s=self._until_s + offset_s + STEP_S * np.arange(-self._steps, 1.0),
            pod_workload=np.array(self._workload, dtype=np.int64),
            pod=np.array([self._pod_of.get(name, -1) for name in self._pods], dtype=np.int64),
            columns=columns,
            problem=problem,
        )


def _quoted(name: str) -> str:
    return name.replace(".", "[.]")
