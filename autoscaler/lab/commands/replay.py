"""`replay`: compare policies on a workload's own history, from Prometheus or from recorded ticks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from autoscaler.adapters.prometheus.range.resample import WorkloadHistory
from autoscaler.adapters.prometheus.range.workload_history import PrometheusHistory
from autoscaler.config.settings import PrometheusSettings
from autoscaler.config.values import show_duration
from autoscaler.lab.baselines.own_rule import RuleSetting
from autoscaler.lab.commands.comparison import (
    check_learning,
    check_longer_than_learning,
    find_gpu_price,
    make_case,
    run_comparison,
    set_start_replicas,
    write_results,
)
from autoscaler.lab.commands.options import ExperimentOptions, check_outputs, load_policy, select_baselines
from autoscaler.lab.commands.own_rules import read_own_rules, rules_in_files
from autoscaler.lab.compare.experiment import Experiment, check_cases
from autoscaler.lab.compare.result import ACTUAL, RECORDED, PolicyRun
from autoscaler.lab.compare.run_result import run_case
from autoscaler.lab.replay.case import Trace
from autoscaler.lab.replay.inputs.from_history import RecordedScaler, count_replicas, to_score, to_timeline, to_trace
from autoscaler.lab.replay.inputs.from_ticks import read as read_ticks
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.sim.engine import profile_file


def replay(
    options: ExperimentOptions,
    settings: PrometheusSettings,
    workload: tuple[str, str],
    interval: tuple[float, float],
    step_s: float,
) -> int:
    """Compare policies on a workload's history from Prometheus."""
    tls = settings.tls
    check_outputs(options, settings.token_file, settings.password_file, tls.ca, tls.cert, tls.key)
    _check_options(options, workload)
    namespace, name = workload
    start_s, end_s = interval
    if options.learn_s:
        check_longer_than_learning(f"{namespace}/{name}", round(end_s - start_s), options.learn_s)
    console = Console(stderr=True)
    with ProgressBar(f"reading {namespace}/{name}", console) as progress:
        reading = PrometheusHistory(settings).read(namespace, name, start_s, end_s, step_s=step_s, progress=progress)
        past = asyncio.run(reading)  # only the read runs in a loop, so that Ctrl-C interrupts the computation at once
        rules, problems = asyncio.run(read_own_rules(options, settings, workload, past))
    return replay_past(options, replace(past, problems=(*past.problems, *problems)), f"{namespace}/{name}", rules)


def replay_ticks(
    options: ExperimentOptions, file: Path, workload: tuple[str, str], interval: tuple[float | None, float]
) -> int:
    """Compare policies on a workload's history from recorded ticks."""
    check_outputs(options, file)
    _check_options(options, workload)
    name = "/".join(workload)
    start_s, end_s = interval
    with ProgressBar(f"reading {file.name}", Console(stderr=True)) as progress:
        past = read_ticks(file, name, -math.inf if start_s is None else start_s, end_s, progress)
    rules, problems = asyncio.run(read_own_rules(options, None, workload, past))
    return replay_past(options, replace(past, problems=(*past.problems, *problems)), name, rules)


def replay_past(options: ExperimentOptions, past: WorkloadHistory, name: str, rules: Sequence[RuleSetting] = ()) -> int:
    """Show the actual outcome, and what each policy would have done."""
    for rule in rules:
        rule.check()
    against = select_baselines(options.against)
    profile_name, replica_spec = profile_file.find(options.profile)
    policy = load_policy(options.policies)
    notes = [f"history: {problem}" for problem in past.problems]
    notes.append(
        "requests are reconstructed from counters: arrivals within each step, lengths around the mean of their time"
    )
    trace = to_trace(past, name, options.seed)
    case, shortened = make_case(options, replica_spec, policy, trace)
    notes += shortened
    if options.learn_s:
        check_learning(name, [case], options.learn_s)
    counted = past.since(options.learn_s)
    if not len(counted.pods):
        raise ValueError(
            f"{name}: --learn is {show_duration(options.learn_s)}; it must be a whole step of "
            f"{show_duration(past.step_s)} shorter than the history, {show_duration(past.duration_s)}"
        )
    price = find_gpu_price(options, replica_spec)
    experiment = Experiment(name, profile_name, (case,), policy, notes=tuple(notes), gpu_price=price)
    console = Console(stderr=True)
    with ProgressBar("preparing", console) as progress:
        experiment = set_start_replicas(options, experiment, progress)
    (case,) = experiment.cases
    with ProgressBar(f"replaying {name}", console) as progress:
        comparison = run_comparison(options, experiment, against, progress, rules)
        there = count_replicas(past)  # even where the policy allows fewer
        same = replace(case, start_replicas=int(there[0]), max_replicas=max(case.max_replicas, int(there.max())))
        recorded = run_case(same, RecordedScaler(past, case.cold_start_s))
    actual = to_score(counted, case.goal, replica_spec.gpus, options.cold_start_s)
    runs = (
        *comparison.runs,
        PolicyRun(ACTUAL, False, {}, actual, to_timeline(counted)),
        PolicyRun(RECORDED, False, {}, recorded.score, recorded.timeline),
    )
    comparison = replace(comparison, runs=runs)
    write_results(options, [comparison])
    return 0


def _check_options(options: ExperimentOptions, workload: tuple[str, str]) -> None:
    """Check the options that need no history, before a read that may take minutes. Raises as a replay would."""
    select_baselines(options.against)
    rules_in_files(options, workload)
    _, replica_spec = profile_file.find(options.profile)
    none = np.zeros(0, np.int64)
    case, _ = make_case(
        replace(options, learn_s=0.0),
        replica_spec,
        load_policy(options.policies),
        Trace("nothing", none.astype(np.float64), none, none, 1.0),
    )
    check_cases(case)
