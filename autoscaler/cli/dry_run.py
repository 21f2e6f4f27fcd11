"""`dry-run`: what the daemon would do, from metrics alone."""

from __future__ import annotations

import math
from typing import Any

import click

from autoscaler.cli.options import (
    cluster_options,
    gateway_namespace_option,
    history_option,
    http_options,
    is_given,
    policy_options,
    price_options,
    prometheus_options,
    rate_window_option,
    record_options,
    refuse_unused,
)
from autoscaler.cli.param_types import DurationParam
from autoscaler.cli.process import run_to_end
from autoscaler.cli.settings import daemon_settings


@click.command("dry-run")
@prometheus_options
@rate_window_option
@gateway_namespace_option
@policy_options
@cluster_options
@price_options
@click.option(
    "--cluster/--no-cluster",
    default=False,
    help="Take workloads from the annotated objects of the cluster instead of the labels of metrics.",
)
@history_option
@record_options
@click.option("--period", type=DurationParam(), default="15s", show_default=True, help="Time between ticks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per decision instead of the table.")
@click.option(
    "--gpus-per-replica",
    type=click.FloatRange(0, 1024, min_open=True),
    default=math.nan,
    help="GPUs of a replica where no metric of DCGM exporter tells. Without it they are unknown there.",
)
@click.option("--once", is_flag=True, help="Decide once without history or a page, print the decision and exit.")
@http_options("127.0.0.1")
def dry_run(as_json: bool, once: bool, cluster: bool, gpus_per_replica: float, **given: Any) -> None:
    """Show what the daemon would do, from metrics alone. Changes nothing."""
    from autoscaler.app import dry_run as app
    from autoscaler.app.logging import configure_log

    if not given["prometheus"]:
        raise click.UsageError("--prometheus URL is missing: dry-run reads metrics from there")
    if cluster and is_given("gpus_per_replica"):
        raise click.UsageError("--gpus-per-replica has no effect with --cluster: templates of pods state their GPUs")
    if not cluster:
        refuse_unused(given, ("context", "target_kind", "node_group_max", "team_label", "quotas"), "without --cluster")
    settings = daemon_settings({**given, "mode": "dry-run", "cluster": cluster, "lease": False, "once": once})
    configure_log("console", "error")
    run_to_end(app.dry_run(settings, as_json=as_json, once=once, gpus_per_replica=gpus_per_replica), endless=not once)
