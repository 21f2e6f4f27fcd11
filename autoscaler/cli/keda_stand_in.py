"""`keda-stand-in`: answers KEDA's question for the specs while no replica of the daemon is ready."""

from __future__ import annotations

from typing import Any

import click

from autoscaler.cli.options import grpc_options, log_options
from autoscaler.cli.param_types import Address
from autoscaler.cli.process import run_to_end


@click.command()
@click.option(
    "--daemon",
    type=Address(),
    default="http://vllm-autoscaler:8080",
    show_default=True,
    metavar="URL",
    help="HTTP Service of the daemon, which has only ready replicas.",
)
@grpc_options
@log_options
def keda_stand_in(**given: Any) -> None:
    """Answer KEDA's question for the specs while no replica of the daemon is ready.

    It stands behind the same Service as the daemon in KEDA mode, and needs no right. Without it KEDA may write an HPA
    without the daemon's metric, so that another trigger alone decides the count.
    """
    from autoscaler.app import keda_stand_in as app
    from autoscaler.app.logging import configure_log
    from autoscaler.cli.settings import tls_files
    from autoscaler.config.settings import KedaSettings, TlsFiles

    tls = TlsFiles(**tls_files(given, "grpc"))
    settings = KedaSettings(host=given["grpc_host"], port=given["grpc_port"], tls=tls)
    configure_log(given["log_format"], given["log_level"])
    run_to_end(app.run(settings, given["daemon"]), endless=True)
