"""Compare the shipped policy with the smallest sufficient constant count, on simple traffic shapes.

A constant count is hard to beat there. Requests arrive at random at a stated rate. Prompts (200 to 1,500 tokens) and
outputs (50 to 400) have uniform lengths. Every policy begins with the fewest replicas that serve the first ten minutes.
The constant count serves from the start and was found in hindsight. A seed determines the shapes, so the table can be
reproduced.

    python bench/studies/shapes.py [--shapes office season] [--seed 1] [--profile NAME] [--cold-start 240] [--json]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.constant_count import find_fewest_replicas
from autoscaler.lab.compare.experiment import goal_from_policy, with_start_replicas
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import Score, compute_score
from autoscaler.sim.engine.profile_file import find

PROMPT_TOKENS, OUTPUT_TOKENS = (200, 1500), (50, 400)
"""Shortest and longest request."""

MIN_RISE = 0.01
"""Rise of attainment for which twice as many replicas are tried."""


def by_office_hours(night: float) -> Callable[[FloatColumn], FloatColumn]:
    """Return a shape that is busy from 9 to 17 h of each day, with the given share of that at night."""
    return lambda hour: np.where((hour % 24 >= 9) & (hour % 24 < 17), 1.0, night)


@dataclass(frozen=True)
class Shape:
    """The request rate over time."""

    hours: float
    busiest_per_s: float  # requests per second at the peak
    share: Callable[[FloatColumn], FloatColumn]  # fraction of the peak rate, 0..1, by hour of the trace


SHAPES = {
    "step": Shape(0.5, 6.0, lambda hour: np.where((hour >= 1 / 6) & (hour < 1 / 3), 1.0, 1 / 3)),
    "days": Shape(72, 6.0, by_office_hours(0.033)),
    "office": Shape(72, 14.0, by_office_hours(0.02)),
    "sine": Shape(72, 20.0, lambda hour: 0.55 - 0.45 * np.cos(hour * np.pi / 12)),
    "season": Shape(16, 14.0, lambda hour: np.where((hour % 4 >= 5 / 3) & (hour % 4 < 3), 1.0, 0.036)),
    "flat": Shape(24, 12.0, np.ones_like),
    "bursts": Shape(24, 20.0, lambda hour: np.where(hour % 2 >= 1.95, 1.0, 0.25)),
    "launch": Shape(24, 25.0, lambda hour: np.clip((hour - 2) / 8, 0.01, 1.0)),
}


def generate(name: str, seed: int, hours: float = math.inf) -> Trace:
    """Generate the trace of a shape, or `hours` of its beginning.

    Arrivals have exponential distances in expected requests, which the rate converts to time. The rate is constant
    within a second.
    """
    shape = SHAPES[name]
    duration_s = 3600 * min(hours, shape.hours)
    seconds = np.append(np.arange(0.0, duration_s), duration_s)
    rate_per_s = shape.busiest_per_s * shape.share((seconds[:-1] + seconds[1:]) / 7200)
    expected = np.append(0.0, np.cumsum(rate_per_s * np.diff(seconds)))
    random = np.random.default_rng((seed, list(SHAPES).index(name)))
    count = random.poisson(expected[-1])
    arrival_s = np.interp(np.sort(random.uniform(0, expected[-1], count)), expected, seconds)
    prompts, outputs = (random.integers(*bounds, count, endpoint=True) for bounds in (PROMPT_TOKENS, OUTPUT_TOKENS))
    return Trace(name, arrival_s, prompts, outputs, duration_s)


def find_constant_count(case: Case) -> tuple[int, Score]:
    """Return the smallest constant count that meets the goal, or comes as close as any, and its score."""
    rows: dict[int, Score] = {}

    def attained(count: int) -> float:
        rows[count] = compute_score(case, run(replace(case, start_replicas=count), Static(count)))
        return rows[count].attainment

    count = find_fewest_replicas(case, attained, MIN_RISE)
    return count, rows[count]


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    policy = load_policies().policies["interactive"]
    _, replica_spec = find(given.profile)
    trace = generate(name, given.seed, given.hours)
    case = with_start_replicas(
        Case(
            trace,
            replica_spec.profile,
            goal_from_policy(policy),
            given.cold_start,
            gpus_per_replica=replica_spec.gpus,
            seed=given.seed,
        )
    )
    ours = compute_score(case, run(case, PolicyScaler(case, policy)))
    count, least = find_constant_count(case)
    return {
        "shape": name,
        "hours": round(trace.duration_s / 3600, 2),
        "requests": len(trace.arrival_s),
        "started_with": case.start_replicas,
        "attainment": round(ours.attainment, 5),
        "gpu_hours": round(ours.gpu_hours, 3),
        "scale_ups": ours.scale_ups,
        "scale_downs": ours.scale_downs,
        "constant_replicas": count,
        "constant_attainment": round(least.attainment, 5),
        "constant_gpu_hours": round(least.gpu_hours, 3),
        "ratio": round(ours.gpu_hours / least.gpu_hours, 3),
    }


def results(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in given.shapes:
        yield measure(name, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME", help="shapes")
    parser.add_argument("--seed", type=int, default=1, help="random seed")
    parser.add_argument("--hours", type=float, default=math.inf, help="run only the beginning of each shape")
    parser.add_argument("--profile", default="8b-h100-3g", help="profile of a replica")
    parser.add_argument(
        "--cold-start", type=float, default=240.0, metavar="SECONDS", help="mean cold start of a replica"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args()
    if given.json:
        print(json.dumps(list(results(given))))
        return
    print("| shape | length | requests | ours: attainment | GPU-hours | ups | downs | least constant count ", end="")
    print("| its attainment | its GPU-hours | ours / its |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for each in results(given):
        print(
            "| {shape} | {hours:g} h | {requests:,} | {attainment:.2%} | {gpu_hours:.4g} | {scale_ups} | {scale_downs} "
            "| {constant_replicas} | {constant_attainment:.2%} | {constant_gpu_hours:.4g} | {ratio:.2f} |".format(
                **each
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
