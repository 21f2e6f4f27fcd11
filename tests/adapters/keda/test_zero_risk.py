"""Workloads that KEDA may scale to zero although their policies never do."""

import math

import numpy as np

from autoscaler.adapters.keda.zero_risk import find_zero_risks
from autoscaler.core.model.fleet import HpaDelays, HpaLimits
from tests.core.world import spec


def limits(*zero_s: float) -> HpaLimits:
    rows = len(zero_s)
    nobody, none = np.zeros(rows, dtype=bool), np.zeros(rows)
    delays = HpaDelays(none, none, none, np.array(zero_s))
    return HpaLimits(none, np.full(rows, np.inf), nobody, nobody, ("",) * rows, delays)


def test_problem_when_keda_alone_may_go_to_zero():
    policies = spec(4, idle_after_s=[math.nan, math.nan, math.inf, math.nan], max_input_age_s=[60, 60, 60, math.nan])
    found = find_zero_risks(limits(330, math.inf, 330, 330), policies)
    assert list(found) == [0]
    assert "minReplicaCount: 1" in found[0]


def test_no_problem_when_no_hpa_carries_decisions_out():
    assert find_zero_risks(None, spec(1, idle_after_s=math.nan)) == {}
