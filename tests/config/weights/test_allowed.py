"""Only sources that a pattern allows as a whole are fetched."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.weights.allowed import MAX_WILDCARDS, PrivateSources, SourcePattern, SourceRules, is_allowed
from autoscaler.config.weights.source import parse

COMMIT = "a" * 40


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        ("hf://**", "hf://meta-llama/Llama-3.1-8B@main"),
        ("hf://meta-llama/*", "hf://meta-llama/Llama-3.1-8B@main"),
        ("hf://meta-llama/*", "hf://meta-llama/Llama-3.1-8B@refs/pr/1"),
        ("hf://meta-llama/Llama-*@main", "hf://meta-llama/Llama-3.1-8B@main"),
        (f"hf://*/*@{COMMIT}", f"hf://org/model@{COMMIT}"),
        ("s3://models/**", "s3://models/team-a/llama"),
        ("https://models.example/*", "https://models.example/model.safetensors"),
        ("file:///mnt/**", "file:///mnt/models/llama"),
    ],
)
def test_source_is_allowed_by_its_pattern(pattern: str, source: str) -> None:
    assert is_allowed(parse(source), [SourcePattern("gs://other/*"), SourcePattern(pattern)])


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        ("hf://meta-llama/*", "hf://meta-llama-evil/Llama@main"),
        ("hf://meta-llama/*", "hf://meta-llama@main"),
        ("hf://meta-llama/Llama@main", "hf://meta-llama/Llama@refs/pr/1"),
        ("hf://meta-llama/Llama", "hf://meta-llama/Llama-2@main"),
        ("hf://org/*@main", "hf://org/model@main2"),
        ("s3://models/*", "s3://models/team-a/llama"),
        ("s3://models/**", "s3://models-of-others/llama"),
        ("https://models.example/**", "https://models.example.evil/model"),
        ("https://models.example/**", "https://models-example/model"),
        ("file:///mnt/*", "file:///etc/model"),
    ],
)
def test_other_sources_are_not_allowed(pattern: str, source: str) -> None:
    assert not is_allowed(parse(source), [SourcePattern(pattern)])


def test_no_pattern_allows_nothing() -> None:
    assert not is_allowed(parse("hf://a/b@main"), [])


@pytest.mark.parametrize(
    "text", ["", "*", "hf:/a", "ftp://*", "hf://", "hf://a b", "hf://a\n", "hf://[a]", "hf://***", "s3://" + "*a" * 5]
)
def test_invalid_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="'"):
        SourcePattern(text)


@given(st.text(alphabet="ab*/@:.", max_size=60), st.text(alphabet="ab/@.", max_size=400))
def test_no_pattern_fails_or_takes_long(rest: str, text: str) -> None:
    try:
        pattern, source = SourcePattern(f"hf://{rest}"), parse(f"hf://{text}")
    except ValueError:
        return
    if pattern.allows(source) and "*" not in rest:
        assert str(source) in (pattern.text, f"{pattern.text}@{source.revision}")


def regular(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern: the slow second source."""
    forms = {"*": "[^/@]*", "**": ".*"}
    pieces = [forms.get(piece) or re.escape(piece) for piece in re.split(r"(\*+)", pattern)]
    return re.compile("".join(pieces) + ("" if "@" in pattern else "(@.*)?"))


@given(st.text(alphabet="aab*/@", min_size=1, max_size=9), st.text(alphabet="ab/@", max_size=12))
def test_comparisons_equal_those_of_a_regular_expression(rest: str, text: str) -> None:
    try:
        pattern, source = SourcePattern(f"hf://{rest}"), parse(f"hf://a/{text}")
    except ValueError:
        return
    assert pattern.allows(source) == bool(regular(pattern.text).fullmatch(str(source)))


def test_time_of_a_comparison_is_bounded() -> None:
    """The time-out of tests ends what takes longer than minutes, such as a regular expression."""
    pattern = SourcePattern("s3://bucket/" + "**a" * MAX_WILDCARDS + "b")
    assert not pattern.allows(parse("s3://bucket/" + "a" * 240 + "/" + "a" * 240))


RULES = SourceRules(
    (SourcePattern("hf://**"),),
    tuple(
        map(
            PrivateSources.parse,
            ("hf://org/*=team-a,team-b", "hf://org/x=team-c", "s3://xy/dt=1/**=team-a", "gs://xy/*=*"),
        )
    ),
)


@pytest.mark.parametrize(
    ("source", "is_private", "served"),
    [
        ("hf://other/x@main", False, ["team-a", "team-b", "team-c", "team-d"]),
        ("hf://org/model@main", True, ["team-a", "team-b"]),
        ("hf://org/x@main", True, ["team-a", "team-b", "team-c"]),
        ("hf://org-2/x@main", False, ["team-a", "team-b", "team-c", "team-d"]),
        ("s3://xy/dt=1/llama", True, ["team-a"]),
        ("s3://xy/dt=2/llama", False, []),
        ("gs://xy/llama", True, ["team-a", "team-b", "team-c", "team-d"]),
        ("file:///etc/x", False, []),
    ],
)
def test_private_sources_serve_their_namespaces(source: str, is_private: bool, served: list[str]) -> None:
    parsed = parse(source)
    assert RULES.is_private(parsed) == is_private
    assert [each for each in ("team-a", "team-b", "team-c", "team-d") if RULES.serves(parsed, each)] == served
    assert RULES.serves_everybody(parsed) == (len(served) == 4)
    assert RULES.allows(parsed) == bool(served)


@pytest.mark.parametrize(
    "text", ["hf://org/*", "hf://org/*=", "hf://org/*=A", "hf://org/*=a,", "=a", "org=a", "hf://*=a/b"]
)
def test_private_source_without_namespaces_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no namespaces|is no pattern"):
        PrivateSources.parse(text)
