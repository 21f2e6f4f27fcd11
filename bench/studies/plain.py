"""Compare the shipped policy on plain traffic with the least constant count and with rivals at their defaults.

Requests arrive at random at the stated rate of a shape (`shapes.py`). Every policy begins with the fewest replicas that
serve the first ten minutes. The least constant count serves from the start and was found in hindsight. The rivals run
with the settings that their documentation advises. A row has one or three seeds: attainment is the lowest of them,
all else the mean.

    python bench/studies/plain.py [--quick] [--shapes office season] [--rates own 80] [--cold-starts 240] [--seeds 1]
                                  [--rivals none]

Finished runs are kept in a file and not repeated while the code that decides is the same. A change of the planner
leaves constant counts and rivals as they are. Runs of the shipped policy share ticks, which changes none of them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.lab.replay.case import Case, Trace
from bench.studies.judged import (
    CONSTANT,
    FIRST_HOUR_POINTS,
    HOUR_S,
    LEAST_ATTAINMENT,
    OURS,
    RIVALS,
    ROOT,
    Judgement,
    Run,
    Study,
    lowest,
    mean_of,
    misses,
    ratio_to,
)
from bench.studies.shapes import SHAPES, generate

PER_REPLICA_PER_S = 8.0  # requests per second that one slice serves within the objectives
SIZES = {  # replicas at the peak, beside those of the shape's own rate
    "step": (0.3, 10.0, 30.0, 50.0, 1000.0),
    "flat": (0.3, 10.0, 30.0),
    "bursts": (0.3, 10.0, 30.0),
    "office": (0.3, 10.0, 30.0),
}
COLD_STARTS_S = (60.0, 240.0)
SEEDS = (1, 2, 3)
SEEDED_H, SEEDED_REQUESTS = 24.0, 8e6  # a longer or larger run takes over a minute and has one seed
QUICK_H = 48.0
KEPT = ROOT / "bench" / "results" / "plain.jsonl"

MOST_RATIO = {"step": 1.35, "season": 1.5}  # most GPU-hours beside the least constant count; else:
MOST_RATIO_ELSE = 1.05
MOST_LATER_RATIO = {"office": 0.75, "week": 0.75, "sine": 0.75}  # from the second period on, above one replica
FLAPS_PER_DAY = 1.0
RIVAL_RATIO = 1.03  # most GPU-hours beside a rival that meets the goal
UNFORESEEN = ("days", "office", "week", "season", "bursts", "sparse")  # the first surge counts for no goal


class Traffic(NamedTuple):
    """One trace of the study."""

    shape: str
    per_s: float  # requests per second at the peak
    seed: int
    hours: float

    @property
    def later_s(self) -> float:
        """When the second period begins; infinity without any."""
        period_h = SHAPES[self.shape].period_h
        return math.inf if math.isnan(period_h) else period_h * HOUR_S

    def find_count(self, case: Case, attained: Callable[[int], float]) -> int:
        """Return the least constant count that meets the goal, to one percent, near the one that the rate suggests."""
        count = max(math.ceil(0.97 * self.per_s / PER_REPLICA_PER_S), 1)
        step = max(count // 100, 1)
        while not case.goal.is_met_by(attained(count)):
            count += step
        while count > step and case.goal.is_met_by(attained(count - step)):
            count -= step
        return count


class Row(NamedTuple):
    """Runs that differ in the seed only."""

    shape: str
    per_s: float
    cold_start_s: float


@dataclass(frozen=True)
class Grid:
    """The runs of the study."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    rates: tuple[float, ...] = ()  # requests per second, NaN: of the shape; (): all
    cold_starts_s: tuple[float, ...] = COLD_STARTS_S
    seeds: tuple[int, ...] = SEEDS
    rivals: tuple[str, ...] = RIVALS
    hours: float = math.inf
    profile: str = "8b-h100-3g"


