"""Workloads that were served long enough for the planner to have an opinion, and their plans as numbers."""

import math

import numpy as np

from autoscaler.core.planner.strategies import CONSTANT_COUNTS, STRATEGIES
from tests.core.serving import Serving

NAN = math.nan

PEAK_STRATEGIES = len(STRATEGIES) - len(CONSTANT_COUNTS)
"""Number of strategies without a constant count. They come first."""


class NotCounting(Serving):
    """Engines that do not report how many requests met their objective."""

    def counted(self, *args, **how):
        return super().counted(*args, **how) | {"ttft_met": NAN}


def decide_after_learning(policy, cluster, demand, story=Serving, **how):
    """Return the last decision after ten almost idle minutes and half a busy hour."""
    serving = story(policy)
    serving.serve(cluster, np.minimum(demand, 0.1), 600.0, 15.0, **how)
    return serving.serve(cluster, demand, 1800.0, 15.0, **how)


def plan_of(decision, row=0):
    """Return the plan of a workload by field."""
    return {name: float(column[row]) for name, column in decision.plan.columns().items() if column.ndim == 1}
