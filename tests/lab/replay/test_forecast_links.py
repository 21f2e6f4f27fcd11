"""The links of a forecast in a replay run of three mornings: an ordinary one, the next one, and a holiday."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import NamedTuple

import pytest

from autoscaler.config.policy.parse import load
from autoscaler.core.model.chain import Cause
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import View
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.run import run_fleet
from tests.lab.replay import synthetic

HOUR_S = 3600.0
BEGIN_H, END_H = 8, 62
"""The run begins at eight of the first day, and ends at two in the afternoon of the third."""

MORNINGS = (9, 33, 57)
"""Hours at which work begins; on the third day nobody comes."""


class Seen(NamedTuple):
    hour: float
    nodes: int
    with_weights: int
    desired: int
    places: float
    cause: int


class Noting(PolicyScaler):
    """Keeps what the cluster shows, and the places that are requested."""

    seen: tuple[Seen, ...] = ()

    def decide(self, view: View) -> int:
        nodes = view.nodes
        count = super().decide(view)
        assert self.decision is not None
        chain = self.decision.chain
        row = Seen(
            view.now_s / HOUR_S + BEGIN_H,
            len(nodes),
            sum(node.holds_weights for node in nodes),
            view.desired,
            float(chain.places[0]),
            int(chain.cause[0]),
        )
        self.seen = (*self.seen, row) if not self.seen or row[1:] != self.seen[-1][1:] else self.seen
        return count

    def at(self, hour: float) -> Seen:
        return [each for each in self.seen if each.hour <= hour][-1]


@functools.cache
def replay() -> Noting:
    """Run an office of two hours a day that needs about seven nodes, each of which takes minutes with its weights."""
    policy = load().policies["interactive"]
    busy = [9 <= hour % 24 < 11 and hour < 48 for hour in range(BEGIN_H, END_H)]
    case = synthetic.case_of(
        synthetic.poisson([0.6 if each else 0.01 for each in busy], HOUR_S, output=3000),
        goal=goal_from_policy(policy),
        cold_start_uncached_s=300.0,
        gpus_per_replica=8.0,
        node_idle_s=600.0,
        scrape_s=60.0,
        profile=dataclasses.replace(synthetic.llama(max_num_seqs=8), weight_bytes=140e9),
        requests_nodes=True,
        fetches_weights=True,
    )
    scaler = Noting(case, policy)
    run_fleet([case], [scaler])
    return scaler


@pytest.mark.long
def test_nodes_and_weights_stand_before_the_second_morning():
    run, (first_h, second_h, _) = replay(), MORNINGS
    assert run.at(first_h).nodes <= 2
    assert run.at(second_h - 1).nodes <= 2
    assert run.at(second_h).with_weights >= 4
    requested = next(each for each in run.seen if second_h - 1 < each.hour and each.places >= 3)
    assert requested.cause == Cause.DAY_AGO and requested.desired <= 2
    assert second_h - 0.5 < requested.hour < second_h


@pytest.mark.long
def test_nodes_are_given_back_on_a_holiday():
    run, holiday_h = replay(), MORNINGS[2]
    assert run.at(holiday_h).nodes >= 3
    changes = [each for each in run.seen if holiday_h - 1 < each.hour]
    rises = sum(after.places > before.places for before, after in itertools.pairwise(changes))
    assert rises <= 2  # they do not alternate
    assert not any(each.places for each in changes if each.hour >= holiday_h + 0.5)
    assert run.at(END_H).nodes <= 2
