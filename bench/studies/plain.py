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
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.policy.schema import Policy
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.compare.experiment import goal_from_policy, with_start_replicas
from autoscaler.lab.replay.case import Case, Outcome
from autoscaler.lab.replay.policy_scaler import PolicyBatchScaler
from autoscaler.lab.replay.run import run, run_fleet
from autoscaler.lab.replay.score import compute_score, meets_objectives
from autoscaler.sim.engine.profile_file import find
from bench.studies.results import append_result, read_results
from bench.studies.shapes import HOUR_S, SHAPES, generate

ROOT = Path(__file__).parents[2]
PER_REPLICA_PER_S = 8.0  # requests per second that one slice serves within the objectives
SIZES = (0.3, 10.0, 30.0)  # replicas at the peak
SIZED = ("step", "flat", "bursts", "office")  # shapes that run at these sizes as well
COLD_STARTS_S = (60.0, 240.0)
SEEDS = (1, 2, 3)
SEEDED_H, SEEDED_REQUESTS = 24.0, 8e6  # a longer or larger run takes over a minute and has one seed
RIVALS = ("keda-queue", "hpa-inflight", "llmd-slo", "knative-kpa")
BATCH_REQUESTS = 12e6  # most requests of the runs that share ticks, which bounds the memory
QUICK_H = 48.0
KEPT = ROOT / "bench" / "results" / "plain.jsonl"

LEAST_ATTAINMENT = 0.99
MOST_RATIO = {"step": 1.35, "season": 1.5}  # most GPU-hours beside the least constant count; else:
MOST_RATIO_ELSE = 1.05
MOST_LATER_RATIO = {"office": 0.75, "week": 0.75, "sine": 0.75}  # from the second period on, above one replica
FIRST_HOUR_POINTS = 0.005  # most attainment of the first hour below that of the constant count
FLAPS_PER_DAY = 1.0
RIVAL_RATIO = 1.03  # most GPU-hours beside a rival that meets the goal
UNFORESEEN = ("days", "office", "week", "season", "bursts", "sparse")  # the first surge counts for no goal


class Traffic(NamedTuple):
    """One trace of the study."""

    shape: str
    per_s: float  # requests per second at the peak
    seed: int
    hours: float


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


def runs_of(grid: Grid) -> list[tuple[Row, Traffic]]:
    """Return every run with its row, in the order of the table."""
    found = []
    for name in grid.shapes:
        shape = SHAPES[name]
        sizes = [size * PER_REPLICA_PER_S for size in SIZES] if name in SIZED else []
        for per_s in (shape.busiest_per_s, *sizes):
            own = per_s == shape.busiest_per_s
            if grid.rates and not any(per_s == rate or (own and math.isnan(rate)) for rate in grid.rates):
                continue
            hours = min(shape.hours, grid.hours)
            requests = per_s * hours * HOUR_S * float(np.mean(shape.share(np.linspace(0, shape.hours, 1000))))
            few = shape.hours > SEEDED_H or requests > SEEDED_REQUESTS
            for cold_start_s in grid.cold_starts_s:
                row = Row(name, per_s, cold_start_s)
                found += [(row, Traffic(name, per_s, seed, hours)) for seed in (grid.seeds[:1] if few else grid.seeds)]
    return found


# One run.


@cache
def _policy() -> Policy:
    return load_policies().policies["interactive"]


def make_case(traffic: Traffic, cold_start_s: float, start_replicas: int, profile: str) -> Case:
    _, replica_spec = find(profile)
    trace = _generate(traffic)
    name = f"{traffic.shape}-{traffic.per_s:g}-{traffic.seed}-{cold_start_s:g}"
    return Case(
        replace(trace, name=name),
        replica_spec.profile,
        goal_from_policy(_policy()),
        cold_start_s,
        gpus_per_replica=replica_spec.gpus,
        start_replicas=start_replicas,
        seed=traffic.seed,
    )


def _generate(traffic: Traffic) -> Any:
    return generate(traffic.shape, traffic.seed, traffic.hours, traffic.per_s)


def describe(case: Case, outcome: Outcome, later_s: float) -> dict[str, Any]:
    """Return the figures of a run: of the whole, from `later_s` on, and of the first hour."""
    score = compute_score(case, outcome)
    ttft_met, itl_met = meets_objectives(case.goal, outcome.ttft_s, outcome.itl_s)
    met, arrival_s = ttft_met & itl_met, case.trace.arrival_s
    shown: dict[str, Any] = {
        "requests": len(met),
        "started_with": case.start_replicas,
        "attainment": _share(met),
        "first_hour": _share(met[arrival_s < HOUR_S]),
        "gpu_hours": round(score.gpu_hours, 4),
        "scale_ups": score.scale_ups,
        "scale_downs": score.scale_downs,
        "flaps": score.flaps,
    }
    if later_s < case.trace.duration_s:
        shown["later_attainment"] = _share(met[arrival_s >= later_s])
        shown["later_gpu_hours"] = round(outcome.paid_s(later_s) * case.gpus_per_replica / HOUR_S, 4)
    return shown


