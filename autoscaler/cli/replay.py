"""`replay`: a policy on a workload's own history."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoscaler.cli.experiment import Greedy, experiment_options, run_experiment
from autoscaler.cli.options import prometheus_options
from autoscaler.cli.param_types import READABLE_FILE, DurationParam, MomentParam, WorkloadName
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
@click.option(
    "--workload", type=WorkloadName(), required=True, metavar="NAMESPACE/NAME", help="Workload whose history is read."
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
@experiment_options
def replay(
    ticks: Path | None,
    workload: tuple[str, str],
    start: float | None,
    end: float,
    step: float | None,
    **given: Any,
) -> None:
    """Show what happened to a workload and what the policy and each baseline would have done with the same requests."""
    prometheus = prometheus_settings(given)
    if (prometheus is None) == (ticks is None):
        raise click.UsageError("give either --prometheus URL or --ticks FILE")
    if start is not None and end - start < 1:  # `now` twice lies some microseconds apart
        raise click.UsageError(f"--start is {_moment(start)}; it must be before --end, {_moment(end)}")
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


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
