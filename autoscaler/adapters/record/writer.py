"""Writes ticks to the folder of a record. Runs in a thread of its own; `recorder.py` hands it the ticks."""

from __future__ import annotations

import platform
import sqlite3
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import structlog

from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.file import FORMAT, RecordFile
from autoscaler.adapters.record.rows import PolicyLoad, TableRows
from autoscaler.adapters.record.stream import Encoder, Value
from autoscaler.adapters.record.tick_values import Decided, of_input, of_memory
from autoscaler.core.state import Memory
from autoscaler.ports import TickRecord

log = structlog.get_logger(__name__)

MEMORY_S = 6 * 3600.0
"""Seconds of ticks after which the whole memory is written again: at most so much is computed to reach a tick."""

MOST_TICKS = 1_000_000
"""More ticks than a file has."""

PARTS = 8
"""A file, and ticks that are computed from one memory, take at most this part of the allowed size before others begin,
so that the oldest can be removed."""

MAX_PENDING = 240
"""Ticks that are written together at most, where they come faster than they would by the clock of people."""

MAX_PENDING_BYTES = 16 << 20
"""Ticks are written at once when they take more memory than this."""


@dataclass
class _Pending:
    """Ticks that are not written yet."""

    number: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    decided: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    memory: bytes | None = None  # before the first of them, where streams begin; b"": not kept
    nbytes: int = 0

    def add(self, values: list[Value], value: Value) -> None:
        values.append(value)
        self.nbytes += sum(array.nbytes for array in value.arrays) + len(value.frame)