QUICK = Grid(
    ("step", "days", "office", "sine", "season", "flat", "bursts", "launch"),
    (math.nan,),
    (240.0,),
    (1,),
    (),
    hours=QUICK_H,
)


def runs_of(grid: Grid) -> list[Run]:
    """Return every run, in the order of the table."""
    found = []
    for name in grid.shapes:
        shape = SHAPES[name]
        for per_s in (shape.busiest_per_s, *(size * PER_REPLICA_PER_S for size in SIZES.get(name, ()))):
            own = per_s == shape.busiest_per_s
            if grid.rates and not any(per_s == rate or (own and math.isnan(rate)) for rate in grid.rates):
                continue
            hours = min(shape.hours, grid.hours)
            requests = per_s * hours * HOUR_S * float(np.mean(shape.share(np.linspace(0, shape.hours, 1000))))
            few = shape.hours > SEEDED_H or requests > SEEDED_REQUESTS
            for cold_start_s in grid.cold_starts_s:
                seeds = grid.seeds[:1] if few else grid.seeds
                found += [Run(Traffic(name, per_s, seed, hours), cold_start_s) for seed in seeds]
    return found


def row_of(run: Run) -> Row:
    return Row(run.traffic.shape, run.traffic.per_s, run.cold_start_s)


def load(traffic: Traffic) -> Trace:
    return generate(traffic.shape, traffic.seed, traffic.hours, traffic.per_s)


def run_study(grid: Grid, file: Path, only_kept: bool = False) -> dict[Row, list[dict[str, Any]]]:
    """Return the results of each row by seed."""
    study = Study(runs_of(grid), load, grid.rivals, file, grid.profile, KEPT)
    rows: dict[Row, list[dict[str, Any]]] = {}
    for run, result in (study.kept_results() if only_kept else study.results()).items():
        rows.setdefault(row_of(run), []).append(result)
    return rows


def judge(row: Row, results: Sequence[dict[str, Any]]) -> list[Judgement]:
    """Judge a row by the goals."""
    repeats = "later_attainment" in results[0][OURS]
    attained = "later_attainment" if repeats and row.shape in UNFORESEEN else "attainment"
    reachable = min(LEAST_ATTAINMENT, lowest(results, CONSTANT, attained))
    cost = MOST_RATIO.get(row.shape, MOST_RATIO_ELSE)
    judged = [
        Judgement.at_least("attainment", lowest(results, OURS, attained), reachable),
        Judgement.at_most("cost", ratio_to(results, CONSTANT, "gpu_hours"), cost),
    ]
    if row.shape in MOST_LATER_RATIO and repeats and mean_of(results, CONSTANT, "replicas") > 1:
        later = ratio_to(results, CONSTANT, "later_gpu_hours")
        judged.append(Judgement.at_most("later cost", later, MOST_LATER_RATIO[row.shape]))
    first = lowest(results, OURS, "first_hour")
    judged.append(Judgement.at_least("first hour", first, lowest(results, CONSTANT, "first_hour") - FIRST_HOUR_POINTS))
    days = max(SHAPES[row.shape].hours / 24, 1.0)
    judged.append(Judgement.at_most("flaps a day", mean_of(results, OURS, "flaps") / days, FLAPS_PER_DAY))
    hours = "later_gpu_hours" if attained == "later_attainment" else "gpu_hours"
    for name in RIVALS:
        beside = [each for each in results if name in each]
        if beside and lowest(beside, name, attained) >= LEAST_ATTAINMENT - 1e-9:
            # A rival that keeps the least constant count is judged like that count.
            same = mean_of(beside, name, hours) > 0.97 * mean_of(beside, CONSTANT, hours)
            most = max(RIVAL_RATIO, cost) if same else RIVAL_RATIO
            judged.append(Judgement.at_most(name, ratio_to(beside, name, hours), most))
    return judged


