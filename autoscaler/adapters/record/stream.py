"""A stream of similar values, such as the inputs of one tick after another, in compressed blocks and without loss.

A value is a frame of bytes (all that is not an array) and arrays. An array is coded as the difference to the one
before. Rows that a tick adds or removes are found by their ids, so that one new pod does not repeat the readings of all
others. The difference is of whole numbers: of the values times a power of ten where that is exact, otherwise of their
bits. The bytes of these numbers stand in planes, which LZMA compresses well.

Blocks belong to the ones before, back to the first one of a stream.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

Array = npt.NDArray[Any]
Tokens = npt.NDArray[np.uint64]

MAX_DECIMALS = 6
BITS = 15
"""Way of an array whose bits are compared; a smaller one is the decimals of its values."""

MAX_EXACT = 2.0**53
SPECIAL = 4
"""Tokens below this one: the same value that is not finite, NaN, +Inf, -Inf."""

MAX_BLOCK_BYTES = 64 << 20
"""Most bytes of a block before it is compressed, and of the numbers that it has, eight bytes each."""

MAX_FRAME_BYTES = 8 << 20
"""Most bytes of a frame. The objects that it makes may be some thirty times as large."""

MAX_VALUES, MAX_ARRAYS, MAX_AXES = 1000, 1000, 4
"""Most values of a block, arrays of a value, and axes of an array."""

TYPES = ("<f8", "<f4", "<f2", "<i8", "|b1")
_DAMAGE = (lzma.LZMAError, EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, msgspec.MsgspecError)


class Damaged(ValueError):
    """A block that is not what was written."""


class Links(NamedTuple):
    """The last arrays of a value, by their numbers."""

    ids: tuple[int, ...] = ()  # arrays with ids of rows, ascending; others with as many rows have these rows
    bases: tuple[tuple[int, int], ...] = ()  # an array that grows nearly as a former one does


NO_LINKS = Links()
Frame = Annotated[bytes, Meta(max_length=MAX_FRAME_BYTES)]
Shapes = Annotated[
    list[tuple[str, Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=MAX_AXES)]]],
    Meta(max_length=MAX_ARRAYS),
]


@dataclass(frozen=True)
class Value:
    frame: bytes
    arrays: Sequence[Array]
    links: Links = NO_LINKS


class _Head(msgspec.Struct, array_like=True):
    """The parts of a value that are no numbers. None: as in the value before."""

    frame: Frame | None
    links: Links | None
    shapes: Shapes | None
    ways: Annotated[bytes, Meta(max_length=MAX_ARRAYS)] | None


Heads = Annotated[list[_Head], Meta(max_length=MAX_VALUES)]
Sizes = Annotated[list[int], Meta(max_length=MAX_ARRAYS)]


@dataclass
class _Last:
    """The value before."""

    frame: bytes | None = None
    links: Links = field(default_factory=Links)
    shapes: Shapes = field(default_factory=list)
    ways: bytes = b""
    arrays: list[Array] = field(default_factory=list)


class Encoder:
    """Encodes one stream, block by block."""

    def __init__(self) -> None:
        self._last = _Last()

    @np.errstate(all="ignore")  # large values overflow when it is tried whether they have decimals
    def encode(self, values: Iterable[Value]) -> bytes:
        """Return the next block, which has these values."""
        heads: list[_Head] = []
        columns: dict[int, list[Tokens]] = {}
        for value in values:
            last, links = self._last, value.links
            arrays = [np.asarray(array, order="C") for array in value.arrays]
            shapes = [(_type_of(array), array.shape) for array in arrays]
            expected = _Expected(last, links, shapes)
            ways = bytearray()
            for number, array in enumerate(arrays):
                hint = last.ways[number] if number < len(last.ways) else 0
                ways.append(way := _find_way(array, hint))
                columns.setdefault(number, []).append(_to_tokens(array, way, expected.of(number, way)))
                expected.add(array)
            new = _Last(value.frame, links, shapes, bytes(ways), arrays)
            changed = {name: _if_changed(last, new, name) for name in ("frame", "links", "shapes", "ways")}
            heads.append(_Head(**changed))
            if len(value.frame) > MAX_FRAME_BYTES or len(arrays) > MAX_ARRAYS or len(heads) > MAX_VALUES:
                raise OverflowError(f"a frame of more than {MAX_FRAME_BYTES:,} bytes, or too many values or arrays")
            self._last = new
        parts = [_to_planes(np.concatenate(tokens)) for _, tokens in sorted(columns.items())]
        head = msgspec.msgpack.encode((heads, [len(part) for part in parts]))
        numbers = sum(array.size for tokens in columns.values() for array in tokens)
        if max(len(head) + sum(map(len, parts)) + 4, numbers * 8) > MAX_BLOCK_BYTES:
            raise OverflowError(f"a block of more than {MAX_BLOCK_BYTES:,} bytes")
        return lzma.compress(len(head).to_bytes(4, "little") + head + b"".join(parts), check=lzma.CHECK_CRC32)


class Decoder:
    """Decodes one stream, block by block, in the order in which they were written."""

    def __init__(self) -> None:
        self._last = _Last()

    @np.errstate(all="ignore")
    def decode(self, block: bytes) -> list[Value]:
        """Return the values of the next block. Raises Damaged."""
        try:
            return self._decode(_decompress(block))
        except _DAMAGE as error:
            raise Damaged(str(error)[:200] or type(error).__name__) from error

    def _decode(self, raw: bytes) -> list[Value]:
        end = 4 + int.from_bytes(raw[:4], "little")
        heads, sizes = msgspec.msgpack.decode(raw[4:end], type=tuple[Heads, Sizes])
        if min(sizes, default=0) < 0 or end + sum(sizes) != len(raw):
            raise ValueError("its parts do not add up to its size")
        lives, counts = self._follow(heads)
        columns: list[list[Tokens]] = []
        for number, size in enumerate(sizes):
            tokens = _from_planes(raw[end : end + size], sum(counts[number]))
            columns.append(np.split(tokens, np.cumsum(counts[number])[:-1]))
            end += size
        values, seen = [], [0] * len(sizes)
        for live in lives:
            expected = _Expected(self._last, live.links, live.shapes)
            for number, (kind, shape) in enumerate(live.shapes):
                tokens, way = columns[number][seen[number]], live.ways[number]
                seen[number] += 1
                array = _from_tokens(tokens, kind, shape, way, expected.of(number, way))
                expected.add(array)
                live.arrays.append(array)
            self._last = live
            assert live.frame is not None
            values.append(Value(live.frame, live.arrays, live.links))
        return values

    def _follow(self, heads: list[_Head]) -> tuple[list[_Last], list[list[int]]]:
        """Return the values without their arrays, and how many numbers each array has in each of them."""
        last, lives, counts, total = self._last, [], list[list[int]](), 0
        for head in heads:
            live = _Last(
                frame=last.frame if head.frame is None else head.frame,
                links=last.links if head.links is None else head.links,
                shapes=last.shapes if head.shapes is None else head.shapes,
                ways=last.ways if head.ways is None else head.ways,
            )
            if live.frame is None or len(live.ways) != len(live.shapes):
                raise ValueError("a value without a frame, or with other arrays than it says")
            for number, (kind, shape) in enumerate(live.shapes):
                if kind not in TYPES:
                    raise ValueError(f"an array of type {kind[:20]!r}")
                size = int(np.prod(shape, dtype=np.float64))
                total += size
                if total * 8 > MAX_BLOCK_BYTES:
                    raise ValueError(f"more than {MAX_BLOCK_BYTES:,} bytes of numbers")
                counts += [[]] * (number + 1 - len(counts)) if number < len(counts) else [[]]
                counts[number].append(size)
            lives.append(live)
            last = live
        return lives, counts


class _Expected:
    """The arrays that a value has if nothing changes: those before, on the rows of the new ids."""

    def __init__(self, last: _Last, links: Links, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        self._last, self._links, self._shapes = last, links, shapes
        self._base = dict(links.bases)
        self._arrays: list[Array] = []
        self._moves: dict[int, tuple[int, Array, Array]] = {}  # by the new number of rows

    def add(self, array: Array) -> None:
        """Take the next array of this value. Ids among them move the rows of those that follow."""
        number = len(self._arrays)
        self._arrays.append(array)
        if number in self._links.ids and number < len(self._last.arrays):
            before = self._last.arrays[number]
            if array.ndim == 1 == before.ndim and not np.array_equal(array, before):
                index = np.minimum(before.searchsorted(array), max(len(before) - 1, 0))
                known = before[index] == array if len(before) else np.zeros(len(array), bool)
                self._moves.setdefault(len(array), (len(before), np.where(known, index, 0), known))

    def of(self, number: int, way: int) -> Array | None:
        """Return the expected array; None: nothing is expected."""
        same = self._unmoved(number)
        base = self._base.get(number)
        if same is None or base is None or way == BITS or not 0 <= base < number:
            return same
        grown, was = self._arrays[base], self._unmoved(base)
        if was is None or grown.shape != same.shape or grown.dtype != same.dtype:
            return same
        growth = grown - was
        return np.where(np.isfinite(growth), same + growth, same)

    def _unmoved(self, number: int) -> Array | None:
        if number >= len(self._last.arrays):
            return None
        before, (kind, shape) = self._last.arrays[number], self._shapes[number]
        if _type_of(before) != kind or before.ndim != len(shape):
            return None
        if shape and (move := self._moves.get(shape[-1])) and before.shape == (*shape[:-1], move[0]):
            _, index, known = move
            if move[0] == 0:
                return None
            return np.where(known, before[..., index], np.zeros(1, before.dtype))
        return before if before.shape == shape else None


def _if_changed(last: _Last, new: _Last, name: str) -> Any:
    value = getattr(new, name)
    return None if last.frame is not None and value == getattr(last, name) else value


def _type_of(array: Array) -> str:
    kind = array.dtype.str
    if kind not in TYPES:
        raise TypeError(f"an array of type {kind}; allowed: {', '.join(TYPES)}")
    return kind


def _find_way(array: Array, hint: int) -> int:
    """Return the fewest decimals with which all values are exact, or BITS. hint: a guess, which is tried first."""
    if array.dtype.kind != "f":
        return 0
    if array.dtype.itemsize != 8:
        return BITS
    finite = array[np.isfinite(array)]
    if ((finite == 0) & np.signbit(finite)).any() or _has_payload(array):
        return BITS
    ways = [*range(MAX_DECIMALS + 1)]
    if hint in ways:
        ways = [hint, *(way for way in ways if way > hint)] if hint else ways
    return next((way for way in ways if _is_exact(finite, way)), BITS)


def _is_exact(finite: Array, decimals: int) -> bool:
    scaled = np.rint(finite * 10.0**decimals)
    return bool((np.abs(scaled) < MAX_EXACT).all() and (scaled / 10.0**decimals == finite).all())


def _has_payload(array: Array) -> bool:
    """Return whether a NaN is another one than numpy's own."""
    unknown = np.isnan(array)
    return bool((array[unknown].view(np.uint64) != np.array([np.nan]).view(np.uint64)).any())


