"""Publishes the report of an agent on its node, and in the folder, whenever it says something new."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import structlog

from autoscaler.config.weights.report import Report, encode, labels
from autoscaler.ports import Clock, Unavailable
from autoscaler.weights.node import AgentNode
from autoscaler.weights.problems import WeightsError
from autoscaler.weights.threads import to_end

log = structlog.get_logger(__name__)

MOST_DOUBLINGS = 6  # of the pause after failures


class ReportPublisher:
    """Await `publish()` before something that the last report promised goes."""

    def __init__(
        self, node: AgentNode, clock: Clock, report: Callable[[], Report | None], pause_s: float, republish_s: float
    ) -> None:
        """report: what is true now; None: nothing is to be said. pause_s: between two comparisons with it.

        republish_s: after this long the same report is published again, as another client may have changed the node.
        """
        self._node = node
        self._clock = clock
        self._report = report
        self._pause_s = pause_s
        self._republish_s = republish_s
        self._published: Report | None = None
        self._published_s = 0.0

    async def publish(self) -> None:
        """Publish what is true now. Raises Unavailable."""
        report = self._report()
        if report is not None:
            await self._node.publish(report)
            self._published, self._published_s = report, self._clock.now_s()

    async def keep_published(self) -> None:
        """Run until cancelled."""
        failures = 0
        while True:
            report, now_s = self._report(), self._clock.now_s()
            is_old = now_s - self._published_s >= self._republish_s
            if report is not None and (is_old or _changes(report, self._published)):
                try:
                    await self.publish()
                    failures = 0
                except Unavailable as error:
                    if not failures:
                        log.warning("report cannot be published", error=str(error))
                    failures = min(failures + 1, MOST_DOUBLINGS)
            await self._clock.sleep(self._pause_s * 2.0**failures)

    async def keep_written(self, write: Callable[[str], None], works: Callable[[], bool]) -> None:
        """Keep the last published report in the folder, for other commands. The node never waits for this disk.

        works: tells whether the folder does.
        """
        written: Report | None = None
        while True:
            report = self._published
            if report is not written and report is not None and works():
                with suppress(WeightsError, OSError):
                    await to_end(write, encode(report))
                written = report
            await self._clock.sleep(self._pause_s)


def _changes(report: Report, published: Report | None) -> bool:
    """Tell whether a report says more than other free bytes."""
    if published is None:
        return True
    same = report._replace(free_bytes=0, budget_bytes=0) == published._replace(free_bytes=0, budget_bytes=0)
    return not same or labels(report) != labels(published)
