"""How names of the code leave the process: in the HTTP API, in JSON lines, as labels of metrics.

They are those of the code, so a rename in the code renames them outside too. `tests/data/published-names.txt` holds all
of them, and a test compares.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

VERSION = 1
"""Version of these names, in lines of `dry-run --json`. It changes when a released name is renamed or removed."""


class PublishedEnum(IntEnum):
    """An enumeration whose members have a published name, and a title for people: `NAME = 0, "Title"`."""

    def __new__(cls, value: int, *_: object) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        return member

    def __init__(self, _: int, title: str = "") -> None:
        self.title = title or self.published.replace("_", " ")

    @property
    def published(self) -> str:
        return self.name.lower()
