"""`explain`: why a workload has its number of replicas, from a running daemon."""

from __future__ import annotations

import click

from autoscaler.cli.param_types import Address, WorkloadName
from autoscaler.cli.process import run_to_end


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
def explain(workload: tuple[str, str], url: str, kind: str) -> None:
    """Explain why a workload has its current number of replicas."""
    from autoscaler.app import explain as app

    run_to_end(app.explain(url, *workload, kind), endless=False)
