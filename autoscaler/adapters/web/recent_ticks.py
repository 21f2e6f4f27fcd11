"""Recent ticks of every workload in columns, for the charts of the page. Bounded in bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.core.model.types import Stage
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.ports import TickRecord

SERIES = ("demand", "busy", "wanted", "current", "ready", "running", "waiting", "ttft_s")
MAX_TICKS = 720  # one hour of a tick every five seconds
MAX_BYTES = 64 << 20
SPARE = 16  # columns for future workloads, plus a quarter of the present number
BYTES_PER_TICK = len(SERIES) * 4  # of one workload: float32


class History:
    """A ring buffer of ticks, float32[T, S, C]. Each workload has one of the C columns.

    T is MAX_TICKS, or as many as fit into MAX_BYTES: 720 ticks up to 2,300 workloads, 167 for 10,000, at least one. A
    new workload has NaN before its first tick; the history of a deleted workload is dropped.
    """

    def __init__(self) -> None:
        self._ids: IntColumn = np.empty(0, dtype=np.int64)  # of the last fleet recorded, ascending
        self._columns: IntColumn = np.empty(0, dtype=np.int64)  # column of each of its rows
        self._ring: npt.NDArray[np.float32] = np.empty((1, len(SERIES), 0), dtype=np.float32)
        self._number: IntColumn = np.empty(1, dtype=np.int64)  # of the tick in each slot
        self._wall_s: FloatColumn = np.empty(1)
        self._next = 0  # slot of the next tick
        self._filled = 0

    @property
    def nbytes(self) -> int:
        return self._ring.nbytes

    @property
    def ticks(self) -> int:
        """Number of slots in the ring."""
        return len(self._wall_s)

    def record(self, tick: TickRecord) -> None:
        """Add one tick."""
        ids = tick.input.fleet.workload_id
        if not np.array_equal(ids, self._ids):
            self._assign_columns(ids)
        decision, seen = tick.decision, tick.decision.observation
        slot = self._ring[self._next]
        slot[:5, self._columns] = (
            decision.stages[Stage.DEMAND],
            decision.plan.demand,
            decision.replicas,
            tick.input.fleet.replicas,
            seen.ready,
        )
        slot[5:, self._columns] = seen.running, seen.waiting, seen.ttft_s
        self._number[self._next] = tick.number
        self._wall_s[self._next] = tick.wall_s
        self._next = (self._next + 1) % self.ticks
        self._filled = min(self._filled + 1, self.ticks)

    def of(self, row: int, since: int = -1) -> dict[str, list[float]]:
        """Return the series of one row of the last fleet by name, oldest first, with `tick` and `wall_s`; only ticks
        after the one numbered `since`. (Wall time may step back; numbers do not.)
        """
        slots = self._slots()
        slots = slots[self._number[slots] > since]
        values = self._ring[slots, :, self._columns[row]].T.astype(np.float64).round(4)
        times = {"tick": self._number[slots].tolist(), "wall_s": self._wall_s[slots].tolist()}
        return times | dict(zip(SERIES, values.tolist(), strict=True))

    def _slots(self) -> IntColumn:
        """Return the filled slots, oldest first."""
        return (self._next - self._filled + np.arange(self._filled)) % self.ticks

    def _assign_columns(self, ids: IntColumn) -> None:
        """Assign columns to the workloads of a new fleet. Columns change only here."""
        stays = np.isin(ids, self._ids)
        kept = self._columns[np.searchsorted(self._ids, ids[stays])]
        room = self._ring.shape[2]
        if len(ids) > room or room > 4 * (len(ids) + SPARE):
            kept = self._move(kept, len(ids) + len(ids) // 4 + SPARE)
            room = self._ring.shape[2]
        joined = np.setdiff1d(np.arange(room), kept)[: len(ids) - len(kept)]
        for slot in self._slots().tolist():
            self._ring[slot][:, joined] = np.nan
        self._columns = np.empty(len(ids), dtype=np.int64)
        self._columns[stays], self._columns[~stays] = kept, joined
        self._ids = ids

    def _move(self, columns: IntColumn, room: int) -> IntColumn:
        """Copy these columns into a ring with `room` columns; return their new places.

        Copying the whole past takes tens of milliseconds, so a ring has spare columns and this is rare.
        """
        ticks = int(np.clip(MAX_BYTES // (room * BYTES_PER_TICK), 1, MAX_TICKS))
        slots = self._slots()[-ticks:]
        ring = np.empty((ticks, len(SERIES), room), dtype=np.float32)  # memory is taken slot by slot, as it fills
        for slot, old_slot in enumerate(slots.tolist()):
            ring[slot][:, : len(columns)] = self._ring[old_slot][:, columns]
        number, wall_s = np.empty(ticks, dtype=np.int64), np.empty(ticks)
        number[: len(slots)], wall_s[: len(slots)] = self._number[slots], self._wall_s[slots]
        self._ring, self._number, self._wall_s = ring, number, wall_s
        self._next, self._filled = len(slots) % ticks, len(slots)
        return np.arange(len(columns))
