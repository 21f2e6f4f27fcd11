"""JSON from the API server, nested to any depth.

The decoder fails at Python's recursion limit, even in fields that it skips. One such object would break the list or the
watch that contains it. No real object comes near the limit, but any client that may write an object can store
thousands of levels in managedFields.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

DEPTH = 64  # levels that are read; the affinity in a page of LeaderWorkerSets is 16 deep
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{}]', re.DOTALL)  # a text without end ends with the input

Decoded = TypeVar("Decoded")


def decode(decoder: msgspec.json.Decoder[Decoded], text: bytes | msgspec.Raw) -> Decoded:
    """Decode JSON. If it is nested too deeply, values below `DEPTH` levels become null. Raises MsgspecError."""
    try:
        return decoder.decode(text)
    except RecursionError:
        return decoder.decode(shallow(bytes(text)))


def shallow(text: bytes, levels: int = DEPTH) -> bytes:
    """Replace all values below this many levels by null."""
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
