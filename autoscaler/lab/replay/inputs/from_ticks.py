"""History of a workload from recorded ticks: lines of `dry-run --json`, instead of Prometheus.

A tick holds rates over a window instead of counters, so arrivals are smeared over that window, and times without ticks
are unknown. It holds a single latency quantile, so attainment is unknown.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from autoscaler.adapters.prometheus.range.resample import (
    COUNTERS,
    MAX_STEPS,
    LatencyHistograms,
    WorkloadHistory,
    forward_fill,
)
from autoscaler.config.findings import shown, unknown
from autoscaler.core.explain.format import count
from autoscaler.core.model.published import VERSION
from autoscaler.core.readings.rates import RATE_WINDOW_S
from autoscaler.core.table.columns import BoolColumn, FloatColumn
from autoscaler.lab.replay.call_progress import Progress, no_progress
from autoscaler.lab.replay.inputs.files import open_decompressed

MOST_LINE_BYTES = 1 << 20
MOST_TICKS = 5_000_000
MOST_VALUE = 1e9  # requests, or tokens per second
MOST_REPLICAS = 1e5
MOST_OTHERS = 1000  # other workloads kept for the error message
LATENCY_WINDOW_S = 60.0
MAX_RATE_AGE_S = 2 * RATE_WINDOW_S  # time that a rate covers: as uncertain as a plain mean over twice its time constant
GAP_INTERVALS = 3  # a larger distance, in usual distances, is a gap
HELD = ("running", "waiting", "gateway_waiting")
RATES = tuple(f"{counter}_per_s" for counter in COUNTERS)
PROGRESS_LINES = 1000  # lines between two progress reports


class TicksError(ValueError):
    """A file of ticks that cannot be used. The message names file and line, the value found, and what is allowed."""


def read(
    path: Path, workload: str, start_s: float = -math.inf, end_s: float = math.inf, progress: Progress = no_progress
) -> WorkloadHistory:
    """Return the history of `workload` (`namespace/name`) between two Unix times.

    Skips lines of other workloads, failed ticks and problems, and ticks without a rate of existing replicas. Raises
    TicksError.
    """
    times: list[float] = []
    rows: list[list[float]] = []
    places: list[tuple[str, str]] = []  # file position and time of each tick, as written
    others: set[str] = set()
    outside: list[str] = []  # times of the first and the last tick outside the interval
    kind: str | None = None
    without_rate = 0  # ticks without a rate
    for where, line in _lines(path, progress):
        if (name := line.get("workload")) != workload:
            if len(others) < MOST_OTHERS and isinstance(name, str):
                others.add(name)
            continue
        time_s = _time(line.get("time"), where)
        if not start_s <= time_s <= end_s:
            outside[1:] = [line["time"]]
            continue
        if isinstance(found := line.get("kind"), str) and found != (kind := kind or found):
            raise TicksError(
                f"{where}: kind is {shown(found)} and that of a tick before is {shown(kind)}; "
                f"all ticks of workload {workload} between --start and --end must be of one kind"
            )
        if times and time_s <= times[-1]:
            if time_s == times[-1]:  # times have a resolution of one second
                continue
            raise TicksError(f"{where}: time is {line['time']}; it must not be before that of the previous line")
        inputs = _inputs(line, where)
        held = [_number(inputs.get(name), f"{where}: inputs.{name}") for name in HELD]
        rates = [_number(inputs.get(name), f"{where}: inputs.{name}") for name in RATES]
        ready = _number(line.get("ready"), f"{where}: ready", MOST_REPLICAS)
        # without replicas there is no rate; otherwise the rates were not read
        if ready != 0 and all(map(math.isnan, rates)):
            without_rate += 1
            continue
        rows.append([*held, *rates, ready])
        times.append(time_s)
        places.append((where, line["time"]))
    if len(times) < 2:
        there = f"{count(len(times), 'tick')} of workload {workload} in the interval"
        rateless = (
            f", besides {without_rate} that tell{'s' if without_rate == 1 else ''} no rate" if without_rate else ""
        )
        beside = f"; beside it from {outside[0]} to {outside[-1]}" if outside else ""
        cause = f"{there}{rateless}, at least 2 are needed{beside}"
        raise TicksError(
            f"{path}: " + "; other workloads: ".join(unknown(cause, map(_printable_name, others), workload, ""))
        )
    moments_s = np.array(times)
    step_s = max(round(float(np.median(np.diff(moments_s)))), 1.0)
    if (steps := (times[-1] - times[0]) / step_s) > MAX_STEPS:
        after = int(np.argmax(np.diff(moments_s))) + 1
        (_, before), (where, text) = places[after - 1 : after + 1]
        raise TicksError(
            f"{where}: time is {text} and that of the tick before is {before}: the ticks would span "
            f"{steps:,.0f} steps of {step_s:g} s; allowed: at most {MAX_STEPS:,}"
        )
    columns = np.array(rows).T
    if np.isnan(columns[-1]).all():
        raise TicksError(
            f"{path}: `ready` is null in all {len(times)} ticks of workload {workload}; "
            "at least one must tell the replicas"
        )
    return _resample(moments_s, columns, step_s)


def _inputs(line: dict[str, Any], where: str) -> dict[str, Any]:
    if (version := line.get("version", 1)) != VERSION:  # version 0.1 wrote none
        raise TicksError(f"{where}: version is {shown(version)}; allowed: {VERSION}, which `dry-run --json` writes")
    if not isinstance(inputs := line.get("inputs"), dict):
        raise TicksError(f"{where}: no inputs; ticks are recorded by `dry-run --json`")
    return inputs


def _resample(time_s: FloatColumn, columns: FloatColumn, step_s: float) -> WorkloadHistory:
    """Resample ticks to an even grid. columns: float64[len(HELD) + len(RATES) + 1, n], `ready` last."""
    running, waiting, gateway_waiting, *rates, ready = columns
    waiting = np.nan_to_num(waiting) + np.nan_to_num(gateway_waiting)
    running = np.nan_to_num(running)
    before_s = np.concatenate([time_s[:1], time_s[:-1]])
    # begin of the time that each tick covers
    since_s = np.maximum(before_s, time_s - max(MAX_RATE_AGE_S, GAP_INTERVALS * step_s))
    lasted_s = time_s - since_s
    grown = {name: np.nan_to_num(rate) * lasted_s for name, rate in zip(COUNTERS, rates, strict=True)}
    grown["arrivals"] = _arrivals(grown["finished"], running + waiting, since_s > before_s)

    edges = time_s[0] + step_s * np.arange(max(round((time_s[-1] - time_s[0]) / step_s), 1) + 1)
    moments_s = np.column_stack([since_s, time_s]).ravel()

    def spread(values: FloatColumn) -> FloatColumn:
        total = np.repeat(np.concatenate([[0.0], np.cumsum(values)]), 2)[1:-1]
        return np.diff(np.interp(edges, moments_s, total))

    middle_s = (edges[:-1] + edges[1:]) / 2
    there = forward_fill(ready)
    laid = {name: spread(values) for name, values in grown.items()}
    laid |= {
        name: np.interp(middle_s, time_s, values)
        for name, values in (("running", running), ("waiting", waiting), ("pods", there))
    }
    known = spread(lasted_s) > 0
    place = np.minimum((time_s[1:] - time_s[0]) // step_s, len(middle_s) - 1).astype(np.int64)
    added = np.bincount(place, np.maximum(np.diff(there), 0.0), len(middle_s))
    return WorkloadHistory(
        start_s=float(time_s[0]),
        step_s=step_s,
        pods_added=added.astype(np.float64),
        window_s=LATENCY_WINDOW_S,
        ttft=LatencyHistograms.none(),
        itl=LatencyHistograms.none(),
        problems=_problems(time_s - before_s, ready, step_s),
        **{name: np.where(known, values, np.nan) for name, values in laid.items()},
    )


def _arrivals(finished: FloatColumn, held: FloatColumn, after_gap: BoolColumn) -> FloatColumn:
    """Return the arrivals up to each tick, float64[n]: finished requests plus the growth of held requests.

    The held requests are instantaneous, while a finished request appears in a rate over minutes, and a missed scrape
    lowers the held requests. So a decrease is made up for before new arrivals count; otherwise the requests of a quiet
    service would count twice. Intervals between gaps are treated separately.
    """
    more = finished + np.where(after_gap, 0.0, np.diff(held, prepend=held[0]))
    came = []
    for part in np.split(more, np.flatnonzero(after_gap)):
        total = np.concatenate([[0.0], np.cumsum(part)])
        came.append(np.diff(np.maximum.accumulate(total)))
    return np.concatenate(came)


def _problems(apart_s: FloatColumn, ready: FloatColumn, step_s: float) -> tuple[str, ...]:
    """Return notes on gaps between ticks and on unknown replica counts."""
    problems = []
    if gaps_s := float(apart_s[apart_s > GAP_INTERVALS * step_s].sum()):
        problems.append(
            f"for {gaps_s:,.0f} s no tick tells a rate: the rates of the next tick count for the last "
            f"{max(MAX_RATE_AGE_S, GAP_INTERVALS * step_s):g} s before it, and earlier in such a gap no request and no "
            "replica is assumed"
        )
    if unknown := int(np.isnan(ready).sum()):
        verb = "does" if unknown == 1 else "do"
        problems.append(
            f"{count(unknown, 'tick')} {verb} not tell `ready`: as many replicas as at the last tick that does"
        )
    return tuple(problems)


def _lines(path: Path, progress: Progress) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield position and content of each line. A truncated last line ends the file."""
    number = 0
    try:
        with open_decompressed(path) as (file, share):
            while text := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if number % PROGRESS_LINES == 0:
                    progress(share())
                where = f"{path}, line {number}"
                if len(text) > MOST_LINE_BYTES or number > MOST_TICKS:
                    raise TicksError(f"{where}: more than {MOST_LINE_BYTES} bytes, or {MOST_TICKS} lines")
                if text.isspace():
                    continue
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError) as error:
                    if not text.endswith(b"\n"):
                        return
                    raise TicksError(f"{where}: not JSON") from error
                if not isinstance(line, dict):
                    raise TicksError(f"{where}: not a mapping")
                yield where, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TicksError(f"{path}, line {number + 1}: the gzip data ends early or is damaged: {error}") from error
    except OSError as error:
        raise TicksError(f"{path}: {error.strerror or error}") from error


def _time(text: Any, where: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise TicksError(f"{where}: time is {text!r:.40}; it must look like 2026-03-01T08:00:00Z") from None
    if moment.tzinfo is None:
        raise TicksError(f"{where}: time is {text!r:.40}, without a time zone; it must look like 2026-03-01T08:00:00Z")
    return moment.timestamp()


def _printable_name(name: str) -> str:
    """Return a name from a file, safe for a terminal."""
    return shown(name)[1:-1]


def _number(value: Any, what: str, most: float = MOST_VALUE) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise TicksError(f"{what} is {value!r:.40}; it must be a number from 0 to {most:g}, or null")
    return float(value)
