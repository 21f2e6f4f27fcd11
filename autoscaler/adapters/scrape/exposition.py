"""Parses Prometheus text: fast, only the requested samples, and safe on arbitrary bodies.

Samples are selected by their exact names. So `x_created` is not a reading of `x`, and the histogram `x_total` is not a
counter, because its samples have other names such as `x_total_bucket`.

Source: the Prometheus text exposition format, versions 0.0.4 and 1.0.0 (quoted label names); exemplars as in
OpenMetrics are skipped.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

Sample = tuple["SeriesLabels", float]

MAX_LINES = 200_000  # a line takes about 0.2 us, so this bounds the time per body
MAX_SAMPLES = 20_000  # series per body
MAX_REQUESTED_BYTES = 2 << 20  # of requested lines; each label takes some 0.7 us, most of the time
MAX_LINE_BYTES = 16_384  # per requested line; those of vLLM have some 100 and three labels
MAX_LABELS = 128

_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_BRACES = re.compile(rf'[ \t]*(?:\{{(?:[^"}}]|{_QUOTED})*+\}})?+')  # the labels; values follow
_LABEL = re.compile(rf"[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|{_QUOTED})[ \t]*=[ \t]*({_QUOTED})[ \t]*(?:,|\Z)")
_ESCAPE = re.compile(r'\\([\\n"])')


class SeriesLabels(dict[str, str]):
    """The labels of one series. One object is used for every scrape, so it caches derived values."""

    @cached_property
    def bucket(self) -> tuple[frozenset[tuple[str, str]], float]:
        """The labels without `le`, and `le` as a number; NaN if the series is no bucket."""
        try:
            bound = float(self["le"])
        except (KeyError, ValueError):
            bound = math.nan
        return frozenset(item for item in self.items() if item[0] != "le"), bound


_NO_LABELS = SeriesLabels()


class Unreadable(Exception):
    """The body is not usable metrics text; the message is the reason."""


@dataclass
class Exposition:
    """The requested samples of one body."""

    series: dict[str, list[Sample]] = field(default_factory=dict)  # by sample name, in the order of the body
    broken: set[str] = field(default_factory=set)  # names left out because one of their lines is malformed


def parse(body: bytes, sample_names: frozenset[bytes]) -> Exposition:
    """Return the samples whose names are in `sample_names`.

    A name with a malformed line is left out completely, because a sum without that line would be too small.
    Raises Unreadable for a body that is too large, binary or truncated. A truncated body has no final line end, and its
    sums over series may be incomplete.
    """
    if body[:1] in (b"<", b"["):
        raise Unreadable(f"{'HTML' if body[:1] == b'<' else 'JSON'}, not metrics text")
    if body and not body.endswith(b"\n"):
        raise Unreadable(f"cut off after {len(body)} bytes: the last line does not end")
    if b"\0" in body:
        raise Unreadable("binary, not metrics text")
    if len(body) >= MAX_LINES and body.count(b"\n") >= MAX_LINES:  # counting is not free
        raise Unreadable(f"more than {MAX_LINES} lines")
    lines: list[tuple[bytes, bytes, bytes, bytes]] = _finder(sample_names).findall(b"\n" + body)
    if len(body) > MAX_REQUESTED_BYTES and sum(len(part) for line in lines for part in line) > MAX_REQUESTED_BYTES:
        raise Unreadable(f"more than {MAX_REQUESTED_BYTES} bytes of the metrics that are read")
    series: defaultdict[bytes, list[Sample]] = defaultdict(list)
    broken: set[bytes] = set()
    kept = 0
    for name, braces, number, rest in lines:
        if broken and name in broken:
            continue
        sample = _common_sample(braces, number) if number else _sample(rest)
        if sample is None:
            broken.add(name)
            continue
        kept += 1
        if kept > MAX_SAMPLES:
            raise Unreadable(f"more than {MAX_SAMPLES} series of the metrics that are read")
        series[name].append(sample)
    return Exposition(
        {name.decode(): samples for name, samples in series.items() if name not in broken},
        {name.decode() for name in broken},
    )


@lru_cache(maxsize=64)
def _finder(sample_names: frozenset[bytes]) -> re.Pattern[bytes]:
    """Return a pattern that finds each line of the requested samples, in text with a line end before each line.

    Its groups are the name, then labels and value of a line in the common form, else the rest of the line. One regular
    expression is faster than a loop over the lines, most of which are not requested.
    """
    common = rb"(\{[^\n}]{0,500}\})? ([^\s{}#_]{1,40})(?=\n)"
    return re.compile(rb"\n[ \t\r\f\v]*(%b)(?:%b|(?=[\s{])([^\n]*))" % (_any_of(sample_names), common))


def _any_of(words: Iterable[bytes]) -> bytes:
    """Return a pattern for any of these words, with common prefixes merged, because `re` tries each alternative."""
    rests: dict[bytes, list[bytes]] = {}
    for word in words:
        rests.setdefault(word[:1], []).append(word[1:])
    ends = rests.pop(b"", None)
    alternatives = b"|".join(re.escape(first) + _any_of(rest) for first, rest in sorted(rests.items()))
    return b"(?:%b)%b" % (alternatives, b"?" if ends else b"") if alternatives else b""


def _common_sample(braces: bytes, number: bytes) -> Sample | None:
    """Return labels and value of a line in the common form; None if it is malformed."""
    labels = _labels(braces) if braces else _NO_LABELS
    try:
        return None if labels is None else (labels, float(number))
    except ValueError:
        return None


def _sample(rest: bytes) -> Sample | None:
    """Return labels and value from the part of a line after the name; None if it is malformed."""
    if len(rest) > MAX_LINE_BYTES:
        return None
    close = rest.rfind(b"}") + 1
    if close:
        labels = _labels(rest[:close]) if close <= 512 else _read_labels(rest[:close])
    else:
        labels = None if b"{" in rest else _NO_LABELS
    tail = rest[close:].split()
    if labels is None or not tail or b"#" in tail:
        return _uncommon_sample(rest)
    return _with_value(labels, tail)


def _uncommon_sample(rest: bytes) -> Sample | None:
    """Parse a line whose last brace does not end its labels: it has an exemplar, or is malformed."""
    try:
        match = _BRACES.match(rest.decode())
    except UnicodeDecodeError:
        return None
    assert match is not None  # the pattern also matches nothing
    labels = _read_labels(match[0].encode())
    tail = match.string[match.end() :].partition("#")[0].encode().split()
    return None if labels is None or not tail else _with_value(labels, tail)


def _with_value(labels: SeriesLabels, tail: list[bytes]) -> Sample | None:
    """Return the sample with the value in `tail`. A timestamp after it is ignored."""
    if len(tail) > 2 or b"_" in tail[0]:  # Python accepts 1_000 as a number
        return None
    try:
        value = float(tail[0])
        if len(tail) == 2:
            float(tail[1])
    except ValueError:
        return None
    return labels, value


def _read_labels(braces: bytes) -> SeriesLabels | None:
    """Return the labels of `{labels}`, perhaps after blanks; None if it is malformed."""
    try:
        blank, brace, inner = braces.decode().partition("{")
    except UnicodeDecodeError:
        return None
    if blank.strip():
        return None
    if not brace:
        return _NO_LABELS
    inner = inner[:-1].rstrip()
    labels = SeriesLabels()
    at = 0
    while at < len(inner):
        match = _LABEL.match(inner, at)
        if match is None or len(labels) >= MAX_LABELS:
            return None
        label = _unescape(match[1][1:-1]) if match[1].startswith('"') else match[1]
        if label in labels:
            return None
        labels[label] = _unescape(match[2][1:-1])
        at = match.end()
    return labels


# The same labels occur in every scrape and in every pod of a workload. Long ones are not cached, which bounds memory.
_labels = lru_cache(maxsize=8192)(_read_labels)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text
