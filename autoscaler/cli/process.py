"""The end of a command: its exit code, and one line for expected trouble."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import click

AGAIN_S = 0.01


def run_to_end(work: Coroutine[Any, Any, int | None], *, endless: bool) -> None:
    """Run to the end and exit. Ctrl-C and SIGTERM end it cleanly. endless: a signal is the normal end."""
    from autoscaler.app import process as app

    exit_with(lambda: asyncio.run(app.until_signalled(work, endless=endless)))


def exit_with(work: Callable[[], int]) -> NoReturn:
    """Run `work` and exit with its code. An expected error prints one line and exits with 2."""
    from autoscaler.app import process as app

    try:
        code = work()
    except (app.StartError, *app.EXPECTED) as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


def run_interruptibly(work: Callable[[], int]) -> None:
    """Run `work` and exit. Ctrl-C and SIGTERM end it quietly, even during the imports, which take seconds."""
    received = 0  # signal number

    def end(number: int, _frame: object) -> None:
        nonlocal received
        received = received if number == signal.SIGALRM else number
        raise KeyboardInterrupt

    def end_later(dropped: sys.UnraisableHookArgs) -> None:
        """Raise it once more: Python drops what is raised in a destructor."""
        if received and dropped.exc_type is KeyboardInterrupt:
            signal.signal(signal.SIGALRM, end)
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        else:
            hook(dropped)

    main = threading.current_thread() is threading.main_thread()  # only the main thread may set signal handlers
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = [signal.signal(number, end) for number in numbers]
    hook, sys.unraisablehook = sys.unraisablehook, end_later
    try:
        code = _run_reporting_errors(work)
    except (KeyboardInterrupt, SystemError):  # compiled code turns the former into the latter
        if not received:
            raise
        code = 128 + received
    finally:
        sys.unraisablehook = hook
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    sys.exit(code)


def _run_reporting_errors(work: Callable[[], int]) -> int:
    """Return the exit code of `work`. An expected error prints one line and returns 2."""
    from autoscaler.config.findings import PolicyError
    from autoscaler.ports import Unavailable

    try:
        return work()
    except (PolicyError, Unavailable, ValueError, RuntimeError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return 2
