"""Names in the backend that look like an engine's and are read nowhere: asked now and then, told until asked again.

This is the one query with an expression on names. Managed backends refuse it, which is no failure and not told.
"""

from __future__ import annotations

import math

from autoscaler.adapters.prometheus.decode import parse_labels
from autoscaler.adapters.prometheus.sampling import Sampling
from autoscaler.config.spellings import LOOKS_LIKE, Spelling, near_miss

PERIOD_S = 300.0
MOST_TOLD = 3
QUERY = f'group by (__name__) ({{__name__=~".+({LOOKS_LIKE})"}})'


class NearMisses:
    """Says in problems which names were found, and what to do that they are read."""

    def __init__(self, spellings: tuple[Spelling, ...]) -> None:
        """spellings: in which names are read."""
        self._spellings = spellings
        self._asked_s = -math.inf
        self._lines: tuple[str, ...] = ()

    async def tell(self, sampling: Sampling) -> None:
        """Add what was found to the problems of a round."""
        if sampling.started_s - self._asked_s >= PERIOD_S:
            self._asked_s = sampling.started_s
            vector = await sampling.try_ask(QUERY)
            names = sorted(parse_labels(raw).get("__name__", "") for raw in vector.labels) if vector else []
            self._lines = tuple(filter(None, (near_miss(name, self._spellings) for name in names)))[:MOST_TOLD]
        for line in self._lines:
            sampling.note("names", line)
