"""Policies that follow their files: whole or not at all, without restart.

The files are usually a mounted ConfigMap, which kubelet replaces by swapping the `..data` link. Nothing is watched:
a poll asks the file system for a few sizes and times, so it also works where inotify does not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Protocol

from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.parse import DEFAULT_POLICY, MAX_FILES, PolicyBook, is_policy_file, load, shipped

POLL_S = 1.0

_Signature = tuple[tuple[object, ...], ...]


class Reload(Enum):
    """What a poll found. Only a change is worth a line in the log."""

    UNCHANGED = "unchanged"
    LOADED = "loaded"  # another book is in force; a problem there was is over
    BROKEN = "broken"  # the files changed and cannot be used; the book in force stays


class Monotonic(Protocol):
    """The part of the clock that is needed here."""

    def now_s(self) -> float: ...


class PolicyFiles:
    """Keeps the last good policies of some files. Reading them the first time may fail, later it may not."""

    def __init__(self, paths: Sequence[Path], clock: Monotonic, default: str = DEFAULT_POLICY) -> None:
        """Load. Raises PolicyError: bad policies stop start-up."""
        self._paths = tuple(paths) or (shipped(),)
        self._clock = clock
        self._default = default
        self._signature = signature(self._paths)
        self._polled_s = clock.now_s()
        self._book = load(self._paths, default)
        self._problem = ""

    @property
    def book(self) -> PolicyBook:
        """The policies in force."""
        return self._book

    @property
    def problem(self) -> str:
        """Why the files as they stand are not in force, one line for each finding; "": they are."""
        return self._problem

    def poll(self) -> Reload:
        """Load again if the files changed. Does nothing within `POLL_S` seconds of the last time. Never raises."""
        now_s = self._clock.now_s()
        if now_s - self._polled_s < POLL_S:
            return Reload.UNCHANGED
        self._polled_s = now_s
        before = signature(self._paths)
        if before == self._signature:
            return Reload.UNCHANGED
        try:
            book, problem = load(self._paths, self._default), ""
        except PolicyError as error:
            book, problem = self._book, str(error)
        if signature(self._paths) != before:
            return Reload.UNCHANGED  # swapped while it was read, so maybe half old and half new; the next poll reads it
        self._signature = before
        if not problem and not self._problem and book == self._book:
            return Reload.UNCHANGED  # something else in the folder changed, or a file was written anew as it was
        self._book, self._problem = book, problem
        return Reload.BROKEN if problem else Reload.LOADED


def signature(paths: Sequence[Path]) -> _Signature:
    """Say which files there are and which state they are in. Equal signatures mean equal content. Never raises."""
    return tuple(entry for path in paths for entry in _entries(path))


def _entries(path: Path) -> list[tuple[object, ...]]:
    found = [_state(path)]
    try:
        if not path.is_dir():
            return found
        with os.scandir(path) as entries:
            names = (entry.name for entry in entries if is_policy_file(Path(entry.name)))
            inside = sorted(islice(names, MAX_FILES + 1))  # `load` refuses a folder that holds more
    except OSError as error:
        return [*found, (str(path), error.errno)]
    return [*found, *(_state(path / name) for name in inside)]


def _state(path: Path) -> tuple[object, ...]:
    """Follow links: swapping `..data` changes the inode behind each file, though none of the links in the folder."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:
        return str(path), getattr(error, "errno", None)
    return str(path), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
