"""The chain of a window in replay runs: the tick decides, and nodes and weights are there before the replica."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from autoscaler.config.policy.parse import load
from autoscaler.config.policy.schema import Policy, Prewarm
from autoscaler.core.model.chain import Link
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import Case, View
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.run import run_fleet
from tests.lab.replay import synthetic

# Such a trace begins at midnight UTC. A window opens at 01:00, and another one at 01:50: by then, starts are known.
WINDOWS = (("0 1", "15 1"), ("50 1", "59 1"))
LATER_S = 5700.0
OPENS_S = 6600.0


class Noting(PolicyScaler):
    """Keeps what the cluster shows."""

    def __init__(self, case: Case, policy: Policy) -> None:
        super().__init__(case, policy)
        self.seen: list[tuple[float, int, int, int, int]] = []  # time, nodes, those with weights, replicas, ready
        self.leads_s: np.ndarray = np.full(len(Link), np.nan)

    def decide(self, view: View) -> int:
        nodes = view.nodes
        self.seen.append((view.now_s, len(nodes), sum(n.holds_weights for n in nodes), view.desired, view.ready))
        count = super().decide(view)
        assert self.decision is not None
        self.leads_s = np.where(view.desired < count, self.decision.chain.lead_s[:, 0], self.leads_s)
        return count

    def first_s(self, column: int, least: int) -> float:
        """Return when a column first reached a value after the nodes of the first window are gone."""
        return next(row[0] for row in self.seen if row[0] > LATER_S and row[column] >= least)


def office(replicas: int) -> Policy:
    policy = load().policies["interactive"]
    windows = tuple(
        Prewarm.model_validate(
            {"from": f"{begin} * * *", "until": f"{end} * * *", "replicas": replicas, "lead": "auto"}
        )
        for begin, end in WINDOWS
    )
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"prewarm": windows})})


@functools.cache
def replay(links: bool) -> Noting:
    """Run a quiet service whose window needs two further nodes; a start takes 60 s, or 300 s on a new node."""
    policy = office(replicas=5)
    case = synthetic.case_of(
        synthetic.poisson([0.02], OPENS_S + 300),
        goal=goal_from_policy(policy),
        cold_start_uncached_s=300.0,
        gpus_per_replica=4.0,
        node_idle_s=600.0,
        profile=dataclasses.replace(synthetic.llama(), weight_bytes=140e9),
        requests_nodes=links,
        fetches_weights=links,
    )
    scaler = Noting(case, policy)
    run_fleet([case], [scaler])
    return scaler


@pytest.mark.slow
def test_nodes_and_weights_are_there_before_the_replicas():
    links = replay(links=True)
    nodes_s, weights_s, ordered_s, ready_s = (links.first_s(*each) for each in ((1, 3), (2, 3), (3, 5), (4, 5)))
    assert nodes_s < weights_s <= ordered_s < ready_s <= OPENS_S
    # 60 s and the image, which nothing pulls ahead, and what varies; ticks come with each scrape.
    assert OPENS_S - ordered_s == pytest.approx(links.leads_s[Link.REPLICA], abs=20)


@pytest.mark.slow
def test_replicas_that_wait_for_nodes_are_ordered_earlier():
    links, alone = replay(links=True), replay(links=False)
    assert alone.first_s(3, 5) < links.first_s(3, 5) - 60
    assert alone.first_s(4, 5) > links.first_s(4, 5)


def test_a_service_at_zero_without_any_node_is_planned_for():
    case = synthetic.case_of(
        synthetic.poisson([0.0, 0.1], 120.0),
        goal=goal_from_policy(office(1)),
        cold_start_uncached_s=300.0,
        start_replicas=0,
        requests_nodes=True,
        fetches_weights=True,
    )
    scaler = Noting(case, office(1))
    run_fleet([case], [scaler])
    assert scaler.seen[0][1] == 0 and scaler.seen[-1][1:3] == (1, 1)


@pytest.mark.slow
def test_requested_nodes_stay_until_the_replicas_take_them():
    links = replay(links=True)
    counts = [row[1] for row in links.seen if links.first_s(1, 3) <= row[0] <= OPENS_S]
    assert set(counts) == {3}
