"""One file of a record: an SQLite database with the ticks of at most a day.

Plain tables have what people ask for, and any tool that opens SQLite reads them: counts where they change, traffic by
five minutes, what GPUs are used for by the hour, changes with their sentences, policies as they were loaded, owners and
problems. The table `blocks` has each tick in compressed streams (`stream.py`): what was decided, and from which inputs
and memory.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from autoscaler.core.model.types import Recommender, Signal, Stage

FORMAT = 3
SUFFIX = ".sqlite"
PAGE_BYTES = 4096
BUSY_S = 20.0
"""How long a writer waits for a reader, and a reader for a writer. Either holds a file for some milliseconds."""

TRAFFIC = (
    *("arrived", "finished", "first_tokens", "ttft_judged", "ttft_met", "itl_judged", "itl_met"),
    *("prompt_tokens", "generation_tokens", "gap_s", "gaps", "kv_s", "running_s", "waiting_s", "breach_s"),
)
"""Columns of `core.tally.Tally` in the table `traffic`."""

TABLES = {
    "workloads": "id INTEGER PRIMARY KEY, namespace TEXT, name TEXT, kind TEXT, uid TEXT",
    # Facts from this tick on; a row is written where it differs from the one before.
    "facts": (
        "workload INTEGER, tick INTEGER, at_s INTEGER, policy TEXT, team TEXT, model TEXT, gpus REAL, product TEXT, "
        "usd_per_hour REAL, ttft_s REAL, itl_s REAL, attainment REAL, PRIMARY KEY (workload, tick)"
    ),
    "counts": (
        "workload INTEGER, tick INTEGER, at_s INTEGER, current INTEGER, ready INTEGER, starting INTEGER, "
        "wanted INTEGER, recommender INTEGER, signal INTEGER, stage INTEGER, PRIMARY KEY (workload, tick)"
    ),
    # Names of the codes in `counts`: "recommender", "signal" or "stage", its code, and its published name.
    "codes": "kind TEXT, code INTEGER, name TEXT, PRIMARY KEY (kind, code)",
    # Sums over `seconds` from `from_s` on. A workload without requests has no row.
    "traffic": (
        f"workload INTEGER, from_s INTEGER, seconds INTEGER, {', '.join(f'{name} INTEGER' for name in TRAFFIC)}, "
        "PRIMARY KEY (workload, from_s)"
    ),
    # Sums over at most an hour from `from_s` on, by "state" and by "cause"; without a price: usd is NULL.
    "gpu_use": (
        "workload INTEGER, from_s INTEGER, kind TEXT, name TEXT, gpu_s INTEGER, usd REAL, "
        "PRIMARY KEY (workload, from_s, kind, name)"
    ),
    "changes": (
        "tick INTEGER, at_s INTEGER, workload INTEGER, before INTEGER, after INTEGER, outcome TEXT, detail TEXT, "
        "sentence TEXT, PRIMARY KEY (workload, tick)"
    ),
    "policies": "tick INTEGER, at_s INTEGER, name TEXT, difference TEXT, text TEXT, PRIMARY KEY (tick, name)",
    "owners": "tick INTEGER, at_s INTEGER, workload INTEGER, owner TEXT, count INTEGER, PRIMARY KEY (workload, tick)",
    "problems": "tick INTEGER, at_s INTEGER, source TEXT, problem TEXT, PRIMARY KEY (source, tick)",
    "ticks": "at_s REAL, first INTEGER PRIMARY KEY, last INTEGER, until_s REAL",
    "blocks": "first INTEGER PRIMARY KEY, decided BLOB, inputs BLOB, memory BLOB",
    "about": "key TEXT PRIMARY KEY, value TEXT",
}
"""Columns of each table. A tick is its number, which only grows; times are seconds since 1970."""

CODES = [
    (kind, code.value, code.published)
    for kind, codes in (("recommender", Recommender), ("signal", Signal), ("stage", Stage))
    for code in codes
]

WITH_ROWID = ("workloads", "ticks", "blocks")
SCHEMA = {
    table: f"CREATE TABLE {table} ({columns}){'' if table in WITH_ROWID else ' WITHOUT ROWID'}"
    for table, columns in TABLES.items()
}
DAMAGE = (sqlite3.DatabaseError, OSError, UnicodeDecodeError)

MAX_ROWS = 2_000_000
"""Rows that a query may return: those of a day of 5,000 workloads."""

MAX_CELL_BYTES = 64 << 20
MAX_TEXT = 1 << 20
STEPS, MOST_STEPS = 1_000_000, 5_000
"""Steps of SQLite's machine after which it is decided whether a query goes on, and how many times it may: minutes."""

