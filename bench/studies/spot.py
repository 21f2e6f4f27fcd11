"""Compare one service on nodes on demand with the same service on spot nodes as well, by price and by preference.

The shipped `interactive` policy decides. A spot replica costs a share of one on demand, and is taken away at some time.
Its requests do not survive this, and another one starts at once. Where spot is preferred, the first replicas that the
load needs are on demand. The price of spot is known to the daemon or not; costs are always the true ones. Windows of
traces and sizes are those of `mix.py`.

    python bench/studies/spot.py --traces FOLDER [--seeds 1 2] [--hours 4] [--sizes 4] [--taken-every 2]

Without `--traces`, two small traces are generated.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.compile import override
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core.model.money import UnitCosts, dollars
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run_fleet
from autoscaler.lab.replay.score import compute_score
from autoscaler.lab.report.format import share
from bench.studies import mix
from bench.studies.results import print_results

USD = 6.88  # of an H100 on demand, an hour
WAYS = (
    "on demand alone",
    "both, spot price unknown",
    "both, spot price known",
    "2 on demand, then spot, price unknown",
    "2 on demand, then spot, price known",
)


def replay(cases: Sequence[Case], prices: Sequence[float], known: Sequence[float], floor: str | None) -> dict[str, Any]:
    """Run the service; return attainment, lost requests and cost. known: the prices by which variants are chosen."""
    policy = load_policies().policies["interactive"]
    if floor is not None:
        policy = override(policy, (("replicas.onDemandFloor", floor),))
    spot = [math.isfinite(case.crash_every_s) for case in cases]
    scaler = PolicyFleetScaler(cases, [policy] * len(cases), prices=known, may_be_spot=spot)
    outcomes = run_fleet(cases, scaler)
    scores = [compute_score(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    usd = sum(score.gpu_hours * price for score, price in zip(scores, prices, strict=True))
    return {
        "attainment": round(scores[0].attainment, 5),
        "unfinished": int(scores[0].unfinished),
        "usd": round(usd, 2),
        "usd_per_million_tokens": UnitCosts.of(usd, scores[0].output_tokens, scores[0].answered)[0],
        "gpu_hours": [round(score.gpu_hours, 2) for score in scores],
    }


def measure(trace: Trace, given: argparse.Namespace, size: float, seed: int) -> dict[str, dict[str, Any]]:
    case, _ = mix.prepare(trace, given, size, seed)
    spot_usd = USD * given.spot_price
    on_demand = replace(case, service="chat", router_weight=1.0)
    spot = replace(on_demand, start_replicas=1, crash_every_s=given.taken_every * 3600)
    pair, prices, equal = (on_demand, spot), (USD, spot_usd), (USD, USD)
    ways = (
        ((case,), (USD,), (USD,), None),
        *((pair, prices, known, floor) for floor in (None, "2") for known in (equal, prices)),
    )
    return {name: replay(*way) for name, way in zip(WAYS, ways, strict=True)}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown: attainment, lost requests, and cost of a million generated tokens."""
    titles = ["trace", "seed", *WAYS]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for key, result in results.items():
        trace, *_, seed = json.loads(key)
        cells = [
            f"{share(each['attainment'])}, {each['unfinished']} lost, {dollars(each['usd_per_million_tokens'])}"
            for each in (result[way] for way in WAYS)
        ]
        lines.append(f"| {' | '.join([trace, str(seed), *cells])} |")
    return "\n".join([*lines, ""])


def list_cases(given: argparse.Namespace) -> Iterator[tuple[list[object], Callable[[], dict[str, Any]]]]:
    """Yield the key of each case, and what measures it."""
    for trace, size, seed in product(mix.load(given.traces), given.sizes, given.seeds):
        key = [trace.name, size, given.hours, given.spot_price, given.taken_every, seed]
        yield key, partial(measure, trace, given, size, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder of traces; default: two generated ones")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2), help="each draws another window")
    parser.add_argument("--hours", type=float, default=4.0, help="length of a window")
    parser.add_argument("--sizes", type=float, nargs="+", default=(4.0,), help="mean full GPUs of the lower bound")
    parser.add_argument("--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean cold start")
    parser.add_argument("--spot-price", type=float, default=0.4, help="of a spot replica, as a share of one on demand")
    parser.add_argument("--taken-every", type=float, default=2.0, metavar="HOURS", help="mean life of a spot replica")
    return print_results(parser, arguments, list_cases, table)


if __name__ == "__main__":
    sys.exit(main())
