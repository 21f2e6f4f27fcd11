"""A busy machine, as a plugin of pytest: event loops turn late, and workers stop for a moment, at random.

A test that fails only then takes for granted who comes first. `make test-busy` loads it.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

LATE = ((0.0007, 0.6), (0.007, 0.15), (0.14, 0.008))
"""Shares of an event loop's turns, and by how many seconds they are late at most."""
STOPS_S = (0.1, 0.2, 0.4, 1.2)
EVERY_S = 0.6  # pause between two stops


def late_s(draw: float, more: float = 1.0) -> float:
    """Return how late a turn is, in seconds. draw: which of the shares, from 0 to 1. more: how much of its most."""
    for share, most_s in LATE:
        if draw < share:
            return most_s * more
        draw -= share
    return 0.0


def children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            above = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            found += [int(folder.name)] if int(above) == parent else []
    return found


def stop_one(processes: list[int], seconds: float) -> None:
    """Stop one of these processes for a moment."""
    with suppress(ProcessLookupError, IndexError):
        process = random.choice(processes)
        os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process, signal.SIGCONT)


def _stop_workers(ended: threading.Event) -> None:
    while not ended.wait(random.uniform(0.5, 1.5) * EVERY_S):
        stop_one(children(os.getpid()), random.choice(STOPS_S))


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ and config.getoption("dist", "no") != "no":
        ended = threading.Event()
        config.add_cleanup(ended.set)
        threading.Thread(target=_stop_workers, args=[ended]).start()  # no daemon: it lets whom it stopped go on
    select = selectors.EpollSelector.select

    def late(self: selectors.EpollSelector, timeout: float | None = None) -> object:
        ready = select(self, timeout)
        time.sleep(late_s(random.random(), random.random()))
        return ready

    patch = pytest.MonkeyPatch()
    patch.setattr(selectors.EpollSelector, "select", late)
    config.add_cleanup(patch.undo)
