"""The room of a history: rows and names of crowded namespaces leave it first, then the oldest days."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from autoscaler.adapters.record.quarter_values import UNREADABLE, Choice, pack, unpack
from autoscaler.core.table.columns import IntColumn
from autoscaler.core.table.fair_share import fair_share, keep_fairly, leave_out_crowds

MOST_NAMES, MAX_NAME = 1_000_000, 320
"""Names in a file, and the longest part of one: that of a resource in Kubernetes has at most 317 characters."""

PARTS_OF_NAME = ("namespace", "name", "kind", "resource", "product", "nodes")

PART_OF_NAMES, LEAST_CHARS = 4, 20
"""The names take at most this part of the file, in equal shares of namespaces. A name has hardly fewer characters."""


def choose_rows(namespaces: Sequence[str], most: int, left_out: Counter[str]) -> list[int]:
    """Return the rows that are kept: those of pools, and of each namespace its share; `left_out` counts the others."""
    if len(namespaces) <= most:
        return [*range(len(namespaces))]
    rows = keep_fairly(namespaces, most)
    left_out += Counter(namespaces) - Counter(namespaces[row] for row in rows)
    return rows


def _leave_out_crowd(file: sqlite3.Connection, left_out: Counter[str]) -> bool:
    """Remove the rows of crowded namespaces from the oldest large day; return whether it has such."""
    large = "WHERE 2 * rows > (SELECT max(rows) FROM parts) ORDER BY from_s LIMIT 1"
    for from_s, quarters, rows, data in file.execute(
        f"SELECT from_s, quarters, rows, data FROM parts {large}"
    ).fetchall():
        with suppress(*UNREADABLE):
            ids, values = unpack(data, rows, quarters)
            named = dict(file.execute("SELECT id, namespace FROM names"))
            owners = [named.get(number, "") for number in ids.tolist()]
            crowds = leave_out_crowds(owners, len(owners) // 2)[1]
            left = [row for row, owner in enumerate(owners) if owner not in crowds]
            left_out.update(owner for owner in owners if owner in crowds)
            changed = len(left), pack(ids[left], values[:, left])
            file.execute("UPDATE parts SET rows = ?, data = ? WHERE from_s = ?", (*changed, from_s))
            return bool(crowds)
    return False


def keeper(file: sqlite3.Connection, most: int, left_out: Counter[str]) -> Choice:
    """Return what chooses among rows of a file; `left_out` counts the others by namespace."""

    def keep(ids: IntColumn) -> IntColumn:
        if len(ids) <= most:
            return ids
        named = dict(file.execute("SELECT id, namespace FROM names"))
        ids = ids[[number in named for number in ids.tolist()]]
        return ids[choose_rows([named[number] for number in ids.tolist()], most, left_out)]

    return keep


def make_room(file: sqlite3.Connection, max_bytes: int, left_out: Counter[str]) -> None:
    """Remove the oldest days until the rest has room, and the names that no other day has.

    Crowded namespaces lose their own first: their oldest names, then their rows of the oldest days.
    left_out: counts these rows by namespace.
    """
    length = " + ".join(f"length({part})" for part in PARTS_OF_NAME)
    file.execute("DELETE FROM names WHERE last_s < (SELECT min(from_s) FROM parts)")
    counts = dict(file.execute(f"SELECT namespace, sum({length}) FROM names GROUP BY namespace"))
    most = min(max_bytes // PART_OF_NAMES // 2, MOST_NAMES * LEAST_CHARS)  # a name also stands in the index
    share = fair_share(counts.values(), most)
    for namespace in [each for each, chars in counts.items() if chars > share and len(counts) > 1]:
        sums = f"SELECT id, sum({length}) OVER (ORDER BY last_s DESC, id DESC) AS chars FROM names WHERE namespace = ?"
        file.execute(f"DELETE FROM names WHERE id IN (SELECT id FROM ({sums}) WHERE chars > ?)", (namespace, share))
    while True:
        file.execute("DELETE FROM names WHERE last_s < (SELECT min(from_s) FROM parts)")
        taken, rows = file.execute("SELECT sum(length(data)), count(*) FROM parts").fetchone()
        chars, names = file.execute(f"SELECT sum({length}), count(*) FROM names").fetchone()
        if (taken + 2 * chars <= max_bytes and names <= MOST_NAMES) or rows <= 1:
            return  # a name also stands in the index
        if not _leave_out_crowd(file, left_out):
            file.execute("DELETE FROM parts WHERE from_s = (SELECT min(from_s) FROM parts)")
