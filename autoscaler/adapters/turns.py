"""An order in which namespaces take turns, so that the objects of one delay those of another by one turn each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def in_turns(
    items: Iterable[Item], owner: Callable[[Item], Hashable], late: Callable[[Item], bool] = lambda item: False
) -> list[Item]:
    """Return the items so that their owners take turns. Those that are late come after all others, in turns as well."""
    turns: Counter[tuple[bool, Hashable]] = Counter()
    order = []
    for item in items:
        key = late(item), owner(item)
        order.append((key[0], turns[key], item))
        turns[key] += 1
    return [item for *_, item in sorted(order, key=lambda each: each[:2])]
