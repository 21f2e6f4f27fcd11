"""Parses PromQL within bounds.

promql-parser recurses, and takes time by the square of chained operators, so a query is measured before it is parsed.
"""

from __future__ import annotations

import re
from typing import Any

import promql_parser

MAX_CHARS = 8192
MAXTOKENS = 600
MAX_NESTING = 40

TOKENS = re.compile(r""""(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?|`[^`]*+`?|[\w:.]+|\S""", re.ASCII)


class InvalidQuery(ValueError):
    """A query that is no PromQL, or beyond the bounds. The message is a clause about it."""


def parse_query(text: str) -> Any:
    """Return the root of a parsed query. Raises InvalidQuery."""
    if len(text) > MAX_CHARS:
        raise InvalidQuery(f"it has {len(text):,} characters; at most {MAX_CHARS:,} are read")
    tokens = TOKENS.findall(text)
    depth = deepest = 0
    for token in tokens:
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        deepest = max(deepest, depth)
    if len(tokens) > MAXTOKENS or deepest > MAX_NESTING:
        raise InvalidQuery(
            f"it has {len(tokens)} words and signs, nested {deepest} deep; read are at most {MAXTOKENS}, "
            f"{MAX_NESTING} deep"
        )
    try:
        return promql_parser.parse(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises ValueError, and its panics, as at `offset Inf`, no Exception
        raise InvalidQuery(f"it is no PromQL: {' '.join(str(error).split())[:200]}") from None
