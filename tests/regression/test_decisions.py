"""Decisions are the same, bit for bit, as when they were recorded."""

import pytest

from tests.regression.recorded import STORIES, expected

pytestmark = pytest.mark.slow
LONG = ("demo", "season")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in STORIES]
)
def test_counts_are_those_that_were_recorded(name: str):
    """After a change of decisions that is meant: `python -m tests.regression.recorded --write`."""
    counts = STORIES[name]()
    differing = [pair for pair in zip(counts, expected(name), strict=False) if pair[0] != pair[1]]
    assert not differing, f"first difference, decided and recorded: {differing[0]}"
    assert len(counts) == len(expected(name))
