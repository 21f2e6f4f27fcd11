"""From the bytes of an answer to numbers: instant vectors, quickly, with the labels left as the bytes they came in.

An answer of 80,000 series is 8 MB. Its labels are the same at every tick, so they are not parsed here: each series
keeps its `metric` object as raw bytes, and whoever joins it to pods remembers what those bytes meant. HTTP and what
the labels mean do not belong here.
Source: Prometheus HTTP API, "Instant queries" and "Expression query result formats".
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from autoscaler.core.table.columns import FloatColumn

MAX_NOTES = 8  # warnings of one answer that are kept
MAX_NOTE_CHARACTERS = 300
MAX_PAGE_BYTES = 8 << 10  # of what is no answer; its first words say what it is


class UnreadableAnswer(Exception):
    """The body is not an answer to an instant query that yields a vector; the message says what it is instead."""


@dataclass(frozen=True)
class Vector:
    """One instant vector."""

    time_s: float  # Unix time of the evaluation, by the server's clock; NaN: no series, so no time
    labels: list[bytes]  # [N], each series' labels as the JSON object that was sent
    values: FloatColumn  # float64[N]
    partial: bool = False  # the server said that something is missing: an absent series is unknown, a sum may be low
    notes: tuple[str, ...] = ()  # what the server remarked: warnings first, then infos


class _Sample(msgspec.Struct, array_like=True, gc=False):
    time_s: float
    value: float


class _Series(msgspec.Struct, gc=False):
    metric: msgspec.Raw
    value: _Sample | None = None  # None: a native histogram, which is no single number


class _Data(msgspec.Struct, gc=False):
    result_type: str = msgspec.field(name="resultType")
    result: list[_Series]


class _Answer(msgspec.Struct, gc=False):
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
_ANSWER = msgspec.json.Decoder(_Answer, strict=False)
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_LABELS = msgspec.json.Decoder(dict[str, str])
_INFINITE = b',"+Inf"]'  # as the API writes it; the decoder knows "Infinity" alone


def decode_vector(body: bytes) -> Vector:
    """Decode the answer to an instant query. Raises UnreadableAnswer for whatever is not a vector.

    Native histogram samples are left out: they are no single number. An answer with `warnings` counts as partial,
    since Thanos tells of missing stores in no other way.
    """
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableAnswer(_explain(body, error)) from error
    if answer.status != "success" or answer.data.result_type != "vector":
        raise UnreadableAnswer(_explain(body, None))
    series = answer.data.result
    samples = [each.value for each in series if each.value is not None]
    if len(samples) < len(series):
        series = [each for each in series if each.value is not None]
    warnings = answer.warnings or []
    return Vector(
        time_s=samples[0].time_s if samples else np.nan,
        labels=[bytes(each.metric) for each in series],
        values=np.fromiter([sample.value for sample in samples], np.float64, len(samples)),
        partial=answer.is_partial or bool(warnings),
        notes=tuple(clean(note) for note in [*warnings, *(answer.infos or [])][:MAX_NOTES]),
    )


def _decode(body: bytes) -> _Answer:
    try:
        return _ANSWER.decode(body)
    except msgspec.ValidationError:
        if _INFINITE not in body:
            raise
    # In valid JSON these bytes are never inside a string, where their quotes would have backslashes.
    return _ANSWER.decode(body.replace(_INFINITE, b',"Infinity"]'))


def _explain(body: bytes, error: Exception | None) -> str:
    """Say what a body is that is no vector."""
    try:
        envelope = _ENVELOPE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        is_json = body.lstrip().startswith((b"{", b"["))
        return f"not an answer of the query API: {clean(str(fault)) if is_json else _words(body) or 'no text'}"
    if envelope.status != "success":
        return _said(envelope) or f"status {clean(envelope.status)!r}, not 'success'"
    if envelope.data is not None and envelope.data.result_type != "vector":
        return f"the result is a {clean(envelope.data.result_type)}, not a vector"
    return f"not an answer of the query API: {clean(str(error))}"


def decode_error(body: bytes) -> str:
    """Return what a refusal says: errorType and error of the API, else the text of a proxy's page; "" for nothing."""
    try:
        return _said(_ENVELOPE.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _words(body)


def parse_labels(raw: bytes) -> dict[str, str]:
    """Return one series' labels; empty where they are not an object of strings."""
    try:
        return _LABELS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def clean(text: str) -> str:
    """Make a foreign text fit for one log line: blanks for control characters, and no longer than a line or two."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text[:4096]).split())
    return line if len(line) <= MAX_NOTE_CHARACTERS else line[: MAX_NOTE_CHARACTERS - 1] + "…"


def _said(envelope: _Envelope) -> str:
    return clean(": ".join(filter(None, [envelope.error_type, envelope.error])))


def _words(page: bytes) -> str:
    """Return what a page says that some other server made, without its tags."""
    parts = page[:MAX_PAGE_BYTES].decode(errors="replace").split("<")
    return clean(" ".join([parts[0], *(part.partition(">")[2] for part in parts[1:])]))
