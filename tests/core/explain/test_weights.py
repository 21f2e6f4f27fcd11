"""Words about the weights of a workload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.core.explain.row import TickRow
from autoscaler.core.explain.weights import describe
from autoscaler.core.model.weights import FetchFailure, SourceStatus, Weights
from tests.adapters.web.records import World, with_weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def words(row: int = 0, source: str = "hf://org/chat@main", **changes: object) -> str:
    tick = with_weights(World(2).tick())
    weights = tick.input.fleet.weights
    assert weights is not None
    fleet = replace(tick.input.fleet, weights=replace(weights, sources=(source,), **changes))
    return describe(TickRow(replace(tick.input, fleet=fleet), tick.decision, row))


def test_holders_plan_and_failures_are_named():
    assert words() == (
        "hf://org/chat@main (16 GB): 1 of 6 nodes hold them, with 4 of 9 free places; 3 nodes should; "
        "1 is about to fetch them; 1 cannot fetch them (node-7: unauthorized: the hub wants a token); "
        "2 replicas without a place on a node that should hold them; its revision may move, so replicas may differ"
    )


def test_only_holders_are_named_when_nothing_is_planned():
    said = words(source=f"hf://org/chat@{COMMIT}", status=(SourceStatus(1),), size_bytes=np.full(2, np.nan))
    assert said == f"hf://org/chat@{COMMIT}: 1 of 6 nodes hold them, with 4 of 9 free places"


def test_silent_nodes_are_told():
    assert words(source="s3://bucket/chat", nodes=0) == "s3://bucket/chat (16 GB): no node says what it holds"


def test_nothing_is_said_without_a_source():
    assert words(row=1) == ""
    tick = World(2).tick()
    assert describe(TickRow(tick.input, tick.decision, 0)) == ""


def test_cause_alone_is_told_when_the_agent_gives_no_text():
    status = SourceStatus(failed=2, failures=(FetchFailure("n", "disk_full", ""),))
    assert "2 cannot fetch them (n: disk_full)" in words(status=(status,))


def test_unknown_weights_have_no_source():
    unknown = Weights.unknown(2, 0)
    tick = World(2).tick()
    fleet = replace(tick.input.fleet, weights=unknown)
    assert describe(TickRow(replace(tick.input, fleet=fleet), tick.decision, 1)) == ""
