"""Column types, and the operations that every table of columns has.

A table is a frozen dataclass whose array fields share their last axis: one entry per row. Its other fields are tables
over the same rows. Axis letters are W workloads, P pods, S signals, G stages, K schedule windows. Unknown is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
Floating = TypeVar("Floating", np.float32, np.float64)
Values = TypeVar("Values", np.float64, np.bool_)
Marked = TypeVar("Marked")
Table = TypeVar("Table")

CACHE_VALUES = 4096
"""Values that one array operation handles at a time. Several such arrays fit the processor's cache."""

REPLICA_ROUNDING = 1e-6
"""Rounding error of a replica count that is a product of measured fractions: 4.0000001 replicas are 4."""

TIMESTAMP, TRANSIENT = "timestamp", "transient"
PER_STRATEGY_SET, PER_OBJECTIVE = "per strategy set", "per objective"

TimestampColumn = Annotated[FloatColumn, TIMESTAMP]
"""Times on the clock of the tick, which another process does not share. Durations are a FloatColumn.
If a name could be that of a duration, the name of the timestamp begins with `last_` or ends in `_since_s`."""

Transient = Annotated[Marked, TRANSIENT]
"""A column or table that follows the present within minutes, and starts blank in a new process.
After a restart a full window must pass before a workload shrinks or counts as idle."""

PerObjective = Annotated[Marked, PER_OBJECTIVE]
"""A column that is valid only for the objectives under which it was counted."""

PerStrategySet = Annotated[Marked, PER_STRATEGY_SET, PER_OBJECTIVE]
"""A column that is valid only for one strategy set and its objectives, and only with the other columns so marked."""


Rows = TypeVar("Rows", bound="Columns")


