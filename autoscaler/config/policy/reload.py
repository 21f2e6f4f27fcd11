"""Reloads policies and quotas when their files change, completely or not at all, without restart.

The files are usually a mounted ConfigMap, which kubelet replaces by swapping the `..data` link. Files are polled for
size and times, so reloading also works without inotify.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from autoscaler.config.findings import PolicyError
from autoscaler.config.policy.parse import DEFAULT_POLICY, MAX_FILES, PolicyBook, is_policy_file, load, shipped

POLL_S = 1.0

_Signature = tuple[tuple[object, ...], ...]


class Reload(Enum):
    """The result of a poll. Only changes are logged."""

    UNCHANGED = "unchanged"
    LOADED = "loaded"  # new content applies, or a problem is resolved
    BROKEN = "broken"  # the changed files are invalid; the present content stays


class Monotonic(Protocol):
    """The part of the clock used here."""

    def now_s(self) -> float: ...


Content = TypeVar("Content")


class ReloadedFiles(Generic[Content]):
    """Keeps the last valid content of some files. Only the first load raises."""

    def __init__(self, paths: Sequence[Path], clock: Monotonic, load: Callable[[], Content]) -> None:
        """Load the content. `load` raises PolicyError, which stops the start."""
        self._paths = tuple(paths)
        self._clock = clock
        self._load = load
        self._signature = signature(self._paths)
        self._polled_s = clock.now_s()
        self._content = load()
        self._problem = ""

    @property
    def content(self) -> Content:
        """The content that applies."""
        return self._content

    @property
    def problem(self) -> str:
        """Why the present files do not apply, one line for each finding; "" if they do."""
        return self._problem

    def poll(self) -> Reload:
        """Load again if the files changed, at most once in `POLL_S` seconds. Never raises."""
        now_s = self._clock.now_s()
        if now_s - self._polled_s < POLL_S:
            return Reload.UNCHANGED
        self._polled_s = now_s
        before = signature(self._paths)
        if before == self._signature:
            return Reload.UNCHANGED
        try:
            content, problem = self._load(), ""
        except PolicyError as error:
            content, problem = self._content, str(error)
        if signature(self._paths) != before:
            return Reload.UNCHANGED  # swapped during the read, so perhaps mixed; the next poll reads it again
        self._signature = before
        if not problem and not self._problem and content == self._content:
            return Reload.UNCHANGED  # the content is the same
        self._content, self._problem = content, problem
        return Reload.BROKEN if problem else Reload.LOADED


class PolicyFiles(ReloadedFiles[PolicyBook]):
    """Keeps the last valid policies of some files."""

    def __init__(self, paths: Sequence[Path], clock: Monotonic, default: str = DEFAULT_POLICY) -> None:
        """Load the policies. Raises PolicyError, which stops the start."""
        paths = tuple(paths) or (shipped(),)
        super().__init__(paths, clock, lambda: load(paths, default))

    @property
    def book(self) -> PolicyBook:
        """The policies that apply."""
        return self.content


def signature(paths: Sequence[Path]) -> _Signature:
    """Return the files and their states. Equal signatures mean equal content. Never raises."""
    return tuple(entry for path in paths for entry in _entries(path))


def _entries(path: Path) -> list[tuple[object, ...]]:
    found = [_state(path)]
    try:
        if not path.is_dir():
            return found
        with os.scandir(path) as entries:
            names = (entry.name for entry in entries if is_policy_file(Path(entry.name)))
            inside = sorted(islice(names, MAX_FILES + 1))  # `load` refuses a folder with more
    except OSError as error:
        return [*found, (str(path), error.errno)]
    return [*found, *(_state(path / name) for name in inside)]


def _state(path: Path) -> tuple[object, ...]:
    """Return the state of a file behind links: swapping `..data` changes its inode, but no link in the folder."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:
        return str(path), getattr(error, "errno", None)
    return str(path), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