LAST_S = 253_402_300_799
"""The last second of the year 9999, which is the last one that can be worded."""

MOST = 10**15
BOUNDS = {
    **dict.fromkeys(
        ("at_s", "from_s", "until_s"), f"typeof({{0}}) IN ('integer', 'real') AND {{0}} BETWEEN 0 AND {LAST_S}"
    ),
    "INTEGER": f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {MOST}",
    "REAL": f"typeof({{0}}) IN ('integer', 'real') AND {{0}} BETWEEN 0 AND {MOST}",
    "TEXT": f"typeof({{0}}) = 'text' AND length({{0}}) <= {MAX_TEXT}",
}
"""A rule for each value of a column, by its name or its type."""

UNKNOWN = frozenset({"current", "ready", "starting", "wanted", "signal", "stage", "count", "usd", "usd_per_hour"})
UNKNOWN |= {"gpus", "ttft_s", "itl_s", "attainment"}
"""Columns that may be NULL."""

JOURNAL_END = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names another file, which SQLite would delete. None of ours does."""


class Block(NamedTuple):
    """Consecutive ticks."""

    first: int  # number of the first one
    last: int
    at_s: float  # Unix time of the first one
    until_s: float
    decided: bytes
    inputs: bytes | None  # None: dropped to make room
    memory: bytes | None  # from which the first one was decided; streams begin with it. None: streams go on


class RecordFile:
    """An open file. Use it in one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        self._whole: set[str] = set()  # tables whose values were checked

    @classmethod
    def create(cls, path: Path, about: dict[str, str]) -> RecordFile:
        """Create a file that only its owner may read. Raises OSError or sqlite3.Error; then there is none.

        A full disk may still have room for names, and each tick tries a new one.
        """
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with ExitStack() as failed:
            failed.callback(path.unlink)
            file = cls(path, _connect(path, "rw"))
            failed.callback(file.close)
            file._begin(about)
            failed.pop_all()
        return file

    def _begin(self, about: dict[str, str]) -> None:
        self._whole.update(TABLES)
        self.connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        self.connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        with self.writing():
            for statement in SCHEMA.values():
                self.connection.execute(statement)
            self.add("about", about.items())
            self.add("codes", CODES)

    @classmethod
    def open(cls, path: Path, write: bool = False, own: bool = False) -> RecordFile:
        """Open a file. Raises sqlite3.Error, OSError, or ValueError for a file of another format.

        The file may be hostile: it is opened only if it has the tables of a record and nothing else. own: this process
        wrote it, so its values are not checked, which takes 80 ms for a day of 200 services.
        """
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError(f"{path.name} is not a file")
        # With a journal a reader opens it for writing, too: it undoes what a killed process has half written.
        file = cls(path, _connect(path, "rw" if has_journal(path) or write else "ro"))
        try:
            file.connection.execute(f"PRAGMA query_only = {not write:d}")
            file._check_schema()
            file._whole.update(TABLES if own else ())
        except BaseException:
            file.close()
            raise
        return file

    def _check_schema(self) -> None:
        """Raise ValueError unless the file has the tables of a record, and no view, trigger or index."""
        found = self._fetch("SELECT type, name, sql FROM sqlite_master")
        if ("table", "about", SCHEMA["about"]) not in found:
            raise ValueError("not a file of a record")
        if (format_ := self.about().get("format", "none")) != str(FORMAT):
            raise ValueError(f"format {format_[:20]!r}; this version reads {FORMAT}")
        if other := {*found} ^ {("table", table, sql) for table, sql in SCHEMA.items()}:
            raise ValueError(f"not a file of a record: {min(str(name)[:40] for _, name, _ in other)!r} differs in it")

    def close(self) -> None:
        self.connection.close()

    def about(self) -> dict[str, str]:
        return dict(self.rows("SELECT key, value FROM about"))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write all or nothing."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def add(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows, in the order of the columns. A row with the key of an earlier one replaces it."""
        columns = len(self.connection.execute(f"SELECT * FROM {table} LIMIT 0").description)
        self.connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * columns)})", rows)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query at once, so that the file is held for a moment only.

        Raises sqlite3.DatabaseError, also for a table with a value that no record has.
        """
        for table in TABLES.keys() & {*query.split()} - self._whole - {"blocks"}:
            self._check_values(table)
        return self._fetch(query, *values)

    def _check_values(self, table: str) -> None:
        """Raise sqlite3.DatabaseError if a value has another type than its column, or is beyond bounds."""
        columns = [each.split()[:2] for each in TABLES[table].partition(", PRIMARY KEY (")[0].split(", ")]
        bounds = ((BOUNDS[name if name in BOUNDS else kind].format(name), name) for name, kind in columns)
        good = " AND ".join(f"({bound} OR {name in UNKNOWN:d} AND {name} IS NULL)" for bound, name in bounds)
        if self._fetch(f"SELECT 1 FROM {table} WHERE ({good}) IS NOT TRUE LIMIT 1"):
            raise sqlite3.DatabaseError(f"table {table} has values that no record has")
        self._whole.add(table)

    def _fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows, unless there are more, or finding them takes longer, than in any record."""
        left = iter(range(MOST_STEPS))
        self.connection.set_progress_handler(lambda: next(left, None) is None, STEPS)
        try:
            with closing(self.connection.execute(query, values)) as cursor:
                rows = cursor.fetchmany(MAX_ROWS)
                if cursor.fetchone() is not None:
                    raise sqlite3.DatabaseError(f"more than {MAX_ROWS:,} rows")
                return rows
        finally:
            self.connection.set_progress_handler(None, 0)

    def blocks(self, after: int = -1, until: int = 2**62) -> Iterator[Block]:
        """Return the blocks whose first tick is in after + 1..until, oldest first."""
        numbers = self.rows("SELECT first FROM ticks WHERE first > ? AND first <= ? ORDER BY first", after, until)
        for (first,) in numbers:
            found = self.rows(
                "SELECT first, last, at_s, until_s, decided, inputs, memory FROM ticks JOIN blocks USING (first) "
                "WHERE first = ?",
                first,
            )
            yield from (Block(*row) for row in found)

    def bounds(self) -> tuple[int, int, float, float] | None:
        """Return number and time of the first tick and of the last one; None: there is none."""
        ((first, last, at_s, until_s),) = self.rows("SELECT min(first), max(last), min(at_s), max(until_s) FROM ticks")
        return None if first is None else (first, last, at_s, until_s)

    def drop_oldest_inputs(self, before: int) -> bool:
        """Drop the oldest inputs, from one memory to the next, of ticks before this one. False: there are none."""
        memories = self.rows("SELECT first FROM blocks WHERE length(memory) > 0 ORDER BY first LIMIT 2")
        if not memories:
            return False
        end = memories[1][0] if len(memories) > 1 else before
        if end > before or memories[0][0] >= before:
            return False
        with self.writing():
            # The memory goes too: without inputs nothing is computed from it. Streams of decisions still begin there.
            self.connection.execute(
                "UPDATE blocks SET inputs = NULL, memory = iif(memory IS NULL, NULL, x'') WHERE first < ?", (end,)
            )
        self.connection.execute("PRAGMA incremental_vacuum").fetchall()
        return True


def has_journal(path: Path) -> bool:
    """Return whether a process was killed while it wrote. Raises OSError for a journal that is none of a record."""
    journal = path.with_name(f"{path.name}-journal")
    try:
        with open(
            journal, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        ) as file:
            state = os.fstat(file.fileno())
            file.seek(max(state.st_size - len(JOURNAL_END), 0))
            if not stat.S_ISREG(state.st_mode) or file.read() == JOURNAL_END:
                raise OSError(f"{journal.name} is no journal of a record")
    except FileNotFoundError:
        return False
    return True


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    quoted = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    uri = f"file:{quoted}?mode={mode}"
    # One thread at a time uses it: the loop opens the last file of a record, and hands it to the thread that writes.
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection
