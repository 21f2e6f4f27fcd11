"""Compare ways to share too few GPUs among three tiers: by policy, or first come, first served.

A realtime, an interactive and a batch service, each under the shipped policy of that name, share GPUs of one kind. A
first run without a limit tells how many GPUs they want. More runs have half of that, on average or at the peak. In one
the daemon does not know the GPUs: replicas wait for them in the order of their creation, and a running replica leaves
only when its own service shrinks. In another it shares them by policy, with the headroom that `realtime` guarantees. In
the last no policy guarantees headroom. All else is the same.

    python bench/studies/tiers.py --traces FOLDER --out bench/results/tiers.jsonl [--seeds 1 2 3] [--hours 4] [--size 3]

Without `--traces`, requests are generated.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from autoscaler.config.policy.compile import override
from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.policy.schema import SHARED
from autoscaler.lab.compare.experiment import goal_from_policy
from autoscaler.lab.replay.case import Case, RunOutcome, Trace
from autoscaler.lab.replay.engine.gpu_pool import GpuPool
from autoscaler.lab.replay.inputs import transform
from autoscaler.lab.replay.policy_scaler import PolicyFleetScaler
from autoscaler.lab.replay.run import run_fleet
from autoscaler.lab.replay.score import Score, compute_score
from autoscaler.lab.report.format import share
from autoscaler.sim.engine.profile_file import find
from autoscaler.sim.engine.traffic import Bursts, Lengths, Shape
from bench.studies.cases import clip_window, load_traces, scale_to_size
from bench.studies.results import Cases, print_results
from tests.lab.replay import synthetic

COUNTED_FROM_S = 3600.0  # every service begins with one replica and has this time to ask for its share
MOST_REQUESTS = 2_000_000
FIRST_COME, ALL_SHARED, BY_POLICY = "first come", "by policy, headroom shared", "by policy"


@dataclass(frozen=True)
class Tier:
    """One service: the name of its policy, its trace, and how long its clients wait for a first token."""

    policy: str
    trace: str
    patience_s: float
    generated: Shape  # stands for the trace where none is given


TIERS = (
    Tier("realtime", "servegen_m-mid_week1", 60.0, Shape(2.0, Lengths(250, 0.6, 1000), Lengths(50, 0.6, 200))),
    Tier(
        "interactive",
        "servegen_m-large_14d",
        60.0,
        Shape(2.0, Lengths(700, 0.6, 3000), Lengths(120, 0.6, 500), bursts=(Bursts(2.0, 300.0, 0.5, 3.0),)),
    ),
    Tier("batch", "azure2024_code_week", math.inf, Shape(2.0, Lengths(1500, 0.6, 6000), Lengths(20, 0.6, 90))),
)


def load(folder: Path | None, hours: float) -> list[Trace]:
    """Return the trace of each tier. Raises ValueError if the folder lacks one."""
    if folder is None:
        return [synthetic.generate(each.policy, each.generated, hours * 3600, seed=11) for each in TIERS]
    found = {models[0].name: models[0] for models in load_traces(folder)}
    if missing := [each.trace for each in TIERS if each.trace not in found]:
        raise ValueError(f"{folder}: no trace {', '.join(missing)}")
    return [found[each.trace] for each in TIERS]


def prepare(traces: Sequence[Trace], given: argparse.Namespace, seed: int) -> list[Case]:
    """Return the case of each tier: a window of its trace, scaled so that the lower bound needs `--size` replicas."""
    policies, cases = load_policies().policies, []
    _, replica_spec = find(given.profile)
    for tier, trace in zip(TIERS, traces, strict=True):
        (window,) = clip_window([trace], given.hours * 3600, seed)
        fitting, _ = transform.truncate(window, replica_spec.profile.max_model_len)
        case = Case(
            replace(fitting, name=tier.policy),
            replica_spec.profile,
            goal_from_policy(policies[tier.policy]),
            given.cold_start,
            gpus_per_replica=replica_spec.gpus,
            seed=seed,
            patience_s=tier.patience_s,
        )
        sized = scale_to_size(case.trace, given.size, case, MOST_REQUESTS)
        counted_from_s = min(COUNTED_FROM_S, sized.trace.duration_s / 4)
        cases.append(replace(sized, start_replicas=1, counted_from_s=counted_from_s))
    return cases


def replay(
    cases: Sequence[Case], gpus: float, known_gpus: float, may_guarantee: bool = True
) -> tuple[list[RunOutcome], list[Score]]:
    """Run all cases on `gpus` GPUs, of which the daemon knows `known_gpus`; NaN: it does not know them.

    may_guarantee: policies guarantee headroom as they say; False: all headroom is shared.
    """
    book = load_policies().policies
    policies = [book[case.trace.name] for case in cases]
    if not may_guarantee:
        policies = [override(policy, (("headroom", SHARED),)) for policy in policies]
    scaler = PolicyFleetScaler(cases, policies, known_gpus)
    outcomes = run_fleet(cases, scaler, GpuPool.for_cases(cases, gpus))
    return outcomes, [compute_score(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]


def count_wanted(cases: Sequence[Case], outcomes: Sequence[RunOutcome]) -> tuple[float, float]:
    """Return the GPUs that all cases want together, on average and at the peak, within the counted time."""
    second_s = np.arange(max(case.counted_from_s for case in cases), min(case.trace.duration_s for case in cases))
    wanted = np.zeros(len(second_s))
    for case, outcome in zip(cases, outcomes, strict=True):
        counts = np.append(case.start_replicas, outcome.change_to)
        wanted += counts[np.searchsorted(outcome.change_s, second_s, side="right")] * case.gpus_per_replica
    return float(wanted.mean()), float(wanted.max())


def measure(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the figures of one seed, by the number of GPUs and the way of sharing."""
    each_gpus = cases[0].gpus_per_replica
    outcomes, scores = replay(cases, math.inf, math.nan)
    runs = [{"gpus": None, "sharing": "no limit", **_row(scores)}]
    of_mean, of_peak = count_wanted(cases, outcomes)
    for half, wanted in (("mean", of_mean), ("peak", of_peak)):
        gpus = max(math.floor(wanted / 2 / each_gpus), len(cases)) * each_gpus
        for sharing, known_gpus in ((FIRST_COME, math.nan), (ALL_SHARED, gpus), (BY_POLICY, gpus)):
            _, scores = replay(cases, gpus, known_gpus, may_guarantee=sharing != ALL_SHARED)
            runs.append({"gpus": gpus, "half_of": half, "sharing": sharing, **_row(scores)})
    return {
        "wanted_mean": round(of_mean, 2),
        "wanted_peak": of_peak,
        "requests": {case.trace.name: len(case.trace.arrival_s) for case in cases},
        "hours": round(cases[0].trace.duration_s / 3600, 2),
        "runs": runs,
    }


