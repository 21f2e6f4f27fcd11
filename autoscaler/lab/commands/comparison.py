"""Shared steps of `simulate` and `replay`: make cases, compare policies, write and show the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console

from autoscaler.adapters.standard_output import printing
from autoscaler.config.policy.schema import Policy
from autoscaler.config.prices import find_price
from autoscaler.config.values import show_duration
from autoscaler.core.model.fleet import Pool
from autoscaler.core.model.money import Price
from autoscaler.lab.baselines.own_rule import RuleSetting
from autoscaler.lab.commands.options import ExperimentOptions
from autoscaler.lab.compare.compare import compare
from autoscaler.lab.compare.experiment import Experiment, goal_from_policy, with_start_replicas
from autoscaler.lab.compare.result import Comparison
from autoscaler.lab.replay.call_progress import Progress
from autoscaler.lab.replay.case import Case, Trace
from autoscaler.lab.replay.engine.gpu_pool import NODE_GPUS, GpuPool
from autoscaler.lab.replay.inputs import transform
from autoscaler.lab.report import output_files
from autoscaler.lab.report.document import to_json
from autoscaler.lab.report.format import count, seconds
from autoscaler.lab.report.page import page
from autoscaler.lab.report.progress_bar import ProgressBar
from autoscaler.lab.report.table import print_comparison
from autoscaler.sim.engine.profiles import ReplicaSpec

MOST_REPLICAS = 1000  # most replicas of one model
TABLE_COLUMNS = 180  # width of a terminal of unknown width


def make_case(
    options: ExperimentOptions, replica_spec: ReplicaSpec, policy: Policy, trace: Trace, models: int = 1
) -> tuple[Case, list[str]]:
    """Return the case of one of `models` models, with notes. Raises ValueError."""
    _check_start(options, replica_spec, policy, models)
    trace, shortened = transform.truncate(trace, replica_spec.profile.max_model_len)
    longest = f"the {replica_spec.profile.max_model_len:,} tokens that the profile takes"
    notes = [f"{trace.name}: shortened to {longest}: {count(shortened, 'request')}"] if shortened else []
    case = Case(
        trace=trace,
        profile=replica_spec.profile,
        goal=goal_from_policy(policy),
        cold_start_s=options.cold_start_s,
        cold_start_uncached_s=options.cold_start_uncached_s,
        weights_on=options.weights_on,
        requests_nodes=options.requests_nodes,
        fetches_weights=options.fetches_weights,
        node_idle_s=options.node_idle_s,
        cold_start_spread=options.cold_start_spread,
        crash_every_s=options.crash_every_s,
        router=options.router,
        patience_s=options.patience_s,
        drain_s=options.drain_s,
        scrape_s=options.scrape_s,
        gpus_per_replica=replica_spec.gpus,
        max_replicas=int(min(_count_fitting(options, replica_spec), _max_replicas(options, policy))),
        seed=options.seed,
        counted_from_s=options.learn_s,
    )
    return case, notes


def find_gpu_price(options: ExperimentOptions, replica_spec: ReplicaSpec) -> Price:
    """Return the price of a GPU in an hour: as stated, else the list price of the profile's GPU."""
    if not math.isnan(options.usd_per_gpu_hour):
        return Price(options.usd_per_gpu_hour)
    if not replica_spec.product:
        return Price(math.nan, "the profile names no GPU; state its price with --usd-per-gpu-hour")
    return find_price(Pool("nvidia.com/gpu", replica_spec.product), {}, {})


def set_start_replicas(options: ExperimentOptions, experiment: Experiment, progress: Progress) -> Experiment:
    """Return the experiment with initial replicas. Without a given number, they are searched, which takes long."""
    cases = []
    for case in experiment.cases:
        if options.start_replicas is None:
            cases.append(with_start_replicas(case))
        else:
            cases.append(replace(case, start_replicas=options.start_replicas))
        progress(len(cases) / len(experiment.cases))
    return replace(experiment, cases=tuple(cases))


def run_comparison(
    options: ExperimentOptions,
    experiment: Experiment,
    against: Sequence[str],
    progress: ProgressBar,
    rules: Sequence[RuleSetting] = (),
) -> Comparison:
    return compare(
        replace(experiment, notes=(*experiment.notes, *_note_unusual_options(options))),
        against,
        rules=rules,
        tuned=options.tuned,
        offline_plan=options.offline_plan,
        workers=options.jobs,
        ray=options.ray,
        progress=progress,
    )


