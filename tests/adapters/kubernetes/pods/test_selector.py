"""Label selectors against the rules of Kubernetes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.kubernetes.pods.selector import MAX_TERMS, Term, read_selector, selects

LABELS = {"app": "llama", "role": "decode", "hash": "a"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("app=llama", True),
        ("app==llama, role=decode", True),
        ("app=llama,role=prefill", False),
        ("app!=mistral", True),
        ("absent!=x", True),
        ("role in (prefill, decode)", True),
        ("role notin (prefill,decode)", False),
        ("absent notin (x)", True),
        ("absent in (x)", False),
        ("app", True),
        ("absent", False),
        ("!absent", True),
        ("!app", False),
        ("nvidia.com/dynamo-component=x,app=llama", False),
        ("app=", False),
        ("absent=", False),
    ],
)
def test_selector_matches_labels_as_in_kubernetes(text: str, matches: bool):
    selector = read_selector(text)
    assert selector
    assert selects(selector, LABELS) is matches


@pytest.mark.parametrize("text", ["", "  ", ",", "a=b=c", "a in b", "a in (b", "(a)", "=b", "a=b,,c=d", "x" * 5000])
def test_invalid_or_empty_selector_selects_nothing(text: str):
    assert read_selector(text) == ()
    assert not selects((), LABELS)


def test_selector_with_too_many_terms_selects_nothing():
    assert len(read_selector(",".join(f"k{index}=v" for index in range(MAX_TERMS)))) == MAX_TERMS
    assert read_selector(",".join(f"k{index}=v" for index in range(MAX_TERMS + 1))) == ()


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_error(text: str):
    selects(read_selector(text), LABELS)


NAMES = st.from_regex(r"[a-z]([a-z0-9./-]{0,8}[a-z0-9])?", fullmatch=True)


@given(st.dictionaries(NAMES, NAMES, min_size=1, max_size=5))
def test_labels_joined_as_text_select_their_own_pod(labels: dict[str, str]):
    selector = read_selector(",".join(f"{key}={value}" for key, value in sorted(labels.items())))
    assert selector == tuple(Term(key, frozenset((labels[key],))) for key in sorted(labels))
    assert selects(selector, {**labels, "more": "x"})
