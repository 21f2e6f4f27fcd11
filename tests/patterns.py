"""Tell whether a regular expression may cost more than linear time, from its parse tree.

A backtracking engine is slow if a text can be divided among repetitions in several ways, and what follows them fails.
So two unbounded repetitions must not share characters, unless something between them is no character of one of both.
For a search the text before the match counts as a repetition of any character. The answer errs on the safe side:
lookarounds and references are ignored, and a bounded repetition counts as its least number, once or twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

OTHER = 200  # stands for all characters that are not ASCII
ANY = frozenset({*range(128), OTHER})
UNBOUNDED = 1000
MAX_BRANCHES = 400
SEARCHES = {"search", "sub", "subn", "finditer", "findall", "split"}
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


class Part(NamedTuple):
    """A part of one way through a pattern: "one" character, an "optional" one, a "loop" or a "possessive" one."""

    kind: str
    characters: frozenset[int]
    inner: tuple[tuple[Part, ...], ...] = ()


Way = tuple[Part, ...]


def problems(pattern: str | bytes, flags: int = 0, is_search: bool = True) -> set[str]:
    """Return why a pattern may be slow; empty: it is linear."""
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    tree = parser.parse(text, flags & ~re.UNICODE)
    found: set[str] = set()
    for way in _ways(tree, tree.state.flags):
        found |= _of_way(way)
        if is_search:
            found |= {"search" for index in range(len(way)) if _begins_often(way, index)}
    return found


def _of_way(way: Way) -> set[str]:
    found = {"two loops"} if _share(way) else set()
    for part in way:
        for inner in part.inner:
            found |= _of_way(inner)
            if part.kind == "loop" and (not inner or _share((*inner, *inner))):
                found.add("a loop in a loop")
        firsts = frozenset(each for inner in part.inner for each in (inner[0].characters if inner else ()))
        if part.kind == "loop" and any(_overlap(a, b, firsts) for a in part.inner for b in part.inner if a is not b):
            found.add("alternatives in a loop")
    return found


def _share(way: Way) -> bool:
    loops = [index for index, part in enumerate(way) if part.kind == "loop"]
    return any(
        _repeats_within(way[one], way[other].characters)
        and _repeats_within(way[other], way[one].characters)
        and not _are_separate(way, one, other)
        for place, one in enumerate(loops)
        for other in loops[place + 1 :]
    )


def _repeats_within(loop: Part, characters: frozenset[int]) -> bool:
    """Return whether a loop can go round on these characters."""
    ways = loop.inner or ((Part("one", loop.characters),),)
    return any(all(part.kind != "one" or part.characters & characters for part in way) for way in ways)


def _are_separate(way: Way, one: int, other: int) -> bool:
    """Return whether something between two loops is no character of one of them."""
    between = [part.characters for part in way[one + 1 : other] if part.kind in ("one", "optional")]
    return any(not each & way[one].characters or not each & way[other].characters for each in between)


def _begins_often(way: Way, index: int) -> bool:
    """Return whether a search may begin at each place within a loop, and fail behind it each time."""
    loop, before, after = way[index], way[:index], way[index + 1 :]
    if loop.kind not in ("loop", "possessive") or any(part.kind == "begin" for part in before):
        return False
    is_apart = any(part.kind in ("one", "optional") and not part.characters & loop.characters for part in before)
    return not is_apart and any(part.kind == "one" for part in after)


def _overlap(one: Way, other: Way, firsts: frozenset[int]) -> bool:
    """Return whether a text may be a beginning of both alternatives, and go on with either. firsts: of all of them."""
    for a, b in zip(one, other, strict=False):
        if not a.characters & b.characters:
            return False
    rest = one[len(other) :] or other[len(one) :]
    return not rest or bool(rest[0].characters & firsts)


def _ways(tree: Iterable[Any], flags: int) -> list[Way]:
    ways: list[Way] = [()]
    for code, value in tree:
        choices = _choices(code, value, flags)
        ways = [(*way, *choice) for way in ways for choice in choices][:MAX_BRANCHES]
    return ways


def _choices(code: Any, value: Any, flags: int) -> Sequence[Way]:
    if code is codes.AT:
        lines = value is codes.AT_BEGINNING and flags & re.MULTILINE
        if lines:
            return [(Part("one", frozenset({ord("\n")})),)]
        return [(Part("begin", ANY),)] if value in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING) else [()]
    if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
        return [(Part("one", _characters(code, value, flags)),)]
    if code is codes.BRANCH:
        return [way for branch in value[1] for way in _ways(branch, flags)][:MAX_BRANCHES]
    if code is codes.SUBPATTERN:
        return _ways(value[3], flags)
    if code is codes.ATOMIC_GROUP:
        return _ways(value, flags)
    if code not in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return [()]
    least, most, repeated = value
    inner = tuple(_ways(repeated, flags))
    if most > UNBOUNDED:
        kind = "possessive" if code is codes.POSSESSIVE_REPEAT else "loop"
        loop = Part(kind, frozenset(c for way in inner for part in way for c in part.characters), _complex(inner))
        return [(*way, loop) for way in inner] if least else [(loop,)]
    if least:
        return [way * min(least, 2) for way in inner]
    return [
        (),
        *(tuple(part._replace(kind="optional") if part.kind == "one" else part for part in way) for way in inner),
    ]


def _complex(ways: tuple[Way, ...]) -> tuple[Way, ...]:
    """Return the ways through a repeated part, unless each is one character."""
    return () if all(len(way) == 1 and way[0].kind == "one" for way in ways) and _are_apart(ways) else ways


def _are_apart(ways: tuple[Way, ...]) -> bool:
    seen: set[int] = set()
    for way in ways:
        if seen & way[0].characters:
            return False
        seen |= way[0].characters
    return True


def _characters(code: Any, value: Any, flags: int) -> frozenset[int]:
    if code is codes.ANY:
        return ANY if flags & re.DOTALL else ANY - {ord("\n")}
    items = value if code is codes.IN else [(codes.LITERAL, value)]
    found: set[int] = set()
    for kind, each in items:
        if kind is codes.LITERAL:
            found.add(min(each, OTHER) if each < 128 else OTHER)
        elif kind is codes.RANGE:
            found |= {number if number < 128 else OTHER for number in range(each[0], min(each[1], OTHER) + 1)}
        elif kind is codes.CATEGORY:
            found |= _category(str(each))
    if flags & re.IGNORECASE:
        found |= {ord(change(chr(each))) for each in found if each < 128 for change in (str.lower, str.upper)}
    is_negative = code is codes.NOT_LITERAL or (code is codes.IN and (codes.NEGATE, None) in items)
    return ANY - found if is_negative else frozenset(found)


def _category(name: str) -> frozenset[int]:
    kind = next(kind for kind in _CATEGORIES if name.endswith(kind))
    found = {each for each in range(128) if re.match(_CATEGORIES[kind], chr(each))} | (
        {OTHER} if kind == "WORD" else set()
    )
    return ANY - found if "NOT_" in name else frozenset(found)
