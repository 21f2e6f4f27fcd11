"""Readings of a tick that metrics, table and page share."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.adapters.web.tick_values import (
    NONE,
    SIGNALS,
    STAGES,
    NewChanges,
    binding_stage,
    bounded,
    strongest_signal,
)
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


def test_strongest_signal_has_the_largest_recommendation() -> None:
    nan = np.nan
    asks = np.array([[1.0, nan, nan, 0.0], [3.0, nan, 2.0, nan]])
    assert strongest_signal(asks).tolist() == [1, NONE, 1, 0]


def test_binding_stage_is_the_one_in_the_explanation() -> None:
    tick = World(30).ticks(5)[-1]
    bound = [STAGES[stage] if stage != NONE else "" for stage in binding_stage(tick.decision).tolist()]
    rows = range(len(bound))
    assert bound == [explain(tick.input, tick.decision, tick.policies, tick.problems, row).bound for row in rows]
    assert {"", "stabilization"} <= set(bound)


def test_strongest_signal_is_the_one_in_the_explanation() -> None:
    tick = World(30).ticks(5)[-1]
    strongest = [SIGNALS[signal] for signal in strongest_signal(tick.decision.recommendations).tolist()]
    assert strongest == [
        explain(tick.input, tick.decision, tick.policies, tick.problems, row).signal for row in range(30)
    ]


def test_a_change_is_new_again_after_it_was_gone() -> None:
    change = Outcome(Change(WorkloadRef("ns", "a"), "", 1, 2, ""), ChangeStatus.PUBLISHED)
    new_changes = NewChanges()
    assert new_changes.select((change,)) == [change]
    assert new_changes.select((change,)) == []
    assert new_changes.select(()) == []
    assert new_changes.select((change,)) == [change]
