"""A year of quarter hours of each workload and pool: how many GPUs it had, needed, lacked, and left idle.

One SQLite file beside those of the record, which are removed after some days. Each quarter hour is a row, and a day
that is over becomes one row: sixteen-bit numbers within 1.6 % of the truth, compressed together.
"""

from __future__ import annotations

import lzma
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import structlog

from autoscaler.adapters.record.file import BUSY_S, LAST_S, has_journal
from autoscaler.adapters.record.folder import HISTORY
from autoscaler.config.prices import shares_of
from autoscaler.core.gpu_totals import GpuTotals, PoolKey
from autoscaler.core.gpu_use import GpuState
from autoscaler.core.model.fleet import Workload
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.ports import TickRecord, Unavailable

log = structlog.get_logger(__name__)

NAME = HISTORY
FORMAT = 1
QUARTER_S = 900
DAY_S = 86_400
QUARTERS = DAY_S // QUARTER_S
KEPT_DAYS = 366
PART = 5
"""The file takes at most this part of what the record may take; the oldest days are removed first."""

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0}]
MOST_ROWS = 20_000
MAX_POOLS = 256
LOOSE = [GpuState.LOADED_IDLE, GpuState.HEADROOM, GpuState.FLOOR, GpuState.ASLEEP]
"""States of GPUs that do no work and could."""

FIELDS = ("gpus", "busy", "idle", "needed", "lacking", "beyond", "lacking_s", "beyond_s")
"""Means of GPUs over a quarter hour, but the last two are seconds. Of a pool, `gpus` are all that it has, and `busy`
those that are neither free nor loose; it has no further ones."""

TABLES = {
    "about": "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
    "names": (
        "CREATE TABLE names (id INTEGER PRIMARY KEY, namespace TEXT, name TEXT, kind TEXT, resource TEXT, "
        "product TEXT, nodes TEXT, last_s INTEGER, UNIQUE (namespace, name, kind, resource, product, nodes))"
    ),
    "parts": (
        "CREATE TABLE parts (from_s INTEGER PRIMARY KEY, quarters INTEGER, seconds INTEGER, rows INTEGER, data BLOB)"
    ),
}
MOST_PARTS = 2 * (KEPT_DAYS + QUARTERS)
MOST_NAMES, MAX_NAME = 1_000_000, 320
"""Names in a file, and the longest part of one: that of a resource in Kubernetes has at most 317 characters."""

PARTS_OF_NAME = ("namespace", "name", "kind", "resource", "product", "nodes")


class UseName(NamedTuple):
    """A workload in a pool, or a pool, which has no name of its own."""

    namespace: str
    name: str
    kind: str
    pool: PoolKey


class UseDay(NamedTuple):
    """Consecutive quarter hours."""

    from_s: int
    names: tuple[UseName, ...]  # [N]
    values: FloatColumn  # float64[F, N, Q], F of FIELDS; NaN: not recorded


