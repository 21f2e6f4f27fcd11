"""The recorder of `--record`: takes ticks from the loop, and has a thread write them."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import structlog

from autoscaler.adapters.record import folder as folders
from autoscaler.adapters.record.quarter_hours import HistoryWriter
from autoscaler.adapters.record.rows import PolicyLoad
from autoscaler.adapters.record.writer import FolderWriter
from autoscaler.outage import Outage
from autoscaler.ports import TickRecord

log = structlog.get_logger(__name__)

FLUSH_S = 60.0
"""A process that is killed loses at most the ticks of this time."""

MAX_QUEUED = 8
"""Ticks that wait for the thread. More are dropped: a slow disk delays no tick, and takes no memory."""

LAST_WRITE_S = 10.0
"""Time limit of the last write. A pod has 30 s to terminate and must also release its lease."""


class RecordWriter:
    """Records ticks in a folder while its context is open. Raises Unavailable on entering if it cannot be used."""

    def __init__(
        self,
        folder: Path,
        max_mb: int,
        max_days: int,
        flush_s: float = FLUSH_S,
        on_lost: Callable[[int], None] = lambda _ticks: None,
    ) -> None:
        """on_lost: called with the number of ticks that are lost, from any thread."""
        self._folder, self._flush_s, self._on_lost = folder, flush_s, on_lost
        self._writer = FolderWriter(folder, max_mb * 1_000_000, max_days)
        self._history = HistoryWriter(folder, max_mb * 1_000_000)
        self._queue: queue.Queue[TickRecord | tuple[PolicyLoad, float] | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="record", daemon=True)
        self._stack = ExitStack()
        self.written = 0  # times that something was written
        again = "ticks are recorded again"
        self._outage = Outage(log, "ticks are not recorded", again, "error", folder=str(folder))
        self._is_late = False

    async def __aenter__(self) -> Self:
        folders.prepare(self._folder)
        self._stack.enter_context(folders.locked(self._folder))
        self._writer.begin()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        """Have the last ticks written."""
        try:
            self._queue.put(None, timeout=LAST_WRITE_S)
            self._thread.join(LAST_WRITE_S)
        except queue.Full:
            log.error("the last ticks are not recorded: the disk is too slow", folder=str(self._folder))
        self._stack.close()

    @property
    def problem(self) -> str:
        """Why ticks are not recorded now; "": they are."""
        problem = self._outage.problem
        return problem and f"ticks are not recorded in {self._folder}: {problem}"

    @property
    def policies_before(self) -> dict[str, str]:
        """Policies that the last process had in force, as text by name; {}: there was none."""
        return {name: text for name, text in self._writer.policies.items() if text}

    def record(self, tick: TickRecord) -> None:
        """Take a tick. It never waits."""
        self._put(tick)

    def failed(self, wall_s: float, error: BaseException) -> None:
        """A failed tick decides nothing, so there is nothing to record."""

    def loaded(self, policies: PolicyLoad, wall_s: float) -> None:
        """Take policies that came into force."""
        self._put((policies, wall_s))

    def _put(self, item: TickRecord | tuple[PolicyLoad, float]) -> None:
        try:
            self._queue.put_nowait(item)
            self._is_late = False
        except queue.Full:
            self._on_lost(1)
            if not self._is_late:
                log.warning("ticks are not recorded: the disk is too slow", folder=str(self._folder))
            self._is_late = True

    def _run(self) -> None:
        """Write until the end. Runs in the thread."""
        due_s = time.monotonic() + self._flush_s
        while True:
            try:
                item = self._queue.get(timeout=max(due_s - time.monotonic(), 0.0))
            except queue.Empty:
                pass
            else:
                if item is None:
                    break
                self._attempt(lambda item=item: self._take(item))  # type: ignore[misc]
            if time.monotonic() >= due_s or self._writer.is_full:
                self._attempt(self._writer.flush)
                due_s = time.monotonic() + self._flush_s
        self._attempt(self._writer.close)
        self._attempt(self._history.close)

    def _take(self, item: TickRecord | tuple[PolicyLoad, float]) -> None:
        if isinstance(item, TickRecord):
            self._writer.take(item)
            self._history.take(item)
        else:
            self._writer.note_policies(*item)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do a part of the work. A failure loses what is pending, is told once, and ends nothing."""
        pending = self._writer.pending
        try:
            work()
        except Exception as error:  # whatever the disk or the database says, ticks go on
            self._writer.forget()
            self._on_lost(max(pending, 1))
            is_expected = isinstance(error, OSError | sqlite3.Error)
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._outage.fail(reason[:200], exc_info=None if is_expected else error)
        else:
            if pending and not self._writer.pending:
                self.written += 1
                self._outage.end()
