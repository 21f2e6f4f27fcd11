"""Column types, and what every table of columns can do.

A table is a frozen dataclass whose array fields share their last axis: one entry per row. Axis letters are
W workloads, P pods, S signals, G stages, K schedule windows. Unknown is NaN.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Self, TypeVar, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]
Floating = TypeVar("Floating", np.float32, np.float64)

_MOMENT = "moment"
MomentColumn = Annotated[FloatColumn, _MOMENT]
"""Times on the clock of the tick, which another process does not share; seconds of any other kind are a FloatColumn."""


class Columns:
    """Base of tables whose every field is one array over the same rows (the last axis)."""

    @classmethod
    def filled(cls, rows: int, value: float = np.nan) -> Self:
        """Make a table of `rows` rows with `value` in every field, float64."""
        return cls(**{field.name: np.full(rows, value) for field in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def stack(cls, tables: list[Self]) -> Self:
        """Join tables one below the other."""
        return cls(
            **{
                field.name: np.concatenate([np.atleast_1d(getattr(table, field.name)) for table in tables], axis=-1)
                if tables
                else np.empty(0)
                for field in fields(cls)  # type: ignore[arg-type]
            }
        )

    def take(self, rows: IntColumn) -> Self:
        """Return the given rows, in the given order."""
        cls = type(self)
        return cls(**{f.name: getattr(self, f.name)[..., rows] for f in fields(cls)})  # type: ignore[arg-type]


def moments(table: type) -> frozenset[str]:
    """Return the names of the columns of a table that are declared as moments."""
    hints = get_type_hints(table, include_extras=True)
    return frozenset(name for name, hint in hints.items() if _MOMENT in get_args(hint)[1:])


def or_zero(values: npt.NDArray[Floating]) -> npt.NDArray[Floating]:
    """Return the values, 0 where they are unknown. `np.nan_to_num` takes five times as long on few rows."""
    return np.where(np.isnan(values), 0.0, values)
