"""Conversion between the clocks of the server and of the tick."""

import numpy as np
import pytest

from autoscaler.adapters.prometheus.decode import Vector
from autoscaler.adapters.prometheus.instant.client import VectorAnswer
from autoscaler.adapters.prometheus.instant.server_clock import ServerClock


def answer(server_s: float, sent_s: float, took_s: float = 0.02) -> VectorAnswer:
    return VectorAnswer(Vector(server_s, [b"{}"], np.ones(1)), sent_s, sent_s + took_s)


def test_nothing_is_known_before_the_first_answer():
    clock = ServerClock()
    assert not clock.known
    assert np.isnan(clock.server_s(5.0))


def test_the_offset_comes_from_the_first_answer():
    clock = ServerClock()
    clock.update(answer(1_800_000_000.51, sent_s=100.5))
    assert clock.server_s(160.5) == pytest.approx(1_800_000_060.5, abs=0.02)
    assert clock.tick_s(1_800_000_000.5) == pytest.approx(100.5, abs=0.02)


def test_a_sample_keeps_its_time_when_answers_are_slow():
    clock = ServerClock()
    clock.update(answer(1_800_000_000.51, sent_s=100.5))
    first = clock.tick_s(1_800_000_000.25)
    for number, took_s in enumerate((0.01, 0.9, 0.3), start=1):
        clock.update(answer(1_800_000_000.51 + 5 * number + took_s / 2, sent_s=100.5 + 5 * number, took_s=took_s))
        assert clock.tick_s(1_800_000_000.25) == first


def test_a_step_of_the_servers_clock_is_followed():
    clock = ServerClock()
    clock.update(answer(1_800_000_000.51, sent_s=100.5))
    clock.update(answer(1_800_003_605.51, sent_s=105.5))
    assert clock.tick_s(1_800_003_605.51) == pytest.approx(105.5, abs=0.05)


def test_whole_seconds_of_the_server_do_not_move_the_offset():
    clock = ServerClock()
    clock.update(answer(1_800_000_000.0, sent_s=100.0))
    held = clock.tick_s(1_800_000_000.25)
    for sent_s in np.arange(100.3, 110, 0.7):
        clock.update(answer(float(np.floor(1_799_999_900.2 + sent_s)), sent_s=float(sent_s)))
        assert clock.tick_s(1_800_000_000.25) == held


def test_an_answer_without_series_has_no_time():
    clock = ServerClock()
    clock.update(VectorAnswer(Vector(np.nan, [], np.empty(0)), 1.0, 1.1))
    assert not clock.known
