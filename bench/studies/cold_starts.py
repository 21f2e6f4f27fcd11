"""Compare where the weights are, with and without the chain of pre-warming: on all nodes, on half of them, or on none.

A start on a node that holds the weights takes a minute. On a node that was created for it and fetches them it takes
five, and on one that is up and fetches them something between. A node that is empty for ten minutes is removed. The
daemon knows which nodes hold the weights, and decides with the start that the next replica has there.

With the chain off, the daemon knows no hours. With windows alone, the policy has a window for each hour and `lead:
auto`: the replicas of a window are requested one start ahead, and their pods make the nodes come. With the chain on,
nodes are requested before, and fetch the weights by the daemon's plan. Nodes that hold none keep them from then on.

* **busy**: one service on 70B replicas of four GPUs each, under the shipped `interactive` policy. The windows follow
  the load of the same hours one day before, and have as many replicas on average as the run without them. A run begins
  at the quietest hour of a day, so that it has the rise of the morning. Figures count from its second hour on.
* **zero**: a service that goes to zero, on the same replicas, under the shipped `development` policy: requests come
  from 8 to 20 h, some minutes apart. A window is open in each hour in which requests came the day before. Figures count
  from 6 h of the second day on. A first request is the first one after a time at zero replicas.
* **mornings**: a service on small replicas that is busy from 9 to 11 h of two days, under the shipped `interactive`
  policy without windows. On the third day nobody comes. Nodes hold no weights, so that each morning begins with new
  ones, and fetch them by the daemon's plan. Nodes are requested ahead or not, so that both runs are the same until the
  second morning.

    python bench/studies/cold_starts.py --traces FOLDER --out bench/results/cold_starts.jsonl [--seeds 1 2] [--hours 8]

Without `--traces`, three days are generated for the busy service.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.policy.schema import Policy, Prewarm
from autoscaler.core.table.columns import FloatColumn
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import TRACE_START_S, Case, RunOutcome, Trace
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.inputs import trace_file, transform
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.request_cost import request_work_s
from autoscaler.lab.replay.run import run_fleet
from autoscaler.lab.replay.score import compute_score
from autoscaler.lab.report.format import seconds, share
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Lengths, Shape
from bench.studies.cases import scale_to_size
from bench.studies.results import Cases, print_results
from bench.studies.shapes import generate
from tests.lab.replay import synthetic

TRACES = ("azure2024_code_week", "servegen_m-large_14d")
PROFILE = "70b-4xh100"
WEIGHTS = {"everywhere": 1.0, "half of the nodes": 0.5, "nowhere": 0.0}
CHAINS = ("off", "windows alone", "on")
NODE_IDLE_S = 600.0  # the default of cluster-autoscaler
RATES_PER_S = (0.02, 0.002)  # of the service that goes to zero: 50 and 500 s between two requests
ZERO_SCRAPE_S = 30.0  # of that service: most of its run is waiting
QUIET_S = 6 * 3600.0  # time of day at which the runs of that service begin
COUNTED_FROM_S = 3600.0
MORNINGS = ("first", "second", "holiday")
OPENS_H, CLOSES_H = 9, 11  # of the service with mornings
MORNING_SEQUENCES = 4  # that one of its replicas serves at once
MORNING_RATE_PER_S = 4.0
MORNING_SCRAPE_S = 60.0
NIGHT_SHARE = 0.02
OFFICE_CLOSES_H = 17  # of the shape `office`
FIRST_S = 1800.0
SERVICES = ("busy", "zero", "mornings")
MOST_REQUESTS = 1_000_000
DAY_S, HOUR_S, DAY_HOURS = 86_400.0, 3600.0, 24


def load(folder: Path | None) -> list[Trace]:
    """Return the traces of the folder that the study is about. Raises ValueError if there is none."""
    if folder is None:
        day = (1.0,) * 7 + (4.0, 6.0, 8.0, 8.0, 6.0, 6.0, 8.0, 8.0, 6.0, 4.0) + (2.0,) * 7
        shape = Shape(1.0, Lengths(600, 0.8, 4000), Lengths(120, 0.8, 1000), day=day)
        return [synthetic.generate("days", shape, 3 * DAY_S, seed=11)]
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
        if not replicas:
            continue
        begin, end = (datetime.fromtimestamp(TRACE_START_S + each * HOUR_S, UTC) for each in (hour, hour + 1))
        stated = {"from": f"{begin.minute} {begin.hour} * * *", "until": f"{end.minute} {end.hour} * * *"}
        count = max(math.ceil(replicas), 1)
        windows.append(Prewarm.model_validate(stated | {"replicas": count, "lead": "auto"}))
    return policy.model_copy(update={"spec": policy.spec.model_copy(update={"prewarm": tuple(windows)})})


def replay(case: Case, policy: Policy) -> dict[str, Any]:
    """Return the figures of a run. node_gpu_hours: of nodes, empty or not."""
    scaler, pool = PolicyFleetScaler([case], [policy]), GpuPool.for_cases([case])
    (outcome,) = run_fleet([case], scaler, pool)
    score = compute_score(case, outcome)
    waits_s = first_waits_s(case, outcome)
    late = waits_s > case.goal.ttft_s
    return {
        "attainment": round(score.attainment, 5),
        "gpu_hours": round(score.gpu_hours, 2),
        "node_gpu_hours": round(pool.node_gpu_s(case.counted_from_s, case.trace.duration_s) / HOUR_S, 2),
        "scale_ups": score.scale_ups,
        "first_waits_s": np.round(waits_s, 1).tolist(),
        "first_late": int(late.sum()),
    }


def first_waits_s(case: Case, outcome: RunOutcome) -> FloatColumn:
    """Return how long the first request after each time at zero replicas waited for its first token, in seconds."""
    arrival_s = case.trace.arrival_s
    at_zero_s = outcome.change_s[outcome.change_to == 0]
    if case.start_replicas == 0:
        at_zero_s = np.append(0.0, at_zero_s)
    first = np.unique(np.searchsorted(arrival_s, at_zero_s))
    first = first[first < len(arrival_s)]
    waits_s: FloatColumn = outcome.ttft_s[first[arrival_s[first] >= case.counted_from_s]]
    return waits_s


def with_chain(case: Case, held: float, chain: str) -> Case:
    on = chain == "on"
    return replace(case, weights_on=held, node_idle_s=NODE_IDLE_S, requests_nodes=on, fetches_weights=on)


def name(where: str, chain: str) -> str:
    return f"{where}, windows alone" if chain == "windows alone" else f"{where}, chain {chain}"


def measure_zero(given: argparse.Namespace, rate_per_s: float, seed: int) -> dict[str, Any]:
    """Return the figures of a service that goes to zero."""
    _, replica_spec = find(PROFILE)
    policy = load_policies().policies["development"]
    learned_s = given.learned_hours * HOUR_S
    end_s = QUIET_S + learned_s + given.zero_hours * HOUR_S
    trace = transform.clip(generate("sparse", seed, busiest_per_s=rate_per_s), QUIET_S, end_s)
    case = Case(
        trace,
        replica_spec.profile,
        goal_from_policy(policy),
        given.cold_start,
        cold_start_uncached_s=given.uncached,
        gpus_per_replica=replica_spec.gpus,
        start_replicas=0,
        scrape_s=ZERO_SCRAPE_S,
        seed=seed,
        counted_from_s=learned_s,
    )
    day = np.bincount((trace.arrival_s[trace.arrival_s < DAY_S] // HOUR_S).astype(np.int64), minlength=DAY_HOURS)
    known = with_windows(policy, np.minimum(day, 1).tolist(), float(np.minimum(day, 1).mean()))
    return {
        "rate_per_s": rate_per_s,
        "seed": seed,
        "duration_s": trace.duration_s - learned_s,
        "requests": int((trace.arrival_s >= learned_s).sum()),
        "runs": {
            name(where, chain): replay(with_chain(case, held, chain), policy if chain == "off" else known)
            for where, held in WEIGHTS.items()
            for chain in CHAINS
        },
    }


def measure_mornings(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Return the figures of each morning, with and without the links of the forecast."""
    _, replica_spec = find(PROFILE)
    policy = load_policies().policies["interactive"]
    office = generate("office", seed, busiest_per_s=MORNING_RATE_PER_S)
    hour = office.arrival_s / HOUR_S
    comes = (hour % DAY_HOURS >= OPENS_H) & (hour % DAY_HOURS < CLOSES_H) & (hour < 2 * DAY_HOURS)
    by_night = (hour % DAY_HOURS < OPENS_H) | (hour % DAY_HOURS >= OFFICE_CLOSES_H)
    few = np.random.default_rng((seed, 3)).random(len(hour)) < NIGHT_SHARE
    begin_s = (OPENS_H - 1) * HOUR_S
    case = Case(
        transform.clip(office.select(comes | by_night | few), begin_s, begin_s + given.morning_hours * HOUR_S),
        replace(replica_spec.profile, max_num_seqs=MORNING_SEQUENCES),
        goal_from_policy(policy),
        given.cold_start,
        cold_start_uncached_s=given.uncached,
        gpus_per_replica=replica_spec.gpus,
        scrape_s=MORNING_SCRAPE_S,
        seed=seed,
    )
    return {"seed": seed, "mornings": {chain: replay_mornings(case, policy, chain) for chain in ("off", "on")}}


