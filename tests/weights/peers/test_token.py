"""Requests between agents are signed with a token that is never sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoscaler.weights.peers.token import SKEW_S, ClusterToken, TokenError

REQUEST = ("GET", "/weights/0123456789abcdef?port=1", "bytes=0-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a token of this cluster\n")
    return path


def test_signature_is_valid_for_its_request_only(path: Path) -> None:
    token = ClusterToken(path)
    header = token.sign(*REQUEST, now_s=1000.0)
    assert "token" not in header
    assert token.is_signed(header, *REQUEST, now_s=1000.0 + SKEW_S)
    assert not token.is_signed(header, *REQUEST, now_s=1002.0 + SKEW_S)
    assert not token.is_signed(header, *REQUEST, now_s=998.0 - SKEW_S)
    for other in (("HEAD", *REQUEST[1:]), ("GET", "/weights/x", REQUEST[2]), (*REQUEST[:2], "bytes=0-2")):
        assert not token.is_signed(header, *other, now_s=1000.0)


@pytest.mark.parametrize("header", ["", "Bearer x", "VllmAutoscalerWeights 1000:", "VllmAutoscalerWeights 1000:é" * 9])
def test_other_headers_are_no_signatures(path: Path, header: str) -> None:
    assert not ClusterToken(path).is_signed(header, *REQUEST, now_s=1000.0)


def test_replaced_token_is_read_again(path: Path) -> None:
    ours, theirs = ClusterToken(path), ClusterToken(path)
    header = theirs.sign(*REQUEST, now_s=1000.0)
    path.write_text("another token of this cluster")
    os.utime(path, (1, 1))
    assert not ours.is_signed(header, *REQUEST, now_s=1000.0)
    assert ours.is_signed(theirs.sign(*REQUEST, now_s=1000.0), *REQUEST, now_s=1000.0)
    path.unlink()
    assert ours.is_signed(theirs.sign(*REQUEST, now_s=1000.0), *REQUEST, now_s=1000.0)


@pytest.mark.parametrize("content", ["", "short", "x" * 5000])
def test_file_without_a_token_is_refused_without_its_content(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(TokenError, match="allowed: 16 to 4096 bytes") as raised:
        ClusterToken(path)
    assert not content or content not in str(raised.value)
    with pytest.raises(TokenError, match="cannot be read"):
        ClusterToken(path.with_name("absent"))
