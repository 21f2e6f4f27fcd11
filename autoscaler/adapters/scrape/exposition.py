"""Read Prometheus text: only the samples asked for, quickly, from bodies that may be anything.

What is kept is exactly what was asked for by sample name, so `x_created` is not mistaken for a reading of `x`, nor the
histogram `x_total` for a counter: `x_total_bucket` and its like are other names.

Source: the Prometheus text exposition format, versions 0.0.4 and 1.0.0 (quoted label names); exemplars as in
OpenMetrics are passed over.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

Sample = tuple["SeriesLabels", float]

MAX_LINES = 200_000  # a line costs about 0.2 us, so this bounds the time one body can take
MAX_SAMPLES = 20_000  # series kept of one body
MAX_WANTED_BYTES = 2 << 20  # of the lines that are wanted: labels are what costs most, some 0.7 us for each one
MAX_LINE_BYTES = 16_384  # of a line that is wanted; vLLM's have some 100, three labels, and whatever a pipeline adds
MAX_LABELS = 128

_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_BRACES = re.compile(rf'[ \t]*(?:\{{(?:[^"}}]|{_QUOTED})*+\}})?+')  # with the labels; values follow
_LABEL = re.compile(rf"[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|{_QUOTED})[ \t]*=[ \t]*({_QUOTED})[ \t]*(?:,|\Z)")
_ESCAPE = re.compile(r'\\([\\n"])')


class SeriesLabels(dict[str, str]):
    """The labels of one series. One object serves every scrape, so it keeps what was worked out once."""

    @cached_property
    def bucket(self) -> tuple[frozenset[tuple[str, str]], float]:
        """The labels but `le`, and `le` as a number: which bucket of which histogram this is; NaN: of none."""
        try:
            bound = float(self["le"])
        except (KeyError, ValueError):
            bound = math.nan
        return frozenset(item for item in self.items() if item[0] != "le"), bound


_NO_LABELS = SeriesLabels()


class Unreadable(Exception):
    """The body is not metrics text that can be trusted; the message says why, in a few words."""


@dataclass
class Exposition:
    """What was asked for and found in one body."""

    series: dict[str, list[Sample]] = field(default_factory=dict)  # by sample name, in the order of the body
    broken: set[str] = field(default_factory=set)  # names left out because a line of theirs could not be read


def parse(body: bytes, wanted: frozenset[bytes]) -> Exposition:
    """Return the samples whose names are in `wanted`.

    A name with a line that breaks the format is left out whole: a sum without that line would be too small.
    Raises Unreadable for a body that is too large or binary, or was cut off: then its last line does not end, and
    neither that line can be trusted nor that any sum over series is complete.
    """
    if body[:1] in (b"<", b"["):
        raise Unreadable(f"{'HTML' if body[:1] == b'<' else 'JSON'}, not metrics text")
    if body and not body.endswith(b"\n"):
        raise Unreadable(f"cut off after {len(body)} bytes: the last line does not end")
    if b"\0" in body:
        raise Unreadable("binary, not metrics text")
    if len(body) >= MAX_LINES and body.count(b"\n") >= MAX_LINES:  # counting is not free
        raise Unreadable(f"more than {MAX_LINES} lines")
    lines: list[tuple[bytes, bytes, bytes, bytes]] = _finder(wanted).findall(b"\n" + body)
    if len(body) > MAX_WANTED_BYTES and sum(len(part) for line in lines for part in line) > MAX_WANTED_BYTES:
        raise Unreadable(f"more than {MAX_WANTED_BYTES} bytes of the metrics that are read")
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
def _finder(wanted: frozenset[bytes]) -> re.Pattern[bytes]:
    """Return what finds each line of a sample that is wanted, in text where a line end is before each line.

    Groups are the name, then labels and value of a line of the common form, else what follows the name. One expression
    goes through a body faster than a loop does through its lines, most of which nobody wants.
    """
    common = rb"(\{[^\n}]{0,500}\})? ([^\s{}#_]{1,40})(?=\n)"
    return re.compile(rb"\n[ \t\r\f\v]*(%b)(?:%b|(?=[\s{])([^\n]*))" % (_any_of(wanted), common))


def _any_of(words: Iterable[bytes]) -> bytes:
    """Return an expression for any of these words that says only once how they begin: `re` tries each alternative."""
    rests: dict[bytes, list[bytes]] = {}
    for word in words:
        rests.setdefault(word[:1], []).append(word[1:])
    ends = rests.pop(b"", None)
    ways = b"|".join(re.escape(first) + _any_of(rest) for first, rest in sorted(rests.items()))
    return b"(?:%b)%b" % (ways, b"?" if ends else b"") if ways else b""


def _common_sample(braces: bytes, number: bytes) -> Sample | None:
    """Return labels and value of a line of the common form; None: it breaks the format."""
    labels = _labels(braces) if braces else _NO_LABELS
    try:
        return None if labels is None else (labels, float(number))
    except ValueError:
        return None


def _sample(rest: bytes) -> Sample | None:
    """Return labels and value from what follows the name in a line; None: it breaks the format."""
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
    """Read a line whose last brace does not end its labels: an exemplar follows the value, or the format is broken."""
    try:
        match = _BRACES.match(rest.decode())
    except UnicodeDecodeError:
        return None
    assert match is not None  # nothing matches too
    labels = _read_labels(match[0].encode())
    tail = match.string[match.end() :].partition("#")[0].encode().split()
    return None if labels is None or not tail else _with_value(labels, tail)


def _with_value(labels: SeriesLabels, tail: list[bytes]) -> Sample | None:
    """Return the sample with the value, and perhaps a time stamp, of `tail`. The time stamp is not used."""
    if len(tail) > 2 or b"_" in tail[0]:  # Python would read 1_000 as a number
        return None
    try:
        value = float(tail[0])
        if len(tail) == 2:
            float(tail[1])
    except ValueError:
        return None
    return labels, value


def _read_labels(braces: bytes) -> SeriesLabels | None:
    """Return the labels of `{labels}`, perhaps after blanks; None: it is not of that form."""
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


# The same labels come back with every scrape and from every pod of a workload. Long ones are not kept, so that the
# memory is bounded whatever a pod sends.
_labels = lru_cache(maxsize=8192)(_read_labels)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text
