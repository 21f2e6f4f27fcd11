"""Compile caches of engines beside the weights: folders that engines write, and that the agent counts and removes.

A cache is `compile/NAMESPACE/NAME` below the root. Tenants write its content, which is never read here.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from autoscaler.config.findings import shown
from autoscaler.config.weights.compile_cache import CACHES, is_cache
from autoscaler.weights.budget import HeldItem
from autoscaler.weights.disk import remove_tree, within
from autoscaler.weights.problems import WeightsError, disk_error

MAX_CACHES = 1000
MAX_FILES = 50_000  # of one cache that are counted
MAX_DEPTH = 32
BLOCK_BYTES = 512


class CompileCaches:
    """The compile caches below one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def held(self) -> list[HeldItem]:
        """Return the caches with their sizes. Raises WeightsError."""
        try:
            found = []
            for name in self._names():
                folder = self._root / name
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    found.append(HeldItem(name, {name: _bytes(folder)}, folder.lstat().st_mtime))
            return found
        except OSError as error:
            raise disk_error(error, f"cannot read {shown(str(self._root / CACHES))}") from error

    def use(self, names: Collection[str]) -> None:
        """Record the present moment as the last use of caches. Those that do not exist are left out."""
        for name in names:
            with suppress(OSError, WeightsError):
                if is_cache(name):
                    os.utime(within(self._root, self._root / name), follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a cache. What cannot be removed stays, and is found again."""
        with suppress(WeightsError):  # it is no folder of ours
            if is_cache(name):
                remove_tree(within(self._root, self._root / name))

    def _names(self) -> Iterator[str]:
        top = self._root / CACHES
        count = 0
        for namespace in _folders(top):
            for cache in _folders(top / namespace):
                name = f"{CACHES}/{namespace}/{cache}"
                if is_cache(name) and count < MAX_CACHES:
                    count += 1
                    yield name


def _folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder, without links; []: it does not exist."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def _bytes(folder: Path) -> int:
    """Return the bytes that the files of a folder take. Files that go meanwhile count nothing."""
    total = count = 0
    waiting = [(folder, 0)]
    while waiting and count < MAX_FILES:
        current, depth = waiting.pop()
        with suppress(OSError), os.scandir(current) as entries:
            for entry in entries:
                count += 1
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                    if depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                        waiting.append((current / entry.name, depth + 1))
    return total
