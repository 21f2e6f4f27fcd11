"""A progress bar on the terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from autoscaler.lab.report.format import printable


class ProgressBar:
    """A Progress callback: `with ProgressBar("simulating", console) as progress: progress(0.5)`. Visible on terminals
    only.
    """

    def __init__(self, title: str, console: Console) -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._progress.add_task(printable(title), total=1.0)
        self._observed = console.is_terminal

    def __enter__(self) -> Self:
        if self._observed:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observed:
            self._progress.stop()

    def __call__(self, share: float) -> None:
        """Show the completed fraction, 0..1."""
        self._progress.update(self._task, completed=share)
