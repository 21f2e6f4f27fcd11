"""Objects nested without end: cut, and read as far as they make sense."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.api.decode import DEPTH, decode, shallow
from autoscaler.adapters.kubernetes.api.objects import Object

NESTED = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=40,
)


def cut(value: Any, depth: int) -> Any:
    """Second source: the same on decoded values."""
    if isinstance(value, list):
        return [cut(each, depth - 1) for each in value] if depth else None
    if isinstance(value, dict):
        return {key: cut(each, depth - 1) for key, each in value.items()} if depth else None
    return value


@given(NESTED, st.integers(1, 4))
def test_what_is_deeper_is_null_and_all_else_as_it_was(value: Any, depth: int):
    assert json.loads(shallow(json.dumps(value).encode(), depth)) == cut(value, depth)


@pytest.mark.parametrize("levels", [DEPTH, 2_000, 100_000])
def test_an_object_is_read_whatever_else_is_in_it(levels: int):
    text = b'{"rest":%s1%s,"metadata":{"name":"a"}}' % (b'{"f:x":[' * levels, b"]}" * levels)
    assert decode(msgspec.json.Decoder(Object), text).metadata.name == "a"


@pytest.mark.parametrize("text", [b"[" * 5_000, b'{"metadata":' * 5_000, b"]" * 5_000, b'{"a":"' * 5_000])
def test_what_never_ends_is_not_an_object(text: bytes):
    with pytest.raises(msgspec.MsgspecError):
        decode(msgspec.json.Decoder(Object), text)