def write_results(options: ExperimentOptions, comparisons: Sequence[Comparison]) -> None:
    """Write the files, then print the tables, since standard output may be closed. Raises ValueError."""
    contents = [(options.json, to_json), (options.html, page)]
    output_files.write([(path, content(comparisons)) for path, content in contents if path is not None])
    with printing():
        console = Console()
        if not console.is_terminal:
            console = Console(width=TABLE_COLUMNS)
        with console.capture() as captured:
            for comparison in comparisons:
                print_comparison(comparison, console)
        print(captured.get(), end="")


def _note_unusual_options(options: ExperimentOptions) -> list[str]:
    """Return notes on settings of replicas, router and clients that differ from the default."""
    notes = []
    if options.cold_start_spread != Case.cold_start_spread:
        notes.append(f"cold starts differ: sigma of their logarithm {options.cold_start_spread:g}")
    if options.requests_nodes:
        notes.append("nodes are requested before pre-warm windows and forecast rises; empty nodes cost nothing here")
    if options.fetches_weights:
        notes.append("nodes fetch weights by the daemon's plan, and keep them")
    if math.isfinite(options.node_idle_s):
        notes.append(f"a node that was empty for {seconds(options.node_idle_s)} is removed")
    if math.isfinite(options.crash_every_s):
        every = seconds(options.crash_every_s)
        notes.append(f"a serving replica crashes every {every} on average and loses the requests it holds")
    if options.router != Case.router:
        notes.append("requests go to replicas round robin, however many they hold")
    if math.isfinite(options.patience_s):
        notes.append(f"clients still waiting after {seconds(options.patience_s)} leave")
    if options.drain_s != Case.drain_s:
        given = f"are given {seconds(options.drain_s)} to finish" if options.drain_s else "abort"
        notes.append(f"replicas on their way out {given} what they run")
    if options.scrape_s != Case.scrape_s:
        notes.append(f"replicas are scraped every {seconds(options.scrape_s)}")
    return notes


def _check_start(options: ExperimentOptions, replica_spec: ReplicaSpec, policy: Policy, models: int) -> None:
    """Raise ValueError if the initial replicas exceed the policy or the GPUs."""
    start = options.start_replicas or 0
    if start > (most := _max_replicas(options, policy)):
        raise ValueError(
            f"--start-replicas is {start}; allowed: at most replicas.max of {options.policies[0]}, {most:g}"
        )
    if start * models > (room := _count_fitting(options, replica_spec)):
        each = f" for each of {models} models" if models > 1 else ""
        raise ValueError(
            f"--start-replicas is {start}{each}; allowed: at most the {room:g} that fit on --gpus {options.gpus:g}, in "
            f"nodes of {max(NODE_GPUS, replica_spec.gpus):g} and of what is left"
        )


def check_learning(name: str, cases: Sequence[Case], learn_s: float) -> None:
    """Raise ValueError if all requests are in the learning part, or none is."""
    check_longer_than_learning(name, cases[0].trace.duration_s, learn_s)
    late = np.concatenate([case.trace.arrival_s >= learn_s for case in cases])
    if late.all() or not late.any():
        when = "before" if late.all() else "after"
        raise ValueError(f"{name}: --learn is {show_duration(learn_s)}; no request arrives {when} that")


def check_longer_than_learning(name: str, duration_s: float, learn_s: float) -> None:
    if learn_s >= duration_s:
        raise ValueError(
            f"{name}: --learn is {show_duration(learn_s)}; it must be shorter than the whole, "
            f"{show_duration(duration_s)}"
        )


def _count_fitting(options: ExperimentOptions, replica_spec: ReplicaSpec) -> float:
    """Return the number of replicas that fit on the GPUs."""
    return GpuPool(options.gpus, max(NODE_GPUS, replica_spec.gpus)).count_fitting(replica_spec.gpus)


def _max_replicas(options: ExperimentOptions, policy: Policy) -> float:
    """Return the most replicas of a model: those of a given policy; the shipped policy sets no limit."""
    return policy.spec.replicas.max if options.policies else MOST_REPLICAS
