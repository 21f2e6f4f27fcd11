"""Equal shares: one owner with very many of a thing takes nothing from others."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.table.fair_share import keep_fairly, leave_out_crowds

owners = st.lists(st.sampled_from(["", "a", "b", "c", "crowd", "crowd", "crowd"]), max_size=60)


@given(owners, st.integers(1, 40))
def test_an_owner_keeps_what_it_has_when_others_have_more(of, most):
    kept = keep_fairly(of, most)
    counts, left = Counter(of), Counter(of[place] for place in kept)
    assert len(kept) == len(set(kept)) <= most and kept == sorted(kept)
    shared, named = counts.pop("", 0), left.pop("", 0)
    assert named == min(shared, max(most // 2, most - counts.total()))
    if len(of) <= most:
        assert len(kept) == len(of)
    for owner, number in counts.items():
        assert left[owner] >= min(number, (most - named) // len(counts))


def test_too_many_owners_are_no_crowd():
    many = [f"team-{number % 10}" for number in range(100)]
    assert leave_out_crowds(many, 50) == leave_out_crowds([""] * 100, 50) == ([], [])
    kept, crowded = leave_out_crowds([*many, *["crowd"] * 1000], 150)
    assert (kept[:100], len(kept), crowded) == ([*range(100)], 150, ["crowd"])
