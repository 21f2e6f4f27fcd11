"""Time the simulator on one core: a busy day of long answers, and two quiet weeks.

Without `--trace`, two traces are generated with the size and lengths of public traces: a day of a reasoning service,
and two weeks of a chat service. The time is that of the whole run with a decision every 15 s, without compilation,
which happens once per machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.lab.replay.case import Case, Goal, Trace, View
from autoscaler.lab.replay.inputs.trace_file import load
from autoscaler.lab.replay.inputs.transform import clip, truncate
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from autoscaler.sim.engine.profiles import find_profile
from autoscaler.sim.engine.traffic import DAY_S, Lengths, Shape
from tests.lab.replay.synthetic import generate

OFFICE_DAY = (0.5, 0.4, 0.35, 0.3, 0.3, 0.35, 0.5, 0.7, 1.0, 1.3, 1.5, 1.6, 1.5, 1.5, 1.6, 1.6, 1.5, 1.4, 1.3) + (
    1.0,
) * 5
REASONING = Shape(16.0, Lengths(350, 1.6, 32_000), Lengths(850, 1.08, 16_000), OFFICE_DAY)
CHAT = Shape(1.0, Lengths(600, 0.92, 8_000), Lengths(100, 0.94, 2_000), OFFICE_DAY)


@dataclass
class Backlog:
    """A trivial scaler: a fixed number of requests per replica, at engines and gateway."""

    requests_per_replica: float = 60.0
    name: str = "backlog"
    period_s: float = 15.0

    def decide(self, view: View) -> int:
        seen = view.totals
        requests = float(seen.running.sum() + seen.waiting.sum()) + seen.gateway_waiting
        return max(round(requests / self.requests_per_replica + 0.5), 1)


def measure(trace: Trace, profile: str) -> dict[str, Any]:
    replica_spec = find_profile(profile)
    fitting, shortened = truncate(trace, replica_spec.profile.max_model_len)
    case = Case(
        fitting, replica_spec.profile, Goal(1.0, 0.05, 0.99), cold_start_s=60.0, gpus_per_replica=replica_spec.gpus
    )
    began = time.perf_counter()
    outcome = run(case, Backlog())
    took_s = time.perf_counter() - began
    row = compute_score(case, outcome)
    requests = len(fitting.arrival_s)
    return {
        "trace": trace.name,
        "requests": requests,
        "shortened": shortened,
        "days": round(trace.duration_s / DAY_S, 2),
        "mean_replicas": round(outcome.replica_s / trace.duration_s, 1),
        "attainment": round(row.attainment, 4),
        "run_s": round(took_s, 1),
        "us_per_request": round(took_s / max(requests, 1) * 1e6, 2),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trace", type=Path, action="append", help="measure this file instead; may be repeated")
    options.add_argument("--profile", default="8b-h100", help="profile of a replica")
    options.add_argument("--json", action="store_true", help="print JSON instead of text")
    args = options.parse_args()
    if args.trace:
        traces = [trace for path in args.trace for trace in load(path)]
    else:
        traces = [generate("day", REASONING, DAY_S, seed=1), generate("fortnight", CHAT, 14 * DAY_S, seed=1)]
    began = time.perf_counter()
    measure(clip(traces[0], 0.0, min(60.0, traces[0].duration_s)), args.profile)
    result = {
        "compile_or_load_s": round(time.perf_counter() - began, 1),
        "runs": [measure(trace, args.profile) for trace in traces],
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"compiled code ready after {result['compile_or_load_s']} s")
    for each in result["runs"]:
        print(
            f"{each['trace']}: {each['requests']:,} requests over {each['days']} days at {each['mean_replicas']} "
            f"replicas on average: {each['run_s']} s, {each['us_per_request']} us a request"
        )


if __name__ == "__main__":
    main()
