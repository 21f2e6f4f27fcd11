"""Reports scrape jobs that scrape engines less often than the window of rates needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoscaler.adapters.prometheus.decode import clean, parse_labels
from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.adapters.prometheus.promql.sources import sparse_query
from autoscaler.catalog.engines import Engine

PERIOD_S = 300.0
SCRAPES_PER_WINDOW = 4


class ScrapeLimits:
    """Queries such jobs every `PERIOD_S`."""

    def __init__(self, window_s: float) -> None:
        """window_s: the window of rates."""
        self._apart_s = window_s / SCRAPES_PER_WINDOW
        self._queried_s = -math.inf
        self._jobs: set[str] = set()

    async def report(
        self,
        query_round: QueryRound,
        at_s: float,
        engines: Sequence[Engine],
        identities: Sequence[Identity],
        join: PodJoin,
    ) -> None:
        """Add a line to the problems of a round while there are such jobs."""
        if query_round.started_s - self._queried_s >= PERIOD_S:
            self._queried_s = query_round.started_s
            self._jobs = set()
            for expression in (sparse_query(engine, each, self._apart_s) for engine in engines for each in identities):
                if (answer := await query_round.query("scrapes", expression, at_s)) is not None:
                    rows = join.rows(answer.vector.labels)
                    found = zip(answer.vector.labels, rows.tolist(), strict=True)
                    self._jobs |= {parse_labels(raw).get("job", "") for raw, row in found if row >= 0}
        if self._jobs:
            more = f" and {len(self._jobs) - 1} more" if len(self._jobs) > 1 else ""
            query_round.note(
                "scrapes",
                f"scrape job {clean(min(self._jobs)) or 'without a name'}{more}: scrapes of engines are more than "
                f"{self._apart_s:g} s apart, a quarter of --rate-window, so rates and latencies have gaps",
            )
