"""Converts between the clock of the server and the clock of the tick, which may disagree.

Prometheus stamps samples with its own wall clock. A response shows the time of that clock between request and response,
so the offset is known up to the duration of the request. The offset is kept as long as it is within these bounds.
Otherwise one sample could get different times in two ticks, and its counters would seem to have stopped between them.
"""

from __future__ import annotations

import math
from typing import TypeVar

from autoscaler.adapters.prometheus.instant.client import VectorAnswer
from autoscaler.core.table.columns import FloatColumn

Seconds = TypeVar("Seconds", float, FloatColumn)

SLACK_S = 0.25  # drift and rounding beyond the bounds that does not move the offset


class ServerClock:
    """Offset between the Unix time of the server and the clock of the tick. Unknown until the first answer."""

    def __init__(self) -> None:
        self._offset_s = math.nan

    @property
    def known(self) -> bool:
        return not math.isnan(self._offset_s)

    def update(self, answer: VectorAnswer) -> None:
        """Update the offset from an answer evaluated at the server's now. An answer without series has no time."""
        server_s = answer.vector.time_s
        if not math.isfinite(server_s):
            return
        rounding_s = 1.0 if server_s == int(server_s) else 0.001  # VictoriaMetrics truncates its now to seconds
        low_s, high_s = answer.sent_s - server_s - rounding_s, answer.received_s - server_s
        if not self.known:
            self._offset_s = (low_s + high_s) / 2
        elif not low_s - SLACK_S <= self._offset_s <= high_s + SLACK_S:
            self._offset_s = min(max(self._offset_s, low_s), high_s)

    def server_s(self, now_s: float) -> float:
        """Convert a time of the tick to the Unix time of the server; NaN while unknown."""
        return now_s - self._offset_s

    def tick_s(self, unix_s: Seconds) -> Seconds:
        """Convert Unix times of the server to times of the tick; NaN while unknown."""
        return unix_s + self._offset_s
