"""Read Prometheus text: only the samples asked for, quickly, from bodies that may be anything.

What is kept is exactly what was asked for by sample name, so `x_created` is not mistaken for a reading of `x`, nor the
histogram `x_total` for a counter: `x_total_bucket` and its like are other names.

Source: the Prometheus text exposition format, versions 0.0.4 and 1.0.0 (quoted label names); exemplars as in
OpenMetrics are passed over.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

Sample = tuple["SeriesLabels", float]

MAX_LINES = 200_000  # a line costs about 0.2 us, so this bounds the time one body can take
MAX_SAMPLES = 20_000  # series kept of one body
MAX_WANTED_BYTES = 2 << 20  # of the lines that are wanted: labels are what costs most, some 0.7 us for each one
MAX_LINE_BYTES = 16_384  # of a line that is wanted; vLLM's have some 100, three labels, and whatever a pipeline adds
MAX_LABELS = 128

_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_HEAD = re.compile(rf'[ \t]*[^\s{{}}"]+[ \t]*(?:\{{(?:[^"}}]|{_QUOTED})*+\}})?+')  # name and labels; values follow
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
    if body and not body.endswith(b"\n"):
        raise Unreadable(f"cut off after {len(body)} bytes: the last line does not end")
    if b"\0" in body:
        raise Unreadable("binary, not metrics text")
    lines = body.split(b"\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        raise Unreadable(f"more than {MAX_LINES} lines")
    found = Exposition()
    kept = size = 0
    for line in lines:
        if line[:1] == b"#":
            continue
        brace = line.find(b"{")
        first = (line[:brace] if brace >= 0 else line).split(None, 1)
        if not first or first[0] not in wanted:
            continue
        name = first[0].decode("ascii")
        if name in found.broken:
            continue
        size += len(line)
        if size > MAX_WANTED_BYTES:
            raise Unreadable(f"more than {MAX_WANTED_BYTES} bytes of the metrics that are read")
        sample = _sample(line)
        if sample is None:
            found.broken.add(name)
            continue
        kept += 1
        if kept > MAX_SAMPLES:
            raise Unreadable(f"more than {MAX_SAMPLES} series of the metrics that are read")
        found.series.setdefault(name, []).append(sample)
    for name in found.broken:
        found.series.pop(name, None)
    return found


def _sample(line: bytes) -> Sample | None:
    """Return labels and value of one line; None: it breaks the format."""
    if len(line) > MAX_LINE_BYTES:
        return None
    close = line.rfind(b"}") + 1
    if close:
        head = line[:close]
        labels = _labels(head) if len(head) <= 512 else _read_labels(head)
        tail = line[close:].split()
    else:
        labels = None if b"{" in line else _NO_LABELS
        tail = line.split()[1:]
    if labels is None or not tail or b"#" in tail:
        return _uncommon_sample(line)
    return _with_value(labels, tail)


def _uncommon_sample(line: bytes) -> Sample | None:
    """Read a line whose last brace does not end its labels: an exemplar follows the value, or the format is broken."""
    try:
        match = _HEAD.match(line.decode())
    except UnicodeDecodeError:
        return None
    if match is None:
        return None
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


def _read_labels(head: bytes) -> SeriesLabels | None:
    """Return the labels of `name{labels}`; None: it is not of that form."""
    try:
        text = head.decode()
    except UnicodeDecodeError:
        return None
    name, brace, inner = text.partition("{")
    if len(name.split()) != 1:
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


# The same heads come back with every scrape and from every pod of a workload. Long heads are not kept, so that the
# memory is bounded whatever a pod sends.
_labels = lru_cache(maxsize=8192)(_read_labels)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text
