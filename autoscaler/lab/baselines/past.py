"""The past of a workload as scaling rules see it."""

from __future__ import annotations

from typing import Protocol

from autoscaler.lab.replay.case import Totals


class ScrapedPast(Protocol):
    """The scrapes of all replicas until now. Every `View` is one."""

    @property
    def now_s(self) -> float: ...

    @property
    def desired(self) -> int: ...

    @property
    def ready(self) -> int: ...

    @property
    def totals(self) -> Totals: ...

    def totals_ago(self, seconds: float) -> Totals:
        """Return the latest totals that are at least `seconds` old, else the oldest."""
        ...

    def live_concurrency(self) -> float:
        """Return the requests in the engines and at the gateway now."""
        ...
