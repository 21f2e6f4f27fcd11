"""Untrusted YAML: refusals and their places."""

import os
import string
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.check import scaledobject_fields as so
from autoscaler.config.findings import Finding
from autoscaler.config.policy.compile import OverrideError, override_value
from autoscaler.config.policy.parse import read_policy
from autoscaler.config.yaml import MAX_DEPTH, MAX_DOCUMENTS, MAX_NODES, read_documents, read_scalar, read_text

HEAD = "apiVersion: vllm-autoscaler.io/v1\nkind: Policy\nmetadata: {name: test}\nspec:\n"


def only_finding(text: str) -> Finding:
    documents, findings = read_documents("f.yaml", text)
    assert not documents
    (finding,) = findings
    return finding


def test_values_have_their_line_and_text():
    (document,), findings = read_documents("f.yaml", "# first\na:\n  b: 0x10\n  c:\n  - yes\n  - 1:30\n")
    assert not findings
    assert document.value == {"a": {"b": 16, "c": [True, "1:30"]}}, "what YAML 1.1 counts in sixties is text"
    assert [document.line_of(loc) for loc in (("a",), ("a", "b"), ("a", "c", 0), ("a", "c", 1))] == [2, 3, 5, 6]
    assert document.found(("a", "c", 1)) == "'1:30'"
    assert document.found(("a",)) == "", "the contents of a mapping are not repeated"


def test_a_missing_place_has_the_line_of_its_parent():
    (document,), _ = read_documents("f.yaml", "x: 1\na:\n  b: 1\n")
    assert document.line_of(("a", "missing", "deep")) == 2


def test_documents_of_one_file_have_their_own_lines():
    documents, findings = read_documents("f.yaml", "---\na: 1\n---\n# nothing\n---\nb: 2\n")
    assert not findings
    assert [(document.value, document.line) for document in documents] == [({"a": 1}, 2), ({"b": 2}, 6)]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: [1, 2\n", 3, "not valid YAML"),
        ("a: 1\n\tb: 2\n", 2, "a tab cannot indent YAML"),
        ("a:\n\tb: 2\n", 2, "a tab cannot indent YAML"),
        ("a:\n  b: 1\n\t c: 2\n", 3, "a tab cannot indent YAML"),
        ("a: 1\nb: \x00\n", 2, "not valid YAML"),
        ("a: *nobody\n", 1, "not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "given twice, first in line 1"),
        ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2, "is not supported"),
        ("a: !!binary aGk=\n", 1, "is not supported"),
        ("a: !!set {x, y}\n", 1, "is not supported"),
        ("a: !!int many\n", 1, "not a value of type int"),
        ("a: !!bool perhaps\n", 1, "not a value of type bool"),
        (f"a: {'9' * 5000}\n", 1, "too many digits"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, "merge keys are not supported"),
        ("1: a\n", 1, "a key that is not text"),
        ("? [a]\n: b\n", 1, "a key that is not text"),
        ("a: &x [*x]\n", 1, "an alias that contains itself"),
        ("[" * 900, 1, "nested too deeply"),
        ("[" * 2000, 1, "nest"),  # some versions of the parser refuse this many themselves, in words of their own
        ("\n".join(" " * depth + "a:" for depth in range(MAX_DEPTH + 5)), MAX_DEPTH + 1, "nested too deeply"),
    ],
)
def test_unreadable_yaml_is_refused_with_its_line(text: str, line: int, problem: str):
    finding = only_finding(text)
    assert problem in finding.problem
    assert (finding.file, finding.line) == ("f.yaml", line)
    assert finding.allowed


def test_a_bomb_of_aliases_is_refused_before_it_is_written_out():
    levels = [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]" for level in range(1, 12)]
    finding = only_finding("\n".join(["l0: &l0 [x]", *levels]))
    assert "aliases written out" in finding.problem


def test_aliases_cannot_expand_many_small_documents():
    levels = [f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]" for level in range(1, 4)]
    text = "---\n".join(["\n".join(["l0: &l0 [x]", *levels, ""])] * MAX_DOCUMENTS)  # of 34 KB, half a million values
    documents, findings = read_documents("f.yaml", text)
    assert documents == []
    assert len(findings) == MAX_DOCUMENTS
    assert all("aliases written out" in finding.problem for finding in findings)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["-\n", "- - - -\n", "- {a,b,c}\n", "- [[],[],~]\n", "- a:\n", "- ü\n"])
def test_without_aliases_no_document_has_more_values_than_it_may(part: str):
    text = part * 1000
    for around in (text, f"---\n{text}...\n", f"# ü\n---\n{text}---\n{text}"):
        assert read_documents("f.yaml", around)[1] == []


@pytest.mark.slow
def test_a_document_with_too_many_values_is_refused():
    values = "- 1\n" * (3 * MAX_NODES)
    for text, line in ((values, 2 * MAX_NODES), (f"a: 1\n---\n{values}", 2 * MAX_NODES + 2)):
        finding = only_finding(text)
        assert (finding.problem, finding.line) == ("too large", line)
    assert "too large" in only_finding("- 1\n" * (MAX_NODES + 1)).problem
    assert read_documents("f.yaml", "- 1\n" * (MAX_NODES - 1))[1] == []


def test_too_many_documents_are_refused():
    assert only_finding("---\na: 1\n" * (MAX_DOCUMENTS + 1)).problem == "too many documents"


def test_one_bad_document_leaves_the_others_readable():
    documents, findings = read_documents("f.yaml", "a: 1\n---\na: 1\na: 2\n---\nb: 1\n")
    assert [document.value for document in documents] == [{"a": 1}, {"b": 1}]
    assert [finding.line for finding in findings] == [4]


