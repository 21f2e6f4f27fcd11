"""Reports scrape jobs that scrape engines less often than the window of rates, or the policy of a workload, needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress, product

import numpy as np

from autoscaler.adapters.prometheus.decode import clean, parse_labels
from autoscaler.adapters.prometheus.instant.pod_join import PodJoin
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.adapters.prometheus.promql.sources import sparse_query
from autoscaler.catalog.engines import Engine
from autoscaler.core.table.columns import FloatColumn

PERIOD_S = 300.0
SCRAPES_PER_WINDOW = 4
MAX_LIMITS = 8  # that are queried, the strictest first: policies of tenants may state many


class ScrapeLimits:
    """Queries such jobs every `PERIOD_S`."""

    def __init__(self, window_s: float) -> None:
        """window_s: the window of rates."""
        self._window_s = window_s
        self._queried_s = -math.inf
        self._jobs: dict[float, set[str]] = {}  # by the limit that they break

    async def report(
        self,
        query_round: QueryRound,
        at_s: float,
        engines: Sequence[Engine],
        identities: Sequence[Identity],
        join: PodJoin,
        limits_s: FloatColumn,
    ) -> None:
        """Add a line for each limit to the problems of a round while there are jobs that break it.

        limits_s: float64[P], how far apart the scrapes of each pod may be by its policy; NaN: it does not say.
        """
        by_window_s = self._window_s / SCRAPES_PER_WINDOW
        if query_round.started_s - self._queried_s >= PERIOD_S:
            self._queried_s = query_round.started_s
            limits_s = np.fmin(limits_s, by_window_s)
            self._jobs = {apart_s: set() for apart_s in np.unique(limits_s)[:MAX_LIMITS].tolist()}
            for apart_s, engine, identity in product(self._jobs, engines, identities):
                answer = await query_round.query("scrapes", sparse_query(engine, identity, apart_s), at_s)
                if answer is not None:
                    rows = join.rows(answer.vector.labels)
                    broken = (rows >= 0) & (limits_s[rows] == apart_s)
                    labels = compress(answer.vector.labels, broken)
                    self._jobs[apart_s].update(parse_labels(raw).get("job", "") for raw in labels)
        for apart_s, found in self._jobs.items():
            if not found:
                continue
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            lost = "half of the policy's inputs.maxAge, so readings grow too old"
            if apart_s == by_window_s:
                lost = "a quarter of --rate-window, so rates and latencies have gaps"
            query_round.note(
                "scrapes",
                f"scrape job {clean(min(found)) or 'without a name'}{more}: scrapes of engines are more than "
                f"{apart_s:g} s apart, {lost}",
            )
