"""What the backend has that could be an engine's and is read nowhere: asked now and then, told until asked again.

Managed backends refuse an expression on names, as the query for them is one. They are not asked again, and `unasked`
says so to those who miss something.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from itertools import chain

from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.instant.client import QueryFailed
from autoscaler.adapters.prometheus.instant.query_round import Sampling
from autoscaler.adapters.prometheus.pod_labels import pod_name
from autoscaler.adapters.prometheus.promql.engines import engines_presence
from autoscaler.adapters.prometheus.promql.expressions import by
from autoscaler.catalog.engines import ENGINES
from autoscaler.catalog.series import POD_LABELS
from autoscaler.catalog.spellings import LOOKS_LIKE, OPTION, Spelling, near_miss, spelled

PERIOD_S = 300.0
MOST_TOLD = 3
NAMES = f'group by (__name__) ({{__name__=~".+({LOOKS_LIKE})"}})'
REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
UNASKED = f"; the server refuses to look for names with an unknown prefix, which {OPTION} states"
STATISTICS = "are its statistics off (--disable-log-stats), or not on (--enable-metrics)?"
_WEB = 'http_requests_total{handler=~"/v1/completions|/v1/chat/completions"}'  # of vLLM's web server, always there


def mute_query(spellings: tuple[Spelling, ...]) -> str:
    """Return the query for pods that serve completions while no engine reports from them."""
    pod = (*chain.from_iterable(POD_LABELS), "instance")
    engines = engines_presence(spelled(engine, spellings) for engine in ENGINES.values())
    return f"group {by(*pod)} ({_WEB}) unless on ({', '.join(pod)}) ({engines})"


class NearMisses:
    """Says in problems what was found, and what may help that it is read."""

    def __init__(self, spellings: tuple[Spelling, ...], *, pods: bool = False) -> None:
        """spellings: in which names are read. pods: look for pods without an engine, too."""
        self._spellings = spellings
        self._pods = pods
        self.unasked = ""  # words to stand behind what is missing: names were not looked for; "": they were
        self._asked_s = -math.inf
        self._lines: tuple[str, ...] = ()

    async def tell(self, sampling: Sampling) -> None:
        """Add what was found to the problems of a round."""
        if sampling.started_s - self._asked_s >= PERIOD_S:
            self._asked_s = sampling.started_s
            self._lines = (*await self._names(sampling), *(await self._mute(sampling) if self._pods else ()))
        for line in self._lines:
            sampling.note("names", line)

    async def _names(self, sampling: Sampling) -> tuple[str, ...]:
        if self.unasked:
            return ()
        try:
            found = await sampling.try_ask(NAMES)
        except QueryFailed as error:
            self.unasked = UNASKED if error.status in REFUSALS else ""
            return ()
        names = sorted(parse_labels(raw).get("__name__", "") for raw in found.labels)
        return tuple(filter(None, (near_miss(name, self._spellings) for name in names)))[:MOST_TOLD]

    async def _mute(self, sampling: Sampling) -> tuple[str, ...]:
        try:
            return _tell_mute(await sampling.try_ask(mute_query(self._spellings)))
        except QueryFailed:
            return ()


def _tell_mute(vector: Vector) -> tuple[str, ...]:
    names = sorted({"/".join(pod_name(parse_labels(raw))) for raw in vector.labels})
    lines = tuple(
        f"{clean(name)} serves completions and reports no metric of an engine: {STATISTICS}" for name in names
    )
    more = len(lines) - MOST_TOLD
    return (*lines[:MOST_TOLD], f"and {more} more serve completions without an engine's metrics") if more > 0 else lines
