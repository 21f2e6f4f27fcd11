"""Values that take long to make, kept while what they were made of stays the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

COMPARED = (int, float, str, bytes, tuple, list, frozenset)
Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """A value that is made again only when what it was made of differs.

    Numbers, texts and collections of them are compared by value, tables and other objects by identity.
    """

    def __init__(self) -> None:
        self.last: Value | None = None  # None: never made
        self.number = 0  # of times that it was made
        self._made_of: tuple[object, ...] = ()

    def get(self, make: Callable[[], Value], *made_of: object) -> Value:
        """Return the value of these, made by `make` if they are others than before."""
        if self.last is None or not all(map(_is_same, made_of, self._made_of)):
            self.last, self._made_of = make(), made_of
            self.number += 1
        return self.last


def _is_same(new: object, old: object) -> bool:
    return new is old or (isinstance(new, COMPARED) and new == old)
