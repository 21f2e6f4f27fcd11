"""Pauses after failures grow by cause, and end when the model is ready or the cause may have gone."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.weights.attempts import JITTER, OTHER_PAUSE_S, PAUSES_S, Attempts
from autoscaler.weights.problems import WeightsCause, WeightsError


@given(st.sampled_from(WeightsCause), st.integers(1, 40))
def test_pause_doubles_up_to_the_most_of_its_cause(cause: WeightsCause, times: int) -> None:
    attempts = Attempts()
    for _ in range(times):
        attempt = attempts.fail("a", WeightsError(cause, "why"), 1000.0)
    first_s, most_s = PAUSES_S.get(cause, OTHER_PAUSE_S)
    pause_s = attempt.next_s - 1000.0
    expected_s = min(first_s * 2 ** (times - 1), most_s)
    assert expected_s <= pause_s <= expected_s * (1 + JITTER)
    assert attempt.failures == times
    assert not attempts.is_due("a", 1000.0)
    assert attempts.is_due("a", attempt.next_s)


def test_another_cause_begins_again() -> None:
    attempts = Attempts()
    for _ in range(5):
        attempts.fail("a", WeightsError(WeightsCause.UNREACHABLE, "why"), 0.0)
    assert attempts.fail("a", WeightsError(WeightsCause.DENIED, "why"), 0.0).failures == 1


def test_only_future_attempts_are_waited_for() -> None:
    attempts = Attempts()
    attempts.fail("a", WeightsError(WeightsCause.BUSY, "why"), 0.0)
    later = attempts.fail("b", WeightsError(WeightsCause.CORRUPT, "why"), 0.0)
    assert attempts.next_s(["a", "b", "c"], 100.0) == later.next_s
    assert attempts.next_s(["c"], 0.0) == math.inf


def test_space_that_may_be_there_again_is_tried_at_once() -> None:
    attempts = Attempts()
    attempts.fail("full", WeightsError(WeightsCause.NO_SPACE, "why"), 0.0)
    attempts.fail("denied", WeightsError(WeightsCause.DENIED, "why"), 0.0)
    attempts.retry(WeightsCause.NO_SPACE)
    assert attempts.is_due("full", 0.0)
    assert not attempts.is_due("denied", 0.0)


def test_failures_of_other_models_are_forgotten() -> None:
    attempts = Attempts()
    attempts.fail("a", WeightsError(WeightsCause.DENIED, "why"), 0.0)
    attempts.fail("b", WeightsError(WeightsCause.DENIED, "why"), 0.0)
    attempts.keep(["a"])
    attempts.succeed("a")
    assert attempts.get("a") is None
    assert attempts.get("b") is None
