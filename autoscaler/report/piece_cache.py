"""Keeps answers to pieces of queries in a file, so that an interrupted run goes on where it ended.

The file is a cache: it may be deleted at any time, and a damaged one is made again. It holds names of services and
numbers, readable by its owner alone, and no credentials.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from autoscaler.adapters.prometheus.range.service_queries import ServiceName, ServiceQuery
from autoscaler.core.table.columns import FloatColumn
from autoscaler.report.history import Span, Steps

KEPT_S = 2 * 86_400.0
MAX_BYTES = 2 << 30
MARK = 0x7661_7063
"""Application id in the head of the file (SQLite file format, 1.3): a file without it is somebody's, and stays."""
SCHEMA = "CREATE TABLE IF NOT EXISTS pieces (key BLOB PRIMARY KEY, at REAL, answer BLOB)"


class Piece(NamedTuple):
    """A query over some steps."""

    query: ServiceQuery
    first: int
    last: int  # the step after the last one


class About(NamedTuple):
    """A service, and whether pods of its own were scraped or another one wrote of it (`pod_labels.scrape_of`)."""

    service: ServiceName
    by_another: bool


Answer = dict[About, Steps]


def default_file() -> Path:
    """Return the file of the user's cache folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "vllm-autoscaler" / "report.sqlite"


class PieceCache:
    """A cache over one server. `PieceCache.none()` keeps nothing."""

    def __init__(self, file: Path | None, server: str) -> None:
        """server: its name, and what selects its series. A file that cannot be written leaves a `problem`."""
        self.problem = ""
        self._server = server
        self._database: sqlite3.Connection | None = None
        if file is None:
            return
        try:
            self._database = self._open(file)
        except (OSError, sqlite3.Error) as error:
            self.problem = f"nothing is kept for the next run: {file}: {error}"

    @classmethod
    def none(cls) -> PieceCache:
        return cls(None, "")

    def get(self, piece: Piece, span: Span) -> Answer | None:
        """Return the answer that was kept, or None."""
        row = self._try(
            lambda database: database.execute(
                "SELECT answer FROM pieces WHERE key = ?", (self._key(piece, span),)
            ).fetchone()
        )
        if not row:
            return None
        try:
            found = msgspec.msgpack.decode(row[0], type=list[tuple[About, bytes]])
            values = {name: np.frombuffer(data, np.float32) for name, data in found}
        except Exception:  # a damaged file makes decoders raise more than their own errors
            return None
        return values if all(len(each) == piece.last - piece.first for each in values.values()) else None

    def put(self, piece: Piece, span: Span, answer: Answer) -> None:
        """Keep an answer."""
        rows = [(name, _to_bytes(values)) for name, values in answer.items()]
        data = msgspec.msgpack.encode(rows)
        key = self._key(piece, span)

        def insert(database: sqlite3.Connection) -> None:
            with database:
                database.execute("INSERT OR REPLACE INTO pieces VALUES (?, ?, ?)", (key, time.time(), data))

        self._try(insert)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self, file: Path) -> sqlite3.Connection:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(file, os.O_CREAT | os.O_RDWR, 0o600), "rb") as opened:
            head = opened.read(100)
        if head and not (head.startswith(b"SQLite format 3\0") and int.from_bytes(head[68:72], "big") == MARK):
            raise OSError("not a cache of vllm-autoscaler; rename or remove it")
        if file.stat().st_size > MAX_BYTES:
            file.unlink()
        try:
            return self._connect(file)
        except sqlite3.DatabaseError:  # damaged
            file.unlink()
            return self._connect(file)

    def _connect(self, file: Path) -> sqlite3.Connection:
        database = sqlite3.connect(file, timeout=2, check_same_thread=False)
        try:
            with database:
                database.execute(f"PRAGMA application_id = {MARK}")
                database.execute(SCHEMA)
                database.execute("DELETE FROM pieces WHERE at < ?", (time.time() - KEPT_S,))
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _key(self, piece: Piece, span: Span) -> bytes:
        start_s = span.start_s + piece.first * span.step_s
        text = "\0".join((self._server, piece.query.expression, f"{start_s} {span.step_s} {piece.last - piece.first}"))
        return hashlib.sha256(text.encode()).digest()

    def _try(self, work: Callable[[sqlite3.Connection], object]) -> tuple[bytes] | None:
        """Do something with the database. After a failure, such as a full disk, nothing more is kept."""
        if self._database is None:
            return None
        try:
            return work(self._database)  # type: ignore[return-value]
        except sqlite3.Error as error:
            self.problem = f"the cache cannot be used any more: {error}"
            self.close()
            return None


def _to_bytes(values: FloatColumn) -> bytes:
    return values.astype(np.float32).tobytes()
