"""Compare every policy on every trace, at several sizes, cold starts and seeds: the tables of the docs.

Each case is one comparison: the shipped policy, every baseline at its best setting in hindsight, and the lower bound.
*Excess* is GPU-hours over that bound, minus one. `--planned` adds the offline plan, whose excess is possible with
knowledge of the future.

Finished cases are kept in `results.jsonl` and skipped with the same options, trace and profile, so an interrupted run
continues. Changes of the code are not detected. `--ours` reruns the shipped policy in all kept cases and leaves
baselines, bound and plan as they are. If these have changed, use another `--out`.

Copies are superposed until the mean count of the bound is about the size. If a trace then has more than
`--max-requests`, only its beginning runs, and the table gives the mean length. With `--window` a case begins anywhere,
which avoids hand-picked windows. With `--learn` the first share of each case is for learning. Baselines then also run
at the setting that was best in it, the best choice without knowledge of the future.

    python bench/studies/policies.py --traces FOLDER --out FOLDER [--quick] [--planned]

Without `--traces`, two small traces are generated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.compare.compare import compare
from autoscaler.lab.compare.experiment import Experiment, goal_from_policy, with_start_replicas
from autoscaler.lab.compare.result import OURS, Comparison
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.inputs import transform
from autoscaler.lab.report import output_files
from autoscaler.lab.report.charts import frontier
from autoscaler.lab.report.document import document
from autoscaler.lab.report.page import page
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.profiles import ReplicaSpec
from bench.studies.cases import clip_window, generate_traces, load_traces, scale_to_size
from bench.studies.dots import standalone
from bench.studies.results import append_result, read_results
from bench.studies.tables import picture, table

SIZES = (0.3, 3.0, 10.0, 50.0)
COLD_STARTS_S = (60.0, 240.0)
SEEDS = (1, 2, 3)
MOST_REQUESTS = 300_000


@dataclass(frozen=True)
class Grid:
    """The cases to run."""

    sizes: tuple[float, ...] = SIZES
    cold_starts_s: tuple[float, ...] = COLD_STARTS_S
    seeds: tuple[int, ...] = SEEDS
    most_requests: int = MOST_REQUESTS
    profile: str = "8b-h100"
    against: tuple[str, ...] = tuple(BASELINES)
    gpus: float = math.inf  # shared by the models of one trace
    offline_plan: bool = False  # also search the offline plan
    window_s: float = math.inf  # length of the window of each trace, from a random request of the seed
    learned: float = 0.0  # fraction of each case for learning


QUICK = Grid((3.0,), (60.0,), (1, 2), most_requests=20_000, profile="8b-h100-3g")


def experiments(
    models: Sequence[Trace], grid: Grid
) -> Iterator[tuple[str, Callable[[Callable[[float], None]], Experiment]]]:
    """Yield the key and the maker of every case of a trace file. The key holds all that changes the result, the seed
    last.

    Making an experiment takes long, and cases with a kept result do not need it.
    """
    profile, replica_spec = find(grid.profile)
    name = models[0].name.partition("/")[0]
    content = checksum(models, replica_spec)
    for cold_start_s in grid.cold_starts_s:
        for size in grid.sizes if len(models) == 1 else (math.nan,):  # a fleet is not scaled
            for seed in grid.seeds:
                fleet = f"fleet on {grid.gpus:g} GPUs" if math.isfinite(grid.gpus) else "fleet"
                beginning = [fleet, None] if math.isnan(size) else [size, grid.most_requests]
                window_s = grid.window_s if math.isfinite(grid.window_s) else None
                how = [window_s, grid.learned, grid.offline_plan, grid.against, content]
                key = json.dumps([name, profile, *beginning, cold_start_s, *how, seed])
                yield key, partial(prepare_experiment, models, grid, size, cold_start_s, seed)


def prepare_experiment(
    models: Sequence[Trace], grid: Grid, size: float, cold_start_s: float, seed: int, progress: Callable[[float], None]
) -> Experiment:
    """Return one experiment, scaled to `size`; a fleet (NaN) is not scaled."""
    profile, replica_spec = find(grid.profile)
    policy = load_policies().policies["interactive"]
    cases = []
    window = clip_window(models, grid.window_s, seed)
    for model in window:
        fitting, _ = transform.truncate(model, replica_spec.profile.max_model_len)
        case = Case(
            fitting,
            replica_spec.profile,
            goal_from_policy(policy),
            cold_start_s,
            gpus_per_replica=replica_spec.gpus,
            seed=seed,
        )
        if len(models) > 1 and math.isfinite(grid.gpus):
            case = replace(
                case, max_replicas=int(GpuPool.for_cases([case], grid.gpus).count_fitting(replica_spec.gpus))
            )
        case = with_start_replicas(case) if math.isnan(size) else scale_to_size(fitting, size, case, grid.most_requests)
        cases.append(replace(case, counted_from_s=grid.learned * case.trace.duration_s))
        progress(len(cases) / len(window))
    gpus = grid.gpus if math.isnan(size) else math.inf
    return Experiment(models[0].name.partition("/")[0], profile, tuple(cases), policy, gpus=gpus)


def checksum(models: Sequence[Trace], replica_spec: ReplicaSpec) -> str:
    """Return a checksum that distinguishes traces and profiles of one name."""
    # The text is part of the keys of kept results, so it does not follow the name of the class.
    checksum = zlib.crc32(f"Offer(profile={replica_spec.profile!r}, gpus={replica_spec.gpus!r})".encode())
    for model in models:
        for column in (model.arrival_s, model.prompt_tokens, model.output_tokens):
            checksum = zlib.crc32(column.tobytes(), checksum)
    return f"{checksum:08x}"


def kept_result(comparison: Comparison, gpus: float) -> dict[str, Any]:
    """Return the kept result of a comparison: its document, and excess and success by policy."""
    kept = document([comparison])
    assert isinstance(kept, dict)
    best = {run.name: run for run in comparison.runs if run.name == OURS or run.tuned}
    kept["excess"] = {name: round(comparison.ratio(run.score.gpu_hours) - 1, 4) for name, run in best.items()}
    kept["meets"] = {name: comparison.meets_goal(run) for name, run in best.items()}
    if before := comparison.best_learned_baseline():
        excess = round(comparison.ratio(before.score.gpu_hours) - 1, 4)
        kept["before"] = {"name": before.name, "attainment": before.score.attainment, "excess": excess}
        kept["before"]["meets"] = comparison.meets_goal(before)
    kept["clairvoyant_mean"] = round(comparison.lower_bound_gpu_hours / gpus * 3600 / comparison.duration_s, 3)
    return kept


def with_new_ours(kept: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return a kept result with a new run of the shipped policy; the rest stays."""
    (ours,) = (each for each in found["policies"] if each["name"] == OURS)
    ratio = ours["gpu_hours"] / kept["clairvoyant"]["gpu_hours"]
    return {
        **kept,
        "policies": [
            {**ours, "clairvoyant_ratio": ratio},
            *(each for each in kept["policies"] if each["name"] != OURS),
        ],
        "excess": {**kept["excess"], OURS: round(ratio - 1, 4)},
        "meets": {**kept["meets"], OURS: found["meets"][OURS]},
    }


