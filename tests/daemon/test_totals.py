"""Totals say what was there, what was decided, and what the sums leave out."""

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.core.model.variants import Variants
from autoscaler.daemon.totals import HourlyTotals
from tests.adapters.record.ticks import PERIOD_S, records


def hold(tick, number: int, held: float, wanted: float, usd: float):
    """The tick with other counts and prices, at its place on an even clock."""
    rows = len(tick.policies)
    fleet = replace(tick.input.fleet, replicas=np.full(rows, held), gpus_per_replica=np.array([2.0, np.nan]))
    variants = Variants(np.full(rows, -1), np.array([usd, np.nan]))
    inp = replace(tick.input, now_s=PERIOD_S * number, fleet=fleet, variants=variants)
    return replace(tick, input=inp, decision=replace(tick.decision, replicas=np.full(rows, wanted)))


@pytest.mark.parametrize(("acts", "words"), [(True, "decided"), (False, "this policy")])
def test_hours_and_the_run_are_summed_up_when_counts_are_held(acts, words):
    said = []
    totals = HourlyTotals(said.append, acts)
    (tick,) = records(1)
    for number in range(2 * 240 + 121):
        totals.record(hold(tick, number, 4.0, 3.0 if number < 240 else 1.0, 5.0))
    totals.say_last()
    assert len(said) == 3
    unknown = "(without 1 workload whose GPUs are unknown)"
    assert "the last hour: 1.0 h, 2 workloads: GPU-hours actual 8.0" in said[0]
    assert " 6.0" in said[0] and unknown in said[0]
    assert "cost actual $20.00" in said[0] and "$15.00 (without 1 workload whose price is unknown)" in said[0]
    assert said[2].startswith("in all: 2.5 h, 2 workloads: GPU-hours actual 20.0")
    assert f"{words} {9.0:.1f}" in said[2] or f"{9.0:.1f} {words}" in said[2]
    assert "2 changes" in said[2] if acts else "2 proposed changes" in said[2]


def test_nothing_is_said_when_there_was_one_tick():
    said = []
    totals = HourlyTotals(said.append, acts=True)
    totals.record(records(1)[0])
    totals.say_last()
    assert said == []