def replay_mornings(case: Case, policy: Policy, chain: str) -> dict[str, dict[str, float]]:
    """Return the figures of each morning: from an hour before it opens until an hour after it closes."""
    case = replace(with_chain(case, 0.0, "on"), requests_nodes=chain == "on")
    scaler, pool = PolicyFleetScaler([case], [policy]), GpuPool.for_cases([case])
    (outcome,) = run_fleet([case], scaler, pool)
    arrival_s, figures = case.trace.arrival_s, {}
    for day, morning in enumerate(MORNINGS):
        from_s = day * DAY_S
        opens_s, end_s = from_s + HOUR_S, from_s + (CLOSES_H - OPENS_H + 2) * HOUR_S
        counted = (arrival_s >= opens_s) & (arrival_s < opens_s + FIRST_S)
        late = ~(outcome.ttft_s[counted] <= case.goal.ttft_s)
        figures[morning] = {
            "first_requests": int(counted.sum()),
            "first_late": int(late.sum()),
            "node_gpu_hours": round(pool.node_gpu_s(from_s, end_s) / HOUR_S, 2),
        }
    return figures


def measure(trace: Trace, given: argparse.Namespace, seed: int) -> dict[str, Any]:
    case, before = prepare(trace, given, seed)
    plain, runs = load_policies().policies["interactive"], {}
    for where, held in WEIGHTS.items():
        runs[name(where, "off")] = off = replay(with_chain(case, held, "off"), plain)
        counted_h = (case.trace.duration_s - case.counted_from_s) / HOUR_S
        mean_replicas = off["gpu_hours"] / counted_h / case.gpus_per_replica
        known = with_windows(plain, before, mean_replicas)
        for chain in CHAINS[1:]:
            runs[name(where, chain)] = replay(with_chain(case, held, chain), known)
    return {
        "trace": trace.name,
        "seed": seed,
        "duration_s": case.trace.duration_s,
        "requests": len(case.trace.arrival_s),
        "runs": runs,
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the tables as Markdown."""
    marks = ((busy_table, "trace"), (zero_table, "rate_per_s"), (mornings_table, "mornings"))
    parts = [make([each for each in results.values() if mark in each]) for make, mark in marks]
    return "\n".join(part for part in parts if part)


def busy_table(results: Sequence[dict[str, Any]]) -> str:
    """Return attainment and GPU-hours of each run that all results have, and those of all runs together."""
    if not results:
        return ""
    titles = ["weights", *(f"{each['trace']}, seed {each['seed']}" for each in results), "all"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    total = sum(each["requests"] for each in results)
    for way in (name(where, chain) for where in WEIGHTS for chain in CHAINS):
        if not all(way in each["runs"] for each in results):
            continue
        runs = [each["runs"][way] for each in results]
        met = sum(run["attainment"] * each["requests"] for run, each in zip(runs, results, strict=True)) / total
        cells = [f"{share(run['attainment'])}, {run['gpu_hours']:.0f}" for run in runs]
        cells.append(f"{share(met)}, {sum(run['gpu_hours'] for run in runs):.0f}")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Runs of {lengths(results)}.", ""])


def zero_table(results: Sequence[dict[str, Any]]) -> str:
    """Return how long first requests waited, attainment and GPU-hours of the services that go to zero."""
    if not results:
        return ""
    lines: list[str] = []
    for rate in sorted({each["rate_per_s"] for each in results}, reverse=True):
        own = [each for each in results if each["rate_per_s"] == rate]
        total = sum(each["requests"] for each in own)
        lines += [
            f"A request every {seconds(1 / rate)}, {len(own)} × {lengths(own)}, {total} requests:",
            "",
            "| weights | first requests | of them late | median wait | p95 | requests in time | GPU-hours / of nodes |",
            "|---|---|---|---|---|---|---|",
        ]
        for way in (name(where, chain) for where in WEIGHTS for chain in CHAINS):
            runs = [each["runs"][way] for each in own]
            waits_s = [wait for run in runs for wait in run["first_waits_s"]]
            late = share(sum(run["first_late"] for run in runs) / len(waits_s)) if waits_s else "—"
            waits = [seconds(float(np.quantile(waits_s, q))) if waits_s else "—" for q in (0.5, 0.95)]
            met = sum(run["attainment"] * each["requests"] for run, each in zip(runs, own, strict=True)) / max(total, 1)
            hours, nodes = (sum(run[column] for run in runs) for column in ("gpu_hours", "node_gpu_hours"))
            cells = [way, str(len(waits_s)), late, *waits, share(met), f"{hours:.0f} / {nodes:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def mornings_table(results: Sequence[dict[str, Any]]) -> str:
    """Return the first requests of each morning that were late, and the GPU-hours of nodes."""
    if not results:
        return ""
    lines = [
        "| morning | requests of the first half hour | late without links | with | GPU-hours of nodes without | with |",
        "|---" * 6 + "|",
    ]
    for morning in MORNINGS:
        off, on = ([each["mornings"][chain][morning] for each in results] for chain in ("off", "on"))
        cells = [morning, str(sum(run["first_requests"] for run in off))]
        cells += [str(sum(run["first_late"] for run in runs)) for runs in (off, on)]
        cells += [f"{sum(run['node_gpu_hours'] for run in runs):.0f}" for runs in (off, on)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{len(results)} seeds.", ""])


def lengths(results: Sequence[dict[str, Any]]) -> str:
    return ", ".join(sorted({seconds(each["duration_s"]) for each in results}))


def list_cases(given: argparse.Namespace) -> Cases:
    starts = [PROFILE, given.cold_start, given.uncached]
    if "zero" in given.services:
        for rate, seed in itertools.product(given.rates, given.seeds):
            hours = [given.learned_hours, given.zero_hours]
            yield ["sparse", *starts, *hours, rate, seed], partial(measure_zero, given, rate, seed)
    if "mornings" in given.services:
        for seed in given.seeds:
            yield ["mornings", *starts, given.morning_hours, seed], partial(measure_mornings, given, seed)
    if "busy" in given.services:
        for trace, seed in itertools.product(load(given.traces), given.seeds):
            yield [trace.name, *starts, given.size, given.hours, seed], partial(measure, trace, given, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--services", nargs="+", choices=SERVICES, default=SERVICES)
    parser.add_argument("--traces", type=Path, help="folder of traces; default: three generated days")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2), help="each draws another window")
    parser.add_argument("--hours", type=float, default=8.0, help="length of a window")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES_PER_S, help="requests a second of zero")
    parser.add_argument("--learned-hours", type=float, default=24.0, help="before figures count, of zero")
    parser.add_argument("--zero-hours", type=float, default=15.0, help="after them")
    parser.add_argument("--morning-hours", type=float, default=54.0, help="length of a run with mornings, from 8 h on")
    parser.add_argument("--size", type=float, default=3.0, help="mean replicas of the lower bound")
    parser.add_argument("--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean start with the weights")
    parser.add_argument("--uncached", type=float, default=300.0, metavar="SECONDS", help="on a new node without them")
    return print_results(parser, arguments, list_cases, table)


if __name__ == "__main__":
    sys.exit(main())
