"""The process: its limits, its signals, its end."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Awaitable

from autoscaler.adapters.standard_output import leave_standard_output
from autoscaler.config.findings import PolicyError
from autoscaler.ports import CannotServe, Unavailable, Unwritable


class StartError(Exception):
    """The command cannot start: invalid policies, a port in use, an unreachable cluster."""


EXPECTED = (CannotServe, PolicyError, Unavailable)
"""Errors of the world outside, also if a task of a group raises them. Others have a traceback."""


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: direct scrape keeps a connection to every pod."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def until_signalled(work: Awaitable[int | None], *, endless: bool) -> int:
    """Run until the work ends or SIGINT or SIGTERM arrives. Returns the exit code.

    endless: the work normally ends by a signal, so a signal means 0. Otherwise a signal means 128 plus its number.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task or 0
    except asyncio.CancelledError:
        return 128 + received[0] if received and not endless else 0
    except (*EXPECTED, ValueError) as error:
        raise StartError(str(error)) from error
    except BrokenPipeError:
        leave_standard_output()  # the reader closed the pipe, as `head` does
        return 0
    except BaseExceptionGroup as errors:
        if errors.split(EXPECTED)[1] is None:
            raise StartError(str(_first(errors))) from errors
        if errors.split((BrokenPipeError, Unwritable))[1] is not None:
            raise
        leave_standard_output()
        if full := errors.subgroup(Unwritable):
            raise StartError(str(_first(full))) from errors
        return 0


def _first(error: BaseException) -> BaseException:
    """Return the first error in a nested group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
