"""`demo`: the daemon on simulated replicas."""

from __future__ import annotations

from pathlib import Path

import click

from autoscaler.cli.options import http_port_option
from autoscaler.cli.param_types import FOLDER, DurationParam, NumberParam, WholeNumber
from autoscaler.cli.process import run_to_end


@click.command(short_help="Try the daemon on simulated vLLM replicas.")
@click.option("--duration", type=DurationParam(), help="Real time to run; default: until Ctrl-C.")
@click.option(
    "--speed",
    type=NumberParam(1, 600),
    default=60.0,
    show_default=True,
    help="Simulated seconds per real second.",
)
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=1,
    show_default=True,
    help="Random seed for traffic and cold starts.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON summary at the end; without --duration, end after 60s.",
)
@click.option("--record", type=FOLDER, metavar="DIR", help="Folder of a record of the demo; see `run --record`.")
@http_port_option
def demo(duration: float | None, speed: float, seed: int, as_json: bool, record: Path | None, http_port: int) -> None:
    """Run the whole daemon against a built-in fleet of simulated vLLM replicas."""
    from autoscaler.app import demo as app
    from autoscaler.app.logging import configure_log

    configure_log("console", "error" if as_json else "info")
    if duration is None and as_json:
        duration = 60.0
    work = app.demo(duration_s=duration, speed=speed, seed=seed, as_json=as_json, record=record, http_port=http_port)
    run_to_end(work, endless=True)
