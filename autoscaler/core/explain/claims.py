"""Words that know what they claim: each value in them has a name, so a reader compares values and parses no English."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from string import Formatter
from typing import NamedTuple

from autoscaler.core.explain.format import ListedNames, Told


class SentenceClaim(NamedTuple):
    """One value that a text tells."""

    name: str  # of what is told, as in "queue_wait_s"
    value: float | str | ListedNames
    words: str  # as in "132 s"


class Words:
    """A text in parts, some of which claim a value."""

    __slots__ = ("parts",)

    def __init__(self, *parts: str | SentenceClaim) -> None:
        self.parts = parts

    def __add__(self, more: Words | str) -> Words:
        return Words(*self.parts, *(more.parts if isinstance(more, Words) else (more,)))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __str__(self) -> str:
        return "".join([part if isinstance(part, str) else part.words for part in self.parts])

    @property
    def claims(self) -> list[SentenceClaim]:
        return [part for part in self.parts if isinstance(part, SentenceClaim)]


NOTHING = Words()


def tell(template: str, **told: Words | str) -> Words:
    """Fill the fields of a template, which is a constant of the code.

    A value of `format` and a plain text become claims, Words bring their own, and an empty text claims nothing. A field
    with words of its own, as in "{paused:scaling is paused}", claims that they hold.
    """
    parts: list[str | SentenceClaim] = []
    for literal, name, words in _parse(template):
        if literal:
            parts.append(literal)
        value = (words or told[name]) if name else ""
        if isinstance(value, Words):
            parts += value.parts
        elif value:
            parts.append(SentenceClaim(name, value.value if isinstance(value, Told) else value, value))
    return Words(*parts)


@cache
def _parse(template: str) -> list[tuple[str, str, str]]:
    return [(literal, name or "", words or "") for literal, name, words, _ in Formatter().parse(template)]


def join(separator: str, texts: Iterable[Words]) -> Words:
    """Join the texts that are not empty, with the claims of each."""
    parts: list[str | SentenceClaim] = []
    for words in filter(None, texts):
        parts += (separator, *words.parts) if parts else words.parts
    return Words(*parts)


def plural(value: float, one: str, many: str) -> Words:
    """Return the word that agrees with a number, which claims nothing."""
    return Words(one if value == 1 else many)
