"""Measure the worth of each idea of the planner: the shipped policy with one idea after the other switched off.

An idea that does not pay is to be deleted, so this runs before and after each change of one. The table has a column
for each case, with attainment and GPU-hours. The last columns sum up each idea: the cases that met the goal, the points
by which others missed it, and GPU-hours over those of the whole policy. `--window` takes a different part of each
trace for each seed.

    python bench/studies/ablation.py --traces FOLDER [--size 3] [--cold-start 60] [--max-requests 300000] [--profile P]
    python bench/studies/ablation.py --shapes office season bursts flat --cold-start 240
    python bench/studies/ablation.py --traces FOLDER --window 6 --seeds 1 2 3 4
    python bench/studies/ablation.py --traces FOLDER --start 54 --end 66 --scale 30
    python bench/studies/ablation.py --traces FOLDER --without "initial fleet kept" "margins by a share"

Without `--traces` and `--shapes`, two small traces are generated.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.core import choose
from autoscaler.core.measure import batch_room, capacity, miss_curve, offered_load, step_time
from autoscaler.core.measure.interval import IntervalStats, WorkTotals
from autoscaler.core.planner import error_budget, load_history, scale_to_zero, select, shadow_fleets, strategies
from autoscaler.lab.compare.experiment import goal_from_policy, with_start_replicas
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.inputs import transform
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.replay.run import run
from autoscaler.lab.replay.score import compute_score
from autoscaler.sim.engine.profile_file import find
from bench.studies import shapes
from bench.studies.cases import clip_window, generate_traces, load_traces, scale_to_size


def without_room(plain: Callable[..., Any]) -> Callable[..., Any]:
    def compute_busy_share(totals: WorkTotals, idle_gap_s: Any, slots: Any) -> Any:
        return plain(
            replace(totals, token_rate_kv=np.zeros_like(totals.token_rate)), idle_gap_s, np.full_like(slots, np.nan)
        )

    return compute_busy_share


def shortest_gap(plain: Callable[..., Any]) -> Callable[..., Any]:
    def fit_step_time(sums: Any, readings: Any, shortest_gap_s: Any) -> Any:
        return plain(sums, readings, shortest_gap_s)._replace(idle_gap_s=shortest_gap_s)

    return fit_step_time


def fixed_steepness(missed: Any, *_: Any) -> Any:
    return np.full(missed.shape[-1], miss_curve.PRIOR_STEEPNESS)


def no_initial_fleet(plain: Callable[..., Any]) -> Callable[..., Any]:
    def _size_fleets(state: select.StrategyState, *others: Any) -> Any:
        return plain(replace(state, warm_up_s=np.zeros_like(state.warm_up_s)), *others)

    return _size_fleets


def without_prompts(plain: Callable[..., Any]) -> Callable[..., Any]:
    def update_miss_counts(counts: Any, stats: IntervalStats, *others: Any) -> Any:
        totals = replace(stats.totals, prefill_counted=np.zeros_like(stats.replicas))
        return plain(counts, replace(stats, totals=totals), *others)

    return update_miss_counts


def only(allowed: Iterable[int]) -> tuple[tuple[Any, str, Any], ...]:
    """Allow only these strategies."""
    plain, forbidden = select.select_strategy, np.ones((len(strategies.STRATEGIES), 1), bool)
    forbidden[list(allowed)] = False

    def select_strategy(state: select.StrategyState, stats: IntervalStats) -> select.StrategyState:
        cost = np.where(forbidden, np.float32(np.inf), state.shadow.cost)
        return replace(plain(state.with_columns({"shadow.cost": cost}), stats), shadow=state.shadow)

    return ((select, "select_strategy", select_strategy),)


ALL = strategies.STRATEGIES

OFF: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "nothing": (),
    "the whole planner": ((step_time, "MIN_READINGS", math.inf), (choose, "PLANNER_DUE_S", 0.0)),
    "fitted step time: the shortest gap instead": (
        (step_time, "fit_step_time", shortest_gap(step_time.fit_step_time)),
    ),
    "prior for the cost of tokens": ((step_time, "PRIOR_DEVIATION", 1000.0), (step_time, "MIN_READINGS", 16.0)),
    "KV cache and slots in the busy share": (
        (offered_load, "compute_busy_share", without_room(offered_load.compute_busy_share)),
    ),
    "learned miss curve: its prior instead": ((miss_curve, "fit_steepness", fixed_steepness),),
    "unavoidable misses": ((miss_curve, "estimate_unavoidable", lambda missed, *_: np.zeros_like(missed[:, 0])),),
    "unavoidable misses from prefill times": (
        (miss_curve, "update_miss_counts", without_prompts(miss_curve.update_miss_counts)),
    ),
    "steering by the error budget": (
        (error_budget, "MIN_ALLOWED", error_budget.FIRST_AIM),
        (error_budget, "MAX_ALLOWED", error_budget.FIRST_AIM),
        (error_budget, "LATER_AIM", error_budget.FIRST_AIM),
    ),
    "aiming at more of the budget with time": ((error_budget, "LATER_AIM", error_budget.FIRST_AIM),),
    "pessimistic prior": ((select, "PRIOR_S", 0.0),),
    "prior used up by surges": ((select, "compute_unseen_share", lambda surges, *_: np.ones_like(surges.count)),),
    "a single surge forgotten": ((select, "forget_queues", lambda shadow, _: shadow),),
    "margin on the 20 s average in a late queue": (
        (strategies, "compute_replicas_of", lambda strategy, count, load: np.zeros_like(load)),
    ),
    "more load on many replicas": ((capacity, "SPARE_ROOTS", 10.0),),
    "constant counts about the mean load": ((shadow_fleets, "follow_mean_load", lambda fleets, _: fleets),),
    "no headroom while traffic is steady": ((load_history, "STEADY_DEVIATION", 0.0),),
    "initial fleet kept": ((select, "_size_fleets", no_initial_fleet(select._size_fleets)),),
    "scale to zero within the error budget": ((scale_to_zero, "MIN_OBSERVED_S", math.inf),),
    "peak holds of more than three cold starts": only(row for row, its in enumerate(ALL) if its.hold == 3),
    "margins by the square root": only(row for row, its in enumerate(ALL) if not its.margin_roots),
    "margins by a share": only(row for row, its in enumerate(ALL) if not its.margin_share),
    "constant counts": only(row for row, its in enumerate(ALL) if not its.min_replicas),
    "load of a day and a week ago": only(row for row, its in enumerate(ALL) if its.prediction != strategies.SEASONAL),
    "batch room": ((batch_room, "compute_batch_room_s", lambda totals, *_: np.zeros_like(totals.running)),),
    "selection: always 240 s, ten cold starts, 110% on top": only(
        row for row, its in enumerate(ALL) if (its.average_s, its.hold, its.margin_share) == (240, 10, 1.1)
    ),
}
"""By idea: the module, the name, and the value that switches it off."""


@contextlib.contextmanager
def switched_off(settings: tuple[tuple[Any, str, Any], ...]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in settings]
    for module, name, value in settings:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def cases(folder: Path | None, given: argparse.Namespace) -> Iterator[Case]:
    _, replica_spec = find(given.profile)
    goal = goal_from_policy(load_policies().policies["interactive"])

    def make_case(trace: Trace, seed: int) -> Case:
        return Case(trace, replica_spec.profile, goal, given.cold_start, gpus_per_replica=replica_spec.gpus, seed=seed)

    for name, seed in itertools.product(given.shapes, given.seeds):
        yield with_start_replicas(make_case(shapes.generate(name, seed, given.end), seed))
    if folder is None and given.shapes:
        return
    for models in load_traces(folder) if folder else generate_traces():
        start_s, end_s = given.start * 3600, min(given.end * 3600, models[0].duration_s)
        within = transform.clip_all(models, start_s, end_s) if start_s < end_s else []
        if len(within) != 1:
            continue
        for seed in given.seeds:
            (model,) = clip_window(within, given.window * 3600, seed)
            fitting, _ = transform.truncate(model, replica_spec.profile.max_model_len)
            case = make_case(fitting, seed)
            if given.scale is None:
                yield scale_to_size(fitting, given.size, case, given.max_requests)
            else:
                yield with_start_replicas(replace(case, trace=transform.scale(fitting, given.scale, seed)))


def table(results: Sequence[dict[str, Any]], attainment: float) -> str:
    """Return a Markdown table with a row for each idea: its cases, and its sum over them."""
    of = {(row["without"], row["trace"], row["seed"]): row for row in results}
    columns = {(row["trace"], row["seed"]): row["hours"] for row in results}
    seeds = {seed for _, seed in columns}
    titles = ["without"]
    titles += [f"{name}, {hours:.3g} h{f', seed {seed}' * (len(seeds) > 1)}" for (name, seed), hours in columns.items()]
    titles += ["met", "points missed", "GPU-hours"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for idea in dict.fromkeys(row["without"] for row in results):
        rows, whole = ([of[name, *column] for column in columns] for name in (idea, "nothing"))
        shown = [f"{row['attainment']:.2%}, {row['gpu_hours']:.4g}" for row in rows]
        is_same = [
            idea != "nothing" and row == {**plain, "without": idea} for row, plain in zip(rows, whole, strict=True)
        ]
        cells = ["the same" if same else cell for cell, same in zip(shown, is_same, strict=True)]
        met = sum(row["attainment"] >= attainment for row in rows)
        points = 100 * sum(max(attainment - row["attainment"], 0.0) for row in rows)
        ratio = statistics.geometric_mean(
            row["gpu_hours"] / plain["gpu_hours"] for row, plain in zip(rows, whole, strict=True)
        )
        lines.append(f"| {' | '.join([idea, *cells, f'{met} of {len(rows)}', f'{points:.2f}', f'{ratio:.3f}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder of traces")
    parser.add_argument("--shapes", nargs="+", choices=shapes.SHAPES, default=(), metavar="NAME", help="plain shapes")
    parser.add_argument("--start", type=float, default=0.0, metavar="HOURS", help="begin each trace there")
    parser.add_argument("--end", type=float, default=math.inf, metavar="HOURS", help="end each trace there")
    parser.add_argument("--size", type=float, default=3.0, help="mean replicas of the lower bound")
    parser.add_argument("--scale", type=float, help="copies of each trace, all of it, instead of a size")
    parser.add_argument(
        "--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean cold start of a replica"
    )
    parser.add_argument("--max-requests", type=int, default=300_000, help="most requests of a case")
    parser.add_argument(
        "--window",
        type=float,
        default=math.inf,
        metavar="HOURS",
        help="run this many from a moment that the seed draws",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=(1,), help="random seeds")
    parser.add_argument("--profile", default="8b-h100-3g", help="profile of a replica")
    parser.add_argument(
        "--without",
        nargs="+",
        choices=OFF,
        default=tuple(OFF),
        metavar="IDEA",
        help="what to switch off; default: all",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args()
    policy = load_policies().policies["interactive"]
    results = []
    for case in cases(given.traces, given):
        for idea in dict.fromkeys(("nothing", *given.without)):
            with switched_off(OFF[idea]):
                row = compute_score(case, run(case, PolicyScaler(case, policy)))
            results.append(
                {
                    "trace": case.trace.name,
                    "hours": round(case.trace.duration_s / 3600, 2),
                    "seed": case.seed,
                    "without": idea,
                    "attainment": round(row.attainment, 5),
                    "gpu_hours": round(row.gpu_hours, 3),
                }
            )
            print(*results[-1].values(), sep=", ", file=sys.stderr, flush=True)
    print(json.dumps(results) if given.json else table(results, goal_from_policy(policy).attainment))


if __name__ == "__main__":
    main()
