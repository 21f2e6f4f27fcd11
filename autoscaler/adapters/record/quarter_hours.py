"""A year of quarter hours of each workload and pool: how many GPUs it had, needed, lacked, and left idle.

One SQLite file beside those of the record, which are removed after some days. Each quarter hour is a row, and a day
that is over becomes one row: sixteen-bit numbers within 1.6 % of the truth, compressed together.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import structlog

from autoscaler.adapters.record.file import BUSY_S, LAST_S, has_journal
from autoscaler.adapters.record.folder import HISTORY
from autoscaler.adapters.record.quarter_room import MAX_NAME, MOST_NAMES, PARTS_OF_NAME, choose_rows, keeper, make_room
from autoscaler.adapters.record.quarter_values import (
    DAY_S,
    FIELDS,
    MOST_ROWS,
    QUARTER_S,
    QUARTERS,
    SLACK_S,
    UNREADABLE,
    Choice,
    DayPart,
    QuarterHour,
    join_parts,
    join_quarters,
    pack,
    unpack,
)
from autoscaler.config.findings import shown
from autoscaler.config.prices import shares_of
from autoscaler.core.gpu_totals import GpuTotals, PoolKey
from autoscaler.core.gpu_use import GpuState
from autoscaler.core.model.fleet import Workload
from autoscaler.core.table.columns import FloatColumn, IntColumn
from autoscaler.ports import TickRecord, Unavailable

log = structlog.get_logger(__name__)

NAME = HISTORY
FORMAT = 1
KEPT_DAYS = 366
PART = 5
"""The file takes at most this part of what the record may take; the oldest days are removed first."""

DAMAGED = f"{NAME}.damaged"
"""Name of a file that SQLite cannot read; a new one begins."""

MAX_POOLS = 256
LEFT_OUT = "left out"
MOST_CHARS = 1000
LOOSE = [GpuState.LOADED_IDLE, GpuState.HEADROOM, GpuState.FLOOR, GpuState.ASLEEP]
"""States of GPUs that do no work and could."""

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

    def __init__(self, folder: Path, max_bytes: int, most_rows: int = MOST_ROWS) -> None:
        """max_bytes: of the whole record. most_rows: of a quarter hour, and of a day."""
        self._path, self._max_bytes, self._most_rows = folder / NAME, max_bytes // PART, most_rows
        self._totals, self._from_s = GpuTotals[UseName](), 0
        self._workloads: tuple[Workload, ...] = ()  # of the last tick
        self._left_out = Counter[str]()  # rows of the last quarter hour by namespace
        self._fails = False

    def take(self, tick: TickRecord) -> None:
        """Add a tick. A quarter hour that is over is written."""
        from_s = int(tick.wall_s // QUARTER_S) * QUARTER_S
        if from_s != self._from_s:
            self.close()
            self._from_s = from_s
        fleet = tick.input.fleet
        self._totals.add(tick.use, shares_of(fleet.groups.groups), MAX_POOLS, self._name_of)
        self._workloads = fleet.workloads

    def _name_of(self, row: int, pool: PoolKey) -> UseName:
        """Return the name that a workload of the last tick has in a pool."""
        return UseName(*self._workloads[row].ref[:3], pool)

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
                kind = getattr(error, "sqlite_errorcode", 0) & 0xFF  # its other bits are details
                if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    self._put_aside()
            else:
                self._fails = False
        self._totals.restart()

    def _put_aside(self) -> None:
        """Let a new file begin, with its next quarter hour."""
        with suppress(OSError):
            self._path.with_name(f"{NAME}-journal").unlink(missing_ok=True)  # it is none of the new file
            damaged = self._path.replace(self._path.with_name(DAMAGED))
            log.error("the history of the record was damaged; a new one begins", file=str(damaged))

    def _quarter(self, seconds: float) -> tuple[list[UseName], FloatColumn]:
        """Return names and values of the present quarter hour, float64[F, N]."""
        names, sums = self._totals.by_name(self._name_of)
        pools = self._totals.of_pools
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
        names += [UseName("", "", "", key) for key in pools]
        return names, np.concatenate([of_workloads, of_pools], axis=1)

    def _write(self, seconds: int, names: list[UseName], values: FloatColumn) -> None:
        left_out = Counter[str]()
        rows = choose_rows([name.namespace for name in names], self._most_rows, left_out)
        with closing(_open(self._path, write=True)) as file, _writing(file):
            ids = np.array([_number(file, names[row], self._from_s) for row in rows], dtype=np.int64)
            keep = keeper(file, self._most_rows, left_out)
            part = join_parts(_part_of(file, self._from_s), QuarterHour(seconds, ids, values[:, rows]), keep)
            longer = "ON CONFLICT DO UPDATE SET seconds = excluded.seconds, rows = excluded.rows, data = excluded.data"
            file.execute(
                f"INSERT INTO parts VALUES (?, ?, ?, ?, ?) {longer} WHERE excluded.seconds > seconds AND quarters = 1",
                (self._from_s, 1, part.seconds, len(part.ids), pack(part.ids, part.values[:, :, None])),
            )
            today = self._from_s // DAY_S * DAY_S
            _join_days(file, today, keep)
            file.execute("DELETE FROM parts WHERE from_s < ?", (today - KEPT_DAYS * DAY_S,))
            make_room(file, self._max_bytes, left_out)
            self._tell(file, left_out)

    def _tell(self, file: sqlite3.Connection, left_out: Counter[str]) -> None:
        """Say in the file, and in the log when it begins, whose rows had no room."""
        if left_out:
            at = datetime.fromtimestamp(self._from_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            most = "; ".join(f"{rows:,} of {shown(each)}" for each, rows in left_out.most_common(5))
            others = f" and of {len(left_out) - 5:,} more" if len(left_out) > 5 else ""
            allowed = f"allowed: {self._most_rows:,}, in equal shares of namespaces"
            said = f"rows of crowded namespaces are left out, the last time at {at}: {most}{others}; {allowed}"
            longer = "ON CONFLICT DO UPDATE SET value = excluded.value"
            file.execute(f"INSERT INTO about VALUES (?, ?) {longer}", (LEFT_OUT, said[:MOST_CHARS]))
            if left_out.keys() != self._left_out.keys():
                log.warning("workloads are left out of the history of the record", file=str(self._path), problem=said)
        self._left_out = left_out


def read_history(folder: Path, since_s: float = 0.0, problems: list[str] | None = None) -> Iterator[UseDay]:
    """Yield the quarter hours of a record from a time on, the newest day first. Raises Unavailable.

    The file may be a stranger's: it is read only if it has these tables, nothing else, and no more than a year. Damaged
    days are left out; a line about them is added to `problems`. Raises Unavailable, too, if no day can be read.
    """
    path, damaged, why, is_any_read = folder / NAME, 0, "", False
    try:
        with closing(_open(path, write=False)) as file:
            _check(file)
            if problems is not None:
                query = "SELECT value FROM about WHERE key = ? AND typeof(value) = 'text' AND length(value) <= ?"
                problems += [
                    f"{path}: {each}" for (each,) in file.execute(query, (LEFT_OUT, MOST_CHARS)) if each.isprintable()
                ]
            named = {
                number: UseName(namespace, name, kind, (resource, product, nodes))
                for number, namespace, name, kind, resource, product, nodes, _ in file.execute("SELECT * FROM names")
            }
            query = "SELECT from_s, quarters, rows, data FROM parts WHERE from_s > ? ORDER BY from_s DESC"
            for from_s, quarters, rows, data in file.execute(query, (since_s - DAY_S,)):
                try:
                    ids, values = unpack(data, rows, quarters)
                    day = _with_names(from_s, ids, values, named)
                except UNREADABLE as error:
                    damaged, why = damaged + 1, str(error)[:200]
                    continue
                is_any_read = True
                yield day
        if damaged and not is_any_read:
            raise ValueError(why)
        if damaged and problems is not None:
            problems.append(f"{path}: {damaged} of its days or quarter hours cannot be read, and count as unknown")
    except FileNotFoundError:
        raise Unavailable(f"{folder}: no {NAME}: the daemon has not recorded a quarter hour there") from None
    except (sqlite3.Error, OSError, ValueError, TypeError) as error:
        raise Unavailable(f"{path}: cannot be read: {str(error)[:200]}") from error


def _with_names(from_s: int, ids: IntColumn, values: FloatColumn, named: Mapping[int, UseName]) -> UseDay:
    """Return a day without the rows whose names were removed. Raises ValueError if no row is left of some."""
    known = [row for row, number in enumerate(ids.tolist()) if number in named]
    if len(ids) and not known:
        raise ValueError("no row has a name")
    return UseDay(from_s, tuple(named[number] for number in ids[known].tolist()), values[:, known])


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


def _part_of(file: sqlite3.Connection, from_s: int) -> QuarterHour | None:
    """Return what the file has of a quarter hour; None: nothing that can be read."""
    query = "SELECT seconds, rows, data FROM parts WHERE from_s = ? AND quarters = 1"
    for seconds, rows, data in file.execute(query, (from_s,)):
        with suppress(*UNREADABLE):
            if not (isinstance(seconds, int) and 0 < seconds <= QUARTER_S + SLACK_S):
                raise ValueError(f"{seconds} s of a quarter hour")
            ids, values = unpack(data, rows, 1)
            return QuarterHour(seconds, ids, values[:, :, 0])
    return None


def _join_days(file: sqlite3.Connection, today: int, keep: Choice) -> None:
    """Make one row of all quarter hours of each day before today. What cannot be read is left out."""
    late = "SELECT DISTINCT from_s / ?1 * ?1 FROM parts WHERE quarters = 1 AND from_s < ?2"
    for (day,) in file.execute(late, (DAY_S, today)).fetchall():
        ids, values = join_quarters([*_read_day(file, day)], keep)
        file.execute("DELETE FROM parts WHERE from_s >= ? AND from_s < ?", (day, day + DAY_S))
        row = day, QUARTERS, DAY_S, len(ids), pack(ids, values)
        file.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)


def _read_day(file: sqlite3.Connection, day: int) -> Iterator[DayPart]:
    """Yield what can be read of a day. A clock that was set back may add to one that is a row: that row is the last."""
    query = "SELECT from_s, quarters, rows, data FROM parts WHERE from_s >= ? AND from_s < ? ORDER BY quarters"
    for at_s, quarters, count, data in file.execute(query, (day, day + DAY_S)).fetchall():
        with suppress(*UNREADABLE):
            if quarters == 1 or at_s == day:  # a day begins at midnight
                yield (at_s - day) // QUARTER_S, *unpack(data, count, quarters)
