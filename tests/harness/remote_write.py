"""Samples written to a server by remote write, with times of their own. Encodes as much as tests need.

Native histograms have no text format.

Sources: Prometheus `prompb/types.proto`, and the block format of Snappy, of which only literals are written.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

import aiohttp

MOST_LITERAL = 60_000


async def write_histogram(
    url: str, labels: Mapping[str, str], counts: Sequence[int], total: float, at_s: float
) -> None:
    """Write one sample of one series: `counts` observations in buckets around 2^(-k/8), the last of them up to 1."""
    histogram = (
        _field(1, 0, _varint(sum(counts)))
        + _field(3, 1, struct.pack("<d", total))
        + _field(4, 0, _signed(3))  # schema: eight buckets for each doubling
        + _field(5, 1, struct.pack("<d", 1e-128))
        + _field(6, 0, _varint(0))
        + _message(11, _field(1, 0, _signed(1 - len(counts))) + _field(2, 0, _varint(len(counts))))
        + _message(12, b"".join(_signed(b - a) for a, b in zip([0, *counts], counts, strict=False)))
        + _field(15, 0, _varint(round(at_s * 1000)))
    )
    await _write(url, [_message(1, _named(labels) + _message(4, histogram))])


async def write_samples(url: str, series: Iterable[tuple[Mapping[str, str], Sequence[tuple[float, float]]]]) -> None:
    """Write the samples of each series: labels, then pairs of Unix time and value, in ascending order."""
    await _write(
        url,
        [
            _message(1, _named(labels) + b"".join(_message(2, _sample(at_s, value)) for at_s, value in samples))
            for labels, samples in series
        ],
    )


async def _write(url: str, messages: Iterable[bytes]) -> None:
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        await session.post(f"{url}/api/v1/write", data=_snappy(b"".join(messages)), headers=headers)


def _named(labels: Mapping[str, str]) -> bytes:
    return b"".join(
        _message(1, _message(1, name.encode()) + _message(2, text.encode())) for name, text in sorted(labels.items())
    )


def _sample(at_s: float, value: float) -> bytes:
    return _field(1, 1, struct.pack("<d", value)) + _field(2, 0, _varint(round(at_s * 1000)))


def _varint(number: int) -> bytes:
    head = bytearray()
    while number > 127:
        head.append(number & 127 | 128)
        number >>= 7
    return bytes([*head, number])


def _signed(number: int) -> bytes:
    return _varint(2 * number if number >= 0 else -2 * number - 1)


def _field(number: int, wire: int, content: bytes) -> bytes:
    return _varint(number << 3 | wire) + content


def _message(number: int, content: bytes) -> bytes:
    return _field(number, 2, _varint(len(content)) + content)


def _snappy(body: bytes) -> bytes:
    parts = [body[at : at + MOST_LITERAL] for at in range(0, len(body), MOST_LITERAL)]
    literals = (bytes([61 << 2]) + struct.pack("<H", len(part) - 1) + part for part in parts)
    return _varint(len(body)) + b"".join(literals)
