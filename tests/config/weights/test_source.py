"""Sources of weights are validated, whatever users write."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.weights.source import KEY_CHARS, InvalidSourceError, parse
from autoscaler.weights.listing import RemoteFile, check
from autoscaler.weights.problems import WeightsError

COMMIT = "a" * 40


@pytest.mark.parametrize(
    "text",
    [
        "hf://meta-llama/Llama-3.1-8B-Instruct@main",
        f"hf://gpt2@{COMMIT}",
        "s3://models/llama/8b",
        "gs://models/llama",
        "az://container/llama",
        "https://models.example:8443/llama/model.safetensors",
        "file:///mnt/models/llama",
    ],
)
def test_valid_sources_keep_their_text(text: str) -> None:
    source = parse(text)
    assert str(source) == text
    assert re.fullmatch(r"[0-9a-f]{16}", source.key)
    assert len(source.key) == KEY_CHARS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://host/model", "its scheme is unknown; allowed: hf://, s3://"),
        ("llama", "its scheme is unknown"),
        ("hf://meta-llama/Llama", "its revision is missing; allowed: hf://ORGANISATION/NAME@REVISION"),
        ("hf://../etc@main", "is no model of a hub"),
        ("hf://a/b/c@main", "is no model of a hub"),
        ("hf://a/b@../main", "is no revision"),
        ("hf://a/b@a//b", "is no revision"),
        ("s3://UPPER/x", "is no bucket"),
        ("s3://bucket", "its path is empty"),
        ("s3://bucket/a/../b", "its path is empty, or has a part that is empty, '.', '..'"),
        ("https://user@host/model", "is no host"),
        ("https://host/a?token=secret", "its path is empty, or has a part"),
        ("file://relative/path", "its path is relative"),
        ("file:///a/\x07/b", "not printable"),
        ("s3://bucket/" + "x" * 600, "it has more than 512 characters"),
    ],
)
def test_invalid_sources_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidSourceError) as raised:
        parse(text)
    assert why in str(raised.value)


@given(st.text(max_size=80))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    for prefix in ("", "hf://", "s3://", "file:///", "https://"):
        try:
            source = parse(prefix + text)
        except InvalidSourceError:
            continue
        assert ".." not in source.location.split("/")
        assert str(source).isprintable() or "\x7f" not in str(source)


@pytest.mark.parametrize(
    ("path", "size", "why"),
    [
        ("../outside", 1, "is no valid path"),
        ("/absolute", 1, "is no valid path"),
        ("a/./b", 1, "is no valid path"),
        ("a//b", 1, "is no valid path"),
        ("a\nb", 1, "is no valid path"),
        ("a\\b", 1, "is no valid path"),
        ("x" * 300, 1, "is no valid path"),
        ("/".join("x" * 20), 1, "is no valid path"),
        ("model.safetensors", -1, "has a size of -1 bytes"),
        ("model.safetensors", 1 << 60, "has a size of"),
        ("model.bin", 1, "may run code"),
    ],
)
def test_hostile_listings_are_refused(path: str, size: int, why: str) -> None:
    with pytest.raises(WeightsError, match=re.escape(why)):
        check(parse("s3://bucket/model"), [RemoteFile(path, size)])


def test_checksums_of_a_listing_are_validated() -> None:
    with pytest.raises(WeightsError, match="has the checksum"):
        check(parse("s3://bucket/model"), [RemoteFile("model.safetensors", 1, sha256="../" * 21 + "x")])


def test_file_cannot_be_a_folder_too() -> None:
    with pytest.raises(WeightsError, match="is a file and a folder"):
        check(parse("s3://bucket/model"), [RemoteFile("a", 1), RemoteFile("a/b", 1)])


def test_only_what_an_engine_loads_is_selected() -> None:
    names = ["config.json", "model.safetensors", "pytorch_model.bin", "original/consolidated.pth", "model.gguf"]
    listing = check(parse("s3://bucket/model"), [RemoteFile(name, 1) for name in names])
    assert [file.path for file in listing.files] == ["config.json", "model.safetensors"]


def test_pickled_weights_alone_are_fetched_only_if_allowed() -> None:
    listing = check(parse("s3://bucket/model"), [RemoteFile("pytorch_model.bin", 1)], pickled=True)
    assert [file.path for file in listing.files] == ["pytorch_model.bin"]