def _row(scores: Sequence[Score]) -> dict[str, Any]:
    return {
        "attainment": {tier.policy: round(score.attainment, 5) for tier, score in zip(TIERS, scores, strict=True)},
        "gpu_hours": {tier.policy: round(score.gpu_hours, 3) for tier, score in zip(TIERS, scores, strict=True)},
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return table and summary as Markdown: the attainment of each tier by seed, for each way of sharing."""
    tiers = [each.policy for each in TIERS]
    lines = [f"| GPUs | sharing | {' | '.join(tiers)} | GPU-hours |", "|---" * (len(tiers) + 3) + "|"]
    found = list(results.values())
    for number, first in enumerate(found[0]["runs"]):
        runs = [each["runs"][number] for each in found]
        gpus = "no limit"
        if first["gpus"] is not None:
            gpus = f"half of the {first['half_of']}: " + ", ".join(f"{each['gpus']:g}" for each in runs)
        attained = [", ".join(share(each["attainment"][tier]) for each in runs) for tier in tiers]
        hours = ", ".join(f"{sum(each['gpu_hours'].values()):.0f}" for each in runs)
        sharing = "" if first["gpus"] is None else first["sharing"]
        lines.append(f"| {gpus} | {sharing} | {' | '.join(attained)} | {hours} |")
    return "\n".join([*lines, "", *summarize(found), ""])


def summarize(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the mean attainment of each tier over all runs with too few GPUs, by way of sharing."""
    for sharing in (FIRST_COME, ALL_SHARED, BY_POLICY):
        runs = [run["attainment"] for each in results for run in each["runs"] if run["sharing"] == sharing]
        if not runs:  # kept results of an earlier version
            continue
        means = (f"{tier.policy} {np.mean([run[tier.policy] for run in runs]):.1%}" for tier in TIERS)
        yield f"* Mean of all runs, {sharing}: {', '.join(means)}."


def list_cases(given: argparse.Namespace) -> Cases:
    traces, source = load(given.traces, given.hours), "traces" if given.traces else "generated"
    for seed in given.seeds:
        parts = [source, given.profile, given.size, given.cold_start, given.hours, seed]
        yield parts, partial(measure_seed, traces, given, seed)


def measure_seed(traces: list[Trace], given: argparse.Namespace, seed: int) -> dict[str, Any]:
    return measure(prepare(traces, given, seed))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, help="folder of traces; default: generated ones")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3), help="each draws another window")
    parser.add_argument("--hours", type=float, default=4.0, help="length of a window")
    parser.add_argument("--size", type=float, default=3.0, help="mean replicas of the lower bound of each tier")
    parser.add_argument("--profile", default="14b-h100", help="profile of a replica")
    parser.add_argument("--cold-start", type=float, default=60.0, metavar="SECONDS", help="mean cold start")
    return print_results(parser, arguments, list_cases, table)


if __name__ == "__main__":
    sys.exit(main())
