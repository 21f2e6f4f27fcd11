"""Numbers that sentences say in a run, compared with what the simulator itself recorded.

The sentences come from metrics. The record is that of every request, and of every scrape, which no decision sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from autoscaler.config.policy.parse import load
from autoscaler.config.policy.schema import Policy
from autoscaler.core.explain.sentence import explain
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.replay.case import Case, RunOutcome, View
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.run import run
from tests.lab.replay import synthetic

pytestmark = pytest.mark.slow

NUMBER, TIME = r"(\d+(?:\.\d+)?)", r"(\d+(?:\.\d+)? (?:ms|s|min|h))"
SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
PART_S, PARTS_PER_S = 300.0, (3.0, 24.0, 24.0, 3.0, 3.0)  # a replica serves about 21 requests/s
QUEUE_GONE_S, PLANNED_S = 420.0, 130.0  # a minute after the queue; the first turn of the planner


class Speaking(PolicyScaler):
    """Keeps the moment and the sentence of each decision."""

    def __init__(self, case: Case, policy: Policy) -> None:
        super().__init__(case, policy)
        self.sentences: list[tuple[float, str]] = []

    def decide_all(self, views: Sequence[View]) -> Sequence[int]:
        counts = super().decide_all(views)
        assert self.tick_input is not None and self.decision is not None
        if self.tick_input.now_s == views[0].now_s:  # the tick was not skipped
            sentence = explain(self.tick_input, self.decision, ["interactive"], {}, 0).sentence
            self.sentences.append((views[0].now_s, sentence))
        return counts


class Record(NamedTuple):
    """A run as the simulator saw it."""

    sentences: Sequence[tuple[float, str]]
    outcome: RunOutcome
    arrival_s: FloatColumn
    first_token_s: FloatColumn
    is_missed: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def find(self, pattern: str) -> Iterator[tuple[float, float, tuple[str, ...]]]:
        """Yield the moment of each decision that says something, that of its readings, and the groups of the match."""
        scraped_s = self.outcome.timeline[:, 0]
        for now_s, sentence in self.sentences:
            if match := re.search(pattern, sentence):
                yield now_s, float(scraped_s[scraped_s <= now_s][-1]), match.groups()


@cache
def record() -> Record:
    """Play traffic that is quiet, then ten minutes of more than a replica serves, and quiet again."""
    case = synthetic.case_of(synthetic.poisson(list(PARTS_PER_S), PART_S))
    scaler = Speaking(case, load().policies["interactive"])
    outcome = run(case, scaler)
    is_missed = (outcome.ttft_s > case.goal.ttft_s) | (outcome.itl_s > case.goal.itl_s)
    arrival_s = case.trace.arrival_s
    return Record(scaler.sentences, outcome, arrival_s, arrival_s + outcome.ttft_s, is_missed)


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * SECONDS[unit]


def test_running_and_waiting_requests_are_those_of_the_scrape() -> None:
    timeline = record().outcome.timeline
    found = list(record().find(rf"for {NUMBER} running (?:and )?{NUMBER} waiting"))
    assert len(found) > 10
    for _, scraped_s, (running, waiting) in found:
        (row,) = timeline[timeline[:, 0] == scraped_s]
        assert [float(running), float(waiting)] == pytest.approx(row[3:].tolist(), rel=0.005)


def test_the_count_is_the_one_that_the_simulator_was_told() -> None:
    outcome, told = record().outcome, list(record().find(r"^(?:Keeps|Scales (?:up|down) from \d+ to) (\d+) replicas?"))
    assert len(told) == len(record().sentences) > 100
    for now_s, _, (count,) in told:
        assert int(count) == np.append(1, outcome.change_to)[np.searchsorted(outcome.change_s, now_s, "right")]


def test_the_longest_wait_is_long_enough_and_at_most_double() -> None:
    of, found = record(), list(record().find(rf"\(up to {TIME} in one replica\)"))
    assert len(found) > 5
    for _, scraped_s, (wait,) in found:
        waits = (of.arrival_s <= scraped_s) & (of.first_token_s > scraped_s)
        longest_s = (of.first_token_s[waits] - scraped_s).max()
        assert longest_s <= seconds(wait) <= 2 * longest_s


def test_misses_are_those_of_the_requests_that_were_answered() -> None:
    of, found = record(), list(record().find(rf"{NUMBER}% of requests missed in {TIME} of traffic"))
    turns = [each for before, each in pairwise(found) if each[0] > QUEUE_GONE_S and each[2] != before[2]]
    assert len(turns) > 20
    for _, scraped_s, (percent, passed) in turns:
        assert seconds(passed) == pytest.approx(scraped_s - PLANNED_S, abs=45.0)
        counted = (of.first_token_s > PLANNED_S) & (of.first_token_s <= scraped_s)
        assert float(percent) == pytest.approx(100 * of.is_missed[counted].mean(), abs=4.0)
    assert float(found[0][2][0]) == 0


@pytest.mark.parametrize(("from_s", "to_s"), [(PLANNED_S, 300.0), (QUEUE_GONE_S, 900.0), (960.0, 1500.0)])
def test_the_load_is_what_arrives_by_what_a_full_replica_served(from_s: float, to_s: float) -> None:
    of = record()
    full = (of.first_token_s > 325.0) & (of.first_token_s <= 370.0)  # the only replica, with requests that wait
    full_per_s = full.sum() / 45.0
    ratios = [
        float(load) / (((of.arrival_s > at_s - 30.0) & (of.arrival_s <= at_s)).sum() / 30.0 / full_per_s)
        for now_s, at_s, (load,) in of.find(rf"for a load of {NUMBER} busy")
        if from_s < now_s <= to_s
    ]
    assert len(ratios) > 5
    assert 0.7 <= np.median(ratios) <= 1.35
