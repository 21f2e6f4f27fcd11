"""MIG layouts: compared with a search of all placements, and within the geometry of a GPU."""

from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.core.supply.mig_layout import (
    DOUBLE,
    FOUR,
    ONE,
    SEVEN,
    STARTS,
    THREE,
    TWO,
    Cut,
    count_gpus,
    find_layouts,
)

KINDS = (SEVEN, FOUR, THREE, TWO, DOUBLE, ONE)


@cache
def mixes(cut):
    """Return every mix that one GPU holds, found by placing slices one by one; counts in the order of `KINDS`."""
    found = set()

    def place(used, counts):
        if counts in found and not used:
            return
        found.add(counts)
        for number, kind in enumerate(KINDS):
            for start in STARTS[cut].get(kind, ()):
                slots = frozenset(range(start, start + kind.memory))
                if not slots & used:
                    key = (used | slots, (*counts[:number], counts[number] + 1, *counts[number + 1 :]))
                    if key not in seen:
                        seen.add(key)
                        place(*key)

    seen = set()
    place(frozenset(), (0,) * len(KINDS))
    return sorted(mix for mix in found if any(mix))


@cache
def fewest(counts, cut):
    """Return the fewest GPUs by trying every mix for the GPU that holds the largest slice."""
    if not any(counts):
        return 0
    largest = next(number for number, count in enumerate(counts) if count)
    best = sum(counts)
    for mix in mixes(cut):
        if mix[largest]:
            rest = tuple(max(count - held, 0) for count, held in zip(counts, mix, strict=True))
            best = min(best, 1 + fewest(rest, cut))
    return best


def demands(cut, most):
    counts = st.tuples(*(st.integers(0, most if kind in STARTS[cut] else 0) for kind in KINDS))
    return counts.map(lambda found: dict(zip(KINDS, found, strict=True)))


@pytest.mark.parametrize(
    ("needed", "gpus"),
    [
        ({}, 0),
        ({SEVEN: 2, ONE: 1}, 3),
        ({ONE: 7}, 1),
        ({ONE: 8}, 2),  # an eighth of the memory of 7 x 1g is left, and no slice begins there
        ({DOUBLE: 4}, 1),
        ({TWO: 3, ONE: 1}, 1),
        ({TWO: 4}, 2),
        ({THREE: 2}, 1),
        ({FOUR: 1, THREE: 1}, 1),
        ({FOUR: 2}, 2),
        ({FOUR: 2, THREE: 2, TWO: 3, DOUBLE: 1}, 3),
        ({FOUR: 1, TWO: 1, DOUBLE: 1}, 1),
        ({THREE: 3, ONE: 4}, 2),
    ],
)
def test_fewest_gpus_hold_the_slices_when_geometry_is_published(needed, gpus):
    assert count_gpus(needed, Cut.SEVENTHS) == gpus


@given(needed=demands(Cut.SEVENTHS, 3))
def test_count_is_the_fewest_when_all_placements_are_tried(needed):
    assert count_gpus(needed, Cut.SEVENTHS) == fewest(tuple(needed.values()), Cut.SEVENTHS)


@given(needed=demands(Cut.QUARTERS, 5))
def test_count_is_the_fewest_when_gpus_are_cut_into_quarters(needed):
    wanted = {kind: count for kind, count in needed.items() if count}
    assert count_gpus(wanted, Cut.QUARTERS) == fewest(tuple(needed.values()), Cut.QUARTERS)


@given(data=st.data(), cut=st.sampled_from(Cut))
def test_layouts_keep_to_the_geometry_when_slices_are_many(data, cut):
    needed = {kind: count for kind, count in data.draw(demands(cut, 40)).items() if count}
    layouts = find_layouts(needed, cut)
    assert sum(layout.gpus for layout in layouts) == count_gpus(needed, cut)
    placed = Counter()
    for layout in layouts:
        taken = [slot for kind, start in layout.slices for slot in range(start, start + kind.memory)]
        assert len(taken) == len(set(taken)) and all(slot < cut.value for slot in taken)
        assert all(start in STARTS[cut][kind] for kind, start in layout.slices)
        assert sum(kind.compute for kind, _ in layout.slices) <= cut.value - (cut is Cut.SEVENTHS)
        for kind, _ in layout.slices:
            placed[kind] += layout.gpus
    assert placed == needed


@pytest.mark.parametrize(
    ("needed", "words"), [({THREE: 1}, "no slice"), ({ONE: -1}, "allowed"), ({ONE: 10**9}, "allowed")]
)
def test_slices_are_refused_when_no_gpu_has_them(needed, words):
    with pytest.raises(ValueError, match=words):
        count_gpus(needed, Cut.QUARTERS)
