"""The namespaces that made an answer too long: bytes of labels are counted by namespace while they are thrown away.

A tenant fills an answer with labels of megabytes or with very many series. No query counts the bytes of labels, but
the answer itself shows them, and everybody's readings depend on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from autoscaler.adapters.prometheus.promql.matchers import MOST_CHARS, NAMESPACE_ORDER, Place
from autoscaler.config.findings import shown
from autoscaler.core.table.fair_share import fair_share

KEPT_S = 300.0  # a crowded namespace is left out for this long, so that few answers are too long
MOST_LEFT_OUT = 20  # namespaces; their names go into each selector
MOST_COUNTED = 20_000  # names of each label
_OVERLAP = 512  # bytes; longer than any mark

# A quote within a text has a backslash before it, so after `{` or `,` these bytes begin a series or a label.
_LABELS = "|".join(NAMESPACE_ORDER).encode()
_NAME = rb'[!#-\[\]-~]{0,%d}(?=")|[!#-\[\]-~]{%d}' % (MOST_CHARS, MOST_CHARS + 1)  # of a longer one the beginning
_MARK = re.compile(rb'"(?:(metric":\{)|(values?":\[)|(%b)":"(%b))' % (_LABELS, _NAME))


class AnswerBytes:
    """Counts the bytes of the labels of all series by namespace, for each label that may name one."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {label: Counter() for label in NAMESPACE_ORDER}
        self._names: dict[str, str] = {}  # of the series that is read, by label
        self._begin = 0  # of the labels of this series in the answer
        self._overlap = b""
        self._size = 0  # bytes of the answer that are read

    def add(self, part: bytes) -> None:
        """Read the next bytes of the answer."""
        text, known = self._overlap + part, len(self._overlap)
        for mark in _MARK.finditer(text):
            if mark.end() < known or text[max(mark.start() - 1, 0) : mark.start()] not in (b"{", b","):
                continue
            place = self._size - known + mark.start()
            if mark[1]:
                self._names, self._begin = {}, place
            elif mark[2]:
                self._count(place)
            else:
                self._names[mark[3].decode()] = mark[4].decode()
        self._size += len(part)
        self._overlap = text[-_OVERLAP:]

    def crowds(self, most: int) -> Iterator[dict[Place, int]]:
        """Yield the bytes of each namespace that has more than its share of `most`, the largest first.

        One set for each label by which there are some; that of the target comes first.
        """
        self._count(self._size)
        for label, counts in self._counts.items():
            share = fair_share(counts.values(), most)
            found = {(label, name): size for name, size in counts.most_common(MOST_LEFT_OUT) if size > share}
            if found:
                yield found

    def has_others(self, crowded: Mapping[Place, int]) -> bool:
        """Return whether the answer also names other namespaces, so that something is left without these."""
        return any(len(self._counts[label]) > len(crowded) for label, _ in [*crowded][:1])

    def _count(self, end: int) -> None:
        """Count the labels that end here, unless they are counted."""
        for label, name in self._names.items():
            counts = self._counts[label]
            if name in counts or len(counts) < MOST_COUNTED:
                counts[name] += end - self._begin
        self._names = {}


class CrowdedNamespaces:
    """The namespaces that are left out of all answers for a while."""

    def __init__(self) -> None:
        self._bytes: dict[Place, int] = {}
        self._until_s = 0.0

    def current(self, now_s: float) -> Mapping[Place, int]:
        """Return the bytes of each. They are let in again together, and then show whether they still crowd."""
        if now_s >= self._until_s:
            self._bytes = {}
        return self._bytes

    def add(self, crowded: Mapping[Place, int], now_s: float) -> None:
        """Leave these out, too. now_s: of the event loop."""
        if not self._bytes:
            self._until_s = now_s + KEPT_S
        self._bytes = dict(list({**self._bytes, **crowded}.items())[-MOST_LEFT_OUT:])


def describe_left_out(crowded: Mapping[Place, int], most: int) -> str:
    """Say which namespaces are left out of answers, and why; "" for none. most: bytes of an answer."""
    if not crowded:
        return ""
    (_, name), size = next(iter(crowded.items()))
    others = f" and {len(crowded) - 1} more" if len(crowded) > 1 else ""
    return (
        f"namespace {shown(name)}{others} is left out: {size:,} bytes of its labels made an answer "
        f"longer than {most:,} bytes; set label_value_length_limit and sample_limit on its scrape"
    )
