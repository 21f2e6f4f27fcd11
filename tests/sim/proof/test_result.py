"""The proof in short, for every change: the shipped policy on a trace made here, against tuned baselines."""

import math

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

AGAINST = ("keda-queue", "keda-rps", "hpa-inflight", "llmd-slo", "aibrix-apa", "skyserve", "static")
SEEDS = (5, 6, 7, 8)
# GPU-hours of the shipped policy over those of each seed's best baseline, which hindsight tuned on that very trace. The
# shipped one is tuned on nothing. Measured: 1.369 in sum (1.60, 1.61, 1.27, 1.16). Lower it as the policy gets better;
# raise it only for a baseline that is new here or better tuned, as for `keda-rps`, `skyserve` and wider grids (1.11
# beside five baselines on grids that ended early).
MOST_OF_TUNED = 1.38


@pytest.fixture(scope="module")
def proofs() -> list[Proof]:
    """Two hours with a ramp from one replica to some four and back, and bursts of two minutes; the seed says when."""
    name, offer = find("8b-h100-3g")
    policy = load().policies["interactive"]
    day = (1.0, 1.5, 3.0) + (1.0,) * 21
    shape = Shape(10.0, Lengths(400, 0.8, 3000), Lengths(100, 0.7, 900), day, (Bursts(1.0, 120.0, 0.5, 2.0),))
    proofs = []
    for seed in SEEDS:
        trace = generate("two-hours", shape, 7200.0, seed=seed)
        case = Case(trace, offer.profile, goal_of(policy), cold_start_s=60.0, gpus_per_replica=offer.gpus)
        proofs.append(prove(Subject(trace.name, name, (started(case),), policy), AGAINST, tuned=True))
    return proofs


def gpu_hours(proofs: list[Proof], name: str) -> float:
    """GPU-hours of a policy as it is shipped; infinity where it misses the goal with any seed."""
    runs = [(proof, run) for proof in proofs for run in proof.runs if run.name == name and not run.tuned]
    return sum(run.row.gpu_hours if proof.attains(run) else math.inf for proof, run in runs)


@pytest.mark.timeout(600)
def test_the_shipped_policy_meets_its_goal(proofs: list[Proof]) -> None:
    for proof in proofs:
        assert proof.attains(next(run for run in proof.runs if run.name == OURS)), verdict(proof)


@pytest.mark.timeout(600)
def test_it_is_cheaper_than_every_baseline_that_meets_the_goal_without_hindsight(proofs: list[Proof]) -> None:
    untuned = {run.name: gpu_hours(proofs, run.name) for run in proofs[0].runs if run.name != OURS and not run.tuned}
    assert sum(hours < math.inf for hours in untuned.values()) >= 2
    assert gpu_hours(proofs, OURS) < 0.8 * min(untuned.values()), untuned


@pytest.mark.timeout(600)
def test_it_is_not_behind_the_best_tuned_baselines_by_more_than_the_margin(proofs: list[Proof]) -> None:
    best = [proof.best_baseline() for proof in proofs]
    tuned = sum(run.row.gpu_hours for run in best if run is not None and run.tuned)
    assert all(run is not None and run.tuned for run in best)
    assert gpu_hours(proofs, OURS) <= MOST_OF_TUNED * tuned, [verdict(proof) for proof in proofs]


@pytest.mark.timeout(600)
def test_nobody_who_meets_the_goal_is_below_the_bound(proofs: list[Proof]) -> None:
    for proof in proofs:
        for run in proof.runs:
            if proof.attains(run):
                assert run.row.gpu_hours >= proof.clairvoyant_gpu_hours, run.name
