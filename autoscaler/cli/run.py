"""`run`: the daemon in a cluster."""

from __future__ import annotations

from typing import Any

import click

from autoscaler.cli.options import (
    cluster_options,
    gateway_namespace_option,
    grpc_options,
    history_option,
    http_options,
    log_options,
    name_option,
    policy_options,
    price_options,
    prometheus_options,
    rate_window_option,
    record_options,
    scrape_options,
    source_rule_options,
)
from autoscaler.cli.param_types import DurationParam, OwnFile
from autoscaler.cli.process import run_to_end
from autoscaler.cli.settings import daemon_settings


@click.command()
@click.option(
    "--mode",
    type=click.Choice(["direct", "keda", "dry-run"]),
    required=True,
    help="Who changes the replica count: the daemon, KEDA, or nobody. With keda each ScaledObject states "
    "minReplicaCount: 1, unless its policy enables scaleToZero.",
)
@prometheus_options
@rate_window_option
@gateway_namespace_option
@scrape_options
@policy_options
@cluster_options
@price_options
@click.option("--period", type=DurationParam(), default="5s", show_default=True, help="Time between ticks.")
@click.option("--lease/--no-lease", default=True, show_default=True, help="Elect a leader among the daemon's replicas.")
@name_option("--lease-name", "vllm-autoscaler", "Name of the Lease object.")
@name_option("--lease-namespace", "vllm-autoscaler", "Namespace of the Lease object.")
@click.option(
    "--deletion-cost/--no-deletion-cost",
    default=True,
    show_default=True,
    help="Annotate pods before a shrink, so that their ReplicaSet removes those with the fewest requests; "
    "needs manifests/shrink/rbac.yaml.",
)
@click.option(
    "--weights/--no-weights",
    default=False,
    show_default=True,
    help="Plan which nodes should hold which weights, and publish it for the agents of nodes; "
    "needs manifests/weights. With --mode dry-run the plan is only shown.",
)
@click.option(
    "--request-nodes",
    type=click.Choice(["off", "auto", "capacity-buffer", "placeholder"]),
    default="off",
    show_default=True,
    help="Request nodes before a pre-warm window, or a rise of the load of a day or a week ago, if its replicas lack a "
    "place; auto: by a CapacityBuffer where the cluster has them, else by placeholder pods; needs manifests/prewarm.",
)
@click.option(
    "--pull-images/--no-pull-images",
    default=False,
    show_default=True,
    help="Let placeholder pods pull the image of the engine to a requested node, and with --weights to nodes that get "
    "weights, without running it; with --request-nodes, which then means placeholder, on Kubernetes 1.35 or newer.",
)
@click.option("--placeholder-image", help="Image of placeholder pods; default: that of Kubernetes' pause container.")
@click.option(
    "--weights-hub",
    default="https://huggingface.co",
    show_default=True,
    help="URL of the hub whose index states the size of weights, where neither annotation, policy nor agent does; "
    "empty: no hub is asked.",
)
@source_rule_options("weights-")
@history_option
@click.option(
    "--state", type=OwnFile(), help="File that keeps what was learned across restarts; one file for each process."
)
@record_options
@grpc_options
@http_options("0.0.0.0")
@log_options
def run(**given: Any) -> None:
    """Run the daemon in the cluster."""
    from autoscaler.app import run as app
    from autoscaler.app.logging import configure_log

    settings = daemon_settings(given)
    configure_log(given["log_format"], given["log_level"])
    run_to_end(app.run(settings), endless=True)
