"""`replay`: a policy on a workload's own history."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from autoscaler.cli.experiment import Greedy, experiment_options, run_experiment
from autoscaler.cli.options import context_option, prometheus_options, refuse_unused
from autoscaler.cli.param_types import FOLDER, READABLE_FILE, DurationParam, MomentParam, WorkloadName
from autoscaler.cli.process import exit_with
from autoscaler.cli.settings import prometheus_settings

if TYPE_CHECKING:
    from autoscaler.lab.commands.options import ExperimentOptions

STEP_S = 15.0  # of history


@click.command(cls=Greedy, short_help="Try a policy on a workload's own history.")
@prometheus_options
@click.option(
    "--ticks",
    type=READABLE_FILE,
    metavar="FILE",
    help="File with the output of `dry-run --json`, instead of Prometheus.",
)
@click.option("--record", type=FOLDER, metavar="DIR", help="Record whose tick is computed again; see `run --record`.")
@click.option("--at", type=MomentParam(), help="With --record: the moment, written as for --start.")
@click.option(
    "--workload",
    type=WorkloadName(),
    metavar="NAMESPACE/NAME",
    help="Workload whose history or tick is read.",
)
@click.option(
    "--start", type=MomentParam(), help="Start of the history: 2026-03-01T08:00:00Z, or -24h for 24 hours ago."
)
@click.option(
    "--end", type=MomentParam(), default="now", show_default=True, help="End of the history, written as for --start."
)
@click.option(
    "--step",
    type=DurationParam(),
    help="Resolution at which Prometheus is read; at least the scrape interval; default: 15s.",
)
@click.option("--cluster", is_flag=True, help="Read your own scaling rules from the cluster, too.")
@context_option
@experiment_options
def replay(
    ticks: Path | None,
    record: Path | None,
    at: float | None,
    workload: tuple[str, str] | None,
    start: float | None,
    end: float,
    step: float | None,
    **given: Any,
) -> None:
    """Show what happened to a workload and what the policy and each baseline would have done with the same requests.

    With --record and --at, compute one recorded tick again, and show its inputs and stages.
    """
    if record is not None or at is not None:
        _replay_tick(record, at, workload)
    if workload is None:
        raise click.UsageError("--workload NAMESPACE/NAME is missing: it says whose history is read")
    prometheus = prometheus_settings(given)
    if (prometheus is None) == (ticks is None):
        raise click.UsageError("give either --prometheus URL or --ticks FILE")
    if start is not None and end - start < 1:  # `now` twice lies some microseconds apart
        raise click.UsageError(f"--start is {_moment(start)}; it must be before --end, {_moment(end)}")
    if given["context"] and not given["cluster"]:
        raise click.UsageError("--context has no effect without --cluster")
    if ticks is not None:
        if step is not None:
            raise click.UsageError(
                "--step applies to --prometheus only; with --ticks the step is the usual interval between ticks"
            )
    elif start is None:
        raise click.UsageError("--start is missing: it says where the history to read begins")

    def work(options: ExperimentOptions) -> int:
        from autoscaler.lab.commands import replay as lab

        if ticks is not None:
            return lab.replay_ticks(options, ticks, workload, (start, end))
        assert prometheus is not None and start is not None
        return lab.replay(options, prometheus, workload, (start, end), step or STEP_S)

    run_experiment(given, work)


def _replay_tick(record: Path | None, at: float | None, workload: tuple[str, str] | None) -> NoReturn:
    """Compute a recorded tick again, and exit."""
    if record is None or at is None:
        raise click.UsageError("--record DIR and --at TIME go together")
    others = {name: None for name in click.get_current_context().params if name not in ("record", "at", "workload")}
    refuse_unused(others, ("",), "with --at")
    from autoscaler.app import record as app

    exit_with(lambda: app.replay_at(record, at, workload))


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
