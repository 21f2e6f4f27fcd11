"""Tells apart the sources of a pod: servers and processes that it is read from, and Prometheus replicas that read it.

The last sample of a series counts for five minutes if nothing marks its end: after federation, remote write or
OpenTelemetry. A pod that moved then has series of its old process, and a Prometheus replica that lags shows the past.
So a source is left out that has missed two scrapes which another source of the pod did not miss.

Sources with one process start are one process behind several ports, so they repeat its numbers. Two processes that
started in the same 10 ms differ in the processor time that they have used. Ray's workers have unique names, which tell
the same without a process start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.instant.client import VectorAnswer
from autoscaler.adapters.prometheus.instant.pod_join import LabelSet, Merge, PodJoin
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.promql.engines import process_query
from autoscaler.adapters.prometheus.promql.labels import PART, Identity
from autoscaler.adapters.prometheus.promql.sources import (
    BEFORE,
    MIN_SPREAD_S,
    WINDOWS_S,
    cadence_query,
    source_times_query,
)
from autoscaler.catalog.engines import CPU_TIME, START_TIME, Engine
from autoscaler.catalog.series import DISTINCT, WORKER
from autoscaler.core.model.fleet import Fleet

MISSED_SCRAPES = 2.0  # a source that is older than another by more than this many scrapes is left out
MAX_LABELS = 4  # that tell sources apart
MAX_COMPARED = 400  # series in which such labels are looked for
MAX_OF_POD = 8  # of them from one pod, so that a pod with many series hides no other
MAX_CANDIDATES = 32  # labels that are tried
MAX_CORES = 8.0  # that a web server of an engine may use
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}")


@dataclass(eq=False)
class _ReportingSeries:
    """One series that shows that an engine reports."""

    row: int  # of its pod in the fleet
    time_s: float
    labels: Mapping[str, str]
    identity: Identity
    left_out: bool = False

    def of(self, labels: Iterable[str]) -> LabelSet:
        return frozenset((name, text) for name in labels if (text := self.labels.get(name)))

    @property
    def all_labels(self) -> LabelSet:
        return frozenset(self.labels.items())


@dataclass(frozen=True)
class Sources:
    """What tells the sources of pods apart, and how they are merged."""

    labels: Identity = ()  # that tell them apart, in addition to those that name a pod
    merge: Merge | None = None  # None: each pod has one source
    lines: tuple[str, ...] = ()


@dataclass
class SourceReader:
    """Reads the sources of all pods at each tick, before anything else."""

    _last: Sources = field(default_factory=Sources)

    async def read(
        self,
        query_round: QueryRound,
        at_s: float,
        engines: Sequence[Engine],
        identities: Sequence[Identity],
        join: PodJoin,
        fleet: Fleet,
    ) -> Sources:
        """Return the sources. If a query fails, those of the last tick count."""
        asked = [(engine, identity) for engine in engines for identity in identities]
        series: list[_ReportingSeries] = []
        for engine, identity in asked:
            answer = await query_round.query("sources", source_times_query(engine, identity), at_s)
            if answer is None:
                return self._last
            series += _read(answer.vector, identity, join)
        self._last = Sources()
        if not series:
            return self._last
        newest = _newest(series)
        late = [each for each in series if newest[each.row] - each.time_s > MIN_SPREAD_S]
        if late:
            cadences: dict[LabelSet, dict[str, float]] = {}
            for engine, identity in asked:
                answer = await query_round.query("sources", cadence_query(engine, identity), at_s)
                for key, count in _parsed(answer):
                    part = dict(key).get(PART, "")
                    cadences.setdefault(key - {(PART, part)}, {})[part] = count
            _leave_out(series, late, newest, cadences, at_s)
        labels = _separating(series)
        if not labels and not any(each.left_out for each in late):
            return self._last
        starts: dict[LabelSet, tuple[float, float]] = {}
        for engine, identity in asked if "instance" in labels else ():
            process = (*identity, *_of_process(labels))
            start = await query_round.query("sources", process_query(START_TIME, engine, process), at_s)
            used = await query_round.query("sources", process_query(CPU_TIME, engine, process), at_s)
            used_s = dict(_parsed(used))
            starts |= {key: (start_s, used_s.get(key, math.nan)) for key, start_s in _parsed(start)}
        self._last = _merged(series, labels, starts, fleet)
        return self._last


def _read(vector: Vector, identity: Identity, join: PodJoin) -> list[_ReportingSeries]:
    rows = join.rows(vector.labels)
    return [
        _ReportingSeries(row, time_s, parse_labels(raw), identity)
        for row, time_s, raw in zip(rows.tolist(), vector.values.tolist(), vector.labels, strict=True)
        if row >= 0
    ]


def _newest(series: Iterable[_ReportingSeries]) -> dict[int, float]:
    """Return the newest sample time of each pod, by row."""
    newest: dict[int, float] = {}
    for each in series:
        newest[each.row] = max(newest.get(each.row, -math.inf), each.time_s)
    return newest


def _parsed(answer: VectorAnswer | None) -> Iterable[tuple[LabelSet, float]]:
    """Return the labels and the value of each series; nothing for a query that failed."""
    if answer is None:
        return ()
    labels = (frozenset(parse_labels(raw).items()) for raw in answer.vector.labels)
    return zip(labels, answer.vector.values.tolist(), strict=True)


def _of_process(labels: Identity) -> Identity:
    """Return those of the labels that metrics of the process have, and not of its engines alone."""
    return tuple(label for label in labels if label == "instance" or label not in DISTINCT)


def _leave_out(
    series: Sequence[_ReportingSeries],
    late: Sequence[_ReportingSeries],
    newest: Mapping[int, float],
    cadences: Mapping[LabelSet, Mapping[str, float]],
    at_s: float,
) -> None:
    """Mark the series that have missed scrapes.

    A series that is older than all windows tells how far apart its samples are. For others the newest series of the pod
    does: the few samples of a process that soon ended would show a longer time.
    """
    interval_s: dict[int, float] = {}
    for each in series:
        if each.time_s == newest[each.row]:
            between_s = _between_scrapes_s(cadences.get(each.all_labels, {}), at_s - each.time_s)
            interval_s[each.row] = min(interval_s.get(each.row, math.inf), between_s)
    for each in late:
        own = cadences.get(each.all_labels, {})
        own_s = _between_scrapes_s(own, at_s - each.time_s) if BEFORE in own else math.inf
        usual_s = own_s if math.isfinite(own_s) else interval_s[each.row]
        each.left_out = newest[each.row] - each.time_s > max(MISSED_SCRAPES * usual_s, MIN_SPREAD_S)


def _between_scrapes_s(counts: Mapping[str, float], age_s: float) -> float:
    """Return how far apart the samples of a series are at most; infinity if that is unknown.

    counts: samples by window. age_s: of the last one.
    """
    spans = ((window_s - age_s, counts.get(f"{window_s:g}", 0.0)) for window_s in WINDOWS_S)
    return min((span_s / (count - 1) for span_s, count in spans if count > 1 and span_s > 0), default=math.inf)


def _separating(series: Sequence[_ReportingSeries]) -> Identity:
    """Return the labels that separate servers of one pod, and series left out from those that count."""
    servers: dict[tuple[Identity, LabelSet], set[str]] = {}
    for each in series:
        servers.setdefault((each.identity, each.of(each.identity)), set()).add(each.labels.get("instance", ""))
    chosen: Identity = ("instance",) if any(len(each) > 1 for each in servers.values()) else ()
    compared = list(_some_of_each_pod(series))
    mixed = _mixed(compared, chosen)
    while mixed and len(chosen) < MAX_LABELS:
        names = {name for each in mixed for name in each.labels if _LABEL.fullmatch(name)} - {*chosen}
        candidates = sorted(names)[:MAX_CANDIDATES]
        ranked = [(len(_mixed(compared, (*chosen, name))), name in DISTINCT, name) for name in candidates]
        if not ranked or min(ranked)[0] == len(mixed):
            break
        chosen = (*chosen, min(ranked)[2])
        mixed = _mixed(compared, chosen)
    return chosen


def _some_of_each_pod(series: Iterable[_ReportingSeries]) -> Iterable[_ReportingSeries]:
    """Yield series of pods of which some are left out: half of those of a pod are, where it has as many."""
    by_row: dict[int, tuple[list[_ReportingSeries], list[_ReportingSeries]]] = {}
    for each in series:
        by_row.setdefault(each.row, ([], []))[each.left_out].append(each)
    uneven = [sides for sides in by_row.values() if sides[True]]
    for counted, left_out in uneven[: MAX_COMPARED // MAX_OF_POD]:
        yield from (*counted[: MAX_OF_POD // 2], *left_out[: MAX_OF_POD // 2])


def _mixed(series: Iterable[_ReportingSeries], labels: Identity) -> list[_ReportingSeries]:
    """Return the series that count in groups that also have series that do not."""
    groups: dict[LabelSet, list[_ReportingSeries]] = {}
    for each in series:
        groups.setdefault(each.of((*each.identity, *labels)), []).append(each)
    return [
        each
        for group in groups.values()
        if any(other.left_out for other in group)
        for each in group
        if not each.left_out
    ]


def _merged(
    series: Sequence[_ReportingSeries], labels: Identity, starts: Mapping[LabelSet, tuple[float, float]], fleet: Fleet
) -> Sources:
    """Return how the sources are merged, and what is said about it."""
    groups: dict[LabelSet, list[_ReportingSeries]] = {}
    for each in series:
        groups.setdefault(each.of((*each.identity, *labels)), []).append(each)
    left_out = {key for key, group in groups.items() if all(each.left_out for each in group)}
    counted: dict[LabelSet, list[LabelSet]] = {}  # sources that count, by scrape of a pod
    for key, group in groups.items():
        if key not in left_out:
            counted.setdefault(group[0].of(group[0].identity), []).append(key)
    distinct = tuple(label for label in labels if label in DISTINCT)
    process: dict[LabelSet, LabelSet] = {}  # the first source of the same process
    first: dict[LabelSet, LabelSet] = {}  # the first source of the same scrape
    shared: dict[int, list[LabelSet]] = {}  # sources of one process at several addresses, by row
    for keys in counted.values():
        names: dict[object, LabelSet] = {}
        one_process = _one_process({key: groups[key] for key in keys}, labels, starts)
        for key in keys:
            name = one_process.get(key) or groups[key][0].of(distinct)
            process[key] = names.setdefault(name, key)
            first[key] = keys[0]
            if key in one_process and process[key] != key:
                shared.setdefault(groups[key][0].row, [process[key]]).append(key)
    lines = (*_describe_left_out(groups, left_out, labels, fleet), *_describe_shared(groups, shared, fleet))
    rows = np.unique([each.row for each in series])
    return Sources(labels, Merge(rows, frozenset(left_out), process, first), lines)


def _one_process(
    sources: Mapping[LabelSet, Sequence[_ReportingSeries]],
    labels: Identity,
    starts: Mapping[LabelSet, tuple[float, float]],
) -> dict[LabelSet, object]:
    """Return a name of the process of each source of a scrape that shares it with another one.

    Engines of one process have one start and differ in labels, so sources must show the same engines. Names of Ray's
    workers are unique, so they need no start.
    """
    engine = tuple(label for label in DISTINCT if label != "instance")
    alike: dict[object, list[tuple[float, float, LabelSet]]] = {}  # time of the sample, processor time, and source
    for key, series in sources.items():
        start_s, used_s = starts.get(series[0].of((*series[0].identity, *_of_process(labels))), (math.nan, math.nan))
        if all(each.of(WORKER) for each in series):
            start_s, used_s = 0.0, math.nan
        if not math.isnan(start_s):
            name: object = start_s, frozenset(each.of(engine) for each in series)
            alike.setdefault(name, []).append((max(each.time_s for each in series), used_s, key))
    found: dict[LabelSet, object] = {}
    for name, members in alike.items():
        in_time = pairwise(sorted(members, key=lambda member: member[0]))
        steps = ((after[0] - before[0], after[1] - before[1]) for before, after in in_time)
        same = all(math.isnan(used_s) or -1.0 <= used_s <= 1.0 + MAX_CORES * passed_s for passed_s, used_s in steps)
        if len(members) > 1 and same:
            found |= {key: name for *_, key in members}
    return found


def _describe_left_out(
    groups: Mapping[LabelSet, Sequence[_ReportingSeries]], left_out: Iterable[LabelSet], labels: Identity, fleet: Fleet
) -> Iterable[str]:
    rows: dict[int, list[str]] = {}
    for key in left_out:
        each = groups[key][0]
        text = ", ".join(f"{name}={each.labels.get(name, '')}" for name in labels or ("job",))
        rows.setdefault(each.row, []).append(text)
    if rows:
        row = min(rows)
        pod = _pod_text(rows, fleet)
        source = sorted(rows[row])
        more = f" and {len(source) - 1} more" if len(source) > 1 else ""
        yield (
            f"{pod}: series with {clean(source[0])}{more} are left out: their last sample is older than that of other "
            "series of the pod by more than two scrapes"
        )


def _describe_shared(
    groups: Mapping[LabelSet, Sequence[_ReportingSeries]], shared: Mapping[int, Sequence[LabelSet]], fleet: Fleet
) -> Iterable[str]:
    if shared:
        places = sorted({groups[key][0].labels.get("instance", "") for key in shared[min(shared)]})
        if len(places) > 1:
            yield (
                f"{_pod_text(shared, fleet)}: one process is read at {len(places)} addresses "
                f"({clean(', '.join(places[:3]))}), so it counts once"
            )


def _pod_text(rows: Mapping[int, object], fleet: Fleet) -> str:
    pod = fleet.pods[min(rows)]
    return f"pod {clean(f'{pod.namespace}/{pod.name}')}" + (f" and {len(rows) - 1} more" if len(rows) > 1 else "")
