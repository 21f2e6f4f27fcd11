"""Measure the time from the first scrape that shows a queue to the decision, without a stated capacity.

    python bench/micro/queue_seen.py [--every 5] [--policy interactive] [--json]

The scraper's own parser reads recorded text of a vLLM server with four slots, every few seconds of virtual time. A tick
follows each scrape. Before the queue the server is idle, or serves two clients, for one to fifteen minutes. Scrapes
begin at each second of their interval. The clock starts with the first scrape that shows waiting requests, and stops
with the tick that recommends more replicas. `reaction.py` measures the time of a patch, with a stated capacity.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from autoscaler.config.policy.compile import spec_row
from autoscaler.config.policy.parse import load
from autoscaler.core.model.spec import Spec
from bench.micro.result import show
from tests.core.looped_recording import IDLE, LIGHT, measure_reaction

TARGET_S = 10.0
BEFORE = {"idle": IDLE, "two clients": LIGHT}
BEFORE_S = (60, 150, 300, 900)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--every", type=int, default=5, help="seconds between two readings")
    options.add_argument("--policy", default="interactive", help="shipped policy")
    options.add_argument("--longest", type=int, default=max(BEFORE_S), help="most seconds before the queue")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = options.parse_args()
    rules = Spec(*(np.array([value]) for value in spec_row(load(()).policies[given.policy].spec)))
    took: dict[str, list[float]] = {
        name: [
            measure_reaction(rules, before, before_s, given.every, phase_s).seconds
            for before_s in BEFORE_S
            if before_s <= given.longest
            for phase_s in range(given.every)
        ]
        for name, before in BEFORE.items()
    }
    all_s = [seconds for some in took.values() for seconds in some]
    result = {
        "reactions": len(all_s),
        "period_s": given.every,
        "median_s": statistics.median(all_s),
        **{f"max_s after {name}": max(some) for name, some in took.items()},
        "target_s": TARGET_S,
        "met": max(all_s) <= TARGET_S,
    }
    show(result, given.json)
    return 0 if result["met"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