def run(
    grid: Grid, folder: Path | None, out: Path, jobs: int | None, ray: bool, ours: bool = False
) -> dict[str, dict[str, Any]]:
    """Run the missing cases; write table and charts after each.

    ours: rerun the shipped policy in kept cases.
    Raises ValueError for unusable traces or profiles, OSError if `out` cannot be written.
    """
    find(grid.profile)
    file = out / "results.jsonl"
    known, results = read_results(file), {}
    console = Console(stderr=True)
    for models in load_traces(folder) if folder else generate_traces():
        for key, prepare in experiments(models, grid):
            if key in known and not ours:
                results[key] = known[key]
                continue
            out.mkdir(parents=True, exist_ok=True)
            *case, seed = json.loads(key)
            title = "-".join(str(part) for part in case[:5] if part)
            with ProgressBar(f"preparing {title}", console) as progress:
                experiment = prepare(progress)
            console.print(
                f"{title}, seed {seed}: {sum(len(case.trace.arrival_s) for case in experiment.cases):,} requests"
            )
            against, tuned, offline_plan = (
                ((), False, False) if key in known else (grid.against, True, grid.offline_plan)
            )
            with ProgressBar(experiment.trace, console) as progress:
                comparison = compare(
                    experiment,
                    against,
                    tuned=tuned,
                    offline_plan=offline_plan,
                    workers=jobs,
                    ray=ray,
                    progress=progress,
                )
            found_now = kept_result(comparison, experiment.cases[0].gpus_per_replica)
            results[key] = with_new_ours(known[key], found_now) if key in known else found_now
            append_result(file, {"key": key, "result": results[key]})
            if key in known:
                write_tables(results, out)
                continue
            texts = {"html": page([comparison]), "svg": standalone(frontier(comparison))}
            output_files.write([(out / f"{title}.{kind}", text) for kind, text in texts.items()])  # of the last seed
            write_tables(results, out)
    write_tables(results, out)
    return results


