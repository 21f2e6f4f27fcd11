"""A table in blocks has the same rows as a table without blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.table.blocks import Blocks
from autoscaler.core.table.columns import Columns, FloatColumn, moved

COUNT = 3


@dataclass(frozen=True)
class Table(Columns):
    plain: FloatColumn
    wide: FloatColumn  # float64[2, W]

    @classmethod
    def blank(cls, rows):
        return cls(np.full(rows, np.nan), np.zeros((2, rows)))


def table(ids):
    row = np.array(ids, dtype=float)
    return Table(row, np.stack([row, -row]))


def in_blocks(ids):
    return Blocks.of(table(ids), np.array(ids, dtype=np.int64) % COUNT, COUNT)


def same(one, other):
    for place, column in one.columns().items():
        np.testing.assert_array_equal(column, other.columns()[place], err_msg=place)
        assert column.dtype == other.columns()[place].dtype


ids = st.lists(st.integers(0, 20), unique=True, max_size=12).map(sorted)


@st.composite
def some_rows(draw):
    """Ids of a table, and some of its rows in any order."""
    drawn = draw(ids)
    rows = draw(st.lists(st.sampled_from(range(len(drawn))), unique=True)) if drawn else []
    return drawn, np.array(rows, dtype=np.int64)


@pytest.mark.slow
@given(some_rows())
def test_rows_are_taken_and_replaced_as_without_blocks(drawn):
    row_ids, rows = drawn
    blocks, plain, values = in_blocks(row_ids), table(row_ids), table(100.0 + rows)
    same(blocks.merged(), plain)
    same(blocks.take(rows), plain.take(rows))
    np.testing.assert_array_equal(blocks.column(lambda part: part.plain), plain.plain)
    same(blocks.with_rows(rows, values.columns()).merged(), plain.with_rows(rows, values))
    same(blocks.merged(), plain)
    by_block = blocks.by_block(rows)
    assert sorted(by_block.tolist()) == sorted(rows.tolist())
    assert [row_ids[row] % COUNT for row in by_block] == sorted(row_ids[row] % COUNT for row in rows)


@pytest.mark.slow
@given(ids, ids)
def test_rows_move_as_without_blocks(before, after):
    before, after = np.array(before, dtype=np.int64), np.array(after, dtype=np.int64)
    now = in_blocks(before).moved(before, after, after % COUNT)
    same(now.merged(), moved(table(before), before, after))
    rows = np.arange(len(after))
    same(now.take(rows), now.merged().take(rows))


def test_some_columns_are_replaced_alone():
    blocks = in_blocks([0, 1, 2, 3]).with_rows(np.array([1, 3]), {"plain": np.array([8.0, 9.0])})
    same(blocks.merged(), Table(np.array([0.0, 8.0, 2.0, 9.0]), table([0, 1, 2, 3]).wide))


def test_other_blocks_are_not_copied():
    blocks, rows = in_blocks([0, 1, 2, 3]), np.array([0, 3])
    assert blocks.take(rows) is blocks.tables[0]
    values = table([7, 8])
    after = blocks.with_rows(rows, values.columns())
    assert after.tables[1] is blocks.tables[1] and after.tables[2] is blocks.tables[2]
    assert np.shares_memory(after.tables[0].plain, values.plain)
