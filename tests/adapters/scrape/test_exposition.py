"""The parser of metrics text; the second source is the parser of prometheus_client."""

import gzip
import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.adapters.scrape.exposition import MAX_LINES, MAX_REQUESTED_BYTES, MAX_SAMPLES, Sample, Unreadable, parse

RECORDINGS = Path(__file__).parents[2] / "data" / "vllm"


def names(*wanted: str) -> frozenset[bytes]:
    return frozenset(name.encode() for name in wanted)


def comparable(series: dict[str, list[Sample]]) -> dict[str, list[tuple[dict[str, str], str]]]:
    """Values as text, so that NaN equals NaN; -0 becomes 0."""
    return {
        name: [(dict(labels), repr(float(value) + 0.0)) for labels, value in samples]
        for name, samples in series.items()
    }


def by_prometheus_client(text: str) -> dict[str, list[tuple[dict[str, str], str]]]:
    series: dict[str, list[Sample]] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            series.setdefault(sample.name, []).append((sample.labels, sample.value))
    return comparable(series)


@pytest.mark.parametrize("recording", sorted(path.name for path in RECORDINGS.glob("*.prom")))
def test_recordings_are_parsed_as_by_prometheus_client(recording: str) -> None:
    body = (RECORDINGS / recording).read_bytes()
    expected = by_prometheus_client(body.decode())
    assert len(expected) > 50
    assert comparable(parse(body, names(*expected)).series) == expected


def test_recorded_series_are_parsed_as_by_prometheus_client() -> None:
    with gzip.open(RECORDINGS / "load-timeseries.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    for text in texts[::10]:
        body = text if text.endswith("\n") else text + "\n"
        expected = by_prometheus_client(body)
        assert comparable(parse(body.encode(), names(*expected)).series) == expected


# The hostile cases below cover characters that no format allows in a name; values and labels may be anything.
# prometheus_client refuses names that begin with two underscores.
label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name[:2] != "__")
label_values = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
numbers = st.one_of(
    st.floats(allow_nan=False).map(repr),
    st.integers(-(10**18), 10**18).map(str),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e5", "1E-3", "0x", "-0", "5.", ".5"]),
).filter(lambda text: text != "0x")


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@st.composite
def expositions(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        name = draw(st.sampled_from(["vllm:a", "b_total", "c_bucket", "d"]))
        labels = draw(st.dictionaries(label_names, label_values, max_size=4))
        inner = ",".join(f'{label}="{escaped(value)}"' for label, value in labels.items())
        head = f"{name}{{{inner}}}" if labels or draw(st.booleans()) else name
        stamp = draw(st.sampled_from(["", " 1700000000000"]))
        lines.append(head + draw(st.sampled_from([" ", "  ", "\t"])) + draw(numbers) + stamp)
        lines.append(draw(st.sampled_from(["# a comment", "", '# HELP d {of} "this"', "# EOF"])))
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@given(expositions())
@example('d{a="}",b=" # {"} 1\n')
def test_generated_text_is_read_as_prometheus_client_reads_it(text: str) -> None:
    if "\r" in text or "\x85" in text or "\u2028" in text or any(c in text for c in "\x0b\x0c\x1c\x1d\x1e\u2029"):
        return  # prometheus_client splits lines at these, Prometheus does not; the next test is about them
    wanted = names("vllm:a", "b_total", "c_bucket", "d")
    assert comparable(parse(text.encode(), wanted).series) == by_prometheus_client(text)


@pytest.mark.parametrize(
    "odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\r", "\u00a0", "\t", "}", "{", ","]
)
def test_an_odd_character_in_a_label_value_is_only_a_character(odd: str) -> None:
    found = parse(f'd{{a="x{odd}y",b="z"}} 7\n'.encode(), names("d"))
    assert found.series == {"d": [({"a": f"x{odd}y", "b": "z"}, 7.0)]}


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        found = parse(body, names("d", "a"))
    except Unreadable as error:
        assert 0 < len(str(error)) < 120
    else:
        assert set(found.series) <= {"d", "a"}


@given(st.text(st.sampled_from('d{}",\\= \t#a1e.+-_\r'), max_size=40))
def test_any_line_after_a_wanted_name_is_read_or_named_as_broken(line: str) -> None:
    found = parse(f'd{{a="1"}} 1\nd{{{line}\n'.encode(), names("d"))
    assert ("d" in found.series) != ("d" in found.broken)


def test_escapes_in_labels_are_undone() -> None:
    found = parse(rb'd{a="back\\slash",b="new\nline",c="a \"quote\"",e="\\n",f="\x"} 1' + b"\n", names("d"))
    assert found.series["d"][0][0] == {
        "a": "back\\slash",
        "b": "new\nline",
        "c": 'a "quote"',
        "e": "\\n",
        "f": "\\x",
    }


def test_quoted_label_names_of_newer_text_are_read() -> None:
    assert parse(b'd{"with.dot"="x",plain="y"} 1\n', names("d")).series["d"][0][0] == {"with.dot": "x", "plain": "y"}


def test_windows_line_ends_blanks_and_commas_are_accepted() -> None:
    found = parse(b'# TYPE d gauge\r\n  d { a = "1" , b="2", }  3.5  1700000000000 \r\n\r\nd\t4\r\n', names("d"))
    assert found.series["d"] == [({"a": "1", "b": "2"}, 3.5), ({}, 4.0)]


