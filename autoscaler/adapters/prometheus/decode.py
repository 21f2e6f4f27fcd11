"""Decodes the body of a response to an instant query into a vector. HTTP and the meaning of labels are elsewhere.

A response of 80,000 series is 8 MB. Its labels are the same at every tick, so they are not parsed here. Each series
keeps its `metric` object as raw bytes, and the code that joins it to pods caches what the bytes mean. Responses with
the same series in the same order share one list of these bytes.
Source: Prometheus HTTP API, "Instant queries" and "Expression query result formats".
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from autoscaler.config.findings import UNREADABLE
from autoscaler.core.table.columns import FloatColumn

MAX_NOTES = 8  # warnings and infos kept of one response
MAX_NOTE_CHARACTERS = 300
MAX_PAGE_BYTES = 8 << 10  # of a body that is not JSON; its first words are reported
MIN_SHARED = 1_000  # series; the labels of a smaller response are copied quickly
ORDERS = 3  # orders of series whose labels are kept; only quantiles of Prometheus change their order


class UnreadableAnswer(Exception):
    """The body is not a response with an instant vector; the message says what it is."""


@dataclass(frozen=True)
class Vector:
    """One instant vector."""

    time_s: float  # Unix time of the evaluation by the server's clock; NaN if there is no series
    labels: list[bytes]  # [N], the labels of each series as the JSON object received; not to be changed
    values: FloatColumn  # float64[N]
    partial: bool = False  # the server reported missing data: an absent series is unknown, a sum may be too low
    notes: tuple[str, ...] = ()  # remarks of the server: warnings first, then infos


class _Sample(msgspec.Struct, array_like=True, gc=False):
    time_s: float
    value: float


class _DecodedSeries(msgspec.Struct, gc=False):
    metric: msgspec.Raw
    value: _Sample | None = None  # None for a native histogram


class _Data(msgspec.Struct, gc=False):
    result_type: str = msgspec.field(name="resultType")
    result: list[_DecodedSeries]


class _QueryAnswer(msgspec.Struct, gc=False):
    status: str
    data: _Data
    warnings: list[str] | None = None
    infos: list[str] | None = None
    is_partial: bool = msgspec.field(name="isPartial", default=False)  # VictoriaMetrics cluster


class _AnyData(msgspec.Struct, gc=False):
    result_type: str = msgspec.field(name="resultType")


class _Envelope(msgspec.Struct, gc=False):
    status: str
    data: _AnyData | None = None
    error_type: str = msgspec.field(name="errorType", default="")
    error: str = ""


# Lax: the API writes numbers as strings, "NaN" and "1e+06" among them.
_ANSWER = msgspec.json.Decoder(_QueryAnswer, strict=False)
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_LABELS = msgspec.json.Decoder(dict[str, str])
_INFINITE = b',"+Inf"]'  # as the API writes it; the decoder accepts only "Infinity"


class LabelLists:
    """The labels of recent responses, which later responses share.

    Copying the labels of 80,000 series one by one takes 11 ms and 9 MiB, and comparing them at once takes 2 ms.
    """

    def __init__(self) -> None:
        self._known: list[tuple[bytes, list[bytes]]] = []  # joined labels, and their list; least recently used first

    def share(self, labels: list[msgspec.Raw]) -> list[bytes]:
        """Return these labels as bytes: the list of an earlier response, if that had the same ones in this order."""
        if len(labels) < MIN_SHARED:
            return [bytes(each) for each in labels]
        joined = b"\n".join(labels)  # unambiguous, because each is one JSON value
        for place, (known, shared) in enumerate(self._known):
            if known == joined:
                self._known.append(self._known.pop(place))  # move to the end
                return shared
        copied = [bytes(each) for each in labels]
        self._known = [*self._known, (joined, copied)][-ORDERS:]
        return copied


def decode_vector(body: bytes, lists: LabelLists | None = None) -> Vector:
    """Decode the response to an instant query. Raises UnreadableAnswer if it is not a vector.

    lists: the labels of earlier responses of the same server.

    Samples of native histograms are left out, since they are not single numbers. A response with `warnings` counts as
    partial, because Thanos reports missing stores only there.
    """
    try:
        answer = _decode(body)
    except UNREADABLE as error:
        raise UnreadableAnswer(_explain(body, error)) from error
    if answer.status != "success" or answer.data.result_type != "vector":
        raise UnreadableAnswer(_explain(body, None))
    series = answer.data.result
    values = [each.value.value for each in series if each.value is not None]
    if len(values) < len(series):
        series = [each for each in series if each.value is not None]
    warnings = answer.warnings or []
    return Vector(
        time_s=next((each.value.time_s for each in series if each.value is not None), np.nan),
        labels=(lists or LabelLists()).share([each.metric for each in series]),
        values=np.fromiter(values, np.float64, len(values)),
        partial=answer.is_partial or bool(warnings),
        notes=tuple(clean(note) for note in [*warnings, *(answer.infos or [])][:MAX_NOTES]),
    )


def _decode(body: bytes) -> _QueryAnswer:
    try:
        return _ANSWER.decode(body)
    except msgspec.ValidationError:
        if _INFINITE not in body:
            raise
    # Valid JSON never has these bytes inside a string, because quotes are escaped there.
    return _ANSWER.decode(body.replace(_INFINITE, b',"Infinity"]'))


def _explain(body: bytes, error: Exception | None) -> str:
    """Describe a body that is not a vector."""
    try:
        envelope = _ENVELOPE.decode(body)
    except UNREADABLE as fault:
        is_json = body.lstrip().startswith((b"{", b"["))
        return f"not an answer of the query API: {clean(str(fault)) if is_json else _page_text(body) or 'no text'}"
    if envelope.status != "success":
        return _error_text(envelope) or f"status {clean(envelope.status)!r}, not 'success'"
    if envelope.data is not None and envelope.data.result_type != "vector":
        return f"the result is a {clean(envelope.data.result_type)}, not a vector"
    return f"not an answer of the query API: {clean(str(error))}"


def decode_error(body: bytes) -> str:
    """Return the error text of a refusal: that of the API, else the text of a proxy's page; "" if there is none."""
    try:
        return _error_text(_ENVELOPE.decode(body))
    except UNREADABLE:
        return _page_text(body)


def parse_labels(raw: bytes) -> dict[str, str]:
    """Return the labels of one series; {} if they are not an object of strings."""
    try:
        return _LABELS.decode(raw)
    except UNREADABLE:
        return {}


def clean(text: str) -> str:
    """Make untrusted text printable on one line of at most `MAX_NOTE_CHARACTERS`."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text[:4096]).split())
    return line if len(line) <= MAX_NOTE_CHARACTERS else line[: MAX_NOTE_CHARACTERS - 1] + "…"


def _error_text(envelope: _Envelope) -> str:
    return clean(": ".join(filter(None, [envelope.error_type, envelope.error])))


def _page_text(page: bytes) -> str:
    """Return the text of an HTML page without its tags."""
    parts = page[:MAX_PAGE_BYTES].decode(errors="replace").split("<")
    return clean(" ".join([parts[0], *(part.partition(">")[2] for part in parts[1:])]))
