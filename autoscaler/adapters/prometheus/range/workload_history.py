"""Reads the history of one workload for `replay`.

The reader blocks and runs in a thread; history is queried once, in pieces. Each scrape is dated by its own sample time
(`timestamp()`), so that values which a server repeats over a gap do not count as new.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.decode import clean
from autoscaler.adapters.prometheus.duplicates import SeriesOrigin, describe_duplicates, origin_of
from autoscaler.adapters.prometheus.owners import owner_of, pod_name_patterns
from autoscaler.adapters.prometheus.pod_labels import Name, pod_name
from autoscaler.adapters.prometheus.promql.conventions import read_spellings, spellings_query
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.adapters.prometheus.range.queries import (
    latency_query,
    naming_query,
    neighbours_query,
    read_naming,
    restrict_to_pods,
    sampled_query,
    series_query,
    subtracted_query,
)
from autoscaler.adapters.prometheus.range.reader import RangeReader, run_in_thread
from autoscaler.adapters.prometheus.range.resample import (
    COUNTERS,
    MAX_STEPS,
    EngineSeries,
    LatencyHistograms,
    WorkloadHistory,
    describe_gaps,
    describe_late_engines,
    forward_fill,
    resample,
)
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.series import is_moved
from autoscaler.catalog.spellings import all_spellings, spelled
from autoscaler.config.settings import PrometheusSettings
from autoscaler.config.values import show_duration
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import increase
from autoscaler.ports import Unavailable

ENGINE = ENGINES["vllm"]  # the only engine whose history is read
SPELLING_MOMENTS = 24  # evaluations of the query for the spelling of names
PIECE_POINTS = 1000  # steps per query; Prometheus refuses more than 11,000
MAX_COUNT = 1e15  # beyond it floats do not hold every whole number
LATENCIES = ("ttft_met", "itl_met", "itl_s")  # columns from histograms: TTFT, ITL per request, ITL per token
LATENCY_WINDOW_S = 60.0  # at least; longer if the steps are
MIN_STEP_S = 1.0  # the library only takes whole seconds
COLUMNS = ("running", "waiting", *COUNTERS)
CACHED = "cached_prompt_tokens"  # cached prompt tokens, to be subtracted from `prompt_tokens`
Progress = Callable[[float], None]
Points = dict[float, float]  # value by the time of evaluation
_Labels = frozenset[tuple[str, str]]
_Read = dict[str, dict[_Labels, Points]]  # by column


class PrometheusHistory:
    """Reads history: `await PrometheusHistory(settings).read("ns", "name", start_s, end_s)`."""

    def __init__(self, settings: PrometheusSettings) -> None:
        """Raises ValueError if the settings contradict each other."""
        self._settings = settings
        self._credentials = Credentials(settings)

    async def read(
        self,
        namespace: str,
        name: str,
        start_s: float,
        end_s: float,
        *,
        step_s: float = 15.0,
        deadline_s: float = 600.0,
        progress: Progress = lambda _share: None,
    ) -> WorkloadHistory:
        """Return the history of workload `namespace`/`name` between two Unix times, in steps of `step_s`.

        progress: called with the share that has been read, 0..1. Raises Unavailable if the server cannot be reached,
        refuses, or has no series of the workload; ValueError for an invalid interval.
        """
        start_s, end_s = float(math.floor(start_s)), float(math.ceil(end_s))
        steps = (end_s - start_s) / step_s
        if step_s < MIN_STEP_S or step_s != round(step_s):
            raise ValueError(f"--step is {show_duration(step_s)}; allowed: whole seconds, at least {MIN_STEP_S:g}s")
        if not 2 <= steps <= MAX_STEPS:
            raise ValueError(
                f"from --start to --end are {show_duration(end_s - start_s)}, {steps:,.0f} "
                f"step{'' if round(steps) == 1 else 's'} of {show_duration(step_s)}; allowed: 2 to {MAX_STEPS:,}"
            )
        reading = RangeReader(self._settings, self._credentials, time.monotonic() + deadline_s)
        try:
            async with asyncio.timeout(deadline_s):
                return await run_in_thread(
                    self._read, reading, (namespace, pod_name_patterns(name)), start_s, end_s, step_s, progress
                )
        except TimeoutError:
            raise Unavailable(f"{reading.name}: history was not read within {deadline_s:g} s") from None
        except _NoSeries as missing:
            raise Unavailable(
                f"{reading.name}: no series of {ENGINE.name} for workload {namespace}/{name} between "
                f"{_when(start_s)} and {_when(end_s)}; looked for the label namespace {namespace!r} and a pod "
                f"named like the pods of {name!r}; {_other_pods(namespace, missing.pods)}"
            ) from None
        finally:
            reading.close()

    def _read(
        self,
        reading: RangeReader,
        pods: tuple[str, tuple[str, ...]],
        start_s: float,
        end_s: float,
        step_s: float,
        progress: Progress,
    ) -> WorkloadHistory:
        """Read all pieces, one after the other, to spare the server.

        pods: their namespace, and regular expressions for their names.
        """
        window_s = max(LATENCY_WINDOW_S, math.ceil(step_s))
        windows = math.ceil((end_s - start_s) / window_s)
        naming_step_s = max(math.ceil((end_s - start_s) / PIECE_POINTS), MIN_STEP_S)
        moments_s = max(math.ceil((end_s - start_s) / SPELLING_MOMENTS), MIN_STEP_S)
        spelling = spellings_query(all_spellings(self._settings.metric_prefixes))
        asked = reading.query(spelling, start_s, end_s, moments_s)
        engine_as_spelled = spelled(ENGINE, read_spellings(row["metric"].get(METRIC, "") for row in asked))
        asked = reading.query(naming_query(engine_as_spelled, *pods), start_s, end_s, naming_step_s)
        naming = read_naming(row["metric"] for row in asked)
        names = ("time_s", *COLUMNS, CACHED, *LATENCIES)
        own, by_others = ({name: dict[_Labels, Points]() for name in names} for _ in range(2))
        plan: list[tuple[_Read, str, str, float, float]] = []
        for pair in naming:
            engine = restrict_to_pods(engine_as_spelled, pair, *pods)
            read = by_others if is_moved({pair[1]: "its pods"}) else own
            plan.append((read, "time_s", sampled_query(engine), step_s, start_s))
            plan += [
                (read, name, series_query(engine, name), step_s, start_s) for name in COLUMNS if name in engine.readings
            ]
            plan.append((read, CACHED, subtracted_query(engine, "prompt_tokens"), step_s, start_s))
            plan += [
                (read, name, latency_query(engine, name, window_s), window_s, start_s + window_s)
                for name in LATENCIES
                if name in engine.readings
            ]
        pieces = [
            (read, name, expression, every_s, at_s, min(at_s + (PIECE_POINTS - 1) * every_s, end_s + every_s))
            for read, name, expression, every_s, first_s in plan
            for at_s in np.arange(first_s, end_s + every_s, PIECE_POINTS * every_s).tolist()
        ]
        for number, (read, name, expression, every_s, from_s, to_s) in enumerate(pieces):
            for row in reading.query(expression, from_s, to_s, every_s):
                _add(read, name, frozenset(row["metric"].items()), dict(row["values"].tolist()))
            progress((number + 1) / len(pieces))
        read = _merge(own, by_others)
        engines, duplicates = _engines(read, start_s, end_s)
        if not engines:
            asked = reading.query(neighbours_query(engine_as_spelled, pods[0]), start_s, end_s, naming_step_s)
            raise _NoSeries(tuple(sorted(filter(None, {row["metric"].get(METRIC, "") for row in asked}))))
        columns = resample(start_s, end_s, step_s, engines)
        ttft, itl, itl_of_tokens = (_latencies(read[name], start_s, window_s, windows) for name in LATENCIES)
        problems = (
            *_problems(engines, columns["pods"], step_s),
            *describe_late_engines(start_s, engines),
            *describe_duplicates(duplicates),
        )
        if not len(itl.counts) and len(itl_of_tokens.counts):
            itl, problems = itl_of_tokens, (*problems, "no histogram of ITL per request: shares of ITL are of tokens")
        return WorkloadHistory(
            start_s=start_s,
            step_s=step_s,
            window_s=window_s,
            ttft=ttft,
            itl=itl,
            problems=problems,
            **columns,
        )


class _NoSeries(LookupError):
    """No pod of the workload was found."""

    def __init__(self, pods: tuple[str, ...]) -> None:
        """pods: pods of other workloads in the namespace."""
        self.pods = pods


def _other_pods(namespace: str, pods: tuple[str, ...]) -> str:
    """Describe the pods that exist instead."""
    if not pods:
        return "no pod of that namespace is known"
    workload = owner_of(namespace, pods[0], "", ("", ""), {})
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return clean(f"found there: pod {pods[0]} of workload {workload}{more}")


def _add(read: _Read, name: str, labels: _Labels, new: Points) -> None:
    """Add the points of a series. Latencies of pods that several pairs of labels name are added up."""
    points = read[name].setdefault(labels, {})
    if name in LATENCIES:
        new = {at_s: value + points.get(at_s, 0.0) for at_s, value in new.items()}
    points.update(new)


def _merge(own: _Read, by_others: _Read) -> _Read:
    """Return what pods' own scrapes show, and what others wrote of them until the first of these.

    Any scraped pod may write labels that name another one.
    """
    begun_s = min((at_s for points in own["time_s"].values() for at_s in points), default=math.inf)
    for name, series in by_others.items():
        for labels, points in series.items():
            if before := {at_s: value for at_s, value in points.items() if at_s < begun_s}:
                _add(own, name, labels, before)
    return own


def _engines(
    read: Mapping[str, Mapping[_Labels, Points]], start_s: float, end_s: float
) -> tuple[list[EngineSeries], dict[Name, set[SeriesOrigin]]]:
    """Align the columns of each engine on the times of its scrapes.

    The labels of `time_s` tell engines apart; the series of other columns have these labels and more. If labels change,
    one engine ends and another begins in the same pod; successive engines are joined. If two jobs read a pod at the
    same time, the job that began first counts. Returns the engines, and the origins of duplicate pods.
    """
    names = frozenset(name for labels in read["time_s"] for name, _ in labels)
    by_engine: dict[str, dict[_Labels, list[Points]]] = {}
    for column in (*COLUMNS, CACHED):
        found = by_engine.setdefault(column, {})
        for labels, points in read[column].items():
            found.setdefault(frozenset(item for item in labels if item[0] in names), []).append(points)
    ended: dict[Name, list[tuple[SeriesOrigin, EngineSeries]]] = {}
    duplicates: dict[Name, set[SeriesOrigin]] = {}
    for labels, stamped in sorted(read["time_s"].items(), key=lambda item: (min(item[1].values()), sorted(item[0]))):
        asked = np.array(sorted(stamped))
        sampled = np.array([stamped[at] for at in asked.tolist()])
        new = np.concatenate([[True], np.diff(sampled) > 0])
        new &= (sampled >= start_s - MAX_AGE_S) & (sampled <= end_s + 1.0)
        if not new.any():
            continue
        named = dict(labels)
        name, origin = pod_name(named), origin_of(named)
        columns = {column: _sum(by_engine[column].get(labels, []), asked[new]) for column in COLUMNS}
        cached = _sum(by_engine[CACHED].get(labels, []), asked[new])
        columns["prompt_tokens"] = _subtract(columns["prompt_tokens"], cached)
        engine = EngineSeries(pod=name[1], time_s=sampled[new], **columns)
        chain = ended.setdefault(name, [])
        if others := {first for first, other in chain if first != origin and other.time_s[-1] >= engine.time_s[0]}:
            duplicates.setdefault(name, set()).update(others, {origin})
            continue
        before = next((at for at, (_, other) in enumerate(chain) if other.time_s[-1] < engine.time_s[0]), None)
        if before is None:
            chain.append((origin, engine))
        else:
            chain[before] = origin, _join(chain[before][1], engine)
    return [engine for chain in ended.values() for _, engine in chain], duplicates


def _sum(series: list[Points], asked: FloatColumn) -> FloatColumn:
    """Sum series at the times of evaluation; NaN where none has a value."""
    total = np.full(len(asked), np.nan)
    for points in series:
        values = np.array([points.get(at, math.nan) for at in asked.tolist()])
        values = np.where((values >= 0) & (values <= MAX_COUNT), values, np.nan)
        total = np.where(np.isnan(total), values, total + np.nan_to_num(values))
    return total


def _subtract(counter: FloatColumn, part: FloatColumn) -> FloatColumn:
    """Subtract from a counter the growth of another counter, which may be ahead of it; both float64[n]."""
    if np.isnan(part).all() or np.isnan(counter).all():
        return counter
    whole, less = forward_fill(counter), forward_fill(part)
    grown = np.maximum(increase(whole[:-1], whole[1:]) - increase(less[:-1], less[1:]), 0.0)
    return np.concatenate([[max(whole[0] - less[0], 0.0)], grown]).cumsum()


def _join(one: EngineSeries, other: EngineSeries) -> EngineSeries:
    columns = ("time_s", *COLUMNS)
    return EngineSeries(
        one.pod, **{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in columns}
    )


MAX_AGE_S = 300.0
"""Age up to which a server returns a sample: the lookback delta of Prometheus."""


def _latencies(read: Mapping[_Labels, Points], start_s: float, window_s: float, windows: int) -> LatencyHistograms:
    """Turn bucket series into one histogram per window; bounds that are not numbers are left out."""
    by_bound = {dict(labels).get("le", ""): points for labels, points in read.items()}
    bounds = sorted((bound, text) for text in by_bound if not math.isnan(bound := _bound(text)))
    if not bounds or not math.isinf(bounds[-1][0]):
        return LatencyHistograms.none()
    counts = np.full((windows, len(bounds)), np.nan)
    for column, (_, text) in enumerate(bounds):
        for at_s, value in by_bound[text].items():
            window = round((at_s - start_s) / window_s) - 1
            if 0 <= window < windows and 0 <= value <= MAX_COUNT:
                counts[window, column] = value
    return LatencyHistograms(np.array([bound for bound, _ in bounds]), counts)


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _problems(engines: list[EngineSeries], present: FloatColumn, step_s: float) -> tuple[str, ...]:
    counted = (each.generation_tokens[~np.isnan(each.generation_tokens)] for each in engines)
    resets = sum(int((np.diff(values) < 0).sum()) for values in counted)
    restarts = (f"counters went back {resets} times; each counts as a restart",) if resets else ()
    return describe_gaps(present, step_s, "no pod reported") + restarts


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
