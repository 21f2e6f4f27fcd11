"""Standard output that ends early: a reader that closes the pipe, or a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper

from autoscaler.ports import Unwritable


@contextmanager
def printing() -> Iterator[None]:
    """Context for printing. Characters outside the encoding become `?`. Raises Unwritable if the disk is full.

    A reader that closes the pipe, as `head` does, ends printing without an error.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with raising_unwritable():
            yield
            print(end="", flush=True)
    except BrokenPipeError:
        leave_standard_output()
    except Unwritable:
        leave_standard_output()
        raise


def leave_standard_output() -> None:
    """Redirect standard output to /dev/null, so that Python does not flush to the closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def raising_unwritable() -> Iterator[None]:
    """Context for writes. Raises Unwritable if a write fails, BrokenPipeError if the reader has closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unwritable(f"standard output cannot be written: {error.strerror}") from error