def _to_tokens(array: Array, way: int, expected: Array | None) -> Tokens:
    before = np.zeros(array.shape, array.dtype) if expected is None else expected
    if way == BITS:
        return (_bits(array) ^ _bits(before)).ravel()
    if array.dtype.kind != "f":
        return _zigzag(array.astype(np.int64) - before.astype(np.int64)).ravel()
    finite = np.isfinite(array)
    tokens = _zigzag(_scale(np.where(finite, array, 0.0), way) - _scale(before, way)) + np.uint64(SPECIAL)
    same = np.isnan(array) & np.isnan(before) | (array == before)
    special = np.where(np.isnan(array), 1, np.where(array > 0, 2, 3))
    return np.where(finite, tokens, np.where(same, 0, special).astype(np.uint64)).ravel()


def _from_tokens(tokens: Tokens, kind: str, shape: tuple[int, ...], way: int, expected: Array | None) -> Array:
    tokens, dtype = tokens.reshape(shape), np.dtype(kind)
    before = np.zeros(shape, dtype) if expected is None else expected
    if way == BITS:
        bits = tokens ^ _bits(before)
        return bits.astype(f"<u{dtype.itemsize}").view(dtype)
    if way > MAX_DECIMALS:
        raise ValueError(f"{way} decimals")
    if dtype.kind != "f":
        return (_unzigzag(tokens) + before.astype(np.int64)).astype(dtype)
    finite = tokens >= SPECIAL
    whole = _unzigzag(np.where(finite, tokens - np.uint64(SPECIAL), 0)) + _scale(before, way)
    other = np.select([tokens == 0, tokens == 1, tokens == 2], [before, np.nan, np.inf], -np.inf)
    return np.where(finite, whole / 10.0**way, other)


