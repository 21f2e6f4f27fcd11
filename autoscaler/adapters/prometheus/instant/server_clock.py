"""The server's clock beside the tick's: from one to the other without trusting that the two machines agree.

Prometheus stamps samples with its own wall clock. An answer tells what that clock said while we waited for it, which
bounds the offset between the clocks by the time the request took. The offset is held as long as the bounds allow it:
the same sample, seen by two ticks, must have the same time, or counters would seem to stand still between the two.
"""

from __future__ import annotations

import math
from typing import TypeVar

from autoscaler.adapters.prometheus.instant.client import Answer
from autoscaler.core.table.columns import FloatColumn

Seconds = TypeVar("Seconds", float, FloatColumn)

SLACK_S = 0.25  # bounds may be missed by so much before the offset moves: drift and rounding are no clock step


class ServerClock:
    """Offset between the server's Unix time and the clock of the tick. Unknown until the first answer."""

    def __init__(self) -> None:
        self._offset_s = math.nan

    @property
    def known(self) -> bool:
        return not math.isnan(self._offset_s)

    def hear(self, answer: Answer) -> None:
        """Learn from an answer that was evaluated at the server's own now. One without a series says no time."""
        server_s = answer.vector.time_s
        if not math.isfinite(server_s):
            return
        rounding_s = 1.0 if server_s == int(server_s) else 0.001  # VictoriaMetrics cuts its now to whole seconds
        low_s, high_s = answer.sent_s - server_s - rounding_s, answer.received_s - server_s
        if not self.known:
            self._offset_s = (low_s + high_s) / 2
        elif not low_s - SLACK_S <= self._offset_s <= high_s + SLACK_S:
            self._offset_s = min(max(self._offset_s, low_s), high_s)

    def server_s(self, now_s: float) -> float:
        """Return the server's Unix time at a time of the tick; NaN while unknown."""
        return now_s - self._offset_s

    def tick_s(self, unix_s: Seconds) -> Seconds:
        """Return times of the tick for Unix times of the server; NaN while unknown."""
        return unix_s + self._offset_s
