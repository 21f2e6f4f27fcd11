"""The past of a workload from recorded ticks: the lines that `dry-run --json` printed, instead of a Prometheus.

A tick knows rates over its window and not counters, so what came is smeared over that window; of latencies it knows one
quantile, so attainment stays unknown.
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

from autoscaler.config.findings import one_of, shown
from autoscaler.core.columns import FloatColumn
from autoscaler.core.past import COUNTERS, MOST_STEPS, EngineSeries, Latencies, Past, gather, silence
from autoscaler.core.words import count
from autoscaler.sim.study.files import Told, unpacked, untold

MOST_LINE_BYTES = 1 << 20
MOST_TICKS = 5_000_000
MOST_VALUE = 1e9  # requests, or tokens a second
MOST_REPLICAS = 1e5
MOST_OTHERS = 1000  # workloads whose names an error may know
LATENCY_WINDOW_S = 60.0
TOLD_LINES = 1000  # after so many it is told how far the file was read


class TicksError(ValueError):
    """A file of ticks that cannot be used: says file and line, what was found, and what is allowed."""


def read(path: Path, workload: str, start_s: float = -math.inf, end_s: float = math.inf, told: Told = untold) -> Past:
    """Return the past of `workload` (`namespace/name`) between two Unix times, as its ticks knew it.

    Lines of other workloads and of failed ticks are passed over. Raises TicksError.
    """
    times: list[float] = []
    rows: list[list[float]] = []
    places: list[tuple[str, str]] = []  # where each is, and its time as it is written there
    others: set[str] = set()
    outside: list[str] = []  # of its ticks, the first and the last beside the interval
    for where, line in _lines(path, told):
        if (name := line.get("workload")) != workload:
            if len(others) < MOST_OTHERS and isinstance(name, str):
                others.add(name)
            continue
        time_s = _time(line.get("time"), where)
        if not start_s <= time_s <= end_s:
            outside[1:] = [line["time"]]
            continue
        if times and time_s <= times[-1]:
            if time_s == times[-1]:  # ticks within one second are told apart by no more than that
                continue
            raise TicksError(f"{where}: time is {line['time']}; it must not be before that of the previous line")
        inputs = line.get("inputs")
        if not isinstance(inputs, dict):
            raise TicksError(f"{where}: no inputs; ticks are recorded by `dry-run --json`")
        names = ("running", "waiting", "gateway_waiting", *(f"{name}_per_s" for name in COUNTERS))
        rows.append([_number(inputs.get(name), f"{where}: inputs.{name}") for name in names])
        rows[-1].append(_number(line.get("ready"), f"{where}: ready", MOST_REPLICAS))
        times.append(time_s)
        places.append((where, line["time"]))
    if len(times) < 2:
        found = f"{count(len(times), 'tick')} of workload {workload} in the interval, at least 2 are needed"
        beside = f"; beside it from {outside[0]} to {outside[-1]}" if outside else ""
        raise TicksError(f"{path}: {found}{beside}; other workloads: {one_of(map(_bare, others), workload)}")
    moments_s = np.array(times)
    step_s = max(round(float(np.median(np.diff(moments_s)))), 1.0)
    if (steps := (times[-1] - times[0]) / step_s) > MOST_STEPS:
        after = int(np.argmax(np.diff(moments_s))) + 1
        (_, before), (where, text) = places[after - 1 : after + 1]
        raise TicksError(
            f"{where}: time is {text} and that of the tick before is {before}: the ticks would span "
            f"{steps:,.0f} steps of {step_s:g} s; allowed: at most {MOST_STEPS:,}"
        )
    return _past(moments_s, np.array(rows).T, step_s)


def _past(time_s: FloatColumn, columns: FloatColumn, step_s: float) -> Past:
    running, waiting, held, *rates, ready = columns
    lasted_s = np.diff(time_s, prepend=time_s[0])
    counters = {name: np.cumsum(np.nan_to_num(rate) * lasted_s) for name, rate in zip(COUNTERS, rates, strict=True)}
    engine = EngineSeries("", time_s, running, np.nan_to_num(waiting) + np.nan_to_num(held), **counters)
    gathered = gather(float(time_s[0]), float(time_s[-1]), step_s, [engine])
    middle = time_s[0] + (np.arange(len(gathered["pods"])) + 0.5) * step_s
    gathered["pods"] = np.where(np.isnan(gathered["pods"]), np.nan, np.interp(middle, time_s, np.nan_to_num(ready)))
    came = np.maximum(np.diff(np.nan_to_num(ready)), 0.0)
    place = np.minimum((time_s[1:] - time_s[0]) // step_s, len(middle) - 1).astype(np.int64)
    gathered["pods_added"] = np.bincount(place, came, len(middle)).astype(np.float64)
    return Past(
        start_s=float(time_s[0]),
        step_s=step_s,
        window_s=LATENCY_WINDOW_S,
        ttft=Latencies.none(),
        itl=Latencies.none(),
        problems=silence(gathered["pods"], step_s, "there is no tick"),
        **gathered,
    )


def _lines(path: Path, told: Told) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's place and content. A file that was cut off in its last line is read up to it."""
    number = 0
    try:
        with unpacked(path) as (file, share):
            while text := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if number % TOLD_LINES == 0:
                    told(share())
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


def _bare(name: str) -> str:
    """Return a name from a file as a terminal may show it."""
    return shown(name)[1:-1]


def _number(value: Any, what: str, most: float = MOST_VALUE) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise TicksError(f"{what} is {value!r:.40}; it must be a number from 0 to {most:g}, or null")
    return float(value)
