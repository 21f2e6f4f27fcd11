"""Compare one service on MIG slices and full GPUs together with the same service on either of them alone.

The shipped `interactive` policy decides in all three runs of a case. Together both are variants of one service: the
allocation chooses their counts at least cost. A slice costs half a full GPU, its share of memory. It has half of the
bandwidth, 60 of 132 multiprocessors and, beside the weights, less than half of the KV cache. The router prefers the
replica with the fewest requests for its price. Every run begins with the fewest replicas that meet the goal in the
first ten minutes, together with those full GPUs and one slice. Figures count from the second hour on.

    python bench/studies/mix.py --traces FOLDER --out bench/results/mix.jsonl [--seeds 1 2] [--hours 4] [--sizes 2]

Without `--traces`, two small traces are generated.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.lab.compare.experiment import goal_from_policy, with_start_replicas
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.inputs import transform
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run_fleet
from autoscaler.lab.replay.score import compute_score
from autoscaler.lab.report.format import seconds, share
from autoscaler.sim.engine.profile_file import find
from bench.studies.cases import clip_window, generate_traces, load_traces, scale_to_size
from bench.studies.results import Cases, print_results

TRACES = ("azure2024_code_week", "servegen_m-large_14d")
FULL, SLICE = "8b-h100", "8b-h100-3g"
COUNTED_FROM_S = 3600.0
MOST_REQUESTS = 3_000_000


def prepare(trace: Trace, given: argparse.Namespace, size: float, seed: int) -> tuple[Case, Case]:
    """Return the case on full GPUs and on slices: a window of the trace, scaled to `size` full GPUs of the bound."""
    (window,) = clip_window([trace], given.hours * 3600, seed)
    goal, cases = goal_from_policy(load_policies().policies["interactive"]), []
    for name in (FULL, SLICE):
        _, replica_spec = find(name)
        if not cases:
            window, _ = transform.truncate(window, replica_spec.profile.max_model_len)
        case = Case(
            window,
            replica_spec.profile,
            goal,
            given.cold_start,
            gpus_per_replica=replica_spec.gpus,
            seed=seed,
            router_weight=replica_spec.gpus,
        )
        if not cases:
            case = scale_to_size(window, size, case, MOST_REQUESTS)
            window = case.trace
        else:
            case = with_start_replicas(case)
        cases.append(replace(case, counted_from_s=min(COUNTED_FROM_S, window.duration_s / 4)))
    full, slices = cases
    return full, slices


def replay(cases: Sequence[Case]) -> dict[str, Any]:
    """Run one service on the replicas of `cases`; return attainment and cost, in full GPUs times hours."""
    policy = load_policies().policies["interactive"]
    outcomes = run_fleet(cases, PolicyFleetScaler(cases, [policy] * len(cases)))
    scores = [compute_score(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    return {
        "attainment": round(scores[0].attainment, 5),
        "cost_hours": round(sum(score.gpu_hours for score in scores), 3),
        "replica_hours": [round(outcome.replica_s / 3600, 2) for outcome in outcomes],
        "scale_ups": sum(score.scale_ups for score in scores),
        "scale_downs": sum(score.scale_downs for score in scores),
    }


def measure(trace: Trace, given: argparse.Namespace, size: float, seed: int) -> dict[str, Any]:
    full, slices = prepare(trace, given, size, seed)
    together = [replace(full, service="mix"), replace(slices, service="mix", start_replicas=1)]
    return {
        "trace": trace.name,
        "size": size,
        "seed": seed,
        "duration_s": full.trace.duration_s,
        "requests": len(full.trace.arrival_s),
        "full": replay([full]),
        "slices": replay([slices]),
        "mixed": replay(together),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown: attainment and cost of each way, and of the mix compared with the cheaper one."""
    ways = {"full": "full GPUs alone", "slices": "slices alone", "mixed": "both"}
    titles = ["trace", "length", "mean of the bound", "seed", *ways.values(), "both / cheaper"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for each in results.values():
        cells = [f"{share(each[way]['attainment'])}, {each[way]['cost_hours']:.4g}" for way in ways]
        cheaper = min(each["full"]["cost_hours"], each["slices"]["cost_hours"])
        row = [each["trace"], seconds(each["duration_s"]), f"{each['size']:g}", str(each["seed"])]
        lines.append(f"| {' | '.join([*row, *cells])} | {each['mixed']['cost_hours'] / cheaper:.2f} |")
    return "\n".join([*lines, ""])


def load(folder: Path | None) -> list[Trace]:
    """Return the traces of the folder that the study is about. Raises ValueError if there is none."""
    if folder is None:
        return [trace for (trace,) in generate_traces()]
    found = {models[0].name: models[0] for models in load_traces(folder)}
    if not (known := [found[name] for name in TRACES if name in found]):
        raise ValueError(f"{folder}: no trace {' or '.join(TRACES)}")
    return known


def list_cases(given: argparse.Namespace) -> Cases:
    for trace, size, seed in itertools.product(load(given.traces), given.sizes, given.seeds):
        parts = [trace.name, FULL, SLICE, size, given.cold_start, given.hours, seed]
        yield parts, partial(measure, trace, given, size, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder of traces; default: two generated ones")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2), help="each draws another window")
    parser.add_argument("--hours", type=float, default=4.0, help="length of a window")
    parser.add_argument("--sizes", type=float, nargs="+", default=(2.0,), help="mean full GPUs of the lower bound")
    parser.add_argument("--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean cold start")
    return print_results(parser, arguments, list_cases, table)


if __name__ == "__main__":
    sys.exit(main())