def test_a_syntax_error_does_not_repeat_the_text_around_it():
    finding = only_finding("token: s3cr3t\n  password: [hunter2\n")
    assert "s3cr3t" not in str(finding)
    assert "hunter2" not in str(finding)


def test_harmless_aliases_are_expanded():
    (document,), _ = read_documents("f.yaml", "a: &x {b: 1}\nc: *x\n")
    assert document.value == {"a": {"b": 1}, "c": {"b": 1}}


@given(st.text(max_size=200))
def test_any_text_gives_documents_or_findings(text: str):
    documents, findings = read_documents("f.yaml", text)
    assert all(document.line >= 1 for document in documents)
    assert all(finding.file == "f.yaml" and finding.line >= 1 and finding.problem for finding in findings)


@given(st.text(alphabet="!&*{}[]:,-<>|'\"#%@`?=~ \n\tab01._/", max_size=80))
def test_any_text_of_yaml_marks_gives_documents_or_findings(text: str):
    documents, findings = read_documents("f.yaml", text)
    assert len(documents) <= MAX_DOCUMENTS
    assert all(finding.line >= 1 for finding in findings)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("0.5", 0.5),
        ("true", True),
        ("150ms", "150ms"),
        ("25%", "25%"),
        ("1:30.5", "1:30.5"),
        ("", None),
        ("[1]", "[1]"),
        ("010", 10),
        ("08", 8),
        ("-010", -10),
        ("010.50", 10.5),
        ("5.", 5.0),
    ],
)
def test_a_single_value_is_read_as_yaml_reads_it(text: str, value: object):
    assert read_scalar(text) == value


@pytest.mark.parametrize("text", ["0x10", "0b1", "1_0", "+1", "1_0.5", "-0x1", "1.0e+3", ".inf", ".nan", "0o_1", "8\n"])
def test_a_number_that_is_no_plain_decimal_is_refused(text: str):
    for path in ("replicas.max", "weight", "tolerance", "scaleDown.maxStep"):
        with pytest.raises(OverrideError):
            override_value(path, text)


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("replicas: {{max: {}}}", ("010", "08", "0x10", "0b11", "1_0", "+12", "1e1", "1.0e+1")),
        ("weight: {}", ("010", "08.5", "1_0.5", "+1.5", "1e3", "1.0e+3", "0x1")),
        ("tolerance: {}", ("00.1", "+0.1", "1e-1", "1.0e-1", "0_0.1")),
        ("scaleDown: {{maxStep: {}}}", ("010", "0x10", "1_0", "+4", "1e1")),
        ("prewarm: [{{from: 0 8 * * *, until: 0 9 * * *, replicas: {}}}]", ("010", "0x4", "1_0", "+4")),
    ],
)
def test_a_number_in_a_policy_file_is_a_plain_decimal(path: str, texts: tuple[str, ...]):
    for text in texts:
        (document,), _ = read_documents("p.yaml", f"{HEAD}  {{{path.format(text)}}}\n")
        findings: list[Finding] = []
        assert read_policy(document, findings) is None
        (finding,) = findings
        assert (finding.problem, finding.value) == ("not a plain decimal number", f"'{text}'")


@pytest.mark.parametrize("text", ["010", "0x10", "1_0", "+12"])
def test_a_number_of_a_scaled_object_is_a_plain_decimal(text: str):
    (document,), _ = read_documents("s.yaml", f"spec: {{minReplicaCount: {text}, triggers: []}}\n")
    (fault,) = (fault for fault in so.faults(document.value, [0]) if fault.place == so.MIN)
    assert fault.problem == "not a plain decimal number"


def test_unused_numbers_are_read_as_in_yaml():
    (document,), findings = read_documents("m.yaml", "volumes: [{configMap: {defaultMode: 0644}}]\n")
    assert document.value == {"volumes": [{"configMap": {"defaultMode": 0o644}}]}
    assert findings == []


@given(st.decimals(-1_000_000, 1_000_000, allow_nan=False, places=3), st.integers(0, 5))
def test_leading_zeros_do_not_change_a_decimal(number: Decimal, zeros: int):
    sign, digits = ("-", str(-number)) if str(number).startswith("-") else ("", str(number))
    digits = digits.removeprefix("-")
    assert read_scalar(f"{sign}{'0' * zeros}{digits}") == float(number)


@given(st.text(alphabet=string.printable, max_size=100))
def test_a_single_value_of_any_text_is_read_or_refused(text: str):
    try:
        value = read_scalar(text)
    except ValueError:
        return
    assert value is None or isinstance(value, str | int | float | bool)


def test_a_file_may_have_a_byte_order_mark(tmp_path: Path):
    for number, data in enumerate((b"a: \xc3\xa9", b"\xef\xbb\xbfa: \xc3\xa9")):
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(data)
        assert read_text(path) == "a: é"


def test_unreadable_files_are_reported_without_waiting(tmp_path: Path):
    (tmp_path / "large.yaml").write_bytes(b"#" * 101)
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    os.mkfifo(tmp_path / "pipe.yaml")
    reported = {}
    for name in ("large.yaml", "latin.yaml", "pipe.yaml", "missing.yaml", "nul\0.yaml", "."):
        finding = read_text(tmp_path / name, max_bytes=100)
        assert isinstance(finding, Finding)
        assert finding.allowed == "a readable text file in UTF-8 of at most 100 bytes"
        reported[name] = (finding.line, finding.problem, finding.value)
    assert reported == {
        "large.yaml": (0, "more than 100 bytes", ""),
        "latin.yaml": (2, "not UTF-8", "byte 0xe9"),
        "pipe.yaml": (0, "not a regular file", ""),
        "missing.yaml": (0, "cannot be read: No such file or directory", ""),
        "nul\0.yaml": (0, "cannot be read: embedded null byte", ""),
        ".": (0, "not a regular file", ""),
    }