class HistoryWriter:
    """Adds quarter hours to the file. It loses one rather than stop anything: nothing decides by them."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._path, self._max_bytes = folder / NAME, max_bytes // PART
        self._totals, self._from_s = GpuTotals(), 0
        self._workloads: tuple[Workload, ...] = ()  # of the last tick
        self._fails = False

    def take(self, tick: TickRecord) -> None:
        """Add a tick. A quarter hour that is over is written."""
        from_s = int(tick.wall_s // QUARTER_S) * QUARTER_S
        if from_s != self._from_s:
            self.close()
            self._from_s = from_s
        fleet = tick.input.fleet
        self._totals.add(tick.input, tick.decision, shares_of(fleet.groups.groups), MAX_POOLS)
        self._workloads = fleet.workloads

    def close(self) -> None:
        """Write what was seen of the present quarter hour."""
        seconds = self._totals.seconds
        if seconds > 0:
            try:
                self._write(round(seconds), *self._quarter(seconds))
            except (sqlite3.Error, OSError, ValueError) as error:
                if not self._fails:
                    log.error("a quarter hour is not recorded", file=str(self._path), problem=str(error)[:200])
                self._fails = True
            else:
                self._fails = False
        self._totals.restart()

    def _quarter(self, seconds: float) -> tuple[list[UseName], FloatColumn]:
        """Return names and values of the present quarter hour, float64[F, N]."""
        sums, pools = self._totals.of_workloads, self._totals.of_pools
        held = sums.gpu_s[: GpuState.ORDERED]
        gpu_s = (
            *(held.sum(axis=0), held[GpuState.SERVING], held[LOOSE].sum(axis=0)),
            *(sums.needed_gpu_s, sums.lacking_gpu_s, sums.beyond_gpu_s),
        )
        of_workloads = np.array([*(each / seconds for each in gpu_s), sums.lacking_s, sums.beyond_s])
        of_pools = np.full((len(FIELDS), len(pools)), np.nan)
        for row, states in enumerate(pools.values()):
            idle = states[LOOSE].sum()
            of_pools[:3, row] = states.sum(), states.sum() - states[GpuState.FREE] - idle, idle
        of_pools /= seconds
        rows = zip(self._workloads, self._totals.pool_of, strict=True)
        names = [UseName(*workload.ref[:3], pool) for workload, pool in rows]
        names += [UseName("", "", "", key) for key in pools]
        return names[:MOST_ROWS], np.concatenate([of_workloads, of_pools], axis=1)[:, :MOST_ROWS]

    def _write(self, seconds: int, names: list[UseName], values: FloatColumn) -> None:
        with closing(_open(self._path, write=True)) as file, _writing(file):
            ids = [_number(file, name, self._from_s) for name in names]
            row = (self._from_s, 1, seconds, len(ids), _pack(np.array(ids), values[:, :, None]))
            longer = "ON CONFLICT DO UPDATE SET seconds = excluded.seconds, rows = excluded.rows, data = excluded.data"
            file.execute(
                f"INSERT INTO parts VALUES (?, ?, ?, ?, ?) {longer} WHERE excluded.seconds > seconds AND quarters = 1",
                row,
            )
            today = self._from_s // DAY_S * DAY_S
            _join_days(file, today)
            file.execute("DELETE FROM parts WHERE from_s < ?", (today - KEPT_DAYS * DAY_S,))
            self._make_room(file)

    def _make_room(self, file: sqlite3.Connection) -> None:
        """Remove the oldest days until the rest has room, and the names that no other day has."""
        length = " + ".join(f"length({part})" for part in PARTS_OF_NAME)
        while True:
            file.execute("DELETE FROM names WHERE last_s < (SELECT min(from_s) FROM parts)")
            taken, rows = file.execute("SELECT sum(length(data)), count(*) FROM parts").fetchone()
            chars, names = file.execute(f"SELECT sum({length}), count(*) FROM names").fetchone()
            if (taken + 2 * chars <= self._max_bytes and names <= MOST_NAMES) or rows <= 1:
                return  # a name also stands in the index
            file.execute("DELETE FROM parts WHERE from_s = (SELECT min(from_s) FROM parts)")


def read_history(folder: Path, since_s: float = 0.0) -> Iterator[UseDay]:
    """Yield the quarter hours of a record from a time on, the newest day first. Raises Unavailable.

    The file may be a stranger's: it is read only if it has these tables, nothing else, and no more than a year.
    """
    path = folder / NAME
    try:
        with closing(_open(path, write=False)) as file:
            _check(file)
            named = {
                number: UseName(namespace, name, kind, (resource, product, nodes))
                for number, namespace, name, kind, resource, product, nodes, _ in file.execute("SELECT * FROM names")
            }
            query = "SELECT from_s, quarters, rows, data FROM parts WHERE from_s > ? ORDER BY from_s DESC"
            for from_s, quarters, rows, data in file.execute(query, (since_s - DAY_S,)):
                ids, values = _unpack(data, rows, quarters)
                yield UseDay(from_s, tuple(named[number] for number in ids.tolist()), values)
    except FileNotFoundError:
        raise Unavailable(f"{folder}: no {NAME}: the daemon has not recorded a quarter hour there") from None
    except (sqlite3.Error, OSError, ValueError, KeyError, TypeError, lzma.LZMAError) as error:
        raise Unavailable(f"{path}: cannot be read: {str(error)[:200]}") from error


def _open(path: Path, write: bool) -> sqlite3.Connection:
    """Open the file; create one that only its owner may read. Raises OSError or sqlite3.Error."""
    if write:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(f"{path.name} is not a file")
    has_journal(path)
    file = sqlite3.connect(path, timeout=BUSY_S)
    try:
        file.execute("PRAGMA trusted_schema = OFF")
        file.execute(f"PRAGMA query_only = {not write:d}")
        if file.execute("SELECT 1 FROM sqlite_master WHERE type IN ('view', 'trigger') LIMIT 1").fetchone():
            raise sqlite3.DatabaseError(f"{path.name} has more than tables")
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def _writing(file: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing; a new file gets its tables."""
    file.execute("BEGIN IMMEDIATE")
    try:
        if not file.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in TABLES.values():
                file.execute(statement)
            file.execute("INSERT INTO about VALUES ('format', ?)", (str(FORMAT),))
        _check(file)
        yield
        file.execute("COMMIT")
    except BaseException:
        if file.in_transaction:
            file.execute("ROLLBACK")
        raise


