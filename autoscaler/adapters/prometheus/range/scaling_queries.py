"""Reads what scaling rules need of a Prometheus: its recording rules, and the past results of queries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoscaler.adapters.prometheus.credentials import Credentials
from autoscaler.adapters.prometheus.decode import clean
from autoscaler.adapters.prometheus.range.reader import RangeReader, run_in_thread
from autoscaler.adapters.prometheus.range.workload_history import PIECE_POINTS
from autoscaler.config.settings import PrometheusSettings
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.ports import Unavailable

MAX_QUERIES = 200
NOT_FOLLOWED = "recording rules could not be read, so they are not followed"
MAX_RECORDED = 20_000  # recording rules
DEADLINE_S = 300.0
Results = tuple[FloatColumn, FloatColumn, IntColumn]  # float64[T] Unix time, float64[T] value, int64[T] series


class ScalingQueries:
    """Reads them through one server: `await ScalingQueries(settings).recorded()`."""

    def __init__(self, settings: PrometheusSettings) -> None:
        """Raises ValueError if the settings contradict each other."""
        self._settings = settings
        self._credentials = Credentials(settings)

    def _reader(self) -> RangeReader:
        return RangeReader(self._settings, self._credentials, time.monotonic() + DEADLINE_S)

    async def recorded(self) -> tuple[dict[str, str], str]:
        """Return expressions of recording rules by name, and why there are none; "": they were read.

        A name that several rules record is left out.
        """
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await run_in_thread(recording_rules, self._reader()), ""
            except Unavailable as error:
                return {}, f"{NOT_FOLLOWED}: {error}"

    async def read(
        self, queries: Sequence[str], start_s: float, end_s: float, step_s: float
    ) -> tuple[dict[str, Results], tuple[str, ...]]:
        """Return the results of queries over an interval, and the problems of those that failed."""
        found: dict[str, Results] = {}
        problems: list[str] = []
        reader = self._reader()
        async with asyncio.timeout(DEADLINE_S):
            for query in queries[:MAX_QUERIES]:
                try:
                    found[query] = await run_in_thread(read_results, reader, query, start_s, end_s, step_s)
                except Unavailable as error:
                    problems.append(f"a query of a scaling rule could not be run: {clean(query[:100])}: {error}")
        if len(queries) > MAX_QUERIES:
            problems.append(f"{len(queries)} queries of scaling rules; only the first {MAX_QUERIES} are run")
        return found, tuple(problems)


def recording_rules(reader: RangeReader) -> dict[str, str]:
    """Return the expressions of the server's recording rules by name. Raises Unavailable."""
    return read_recorded(reader.get("/api/v1/rules", {"type": "record"}))


def read_recorded(answer: Any) -> dict[str, str]:
    """Return the recording rules of an answer by name. Anything unexpected in it is passed over."""
    found: dict[str, str] = {}
    repeated: set[str] = set()
    for rule in _rules(answer)[:MAX_RECORDED]:
        name, expression = str(rule.get("name")), str(rule.get("query"))
        if rule.get("type") == "recording" and found.setdefault(name, expression) != expression:
            repeated.add(name)
    return {name: expression for name, expression in found.items() if name not in repeated}


def _rules(answer: Any) -> list[Mapping[str, Any]]:
    data = answer.get("data") if isinstance(answer, dict) else None
    groups = data.get("groups") if isinstance(data, dict) else None
    if not isinstance(groups, list):
        return []
    listed = (group.get("rules") for group in groups if isinstance(group, dict))
    return [rule for rules in listed if isinstance(rules, list) for rule in rules if isinstance(rule, dict)]


def read_results(reader: RangeReader, query: str, start_s: float, end_s: float, step_s: float) -> Results:
    """Return the results of one query. Raises Unavailable."""
    times_s: FloatColumn = np.arange(start_s, end_s + step_s / 2, step_s, dtype=np.float64)
    values, several = np.full(len(times_s), np.nan), np.zeros(len(times_s), np.int64)
    for first in range(0, len(times_s), PIECE_POINTS):
        piece = times_s[first : first + PIECE_POINTS]
        for row in reader.query(query, float(piece[0]), float(piece[-1]), step_s, is_ours=False):
            places = np.round((row["values"][:, 0] - start_s) / step_s).astype(np.int64)
            inside = (places >= 0) & (places < len(times_s))
            values[places[inside]] = row["values"][inside, 1]
            several[places[inside]] += 1
    return times_s, values, several
