"""The end of a command: its exit code, and one line for expected trouble."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click


def run_to_end(work: Coroutine[Any, Any, int | None], *, endless: bool) -> None:
    """Run to the end and exit. Ctrl-C and SIGTERM end it cleanly. endless: a signal is the normal end."""
    from autoscaler.app import process as app

    exit_with(lambda: asyncio.run(app.until_signalled(work, endless=endless)))


def exit_with(work: Callable[[], int]) -> None:
    """Run `work` and exit with its code. An expected error prints one line and exits with 2."""
    from autoscaler.app import process as app

    try:
        code = work()
    except app.StartError as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)
