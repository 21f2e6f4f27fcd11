"""`simulate` and `simulate fit`: a policy on a trace, and a profile from a recording."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autoscaler.cli.experiment import YEAR_S, GreedyGroup, experiment_options, run_experiment, run_simulations
from autoscaler.cli.options import context_option, refuse_unused
from autoscaler.cli.param_types import OUT, READABLE_FILE, DurationParam, NumberParam, WholeNumber, WorkloadName

if TYPE_CHECKING:
    from autoscaler.lab.commands.options import ExperimentOptions


@click.group(cls=GreedyGroup, invoke_without_command=True, short_help="Try a policy on a trace, against baselines.")
@click.option(
    "--trace",
    "traces",
    type=READABLE_FILE,
    multiple=True,
    metavar="FILE…",
    help="Requests, or a table of clients, as CSV or CSV.gz.",
)
@click.option(
    "--scale",
    type=NumberParam(0, 10_000, min_open=True),
    default=1.0,
    show_default=True,
    help="Of a table of clients: how many times the rate of the table. Of requests: the share to keep; above 1, the "
    "number of copies, moved apart by up to half an hour.",
)
@click.option(
    "--start",
    type=DurationParam(10 * YEAR_S, least_s=0),
    help="Start of the part to run, counted from the start of the trace.",
)
@click.option(
    "--end",
    type=DurationParam(10 * YEAR_S),
    help="End of the part to run, counted from the start of the trace; default: the end of the trace.",
)
@click.option(
    "--gpus",
    type=NumberParam(0, 100_000, min_open=True),
    help="GPUs shared by all models of a trace; default: as many as each asks for.",
)
@click.option(
    "--fewest-gpus",
    is_flag=True,
    help="Compare no policies: find the fewest GPUs of each kind for the trace, with a constant count and with the "
    "policy. The model of a named profile is computed on all known devices.",
)
@click.option(
    "--device-profile",
    multiple=True,
    metavar="NAME|FILE",
    help="With --fewest-gpus: a further profile to compare, may be repeated.",
)
@click.option("--cluster", is_flag=True, help="Read the scaling rules of a workload from the cluster, too.")
@click.option(
    "--workload",
    type=WorkloadName(),
    metavar="NAMESPACE/NAME",
    help="With --cluster: the workload whose rules are read.",
)
@context_option
@experiment_options
@click.pass_context
def simulate(
    context: click.Context,
    /,
    fewest_gpus: bool,
    device_profile: tuple[str, ...],
    traces: tuple[Path, ...],
    scale: float,
    start: float | None,
    end: float | None,
    gpus: float | None,
    workload: tuple[str, str] | None,
    **given: Any,
) -> None:
    """Replay a trace against simulated replicas and compare a policy with baselines and the lower bound."""
    if context.invoked_subcommand is not None:
        for name in context.params:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name.replace('_', '-')} has no effect before {context.invoked_subcommand}")
        return
    if not traces:
        raise click.UsageError("--trace FILE is missing")
    if given["cluster"] != (workload is not None):
        raise click.UsageError("--cluster and --workload NAMESPACE/NAME go together: they say whose rules are read")
    if given["context"] and not given["cluster"]:
        raise click.UsageError("--context has no effect without --cluster")
    interval = (start or 0.0, end or math.inf)
    if interval[0] >= interval[1]:
        from autoscaler.config.values import show_duration

        started, ended = map(show_duration, interval)
        raise click.UsageError(f"--start is {started}; it must be before --end, {ended}")

    if fewest_gpus:
        others = ("cluster", "against", "tuned", "learn", "planned", "start_replicas", "html", "ray", "jobs")
        refuse_unused(given, others, "with --fewest-gpus")
        if gpus is not None:
            raise click.UsageError("--gpus has no effect with --fewest-gpus: that is what it finds")
    elif device_profile:
        raise click.UsageError("--device-profile has no effect without --fewest-gpus")

    def work(options: ExperimentOptions) -> int:
        from autoscaler.lab.commands import simulate as lab

        if fewest_gpus:
            return lab.fewest_gpus(replace(options, device_profiles=device_profile), traces, scale, interval)
        return lab.simulate(options, traces, scale, interval, workload)

    run_experiment(given, work, gpus)


@simulate.command(short_help="Fit a replica profile to recorded metrics.")
@click.argument("recording", type=READABLE_FILE)
@click.option(
    "--out", type=OUT, metavar="FILE", help="File to write the profile to (*.json); default: standard output."
)
@click.option("--max-num-seqs", type=WholeNumber(1, 8191), help="Slots of the engine, if known.")
@click.option(
    "--max-num-batched-tokens",
    type=WholeNumber(2, 200_000_000),
    help="Token budget of a step, if known; else guessed from the largest step recorded.",
)
@click.option(
    "--gpus", type=NumberParam(0, 1024, min_open=True), default=1.0, show_default=True, help="GPUs of one replica."
)
def fit(
    recording: Path, out: Path | None, max_num_seqs: int | None, max_num_batched_tokens: int | None, gpus: float
) -> None:
    """Fit a profile to recorded metrics: lines of {"t": seconds, "text": the engine's /metrics}, plain or gzipped."""
    if out is not None and out.suffix != ".json" and not out.is_relative_to("/dev"):
        raise click.UsageError(f"--out {out}: the name of a profile's file must end in .json")

    def work() -> int:
        from autoscaler.lab.commands import simulate_fit as lab

        return lab.fit(recording, out, max_num_seqs, max_num_batched_tokens, gpus)

    run_simulations(work)
