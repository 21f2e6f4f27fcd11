"""Count the requests that shrinks cut: victims named by deletion costs against the ReplicaSet's own order.

A fleet of services with long answers and bursts runs under the shipped `interactive` policy, one fleet after the other,
until it has shrunk often enough. Requests are generated. A replica that leaves finishes its requests within the grace
period; those that are left are cut. In the first run the ReplicaSet chooses the replicas, and the carry floor is off,
so that a shrink regards only what arrives. In the second the floor is on, as in a daemon without the right to patch
pods. In the third the daemon also names the replicas that leave. All else is the same.

    python bench/studies/shrinks.py --out bench/results/shrinks.jsonl [--shrinks 1000] [--grace 30]
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core.stabilize import carry
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.check import CHOICES
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run_fleet
from autoscaler.lab.replay.score import compute_score
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from bench.studies.ablation import switched_off
from bench.studies.results import Cases, print_results
from tests.lab.replay import synthetic

SHAPE = Shape(3.0, Lengths(900, 0.9, 6000), Lengths(900, 1.0, 8000), bursts=(Bursts(3.0, 300.0, 0.6, 3.0),))
"""Three requests per second, three bursts per hour of about five minutes; the median answer takes some 20 s."""

START_REPLICAS = 3
MOST_FLEETS = 50

NO_FLOOR = ((carry, "keep", lambda desired, current, in_use: desired),)
WAYS: dict[str, tuple[bool, tuple[Any, ...]]] = {
    "ReplicaSet's order, no carry floor": (False, NO_FLOOR),
    "ReplicaSet's order": (False, ()),
    "deletion costs": (True, ()),
}
"""By name: whether the daemon names the replicas that leave, and what is switched off."""


def prepare(given: argparse.Namespace, router: str, grace_s: float, fleet: int) -> list[Case]:
    """Return the services of a fleet, each with requests of its own."""
    _, replica_spec = find(given.profile)
    cases = []
    for service in range(given.services):
        seed = fleet * given.services + service
        trace = synthetic.generate(f"service-{service}", SHAPE, given.hours * 3600, seed)
        case = Case(
            trace,
            replica_spec.profile,
            goal_from_policy(load_policies().policies["interactive"]),
            given.cold_start,
            gpus_per_replica=replica_spec.gpus,
            seed=seed,
            drain_s=grace_s,
            start_replicas=START_REPLICAS,
            removal="replica-set",
            router=router,
        )
        cases.append(case)
    return cases


def measure(given: argparse.Namespace, router: str, grace_s: float, way: str) -> dict[str, Any]:
    """Run one fleet after the other until they have shrunk `--shrinks` times; return the sums of their figures."""
    policy = load_policies().policies["interactive"]
    names_victims, settings = WAYS[way]
    sums = dict.fromkeys(("shrinks", "removed", "cut", "requests", "met", "gpu_hours", "fleets"), 0.0)
    while sums["shrinks"] < given.shrinks and sums["fleets"] < MOST_FLEETS:
        cases = prepare(given, router, grace_s, int(sums["fleets"]))
        scaler = PolicyFleetScaler(cases, [policy] * len(cases), names_victims=names_victims)
        with switched_off(settings):
            outcomes = run_fleet(cases, scaler)
        for case, outcome in zip(cases, outcomes, strict=True):
            steps, score = np.diff(outcome.change_to, prepend=case.start_replicas), compute_score(case, outcome)
            sums["shrinks"] += int((steps < 0).sum())
            sums["removed"] += int(-steps[steps < 0].sum())
            sums["cut"] += score.unfinished  # no replica crashes, and every client waits
            sums["requests"] += len(case.trace.arrival_s)
            sums["met"] += score.attainment * len(case.trace.arrival_s)
            sums["gpu_hours"] += score.gpu_hours
        sums["fleets"] += 1
    return {"router": router, "grace_s": grace_s, "way": way, **{name: round(value, 2) for name, value in sums.items()}}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown."""
    titles = ["router", "grace period", "who leaves", "shrinks", "replicas removed", "requests cut"]
    titles += ["cut by 1,000 shrinks", "attainment", "GPU-hours for 1,000 requests"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for each in results.values():
        cells = [each["router"], f"{each['grace_s']:g} s", each["way"]]
        cells += [f"{each[count]:,.0f}" for count in ("shrinks", "removed", "cut")]
        cells.append(f"{1000 * each['cut'] / max(each['shrinks'], 1):,.0f}")
        cells += [f"{each['met'] / each['requests']:.2%}", f"{1000 * each['gpu_hours'] / each['requests']:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def list_cases(given: argparse.Namespace) -> Cases:
    settings = [given.profile, given.cold_start, given.services, given.hours, given.shrinks]
    for case in itertools.product(given.routers, given.grace, given.ways):
        yield [*settings, *case], partial(measure, given, *case)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shrinks", type=int, default=1000, help="least number of shrinks in each run")
    parser.add_argument("--grace", type=float, nargs="+", default=(30.0,), metavar="SECONDS", help="grace periods")
    parser.add_argument("--routers", nargs="+", choices=CHOICES["router"], default=CHOICES["router"], help="routers")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=tuple(WAYS), metavar="WAY", help="ways to run")
    parser.add_argument("--services", type=int, default=48, help="services of a fleet")
    parser.add_argument("--hours", type=float, default=2.0, help="length of a run")
    parser.add_argument("--profile", default="8b-h100", help="profile of a replica")
    parser.add_argument("--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean cold start")
    return print_results(parser, arguments, list_cases, table)


if __name__ == "__main__":
    sys.exit(main())
