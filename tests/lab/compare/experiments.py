"""Cases and experiments for the tests of comparisons."""

from dataclasses import replace

import numpy as np

from autoscaler.config.policy.parse import load
from autoscaler.lab.compare.experiment import Experiment, goal_from_policy
from autoscaler.lab.replay.case import Case
from tests.lab.replay import synthetic

INTERACTIVE = load().policies["interactive"]


def busy(name: str = "busy", per_s: float = 2.0, duration_s: float = 600.0, seed: int = 1) -> Case:
    arrival_s = np.random.default_rng(seed).uniform(0, duration_s, int(per_s * duration_s))
    trace = replace(synthetic.trace(arrival_s, duration_s=duration_s), name=name)
    return Case(trace, synthetic.llama(), goal_from_policy(INTERACTIVE), cold_start_s=30.0)


def experiment(*cases: Case) -> Experiment:
    return Experiment("made-up", "8b-h100", cases or (busy(),), INTERACTIVE)


def rising(name: str = "rising", per_s: float = 4.0, seed: int = 1) -> Case:
    """Twenty minutes of traffic; the second half is five times as heavy, and scores count from there on."""
    drawn = np.random.default_rng(seed)
    arrival_s = np.concatenate(
        [drawn.uniform(0, 600, int(per_s * 600)), drawn.uniform(600, 1200, int(5 * per_s * 600))]
    )
    trace = replace(synthetic.trace(arrival_s, duration_s=1200.0), name=name)
    return replace(busy(), trace=trace, counted_from_s=600.0)
