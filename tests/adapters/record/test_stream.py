"""Values come back as they were, bit for bit; what is not a block is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from autoscaler.adapters.record.stream import MAX_BLOCK_BYTES, Damaged, Decoder, Encoder, Links, Value, join, split
from autoscaler.core.model.types import TickInput
from autoscaler.core.state import Memory
from tests.adapters.record.ticks import records

SIZES = st.integers(0, 5)
PLAIN = st.one_of(
    st.integers(-(10**6), 10**6).map(float),
    st.integers(0, 10**9).map(lambda number: number / 1000),
    st.floats(width=64),
)


@st.composite
def streams(draw):
    """Values with ids that come and go, and arrays of each type with and without these rows."""
    values = []
    for _ in range(draw(st.integers(1, 5))):
        ids = np.array(sorted(draw(st.sets(st.integers(0, 9), max_size=5))), np.int64)
        rows = len(ids)
        numbers = draw(st.lists(PLAIN, min_size=rows, max_size=rows))
        arrays = [
            ids,
            np.array(numbers, np.float64),
            np.cumsum(np.array(numbers, np.float64)),
            draw(of_numpy.arrays(np.float64, (2, rows))),
            draw(of_numpy.arrays(np.int64, rows)),
            draw(of_numpy.arrays(np.bool_, draw(SIZES))),
            draw(of_numpy.arrays(np.float32, draw(SIZES))),
            draw(of_numpy.arrays(np.float16, ())),
        ]
        values.append(Value(draw(st.binary(max_size=3)), arrays, Links(ids=(0,), bases=((2, 1),))))
    return values


def same(one: Value, other: Value) -> bool:
    return (one.frame, one.links) == (other.frame, other.links) and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in zip(one.arrays, other.arrays, strict=True)
    )


@given(streams(), st.integers(1, 4))
def test_values_come_back_bit_for_bit_in_blocks_of_any_size(values, size):
    encoder, decoder = Encoder(), Decoder()
    parts = [values[first : first + size] for first in range(0, len(values), size)]
    back = [value for part in parts for value in decoder.decode(encoder.encode(part))]
    assert all(same(one, other) for one, other in zip(values, back, strict=True))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_block_are_damaged(block):
    with pytest.raises(Damaged):
        Decoder().decode(block)


@given(st.data())
def test_a_block_with_another_byte_is_damaged(data):
    block = bytearray(Encoder().encode([Value(*split(record.input)) for record in records(2)]))
    place = data.draw(st.integers(0, len(block) - 1))
    block[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        Decoder().decode(bytes(block))


def test_a_block_that_would_be_huge_is_damaged():
    import lzma

    with pytest.raises(Damaged, match="more than"):
        Decoder().decode(lzma.compress(bytes(MAX_BLOCK_BYTES + 1), preset=0))


@pytest.mark.parametrize(("part", "kind"), [(0, TickInput), (1, Memory)])
def test_a_part_of_a_tick_is_whole_after_it_was_split(part, kind):
    record = records(5)[-1]
    frame, arrays = split((record.input, record.memories[1])[part])
    back_frame, back_arrays = split(join(frame, arrays, kind))
    assert back_frame == frame
    assert all(one is other for one, other in zip(arrays, back_arrays, strict=True))


def test_a_frame_of_another_kind_is_damaged():
    frame, arrays = split(records(1)[0].input)
    with pytest.raises(Damaged):
        join(frame, arrays, Memory)