def _check(file: sqlite3.Connection) -> None:
    """Raise ValueError unless the file has these tables, in the present format, and values within bounds."""
    made = {("table", name, statement) for name, statement in TABLES.items()}
    found = {*file.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(10)}
    if found - {("index", "sqlite_autoindex_names_1", None)} != made:
        raise ValueError("not a history of a record")
    (format_,) = file.execute("SELECT value FROM about WHERE key = 'format'").fetchone() or ("none",)
    if format_ != str(FORMAT):
        raise ValueError(f"format {format_[:20]!r}; this version reads {FORMAT}")
    for table, most in (("names", MOST_NAMES), ("parts", MOST_PARTS)):
        if file.execute(f"SELECT 1 FROM {table} LIMIT 1 OFFSET {most}").fetchone():
            raise ValueError(f"more than {most:,} rows in {table}")
    good = " AND ".join(f"typeof({part}) = 'text' AND length({part}) <= {MAX_NAME}" for part in PARTS_OF_NAME)
    if file.execute(f"SELECT 1 FROM names WHERE NOT ({good} AND typeof(last_s) = 'integer')").fetchone():
        raise ValueError("names that no workload has")
    good = f"typeof(from_s) = 'integer' AND from_s BETWEEN 0 AND {LAST_S} AND typeof(data) = 'blob'"
    if file.execute(f"SELECT 1 FROM parts WHERE NOT ({good})").fetchone():
        raise ValueError("quarter hours that no record has")


def _number(file: sqlite3.Connection, name: UseName, at_s: int) -> int:
    """Return the number of a name, which was in use at this time. A longer part than any name has is cut."""
    key = [part[:MAX_NAME] for part in (*name[:3], *name.pool)]
    upsert = "INSERT INTO names VALUES (NULL, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET last_s = excluded.last_s"
    ((number,),) = file.execute(f"{upsert} RETURNING id", (*key, at_s)).fetchall()
    return int(number)


def _join_days(file: sqlite3.Connection, today: int) -> None:
    """Make one row of all quarter hours of each day before today."""
    rows = file.execute("SELECT from_s, rows, data FROM parts WHERE quarters = 1 AND from_s < ?", (today,)).fetchall()
    for day in sorted({from_s // DAY_S * DAY_S for from_s, _, _ in rows}):
        parts = [(at_s, *_unpack(data, count, 1)) for at_s, count, data in rows if at_s // DAY_S * DAY_S == day]
        numbers = sorted({number for _, ids, _ in parts for number in ids.tolist()})
        values = np.full((len(FIELDS), len(numbers), QUARTERS), np.nan)
        for at_s, ids, own in parts:
            values[:, np.searchsorted(numbers, ids), (at_s - day) // QUARTER_S] = own[:, :, 0]
        file.execute("DELETE FROM parts WHERE from_s >= ? AND from_s < ?", (day, day + DAY_S))
        packed = _pack(np.array(numbers), values)
        file.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", (day, QUARTERS, DAY_S, len(numbers), packed))


def _pack(ids: IntColumn, values: FloatColumn) -> bytes:
    """Return numbers and values as bytes. values: [F, N, Q]."""
    bits = np.clip(values, None, 60_000).astype(np.float16).view(np.uint16)
    bits = np.where(np.isnan(values), np.float16(np.nan).view(np.uint16), (bits + 16) & 0xFFE0)
    plain = ids.astype("<u4").tobytes() + (bits >> 5).astype("<u2").tobytes()
    return lzma.compress(plain, lzma.FORMAT_RAW, filters=FILTERS)


def _unpack(data: bytes, rows: int, quarters: int) -> tuple[IntColumn, FloatColumn]:
    """Return what was packed; int64[N] and float64[F, N, Q]. Raises ValueError or LZMAError."""
    if not (0 <= rows <= MOST_ROWS and quarters in (1, QUARTERS)):
        raise ValueError(f"{rows} rows of {quarters} quarter hours")
    size = 4 * rows + 2 * len(FIELDS) * rows * quarters
    plain = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=FILTERS).decompress(data, size + 1)
    if len(plain) != size:
        raise ValueError(f"{len(plain)} bytes instead of {size}")
    bits = np.frombuffer(plain, "<u2", offset=4 * rows).astype(np.uint16) << np.uint16(5)
    values = bits.view(np.float16).astype(np.float64).reshape(len(FIELDS), rows, quarters)
    return np.frombuffer(plain, "<u4", rows).astype(np.int64), values