def table(rows: dict[Row, list[dict[str, Any]]]) -> str:
    rivals = [name for name in RIVALS if any(name in results[0] for results in rows.values())]
    titles = ["shape", "peak requests/s", "cold start", "seeds", "ours: attainment", "from the second period on"]
    titles += ["first hour", "GPU-hours", "ups", "downs", "flaps", "least constant count", "its GPU-hours"]
    titles += ["ours / its", "the same from the second period on", *rivals, "missed goals"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    met = 0
    for row, results in rows.items():
        judged = judge(row, results)
        met += not misses(judged)
        later = "later_attainment" in results[0]["ours"]
        counts = sorted({each["constant"]["replicas"] for each in results})
        cells = [row.shape, f"{row.per_s:g}", f"{row.cold_start_s:g} s", str(len(results))]
        cells += [f"{lowest(results, 'ours', 'attainment'):.2%}"]
        cells += [f"{lowest(results, 'ours', 'later_attainment'):.2%}" if later else ""]
        cells += [f"{lowest(results, 'ours', 'first_hour'):.2%}", f"{mean_of(results, 'ours', 'gpu_hours'):.4g}"]
        cells += [f"{mean_of(results, 'ours', what):.3g}" for what in ("scale_ups", "scale_downs", "flaps")]
        cells += [" to ".join(map(str, counts)), f"{mean_of(results, 'constant', 'gpu_hours'):.4g}"]
        cells += [f"{ratio_to(results, 'constant', 'gpu_hours'):.2f}"]
        cells += [f"{ratio_to(results, 'constant', 'later_gpu_hours'):.2f}" if later else ""]
        for name in rivals:
            beside = [each for each in results if name in each]
            figures = (
                f"{lowest(beside, name, 'attainment'):.2%}, {mean_of(beside, name, 'gpu_hours'):.4g}" if beside else ""
            )
            cells.append(figures)
        lines.append(f"| {' | '.join([*cells, misses(judged) or 'none'])} |")
    return "\n".join([*lines, "", f"All goals are met in {met} of {len(rows)} rows.", ""])


def rate(text: str) -> float:
    """Read a rate, or `own`, which is NaN. Raises ValueError."""
    return math.nan if text == "own" else float(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="own rates, 240 s, one seed, two days, no rivals")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, metavar="NAME", help="shapes")
    parser.add_argument(
        "--rates", type=rate, nargs="+", metavar="PER_S", help="requests per second at the peak; own: those of a shape"
    )
    parser.add_argument("--cold-starts", type=float, nargs="+", metavar="SECONDS", help="mean cold starts")
    parser.add_argument("--seeds", type=int, nargs="+", help="random seeds")
    parser.add_argument("--rivals", nargs="+", choices=("none", *RIVALS), metavar="NAME", help="rivals, or none")
    parser.add_argument("--hours", type=float, help="run only the beginning of each shape")
    parser.add_argument("--profile", help="profile of a replica")
    parser.add_argument("--out", type=Path, help="file of results, which is continued")
    parser.add_argument("--kept", action="store_true", help="run nothing, and show what is kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    changes = {
        "shapes": given.shapes,
        "rates": given.rates,
        "cold_starts_s": given.cold_starts,
        "seeds": given.seeds,
        "rivals": given.rivals and [name for name in RIVALS if name in given.rivals],
        "hours": given.hours,
        "profile": given.profile,
    }
    chosen = {
        name: tuple(value) if isinstance(value, list) else value for name, value in changes.items() if value is not None
    }
    out = given.out or (KEPT if not given.quick else ROOT / "build" / KEPT.name)
    rows = run_study(replace(QUICK if given.quick else Grid(), **chosen), out, given.kept)
    if given.json:
        judged = {row: [each._asdict() for each in judge(row, results)] for row, results in rows.items()}
        print(json.dumps([{**row._asdict(), "runs": rows[row], "goals": judged[row]} for row in rows]))
    else:
        print(table(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
