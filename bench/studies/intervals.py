"""Record the intervals that the planner measures once, and replay changed planners on them in seconds.

A run of the shipped policy in the simulator tells the demand, the arrivals and the miss curve of every 30 s. A replay
gives these to the present code of the planner. In place of the simulated fleet a fluid queue serves what the planner
recommends: replicas are ready one cold start later, work beyond them queues, and requests that wait for too long miss.
So a day takes some two seconds. Reactive signals have no part in it, and attainment is up to half a point off
(more where one replica meets a surge): compare variants with each other, and simulate the one that is chosen.

    python bench/studies/intervals.py FILE --shapes level-3 season [--sizes 1 4] [--hours 16]
    python bench/studies/intervals.py FILE --traces FOLDER --only m-large azure2024-day
    python bench/studies/intervals.py FILE [--set planner.select.PRIOR_S=0] [--without "a single surge forgotten"]

The first two record to a new file, too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import pickle
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.core.measure import batch_room, miss_curve, offered_load, replica_speed
from autoscaler.core.measure.capacity import compute_carried_load
from autoscaler.core.measure.interval import Interval, IntervalStats
from autoscaler.core.planner import select, update
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from autoscaler.core.table.columns import FloatColumn, replace
from autoscaler.lab.compare.experiment import with_start_replicas
from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.policy_scaler import PolicyBatchScaler
from autoscaler.lab.replay.run import run_fleet
from bench.studies import public, shapes
from bench.studies.ablation import OFF, switched_off
from bench.studies.judged import HOUR_S, describe, make_case, policy
from bench.studies.plain import PER_REPLICA_PER_S, Traffic

PROFILE = "8b-h100-3g"
"""Of a replica. A size is that of the fleet that the first hour of a shape needs."""


class Measured(NamedTuple):
    """What was measured of all runs of a recording in one interval."""

    now_s: float
    stats: IntervalStats
    speed: Any
    fitted: Any
    load: Any
    arrivals: FloatColumn
    misses: Any
    steepness: FloatColumn


class Recording(NamedTuple):
    """Runs of one length, and the intervals of all of them."""

    names: tuple[str, ...]
    gpus: tuple[float, ...]  # of a replica
    simulated: list[dict[str, Any]]
    intervals: list[Measured]


def record(cases: Sequence[Case]) -> Recording:
    """Run the shipped policy on cases of one length, and return what its planner measured."""
    intervals: list[Measured] = []
    seen: dict[str, Any] = {}

    def keep(name: str, plain: Any) -> Any:
        def call(*arguments: Any) -> Any:
            seen[name] = plain(*arguments)
            return seen[name]

        return call

    plain_update = update.update_strategies

    def update_strategies(before: Any, stats: IntervalStats, now_s: float) -> Any:
        after = plain_update(before, stats, now_s)
        is_turn = not intervals or now_s - intervals[-1].now_s > UPDATE_INTERVAL_S / 2  # else: a late queue is judged
        if is_turn and len(stats.replicas) == len(cases):
            intervals.append(Measured(now_s, stats, *seen["speed"], *seen["load"], *seen["misses"]))
        return after

    changes = (
        (replica_speed, "update_replica_speed", keep("speed", replica_speed.update_replica_speed)),
        (offered_load, "update_offered_load", keep("load", offered_load.update_offered_load)),
        (miss_curve, "update_miss_counts", keep("misses", miss_curve.update_miss_counts)),
        (update, "update_strategies", update_strategies),
    )
    with switched_off(changes):
        outcomes = run_fleet(cases, PolicyBatchScaler(cases, [policy()] * len(cases)))
    simulated = [describe(case, outcome, math.inf) for case, outcome in zip(cases, outcomes, strict=True)]
    names, gpus = zip(*((each.trace.name, each.gpus_per_replica) for each in cases), strict=True)
    return Recording(names, gpus, simulated, intervals)


class FluidFleet:
    """The replicas that serve in a replay: those requested for a whole cold start."""

    def __init__(self, start: FloatColumn) -> None:
        self.requested = [start]  # by interval, the present one last
        self.backlog_s = np.zeros(len(start))
        self.arrived, self.missed, self.paid_s = (np.zeros(len(start)) for _ in range(3))

    def serve(self, each: Measured, interval: Interval, interval_s: float) -> IntervalStats:
        """Serve an interval, and return its statistics with the replicas and misses of this fleet."""
        stats, slowest = each.stats, float(np.max(each.stats.cold_start_s))
        past = np.array(self.requested[-max(math.ceil(slowest / UPDATE_INTERVAL_S) + 1, 2) :])
        age_s = UPDATE_INTERVAL_S * np.arange(len(past))[::-1]
        ready = np.where(age_s[:, None] <= stats.cold_start_s, past, np.inf).min(axis=0)
        demand, arrivals = np.nan_to_num(interval.demand), np.where(interval.observed_s > 0, each.arrivals, 0.0)
        capacity = compute_carried_load(ready)
        self.backlog_s = np.maximum(self.backlog_s + (demand - capacity) * interval_s, 0.0)
        is_late = self.backlog_s > stats.max_queue_s * capacity + interval.batch_room_s * ready
        queue = miss_curve.compute_mean_queue(demand / np.maximum(ready, 1.0))
        share = np.where(is_late, 1.0, np.minimum(each.steepness * queue + each.misses.unavoidable, 1.0))
        self.arrived, self.missed = self.arrived + arrivals, self.missed + share * arrivals
        self.paid_s += self.requested[-1] * interval_s
        with np.errstate(divide="ignore", invalid="ignore"):
            waiting = np.where(is_late, self.backlog_s / (each.load.busy_s / each.load.requests), 0.0)
        none = dict.fromkeys(("itl_counted", "itl_missed", "queue_growth"), np.zeros_like(arrivals))
        totals = replace(stats.totals, ttft_counted=arrivals, ttft_missed=share * arrivals, **none)
        return replace(stats, totals=totals, replicas=ready, mean_replicas=ready, waiting=np.nan_to_num(waiting))


def replay(recording: Recording) -> tuple[FluidFleet, FloatColumn]:
    """Let the present planner decide on recorded intervals; also return what it requested, float64[T, W]."""
    first = recording.intervals[0].stats
    fleet, state = FluidFleet(np.maximum(first.replicas, 1.0)), select.StrategyState.blank(len(first.replicas))
    for before, each in zip([None, *recording.intervals], recording.intervals, strict=False):
        interval_s = each.now_s - before.now_s if before else 0.0
        is_known = ~np.isnan(each.load.demand) & (interval_s > 0)
        room_s = batch_room.measure_batch_room_s(each.stats, each.speed, each.fitted, each.load)
        known_s = np.where(is_known, interval_s, 0.0)
        interval = Interval(known_s, each.load.demand, each.arrivals, each.steepness, room_s)
        stats = fleet.serve(each, interval, interval_s)
        measured = (
            (replica_speed, "update_replica_speed", lambda *_, each=each: (each.speed, each.fitted)),
            (offered_load, "update_offered_load", lambda *_, each=each: (each.load, each.arrivals)),
            (miss_curve, "update_miss_counts", lambda *_, each=each: (each.misses, each.steepness)),
        )
        with switched_off(measured):
            state = select.update_strategies(state, stats, each.now_s)
        fleet.requested.append(np.where(np.isnan(state.replicas), fleet.requested[-1], state.replicas))
    return fleet, np.array(fleet.requested)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="recording, which is made if there is none")
    parser.add_argument("--shapes", nargs="+", choices=shapes.SHAPES, default=(), metavar="NAME", help="plain shapes")
    parser.add_argument("--sizes", type=float, nargs="+", default=[math.nan], help="replicas of the base load")
    parser.add_argument("--cold-starts", type=float, nargs="+", default=[60.0, 240.0], metavar="SECONDS")
    parser.add_argument("--hours", type=float, default=math.inf, help="run only the beginning")
    parser.add_argument("--traces", type=Path, help="folder of public traces")
    parser.add_argument("--only", nargs="+", choices=public.WINDOWS, default=(), metavar="NAME", help="public traces")
    parser.add_argument("--set", nargs="+", default=(), metavar="MODULE.NAME=NUMBER", help="constants of a replay")
    parser.add_argument("--without", nargs="+", choices=OFF, default=(), metavar="IDEA", help="what a replay lacks")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args(arguments)
    if not given.file.exists():
        by_length: dict[float, list[Case]] = {}
        for case in cases_of(given):
            by_length.setdefault(case.trace.duration_s, []).append(case)
        given.file.write_bytes(pickle.dumps([record(cases) for cases in by_length.values()]))
    settings = [each for idea in given.without for each in OFF[idea]]
    for path, _, value in (each.partition("=") for each in given.set):
        module, _, name = path.rpartition(".")
        settings.append((importlib.import_module(f"autoscaler.core.{module}"), name, float(value)))
    with switched_off(tuple(settings)):
        recordings = pickle.loads(given.file.read_bytes())  # of this study, on this machine
        rows = [row for recording in recordings for row in describe_replay(recording, *replay(recording))]
    print(json.dumps(rows) if given.json else "\n".join(", ".join(map(str, row.values())) for row in rows))
    return 0


def describe_replay(recording: Recording, fleet: FluidFleet, requested: FloatColumn) -> list[dict[str, Any]]:
    """Return attainment and GPU-hours of each run, those of the simulator, and the count of every half an hour."""
    counts = requested[:: int(HOUR_S / UPDATE_INTERVAL_S / 2)].astype(int).T.tolist()
    figures = {
        "attainment": (1 - fleet.missed / fleet.arrived).round(5).tolist(),
        "gpu_hours": (fleet.paid_s * np.array(recording.gpus) / HOUR_S).round(3).tolist(),
        "simulated_attainment": [each["attainment"] for each in recording.simulated],
        "simulated_gpu_hours": [each["gpu_hours"] for each in recording.simulated],
        "counts": counts,
    }
    rows = zip(recording.names, *figures.values(), strict=True)
    return [dict(zip(("run", *figures), row, strict=True)) for row in rows]


def cases_of(given: argparse.Namespace) -> Iterator[Case]:
    for cold_start_s in given.cold_starts:
        for name in given.shapes:
            shape = shapes.SHAPES[name]
            for size in given.sizes:
                per_s = size * PER_REPLICA_PER_S / float(shape.share(np.zeros(1))[0])
                per_s = shape.busiest_per_s if math.isnan(per_s) else per_s
                traffic = Traffic(name, per_s, 1, min(shape.hours, given.hours))
                trace = shapes.generate(name, 1, traffic.hours, per_s)
                yield with_start_replicas(make_case(traffic, trace, cold_start_s, 1, PROFILE))
        for window in (public.WINDOWS[name] for name in given.only):
            yield with_start_replicas(make_case(window, public.load(given.traces, window), cold_start_s, 1, PROFILE))


if __name__ == "__main__":
    sys.exit(main())
