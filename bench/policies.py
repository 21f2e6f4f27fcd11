"""Every policy over every trace, at several sizes, cold starts and seeds: the table and the pictures of the README.

Each case is one proof: the shipped policy as it is, every baseline at its best setting with hindsight, and the
clairvoyant bound. *Excess* is GPU-hours over that bound, minus one. `--planned` adds the schedule that is made with the
whole trace in hand: its excess can be had, by who knows the future. A case that is done is kept in `results.jsonl` and
not run again with the same options, trace and profile, so a stopped run goes on where it was; that the code has changed
is not seen, so then take another `--out`. A size is reached by superposing copies until the clairvoyant's mean count is
about that; of a trace that then has more than `--max-requests` only the beginning is run, and the table tells how long
that is, in the mean. With `--window` a case begins anywhere, so that policies are compared where nobody looked. With
`--learn` a share of each case is only learned from, and baselines also run at the setting that was the best until then,
which is what who knows no future can choose.

    python bench/policies.py --traces FOLDER --out FOLDER [--quick] [--planned]

Without `--traces`, two small traces are generated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from rich.console import Console

from autoscaler.config.policy import load as load_policies
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.profiles import Offer
from autoscaler.sim.proof.prove import prove
from autoscaler.sim.proof.report import outputs
from autoscaler.sim.proof.report.charts import frontier
from autoscaler.sim.proof.report.document import document
from autoscaler.sim.proof.report.page import page
from autoscaler.sim.proof.report.progress import Bar
from autoscaler.sim.proof.report.words import amount, seconds, share
from autoscaler.sim.proof.result import OURS, Proof
from autoscaler.sim.proof.subject import Subject, goal_of, started
from autoscaler.sim.study import trace as traces
from autoscaler.sim.study.baselines import BASELINES
from autoscaler.sim.study.case import Case, Trace
from bench.cases import anywhere, found, generated, sized
from bench.dots import Dot, dots, standalone

SIZES = (0.3, 3.0, 10.0, 50.0)
COLD_STARTS_S = (60.0, 240.0)
SEEDS = (1, 2, 3)
MOST_REQUESTS = 300_000
# 97.5% quantile of Student's t by degrees of freedom; beyond, that of the normal distribution is near enough.
STUDENT = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


@dataclass(frozen=True)
class Grid:
    """What is run."""

    sizes: tuple[float, ...] = SIZES
    cold_starts_s: tuple[float, ...] = COLD_STARTS_S
    seeds: tuple[int, ...] = SEEDS
    most_requests: int = MOST_REQUESTS
    profile: str = "8b-h100"
    against: tuple[str, ...] = tuple(BASELINES)
    gpus: float = math.inf  # that the models of one trace share
    planned: bool = False  # also the schedule that knows the trace
    window_s: float = math.inf  # of each trace, from a moment that the seed draws
    learned: float = 0.0  # share of each case that is only learned from


QUICK = Grid((3.0,), (60.0,), (1, 2), most_requests=20_000, profile="8b-h100-3g")


def subjects(models: Sequence[Trace], grid: Grid) -> Iterator[tuple[str, Callable[[Callable[[float], None]], Subject]]]:
    """Yield the key of every case of one trace file, all that changes its result with the seed last, and its maker.

    Making one takes long, and who has its result does not need it.
    """
    profile, offer = find(grid.profile)
    name = models[0].name.partition("/")[0]
    checksum = content(models, offer)
    for cold_start_s in grid.cold_starts_s:
        for size in grid.sizes if len(models) == 1 else (math.nan,):  # a fleet runs as it is
            for seed in grid.seeds:
                fleet = f"fleet on {grid.gpus:g} GPUs" if math.isfinite(grid.gpus) else "fleet"
                beginning = [fleet, None] if math.isnan(size) else [size, grid.most_requests]
                window_s = grid.window_s if math.isfinite(grid.window_s) else None
                how = [window_s, grid.learned, grid.planned, grid.against, checksum]
                key = json.dumps([name, profile, *beginning, cold_start_s, *how, seed])
                yield key, partial(prepared, models, grid, size, cold_start_s, seed)


def prepared(
    models: Sequence[Trace], grid: Grid, size: float, cold_start_s: float, seed: int, told: Callable[[float], None]
) -> Subject:
    """Return one case, scaled to `size` and begun; of a fleet (NaN) each model as it is."""
    profile, offer = find(grid.profile)
    policy = load_policies().policies["interactive"]
    cases = []
    window = anywhere(models, grid.window_s, seed)
    for model in window:
        fitting, _ = traces.cut(model, offer.profile.max_model_len)
        case = Case(fitting, offer.profile, goal_of(policy), cold_start_s, gpus_per_replica=offer.gpus, seed=seed)
        if len(models) > 1 and math.isfinite(grid.gpus):
            case = replace(case, max_replicas=int(grid.gpus / offer.gpus + 1e-9))
        case = started(case) if math.isnan(size) else sized(fitting, size, case, grid.most_requests)
        cases.append(replace(case, counted_from_s=grid.learned * case.trace.duration_s))
        told(len(cases) / len(window))
    gpus = grid.gpus if math.isnan(size) else math.inf
    return Subject(models[0].name.partition("/")[0], profile, tuple(cases), policy, gpus=gpus)


def content(models: Sequence[Trace], offer: Offer) -> str:
    """Return a checksum that tells traces and profiles of one name apart."""
    checksum = zlib.crc32(repr(offer).encode())
    for model in models:
        for column in (model.arrival_s, model.prompt_tokens, model.output_tokens):
            checksum = zlib.crc32(column.tobytes(), checksum)
    return f"{checksum:08x}"


def summary(proof: Proof, gpus: float) -> dict[str, Any]:
    """Return what is kept of a proof: its document, and by policy the excess of whoever met the goal."""
    kept = document([proof])
    assert isinstance(kept, dict)
    best = {run.name: run for run in proof.runs if run.name == OURS or run.tuned}
    kept["excess"] = {name: round(proof.ratio(run.row.gpu_hours) - 1, 4) for name, run in best.items()}
    kept["meets"] = {name: proof.attains(run) for name, run in best.items()}
    if before := proof.best_before():
        excess = round(proof.ratio(before.row.gpu_hours) - 1, 4)
        kept["before"] = {"name": before.name, "attainment": before.row.attainment, "excess": excess}
        kept["before"]["meets"] = proof.attains(before)
    kept["clairvoyant_mean"] = round(proof.clairvoyant_gpu_hours / gpus * 3600 / proof.duration_s, 3)
    return kept


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half width of the 95% confidence interval over seeds; NaN without a second one."""
    count = len(values)
    if count < 2:
        return (values[0] if values else math.nan), math.nan
    student = STUDENT[count - 1] if count - 1 < len(STUDENT) else 1.96
    return float(np.mean(values)), float(student * np.std(values, ddof=1) / math.sqrt(count))


