"""Patterns of sources that may be fetched. Wishes come from annotations of tenants, so an agent fetches no others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autoscaler.config.findings import shown
from autoscaler.config.weights.source import MAX_CHARS, SCHEMES, ModelSource

ALLOWED = "SCHEME://, then a source in which * stands for any characters but / and @, and ** for any: hf://my-org/*"
PRIVATE = f"a pattern of sources, =, and namespaces or *: hf://my-org/*=team-a,team-b; a pattern is {ALLOWED}"
EVERYBODY = "*"
MAX_WILDCARDS = 4

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_WILDCARD = re.compile(r"(\*+)")
_CHARACTERS = re.compile(r"[^\x00-\x20\x7f\ud800-\udfff\\?#\[\]]+")


class SourcePattern:
    """A pattern of sources. Without a revision, it is one for every revision."""

    def __init__(self, text: str) -> None:
        """Raises ValueError with the problem only."""
        self.text = text
        scheme, separator, rest = text.partition("://")
        if len(text) > MAX_CHARS or not separator or scheme not in SCHEMES or not _CHARACTERS.fullmatch(rest):
            raise ValueError(f"{shown(text)} is no pattern of sources")
        pieces = _WILDCARD.split(text)
        wildcards = pieces[1::2]
        if len(wildcards) > MAX_WILDCARDS or any(len(stars) > 2 for stars in wildcards):
            raise ValueError(f"{shown(text)} has more than {MAX_WILDCARDS} wildcards, or three * in a row")
        self._pieces = [piece for piece in pieces if piece]
        self._is_for_every_revision = scheme == "hf" and "@" not in rest

    def allows(self, source: ModelSource) -> bool:
        """Tell whether a source is as the pattern says, as a whole."""
        text = str(source)
        ends = _find_ends(self._pieces, text)
        return len(text) in ends or (self._is_for_every_revision and any(text[end] == "@" for end in ends))


def _find_ends(pieces: Sequence[str], text: str) -> set[int]:
    """Return where a match of all pieces that begins with the text may end.

    A regular expression would try each way to share the text among the wildcards: 15 s for four of them.
    """
    ends = {0}
    for piece in pieces:
        if piece == "**" and ends:
            ends = set(range(min(ends), len(text) + 1))
        elif piece == "*":
            ends = set(_extend(ends, text))
        else:
            ends = {end + len(piece) for end in ends if text.startswith(piece, end)}
    return ends


def _extend(ends: set[int], text: str) -> Iterator[int]:
    """Yield each end, and those behind it up to the next / or @."""
    is_inside = False
    for place in range(len(text) + 1):
        is_inside = is_inside or place in ends
        if is_inside:
            yield place
        is_inside = is_inside and text[place : place + 1] not in ("/", "@")


def is_allowed(source: ModelSource, patterns: Sequence[SourcePattern]) -> bool:
    """Tell whether one of the patterns allows a source."""
    return any(pattern.allows(source) for pattern in patterns)


class PrivateSources(NamedTuple):
    """Sources that are fetched with credentials, and the namespaces that they serve."""

    pattern: SourcePattern
    namespaces: frozenset[str]  # EVERYBODY: all

    @classmethod
    def parse(cls, text: str) -> PrivateSources:
        """Raises ValueError with the problem only."""
        pattern, _, names = text.rpartition("=")
        namespaces = frozenset(names.split(","))
        if not all(_NAMESPACE.fullmatch(name) for name in namespaces - {EVERYBODY}):
            raise ValueError(f"{shown(text)} names no namespaces")
        return cls(SourcePattern(pattern), namespaces)


class SourceRules(NamedTuple):
    """The sources that may be fetched on behalf of others, with which credentials, and for whom."""

    allowed: tuple[SourcePattern, ...]
    private: tuple[PrivateSources, ...] = ()

    @property
    def patterns(self) -> tuple[SourcePattern, ...]:
        """The patterns of all sources that may be fetched."""
        return *self.allowed, *(each.pattern for each in self.private)

    def allows(self, source: ModelSource) -> bool:
        """Tell whether a source may be fetched."""
        return is_allowed(source, self.allowed) or self.is_private(source)

    def is_private(self, source: ModelSource) -> bool:
        """Tell whether a source is fetched with credentials. Others are fetched as everybody may."""
        return any(each.pattern.allows(source) for each in self.private)

    def serves(self, source: ModelSource, namespace: str) -> bool:
        """Tell whether a source may be fetched for the workloads of a namespace, or given to them."""
        private = [each.namespaces for each in self.private if each.pattern.allows(source)]
        if private:
            return any(not each.isdisjoint((namespace, EVERYBODY)) for each in private)
        return is_allowed(source, self.allowed)

    def serves_everybody(self, source: ModelSource) -> bool:
        """Tell whether a source may be given to all namespaces."""
        return self.serves(source, EVERYBODY)


DEFAULT_RULES = SourceRules((SourcePattern("hf://**"),))
"""Tenants name the models: they name no buckets and no addresses unless allowed, and use no credentials of ours."""

EVERY_SOURCE = SourceRules(tuple(SourcePattern(f"{scheme}://**") for scheme in SCHEMES))
