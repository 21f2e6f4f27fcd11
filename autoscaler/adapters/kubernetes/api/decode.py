"""JSON from the API server, however deep somebody nested it.

The decoder gives up at Python's recursion limit, which no honest object comes near, even in what is only skipped: one
object would spoil the list and the watch that it comes with. The API server keeps thousands of levels in managedFields,
by whoever may write an object.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

DEPTH = 64  # levels that are read; the affinity in a page of LeaderWorkerSets is 16 deep
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)

Decoded = TypeVar("Decoded")


def decode(decoder: msgspec.json.Decoder[Decoded], text: bytes | msgspec.Raw) -> Decoded:
    """Decode; what is nested too deeply to be decoded counts as null from `DEPTH` levels on. Raises MsgspecError."""
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(shallow(bytes(text)))


def shallow(text: bytes, levels: int = DEPTH) -> bytes:
    """Return JSON with null in the place of what is below so many levels."""
    parts, begin, depth = [], 0, 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == levels + 1:
                    parts += [text[begin : token.start()], b"null"]
            case b"}" | b"]":
                if depth == levels + 1:
                    begin = token.end()
                depth -= 1
    if depth <= levels:
        parts.append(text[begin:])
    return b"".join(parts)
