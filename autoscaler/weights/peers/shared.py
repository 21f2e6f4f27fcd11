"""The files that an agent may serve: those of published models, and those that a transfer has verified already.

They are found by the key of a model and a checksum. No part of a request becomes a part of a path.
"""

from __future__ import annotations

import stat
from pathlib import Path

from autoscaler.config.weights.source import KEY_CHARS
from autoscaler.weights import layout
from autoscaler.weights.disk import read_small, within
from autoscaler.weights.fetch import MAX_MARK_BYTES, VERIFIED
from autoscaler.weights.listing import MAX_FILES, shared_name
from autoscaler.weights.peers.state import DIGEST
from autoscaler.weights.problems import WeightsError
from autoscaler.weights.store import OWN, PARTS, RECORDS, WeightStore

MAX_REMEMBERED = 256  # models


class Shared:
    """Finds files of one folder of weights. The folder is read again when it changes."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self._own = store.root / OWN
        self._found: dict[str, tuple[tuple[int, int], dict[str, Path]]] = {}

    def files(self, key: str) -> dict[str, Path]:
        """Return the files of a model by checksum. key: untrusted. Raises OSError."""
        if len(key) != KEY_CHARS or not all(char in "0123456789abcdef" for char in key):
            return {}
        stamp = _changed(self._own / RECORDS / f"{key}.json"), _changed(self._own / PARTS / key)
        if stamp == (0, 0):
            self._found.pop(key, None)
            return {}
        remembered = self._found.get(key)
        if remembered is None or remembered[0] != stamp:
            while len(self._found) >= MAX_REMEMBERED:
                self._found.pop(next(iter(self._found)))
            remembered = self._found[key] = stamp, self._verified(key) | self._published(key)
        return remembered[1]

    def find(self, key: str, digest: str) -> Path | None:
        """Return a file by its checksum; None: it is not here, or is no file any more. Raises OSError."""
        path = self.files(key).get(digest)
        try:
            if path is None or not stat.S_ISREG(path.lstat().st_mode):
                return None
            within(self._store.root, path)
        except (FileNotFoundError, WeightsError):
            return None
        return path

    def _published(self, key: str) -> dict[str, Path]:
        model = self._store.find(key)
        if model is None:
            return {}
        source = model.listing.source
        places = {
            file.shared_as: layout.blob(self._store.root, source, file) or model.path / file.path
            for file in model.listing.files
        }
        places.pop("", None)
        return places

    def _verified(self, key: str) -> dict[str, Path]:
        found: dict[str, Path] = {}
        folder = self._own / PARTS / key
        for mark in list(folder.glob(f"*{VERIFIED}"))[:MAX_FILES] if folder.is_dir() else ():
            content, _ = read_small(mark, MAX_MARK_BYTES)
            path, identity = mark.with_name(mark.name.removesuffix(VERIFIED)), content.decode(errors="replace")
            digest = identity.partition(":")[2]
            found[digest if DIGEST.fullmatch(digest) else shared_name(path.name, identity)] = path
        return found


def _changed(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except FileNotFoundError:
        return 0