def grouped(results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, float, list[dict[str, Any]]]]:
    """Yield trace, cold start and results of every case, those of all its seeds together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, result in results.items():
        groups.setdefault(json.dumps(json.loads(key)[:-1]), []).append(result)
    for key, of_seeds in groups.items():
        name, _, _, _, cold_start_s, *_ = json.loads(key)
        yield name, cold_start_s, of_seeds


def best_baseline(results: Sequence[dict[str, Any]]) -> str | None:
    """Return the baseline with the least mean excess among those that met the goal with every seed; None: none did."""
    names = [name for name in results[0]["excess"] if name != OURS and all(each["meets"][name] for each in results)]
    return min(names, key=lambda name: np.mean([each["excess"][name] for each in results]), default=None)


def nearest(results: Sequence[dict[str, Any]]) -> tuple[str, float]:
    """Return the tuned baseline whose worst attainment is the highest, and that attainment."""
    names = [name for name in results[0]["excess"] if name != OURS]
    worst = {name: min(_policy(each, name)["attainment"] for each in results) for name in names}
    best = max(names, key=lambda name: worst[name])
    return best, worst[best]


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table as Markdown, and what it comes to."""
    titles = ["trace", "length", "clairvoyant mean", "cold start", "seeds", "ours: attainment", "ours: excess"]
    titles += ["best tuned baseline", "its attainment", "its excess", "ours / its", "estimate: excess", "plan: excess"]
    learned = any("before" in result for result in results.values())
    titles += ["best baseline, tuned before", "its attainment", "its excess"] if learned else []
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, cold_start_s, of_seeds in grouped(results):
        ours, wide = interval([each["excess"][OURS] for each in of_seeds])
        attained = min(_policy(each, OURS)["attainment"] for each in of_seeds)
        best = best_baseline(of_seeds)
        missed = "" if all(each["meets"][OURS] for each in of_seeds) else " (misses)"
        row = [
            name,
            seconds(float(np.mean([each["duration_s"] for each in of_seeds]))),
            amount(float(np.mean([each["clairvoyant_mean"] for each in of_seeds]))),
            f"{cold_start_s:g} s",
            str(len(of_seeds)),
            f"{share(attained)}{missed}",
            _with_interval(ours, wide),
        ]
        if best is None:
            near, its_attained = nearest(of_seeds)
            row += [f"none met the goal; nearest {near}", share(its_attained), "", ""]
        else:
            its, its_wide = interval([each["excess"][best] for each in of_seeds])
            its_attained = min(_policy(each, best)["attainment"] for each in of_seeds)
            row += [best, share(its_attained), _with_interval(its, its_wide), f"{ours / its:.2f}" if its > 0 else "–"]
        row += _of_the_plan(of_seeds) + (_of_before(of_seeds) if learned else [])
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", *tally(list(results.values())), "", *singly(list(results.values())), ""])


