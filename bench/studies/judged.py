"""What studies of the shipped policy share: runs that are kept, and the runs beside them. `goals.py` judges them.

A study names its traffic. For each the shipped policy runs, the least constant count that meets the goal, which serves
from the start and was found in hindsight, rivals at the settings that their documentation advises, and the offline
plan. Every policy begins with the fewest replicas that serve the first ten minutes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from autoscaler.config.policy.parse import load as load_policies
from autoscaler.config.policy.schema import Policy
from autoscaler.core.table.columns import BoolColumn
from autoscaler.lab.baselines import BASELINES
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.offline_plan import OfflinePlanScaler, search_offline_plan
from autoscaler.lab.compare.experiment import goal_from_policy, with_start_replicas
from autoscaler.lab.replay.case import Case, RunOutcome, Trace
from autoscaler.lab.replay.inputs.transform import truncate
from autoscaler.lab.replay.parallel.search import run_searches
from autoscaler.lab.replay.policy_scaler import PolicyBatchScaler
from autoscaler.lab.replay.run import run, run_fleet
from autoscaler.lab.replay.score import compute_score, meets_objectives
from autoscaler.sim.engine.profile_file import find
from bench.studies.results import append_result, read_results

ROOT = Path(__file__).parents[2]
HOUR_S = 3600.0
RIVALS = ("keda-queue", "hpa-inflight", "llmd-slo", "knative-kpa")
OURS, CONSTANT, PLAN = "ours", "constant", "plan"
BATCH_REQUESTS = 12e6  # most requests of the runs that share ticks, which bounds the memory
MOST_REPLICAS = 4000


class Traffic(Protocol):
    """One trace of a study. Its fields are the key of its results."""

    def __iter__(self) -> Iterator[Any]: ...

    @property
    def hours(self) -> float: ...

    @property
    def seed(self) -> int: ...

    @property
    def later_s(self) -> float:
        """When the part begins that counts on its own; infinity: none does."""
        ...

    def find_count(self, case: Case, attained: Callable[[int], float]) -> int:
        """Return the least constant count that meets the goal, or comes as close as any."""
        ...


class Run(NamedTuple):
    """One trace with one cold start."""

    traffic: Any
    cold_start_s: float


# One run.


@cache
def policy() -> Policy:
    return load_policies().policies["interactive"]


def make_case(traffic: Traffic, trace: Trace, cold_start_s: float, start_replicas: int, profile: str) -> Case:
    _, replica_spec = find(profile)
    trace, _ = truncate(trace, replica_spec.profile.max_model_len)
    name = "-".join(str(each) for each in (*traffic, cold_start_s))
    return Case(
        replace(trace, name=name),
        replica_spec.profile,
        goal_from_policy(policy()),
        cold_start_s,
        gpus_per_replica=replica_spec.gpus,
        max_replicas=MOST_REPLICAS,
        start_replicas=start_replicas,
        seed=traffic.seed,
    )


def describe(case: Case, outcome: RunOutcome, later_s: float) -> dict[str, Any]:
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


def _share(met: BoolColumn) -> float:
    return round(float(met.mean()), 6) if len(met) else 1.0


def find_constant(traffic: Traffic, trace: Trace, profile: str) -> dict[str, Any]:
    """Return the least constant count that meets the goal, its figures, and the replicas that policies start with."""
    case = make_case(traffic, trace, 0.0, 1, profile)
    tried: dict[int, dict[str, Any]] = {}

    def attained(count: int) -> float:
        if count not in tried:
            constant = replace(case, start_replicas=count)
            tried[count] = describe(constant, run(constant, Static(count)), traffic.later_s)
        return float(tried[count]["attainment"])

    count = traffic.find_count(case, attained)
    return {"replicas": count, "start_replicas": with_start_replicas(case).start_replicas, **tried[count]}


def simulate_rival(case: Case, name: str) -> tuple[Case, RunOutcome]:
    """Run a baseline at its documented settings. Returns the case with the replicas that it begins with, too."""
    rival = BASELINES[name]
    assert rival.default is not None
    params = rival.default(case)
    starting = rival.starting_case(case, params)
    return starting, run(starting, rival(starting, params))


def run_plan(case: Case, later_s: float) -> dict[str, Any]:
    """Search the offline plan and run it."""
    (plan,) = run_searches([search_offline_plan((case,), 0)], (case,), workers=1)
    return describe(case, run(case, OfflinePlanScaler(plan.schedule)), later_s)


# All runs.


class Study:
    """Runs what is missing, and keeps each result. A change of the planner makes only runs of the policy missing."""

    def __init__(
        self,
        runs: Sequence[Run],
        load: Callable[[Any], Trace],
        beside: Sequence[str],
        file: Path,
        profile: str,
        kept: Path,
    ) -> None:
        self._runs, self._load, self._beside, self._file, self._profile = runs, load, beside, file, profile
        self._kept = {**read_results(kept), **read_results(file)}
        self._code = _version_of("core", "policies", "config/policy", "lab/replay/policy_scaler.py")

    def results(self) -> dict[Run, dict[str, Any]]:
        """Run what is missing, and return the results of each run: `ours`, `constant`, and what runs beside them."""
        for traffic in dict.fromkeys(each.traffic for each in self._runs):
            self._get(
                CONSTANT, Run(traffic, 0.0), lambda one=traffic: find_constant(one, self._load(one), self._profile)
            )
        self._run_ours()
        return {each: self._results_of(each) for each in self._runs}

    def kept_results(self) -> dict[Run, dict[str, Any]]:
        """Return what is kept of each run, of whatever version, and run nothing."""
        found: dict[Run, dict[str, Any]] = {}
        for each in self._runs:
            kept = {name: self._kept.get(self._key(name, each)) for name in (OURS, CONSTANT, *self._beside)}
            if kept[OURS] and kept[CONSTANT]:
                found[each] = {name: result for name, result in kept.items() if result}
        return found

    def _results_of(self, each: Run) -> dict[str, Any]:
        result = {OURS: self._kept[self._key(OURS, each)], CONSTANT: self._constant(each)}

        def run_now(name: str) -> dict[str, Any]:
            case = self._case(each)
            if name == PLAN:
                return run_plan(case, each.traffic.later_s)
            return describe(*simulate_rival(case, name), each.traffic.later_s)

        for name in self._beside:
            result[name] = self._get(name, each, lambda name=name: run_now(name))
        return result

    def _run_ours(self) -> None:
        """Run the shipped policy where it is missing; runs of one length share ticks."""
        missing = [each for each in self._runs if self._kept.get(self._key(OURS, each), {}).get("code") != self._code]
        for hours in sorted({each.traffic.hours for each in missing}):
            batch: list[Run] = []
            requests = 0
            for each in [one for one in missing if one.traffic.hours == hours]:
                more = self._constant(each)["requests"]
                if batch and requests + more > BATCH_REQUESTS:
                    self._run_batch(batch)
                    batch, requests = [], 0
                batch.append(each)
                requests += more
            self._run_batch(batch)

    def _run_batch(self, batch: Sequence[Run]) -> None:
        _say(f"the shipped policy on {len(batch)} runs of {batch[0].traffic.hours:g} h")
        begun_s = time.process_time()
        cases = [self._case(each) for each in batch]
        outcomes = run_fleet(cases, PolicyBatchScaler(cases, [policy()] * len(cases)))
        for each, case, outcome in zip(batch, cases, outcomes, strict=True):
            shown = describe(case, outcome, each.traffic.later_s)
            self._keep(self._key(OURS, each), {"code": self._code, **shown})
        _say(f"took {time.process_time() - begun_s:.0f} s of CPU")

    def _case(self, each: Run) -> Case:
        start_replicas = self._constant(each)["start_replicas"]
        return make_case(each.traffic, self._load(each.traffic), each.cold_start_s, start_replicas, self._profile)

    def _constant(self, each: Run) -> dict[str, Any]:
        return self._kept[self._key(CONSTANT, each)]

    def _get(self, kind: str, each: Run, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        key = self._key(kind, each)
        if key not in self._kept:
            _say(f"{kind}: {', '.join(map(str, json.loads(key)[1:]))}")
            self._keep(key, make())
        return self._kept[key]

    def _keep(self, key: str, result: dict[str, Any]) -> None:
        self._kept[key] = result
        append_result(self._file, {"key": key, "result": result})

    def _key(self, kind: str, each: Run) -> str:
        cold_start_s = None if kind == CONSTANT else each.cold_start_s
        return json.dumps([kind, *each.traffic, cold_start_s, self._profile])


def _version_of(*parts: str) -> str:
    """Return a checksum of the code of some parts of the package."""
    digest = hashlib.sha256()
    for part in parts:
        path = ROOT / "autoscaler" / part
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".yaml"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
