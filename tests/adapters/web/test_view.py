"""Readings of a tick that metrics, table and page share."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.web.view import NONE, SIGNALS, STAGES, Wishes, binding_stage, bounded, strongest_signal
from autoscaler.core.explain.sentence import explain
from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Change, ChangeStatus, Outcome
from tests.adapters.web.records import World


@given(st.text(st.characters(codec=None), max_size=300), st.integers(1, 40))
def test_bounded_text_is_short_printable_and_encodable(text: str, limit: int) -> None:
    shown = bounded(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    shown.encode()
    if text.isprintable() and len(text) <= limit:
        assert shown == text


def test_the_strongest_signal_is_the_largest_known_ask() -> None:
    nan = np.nan
    asks = np.array([[1.0, nan, nan, 0.0], [3.0, nan, 2.0, nan]])
    assert strongest_signal(asks).tolist() == [1, NONE, 1, 0]


def test_the_binding_stage_is_the_one_that_the_explanation_names() -> None:
    tick = World(30).ticks(5)[-1]
    bound = [STAGES[stage] if stage != NONE else "" for stage in binding_stage(tick.decision).tolist()]
    rows = range(len(bound))
    assert bound == [explain(tick.input, tick.decision, tick.policies, tick.problems, row).bound for row in rows]
    assert {"", "stabilization"} <= set(bound)


def test_the_strongest_signal_is_the_one_that_the_explanation_names() -> None:
    tick = World(30).ticks(5)[-1]
    strongest = [SIGNALS[signal] for signal in strongest_signal(tick.decision.asks).tolist()]
    assert strongest == [
        explain(tick.input, tick.decision, tick.policies, tick.problems, row).signal for row in range(30)
    ]


def test_a_wish_is_new_again_after_it_was_gone() -> None:
    wish = Outcome(Change(WorkloadRef("ns", "a"), "", 1, 2, ""), ChangeStatus.PUBLISHED)
    wishes = Wishes()
    assert wishes.unseen((wish,)) == [wish]
    assert wishes.unseen((wish,)) == []
    assert wishes.unseen(()) == []
    assert wishes.unseen((wish,)) == [wish]
