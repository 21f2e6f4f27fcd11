"""Time the pure tick (observe, decide, share) over many workloads.

Prints the median over consecutive ticks, each of which evaluates the strategies of a sixth of the workloads. Also
prints the growth from a tenth of the workloads to all. A workload with a new late queue is evaluated at once. So there
are two fleets: one in which most workloads have a late queue, and one in which few have.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.core.model.types import Recommender
from autoscaler.core.state import Memory
from autoscaler.core.tick import tick
from bench.micro import fleets

FEW_OVERLOADED = 0.05
"""Fraction of load changes that may overload, in the fleet with few late queues."""

WARM_UP_TICKS = 24
"""Two minutes, after which the planner has enough readings of engines."""


@dataclass(frozen=True)
class Measured:
    """The ticks of one fleet."""

    tick_s: float  # median CPU seconds: numpy uses one core here, and wall time depends on other load
    following: float  # fraction of workloads that follow a strategy in the end
    late: float  # mean fraction of workloads with a late queue
    late_anew: float  # mean number of new late queues per tick


def measure(workloads: int, ticks: int, overloaded: float = 1.0) -> Measured:
    memory, following = Memory.empty(), 0.0
    took: list[float] = []
    queues = [np.zeros(workloads, dtype=bool)]
    for inp in fleets.inputs(fleets.fleet(workloads), ticks + WARM_UP_TICKS, overloaded=overloaded):
        began = time.process_time()
        decision, memory = tick(inp, memory)
        took.append(time.process_time() - began)
        queues.append(decision.observation.queue_wait_s > inp.spec.max_wait_s)
        following = float(np.mean(decision.recommender == Recommender.PLANNER))
    measured = range(1 + WARM_UP_TICKS, len(queues))
    return Measured(
        tick_s=statistics.median(took[WARM_UP_TICKS:]),
        following=following,
        late=statistics.mean(float(queues[number].mean()) for number in measured),
        late_anew=statistics.mean(int((queues[number] & ~queues[number - 1]).sum()) for number in measured),
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workloads", type=int, default=10_000, help="number of workloads")
    options.add_argument("--ticks", type=int, default=30, help="number of ticks to measure")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    args = options.parse_args()
    whole, few = (measure(args.workloads, args.ticks, overloaded) for overloaded in (1.0, FEW_OVERLOADED))
    tenth = measure(args.workloads // 10, args.ticks)
    result = {
        "workloads": args.workloads,
        "pods_per_workload": fleets.PODS_PER_WORKLOAD,
        "tick_ms": round(whole.tick_s * 1e3, 2),
        "tick_of_a_tenth_ms": round(tenth.tick_s * 1e3, 2),
        "growth": round(whole.tick_s / tenth.tick_s, 2),
        "following_a_rule": round(whole.following, 3),
        "with_late_queues": round(whole.late, 3),
        "new_late_queues_a_tick": round(whole.late_anew, 1),
        "tick_with_few_late_queues_ms": round(few.tick_s * 1e3, 2),
        "with_few_late_queues": round(few.late, 3),
        "few_new_late_queues_a_tick": round(few.late_anew, 1),
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{result['workloads']} workloads x {result['pods_per_workload']} pods: {result['tick_ms']} ms a tick,")
        print(f"{result['growth']} times that of a tenth of them ({result['tick_of_a_tenth_ms']} ms);")
        print(f"a queue lasts too long in {whole.late:.0%} of them, and begins to in {whole.late_anew:.0f} a tick")
        print(f"{result['tick_with_few_late_queues_ms']} ms where it does in {few.late:.1%}, and {few.late_anew:.0f}")


if __name__ == "__main__":
    main()
