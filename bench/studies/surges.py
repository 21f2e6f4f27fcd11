"""Judge what a surge costs, and the first surge of a young service: the shipped policy compared with the HPA and KEDA.

Requests arrive at random, as in `plain.py`. A level or a hill begins after an hour, with a fleet that serves until
then. Its surge is judged in the half hour that begins ten minutes before it, and the fleet half an hour after queue and
hill are over. A burst comes four minutes after a service began with 15% of that load; its count may triple. Rivals run
with the settings that their documentation advises. Attainment is the lowest of the seeds, all else the mean.

    python bench/studies/surges.py --out bench/results/surges.jsonl [--shapes level-3 hill-3] [--from 1 4 30]
                                   [--cold-starts 60 240] [--seeds 1 2 3]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.compile import override
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.replay.case import Case, RunOutcome, Trace
from autoscaler.lab.replay.inputs import transform
from autoscaler.lab.replay.policy_scaler import PolicyBatchScaler
from autoscaler.lab.replay.run import run, run_fleet
from autoscaler.lab.replay.score import meets_objectives
from bench.studies.goals import LEAST_ATTAINMENT, Judgement, Result, mean_of, misses, ratio_to
from bench.studies.judged import CONSTANT, HOUR_S, MOST_REPLICAS, OURS, describe, make_case, policy, simulate_rival
from bench.studies.plain import Traffic
from bench.studies.results import Cases, print_results
from bench.studies.shapes import SHAPES, Shape, draw

PROFILE = "8b-h100-3g"
HPA, KEDA = "hpa-inflight", "keda-queue"
SMALL_STEPS = "ours, no least step in pods"
SURGES = ("level-3", "level-10", "hill-3", "hill-10")
BASE_PER_S = {1: 6.0, 4: 24.0, 30: 240.0}  # by replicas that serve before a surge: requests per second
BURST_PER_S = 12.0  # requests per second of a burst, for each replica that a young service begins with
BEGINS_S, HILL_ENDS_S = HOUR_S, 1.5 * HOUR_S
BEFORE_S, WINDOW_S = 600.0, 1800.0  # the half hour of the surge begins this long before it
SETTLED_S = 1800.0  # the fleet has this time after the queue
LATE_SHARE, CALM_BINS, BIN_S = 0.01, 6, 10.0  # the queue is gone once a minute has fewer late requests
MOST_OVER_LEAST, MOST_BELOW_POINTS, MOST_OF_HPA = 1.2, 0.05, 0.5


def _burst(minutes: float) -> Shape:
    begin_h, end_h = 4 / 60, (4 + minutes) / 60
    words = f"a burst of {minutes:g} min after four minutes"
    return Shape(words, 0.75, BURST_PER_S, lambda hour: np.where((hour >= begin_h) & (hour < end_h), 1.0, 0.15))


BURSTS = {f"burst-{minutes:g}": _burst(minutes) for minutes in (1.5, 10.0, 30.0)}


class Row(NamedTuple):
    """Runs that differ in the seed only."""

    shape: str
    start: int  # replicas
    cold_start_s: float


# One run.


@lru_cache(maxsize=1)
def load(shape: str, start: int, seed: int) -> Trace:
    if shape in BURSTS:
        return draw(BURSTS[shape], shape, seed, busiest_per_s=BURST_PER_S * start)
    lowest = float(SHAPES[shape].share(np.zeros(1))[0])
    return draw(SHAPES[shape], shape, seed, busiest_per_s=BASE_PER_S[start] / lowest)


def case_of(row: Row, seed: int, hours: float) -> Case:
    trace = load(row.shape, row.start, seed)
    if hours * HOUR_S < trace.duration_s:
        trace = transform.clip_all([trace], 0.0, hours * HOUR_S)[0]
    case = make_case(Traffic(row.shape, 0.0, seed, hours), trace, row.cold_start_s, row.start, PROFILE)
    return replace(case, max_replicas=3 * row.start if row.shape in BURSTS else MOST_REPLICAS)


def run_by(name: str, case: Case) -> tuple[Case, RunOutcome]:
    """Run a case under the shipped policy, under that without `stepFloor`, or under a rival."""
    if name not in (OURS, SMALL_STEPS):
        return simulate_rival(case, name)
    chosen = policy() if name == OURS else override(policy(), (("scaleUp.stepFloor", "1"),))
    (outcome,) = run_fleet([case], PolicyBatchScaler([case], [chosen]))
    return case, outcome


def find_queue_end_s(arrival_s: FloatColumn, late: np.ndarray, begins_s: float) -> float:
    """Return when the first queue after `begins_s` is gone: a minute follows in which hardly a request is late.

    Without a queue that is `begins_s`; infinity if the queue stays.
    """
    bins = ((arrival_s - begins_s) // BIN_S).astype(int)
    after = bins >= 0
    counted = np.bincount(bins[after])
    is_late = np.bincount(bins[after], late[after], len(counted)) > LATE_SHARE * counted
    if not is_late.any():
        return begins_s
    begun = int(is_late.argmax())
    for start in range(begun, len(is_late) - CALM_BINS + 1):
        if not is_late[start : start + CALM_BINS].any():
            return begins_s + start * BIN_S
    return math.inf


def describe_surge(case: Case, outcome: RunOutcome) -> Result:
    """Return the figures of a level or a hill: of the whole, of the half hour of the surge, and of what follows."""
    arrival_s, end_s = case.trace.arrival_s, case.trace.duration_s
    ttft_met, itl_met = meets_objectives(case.goal, outcome.ttft_s, outcome.itl_s)
    met, begin_s = ttft_met & itl_met, BEGINS_S - BEFORE_S
    within = (arrival_s >= begin_s) & (arrival_s < begin_s + WINDOW_S)
    late = outcome.ttft_s > policy().spec.queue.max_wait
    gone_s = find_queue_end_s(arrival_s, late, BEGINS_S)
    since_s = max(gone_s, HILL_ENDS_S if case.trace.name.startswith("hill") else BEGINS_S)
    settled_s = min(since_s + SETTLED_S, end_s)
    counts = np.append(case.start_replicas, outcome.change_to)
    shown = {
        **describe(case, outcome, math.inf),
        "surge_attainment": float(met[within].mean()),
        "surge_gpu_hours": outcome.paid_s(begin_s, begin_s + WINDOW_S) * case.gpus_per_replica / HOUR_S,
        "queue_min": (min(gone_s, end_s) - BEGINS_S) / 60,
        "settled": int(counts[np.searchsorted(outcome.change_s, settled_s, side="right")]),
        "mean_after": outcome.paid_s(settled_s) / max(end_s - settled_s, 1.0),
        "attainment_after": float(met[arrival_s >= since_s].mean()) if since_s < end_s else 0.0,
    }
    return {name: round(value, 6) for name, value in shown.items()}


@lru_cache(maxsize=1)
def find_least(shape: str, start: int, seed: int, hours: float) -> int:
    """Return the least constant count that serves the load long after the surge, by its third hour."""
    case = case_of(Row(shape, start, 0.0), seed, hours)
    (part,) = transform.clip_all([case.trace], case.trace.duration_s / 2, case.trace.duration_s * 0.75)
    case = replace(case, trace=part)
    per_s = len(part.arrival_s) / part.duration_s

    def attained(count: int) -> float:
        constant = replace(case, start_replicas=count)
        return float(describe(constant, run(constant, Static(count)), math.inf)["attainment"])

    return Traffic(shape, per_s, seed, 1.0).find_count(case, attained)


def measure(row: Row, seed: int, hours: float) -> Result:
    """Return the figures of one seed by who decides."""
    case = case_of(row, seed, hours)
    if row.shape in BURSTS:
        return {name: describe(*run_by(name, case), math.inf) for name in (OURS, SMALL_STEPS, HPA, KEDA)}
    found: Result = {name: describe_surge(*run_by(name, case)) for name in (OURS, HPA)}
    least = find_least(row.shape, row.start, seed, hours)
    at_s = case.trace.arrival_s - BEGINS_S
    within = (at_s >= -BEFORE_S) & (at_s < WINDOW_S - BEFORE_S)
    waits = (at_s >= 0) & (at_s < row.cold_start_s)
    return {**found, CONSTANT: {"replicas": least, "allowed": round(1 - float(waits.sum() / within.sum()), 6)}}


# Goals and tables.


def lowest(results: Sequence[Result], who: str, what: str = "attainment") -> float:
    return float(min(each[who][what] for each in results))


def judge_surge(results: Sequence[Result]) -> list[Judgement]:
    """Judge a level or a hill."""
    settled = mean_of(results, OURS, "settled") / mean_of(results, CONSTANT, "replicas")
    bound = mean_of(results, CONSTANT, "allowed") - MOST_BELOW_POINTS
    return [
        Judgement.at_most("fleet after", settled, MOST_OVER_LEAST),
        Judgement.at_least("attainment after", lowest(results, OURS, "attainment_after"), LEAST_ATTAINMENT),
        Judgement.at_most("cost against the HPA", ratio_to(results, HPA, "gpu_hours"), 1.0),
        Judgement.at_least("attainment in the surge", lowest(results, OURS, "surge_attainment"), bound),
        Judgement.at_most("cost of the surge", ratio_to(results, HPA, "surge_gpu_hours"), MOST_OF_HPA),
    ]


def judge_burst(results: Sequence[Result]) -> list[Judgement]:
    """Judge a young service: no worse than either rival, in attainment and in cost."""
    judged = []
    for name, short in ((HPA, "HPA"), (KEDA, "KEDA")):
        ours, its = lowest(results, OURS), lowest(results, name)
        judged.append(Judgement.at_least(f"attainment against {short}", ours, its))
        judged.append(Judgement.at_most(f"cost against {short}", ratio_to(results, name, "gpu_hours"), 1.0))
    return judged


Cell = Callable[[Sequence[Result]], str]


def percent(who: str, what: str = "attainment") -> Cell:
    return lambda results: f"{lowest(results, who, what):.2%}"


def mean(who: str, what: str, style: str = ".3g") -> Cell:
    return lambda results: f"{mean_of(results, who, what):{style}}"


def both(who: str) -> Cell:
    return lambda results: f"{lowest(results, who):.2%}, {mean_of(results, who, 'gpu_hours'):.3g}"


def over_least(what: str) -> Cell:
    return lambda results: f"{fmean(each[OURS][what] / each[CONSTANT]['replicas'] for each in results):.2f}"


SURGE_CELLS: dict[str, Cell] = {
    "ours": both(OURS),
    "HPA": both(HPA),
    "half hour of the surge: ours": percent(OURS, "surge_attainment"),
    "what waiting allows": mean(CONSTANT, "allowed", ".2%"),
    "HPA in it": percent(HPA, "surge_attainment"),
    "cost of it, ours / HPA's": lambda results: f"{ratio_to(results, HPA, 'surge_gpu_hours'):.2f}",
    "queue gone after": mean(OURS, "queue_min", ".1f"),
    "least count then": mean(CONSTANT, "replicas"),
    "ours half an hour later": mean(OURS, "settled"),
    "ours / least": over_least("settled"),
    "mean from then on / least": over_least("mean_after"),
    "attainment after the queue": percent(OURS, "attainment_after"),
}
BURST_CELLS: dict[str, Cell] = {name: both(name) for name in (OURS, SMALL_STEPS, HPA, KEDA)}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return a table of surges and one of bursts as Markdown."""
    rows: dict[Row, list[Result]] = {}
    for key, result in results.items():
        shape, start, cold_start_s, *_ = json.loads(key)
        rows.setdefault(Row(shape, start, cold_start_s), []).append(result)
    order = [*SURGES, *BURSTS]
    rows = dict(sorted(rows.items(), key=lambda item: (order.index(item[0].shape), *item[0][1:])))
    surges = {row: found for row, found in rows.items() if row.shape in SURGES}
    bursts = {row: found for row, found in rows.items() if row.shape in BURSTS}
    parts = [
        "\n".join(_lines(found, cells, judge))
        for found, cells, judge in ((surges, SURGE_CELLS, judge_surge), (bursts, BURST_CELLS, judge_burst))
        if found
    ]
    return "\n\n".join(parts) + "\n"


