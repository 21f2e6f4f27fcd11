"""Arrivals, counted from what ended and what is in flight."""

import math

import numpy as np
import pytest

from autoscaler.core.observe.arrivals import queue_per_s
from tests.core.world import Story, fleet, spec

NAN = math.nan


@pytest.mark.slow
def test_arrivals_average_to_their_rate_when_requests_are_long():
    story, ended = Story(spec(cold_start_s=60.0)), 0.0
    for number in range(200):  # 2 a second come, each takes 20 s
        ended += 10.0 if number >= 4 else 0.0
        in_flight = 10.0 * (number + 1) - ended
        story.tick(fleet([1]), 5, running=in_flight, finished=ended)
    assert story.memory.workloads.observe.arrivals.per_s[0] == pytest.approx(2.0, rel=0.02)


@pytest.mark.slow
def test_few_requests_are_not_counted_twice_for_coming_and_going():
    """One a minute, there for one reading: the sample of the reading at which it has ended is below zero."""
    story, ended, rates = Story(spec(cold_start_s=300.0)), 0.0, []
    for number in range(600):
        ended += number % 12 == 1
        story.tick(fleet([1]), 5, running=float(number % 12 == 0), finished=ended)
        rates.append(story.memory.workloads.observe.arrivals.per_s[0])
    assert np.mean(rates[-120:]) == pytest.approx(1 / 60, rel=0.05)


@pytest.mark.slow
def test_refused_requests_are_arrivals_too():
    story, refused = Story(spec()), 0.0
    for _ in range(200):
        refused += 15.0
        story.tick(fleet([1]), 5, rejections=refused)
    assert story.memory.workloads.observe.arrivals.per_s[0] == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("scrape_s", [5.0, 15.0])
def test_arrivals_of_a_queue_keep_their_rate_at_any_scrape(scrape_s):
    """2 a second come and are served, then 8 a second come: a reading brings what arrived since the one before."""
    story, waiting = Story(spec()), {}
    for second in range(5, 185, 5):
        read_s = 1000.0 + second // scrape_s * scrape_s
        served, excess = 2.0 * (read_s - 1000), max(6.0 * (read_s - 1120), 0.0)
        story.tick(fleet([1]), 5, running=10.0, waiting=excess, finished=served, time_s=read_s)
        waiting[second] = queue_per_s(story.memory.workloads.observe.arrivals)[0]
    assert np.isnan(waiting[120])
    assert 6.5 < waiting[150] < 8
    assert 7 < waiting[180] < 8


def test_arrivals_stay_when_readings_are_missing_for_a_while():
    story = Story(spec())
    story.watch(fleet([1]), 300, running=50.0, waiting=100.0)
    before = story.memory.workloads.observe.arrivals.per_s[0]
    story.watch(fleet([1]), 300, time_s=NAN)
    story.tick(fleet([1]), running=50.0, waiting=100.0)
    assert story.memory.workloads.observe.arrivals.per_s[0] == before == 0


def test_two_ticks_at_one_moment_do_no_harm():
    story = Story(spec())
    story.watch(fleet([1]), 60, running=5.0)
    story.tick(fleet([1]), 0.0, running=9.0)
    decision = story.tick(fleet([1]), 5.0, running=9.0)
    assert np.isfinite(story.memory.workloads.observe.arrivals.per_s[0])
    assert np.isfinite(decision.stages).all()
