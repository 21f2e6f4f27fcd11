"""Owners take turns, whatever one of them has."""

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.turns import in_turns

ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 9)), max_size=30)


@given(ITEMS)
def test_owners_take_turns_and_late_items_come_last(items: list[tuple[str, bool, int]]) -> None:
    order = in_turns(items, lambda item: item[0], lambda item: item[1])
    assert sorted(order) == sorted(items)
    assert [late for _, late, _ in order] == sorted(late for _, late, _ in items)
    for late in (False, True):
        part = [item for item in order if item[1] is late]
        owners = [owner for owner, *_ in part]
        turns = [owners[:place].count(owner) for place, owner in enumerate(owners)]
        assert turns == sorted(turns)  # nobody has a second turn before all have had their first
        for owner in set(owners):  # each keeps its own order
            own = [item for item in items if item[:2] == (owner, late)]
            assert [item for item in part if item[0] == owner] == own