def _share(met: Any) -> float:
    return round(float(met.mean()), 6) if len(met) else 1.0


def later_s(traffic: Traffic) -> float:
    """Return when the second period begins; infinity without any."""
    period_h = SHAPES[traffic.shape].period_h
    return math.inf if math.isnan(period_h) else period_h * HOUR_S


def find_constant(traffic: Traffic, profile: str) -> dict[str, Any]:
    """Return the least constant count that meets the goal, its figures, and the replicas that every policy starts with.

    The search begins at the count that the rate suggests.
    """
    case = make_case(traffic, 0.0, 1, profile)
    tried: dict[int, dict[str, Any]] = {}

    def meets(count: int) -> bool:
        constant = replace(case, start_replicas=count)
        tried[count] = describe(constant, run(constant, Static(count)), later_s(traffic))
        return case.goal.is_met_by(tried[count]["attainment"])

    count = max(math.ceil(0.95 * traffic.per_s / PER_REPLICA_PER_S), 1)
    if meets(count):
        while count > 1 and meets(count - 1):
            count -= 1
    else:
        count += 1
        while not meets(count):
            count += 1
    return {"replicas": count, "start_replicas": with_start_replicas(case).start_replicas, **tried[count]}


def run_rival(case: Case, name: str, later_from_s: float) -> dict[str, Any]:
    rival = BASELINES[name]
    assert rival.default is not None
    params = rival.default(case)
    starting = rival.starting_case(case, params)
    return describe(starting, run(starting, rival(starting, params)), later_from_s)


# The study.


