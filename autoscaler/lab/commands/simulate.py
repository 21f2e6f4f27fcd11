"""`simulate`: compare policies on trace files."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from autoscaler.config.policy.schema import Policy
from autoscaler.config.values import show_duration
from autoscaler.lab.baselines.own_rule import RuleSetting
from autoscaler.lab.commands.comparison import (
    check_learning,
    find_gpu_price,
    make_case,
    run_comparison,
    set_start_replicas,
    write_results,
)
from autoscaler.lab.commands.fewest_gpus import find_fewest_gpus, show
from autoscaler.lab.commands.options import ExperimentOptions, check_outputs, load_policy, read_rules, select_baselines
from autoscaler.lab.commands.own_rules import Workload, rules_in_cluster
from autoscaler.lab.compare.experiment import Experiment, check_cases
from autoscaler.lab.replay.call_progress import Progress, part_progress
from autoscaler.lab.replay.case import TRACE_START_S, Trace
from autoscaler.lab.replay.inputs import client_table, trace_file, transform
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.sim.engine import profile_file
from autoscaler.sim.engine.profiles import ReplicaSpec

TRACE_START = f"the trace begins on a Monday, {datetime.fromtimestamp(TRACE_START_S, UTC):%Y-%m-%d}, at midnight UTC"


def simulate(
    options: ExperimentOptions,
    files: Sequence[Path],
    scale: float,
    interval: tuple[float, float],
    workload: Workload | None = None,
) -> int:
    """Compare policies on trace files, within `interval` in seconds; (0, infinity) is the whole trace.

    workload: whose scaling rules are read from the cluster of the options; None: of none.
    Raises ValueError for unusable input, before any run, and ApiError.
    """
    check_outputs(options, *files)
    against = select_baselines(options.against)
    rules, problems = _read_rules(options, workload)
    name, replica_spec = profile_file.find(options.profile)
    policy = load_policy(options.policies)
    if replica_spec.gpus > options.gpus:
        raise ValueError(
            f"--gpus is {options.gpus:g}; allowed: at least the {replica_spec.gpus:g} that one replica of {name} takes"
        )
    clocks = [f"{rule.rule.title}: for its cron trigger" for rule in rules if rule.rule.has_cron]
    clocks += [f"policy {policy.name}: for its pre-warm windows"] * bool(policy.spec.prewarm)
    told = [*problems, *(f"{each}, {TRACE_START}" for each in clocks)]
    console = Console(stderr=True)
    with ProgressBar("reading traces", console) as progress:
        read = [
            (file, *_read(file, scale, options.seed, interval, part_progress(progress, number, len(files))))
            for number, file in enumerate(files)
        ]
    with ProgressBar("preparing", console) as progress:
        titles = _titles(files)
        experiments = [
            _make_experiment(options, name, replica_spec, policy, file, titles[file], models, notes, scale)
            for file, models, notes in read
        ]
        experiments = [replace(experiment, notes=(*experiment.notes, *told)) for experiment in experiments]
        for experiment in experiments:
            check_cases(*experiment.cases)
        experiments = [
            set_start_replicas(options, experiment, part_progress(progress, number, len(experiments)))
            for number, experiment in enumerate(experiments)
        ]
    comparisons = []
    for experiment in experiments:
        with ProgressBar(f"simulating {experiment.trace}", console) as progress:
            comparisons.append(run_comparison(options, experiment, against, progress, rules))
        if not options.outputs:  # without files to write, show each trace when it is done
            write_results(options, [comparisons.pop()])
    write_results(options, comparisons)
    return 0


def _read_rules(options: ExperimentOptions, workload: Workload | None) -> tuple[list[RuleSetting], list[str]]:
    """Return the rules of files and of a workload in the cluster, and problems. Raises ValueError, ApiError."""
    rules = list(read_rules(options.against))
    problems: list[str] = []
    if options.kube is not None and workload is not None:
        found, problems = asyncio.run(rules_in_cluster(options.kube, workload, rules))
        rules += found
        if not rules:
            raise ValueError(f"--cluster: {'; '.join(problems)}")
    settings = [RuleSetting(rule, TRACE_START_S) for rule in rules]
    for setting in settings:
        setting.check()
    return settings, problems


def fewest_gpus(options: ExperimentOptions, files: Sequence[Path], scale: float, interval: tuple[float, float]) -> int:
    """Find the fewest GPUs of each kind for trace files. Raises ValueError as `simulate`."""
    check_outputs(options, *files)
    profile_file.find(options.profile)
    policy = load_policy(options.policies)
    console, titles, results = Console(stderr=True), _titles(files), []
    for file in files:
        with ProgressBar("reading traces", console) as progress:
            models, _ = _read(file, scale, options.seed, interval, progress)
        _check_requests(file, models, scale)
        with ProgressBar(f"fewest GPUs for {titles[file]}", console) as progress:
            results.append((titles[file], find_fewest_gpus(options, policy, models, progress)))
    show(options, results)
    return 0


def _check_requests(file: Path, models: Sequence[Trace], scale: float) -> None:
    """Raise ValueError if no model has a request."""
    if not any(len(trace.arrival_s) for trace in models):
        raise ValueError(f"{file}: no request is left at a scale of {scale:g}; allowed: a larger scale")


def _titles(files: Sequence[Path]) -> dict[Path, str]:
    """Return the title of each trace: its file name, or its path if file names repeat. Raises ValueError."""
    seen: dict[Path, Path] = {}
    for file in files:
        if (other := seen.setdefault(file.resolve(), file)) is not file:
            raise ValueError(f"--trace {file}: it was given before, as {other}; allowed: each file once")
    names = [file.name for file in files]
    called = {file: str(file) if names.count(file.name) > 1 else file.name for file in files}
    return {
        file: title.encode(errors="replace").decode().removesuffix(".gz").removesuffix(".csv")
        for file, title in called.items()
    }


def _make_experiment(
    options: ExperimentOptions,
    name: str,
    replica_spec: ReplicaSpec,
    policy: Policy,
    file: Path,
    title: str,
    models: Sequence[Trace],
    notes: Sequence[str],
    scale: float,
) -> Experiment:
    cases, notes = [], [f"{title}: {note}" for note in notes]
    for trace in models:
        case, shortened = make_case(options, replica_spec, policy, trace, len(models))
        cases.append(case)
        notes += shortened
    _check_requests(file, models, scale)
    if options.learn_s:
        check_learning(str(file), cases, options.learn_s)
    if len(cases) > 1:
        notes.append(f"{len(cases)} models, each with replicas of its own; figures are summed over them")
    if math.isfinite(options.gpus):
        notes.append(
            "a replica that finds no free GPU waits for one, first come, first served, and costs nothing meanwhile"
        )
    price = find_gpu_price(options, replica_spec)
    return Experiment(title, name, tuple(cases), policy, scale, tuple(notes), options.gpus, price)


def _read(
    file: Path, scale: float, seed: int, interval: tuple[float, float], progress: Progress
) -> tuple[Sequence[Trace], list[str]]:
    """Return the scaled traces of a file within an interval, and notes that tell how they were made."""
    models: Sequence[Trace]
    if client_table.is_client_table(file):
        table = client_table.load(file)
        start_s, end_s = _check_interval(file, table.duration_s, interval)
        models = (client_table.draw(table, scale, seed, start_s, end_s),)
        notes = [f"requests of {len(table.clients)} clients, drawn at {scale:g} of their rates"]
    else:
        models = trace_file.load(file, progress)
        start_s, end_s = _check_interval(file, models[0].duration_s, interval)
        if interval != (0.0, math.inf):
            models = transform.clip_all(models, start_s, end_s)
            if not models:
                raise ValueError(f"{file}: no request from {show_duration(start_s)} to {show_duration(end_s)}")
        models = [transform.scale(trace, scale, seed) for trace in models]
        notes = []
        if scale > 1:
            notes = [f"{scale:g} copies, moved apart by up to {show_duration(transform.longest_shift_s(models[0]))}"]
        elif scale < 1:
            notes = [f"{scale:g} of the requests, chosen at random"]
    if interval != (0.0, math.inf):
        notes.append(f"only from {show_duration(start_s)} to {show_duration(end_s)}")
    return models, notes


def _check_interval(file: Path, length_s: float, interval: tuple[float, float]) -> tuple[float, float]:
    """Return start and end of an interval within a trace. Raises ValueError."""
    start_s, end_s = interval
    if start_s >= length_s:
        raise ValueError(
            f"{file}: --start is {show_duration(start_s)}; it must be before the end of the trace, "
            f"{show_duration(length_s)}"
        )
    if length_s < end_s < math.inf:
        raise ValueError(
            f"{file}: --end is {show_duration(end_s)}; allowed: at most the length of the trace, "
            f"{show_duration(length_s)}"
        )
    return start_s, min(end_s, length_s)
