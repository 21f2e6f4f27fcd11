"""One round of queries: a common deadline, a common instant of evaluation, and an account of what came of it."""

from __future__ import annotations

import asyncio

from autoscaler.adapters.prometheus.decode import MAX_NOTE_CHARACTERS, Vector, parse_labels
from autoscaler.adapters.prometheus.instant.client import Answer, PrometheusClient, QueryFailed
from autoscaler.adapters.prometheus.promql.labels import METRIC
from autoscaler.core.model.samples import SourceReport
from autoscaler.ports import Clock

MAX_PROBLEMS = 8
NAMED = 2  # queries named in one problem; that there are more is said


class Sampling:
    """Asks, and never raises for a query that failed: the answer is then None and the report says why."""

    def __init__(self, client: PrometheusClient, clock: Clock, deadline_s: float) -> None:
        """deadline_s: seconds from now in which the whole round must end."""
        self._client = client
        self._clock = clock
        self.started_s = clock.now_s()
        self._until_s = asyncio.get_running_loop().time() + deadline_s
        self._queries = 0
        self.failed = 0  # queries that brought nothing
        self._problems: dict[str, list[str]] = {}  # problem to the queries that have it

    async def ask(self, name: str, expression: str, at_s: float | None = None) -> Answer | None:
        """Ask for a vector; `name` is what problems call the query. at_s: Unix time by the server's clock."""
        left_s = self._until_s - asyncio.get_running_loop().time()
        self._queries += 1
        if left_s <= 0:
            self._fail(name, f"{self._client.name}: not asked, the deadline of the tick has passed")
            return None
        try:
            answer = await self._client.query(expression, at_s, left_s)
        except QueryFailed as error:
            self._fail(name, str(error))
            return None
        vector = answer.vector
        if vector.partial:
            said = "; ".join(vector.notes) or "isPartial"
            self.note(name, f"{self._client.name}: partial answer, what is missing is unknown: {said}")
        elif vector.notes:
            self.note(name, f"{self._client.name}: remarked: {'; '.join(vector.notes)}")
        return answer

    async def try_ask(self, expression: str) -> Vector:
        """Ask what a server may refuse: that is no failure, and nothing is said of it. Raises QueryFailed."""
        left_s = self._until_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise QueryFailed("the deadline has passed")
        self._queries += 1
        return (await self._client.query(expression, None, left_s)).vector

    def note(self, name: str, problem: str) -> None:
        """Add a problem; the same one of several queries is told once."""
        self._problems.setdefault(problem, []).append(name)

    @property
    def reason(self) -> str:
        """All problems, without the queries that have them."""
        return "; ".join(list(self._problems)[:MAX_PROBLEMS])

    def report(self) -> SourceReport:
        return SourceReport(
            source="prometheus",
            queries=self._queries,
            failed=self.failed,
            problems=tuple(_line(names, text) for text, names in list(self._problems.items())[:MAX_PROBLEMS]),
            duration_s=self._clock.now_s() - self.started_s,
        )

    def _fail(self, name: str, problem: str) -> None:
        self.failed += 1
        self.note(name, problem)


def _line(names: list[str], text: str) -> str:
    more = len(names) - NAMED
    line = f"{', '.join(names[:NAMED])}{f' and {more} more' if more > 0 else ''}: {text}"
    return line if len(line) <= 2 * MAX_NOTE_CHARACTERS else line[: 2 * MAX_NOTE_CHARACTERS - 1] + "…"


def by_name(vector: Vector) -> dict[str, float]:
    """Return the value of each series of an answer by its label `metric`."""
    names = (parse_labels(raw).get(METRIC, "") for raw in vector.labels)
    return dict(zip(names, vector.values.tolist(), strict=True))
