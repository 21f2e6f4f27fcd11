"""Compare where the weights are, with and without pre-warm windows: on all nodes, on half of them, or on none.

One service on 70B replicas of four GPUs each, under the shipped `interactive` policy. A start on a node that holds the
weights takes a minute. On a node that was created for it and fetches them it takes five, and on one that is up and
fetches them something between. The daemon knows which nodes hold the weights, and decides with the start that the next
replica has there.

With the chain off, the daemon knows no hours. With it on, the policy has a window for each hour and `lead: auto`: the
replicas of a window are requested one start ahead, as long as that start is here. The windows follow the load of the
same hours one day before, and have as many replicas on average as the run without them. The simulator creates a node
when a replica needs it, so the link of the nodes is part of that start. A run begins at the quietest hour of a day, so
that it has the rise of the morning. Figures count from its second hour on.

    python bench/studies/cold_starts.py --traces FOLDER --out bench/results/cold_starts.jsonl [--seeds 1 2] [--hours 8]

Without `--traces`, three days are generated.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.policy.schema import Policy, Prewarm
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.inputs import trace_file, transform
from autoscaler.lab.replay.policy_scaler import WALL_S, PolicyFleetScaler
from autoscaler.lab.replay.request_cost import request_work_s
from autoscaler.lab.replay.run import run_fleet
from autoscaler.lab.replay.score import compute_score
from autoscaler.lab.report.format import seconds, share
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Lengths, Shape
from bench.studies.cases import scale_to_size
from bench.studies.results import append_result, print_results, read_results

TRACES = ("azure2024_code_week", "servegen_m-large_14d")
PROFILE = "70b-4xh100"
WEIGHTS = {"everywhere": 1.0, "half of the nodes": 0.5, "nowhere": 0.0}
COUNTED_FROM_S = 3600.0
MOST_REQUESTS = 1_000_000
DAY_S, HOUR_S, DAY_HOURS = 86_400.0, 3600.0, 24


def load(folder: Path | None) -> list[Trace]:
    """Return the traces of the folder that the study is about. Raises ValueError if there is none."""
    if folder is None:
        day = (1.0,) * 7 + (4.0, 6.0, 8.0, 8.0, 6.0, 6.0, 8.0, 8.0, 6.0, 4.0) + (2.0,) * 7
        shape = Shape(1.0, Lengths(600, 0.8, 4000), Lengths(120, 0.8, 1000), day=day)
        return [transform.generate("days", shape, 3 * DAY_S, seed=11)]
    files = [file for name in TRACES for file in sorted(folder.glob(f"{name}_requests.csv*"))]
    if not files:
        raise ValueError(f"{folder}: no trace {' or '.join(TRACES)}")
    return [replace(each, name=each.name.removesuffix("_requests")) for file in files for each in trace_file.load(file)]


def prepare(trace: Trace, given: argparse.Namespace, seed: int) -> tuple[Case, list[float]]:
    """Return the case of a window that begins at the quietest hour of a random day but the first.

    Also return the replicas that each hour of the window kept busy one day before.
    """
    _, replica_spec = find(PROFILE)
    fitting, _ = transform.truncate(trace, replica_spec.profile.max_model_len)
    window_s = given.hours * HOUR_S
    hours = np.bincount((fitting.arrival_s // HOUR_S).astype(np.int64))
    latest = int((fitting.duration_s - window_s) / HOUR_S)
    if latest < 2 * DAY_HOURS:
        raise ValueError(f"{trace.name}: shorter than two days and the window of {given.hours:g} hours")
    day = DAY_HOURS * int(np.random.default_rng((seed, 2)).integers(1, latest // DAY_HOURS))
    start_s = HOUR_S * (day + int(np.argmin(hours[day : day + DAY_HOURS])))
    window = transform.clip(fitting, start_s, start_s + window_s)
    case = Case(
        window,
        replica_spec.profile,
        goal_from_policy(load_policies().policies["interactive"]),
        given.cold_start,
        cold_start_uncached_s=given.uncached,
        gpus_per_replica=replica_spec.gpus,
        seed=seed,
    )
    busy_s = float(np.sum(request_work_s(case)))
    sized = scale_to_size(window, given.size, case, MOST_REQUESTS)
    sized = replace(sized, counted_from_s=min(COUNTED_FROM_S, sized.trace.duration_s / 4))
    scale = float(np.sum(request_work_s(sized))) / sized.trace.duration_s / (busy_s / window_s)
    before = []
    for hour in range(math.ceil(sized.trace.duration_s / HOUR_S)):
        begin_s = start_s - DAY_S + hour * HOUR_S
        part = transform.clip(fitting, begin_s, begin_s + HOUR_S)
        before.append(float(np.sum(request_work_s(replace(case, trace=part)))) / HOUR_S * scale)
    return sized, before


def with_windows(policy: Policy, load: Sequence[float], mean_replicas: float) -> Policy:
    """Return the policy with a window for each hour of a run, in proportion to a load by hour.

    mean_replicas: of the windows.
    """
    windows = []
    for hour, replicas in enumerate(np.array(load) / np.mean(load) * mean_replicas):
        begin, end = (datetime.fromtimestamp(WALL_S + each * HOUR_S, UTC) for each in (hour, hour + 1))
        stated = {"from": f"{begin.minute} {begin.hour} * * *", "until": f"{end.minute} {end.hour} * * *"}
        count = max(math.ceil(replicas), 1)
        windows.append(Prewarm.model_validate(stated | {"replicas": count, "lead": "auto"}))
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"prewarm": tuple(windows)})})


def replay(case: Case, policy: Policy) -> dict[str, Any]:
    scaler = PolicyFleetScaler([case], [policy])
    (outcome,) = run_fleet([case], scaler)
    score = compute_score(case, outcome)
    return {
        "attainment": round(score.attainment, 5),
        "gpu_hours": round(score.gpu_hours, 2),
        "scale_ups": score.scale_ups,
    }


def measure(trace: Trace, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    case, before = prepare(trace, given, seed)
    plain, runs = load_policies().policies["interactive"], {}
    for where, held in WEIGHTS.items():
        known = replace(case, weights_on=held)
        runs[f"{where}, chain off"] = off = replay(known, plain)
        counted_h = (case.trace.duration_s - case.counted_from_s) / HOUR_S
        mean_replicas = off["gpu_hours"] / counted_h / case.gpus_per_replica
        runs[f"{where}, chain on"] = replay(known, with_windows(plain, before, mean_replicas))
    return {
        "trace": trace.name,
        "seed": seed,
        "duration_s": case.trace.duration_s,
        "requests": len(case.trace.arrival_s),
        "runs": runs,
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown: attainment and GPU-hours of each run, and those of all runs together."""
    ways = [f"{where}, chain {chain}" for where in WEIGHTS for chain in ("off", "on")]
    titles = ["weights", *(f"{each['trace']}, seed {each['seed']}" for each in results.values()), "all"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    total = sum(each["requests"] for each in results.values())
    for way in ways:
        runs = [each["runs"][way] for each in results.values()]
        met = sum(run["attainment"] * each["requests"] for run, each in zip(runs, results.values(), strict=True))
        cells = [f"{share(run['attainment'])}, {run['gpu_hours']:.0f}" for run in runs]
        cells.append(f"{share(met / total)}, {sum(run['gpu_hours'] for run in runs):.0f}")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    lengths = ", ".join(sorted({seconds(each["duration_s"]) for each in results.values()}))
    return "\n".join([*lines, "", f"Runs of {lengths}.", ""])


def run(given: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield key and result of each case."""
    known = read_results(given.out) if given.out else {}
    for trace in load(given.traces):
        for seed in given.seeds:
            key = json.dumps([trace.name, PROFILE, given.size, given.cold_start, given.uncached, given.hours, seed])
            if key not in known:
                known[key] = measure(trace, given, seed)
                if given.out:
                    append_result(given.out, {"key": key, "result": known[key]})
            yield key, known[key]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder of traces; default: three generated days")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2), help="each draws another window")
    parser.add_argument("--hours", type=float, default=8.0, help="length of a window")
    parser.add_argument("--size", type=float, default=3.0, help="mean replicas of the lower bound")
    parser.add_argument("--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean start with the weights")
    parser.add_argument("--uncached", type=float, default=300.0, metavar="SECONDS", help="on a new node without them")
    return print_results(parser, arguments, run, table)


if __name__ == "__main__":
    sys.exit(main())
