"""The past of one workload from a server that speaks the Prometheus API, for replay.

It is read in a thread of its own (`ranges`): history is asked for once, in pieces, and no tick waits for it. Each
scrape is dated by its own sample time (`timestamp()`), so that what a server repeats over a hole is not taken for news.
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
from autoscaler.adapters.prometheus.duplicates import Seen, seen, tell_doubles
from autoscaler.adapters.prometheus.owners import owner_of, pods_of
from autoscaler.adapters.prometheus.pod_labels import Name, pod_name
from autoscaler.adapters.prometheus.promql.conventions import read_spellings, spellings_query
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.adapters.prometheus.range.queries import (
    latency_query,
    naming_query,
    neighbours_query,
    of_pods,
    read_naming,
    sampled_query,
    series_query,
    subtracted_query,
)
from autoscaler.adapters.prometheus.range.reader import RangeReader, beside
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.spellings import all_spellings, spelled
from autoscaler.config.settings import PrometheusSettings
from autoscaler.config.values import show_duration
from autoscaler.core.model.history import (
    COUNTERS,
    MOST_STEPS,
    EngineSeries,
    Latencies,
    Past,
    filled,
    gather,
    seen_late,
    silence,
)
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import increase
from autoscaler.ports import Unavailable

ENGINE = ENGINES["vllm"]  # whose history is read
SPELLING_MOMENTS = 24  # at which it is asked how names are spelled, of all that the server has
PIECE_POINTS = 1000  # steps asked for at once; Prometheus refuses more than 11,000
MOST_COUNT = 1e15  # beyond it a float does not hold every whole number, and nobody counted so far
LATENCIES = ("ttft_met", "itl_met", "itl_s")  # columns read from histograms: TTFT, ITL of requests, of tokens
LATENCY_WINDOW_S = 60.0  # at least; longer where the steps are
WHOLE_S = 1.0  # the library asks for whole seconds
COLUMNS = ("running", "waiting", *COUNTERS)
CACHED = "cached_prompt_tokens"  # prompt tokens that were not computed, where `prompt_tokens` has them
Told = Callable[[float], None]
Points = dict[float, float]  # value by the time it was asked for
_Labels = frozenset[tuple[str, str]]


class PrometheusHistory:
    """Reads history: `await PrometheusHistory(settings).read("ns", "name", start_s, end_s)`."""

    def __init__(self, settings: PrometheusSettings) -> None:
        """Raises ValueError where the settings contradict themselves."""
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
        told: Told = lambda _share: None,
    ) -> Past:
        """Return what the server knows of workload `namespace`/`name` between two Unix times, in steps of `step_s`.

        told: how much has been read, 0..1. Raises Unavailable where the server cannot be asked, refuses, or knows
        nothing of the workload; ValueError for an interval that makes no sense.
        """
        start_s, end_s = float(math.floor(start_s)), float(math.ceil(end_s))
        steps = (end_s - start_s) / step_s
        if step_s < WHOLE_S or step_s != round(step_s):
            raise ValueError(f"--step is {show_duration(step_s)}; allowed: whole seconds, at least {WHOLE_S:g}s")
        if not 2 <= steps <= MOST_STEPS:
            raise ValueError(
                f"from --start to --end are {show_duration(end_s - start_s)}, {steps:,.0f} "
                f"step{'' if round(steps) == 1 else 's'} of {show_duration(step_s)}; allowed: 2 to {MOST_STEPS:,}"
            )
        reading = RangeReader(self._settings, self._credentials, time.monotonic() + deadline_s)
        try:
            async with asyncio.timeout(deadline_s):
                return await beside(self._read, reading, (namespace, pods_of(name)), start_s, end_s, step_s, told)
        except TimeoutError:
            raise Unavailable(f"{reading.name}: history was not read within {deadline_s:g} s") from None
        except _NoSeries as missing:
            raise Unavailable(
                f"{reading.name}: no series of {ENGINE.name} for workload {namespace}/{name} between "
                f"{_when(start_s)} and {_when(end_s)}; looked for the label namespace {namespace!r} and a pod "
                f"named like the pods of {name!r}; {_others(namespace, missing.pods)}"
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
        told: Told,
    ) -> Past:
        """Read all pieces, one after the other: history is in no hurry, and the server has other users.

        pods: their namespace, and expressions for their names.
        """
        window_s = max(LATENCY_WINDOW_S, math.ceil(step_s))
        windows = math.ceil((end_s - start_s) / window_s)
        look_s = max(math.ceil((end_s - start_s) / PIECE_POINTS), WHOLE_S)
        moments_s = max(math.ceil((end_s - start_s) / SPELLING_MOMENTS), WHOLE_S)
        spelling = spellings_query(all_spellings(self._settings.metric_prefixes))
        asked = reading.ask(spelling, start_s, end_s, moments_s)
        of_names = spelled(ENGINE, read_spellings(row["metric"].get(METRIC, "") for row in asked))
        asked = reading.ask(naming_query(of_names, *pods), start_s, end_s, look_s)
        naming = read_naming(row["metric"] for row in asked)
        plan: list[tuple[str, str, float, float]] = []
        for pair in naming:
            engine = of_pods(of_names, pair, *pods)
            plan.append(("time_s", sampled_query(engine), step_s, start_s))
            plan += [(name, series_query(engine, name), step_s, start_s) for name in COLUMNS if name in engine.readings]
            plan.append((CACHED, subtracted_query(engine, "prompt_tokens"), step_s, start_s))
            plan += [
                (name, latency_query(engine, name, window_s), window_s, start_s + window_s)
                for name in LATENCIES
                if name in engine.readings
            ]
        read: dict[str, dict[_Labels, Points]] = {name: {} for name in ("time_s", *COLUMNS, CACHED, *LATENCIES)}
        pieces = [
            (name, expression, every_s, at_s, min(at_s + (PIECE_POINTS - 1) * every_s, end_s + every_s))
            for name, expression, every_s, first_s in plan
            for at_s in np.arange(first_s, end_s + every_s, PIECE_POINTS * every_s).tolist()
        ]
        for number, (name, expression, every_s, from_s, to_s) in enumerate(pieces):
            for row in reading.ask(expression, from_s, to_s, every_s):
                points = read[name].setdefault(frozenset(row["metric"].items()), {})
                new = dict(row["values"].tolist())
                if name in LATENCIES:  # of all pods that one pair of labels names: those of another pair are others
                    new = {at_s: value + points.get(at_s, 0.0) for at_s, value in new.items()}
                points.update(new)
            told((number + 1) / len(pieces))
        engines, doubled = _engines(read, start_s, end_s)
        if not engines:
            asked = reading.ask(neighbours_query(of_names, pods[0]), start_s, end_s, look_s)
            raise _NoSeries(tuple(sorted(filter(None, {row["metric"].get(METRIC, "") for row in asked}))))
        columns = gather(start_s, end_s, step_s, engines)
        ttft, itl, itl_of_tokens = (_latencies(read[name], start_s, window_s, windows) for name in LATENCIES)
        problems = (*_problems(engines, columns["pods"], step_s), *seen_late(start_s, engines), *tell_doubles(doubled))
        if not len(itl.counts) and len(itl_of_tokens.counts):
            itl, problems = itl_of_tokens, (*problems, "no histogram of ITL per request: shares of ITL are of tokens")
        return Past(
            start_s=start_s,
            step_s=step_s,
            window_s=window_s,
            ttft=ttft,
            itl=itl,
            problems=problems,
            **columns,
        )


class _NoSeries(LookupError):
    """No pod of the workload is known."""

    def __init__(self, pods: tuple[str, ...]) -> None:
        """pods: of other workloads of its namespace."""
        self.pods = pods


def _others(namespace: str, pods: tuple[str, ...]) -> str:
    """Say which pods there are instead."""
    if not pods:
        return "no pod of that namespace is known"
    workload = owner_of(namespace, pods[0], "", ("", ""), {})
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return clean(f"found there: pod {pods[0]} of workload {workload}{more}")


def _engines(
    read: Mapping[str, Mapping[_Labels, Points]], start_s: float, end_s: float
) -> tuple[list[EngineSeries], dict[Name, set[Seen]]]:
    """Put the columns of each engine side by side on its own scrapes.

    The labels of `running` tell engines apart; the series of other columns have these and more. Where labels change,
    one engine ends and another begins in the same pod: those that follow each other are one. A pod that two jobs read
    at the same time counts as the one that began first read it; returned with the engines is how such pods were seen.
    """
    names = frozenset(name for labels in read["time_s"] for name, _ in labels)
    by_engine: dict[str, dict[_Labels, list[Points]]] = {}
    for column in (*COLUMNS, CACHED):
        found = by_engine.setdefault(column, {})
        for labels, points in read[column].items():
            found.setdefault(frozenset(item for item in labels if item[0] in names), []).append(points)
    ended: dict[Name, list[tuple[Seen, EngineSeries]]] = {}
    doubled: dict[Name, set[Seen]] = {}
    for labels, stamped in sorted(read["time_s"].items(), key=lambda item: (min(item[1].values()), sorted(item[0]))):
        asked = np.array(sorted(stamped))
        sampled = np.array([stamped[at] for at in asked.tolist()])
        new = np.concatenate([[True], np.diff(sampled) > 0])
        new &= (sampled >= start_s - MOST_AGE_S) & (sampled <= end_s + 1.0)
        if not new.any():
            continue
        named = dict(labels)
        name, how = pod_name(named), seen(named)
        columns = {column: _sum(by_engine[column].get(labels, []), asked[new]) for column in COLUMNS}
        cached = _sum(by_engine[CACHED].get(labels, []), asked[new])
        columns["prompt_tokens"] = _less(columns["prompt_tokens"], cached)
        engine = EngineSeries(pod=name[1], time_s=sampled[new], **columns)
        chain = ended.setdefault(name, [])
        if others := {way for way, other in chain if way != how and other.time_s[-1] >= engine.time_s[0]}:
            doubled.setdefault(name, set()).update(others, {how})
            continue
        before = next((at for at, (_, other) in enumerate(chain) if other.time_s[-1] < engine.time_s[0]), None)
        if before is None:
            chain.append((how, engine))
        else:
            chain[before] = how, _joined(chain[before][1], engine)
    return [engine for chain in ended.values() for _, engine in chain], doubled


def _sum(series: list[Points], asked: FloatColumn) -> FloatColumn:
    """Sum series at the times asked for; NaN where none of them is known."""
    total = np.full(len(asked), np.nan)
    for points in series:
        values = np.array([points.get(at, math.nan) for at in asked.tolist()])
        values = np.where((values >= 0) & (values <= MOST_COUNT), values, np.nan)
        total = np.where(np.isnan(total), values, total + np.nan_to_num(values))
    return total


def _less(counter: FloatColumn, part: FloatColumn) -> FloatColumn:
    """Return a counter without the part of it that another one counts, which may be ahead of it; both float64[n]."""
    if np.isnan(part).all() or np.isnan(counter).all():
        return counter
    whole, less = filled(counter), filled(part)
    grown = np.maximum(increase(whole[:-1], whole[1:]) - increase(less[:-1], less[1:]), 0.0)
    return np.concatenate([[max(whole[0] - less[0], 0.0)], grown]).cumsum()


def _joined(one: EngineSeries, other: EngineSeries) -> EngineSeries:
    columns = ("time_s", *COLUMNS)
    return EngineSeries(
        one.pod, **{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in columns}
    )


MOST_AGE_S = 300.0
"""How old a sample may be that a server still shows: Prometheus' look-back."""


def _latencies(read: Mapping[_Labels, Points], start_s: float, window_s: float, windows: int) -> Latencies:
    """Turn bucket series into a histogram per window; bounds that are no number are left out."""
    by_bound = {dict(labels).get("le", ""): points for labels, points in read.items()}
    bounds = sorted((bound, text) for text in by_bound if not math.isnan(bound := _bound(text)))
    if not bounds or not math.isinf(bounds[-1][0]):
        return Latencies.none()
    counts = np.full((windows, len(bounds)), np.nan)
    for column, (_, text) in enumerate(bounds):
        for at_s, value in by_bound[text].items():
            window = round((at_s - start_s) / window_s) - 1
            if 0 <= window < windows and 0 <= value <= MOST_COUNT:
                counts[window, column] = value
    return Latencies(np.array([bound for bound, _ in bounds]), counts)


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _problems(engines: list[EngineSeries], present: FloatColumn, step_s: float) -> tuple[str, ...]:
    counted = (each.generation_tokens[~np.isnan(each.generation_tokens)] for each in engines)
    resets = sum(int((np.diff(values) < 0).sum()) for values in counted)
    restarts = (f"counters went back {resets} times; each counts as a restart",) if resets else ()
    return silence(present, step_s, "no pod reported") + restarts


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
