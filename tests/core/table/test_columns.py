"""What every table of columns can do, and tables in tables."""

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


def test_columns_of_tables_in_tables_have_the_place_of_their_table_before_their_own():
    table = outer(1.0, 2.0)
    places = ("plain", "cost", "inner.time_s", "inner.count", "passing.time_s", "passing.count")
    assert tuple(table.columns()) == places
    assert table.columns()["passing.count"] is table.passing.count


def test_a_blank_table_knows_nothing_but_for_tables_that_begin_in_their_way():
    blank = Outer.blank(2)
    assert np.isnan(blank.plain).all()
    assert np.isnan(blank.inner.time_s).all()
    assert blank.passing.count.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_rows_are_taken_and_joined_in_all_tables():
    same(outer(1.0, 2.0, 3.0).take(np.array([2, 0])), outer(3.0, 1.0))
    same(Outer.stack([outer(1.0), outer(2.0, 3.0)]), outer(1.0, 2.0, 3.0))


def test_columns_that_are_changed_are_those_of_their_place_and_all_else_stays():
    before, other = outer(1.0, 2.0), np.array([7.0, 8.0])
    after = before.with_columns({"cost": other, "passing.time_s": other})
    assert after.cost is after.passing.time_s is other
    assert after.inner.time_s is before.inner.time_s
    assert after.plain is before.plain
    assert before.with_columns({"rules.passing.time_s": other}, "rules.").passing.time_s is other


def test_a_column_is_marked_as_it_is_itself_and_as_the_table_it_is_in():
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
def test_ids_are_found_where_they_stand_and_nowhere_else(wanted: list[int], among: list[int]):
    place, known = find_ids(np.array(wanted, np.int64), np.sort(np.array(among, np.int64)))
    assert known.tolist() == [each in among for each in wanted]
    assert place.tolist() == [sorted(among).index(each) if each in among else 0 for each in wanted]


def test_no_replicas_are_none_and_not_less():
    filled = ceil_replicas(np.array([0.0, 1e-12, 0.2, 3.2, 4.0000000001, np.nan]))
    assert filled.tolist()[:5] == [0, 0, 1, 4, 4]
    assert not np.signbit(filled[:5]).any()
    assert np.isnan(filled[5])


def test_some_fields_are_exchanged_and_the_table_stays_as_it_was():
    before = Inner(np.zeros(2), np.ones((2, 2)))
    after = replace(before, time_s=np.full(2, 5.0))
    assert type(after) is Inner
    assert after.time_s.tolist() == [5, 5]
    assert after.count is before.count
    assert before.time_s.tolist() == [0, 0]


def test_what_is_no_field_cannot_be_exchanged():
    with pytest.raises(TypeError, match="Inner has no field tims_s"):
        replace(Inner.blank(1), tims_s=np.zeros(1))