def _scale(values: Array, decimals: int) -> npt.NDArray[np.int64]:
    """Return the values as whole numbers of this decimal; 0 where that is not possible."""
    scaled = np.rint(np.where(np.isfinite(values), values, 0.0) * 10.0**decimals)
    return np.where(np.abs(scaled) < MAX_EXACT, scaled, 0.0).astype(np.int64)


def _bits(array: Array) -> Tokens:
    return np.asarray(array, order="C").view(f"<u{array.dtype.itemsize}").astype(np.uint64)


def _zigzag(difference: npt.NDArray[np.int64]) -> Tokens:
    """Make small numbers of small differences of either sign."""
    return ((difference << 1) ^ (difference >> 63)).view(np.uint64)


def _unzigzag(tokens: Tokens) -> npt.NDArray[np.int64]:
    return (tokens >> np.uint64(1)).view(np.int64) ^ -(tokens & np.uint64(1)).view(np.int64)


def _to_planes(tokens: Tokens) -> bytes:
    """Return the bytes of all numbers by significance, without the planes that are zero throughout."""
    planes = np.ascontiguousarray(tokens).view(np.uint8).reshape(-1, 8).T
    used = max((int(plane) + 1 for plane in np.flatnonzero(planes.any(axis=1))), default=0)
    return bytes([used]) + planes[:used].tobytes()


