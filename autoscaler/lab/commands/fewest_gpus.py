"""`simulate --fewest-gpus`: the fewest GPUs of which kind for a trace under an objective, request by request."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.adapters.standard_output import printing
from autoscaler.config.policy.schema import Policy
from autoscaler.core.model.money import UnitCosts
from autoscaler.lab.baselines.static import Static
from autoscaler.lab.bounds.constant_count import find_fewest_replicas
from autoscaler.lab.commands.comparison import TABLE_COLUMNS, find_gpu_price, make_case
from autoscaler.lab.commands.options import ExperimentOptions
from autoscaler.lab.compare.experiment import MIN_RISE, check_cases, with_start_replicas
from autoscaler.lab.compare.run_result import RunResult, run_case
from autoscaler.lab.replay.call_progress import Progress
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.check import UnreachableGoal
from autoscaler.lab.replay.policy_scaler import PolicyScaler
from autoscaler.lab.report import output_files
from autoscaler.lab.report.format import UNKNOWN, amount, printable, share
from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import NAMES, ReplicaSpec, find_profiles

VERSION = 1


@dataclass(frozen=True)
class FewestGpus:
    """What one device needs for a trace; NaN: not known."""

    device: str
    gpus_per_replica: float
    constant_gpus: float  # of the least constant counts; NaN: no count meets the objective
    constant_attainment: float  # 0..1, of that count, or of the one that comes closest
    constant_usd_per_million_tokens: float
    peak_gpus: float  # of this policy
    mean_gpus: float
    attainment: float
    usd_per_million_tokens: float
    meets: bool  # a constant count meets the objective
    policy_meets: bool
    why_not: str  # why it does not; "": it does


def candidates(options: ExperimentOptions, models: Sequence[Trace]) -> list[tuple[str, ReplicaSpec]]:
    """Return the profiles to compare: the model of a named profile on all devices, and those that are given."""
    longest = max(int((trace.prompt_tokens + trace.output_tokens).max(initial=1)) for trace in models)
    named = find_profiles(options.profile, longest) if options.profile in NAMES else []
    given = [profile_file.find(name) for name in (*(() if named else (options.profile,)), *options.device_profiles)]
    return [*named, *given]


def find_fewest_gpus(
    options: ExperimentOptions, policy: Policy, models: Sequence[Trace], progress: Progress
) -> list[FewestGpus]:
    """Return what each device needs: those that meet the objective first, with the fewest GPUs first."""
    profiles = candidates(options, models)
    found = []
    for number, (device, spec) in enumerate(profiles):
        found.append(_measure(options, policy, device, spec, models))
        progress((number + 1) / len(profiles))
    return sorted(found, key=lambda each: (not each.meets, each.constant_gpus if each.meets else -each.attainment))


def _measure(
    options: ExperimentOptions, policy: Policy, device: str, spec: ReplicaSpec, models: Sequence[Trace]
) -> FewestGpus:
    cases = [make_case(options, spec, policy, trace, len(models))[0] for trace in models]
    unknown = math.nan
    try:
        check_cases(*cases)
    except UnreachableGoal as error:
        nothing = unknown, unknown, unknown, unknown, unknown, unknown, unknown
        return FewestGpus(device, spec.gpus, *nothing, False, False, str(error))
    constants = [_find_constant(case) for case in cases]
    scaled = [run_case(case, PolicyScaler(case, policy)) for case in map(with_start_replicas, cases)]
    runs = [run for _, run in constants]
    meets, policy_meets = _met(cases, runs), _met(cases, scaled)
    counts = sum(count for count, _ in constants) * spec.gpus
    ends_s = (run.timeline[:, 0].max(initial=case.trace.duration_s) for case, run in zip(cases, scaled, strict=True))
    hours = float(max(ends_s)) / 3600  # the last answers may end after the trace
    peak = sum(float(run.timeline[:, 1].max(initial=0.0)) for run in scaled) * spec.gpus
    usd = find_gpu_price(options, spec).usd
    why = "" if meets else "no constant count that was tried meets the objective"
    return FewestGpus(
        device,
        spec.gpus,
        counts if meets else unknown,
        _attainment(cases, runs),
        _price(runs, usd),
        peak,
        sum(run.score.gpu_hours for run in scaled) / hours,
        _attainment(cases, scaled),
        _price(scaled, usd),
        meets,
        policy_meets,
        why,
    )


def _find_constant(case: Case) -> tuple[int, RunResult]:
    """Return the least constant count that meets the goal, or comes closest, and its run. By bisection."""
    runs: dict[int, RunResult] = {}

    def attained(count: int) -> float:
        constant = replace(case, start_replicas=count)
        runs[count] = run_case(constant, Static(count))
        return runs[count].score.attainment

    count = find_fewest_replicas(case, attained, MIN_RISE)
    return count, runs[count]


def _met(cases: Sequence[Case], runs: Sequence[RunResult]) -> bool:
    return all(case.goal.is_met_by(run.score.attainment) for case, run in zip(cases, runs, strict=True))


def _attainment(cases: Sequence[Case], runs: Sequence[RunResult]) -> float:
    sizes = [len(case.trace.arrival_s) for case in cases]
    return sum(size * run.score.attainment for size, run in zip(sizes, runs, strict=True)) / sum(sizes)


def _price(runs: Sequence[RunResult], usd_per_gpu_hour: float) -> float:
    gpu_hours, tokens = (sum(getattr(run.score, name) for run in runs) for name in ("gpu_hours", "output_tokens"))
    return UnitCosts.of(gpu_hours * usd_per_gpu_hour, tokens, 0.0).usd_per_million_tokens


def sentence(found: Sequence[FewestGpus]) -> str:
    """Return the answer in one sentence."""
    able = [each for each in found if each.meets]
    if not able:
        return "No device of those that were compared meets the objective on any count that was tried."
    best = able[0]
    said = f"The fewest GPUs are {amount(best.constant_gpus)} ({best.device}) for a constant count"
    said += f"; this policy holds {amount(best.mean_gpus)} in the mean and {amount(best.peak_gpus)} at the peak"
    said += "" if best.policy_meets else f", and keeps {share(best.attainment)}"
    prices = [(each.usd_per_million_tokens, each.device) for each in able if each.policy_meets]
    prices += [(each.constant_usd_per_million_tokens, each.device) for each in able]
    if known := [each for each in prices if not math.isnan(each[0])]:
        usd, device = min(known)
        said += f". The cheapest tokens come from {device}: ${usd:.3g} a million"
    return said + "."


def show(options: ExperimentOptions, results: Sequence[tuple[str, list[FewestGpus]]]) -> None:
    """Write the file, then print a table for each trace."""
    if options.json is not None:
        documents = [
            {
                "version": VERSION,
                "trace": trace,
                "sentence": sentence(found),
                "devices": [_plain(each) for each in found],
            }
            for trace, found in results
        ]
        output_files.write([(options.json, json.dumps(documents, indent=2, allow_nan=False) + "\n")])
    with printing():
        console = Console()
        if not console.is_terminal:
            console = Console(width=TABLE_COLUMNS)
        with console.capture() as captured:
            for trace, found in results:
                console.print(_table(trace, found))
                console.print(Text(sentence(found)))
                for why in dict.fromkeys(each.why_not for each in found if each.why_not):
                    devices = ", ".join(each.device for each in found if each.why_not == why)
                    console.print(Text(printable(f"note: {devices}: {why}")))
        print(captured.get(), end="")


def _plain(each: FewestGpus) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(each).items()
    }


def _table(trace: str, found: Sequence[FewestGpus]) -> Table:
    table = Table(title=Text(printable(f"{trace}: the fewest GPUs of each kind")), title_justify="left")
    table.add_column("device")
    for title in (
        "GPUs a replica",
        "constant:\nGPUs",
        "constant:\nattainment",
        "constant:\n$/M tok",
        "policy:\npeak GPUs",
        "policy:\nmean GPUs",
        "policy:\nattainment",
        "policy:\n$/M tok",
    ):
        table.add_column(title, justify="right")
    for each in found:
        table.add_row(
            Text(printable(each.device)),
            amount(each.gpus_per_replica),
            _number(each.constant_gpus),
            share(each.constant_attainment),
            _money(each.constant_usd_per_million_tokens),
            _number(each.peak_gpus),
            _number(each.mean_gpus),
            share(each.attainment),
            _money(each.usd_per_million_tokens),
            style="" if each.meets else "dim",
        )
    return table


def _number(value: float) -> str:
    return UNKNOWN if math.isnan(value) else amount(value)


def _money(value: float) -> str:
    return UNKNOWN if math.isnan(value) else f"{value:.3g}"