def test_exemplars_are_passed_over() -> None:
    body = b'd_bucket{le="1"} 5 # {trace_id="a}b"} 0.5 1700000000.1\nd_bucket 6 # {trace_id="x"} 1\n# EOF\n'
    found = parse(body, names("d_bucket"))
    assert found.series["d_bucket"] == [({"le": "1"}, 5.0), ({}, 6.0)]


@pytest.mark.parametrize(("text", "value"), [("+Inf", math.inf), ("-Inf", -math.inf), ("1.5e-7", 1.5e-7), ("1E3", 1e3)])
def test_numbers_of_every_form_are_read(text: str, value: float) -> None:
    assert parse(f"d {text}\n".encode(), names("d")).series["d"][0][1] == value


def test_not_a_number_is_read_as_such() -> None:
    assert math.isnan(parse(b"d NaN\n", names("d")).series["d"][0][1])


@pytest.mark.parametrize(
    "line",
    [
        b"d",
        b"d{",
        b'd{a="1"}',
        b'd{a="1" 5',
        b'd{a="1} 5',
        b"d{a=1} 5",
        b'd{a="1",a="2"} 5',
        b'd{1a="1"} 5',
        b'd{a="1"}{b="2"} 5',
        b'd junk{a="1"} 5',
        b'd{a="\xff\xfe"} 5',
        b'd{a="1"} five',
        b'd{a="1"} 1_000',
        b'd{a="1"} 5 later',
        b'd{a="1"} 5 6 7',
        b'd{a="' + b"x" * 20_000 + b'"} 5',
        b"d{" + b",".join(b'l%d="x"' % index for index in range(200)) + b"} 5",
    ],
)
def test_a_malformed_line_drops_only_its_own_name(line: bytes) -> None:
    found = parse(b'd{engine="0"} 1\n' + line + b'\nb_total{engine="0"} 2\n', names("d", "b_total"))
    assert found.broken == {"d"}  # a sum without the broken line would be too small
    assert found.series == {"b_total": [({"engine": "0"}, 2.0)]}


@pytest.mark.parametrize("cut", [1, 20, 1000, 30_000])
def test_truncated_text_is_refused(cut: int) -> None:
    body = (RECORDINGS / "running.prom").read_bytes()[:-cut]
    assert not body.endswith(b"\n")
    with pytest.raises(Unreadable, match=f"cut off after {len(body)} bytes"):
        parse(body, names("vllm:num_requests_running"))


def test_binary_is_refused() -> None:
    with pytest.raises(Unreadable, match="binary"):
        parse(b"\x7fELF\0\0\0\n", names("d"))


def test_text_of_absurdly_many_lines_is_refused() -> None:
    body = b"x 1\n" * (2 * MAX_LINES)
    with pytest.raises(Unreadable, match=f"more than {MAX_LINES} lines"):
        parse(body, names("d"))


def test_absurdly_many_series_are_refused() -> None:
    body = b"".join(b'd{a="%d"} 1\n' % index for index in range(MAX_SAMPLES + 1))
    with pytest.raises(Unreadable, match=f"more than {MAX_SAMPLES} series"):
        parse(body, names("d"))


HOSTILE = tuple(f"d{number}" for number in range(80))


def hostile(size: int) -> bytes:
    """Return one broken line for each name: the first is enough to leave a name out, and no more are read of it."""
    ends = [
        b'{a="' + b"\\" * (size - size // 32) + b"}" * (size // 32),
        b"{" + b'a="",' * (size // 5),
        b"{" * size,
        b" " + b"}" * size,
    ]
    return b"".join(name.encode() + ends[number % 4] + b"\n" for number, name in enumerate(HOSTILE))


def least_s(body: bytes, *broken: str) -> float:
    """Return the processor time that reading takes, the least of some."""
    took_s = []
    for _ in range(5):
        begin_s = time.process_time()
        assert parse(body, names(*HOSTILE)).broken == set(broken)
        took_s.append(time.process_time() - begin_s)
    return min(took_s)


def test_a_hostile_line_takes_time_linear_in_its_length() -> None:
    """Four times the length takes four times the time; a pattern that goes back over it would take sixteen times."""
    assert least_s(hostile(16_000), *HOSTILE) < 8 * least_s(hostile(4_000), *HOSTILE)


def test_many_hostile_lines_cost_little_more_than_valid_ones() -> None:
    broken, good = b'd0{a="b" x\n' * 15_000, b'd0{a="b"} 1\n' * 15_000
    assert least_s(broken, "d0") < 4 * least_s(good)


def test_names_with_a_common_prefix_are_separate() -> None:
    body = b"x 1\nx_total 2\nx_total_bucket 3\nx_tot 4\nx_totals 5\nxx 6\n x_created 7\n"
    wanted = names("x", "x_total", "x_total_bucket", "x_created")
    read = {name: value for name, [(_, value)] in parse(body, wanted).series.items()}
    assert read == {"x": 1, "x_total": 2, "x_total_bucket": 3, "x_created": 7}


def test_an_absurd_number_of_labels_is_refused() -> None:
    labels = b",".join(b'a%d=""' % number for number in range(100))
    with pytest.raises(Unreadable, match=f"more than {MAX_REQUESTED_BYTES} bytes"):
        parse((b"d{" + labels + b"} 1\n") * (MAX_REQUESTED_BYTES // len(labels)), names("d"))


def test_an_empty_body_has_no_samples() -> None:
    assert parse(b"", names("d")).series == {}
    assert parse(b"\n", names("d")).series == {}