def _of_before(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return who would have been chosen before figures counted, with each seed, its worst attainment, its excess."""
    chosen = [each["before"] for each in results if "before" in each]
    if len(chosen) < len(results):
        return ["", "", ""]
    missed = "" if all(each["meets"] for each in chosen) else " (misses)"
    names = ", ".join(sorted({each["name"] for each in chosen}))
    attained = share(min(each["attainment"] for each in chosen))
    return [names, f"{attained}{missed}", _with_interval(*interval([each["excess"] for each in chosen]))]


def tally(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say in how many runs ours and the best baseline met the goal, and what ours cost beside it where both did."""
    met = [each for each in results if each["meets"][OURS]]
    yield f"Of {len(results)} runs ours met the goal in {len(met)}."
    best = [(each, best_baseline([each])) for each in results]
    rivals = {"any tuned baseline": [(each, each["excess"][name]) for each, name in best if name]}
    before = [each for each in results if "before" in each]
    if before:
        rivals["the baseline best before"] = [
            (each, each["before"]["excess"]) for each in before if each["before"]["meets"]
        ]
    for said, those in rivals.items():
        ratios = [(1 + each["excess"][OURS]) / (1 + excess) for each, excess in those if each["meets"][OURS]]
        beside = "GPU-hours of ours beside it, where both met, in the geometric mean"
        yield f"- {said}: {len(those)}; {beside}: {_mean(ratios)}."


def singly(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of each baseline alone, tuned: the runs in which it met the goal, and what ours cost beside it."""
    yield f"| tuned baseline | met of {len(results)} | both met | GPU-hours of ours beside it, geometric mean |"
    yield "|---|---|---|---|"
    for name in dict.fromkeys(name for each in results for name in each["excess"] if name != OURS):
        met = [each for each in results if each["meets"].get(name)]
        excess = [each["excess"] for each in met if each["meets"][OURS]]
        ratios = [(1 + each[OURS]) / (1 + each[name]) for each in excess]
        yield f"| {name} | {len(met)} | {len(ratios)} | {_mean(ratios)} |"


def _mean(ratios: Sequence[float]) -> str:
    """Word the geometric mean, with the 95% interval where there are two or more."""
    if not ratios:
        return "–"
    middle, wide = interval([math.log(ratio) for ratio in ratios])
    likely = "" if math.isnan(wide) else f", 95%: {math.exp(middle - wide):.2f} to {math.exp(middle + wide):.2f}"
    return f"{math.exp(middle):.3f}{likely}"


def _of_the_plan(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the excess of the estimate and that of the plan.

    Where the plan misses the goal with a seed, its attainment then, and no estimate: it is of schedules that meet it.
    Nothing where a seed ran without one.
    """
    bounds = [each["clairvoyant"]["gpu_hours"] for each in results]
    estimates = [each["clairvoyant"].get("estimate_gpu_hours") for each in results]
    plans = [each["planned"] for each in results if each.get("planned")]
    missed = [plan["attainment"] for plan in plans if plan["attainment"] < results[0]["objective"]["attainment"]]
    if missed:
        return ["", f"misses, {share(min(missed))}"]
    of_plan = [plan["gpu_hours"] for plan in plans]
    return [_excess(each, bounds) if len(each) == len(bounds) and all(each) else "" for each in (estimates, of_plan)]


def _excess(gpu_hours: Sequence[float], bounds: Sequence[float]) -> str:
    return _with_interval(*interval([each / bound - 1 for each, bound in zip(gpu_hours, bounds, strict=True)]))


def picture(results: dict[str, dict[str, Any]]) -> str:
    """Draw GPU-hours over the bound for ours, a constant count, and the best baseline of each case that moves."""
    rows = {}
    for name, cold_start_s, of_seeds in grouped(results):
        mean = amount(float(np.mean([each["clairvoyant_mean"] for each in of_seeds])))
        moving = [{**each, "excess": {k: v for k, v in each["excess"].items() if k != "static"}} for each in of_seeds]
        shown = {OURS: OURS, "constant count, tuned": "static", "best other baseline, tuned": best_baseline(moving)}
        rows[f"{name}, {mean} replicas, {cold_start_s:g} s"] = {
            said: _dot(of_seeds, policy) for said, policy in shown.items() if policy and policy in of_seeds[0]["excess"]
        }
    explained = "hollow: misses the goal; whiskers: 95% over seeds; replicas: the bound's mean; seconds: cold start"
    return standalone(dots("GPU-hours over the clairvoyant bound", rows, f"GPU-hours / clairvoyant bound; {explained}"))


def _dot(results: Sequence[dict[str, Any]], policy: str) -> Dot:
    value, wide = interval([1 + each["excess"][policy] for each in results])
    return Dot(value, value - wide, value + wide, hollow=not all(each["meets"][policy] for each in results))


def _policy(result: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the tuned entry of a baseline, or that of ours."""
    entries = [each for each in result["policies"] if each["name"] == name and (each["tuned"] or name == OURS)]
    return dict(entries[0])


def _with_interval(value: float, wide: float) -> str:
    return f"{value:.2f}" if math.isnan(wide) else f"{value:.2f} ± {wide:.2f}"


def read_results(file: Path) -> dict[str, dict[str, Any]]:
    """Return what earlier runs found; a line that was cut off is run again."""
    results: dict[str, dict[str, Any]] = {}
    if file.exists():
        for line in file.read_text("utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            results[entry["key"]] = entry["result"]
    return results


def append(file: Path, entry: dict[str, Any]) -> None:
    """Add a line; one before it that was cut off is ended first."""
    with file.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":
                stream.write(b"\n")
        stream.write(json.dumps(entry).encode() + b"\n")


def run(grid: Grid, folder: Path | None, out: Path, jobs: int | None, ray: bool) -> dict[str, dict[str, Any]]:
    """Run what is missing, and write table and pictures of the grid's cases after each that was run.

    Raises ValueError for traces or a profile that cannot be used, OSError for an `out` that cannot be written.
    """
    find(grid.profile)
    file = out / "results.jsonl"
    known, results = read_results(file), {}
    console = Console(stderr=True)
    for models in found(folder) if folder else generated():
        for key, prepare in subjects(models, grid):
            if key in known:
                results[key] = known[key]
                continue
            out.mkdir(parents=True, exist_ok=True)
            *case, seed = json.loads(key)
            title = "-".join(str(part) for part in case[:5] if part)
            with Bar(f"preparing {title}", console) as told:
                subject = prepare(told)
            console.print(
                f"{title}, seed {seed}: {sum(len(case.trace.arrival_s) for case in subject.cases):,} requests"
            )
            with Bar(subject.trace, console) as told:
                proof = prove(subject, grid.against, tuned=True, planned=grid.planned, workers=jobs, ray=ray, told=told)
            results[key] = summary(proof, subject.cases[0].gpus_per_replica)
            append(file, {"key": key, "result": results[key]})
            texts = {"html": page([proof]), "svg": standalone(frontier(proof))}
            outputs.write([(out / f"{title}.{kind}", text) for kind, text in texts.items()])  # of all seeds the last
            draw(results, out)
    draw(results, out)
    return results


def draw(results: dict[str, dict[str, Any]], out: Path) -> None:
    outputs.write([(out / "policies.md", table(results)), (out / "policies.svg", picture(results))])


def number(text: str) -> float:
    """Read a number above 0. Raises argparse.ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0")


def part(text: str) -> float:
    """Read a number above 0 and below 1. Raises argparse.ArgumentTypeError."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0 and below 1")


def whole(least: int) -> Callable[[str], int]:
    """Return what reads a whole number of `least` or more; it raises argparse.ArgumentTypeError."""

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
    parser.add_argument("--sizes", type=number, nargs="+", help="mean replicas of the clairvoyant bound")
    parser.add_argument("--cold-starts", type=number, nargs="+", metavar="SECONDS", help="mean cold starts")
    parser.add_argument("--seeds", type=whole(0), nargs="+", help="random seeds; each is a case of its own")
    parser.add_argument("--max-requests", type=whole(1), help="most requests of a case")
    parser.add_argument(
        "--window", type=number, metavar="HOURS", help="run this much of each trace, from a moment drawn with the seed"
    )
    parser.add_argument(
        "--learn", type=part, metavar="SHARE", help="learn from this share of each case; figures count from then on"
    )
    parser.add_argument("--profile", help="profile of a replica")
    parser.add_argument("--gpus", type=number, help="GPUs shared by the models of a fleet; default: no limit")
    parser.add_argument("--against", nargs="+", choices=list(BASELINES), metavar="NAME", help="baselines to run")
    parser.add_argument(
        "--planned", action="store_true", help="also find a schedule with the whole trace known in advance"
    )
    parser.add_argument("--jobs", type=whole(1), help="number of runs in parallel; default: one per core")
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
        "planned": given.planned,
    }
    grid = replace(grid, **{name: value for name, value in changes.items() if value})
    try:
        results = run(grid, given.traces, given.out, given.jobs, given.ray)
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