class Study:
    """Runs what is missing, and keeps each result."""

    def __init__(self, grid: Grid, file: Path) -> None:
        self.grid, self._file = grid, file
        self.runs = runs_of(grid)
        self._kept = {**read_results(KEPT), **read_results(file)}
        self._code = {"ours": _version_of("core", "policies", "config/policy", "lab/replay/policy_scaler.py")}

    def results(self) -> Iterator[tuple[Row, list[dict[str, Any]]]]:
        """Run what is missing, and yield the results of each row by seed: `ours`, `constant`, and each rival."""
        for traffic in dict.fromkeys(traffic for _, traffic in self.runs):
            self._get("constant", traffic, None, lambda each=traffic: find_constant(each, self.grid.profile))
        self._run_ours()
        rows: dict[Row, list[dict[str, Any]]] = {}
        for row, traffic in self.runs:
            rows.setdefault(row, []).append(self._result(row, traffic))
        yield from rows.items()

    def _result(self, row: Row, traffic: Traffic) -> dict[str, Any]:
        constant = self._kept[self._key("constant", traffic, None)]
        result = {"ours": self._kept[self._key("ours", traffic, row.cold_start_s)], "constant": constant}

        def run_now(name: str) -> dict[str, Any]:
            case = make_case(traffic, row.cold_start_s, constant["start_replicas"], self.grid.profile)
            return run_rival(case, name, later_s(traffic))

        for name in self.grid.rivals:
            result[name] = self._get(name, traffic, row.cold_start_s, lambda name=name: run_now(name))
        return result

    def _run_ours(self) -> None:
        """Run the shipped policy where it is missing; runs of one length share ticks."""
        missing = [
            (row, traffic)
            for row, traffic in self.runs
            if self._kept.get(self._key("ours", traffic, row.cold_start_s), {}).get("code") != self._code["ours"]
        ]
        lengths = sorted({traffic.hours for _, traffic in missing})
        for hours in lengths:
            batch: list[tuple[Row, Traffic]] = []
            requests = 0
            for row, traffic in [each for each in missing if each[1].hours == hours]:
                more = self._kept[self._key("constant", traffic, None)]["requests"]
                if batch and requests + more > BATCH_REQUESTS:
                    self._run_batch(batch)
                    batch, requests = [], 0
                batch.append((row, traffic))
                requests += more
            self._run_batch(batch)

    def _run_batch(self, batch: Sequence[tuple[Row, Traffic]]) -> None:
        _say(f"the shipped policy on {len(batch)} runs of {batch[0][1].hours:g} h")
        begun_s = time.process_time()
        cases = [
            make_case(
                traffic,
                row.cold_start_s,
                self._kept[self._key("constant", traffic, None)]["start_replicas"],
                self.grid.profile,
            )
            for row, traffic in batch
        ]
        outcomes = run_fleet(cases, PolicyBatchScaler(cases, [_policy()] * len(cases)))
        for (row, traffic), case, outcome in zip(batch, cases, outcomes, strict=True):
            shown = describe(case, outcome, later_s(traffic))
            self._keep(self._key("ours", traffic, row.cold_start_s), {"code": self._code["ours"], **shown})
        _say(f"took {time.process_time() - begun_s:.0f} s of CPU")

    def _get(
        self, kind: str, traffic: Traffic, cold_start_s: float | None, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        key = self._key(kind, traffic, cold_start_s)
        if key not in self._kept:
            _say(f"{kind}: {', '.join(map(str, json.loads(key)[1:]))}")
            self._keep(key, make())
        return self._kept[key]

    def _keep(self, key: str, result: dict[str, Any]) -> None:
        self._kept[key] = result
        append_result(self._file, {"key": key, "result": result})

    def _key(self, kind: str, traffic: Traffic, cold_start_s: float | None) -> str:
        return json.dumps([kind, *traffic, cold_start_s, self.grid.profile])


def _version_of(*parts: str) -> str:
    """Return a checksum of the code of some parts of the package."""
    digest = hashlib.sha256()
    for part in parts:
        path = ROOT / "autoscaler" / part
        for file in sorted(path.rglob("*.[py][ya]*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".yaml"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# Goals.


class Judgement(NamedTuple):
    """One goal of one row. `beyond` is by how much it is missed, in the unit of the value; at most 0: it is met."""

    goal: str
    value: float
    limit: float
    beyond: float


def mean_of(results: Sequence[dict[str, Any]], who: str, what: str) -> float:
    return fmean(each[who][what] for each in results)


def lowest(results: Sequence[dict[str, Any]], who: str, what: str) -> float:
    return float(min(each[who][what] for each in results))


def judge(row: Row, results: Sequence[dict[str, Any]]) -> list[Judgement]:
    """Judge a row by the goals."""
    repeats = "later_attainment" in results[0]["ours"]
    attained = "later_attainment" if repeats and row.shape in UNFORESEEN else "attainment"
    attainment = lowest(results, "ours", attained)
    reachable = min(LEAST_ATTAINMENT, lowest(results, "constant", attained))
    judged = [Judgement("attainment", attainment, reachable, reachable - attainment)]
    ratio = ratio_to(results, "constant", "gpu_hours")
    cost = MOST_RATIO.get(row.shape, MOST_RATIO_ELSE)
    judged.append(Judgement("cost", ratio, cost, ratio - cost))
    if row.shape in MOST_LATER_RATIO and repeats and mean_of(results, "constant", "replicas") > 1:
        later, most = ratio_to(results, "constant", "later_gpu_hours"), MOST_LATER_RATIO[row.shape]
        judged.append(Judgement("later cost", later, most, later - most))
    first, best = lowest(results, "ours", "first_hour"), lowest(results, "constant", "first_hour")
    judged.append(Judgement("first hour", first, best - FIRST_HOUR_POINTS, best - FIRST_HOUR_POINTS - first))
    days = max(SHAPES[row.shape].hours / 24, 1.0)
    flaps = mean_of(results, "ours", "flaps") / days
    judged.append(Judgement("flaps a day", flaps, FLAPS_PER_DAY, flaps - FLAPS_PER_DAY))
    hours = "later_gpu_hours" if attained == "later_attainment" else "gpu_hours"
    for name in RIVALS:
        if name in results[0] and lowest(results, name, attained) >= LEAST_ATTAINMENT - 1e-9:
            # A rival that keeps the least constant count is judged like that count.
            same = mean_of(results, name, hours) > 0.97 * mean_of(results, "constant", hours)
            most = max(RIVAL_RATIO, cost) if same else RIVAL_RATIO
            beside = ratio_to(results, name, hours)
            judged.append(Judgement(name, beside, most, beside - most))
    return judged


def ratio_to(results: Sequence[dict[str, Any]], who: str, what: str) -> float:
    """Return the GPU-hours of ours beside those of another."""
    return mean_of(results, "ours", what) / max(mean_of(results, who, what), 1e-9)


def misses(judged: Iterable[Judgement]) -> str:
    """Return the missed goals and by how much."""
    words = []
    for each in judged:
        if each.beyond > 1e-9:
            points = each.goal in ("attainment", "first hour")
            words.append(
                f"{each.goal} by {100 * each.beyond:.2f} points" if points else f"{each.goal} by {each.beyond:.2f}"
            )
    return ", ".join(words)


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
            beside = name in results[0]
            figures = [lowest(results, name, "attainment"), mean_of(results, name, "gpu_hours")] if beside else []
            cells.append("{:.2%}, {:.4g}".format(*figures) if beside else "")
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
    rows = dict(Study(replace(QUICK if given.quick else Grid(), **chosen), out).results())
    if given.json:
        judged = {row: [each._asdict() for each in judge(row, results)] for row, results in rows.items()}
        print(json.dumps([{**row._asdict(), "runs": rows[row], "goals": judged[row]} for row in rows]))
    else:
        print(table(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
