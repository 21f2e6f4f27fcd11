"""The values of quarter hours and of days: how they are joined, chosen and packed. No file is read here."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn, or_zero

QUARTER_S = 900
DAY_S = 86_400
QUARTERS = DAY_S // QUARTER_S
SLACK_S = 30
"""Seconds by which two parts of a quarter hour may be longer than one, as where a clock is set right."""

UNREADABLE = (ValueError, TypeError, KeyError, lzma.LZMAError)

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0}]
MOST_ROWS = 20_000

FIELDS = ("gpus", "busy", "idle", "needed", "lacking", "beyond", "lacking_s", "beyond_s")
"""Means of GPUs over a quarter hour, but the last two are seconds. Of a pool, `gpus` are all that it has, and `busy`
those that are neither free nor loose; it has no further ones."""

Choice = Callable[[IntColumn], IntColumn]
"""Returns the ids that are kept, of those in the order of their weight; at most `MOST_ROWS`."""


class QuarterHour(NamedTuple):
    """The readings of a quarter hour."""

    seconds: int
    ids: IntColumn  # int64[N]
    values: FloatColumn  # float64[F, N]


def join_parts(before: QuarterHour | None, after: QuarterHour, keep: Choice) -> QuarterHour:
    """Return both parts of a quarter hour as one, as where the daemon began again within it.

    Where they overlap, as after a clock that was set back, only the later one.
    """
    seconds = after.seconds + (before.seconds if before is not None else 0)
    if before is None or seconds > QUARTER_S + SLACK_S:
        return after
    ids = np.sort(keep(np.concatenate([after.ids, np.setdiff1d(before.ids, after.ids)])))
    total, known_s = np.zeros((2, len(FIELDS), len(ids)))
    is_mean = np.array([not field.endswith("_s") for field in FIELDS])[:, None]
    for part in (before, after):
        stays = np.isin(part.ids, ids)
        columns, values = np.searchsorted(ids, part.ids[stays]), part.values[:, stays]
        total[:, columns] += or_zero(values) * np.where(is_mean, part.seconds, 1)
        known_s[:, columns] += np.where(np.isnan(values), 0, part.seconds)
    is_pool = known_s[FIELDS.index("needed")] == 0  # its size was unknown in a part where it is absent
    lasted_s = np.where(is_pool, known_s, seconds)
    values = total / np.where(is_mean, np.where(lasted_s > 0, lasted_s, np.nan), np.where(is_pool, np.nan, 1))
    return QuarterHour(seconds, ids, values)


DayPart = tuple[int, IntColumn, FloatColumn]
"""Number of its first quarter hour within the day, ids, and values, float64[F, N, Q]."""


def join_quarters(parts: Sequence[DayPart], keep: Choice) -> tuple[IntColumn, FloatColumn]:
    """Return ids and values of a day, float64[F, N, Q]. A later part replaces the quarter hours of earlier ones.

    keep: chooses among the ids, of which those with the most quarter hours come first.
    """
    known = [np.flatnonzero(~np.isnan(values).all(axis=(0, 1))) for _, _, values in parts]
    every = np.concatenate([np.empty(0, np.int64), *(ids for _, ids, _ in parts)])
    lasted = [np.full(len(part[1]), len(of)) for part, of in zip(parts, known, strict=True)]
    found, place = np.unique(every, return_inverse=True)
    order = np.argsort(-np.bincount(place, np.concatenate([np.empty(0), *lasted]), len(found)), kind="stable")
    numbers = np.sort(keep(found[order]))
    day = np.full((len(FIELDS), len(numbers), QUARTERS), np.nan)
    for (first, ids, values), of in zip(parts, known, strict=True):
        stays = np.isin(ids, numbers)
        columns = np.searchsorted(numbers, ids[stays])
        day[:, :, first + of] = np.nan
        day[:, columns[:, None], first + of] = values[:, stays][:, :, of]
    return numbers, day


def pack(ids: IntColumn, values: FloatColumn) -> bytes:
    """Return numbers and values as bytes. values: [F, N, Q]."""
    bits = np.clip(values, None, 60_000).astype(np.float16).view(np.uint16)
    bits = np.where(np.isnan(values), np.float16(np.nan).view(np.uint16), (bits + 16) & 0xFFE0)
    plain = ids.astype("<u4").tobytes() + (bits >> 5).astype("<u2").tobytes()
    return lzma.compress(plain, lzma.FORMAT_RAW, filters=FILTERS)


def unpack(data: bytes, rows: int, quarters: int) -> tuple[IntColumn, FloatColumn]:
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