class Columns:
    """Base of tables: each field is an array over the same rows (its last axis), or another table over them."""

    @classmethod
    def filled(cls, rows: int, value: float = np.nan) -> Self:
        """Return a table of `rows` rows with `value` in every field, float64; the fields share one array."""
        column = np.full(rows, value)
        return cls(**{field.name: column for field in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def blank(cls, rows: int) -> Self:
        """Return a table of `rows` rows without values: NaN in each column; inner tables may differ."""
        unknown = np.full(rows, np.nan)
        return cls(**{name: table.blank(rows) if table else unknown for name, (table, _) in cls._declared().items()})

    @classmethod
    def stack(cls, tables: list[Self]) -> Self:
        """Concatenate the rows of tables; at least one table."""
        every = [table.columns() for table in tables]
        return tables[0].with_columns(
            {path: np.concatenate([each[path] for each in every], axis=-1) for path in every[0]}
        )

    def take(self, rows: IntColumn) -> Self:
        """Return the given rows, in the given order."""
        return self.with_columns({path: column.take(rows, axis=-1) for path, column in self.columns().items()})

    def with_rows(self, rows: IntColumn, values: Self) -> Self:
        """Return a copy in which the rows of `values` replace the given ones."""
        before = self.columns()
        return self.with_columns(
            {path: with_values(before[path], rows, column) for path, column in values.columns().items()}
        )

    def columns(self) -> dict[str, Any]:
        """Return all columns by path: "cost", and "zero.cost" for the column `cost` of the table `zero`."""
        flat: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Columns):
                flat |= {f"{name}.{path}": column for path, column in value.columns().items()}
            else:
                flat[name] = value
        return flat

    def with_columns(self, columns: Mapping[str, Any], prefix: str = "") -> Self:
        """Return a copy in which these columns, by path, replace its own. prefix: path of this table, with a dot."""
        changed = {
            name: value.with_columns(columns, f"{prefix}{name}.")
            if isinstance(value, Columns)
            else columns.get(prefix + name, value)
            for name, value in vars(self).items()
        }
        return type(self)(**changed)

    @classmethod
    def marks(cls) -> dict[str, frozenset[str]]:
        """Return by path the marks of each column: its own, and those of the tables that hold it."""
        marked: dict[str, frozenset[str]] = {}
        for name, (table, own) in cls._declared().items():
            inner = {f"{name}.{path}": marks for path, marks in table.marks().items()} if table else {name: frozenset()}
            marked |= {path: marks | own for path, marks in inner.items()}
        return marked

    @classmethod
    @cache
    def _declared(cls) -> dict[str, tuple[type[Columns] | None, frozenset[str]]]:
        """Return for each field the type of its table, or None for a column, and its marks."""
        declared: dict[str, tuple[type[Columns] | None, frozenset[str]]] = {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            holds_table = get_origin(kind) is None and issubclass(kind, Columns)
            declared[name] = kind if holds_table else None, frozenset(marks)
        return declared


if TYPE_CHECKING:  # under the name of the original, so that mypy checks the fields
    from dataclasses import replace as replace  # noqa: PLC0414  (the form of a re-export)
else:

    def replace(table: Table, **columns: Any) -> Table:
        """Return a copy in which these columns, by field, replace its own: a faster `dataclasses.replace`.

        `dataclasses.replace` sets field by field, which takes six times as long for two dozen fields. It is needed
        only for a dataclass with `__post_init__`. Raises TypeError for an unknown field.
        """
        changed = vars(table) | columns
        if len(changed) > len(vars(table)):
            raise TypeError(f"{type(table).__name__} has no field {', '.join(columns.keys() - vars(table).keys())}")
        replaced = object.__new__(type(table))
        object.__setattr__(replaced, "__dict__", changed)
        return replaced


def or_zero(values: npt.NDArray[Floating]) -> npt.NDArray[Floating]:
    """Return the values, with 0 for NaN. `np.nan_to_num` takes five times as long on few rows."""
    return np.where(np.isnan(values), 0.0, values)


def with_values(column: Any, rows: IntColumn, values: Any) -> Any:
    """Return a copy of a column with other values in some rows; [..., W]. values: [..., R]."""
    column = column.copy()
    column[..., rows] = values
    return column


def fill_unknown(known: FloatColumn, other: FloatColumn) -> FloatColumn:
    """Return a column with the values of `other` where `known` has NaN. If one of them is enough, it is not copied."""
    unknown = np.isnan(known)
    if unknown.all():
        return other
    return np.where(unknown, other, known) if unknown.any() else known


def clip(values: FloatColumn, least: FloatColumn | float, most: FloatColumn | float) -> FloatColumn:
    """Limit the values to least..most; NaN stays. `np.clip` takes twice as long on few rows."""
    return np.minimum(np.maximum(values, least), most)


def cache_sized_slices(columns: int, rows: int) -> Iterator[slice]:
    """Return slices that cover the columns in turn, each of CACHE_VALUES values at most, but of at least one column."""
    at_once = max(CACHE_VALUES // max(rows, 1), 1)
    return (slice(first, first + at_once) for first in range(0, columns, at_once))


def stack_rows(columns: Sequence[npt.NDArray[Values]]) -> npt.NDArray[Values]:
    """Return columns as the rows of one array; a single column is not copied."""
    return columns[0][None] if len(columns) == 1 else np.array(columns)


def find_ids(ids: IntColumn, among: IntColumn) -> tuple[IntColumn, BoolColumn]:
    """Return the index of each id in `among`, which ascends, and whether it is there; index 0 if it is not."""
    if not len(among):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
    index = np.minimum(among.searchsorted(ids), len(among) - 1)
    known = among[index] == ids
    return np.where(known, index, 0), known


def ceil_replicas(replicas: FloatColumn) -> FloatColumn:
    """Round replicas up, but for rounding errors: 3.2 gives 4, 4.0000001 gives 4. NaN stays."""
    return np.asarray(np.ceil(replicas - REPLICA_ROUNDING) + 0.0)  # + 0.0 turns -0.0 into 0.0


def moved(table: Rows, before: IntColumn, after: IntColumn) -> Rows:
    """Return a table on other rows, by id; a row that is new is blank.

    before, after: int64[W], ids of its rows and of those that it is to have, ascending.
    """
    if np.array_equal(before, after):
        return table
    blank = type(table).blank(len(after))
    if len(before) == 0:
        return blank
    row, known = find_ids(after, before)
    old = table.columns()
    return blank.with_columns(
        {place: np.where(known, old[place][..., row], new) for place, new in blank.columns().items()}
    )
