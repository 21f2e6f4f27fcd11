"""The shipped policy in studies, where something other than computing is the limit."""

import dataclasses

import numpy as np
import pytest

from autoscaler.config.policy import load
from autoscaler.sim.engine.profiles import named
from autoscaler.sim.proof.prove import goal_of, started
from autoscaler.sim.study.case import Case, Trace
from autoscaler.sim.study.ours import Ours
from autoscaler.sim.study.run import run
from autoscaler.sim.study.score import summarize


@pytest.mark.timeout(120)
def test_where_slots_are_few_short_gaps_between_tokens_starve_nobody() -> None:
    """Requests queue for slots while gaps stay short: the replica is full, not idle."""
    offer = named("8b-h100")
    few = dataclasses.replace(offer.profile, max_num_seqs=24)
    rng = np.random.default_rng(1)
    quiet, rush = np.sort(rng.uniform(0, 2700, 810)), np.sort(rng.uniform(2700, 5400, 32_400))
    arrival_s = np.concatenate([quiet, rush])
    prompts, outputs = (np.clip(rng.lognormal(np.log(300), s, len(arrival_s)), 4, 1500).astype(int) for s in (0.8, 0.6))
    trace = Trace("few-slots", arrival_s, prompts, outputs, 5400.0)
    policy = load().policies["interactive"]
    case = started(Case(trace, few, goal_of(policy), cold_start_s=60.0, gpus_per_replica=offer.gpus))
    assert summarize(case, run(case, Ours(case, policy))).attainment > 0.9
