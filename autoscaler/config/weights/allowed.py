"""Patterns of sources that may be fetched. Wishes come from annotations of tenants, so an agent fetches no others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autoscaler.config.findings import shown
from autoscaler.config.weights.source import MAX_CHARS, SCHEMES, ModelSource

ALLOWED = "SCHEME://, then a source in which * stands for any characters but / and @, and ** for any: hf://my-org/*"
MAX_WILDCARDS = 4  # bounds the time of a comparison

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
        forms = [re.escape(piece) if piece[:1] != "*" else {1: "[^/@]*", 2: ".*"}[len(piece)] for piece in pieces]
        every_revision = "(@.*)?" if scheme == "hf" and "@" not in rest else ""
        self._form = re.compile("".join(forms) + every_revision)

    def allows(self, source: ModelSource) -> bool:
        """Tell whether a source is as the pattern says, as a whole."""
        return self._form.fullmatch(str(source)) is not None


def is_allowed(source: ModelSource, patterns: Sequence[SourcePattern]) -> bool:
    """Tell whether one of the patterns allows a source."""
    return any(pattern.allows(source) for pattern in patterns)
