"""One round of queries with a common deadline, and the report about it."""

from __future__ import annotations

import asyncio

from autoscaler.adapters.prometheus.decode import MAX_NOTE_CHARACTERS, Vector, parse_labels
from autoscaler.adapters.prometheus.instant.client import PrometheusClient, QueryFailed, VectorAnswer
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.core.model.samples import SourceReport
from autoscaler.ports import Clock

MAX_PROBLEMS = 8
MAX_NAMED = 2  # queries named in one problem
ESSENTIAL = ("time_s", "running", "waiting")  # come first, and get a second try if the server refuses them


class QueryRound:
    """Runs queries. A failed query returns None, and the report has the reason."""

    def __init__(self, client: PrometheusClient, clock: Clock, deadline_s: float) -> None:
        """deadline_s: seconds from now until the end of the whole round."""
        self._client = client
        self._clock = clock
        self.started_s = clock.now_s()
        self._deadline_s = asyncio.get_running_loop().time() + deadline_s
        self.queries = 0
        self.failed = 0  # number of failed queries
        self.lost: set[str] = set()  # names of failed queries
        self.left_out = False  # an answer lacks crowded namespaces
        self._problems: dict[str, list[str]] = {}  # problem to the queries that have it

    async def query(
        self, name: str, expression: str, at_s: float | None = None, *, is_ours: bool = True
    ) -> VectorAnswer | None:
        """Query a vector. name: of the query, for problems. at_s: Unix time by the server's clock.

        is_ours: see `PrometheusClient.query`.
        """
        left_s = self._deadline_s - asyncio.get_running_loop().time()
        self.queries += 1
        if left_s <= 0:
            self._fail(name, f"{self._client.name}: not queried, the deadline of the tick has passed")
            return None
        try:
            answer = await self._query(name, expression, at_s, left_s, is_ours=is_ours)
        except QueryFailed as error:
            self._fail(name, str(error))
            return None
        vector = answer.vector
        if answer.left_out:
            self.left_out = True
            self.note(name, f"{self._client.name}: {answer.left_out}")
        if vector.partial:
            notes = "; ".join(vector.notes) or "isPartial"
            self.note(name, f"{self._client.name}: partial answer, what is missing is unknown: {notes}")
        elif vector.notes:
            self.note(name, f"{self._client.name}: remarked: {'; '.join(vector.notes)}")
        return answer

    async def _query(
        self, name: str, expression: str, at_s: float | None, left_s: float, *, is_ours: bool
    ) -> VectorAnswer:
        try:
            return await self._client.query(expression, at_s, left_s, is_ours=is_ours)
        except QueryFailed as error:
            left_s = self._deadline_s - asyncio.get_running_loop().time()
            if name not in ESSENTIAL or not error.may_pass or left_s <= 0:
                raise
        return await self._client.query(expression, at_s, left_s)

    async def try_query(self, expression: str) -> Vector:
        """Run a query that the server may refuse; a refusal is not reported. Raises QueryFailed."""
        left_s = self._deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise QueryFailed("the deadline has passed")
        self.queries += 1
        return (await self._client.query(expression, None, left_s)).vector

    def note(self, name: str, problem: str) -> None:
        """Add a problem of a query. The same problem of several queries is reported once."""
        self._problems.setdefault(problem, []).append(name)

    @property
    def reason(self) -> str:
        """All problems, without the names of the queries."""
        return "; ".join(list(self._problems)[:MAX_PROBLEMS])

    def report(self) -> SourceReport:
        return SourceReport(
            source="prometheus",
            queries=self.queries,
            failed=self.failed,
            problems=tuple(_line(names, text) for text, names in list(self._problems.items())[:MAX_PROBLEMS]),
            duration_s=self._clock.now_s() - self.started_s,
        )

    def _fail(self, name: str, problem: str) -> None:
        self.failed += 1
        self.lost.add(name)
        self.note(name, problem)


def _line(names: list[str], text: str) -> str:
    more = len(names) - MAX_NAMED
    line = f"{', '.join(names[:MAX_NAMED])}{f' and {more} more' if more > 0 else ''}: {text}"
    return line if len(line) <= 2 * MAX_NOTE_CHARACTERS else line[: 2 * MAX_NOTE_CHARACTERS - 1] + "…"


def values_by_metric(vector: Vector) -> dict[str, float]:
    """Return the value of each series by its label `metric`."""
    names = (parse_labels(raw).get(METRIC, "") for raw in vector.labels)
    return dict(zip(names, vector.values.tolist(), strict=True))
