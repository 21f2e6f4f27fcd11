"""Parses label matchers as operators write them, `cluster="prod",team!~"test.*"`, and normalizes them."""

from __future__ import annotations

import re

MAX_CHARACTERS = 1000
MAX_MATCHERS = 16
ALLOWED = (
    'matchers such as cluster="prod",team!~"test.*": a label, one of = != =~ !~, and a text in double quotes, '
    f"separated by commas; at most {MAX_MATCHERS} of them and {MAX_CHARACTERS} characters"
)

_MATCHER = re.compile(
    r'\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<operator>=~|!~|!=|=)\s*"(?P<text>(?:[^"\\]|\\.)*)"\s*'
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {'"': '"', "\\": "\\"}
_SERIES_NAME = "__name__"


def read_matchers(written: str) -> str:
    """Return matchers in their shortest form, without braces; "" for none. Raises ValueError with the problem.

    In quoted text only the escapes of a quote and a backslash are allowed, because regular expressions need no others.
    """
    if len(written) > MAX_CHARACTERS:
        raise ValueError(f"{len(written)} characters")
    if not written.isprintable():
        raise ValueError("characters that cannot be printed")
    text = written.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    matchers: list[str] = []
    at = 0
    while text[at:].strip():
        match = _MATCHER.match(text, at)
        if match is None:
            raise ValueError(f"no matcher at {text[at : at + 40].strip()!r}")
        if match["label"] == _SERIES_NAME:
            raise ValueError(f"{_SERIES_NAME} names metrics, which a selector cannot choose")
        for escape in _ESCAPE.finditer(match["text"]):
            if escape[1] not in _ESCAPES:
                raise ValueError(f"a backslash before {escape[1]!r} in the text of {match['label']}; write two")
        matchers.append(f'{match["label"]}{match["operator"]}"{match["text"]}"')
        at = match.end()
        if at < len(text):
            if text[at] != ",":
                raise ValueError(f"no comma at {text[at : at + 40].strip()!r}")
            at += 1
    if len(matchers) > MAX_MATCHERS:
        raise ValueError(f"{len(matchers)} matchers")
    return ",".join(matchers)
