"""The end of a command: its exit code, and one line for expected trouble."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click


def run_to_end(work: Coroutine[Any, Any, int | None], *, endless: bool) -> None:
    """Run to the end. Ctrl-C and SIGTERM end it cleanly; endless: they are how it is meant to end."""
    from autoscaler.app import process as app

    exit_with(lambda: asyncio.run(app.until_signalled(work, endless=endless)))


def exit_with(work: Callable[[], int]) -> None:
    """Do the work and exit with its code; expected trouble is one line and code 2."""
    from autoscaler.app import process as app

    try:
        code = work()
    except app.StartError as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)
