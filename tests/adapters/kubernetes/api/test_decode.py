"""Deeply nested objects are cut and decoded."""

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
    """A second implementation, on decoded values."""
    if isinstance(value, list):
        return [cut(each, depth - 1) for each in value] if depth else None
    if isinstance(value, dict):
        return {key: cut(each, depth - 1) for key, each in value.items()} if depth else None
    return value


@pytest.mark.slow
@given(NESTED, st.integers(1, 4))
def test_only_deeper_values_become_null(value: Any, depth: int):
    assert json.loads(shallow(json.dumps(value).encode(), depth)) == cut(value, depth)


@pytest.mark.parametrize("levels", [DEPTH, 2_000, 100_000])
def test_object_is_read_despite_deep_nesting(levels: int):
    text = b'{"rest":%s1%s,"metadata":{"name":"a"}}' % (b'{"f:x":[' * levels, b"]}" * levels)
    assert decode(msgspec.json.Decoder(Object), text).metadata.name == "a"


@pytest.mark.parametrize("text", [b"[" * 5_000, b'{"metadata":' * 5_000, b"]" * 5_000, b'{"a":"' * 5_000])
def test_endless_nesting_is_an_error(text: bytes):
    with pytest.raises(msgspec.MsgspecError):
        decode(msgspec.json.Decoder(Object), text)
