"""Measure how headroom shrinks with the size of a fleet: steady traffic for 1 to 1,000 busy replicas.

Square-root staffing says that the replicas beyond the load grow with its square root. Requests arrive at random at a
constant rate. Figures are from the second half of the run, after the planner has learned. *Load* is the measured demand
in busy replicas. *Headroom* is the ready replicas beyond it, as a share of the load and in square roots of it.

    python bench/studies/sizes.py [--sizes 1 10 100 1000] [--hours 2] [--profile 8b-h100] [--cold-start 60] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.policy.schema import Policy
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import Case, View
from autoscaler.lab.replay.inputs.transform import generate
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.request_cost import request_work_s
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Lengths, Shape

PROMPT, OUTPUT = Lengths(1000, 0.8, 8000), Lengths(800, 0.8, 6000)
SAMPLE_S = 900.0  # length of a trace at 1 request/s that gives the work of a request
START_FACTOR = 2.0  # initial replicas, as a multiple of the necessary work


class RecordingScaler(PolicyScaler):
    """Records the measured load and the ready replicas."""

    def __init__(self, case: Case, policy: Policy) -> None:
        super().__init__(case, policy)
        self.totals: list[tuple[float, float, float]] = []  # time (s), load (busy replicas), ready replicas

    def decide(self, view: View) -> int:
        count = super().decide(view)
        if self.decision is not None:
            self.totals.append((view.now_s, float(self.decision.plan.demand[0]), float(view.ready)))
        return count


def measure(size: float, given: argparse.Namespace) -> dict[str, Any]:
    """Run one size: the request rate whose necessary work keeps `size` replicas busy."""
    _, replica_spec = find(given.profile)
    policy = load_policies().policies["interactive"]
    goal = goal_from_policy(policy)

    def case(requests_per_s: float, duration_s: float) -> Case:
        trace = generate("steady", Shape(requests_per_s, PROMPT, OUTPUT), duration_s, seed=3)
        return Case(trace, replica_spec.profile, goal, given.cold_start, gpus_per_replica=replica_spec.gpus, seed=3)

    tried = case(1.0, SAMPLE_S)
    each_s = float(sum(work.sum() for work in request_work_s(tried))) / len(tried.trace.arrival_s)
    steady = case(size / each_s, given.hours * 3600)
    start = math.ceil(START_FACTOR * size)
    steady = replace(steady, start_replicas=start, max_replicas=10 * start)
    scaler = RecordingScaler(steady, policy)
    score = compute_score(steady, run(steady, scaler))
    _, load, ready = np.array([seen for seen in scaler.totals if seen[0] > steady.trace.duration_s / 2]).T
    mean, beyond = float(np.nanmean(load)), float(np.nanmean(ready - load))
    return {
        "requests": len(steady.trace.arrival_s),
        "load": round(mean, 2),
        "ready": round(float(ready.mean()), 2),
        "headroom": round(beyond / mean, 3),
        "headroom_in_roots": round(beyond / math.sqrt(mean), 2),
        "attainment": round(score.attainment, 5),
        "scale_ups": score.scale_ups,
        "scale_downs": score.scale_downs,
    }


def results(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for size in given.sizes:
        yield measure(size, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.0, 10.0, 100.0, 1000.0], help="mean replicas")
    parser.add_argument("--hours", type=float, default=2.0, help="hours of traffic")
    parser.add_argument("--profile", default="8b-h100", help="profile of a replica")
    parser.add_argument(
        "--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean cold start of a replica"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args()
    if given.json:
        print(json.dumps(list(results(given))))
        return
    print("| requests | load | ready | headroom | in roots | attainment | ups | downs |")
    print("|---|---|---|---|---|---|---|---|")
    for each in results(given):
        print(
            "| {requests:,} | {load:.4g} | {ready:.4g} | {headroom:.1%} | {headroom_in_roots:.2f} | {attainment:.2%} "
            "| {scale_ups} | {scale_downs} |".format(**each),
            flush=True,
        )


if __name__ == "__main__":
    main()
