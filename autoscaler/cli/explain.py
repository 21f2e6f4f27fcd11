"""`explain`: why a workload has its number of replicas, from a running daemon."""

from __future__ import annotations

from pathlib import Path

import click

from autoscaler.cli.options import refuse_unused
from autoscaler.cli.param_types import FOLDER, Address, MomentParam, WorkloadName
from autoscaler.cli.process import exit_with, run_to_end


@click.command()
@click.argument("workload", type=WorkloadName(), metavar="NAMESPACE/NAME")
@click.option(
    "--url",
    type=Address(),
    default="http://127.0.0.1:8080",
    show_default=True,
    help="Address at which the daemon serves HTTP.",
)
@click.option("--kind", default="", help="Kind of the workload, StatefulSet, where several have one name.")
@click.option(
    "--record", type=FOLDER, metavar="DIR", help="Record to read instead of a running daemon; see `run --record`."
)
@click.option("--at", type=MomentParam(), help="With --record: the moment, 2026-03-01T03:00:00Z or -24h.")
def explain(workload: tuple[str, str], url: str, kind: str, record: Path | None, at: float | None) -> None:
    """Explain why a workload has its current number of replicas, or had the one of a recorded moment."""
    if (record is None) != (at is None):
        raise click.UsageError("--record DIR and --at TIME go together")
    if record is not None and at is not None:
        from autoscaler.app import record as recorded

        refuse_unused({"url": url, "kind": kind}, ("url", "kind"), "with --record")
        folder, at_s = record, at
        exit_with(lambda: recorded.explain_at(folder, at_s, *workload))
    from autoscaler.app import explain as app

    run_to_end(app.explain(url, *workload, kind), endless=False)
