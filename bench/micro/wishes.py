"""Measure the plan of weights: 500 models over 2,000 nodes in three zones, with eight kinds of node groups.

    python bench/micro/wishes.py [--models 500] [--nodes 2000] [--rounds 5] [--json]

Figures are CPU seconds of this process, the least of some rounds:

* `first`: from nothing, as after the installation.
* `again`: nothing has changed.
* `moved`: a tenth of the models need three replicas more, and `copies_moved` copies change.
* `scarce`: the disks hold about half of what is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from autoscaler.core.wishes.plan import WishPlan
from bench.micro.result import show
from tests.core.wishes.fleets import Case, fleet

TARGET_S = 0.1


def least_s(seen: Case, rounds: int) -> tuple[float, WishPlan]:
    """Return the least time of a plan, and the plan."""
    taken = []
    for _ in range(rounds):
        begin_s = time.process_time()
        found = seen.plan()
        taken.append(time.process_time() - begin_s)
    return min(taken), found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()

    seen = fleet(given.models, given.nodes)
    first_s, first = least_s(seen, given.rounds)
    settled = seen._replace(held=first.copies, before=first.copies)
    again_s, again = least_s(settled, given.rounds)
    grown = np.random.default_rng(1).random(given.models) < 0.1
    more = replace(seen.demands, needed=seen.demands.needed + 3 * grown)
    moved_s, moved = least_s(settled._replace(demands=more), given.rounds)
    needed_bytes = float((seen.models.size_bytes * first.is_needed.sum(axis=1)).sum())
    largest = float(seen.models.size_bytes.max())
    disks = np.where(np.arange(given.nodes) < needed_bytes / 2 / largest, largest, 0.0)
    scarce_s, scarce = least_s(seen._replace(nodes=replace(seen.nodes, budget_bytes=disks)), given.rounds)
    found = {
        "models": given.models,
        "nodes": given.nodes,
        "copies": int(first.copies.sum()),
        "first_s": round(first_s, 4),
        "again_s": round(again_s, 4),
        "moved_s": round(moved_s, 4),
        "scarce_s": round(scarce_s, 4),
        "copies_changed_again": int((again.copies != first.copies).sum()),
        "copies_moved": int((moved.copies != first.copies).sum()),
        "models_grown": int(grown.sum()),
        "missing_when_scarce": int((scarce.missing > 0).sum()),
        "target_s": TARGET_S,
        "met": first_s <= TARGET_S,
    }
    show(found, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
