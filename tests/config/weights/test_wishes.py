"""Wishes for a node survive the way through the API server; a hostile document is refused as a whole or in part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.weights.source import InvalidSourceError, ModelSource, parse
from autoscaler.config.weights.wishes import (
    CONFIG_MAPS,
    MAX_BYTES,
    MAX_MODELS,
    InvalidWishesError,
    Wish,
    Wishes,
    config_map_of,
    decode,
    encode,
)


def _is_valid(text: str) -> bool:
    try:
        parse(text)
    except InvalidSourceError:
        return False
    return True


paths = st.text(max_size=60).map("s3://bucket/".__add__).filter(_is_valid)
hubs = st.from_regex(r"hf://[a-z]{1,9}/[a-z]{1,9}@[0-9a-f]{40}", fullmatch=True)
sources: st.SearchStrategy[ModelSource] = st.one_of(paths, hubs).map(parse)
wishes = st.lists(st.builds(Wish, sources, st.booleans()), max_size=MAX_MODELS + 8)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(wishes)
def test_wishes_are_read_as_written(written: list[Wish]) -> None:
    text = encode(written)
    assert len(text.encode()) <= MAX_BYTES
    first = {wish.source: wish for wish in reversed(written)}
    expected = tuple(sorted(first.values(), key=written.index))
    read = decode(text)
    assert read.wishes == expected[: len(read.wishes)]
    assert len(read.wishes) == min(len(expected), MAX_MODELS) or len(text) > MAX_BYTES - 1000
    assert not read.refused


@given(st.text(max_size=200) | values.map(json.dumps))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    try:
        read = decode(text)
    except InvalidWishesError as error:
        assert str(error).isprintable()
        return
    assert len(read.wishes) + len(read.refused) <= MAX_MODELS


@given(st.lists(st.text(max_size=30) | hubs, max_size=9), values)
def test_each_invalid_source_is_refused_alone(texts: list[str], extra: Any) -> None:
    models = [{"source": text, "later": extra} for text in texts]
    read = decode(json.dumps({"format": 1, "models": models, "later": extra}))
    assert {str(wish.source) for wish in read.wishes} | {text for text, _ in read.refused} == set(texts)
    assert all(reason.isprintable() for _, reason in read.refused)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "are not valid"),
        ("[]", "are not valid"),
        ('{"format": 2, "models": "in another way"}', "have the format 2; allowed: 1"),
        ('{"format": 1}', "missing required field"),
        ('{"format": 1, "models": [{"pinned": true}]}', "missing required field"),
        ('{"format": 1, "models": [{"source": "hf://a/b@c", "pinned": "yes"}]}', "Expected `bool`"),
        (json.dumps({"format": 1, "models": [{"source": f"hf://a/b@{n}"} for n in range(65)]}), "65 models"),
        (" " * MAX_BYTES + "{}", "more than 16384 bytes"),
        ("\ud800", "are not valid"),
        ("[" * 10_000, "are not valid"),
    ],
)
def test_other_documents_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidWishesError, match=why):
        decode(text)


@pytest.mark.parametrize("text", ["", " \n", '{"format": 1, "models": []}'])
def test_empty_document_wishes_nothing(text: str) -> None:
    assert decode(text) == Wishes()


def test_nodes_are_spread_over_a_fixed_number_of_config_maps() -> None:
    names = {config_map_of(f"gpu-pool-{number}.example") for number in range(2000)}
    assert len(names) == CONFIG_MAPS
    assert config_map_of("node-1") == "vllm-autoscaler-weights-31"
