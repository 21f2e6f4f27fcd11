"""The proof in short, for every change: the shipped policy on a trace made here, against tuned baselines."""

import pytest

from autoscaler.config.policy import load
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from autoscaler.sim.proof.prove import prove
from autoscaler.sim.proof.report.words import verdict
from autoscaler.sim.proof.result import OURS, Proof
from autoscaler.sim.proof.subject import Subject, goal_of, started
from autoscaler.sim.study.case import Case
from autoscaler.sim.study.trace import generate

AGAINST = ("keda-queue", "hpa-inflight", "llmd-slo", "aibrix-apa", "static")
# GPU-hours of the shipped policy over those of the best baseline, which hindsight tuned on this very trace; the shipped
# one is tuned on nothing. Measured: 0.963. Lower it as the policy gets better, never raise it.
MOST_OF_TUNED = 0.97


@pytest.fixture(scope="module")
def proof() -> Proof:
    """Two hours with a ramp from one replica to some four and back, and bursts of two minutes."""
    name, offer = find("8b-h100-3g")
    policy = load().policies["interactive"]
    day = (1.0, 1.5, 3.0) + (1.0,) * 21
    shape = Shape(10.0, Lengths(400, 0.8, 3000), Lengths(100, 0.7, 900), day, (Bursts(1.0, 120.0, 0.5, 2.0),))
    trace = generate("two-hours", shape, 7200.0, seed=5)
    case = Case(trace, offer.profile, goal_of(policy), cold_start_s=60.0, gpus_per_replica=offer.gpus)
    return prove(Subject(trace.name, name, (started(case),), policy), AGAINST, tuned=True)


@pytest.mark.timeout(300)
def test_the_shipped_policy_meets_its_goal(proof: Proof) -> None:
    assert proof.attains(next(run for run in proof.runs if run.name == OURS)), verdict(proof)


@pytest.mark.timeout(300)
def test_it_is_cheaper_than_every_baseline_that_meets_the_goal_without_hindsight(proof: Proof) -> None:
    ours = next(run for run in proof.runs if run.name == OURS)
    untuned = [run for run in proof.runs if run.name != OURS and not run.tuned and proof.attains(run)]
    assert len(untuned) >= 2
    assert [run.name for run in untuned if run.row.gpu_hours < ours.row.gpu_hours] == [], verdict(proof)


@pytest.mark.timeout(300)
def test_it_is_not_behind_the_best_tuned_baseline_by_more_than_the_margin(proof: Proof) -> None:
    ours, best = next(run for run in proof.runs if run.name == OURS), proof.best_baseline()
    assert best is not None
    assert best.tuned
    assert ours.row.gpu_hours <= MOST_OF_TUNED * best.row.gpu_hours, verdict(proof)


@pytest.mark.timeout(300)
def test_nobody_who_meets_the_goal_is_below_the_bound(proof: Proof) -> None:
    for run in proof.runs:
        if proof.attains(run):
            assert run.row.gpu_hours >= proof.clairvoyant_gpu_hours, run.name