def write_tables(results: dict[str, dict[str, Any]], out: Path) -> None:
    output_files.write([(out / "policies.md", table(results)), (out / "policies.svg", picture(results))])


def number(text: str) -> float:
    """Read a number above 0. Raises argparse.ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0")


def fraction(text: str) -> float:
    """Read a number above 0 and below 1. Raises argparse.ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0 and below 1")


def whole_number(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of `least` or more; it raises argparse.ArgumentTypeError."""

    def read(text: str) -> int:
        with contextlib.suppress(ValueError):
            if (value := int(text)) >= least:
                return value
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, {least} or more")

    return read


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder of traces; default: two generated ones, with --quick")
    parser.add_argument("--out", type=Path, default=Path("build/policies"), help="folder for results, table and charts")
    parser.add_argument("--quick", action="store_true", help="one size, one cold start, two seeds, few requests")
    parser.add_argument("--sizes", type=number, nargs="+", help="mean replicas of the lower bound")
    parser.add_argument("--cold-starts", type=number, nargs="+", metavar="SECONDS", help="mean cold starts")
    parser.add_argument("--seeds", type=whole_number(0), nargs="+", help="random seeds; each is a case of its own")
    parser.add_argument("--max-requests", type=whole_number(1), help="most requests of a case")
    parser.add_argument(
        "--window", type=number, metavar="HOURS", help="run this much of each trace, from a moment drawn with the seed"
    )
    parser.add_argument(
        "--learn", type=fraction, metavar="SHARE", help="learn from this share of each case; figures count from then on"
    )
    parser.add_argument("--profile", help="profile of a replica")
    parser.add_argument("--gpus", type=number, help="GPUs shared by the models of a fleet; default: no limit")
    parser.add_argument("--against", nargs="+", choices=list(BASELINES), metavar="NAME", help="baselines to run")
    parser.add_argument(
        "--planned", action="store_true", help="also find a schedule with the whole trace known in advance"
    )
    parser.add_argument(
        "--ours", action="store_true", help="also run the shipped policy again in the cases that are kept, and it alone"
    )
    parser.add_argument("--jobs", type=whole_number(1), help="number of runs in parallel; default: one per core")
    parser.add_argument("--ray", action="store_true", help="run on a Ray cluster")
    parser.add_argument("--json", action="store_true", help="print the excess of each case as JSON")
    given = parser.parse_args(arguments)
    grid = QUICK if given.quick or given.traces is None else Grid()
    changes: dict[str, Any] = {
        "sizes": given.sizes and tuple(given.sizes),
        "cold_starts_s": given.cold_starts and tuple(given.cold_starts),
        "seeds": given.seeds and tuple(given.seeds),
        "against": given.against and tuple(name for name in BASELINES if name in given.against),
        "most_requests": given.max_requests,
        "window_s": given.window and given.window * 3600,
        "learned": given.learn,
        "gpus": given.gpus,
        "profile": given.profile,
        "offline_plan": given.planned,
    }
    grid = replace(grid, **{name: value for name, value in changes.items() if value})
    try:
        results = run(grid, given.traces, given.out, given.jobs, given.ray, given.ours)
    except (ValueError, RuntimeError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    if given.json:
        print(json.dumps([{"case": json.loads(key), "excess": each["excess"]} for key, each in results.items()]))
    else:
        print(table(results), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
