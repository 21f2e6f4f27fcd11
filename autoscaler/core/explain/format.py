"""Numbers, times, shares and names as text, with their units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class ListedNames(NamedTuple):
    """ListedNames in a text, and how many others it leaves out."""

    named: tuple[str, ...]
    others: int


class Told(str):
    """A value in words, as in "132 s"."""

    __slots__ = ("value",)
    value: float | str | ListedNames

    def __new__(cls, words: str, value: float | str | ListedNames) -> Told:
        told = super().__new__(cls, words)
        told.value = value
        return told


def number(value: float) -> Told:
    """Write a number with three digits, never as a power of ten; below 0.0001 it is 0."""
    return Told(_number(value), value)


def count(value: float, noun: str = "replica") -> Told:
    """Write a number with its noun, in the plural unless it reads as 1."""
    text = _number(value)
    return Told(f"{text} {noun}" if text == "1" else f"{text} {noun}s", value)


def seconds(value: float) -> Told:
    """Write a time in the unit that reads best: below 10 min in seconds, as in 132 s, unless it is whole minutes.

    From two days on it is in days, as in 155 days.
    """
    if math.isnan(value):
        return Told("an unknown time", value)
    if 0 < value < 0.9995:  # above, three digits round it to a second
        return Told(f"{_number(value * 1000)} ms", value)
    if value < 120 or (value < 600 and value % 60):
        return Told(f"{_number(value)} s", value)
    if value < 7200:
        return Told(f"{_number(value / 60)} min", value)
    return Told(f"{_number(value / 3600)} h" if value < 172_800 else f"{_number(value / 86_400)} days", value)


def window(value_s: float) -> Told:
    """Write the window of an error budget, as in "missed in a day"."""
    return Told("a day", value_s) if value_s == 86_400 else seconds(value_s)


def percent(share: float) -> Told:
    """Write a share in percent; below 0.0001% it is 0%."""
    if math.isnan(share):
        return Told("an unknown share", share)
    return Told(f"{_number(100 * share)}%" if share >= 1e-6 else "0%", share)


def whole_percent(share: float) -> Told:
    """Write a share in whole percent."""
    return Told(f"{share:.0%}", share)


def listed(names: Sequence[str], total: int = 0) -> Told:
    """Write names, as in "a, b and 2 others". total: of things, where more of them are than these names."""
    others = max(total - len(names), 0)
    *first, last = [*names, *([f"{others} others"] if others else [])] or [""]
    return Told(f"{', '.join(first)} and {last}" if first else last, ListedNames(tuple(names), others))


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "an unknown number of"
    if abs(value) < 1e-4:
        return "0"
    return f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"
