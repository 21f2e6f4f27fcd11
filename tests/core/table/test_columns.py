"""Operations of tables of columns, and of tables within tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.table.columns import (
    PER_OBJECTIVE,
    PER_STRATEGY_SET,
    TIMESTAMP,
    TRANSIENT,
    Columns,
    FloatColumn,
    PerObjective,
    PerStrategySet,
    TimestampColumn,
    Transient,
    ceil_replicas,
    fill_unknown,
    find_ids,
    replace,
)


@dataclass(frozen=True)
class Inner(Columns):
    time_s: TimestampColumn
    count: PerObjective[FloatColumn]  # float64[2, W]

    @classmethod
    def blank(cls, rows):
        return cls(np.full(rows, np.nan), np.zeros((2, rows)))


@dataclass(frozen=True)
class Outer(Columns):
    plain: FloatColumn
    cost: PerStrategySet[FloatColumn]
    inner: Inner
    passing: Transient[Inner]


def outer(*numbers):
    row = np.array(numbers, dtype=float)
    one, other = (Inner(row + 10 * place, np.stack([row, -row]) * place) for place in (1, 2))
    return Outer(row, 5 * row, one, other)


def same(one, other):
    assert one.columns().keys() == other.columns().keys()
    for place, column in one.columns().items():
        np.testing.assert_array_equal(column, other.columns()[place], err_msg=place)


def test_path_of_a_column_begins_with_its_table():
    table = outer(1.0, 2.0)
    places = ("plain", "cost", "inner.time_s", "inner.count", "passing.time_s", "passing.count")
    assert tuple(table.columns()) == places
    assert table.columns()["passing.count"] is table.passing.count


def test_blank_tables_are_nan_unless_their_type_says_otherwise():
    blank = Outer.blank(2)
    assert np.isnan(blank.plain).all()
    assert np.isnan(blank.inner.time_s).all()
    assert blank.passing.count.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_take_and_stack_include_inner_tables():
    same(outer(1.0, 2.0, 3.0).take(np.array([2, 0])), outer(3.0, 1.0))
    same(Outer.stack([outer(1.0), outer(2.0, 3.0)]), outer(1.0, 2.0, 3.0))


def test_with_columns_replaces_only_the_given_paths():
    before, other = outer(1.0, 2.0), np.array([7.0, 8.0])
    after = before.with_columns({"cost": other, "passing.time_s": other})
    assert after.cost is after.passing.time_s is other
    assert after.inner.time_s is before.inner.time_s
    assert after.plain is before.plain
    assert before.with_columns({"rules.passing.time_s": other}, "rules.").passing.time_s is other


def test_marks_of_a_column_include_those_of_its_table():
    assert Outer.marks() == {
        "plain": set(),
        "cost": {PER_STRATEGY_SET, PER_OBJECTIVE},
        "inner.time_s": {TIMESTAMP},
        "inner.count": {PER_OBJECTIVE},
        "passing.time_s": {TIMESTAMP, TRANSIENT},
        "passing.count": {PER_OBJECTIVE, TRANSIENT},
    }


IDS = st.lists(st.integers(0, 20), unique=True)


@given(IDS, IDS)
def test_find_ids_returns_index_and_presence(ids: list[int], among: list[int]):
    index, known = find_ids(np.array(ids, np.int64), np.sort(np.array(among, np.int64)))
    assert known.tolist() == [each in among for each in ids]
    assert index.tolist() == [sorted(among).index(each) if each in among else 0 for each in ids]


def test_ceil_replicas_rounds_up_but_ignores_rounding_errors():
    filled = ceil_replicas(np.array([0.0, 1e-12, 0.2, 3.2, 4.0000000001, np.nan]))
    assert filled.tolist()[:5] == [0, 0, 1, 4, 4]
    assert not np.signbit(filled[:5]).any()
    assert np.isnan(filled[5])


def test_fill_unknown_takes_the_other_value_for_nan():
    known, other = np.array([1.0, np.nan, np.nan]), np.array([5.0, 6.0, np.nan])
    np.testing.assert_array_equal(fill_unknown(known, other), [1.0, 6.0, np.nan])


def test_fill_unknown_copies_no_column_that_it_needs_alone():
    unknown, known = np.full(2, np.nan), np.array([1.0, 2.0])
    assert fill_unknown(unknown, known) is known
    assert fill_unknown(known, unknown) is known


def test_replace_copies_the_table_and_shares_other_columns():
    before = Inner(np.zeros(2), np.ones((2, 2)))
    after = replace(before, time_s=np.full(2, 5.0))
    assert type(after) is Inner
    assert after.time_s.tolist() == [5, 5]
    assert after.count is before.count
    assert before.time_s.tolist() == [0, 0]


def test_replace_rejects_an_unknown_field():
    with pytest.raises(TypeError, match="Inner has no field tims_s"):
        replace(Inner.blank(1), tims_s=np.zeros(1))