def _from_planes(part: bytes, count: int) -> Tokens:
    used = part[0]
    if used > 8 or len(part) != 1 + used * count:
        raise ValueError("an array that has another size than it says")
    planes = np.zeros((8, count), np.uint8)
    planes[:used] = np.frombuffer(part, np.uint8, offset=1).reshape(used, count)
    return np.ascontiguousarray(planes.T).view(np.uint64).ravel()


def _decompress(block: bytes) -> bytes:
    machine = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=256 << 20)
    raw = machine.decompress(block, MAX_BLOCK_BYTES)
    if not machine.eof:
        raise ValueError(f"it ends early, or has more than {MAX_BLOCK_BYTES:,} bytes")
    return raw


Hook = Callable[[Any], Any]


def split(value: Any) -> tuple[bytes, list[Array]]:
    """Return a dataclass as a frame, and its arrays in the order in which the frame names them."""
    arrays: list[Array] = []

    def take(part: Any) -> msgspec.msgpack.Ext:
        if not isinstance(part, np.ndarray):
            raise TypeError(f"{type(part).__name__} cannot be recorded")
        arrays.append(part)
        return msgspec.msgpack.Ext(1, str(len(arrays) - 1).encode())

    return msgspec.msgpack.encode(value, enc_hook=take), arrays


def join(frame: bytes, arrays: Sequence[Array], kind: Any) -> Any:
    """Return the dataclass that was split. Raises Damaged if it is not one of this kind."""
    try:
        return msgspec.msgpack.decode(
            frame, type=kind, dec_hook=_same_array, ext_hook=lambda _code, number: arrays[int(bytes(number))]
        )
    except _DAMAGE as error:
        raise Damaged(str(error)[:200]) from error


def _same_array(_kind: Any, part: Any) -> Array:
    if not isinstance(part, np.ndarray):
        raise ValueError("not an array where one is expected")
    return part
