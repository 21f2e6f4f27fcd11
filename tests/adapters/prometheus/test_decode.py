"""Decoding of instant vectors, and of bodies that are none."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.prometheus.decode import (
    MAX_NOTE_CHARACTERS,
    MIN_SHARED,
    ORDERS,
    LabelLists,
    UnreadableAnswer,
    clean,
    decode_error,
    decode_vector,
    parse_labels,
)
from tests.adapters.prometheus.responses import NOW_UNIX_S, pod, vector


def test_labels_stay_bytes_and_values_become_numbers():
    found = decode_vector(vector((pod("a"), 12), (pod("b"), "1.5e-07")).encode())
    assert [parse_labels(raw) for raw in found.labels] == [pod("a"), pod("b")]
    assert found.values.tolist() == [12, 1.5e-07]
    assert found.time_s == NOW_UNIX_S
    assert not found.partial


def test_values_that_json_has_no_word_for_are_numbers_too():
    found = decode_vector(
        vector((pod("a"), "NaN"), (pod("b"), "+Inf"), (pod("c"), "-Inf"), (pod("d"), "1e+06")).encode()
    )
    np.testing.assert_array_equal(found.values, [np.nan, np.inf, -np.inf, 1e6])


def test_an_empty_vector_has_no_series_and_no_time():
    found = decode_vector(vector().encode())
    assert len(found.labels) == len(found.values) == 0
    assert np.isnan(found.time_s)


def test_native_histogram_samples_are_left_out():
    histogram = {"metric": pod("h"), "histogram": [NOW_UNIX_S, {"count": "3", "sum": "4", "buckets": []}]}
    body = {"status": "success", "data": {"resultType": "vector", "result": [histogram]}}
    body["data"]["result"].append({"metric": pod("a"), "value": [1, "2"]})
    assert decode_vector(json.dumps(body).encode()).values.tolist() == [2]


def many(*, first: int = 0, value: float = 1.0) -> bytes:
    return vector(*((pod(f"p-{number}"), value) for number in range(first, first + MIN_SHARED))).encode()


def test_answers_of_the_same_series_share_their_labels():
    lists = LabelLists()
    before, after = (decode_vector(many(value=value), lists) for value in (1.0, 2.0))
    assert after.labels is before.labels
    assert [parse_labels(raw) for raw in before.labels] == [pod(f"p-{number}") for number in range(MIN_SHARED)]
    assert after.values.tolist() == [2.0] * MIN_SHARED


def test_another_order_of_series_has_labels_of_its_own():
    lists = LabelLists()
    decode_vector(many(), lists)
    shifted = decode_vector(many(first=1), lists)
    assert parse_labels(shifted.labels[0]) == pod("p-1")


def test_labels_are_forgotten_after_other_orders():
    lists = LabelLists()
    before = decode_vector(many(), lists).labels
    for first in range(1, ORDERS + 1):
        decode_vector(many(first=first), lists)
    after = decode_vector(many(), lists).labels
    assert after is not before
    assert after == before


@pytest.mark.parametrize(
    "data",
    [
        {"resultType": "scalar", "result": [1, "2"]},
        {"resultType": "string", "result": [1, "x"]},
        {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "2"]]}]},
    ],
)
def test_other_kinds_of_results_are_refused_by_name(data: dict):
    with pytest.raises(UnreadableAnswer, match=f"{data['resultType']}, not a vector"):
        decode_vector(json.dumps({"status": "success", "data": data}).encode())


def test_an_error_in_the_body_is_reported():
    body = {"status": "error", "errorType": "execution", "error": "query processing would load too many samples"}
    with pytest.raises(UnreadableAnswer, match="execution: query processing would load too many samples"):
        decode_vector(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"warnings": ["store 10.0.0.9 is unavailable"]}, ("store 10.0.0.9 is unavailable",)),
        ({"isPartial": True}, ()),
    ],
)
def test_warnings_and_is_partial_make_an_answer_partial(more: dict, note: tuple[str, ...]):
    found = decode_vector(vector((pod("a"), 1), **more).encode())
    assert found.partial
    assert found.notes == note


def test_infos_are_noted_and_do_not_make_an_answer_partial():
    found = decode_vector(vector((pod("a"), 1), infos=["metric might not be a counter"]).encode())
    assert not found.partial
    assert found.notes == ("metric might not be a counter",)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"<html>",
        b"\xff\xfe\x00",
        b'{"status":"success"}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"a"},"value":[1,"x"]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"a"},"value":[1]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":{}}}',
        b'{"status":' + b"[" * 100_000,
    ],
)
def test_an_invalid_answer_is_refused(body: bytes):
    with pytest.raises(UnreadableAnswer):
        decode_vector(body)


@given(st.integers(0, 200))
def test_a_truncated_answer_is_refused(length: int):
    body = vector((pod("a"), 1), (pod("b"), 2)).encode()
    with pytest.raises(UnreadableAnswer):
        decode_vector(body[: min(length, len(body) - 1)])


@given(st.dictionaries(st.text(), st.text()), st.floats())
def test_any_labels_and_values_come_back_as_they_were_sent(labels: dict[str, str], value: float):
    found = decode_vector(vector((labels, repr(value))).encode())
    assert parse_labels(found.labels[0]) == labels
    np.testing.assert_array_equal(found.values, [value])


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"a":1}', b"\xff", b'{"a":"b"'])
def test_labels_that_are_no_strings_are_no_labels(raw: bytes):
    assert parse_labels(raw) == {}


def test_a_proxys_page_is_read_without_its_tags():
    assert decode_error(b"<html><h1>Bad  gateway</h1>\n<hr>nginx</html>") == "Bad gateway nginx"


@given(st.text(max_size=5000))
def test_a_foreign_text_becomes_one_short_printable_line(text: str):
    line = clean(text)
    assert line.isprintable()
    assert len(line) <= MAX_NOTE_CHARACTERS
