"""llm-d's SLO-aware rule: latency over its objective as saturation, kept inside a band by a formula in KEDA.

Source: llm-d/llm-d, guides/workload-autoscaling/README.slo-aware.md, compared at d38c9f0. Every 15 s: the worse of p90
TTFT and p90 TPOT over their objectives, from rates over one minute, cut at 2, averaged over 45 s; 0 when idle. Up above
0.55, with credit for starting replicas; down below 0.40. HPA behaviour: up at most max(100 %, 4) per 60 s after 30 s,
down one per 120 s after 180 s.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.config.rules.query import recognize
from autoscaler.config.rules.rule import BehaviorPolicy, Closed, Direction, HpaRule, Keda, Metric, Rule
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines.base import MIN_REPLICAS, Axis, Baseline, Params, min_replicas_to_try, number
from autoscaler.lab.baselines.default_rules import COOLDOWN_S, HELD
from autoscaler.lab.baselines.own_rule import OwnRule, RuleSetting
from autoscaler.lab.baselines.past import ScrapedPast
from autoscaler.lab.baselines.signals import MovingMean, inflight, itl_quantile_s, ttft_quantile_s
from autoscaler.lab.replay.case import Case, Goal, Scaler

RATE_WINDOW_S = 60.0
MEAN_WINDOW_S = 45.0
MOST_SATURATION = 2.0
HIGH, LOW = 0.55, 0.40
# Defect fixed: under the HPA's default tolerance, 10 replicas never become 11, nor 20 become 19.
UP = Direction(30.0, (BehaviorPolicy("Percent", 100, 60.0), BehaviorPolicy("Pods", 4, 60.0)), tolerance=0.0)
DOWN = Direction(180.0, (BehaviorPolicy("Pods", 1, 120.0),), tolerance=0.0)
COUNT = "count"


def saturation(view: ScrapedPast, goal: Goal) -> float:
    """Return the worse of the two p90 latencies over their objectives, at most 2; 0 without traffic."""
    ratios = (
        ttft_quantile_s(view, 0.9, RATE_WINDOW_S) / goal.ttft_s,
        itl_quantile_s(view, 0.9, RATE_WINDOW_S) / goal.itl_s,
    )
    return min(max((ratio for ratio in ratios if not math.isnan(ratio)), default=0.0), MOST_SATURATION)


def desired_replicas(replicas: int, ready: int, s: float, high: float = HIGH, low: float = LOW) -> int:
    """Return the recommendation: 4 replicas, all ready, with s = 1.1 give 8; s = 0.2 gives 2; inside the band 4."""
    if s > high:
        credited = s * (ready or replicas) / replicas  # starting replicas will take their part
        return replicas + max(math.ceil(replicas * (credited / high - 1) - 1e-9), 0)
    if s < low:
        return replicas - math.floor(replicas * (1 - s / low) + 1e-9)
    return replicas


class _SloRule:
    """The value of the trigger: the recommended count."""

    def __init__(self, case: Case, high: float, low: float) -> None:
        self._goal, self._high, self._low = case.goal, high, low
        self._mean = MovingMean(MEAN_WINDOW_S)

    def __call__(self, past: ScrapedPast) -> FloatColumn:
        s = self._mean.add(past.now_s, saturation(past, self._goal))
        if past.desired == 0:
            return np.array([float(past.totals.gateway_waiting > 0)])  # a queue at the gateway wakes one replica
        desired = desired_replicas(past.desired, past.ready, s, self._high, self._low)
        # KEDA scales to zero, by its activation metric: the requests in the pool.
        return np.array([float(max(desired, 1 if inflight(past.totals) > 0 else 0))])


def _make(case: Case, params: Params) -> Scaler:
    high = number(params, "high")
    reader = _SloRule(case, high, high * number(params, "low_share"))
    least = int(number(params, MIN_REPLICAS))
    metric = Metric(COUNT, Closed(recognize(HELD)), 1.0)
    hpa = HpaRule(max(least, 1), case.max_replicas, UP, DOWN)
    rule = Rule("baseline", "llmd-slo", "", "", "", (metric,), hpa, Keda(least=least))
    return OwnRule(RuleSetting(rule, 0.0), case.start_replicas, rule.name, {COUNT: reader})


def _axes(case: Case) -> tuple[Axis, ...]:
    return (
        Axis("high", (0.25, 0.4, HIGH, 0.75, 0.95), within=(0.01, MOST_SATURATION)),
        Axis("low_share", (0.5, LOW / HIGH)),
        Axis(MIN_REPLICAS, min_replicas_to_try(case, COOLDOWN_S)),
    )


def _default(case: Case) -> Params:
    """As in the guide (guides/workload-autoscaling/README.slo-aware.md), whose bounds are those of its own pool."""
    return {"high": HIGH, "low_share": LOW / HIGH, MIN_REPLICAS: 1.0}


LLMD_SLO = Baseline(
    "llmd-slo",
    "llm-d, SLO-aware autoscaling with KEDA",
    _make,
    _axes,
    _default,
    derived="min_replicas: the guide's 3 belong to its own pool of at most 8, here it is 1",
)
