"""The words of a finding: one line, bounded, whatever was found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.config.findings import MAX_FINDINGS, Finding, PolicyError, Severity, one_of, shown, unknown


def test_a_finding_is_one_sentence():
    finding = Finding("p.yaml", 7, "spec.replicas.min", "above max", "'20'", "at most 16")
    assert str(finding) == "p.yaml:7: error: spec.replicas.min: above max, found '20'; allowed: at most 16"


def test_a_finding_about_a_whole_file_has_no_line():
    finding = Finding("p.yaml", 0, "", "not UTF-8", severity=Severity.WARNING)
    assert str(finding) == "p.yaml: warning: document: not UTF-8"


def test_an_error_shows_a_bounded_number_of_findings():
    error = PolicyError([Finding("p.yaml", line, "", "bad") for line in range(1, MAX_FINDINGS + 12)])
    assert len(error.findings) == MAX_FINDINGS
    assert str(error).splitlines()[-1] == "... and 11 more"


@pytest.mark.slow
@given(st.one_of(st.text(max_size=500), st.integers(), st.lists(st.text(), max_size=50)))
def test_any_value_is_shown_in_one_short_printable_line(value: object):
    assert shown(value).isprintable()
    assert len(shown(value)) <= 80


def test_the_closest_name_comes_before_the_problem():
    assert unknown("unknown key", ["ttft", "itl"], "tftt") == ("did you mean ttft? unknown key", "itl, ttft")
    assert unknown("unknown key", ["ttft", "itl"], "zzz") == ("unknown key", "itl, ttft")
    assert one_of([]) == "none"


def test_many_names_are_left_to_their_page():
    names = [str(number) for number in range(100, 200)]
    assert one_of(names) == "the 100 names in docs/reference/policy.md"
    assert one_of(names, "") == "'100', '101', '102' and 97 more"
