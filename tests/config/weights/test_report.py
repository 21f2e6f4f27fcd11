"""Reports of nodes survive the way through the API server; whatever a node writes, the daemon can read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.weights.report import (
    MAX_BYTES,
    MAX_MODELS,
    InvalidReportError,
    ModelReport,
    Report,
    State,
    decode,
    encode,
    label_of,
    labels,
)
from autoscaler.config.weights.source import parse

LLAMA = parse("hf://meta-llama/Llama-3.1-8B@main")

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
models = st.builds(
    ModelReport,
    st.from_regex(r"s3://bucket/[a-z]{1,400}", fullmatch=True),
    st.sampled_from(State),
    st.integers(0, 1 << 50),
    st.sampled_from(("", "no_space", "denied")),
    st.text(max_size=300),
)
reports = st.lists(models, max_size=MAX_MODELS + 8).map(
    lambda found: Report({parse(model.source).key: model for model in found}, "0.2.0", 10**12, 10**11)
)


@given(reports)
def test_report_is_read_as_written_within_its_bounds(report: Report) -> None:
    text = encode(report)
    assert len(text.encode()) <= MAX_BYTES
    read = decode(text)
    assert (read.agent, read.budget_bytes, read.free_bytes) == ("0.2.0", 10**12, 10**11)
    for key, model in read.models.items():
        assert model._replace(text="") == report.models[key]._replace(text="")
        assert model.text.isprintable()
    ready = {key for key, model in report.models.items() if model.state is State.READY}
    if len(read.models) < len(report.models):
        assert all(key in ready for key in read.models) or ready <= read.models.keys()
    assert len(labels(report)) == min(len(ready), MAX_MODELS)
    assert labels(read).items() <= labels(report).items() or len(ready) > MAX_MODELS


@given(st.text(max_size=200) | values.map(json.dumps))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    try:
        decode(text)
    except InvalidReportError as error:
        assert str(error).isprintable()


@given(st.dictionaries(st.just(LLAMA.key) | st.text(max_size=20), values, max_size=4), values)
def test_models_that_are_not_valid_are_left_out(found: dict[str, Any], extra: Any) -> None:
    good = {"source": str(LLAMA), "state": "ready", "bytes": 7, "later": extra}
    read = decode(json.dumps({"format": 1, "later": extra, "models": found | {LLAMA.key: good}}))
    assert read.models == {LLAMA.key: ModelReport(str(LLAMA), State.READY, 7)}


@pytest.mark.parametrize(
    "model",
    [
        {"source": str(LLAMA), "state": "sold"},
        {"source": "hf://other/model@main", "state": "ready"},
        {"source": str(LLAMA), "state": "ready", "bytes": -1},
        {"source": str(LLAMA), "state": "failed", "cause": "<script>"},
        {"source": str(LLAMA)},
        {"source": "../../etc", "state": "ready"},
    ],
)
def test_model_with_one_wrong_field_is_left_out(model: dict[str, Any]) -> None:
    assert not decode(json.dumps({"format": 1, "models": {LLAMA.key: model}})).models


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format": 2, "models": 3}', "has the format 2; allowed: 1"),
        ('{"format": 1}', "missing required field"),
        ('{"format": 1, "models": {}, "free": -1}', "has the sizes 0 and -1"),
        ('{"format": 1, "models": {}, "agent": ' + "[" * 4000 + "]" * 4000 + "}", "is not valid"),
        ("x" * (MAX_BYTES + 1), "more than 16384 bytes"),
        ("\ud800", "is not valid"),
    ],
)
def test_other_documents_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidReportError, match=why):
        decode(text)


def test_text_is_dropped_before_a_model_is() -> None:
    failed = {
        parse(f"hf://a/m{number}@main").key: ModelReport(f"hf://a/m{number}@main", State.FAILED, 0, "denied", "x" * 900)
        for number in range(MAX_MODELS)
    }
    assert len(decode(encode(Report(failed))).models) == MAX_MODELS
    folder = f"s3://bucket/{'x' * 200}/{'x' * 200}"
    names = [f"{folder}/{number}" for number in range(60)]
    long = {parse(name).key: ModelReport(name, State.FAILED) for name in names}
    ready = {LLAMA.key: ModelReport(str(LLAMA), State.READY)}
    kept = decode(encode(Report(long | ready))).models
    assert LLAMA.key in kept
    assert 20 < len(kept) < 61


def test_first_models_keep_their_labels_when_there_are_too_many() -> None:
    """Agents report models by use: many tiny ones that nobody wishes come last."""
    sources = [parse(f"hf://org/m{number}@main") for number in range(MAX_MODELS + 6)]
    report = Report({each.key: ModelReport(str(each), State.READY, size=1) for each in sources})
    expected = [each.key for each in sources[:MAX_MODELS]]
    assert set(labels(report)) == {label_of(key) for key in expected}
    assert set(decode(encode(report)).models) <= set(expected)
    assert expected[0] in decode(encode(report)).models
