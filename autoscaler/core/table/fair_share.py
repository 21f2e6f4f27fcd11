"""Equal shares of a bound, so that one tenant with very many of a thing takes nothing from others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence


def fair_share(counts: Collection[int], most: int) -> int:
    """Return the largest number up to which each may have its own, so that together they have at most `most`."""
    left = most
    for number, count in enumerate(sorted(counts)):
        share = left // (len(counts) - number)
        if count > share:
            return share
        left -= count
    return most


def keep_fairly(owners: Sequence[Hashable], most: int) -> list[int]:
    """Return the places that are kept, in order: the first ones of each owner, up to its share of `most`.

    Those of the owner "" are everybody's. They go first, and take at most a half, or what others leave.
    """
    counts = Counter(owner for owner in owners if owner != "")
    shared = [place for place, owner in enumerate(owners) if owner == ""][: max(most // 2, most - counts.total())]
    share = max(fair_share(counts.values(), most - len(shared)), 1)
    seen, kept = Counter[Hashable](), list[int]()
    for place, owner in enumerate(owners):
        seen[owner] += 1
        if owner != "" and seen[owner] <= share:
            kept.append(place)
    return sorted(shared + kept[: most - len(shared)])


def leave_out_crowds(owners: Sequence[Hashable], most: int) -> tuple[list[int], list[Hashable]]:
    """Return the places that are kept fairly, and the owners that lose some; none is kept if that is more than a half.

    Then no owner is crowded: there are too many of them, or all is everybody's.
    """
    kept = keep_fairly(owners, most)
    counts = Counter(owner for owner in owners if owner != "")
    crowded = [*(counts - Counter(owners[place] for place in kept))]
    return ([], []) if not counts or 2 * len(crowded) > len(counts) else (kept, crowded)
