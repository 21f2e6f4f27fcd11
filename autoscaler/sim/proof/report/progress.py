"""A progress bar for whatever takes longer than a moment."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

AFTER_S = 2.0


class Bar:
    """`with Bar("simulating", console) as told: told(0.5)`. Shows itself after `AFTER_S`, on a terminal only."""

    def __init__(self, title: str, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._progress.add_task(title, total=1.0)
        self._terminal = console.is_terminal
        self._shown = False
        self._begun_s = 0.0

    def __enter__(self) -> Self:
        self._begun_s = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._progress.stop()

    def __call__(self, share: float) -> None:
        """Tell how much is done, 0..1."""
        if self._terminal and not self._shown and time.monotonic() - self._begun_s >= AFTER_S:
            self._shown = True
            self._progress.start()
        self._progress.update(self._task, completed=share)
