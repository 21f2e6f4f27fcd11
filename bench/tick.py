"""Time the pure tick (observe, decide, share) over many workloads.

Prints the median over consecutive ticks, each of which judges the rules of a sixth of the workloads, and how it grows
from a tenth of the workloads to all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from autoscaler.core.decision import Signal
from autoscaler.core.memory import Memory
from autoscaler.core.tick import tick
from bench import fleets

WARM_UP_TICKS = 24
"""Two minutes, in which engines are read often enough for rules to speak."""


def measure(workloads: int, ticks: int) -> tuple[float, float]:
    """Return the median CPU seconds of one tick, and the share of workloads that follow a rule in the end.

    CPU, since numpy works on one core here, and wall time is the machine's mood.
    """
    memory, took, following = Memory.empty(), [], 0.0
    for inp in fleets.inputs(fleets.fleet(workloads), ticks + WARM_UP_TICKS):
        began = time.process_time()
        decision, memory = tick(inp, memory)
        took.append(time.process_time() - began)
        following = float(np.mean(~np.isnan(decision.asks[Signal.FORECAST])))
    return statistics.median(took[WARM_UP_TICKS:]), following


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--workloads", type=int, default=10_000, help="number of workloads")
    options.add_argument("--ticks", type=int, default=30, help="number of ticks to measure")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    args = options.parse_args()
    whole_s, following = measure(args.workloads, args.ticks)
    tenth_s, _ = measure(args.workloads // 10, args.ticks)
    result = {
        "workloads": args.workloads,
        "pods_per_workload": fleets.PODS_PER_WORKLOAD,
        "tick_ms": round(whole_s * 1e3, 2),
        "tick_of_a_tenth_ms": round(tenth_s * 1e3, 2),
        "growth": round(whole_s / tenth_s, 2),
        "following_a_rule": round(following, 3),
    }
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{result['workloads']} workloads x {result['pods_per_workload']} pods: {result['tick_ms']} ms a tick,")
        print(f"{result['growth']} times that of a tenth of them ({result['tick_of_a_tenth_ms']} ms)")


if __name__ == "__main__":
    main()
