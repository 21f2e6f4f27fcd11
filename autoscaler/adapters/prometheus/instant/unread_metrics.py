"""Metrics in the backend that look like those of an engine and are not read, with a hint that helps to read them.

The query for names uses an expression on names, which managed backends refuse. They are then not asked again, and
`not_searched` explains it where metrics are missing.
"""

from __future__ import annotations

import math
from collections import Counter
from http import HTTPStatus
from itertools import chain

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.instant.client import QueryFailed
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.pod_labels import pod_name
from autoscaler.adapters.prometheus.promql.engines import engine_presence, presence_rows
from autoscaler.adapters.prometheus.promql.expressions import by, or_join, selectors
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.catalog.engines import ENGINES, Engine
from autoscaler.catalog.series import POD_LABELS, Readings, names_of
from autoscaler.catalog.spellings import LOOKS_LIKE, OPTION, Spelling, spelled, unread_name_hint
from autoscaler.config.findings import without_running

PERIOD_S = 300.0
MAX_REPORTED = 3
NAMES = f'group by (__name__) ({{__name__=~".{{1,200}}({LOOKS_LIKE})"}})'
REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
NOT_SEARCHED = f"; the server refuses to look for names with an unknown prefix, which {OPTION} states"
STATISTICS_HINT = "are its statistics off (--disable-log-stats), or not on (--enable-metrics)?"
# vLLM's web server always reports this.
_WEB = 'http_requests_total{handler=~"/v1/completions|/v1/chat/completions"}'


def unreported_pods_query(spellings: tuple[Spelling, ...]) -> str:
    """Return the query for pods that serve completions and report no engine metrics."""
    pod = (*chain.from_iterable(POD_LABELS), "instance")
    engines = engine_presence(spelled(engine, spellings) for engine in ENGINES.values())
    return f"group {by(*pod)} ({_WEB}) unless on ({', '.join(pod)}) ({engines})"


def partial_pods_query(spellings: tuple[Spelling, ...]) -> str:
    """Return the query for pods that count requests, but report no running ones. Label `metric` is the engine."""
    pod = (*chain.from_iterable(POD_LABELS), "instance")
    used = Counter(name for engine in ENGINES.values() for name in names_of(_counted(engine)))

    def partial(engine: Engine) -> str:
        own = {spelling.name(name) for spelling in spellings for name in names_of(_counted(engine)) if used[name] == 1}
        rows = [row for row in _counted(spelled(engine, spellings)) if row.name in own]
        counted = or_join(text for row in rows for text in selectors(row, row.name))
        running = engine_presence([spelled(engine, spellings)])
        return f"group {by(*pod)} ({counted}) unless on ({', '.join(pod)}) ({running})"

    engines = [engine for engine in ENGINES.values() if not presence_rows(engine)[0].beside]
    return or_join(f'label_replace({partial(engine)}, "{METRIC}", "{engine.name}", "", "")' for engine in engines)


def _counted(engine: Engine) -> Readings:
    return (*engine.readings.get("finished", ()), *engine.readings.get("first_tokens", ()))


class UnreadMetrics:
    """Queries such metrics every `PERIOD_S` and reports them with a hint."""

    def __init__(self, spellings: tuple[Spelling, ...], *, pods: bool = False) -> None:
        """spellings: of the names that are read. pods: also report pods without engine metrics."""
        self._spellings = spellings
        self._pods = pods
        self.not_searched = ""  # text to append to a report of missing metrics if names were not searched
        self._queried_s = -math.inf
        self._lines: tuple[str, ...] = ()

    async def report(self, query_round: QueryRound) -> None:
        """Add the hints to the problems of a round."""
        if query_round.started_s - self._queried_s >= PERIOD_S:
            self._queried_s = query_round.started_s
            unreported = await self._unreported_pods(query_round) if self._pods else ()
            self._lines = (*await self._names(query_round), *await self._partial_pods(query_round), *unreported)
        for line in self._lines:
            query_round.note("names", line)

    async def _names(self, query_round: QueryRound) -> tuple[str, ...]:
        if self.not_searched:
            return ()
        try:
            found = await query_round.try_query(NAMES)
        except QueryFailed as error:
            self.not_searched = NOT_SEARCHED if error.status in REFUSALS else ""
            return ()
        names = sorted(parse_labels(raw).get("__name__", "") for raw in found.labels)
        return tuple(filter(None, (unread_name_hint(name, self._spellings) for name in names)))[:MAX_REPORTED]

    async def _partial_pods(self, query_round: QueryRound) -> tuple[str, ...]:
        try:
            found = await query_round.try_query(partial_pods_query(self._spellings))
        except QueryFailed:
            return ()
        labels = [parse_labels(raw) for raw in found.labels]
        pods = sorted({("/".join(pod_name(each)), each.get(METRIC, "")) for each in labels})
        known = [(pod, ENGINES[engine]) for pod, engine in pods if engine in ENGINES]
        lines = (f"{clean(pod)} {without_running(each.name, names_of(presence_rows(each)))}" for pod, each in known)
        return tuple(lines)[:MAX_REPORTED]

    async def _unreported_pods(self, query_round: QueryRound) -> tuple[str, ...]:
        try:
            return _describe_unreported(await query_round.try_query(unreported_pods_query(self._spellings)))
        except QueryFailed:
            return ()


def _describe_unreported(vector: Vector) -> tuple[str, ...]:
    names = sorted({"/".join(pod_name(parse_labels(raw))) for raw in vector.labels})
    lines = tuple(
        f"{clean(name)} serves completions and reports no metric of an engine: {STATISTICS_HINT}" for name in names
    )
    more = len(lines) - MAX_REPORTED
    return (
        (*lines[:MAX_REPORTED], f"and {more} more serve completions without an engine's metrics") if more > 0 else lines
    )
