"""The fewest GPUs that hold a mix of MIG slices, and how each of them is cut.

A GPU of sevenths (A100, H100, H200, B200 and later) has eight memory slices, and each profile begins at some of them
only: 1g at 0 to 6, 1g with double memory at 0, 2, 4, 6, 2g at 0, 2, 4, 3g at 0 and 4, 4g and 7g at 0. Then compute
slices suffice too. So a GPU has a left half of two full quarters, and a right half of a full quarter and a last one:

    quarter     0-1   2-3 | 4-5   6-7
    holds 2g    yes   yes   yes   no
    holds 1g    two   two   two   one

The halves decide how many GPUs are needed, exactly. A GPU of quarters (A30, RTX PRO 6000) is a plain row of four.
Sources: `nvidia-smi mig -lgipp`, and NVIDIA's MIG user guide, "supported MIG profiles".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

MOST_SLICES = 100_000
"""More slices than any cluster has; it bounds the search."""


class Cut(Enum):
    """How a GPU is cut: its memory slices."""

    SEVENTHS = 8
    QUARTERS = 4


class Kind(NamedTuple):
    """A kind of slice: compute and memory slices."""

    compute: int
    memory: int


ONE, DOUBLE, TWO, THREE, FOUR, SEVEN = Kind(1, 1), Kind(1, 2), Kind(2, 2), Kind(3, 4), Kind(4, 4), Kind(7, 8)
STARTS: Mapping[Cut, Mapping[Kind, tuple[int, ...]]] = {
    Cut.SEVENTHS: {
        ONE: (0, 1, 2, 3, 4, 5, 6),
        DOUBLE: (0, 2, 4, 6),
        TWO: (0, 2, 4),
        THREE: (0, 4),
        FOUR: (0,),
        SEVEN: (0,),
    },
    Cut.QUARTERS: {ONE: (0, 1, 2, 3), TWO: (0, 2), FOUR: (0,)},
}
"""Memory slices at which an instance of each kind may begin."""


class MigLayout(NamedTuple):
    """The layout of one or more GPUs that are cut alike."""

    slices: tuple[tuple[Kind, int], ...]  # each slice with the memory slice at which it begins, by that
    gpus: int


def count_gpus(needed: Mapping[Kind, int], cut: Cut) -> int:
    """Return the fewest GPUs that hold these slices. Raises ValueError for a kind that the GPU has not, or too many."""
    _check(needed, cut)
    if cut is Cut.QUARTERS:
        return needed.get(FOUR, 0) + math.ceil((2 * needed.get(TWO, 0) + needed.get(ONE, 0)) / 4)
    least, most = 0, sum(needed.values()) - needed.get(SEVEN, 0)
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if _holds(needed, middle) else (middle + 1, most)
    return needed.get(SEVEN, 0) + least


def find_layouts(needed: Mapping[Kind, int], cut: Cut) -> tuple[MigLayout, ...]:
    """Return how the fewest GPUs are cut, the most frequent layout first. Raises ValueError as `count_gpus`."""
    gpus: list[list[tuple[Kind, int]]] = [[] for _ in range(count_gpus(needed, cut))]
    free = [set(range(cut.value)) for _ in gpus]
    for kind in _order(cut):
        left = needed.get(kind, 0)
        for start in sorted(STARTS[cut][kind], reverse=kind in (THREE, DOUBLE)):  # these leave the better places
            taken = set(range(start, start + kind.memory))
            for gpu, own in enumerate(gpus):
                if left and taken <= free[gpu]:
                    free[gpu] -= taken
                    own.append((kind, start))
                    left -= 1
        assert not left  # `count_gpus` is exact
    counted = Counter(tuple(sorted(each, key=lambda slice_: slice_[1])) for each in gpus)
    return tuple(MigLayout(*each) for each in counted.most_common())


def _order(cut: Cut) -> tuple[Kind, ...]:
    """Return the kinds in the order in which they are placed: those with the fewest places first."""
    return tuple(kind for kind in (SEVEN, FOUR, THREE, TWO, DOUBLE, ONE) if kind in STARTS[cut])


def _check(needed: Mapping[Kind, int], cut: Cut) -> None:
    for kind, count in needed.items():
        if kind not in STARTS[cut]:
            raise ValueError(
                f"a GPU cut into {cut.name.lower()} has no slice of {kind.compute}g with {kind.memory} parts"
            )
        if not 0 <= count <= MOST_SLICES:
            raise ValueError(f"{count} slices of {kind.compute}g; allowed: 0 to {MOST_SLICES:,}")


def _holds(needed: Mapping[Kind, int], gpus: int) -> bool:
    """Return whether this many GPUs hold all slices but the 7g.

    Of two halves the right one is worth less to smaller slices, so 3g takes it first; of two places the last quarter
    is worth less, so 1g with double memory takes it first.
    """
    left, right = gpus - needed.get(FOUR, 0), gpus - min(needed.get(THREE, 0), gpus)
    left -= needed.get(THREE, 0) - (gpus - right)
    full, last = 2 * left + right - needed.get(TWO, 0), right
    if left < 0 or full < 0:
        return False
    in_last = min(needed.get(DOUBLE, 0), last)
    full, last = full - (needed.get(DOUBLE, 0) - in_last), last - in_last
    return full >= 0 and needed.get(ONE, 0) <= 2 * full + last