class FolderWriter:
    """Collects ticks, and writes them a minute at a time."""

    def __init__(self, folder: Path, max_bytes: int, max_days: int) -> None:
        self._folder, self._max_bytes, self._max_days = folder, max_bytes, max_days
        self._file: RecordFile | None = None
        self._next = 0  # number of the next tick
        self._pending = _Pending()
        self._memory: Memory | None = None  # that the last tick left
        self._tick_s = 0.0  # time of the tick at which streams began
        self._streams = Encoder(), Encoder()
        self._begins = True  # with the next tick
        self._written = 0  # bytes since streams began
        self._keeps_inputs = True
        self._repeats = True  # what holds is written again, because it is not in the file
        self._rows = TableRows()
        self.policies: dict[str, str] = {}  # that the last process had in force, as text by name

    @property
    def pending(self) -> int:
        """Ticks that are not written yet."""
        return len(self._pending.number)

    @property
    def is_full(self) -> bool:
        """Whether what is pending should be written without waiting for more."""
        return self.pending >= MAX_PENDING or self._pending.nbytes > MAX_PENDING_BYTES

    def begin(self) -> None:
        """Go on where the last process ended. A damaged file is left alone; its name counts."""
        for path in reversed(folders.files(self._folder)):
            self._next = max(self._next, folders.first_of(path))
            try:
                file = RecordFile.open(path, write=True)
                last = bounds[1] if (bounds := file.bounds()) else 0
                self._rows.go_on(file)
                self.policies = dict(file.rows("SELECT name, text FROM policies ORDER BY tick"))
            except (sqlite3.Error, OSError, ValueError):
                self._next += MOST_TICKS
                continue
            self._next = max(self._next, last)
            if file.about() == _about():
                self._file = file
            else:
                file.close()
            break
        self._next += 1

    def take(self, tick: TickRecord) -> None:
        """Add a tick to those that are to be written. Raises sqlite3.Error or OSError; the tick is then lost."""
        assert tick.memories is not None
        before, after = tick.memories
        number, at_s = self._next, tick.wall_s
        self._next += 1
        if before is not self._memory or not 0 <= at_s - self._tick_s <= MEMORY_S:
            self._begins = True
        self._memory = None  # until all is done
        self._turn_file(number, at_s)
        if self._begins:
            self.flush()
            self._begin_streams(before, at_s)
        if self._repeats:
            assert self._file is not None
            self._rows.go_on(self._file)
            self._rows.repeat_policies(number, at_s)
            self._repeats = False
        numbers = self._rows.number_workloads(tick.input.fleet.workloads)
        decided, inputs = Decided.of(tick.input, tick.decision, numbers, at_s), of_input(tick.input)
        pending = self._pending
        pending.number.append(number)
        pending.at_s.append(at_s)
        pending.add(pending.decided, decided.as_value())
        if self._keeps_inputs:
            pending.add(pending.inputs, inputs)
        self._rows.note(tick, number, decided)
        self._memory = after

    def _begin_streams(self, memory: Memory, at_s: float) -> None:
        """Begin new streams with the whole memory, unless that alone takes too much of the allowed size."""
        self._streams, self._tick_s, self._begins, self._written = (Encoder(), Encoder()), at_s, False, 0
        try:
            block = Encoder().encode([of_memory(memory)])
        except OverflowError:
            block = b""
        keeps = 0 < len(block) <= self._max_bytes / (2 * PARTS)
        if self._keeps_inputs and not keeps:
            log.warning(
                "inputs are not recorded, so ticks cannot be computed again: the memory is too large for --record-mb",
                workloads=len(memory.workload_id),
                memory_mb=round(len(block) / 1e6, 1) or None,
            )
        self._keeps_inputs = keeps
        self._pending.memory = block if keeps else b""

    def note_policies(self, load: PolicyLoad, at_s: float) -> None:
        """Add policies that came into force before the next tick."""
        self._rows.note_policies(load, self._next, at_s)

    def flush(self) -> None:
        """Write what is pending. Raises sqlite3.Error or OSError; what was pending is then lost."""
        pending = self._pending
        if self._file is None or not (pending.number or self._rows.pending):
            return
        self._pending = _Pending()
        self._rows.add_begun()
        try:
            with self._file.writing():
                if pending.number:
                    self._write_block(pending)
                for table, rows in self._rows.take_pending().items():
                    self._file.add(table, rows)
        except BaseException:
            self.forget()
            raise
        self._rows.confirm()
        if self._written > self._max_bytes / PARTS:
            self._begins = True
        self._make_room()

    def _write_block(self, pending: _Pending) -> None:
        assert self._file is not None
        decided, inputs = self._streams
        first, last, number = pending.at_s[0], pending.at_s[-1], pending.number[0]
        inputs_block = inputs.encode(pending.inputs) if self._keeps_inputs else None
        self._file.add("blocks", [(number, decided.encode(pending.decided), inputs_block, pending.memory)])
        self._file.add("ticks", [(round(first, 3), number, pending.number[-1], round(last, 3))])
        self._written += len(inputs_block or b"") + len(pending.memory or b"")

    def forget(self) -> None:
        """Let the next tick stand on its own: something before it is lost."""
        self._pending, self._begins, self._repeats = _Pending(), True, True
        self._rows.forget()

    def close(self) -> None:
        """Write all that is pending, and close the file. Raises as `flush`."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _turn_file(self, number: int, at_s: float) -> None:
        """Begin a new file with each day, or when one is large. A clock that is set back stays in the present file."""
        if self._file is not None:
            is_same_day = folders.day_of(at_s) <= folders.day_of_name(self._file.path)
            is_large = self._begins and self._file.path.stat().st_size > self._max_bytes / PARTS
            if is_same_day and not is_large:
                return
            self.close()
        self._remove_old(folders.day_of(at_s))
        self._file = RecordFile.create(self._folder / folders.name_of(number, at_s), _about())
        self.forget()

    def _remove_old(self, day: str) -> None:
        """Remove what is too old once this day begins, so that it makes room on a full disk."""
        paths = folders.files(self._folder)
        days = sorted({day, *map(folders.day_of_name, paths)})
        for path in paths:
            if folders.day_of_name(path) in days[: -self._max_days - 1]:
                folders.remove(path)

    def _make_room(self) -> None:
        """Remove what is too old, and then as much of the oldest as the size asks."""
        assert self._file is not None
        self._remove_old(folders.day_of_name(self._file.path))
        for drop in (self._drop_inputs, self._drop_file):
            for path in folders.files(self._folder):
                while folders.total_bytes(self._folder) > self._max_bytes:
                    if not drop(path):
                        break

    def _drop_inputs(self, path: Path) -> bool:
        assert self._file is not None
        begun = self._file.rows("SELECT max(first) FROM blocks WHERE length(memory) > 0")[0][0]
        if path == self._file.path:
            return self._file.drop_oldest_inputs(begun or 0)
        try:
            file = RecordFile.open(path, write=True)
        except (sqlite3.Error, OSError, ValueError):
            return False  # a damaged file is removed when it is the oldest
        try:
            return file.drop_oldest_inputs(2**62)
        except sqlite3.Error:
            return False
        finally:
            file.close()

    def _drop_file(self, path: Path) -> bool:
        assert self._file is not None
        return path != self._file.path and folders.remove(path)


def _about() -> dict[str, str]:
    return {
        "format": str(FORMAT),
        "program": "vllm-autoscaler",
        "version": version("vllm-autoscaler"),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }
