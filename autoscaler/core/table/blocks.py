"""A table in blocks of rows: rows of one block are replaced without a copy of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from autoscaler.core.table.columns import FloatColumn, IntColumn, Rows, moved, replace, with_values


@dataclass(frozen=True)
class Blocks(Generic[Rows]):
    """A table in blocks. Rows are taken and replaced at the least cost if those of a block stand together."""

    tables: tuple[Rows, ...]  # one per block, its rows in the order of the whole table
    block: IntColumn  # int64[W], the block of each row
    place: IntColumn  # int64[W], its row in the table of its block

    @classmethod
    def of(cls, table: Rows, block: IntColumn, blocks: int) -> Blocks[Rows]:
        """Return a table in blocks. block: int64[W], 0..blocks - 1, that of each row."""
        return cls(
            tuple(table.take(np.flatnonzero(block == each)) for each in range(blocks)), block, _find_places(block)
        )

    def moved(self, before: IntColumn, after: IntColumn, block: IntColumn) -> Blocks[Rows]:
        """Return it on other rows, as `columns.moved`. block: int64[W], that of each row after it."""
        if np.array_equal(before, after):
            return self
        tables = (
            moved(table, before[self.block == each], after[block == each]) for each, table in enumerate(self.tables)
        )
        return Blocks(tuple(tables), block, _find_places(block))

    def merged(self) -> Rows:
        """Return the whole table."""
        return self.take(np.arange(len(self.block)))

    def column(self, of: Callable[[Rows], FloatColumn]) -> FloatColumn:
        """Return one column of the whole table; float64[W]. of: returns it from the table of a block."""
        column = np.empty(len(self.block))
        for each, table in enumerate(self.tables):
            column[self.block == each] = of(table)
        return column

    def by_block(self, rows: IntColumn) -> IntColumn:
        """Return the given rows by block; those of a block keep their order."""
        return rows[np.argsort(self.block[rows], kind="stable")]

    def take(self, rows: IntColumn) -> Rows:
        """Return some rows, in the given order. A block that is taken whole and alone is not copied."""
        parts = [(each, some, self.place[rows[some]]) for each, some in self._split(rows)]
        if len(parts) == 1 and self._is_whole(parts[0][0], parts[0][2]):
            return self.tables[parts[0][0]]
        of_block, taken = [table.columns() for table in self.tables], {}
        for path, column in of_block[0].items():
            taken[path] = np.empty((*column.shape[:-1], len(rows)), column.dtype)
            for each, some, places in parts:
                taken[path][..., some] = of_block[each][path].take(places, axis=-1)
        return self.tables[0].with_columns(taken)

    def with_rows(self, rows: IntColumn, columns: Mapping[str, Any]) -> Blocks[Rows]:
        """Return a copy in which some columns, by path, have other values in some rows; [..., R] each.

        Other columns and other blocks are not copied, nor is a block of which all rows are replaced.
        """
        tables = list(self.tables)
        for each, some in self._split(rows):
            places, values = self.place[rows[some]], {path: column[..., some] for path, column in columns.items()}
            if not self._is_whole(each, places):
                before = tables[each].columns()
                values = {path: with_values(before[path], places, column) for path, column in values.items()}
            tables[each] = tables[each].with_columns(values)
        return replace(self, tables=tuple(tables))

    def _split(self, rows: IntColumn) -> Iterator[tuple[int, slice | IntColumn]]:
        """Return the blocks of these rows, each with the index of those that it has."""
        block = self.block[rows]
        for each in np.flatnonzero(np.bincount(block)).tolist():
            some = np.flatnonzero(block == each)
            first, end = int(some[0]), int(some[-1]) + 1
            yield each, slice(first, end) if len(some) == end - first else some

    def _is_whole(self, block: int, places: IntColumn) -> bool:
        """Return whether these are all rows of the block, in its order."""
        return np.array_equal(places, np.arange(np.count_nonzero(self.block == block)))


def _find_places(block: IntColumn) -> IntColumn:
    """Return how many earlier rows have the same block; int64[W]."""
    place = np.empty_like(block)
    for each in np.unique(block):
        some = np.flatnonzero(block == each)
        place[some] = np.arange(len(some))
    return place