def _lines(
    rows: dict[Row, list[Result]], cells: dict[str, Cell], judge: Callable[[Sequence[Result]], list[Judgement]]
) -> Iterator[str]:
    titles = ["shape", "from", "cold start", "seeds", *cells, "missed goals"]
    yield f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"
    for row, results in rows.items():
        told = [row.shape, str(row.start), f"{row.cold_start_s:g} s", str(len(results))]
        told += [make(results) for make in cells.values()]
        yield f"| {' | '.join(told)} | {misses(judge(results)) or 'none'} |"
    met = sum(not misses(judge(results)) for results in rows.values())
    yield f"\nAll goals are met in {met} of {len(rows)} rows."


def list_cases(given: argparse.Namespace) -> Cases:
    for shape in given.shapes:
        for start in given.start:
            for seed in given.seeds:
                for cold_start_s in given.cold_starts:
                    row = Row(shape, start, cold_start_s)
                    yield [*row, seed, given.hours], partial(measure, row, seed, given.hours)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [*SURGES, *BURSTS]
    parser.add_argument("--shapes", nargs="+", choices=names, default=names, metavar="NAME", help="surges and bursts")
    parser.add_argument(
        "--from", dest="start", type=int, nargs="+", choices=BASE_PER_S, default=[*BASE_PER_S], help="replicas at first"
    )
    parser.add_argument("--cold-starts", type=float, nargs="+", default=[60.0, 240.0], metavar="SECONDS")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="random seeds")
    parser.add_argument("--hours", type=float, default=4.0, help="run only the beginning")
    return print_results(parser, arguments, list_cases, table)


if __name__ == "__main__":
    sys.exit(main())
