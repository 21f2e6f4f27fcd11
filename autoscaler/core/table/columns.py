"""Column types, and what every table of columns can do.

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

FITTING = 4096
"""Values that fit the processor's cache several times over: so many are taken at once, be they of one column or all."""

NOISE = 1e-6
"""Of replicas: products of measured fractions carry that much, so that 4.0000001 are 4."""

MOMENT, PRESENT, OF_FAMILY, OF_OBJECTIVE = "moment", "present", "of family", "of objective"

MomentColumn = Annotated[FloatColumn, MOMENT]
"""Times on the clock of the tick, which another process does not share; seconds of any other kind are a FloatColumn.
Where its name could be that of a length of time it begins with `last_` or ends in `_since_s`."""

Present = Annotated[Marked, PRESENT]
"""A column, or a table of them, that follows the present within minutes. A restart interrupts the watch that it stands
for, so it begins anew with a process: nothing shrinks or counts as idle before a full window was watched again."""

OfObjective = Annotated[Marked, OF_OBJECTIVE]
"""What means something only with the objectives it was counted under."""

OfFamily = Annotated[Marked, OF_FAMILY, OF_OBJECTIVE]
"""What means something only together, and only with the family of rules and the objectives that it is about."""


class Columns:
    """Base of tables whose every field is one array over the same rows (the last axis), or another such table."""

    @classmethod
    def filled(cls, rows: int, value: float = np.nan) -> Self:
        """Make a table of `rows` rows with `value` in every field, float64."""
        return cls(**{field.name: np.full(rows, value) for field in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def blank(cls, rows: int) -> Self:
        """Make a table of `rows` rows that nothing is known of: NaN, and tables that are blank in their way."""
        unknown = np.full(rows, np.nan)
        return cls(**{name: table.blank(rows) if table else unknown for name, (table, _) in cls._declared().items()})

    @classmethod
    def stack(cls, tables: list[Self]) -> Self:
        """Join tables, at least one, one below the other."""
        whole = [table.columns() for table in tables]
        return tables[0].changed({n: np.concatenate([each[n] for each in whole], axis=-1) for n in whole[0]})

    def take(self, rows: IntColumn) -> Self:
        """Return the given rows, in the given order."""
        return self.changed({place: column.take(rows, axis=-1) for place, column in self.columns().items()})

    def put(self, rows: IntColumn, those: Self) -> Self:
        """Return it with the rows of another such table in the stead of the given ones."""
        columns = {place: column.copy() for place, column in self.columns().items()}
        for place, column in those.columns().items():
            columns[place][..., rows] = column
        return self.changed(columns)

    def columns(self) -> dict[str, Any]:
        """Return all columns by place: "cost", and "paper.cost" of the table `paper`."""
        flat: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Columns):
                flat |= {f"{name}.{place}": column for place, column in value.columns().items()}
            else:
                flat[name] = value
        return flat

    def changed(self, columns: Mapping[str, Any], within: str = "") -> Self:
        """Return it with these columns, by place, in the stead of its own. within: place of this table, with a dot."""
        changed = {
            name: value.changed(columns, f"{within}{name}.")
            if isinstance(value, Columns)
            else columns.get(within + name, value)
            for name, value in vars(self).items()
        }
        return type(self)(**changed)

    @classmethod
    def marks(cls) -> dict[str, frozenset[str]]:
        """Return by place how each column is marked, itself or with a table that it is in."""
        marked: dict[str, frozenset[str]] = {}
        for name, (table, own) in cls._declared().items():
            within = {f"{name}.{place}": its for place, its in table.marks().items()} if table else {name: frozenset()}
            marked |= {place: its | own for place, its in within.items()}
        return marked

    @classmethod
    @cache
    def _declared(cls) -> dict[str, tuple[type[Columns] | None, frozenset[str]]]:
        """Return of each field the table that it holds, None for a column, and how it is marked."""
        declared: dict[str, tuple[type[Columns] | None, frozenset[str]]] = {}
        for name, hint in get_type_hints(cls, include_extras=True).items():
            kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            holds_table = get_origin(kind) is None and issubclass(kind, Columns)
            declared[name] = kind if holds_table else None, frozenset(marks)
        return declared


if TYPE_CHECKING:  # by the name of the original, whose fields are checked
    from dataclasses import replace as replace  # noqa: PLC0414  (handed on, which takes this form)
else:

    def replace(table: Table, **columns: Any) -> Table:
        """Return it with these columns, by field, in the stead of its own: `dataclasses.replace` for a tick.

        That one sets field by field, which takes six times as long for two dozen of them. A dataclass that checks what
        it is given when it is made needs it; here is none. Raises TypeError for a name that is no field.
        """
        changed = vars(table) | columns
        if len(changed) > len(vars(table)):
            raise TypeError(f"{type(table).__name__} has no field {', '.join(columns.keys() - vars(table).keys())}")
        replaced = object.__new__(type(table))
        object.__setattr__(replaced, "__dict__", changed)
        return replaced


def or_zero(values: npt.NDArray[Floating]) -> npt.NDArray[Floating]:
    """Return the values, 0 where they are unknown. `np.nan_to_num` takes five times as long on few rows."""
    return np.where(np.isnan(values), 0.0, values)


def within(values: FloatColumn, least: FloatColumn | float, most: FloatColumn | float) -> FloatColumn:
    """Return the values, those beyond these bounds at them; NaN stays. `np.clip` takes twice as long on few rows."""
    return np.minimum(np.maximum(values, least), most)


def fitting(columns: int, rows: int) -> Iterator[slice]:
    """Return the columns of some rows in turn, so many at once as fit the processor's cache, one at least."""
    at_once = max(FITTING // max(rows, 1), 1)
    return (slice(first, first + at_once) for first in range(0, columns, at_once))


def stacked(columns: Sequence[npt.NDArray[Values]]) -> npt.NDArray[Values]:
    """Return columns as the rows of one array: a single one as it is, not copied."""
    return columns[0][None] if len(columns) == 1 else np.array(columns)


def find(wanted: IntColumn, among: IntColumn) -> tuple[IntColumn, BoolColumn]:
    """Return where each of `wanted` stands in `among`, which ascends, and whether it does; 0 where it does not."""
    if not len(among):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    place = np.minimum(among.searchsorted(wanted), len(among) - 1)
    known = among[place] == wanted
    return np.where(known, place, 0), known


def whole(replicas: FloatColumn) -> FloatColumn:
    """Return how many replicas such fractions of them fill: 3.2 fill 4. NaN stays."""
    return np.asarray(np.ceil(replicas - NOISE) + 0.0)  # not -0, which is shown with its sign
