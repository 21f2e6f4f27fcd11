"""`webhook`: the mutating webhook for pods that load weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoscaler.cli.options import (
    context_option,
    http_options,
    log_options,
    name_option,
    port_option,
    private_source_option,
)
from autoscaler.cli.param_types import HostPath, ObjectName
from autoscaler.cli.process import run_to_end

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--cert", type=FILE, help="Certificate; awaited, and read again when it changes.")
@click.option("--key", type=FILE, help="Private key of the certificate.")
@click.option(
    "--trust",
    is_flag=True,
    help="Serve nothing: make the CA in --secret where it is missing, write it to --configuration, and end.",
)
@click.option(
    "--secret",
    type=ObjectName(),
    help="Secret with the CA of --trust, to make and renew the certificate in, mounted as --cert and --key; default: "
    "another program, such as cert-manager, keeps them.",
)
@name_option("--namespace", "vllm-autoscaler", "Namespace of the Secret and the Service.")
@name_option("--service", "vllm-autoscaler-webhook", "Service through which the API server calls.")
@name_option("--configuration", "vllm-autoscaler", "MutatingWebhookConfiguration to which --trust writes the CA.")
@click.option(
    "--host-path",
    type=HostPath(),
    help="Folder of the nodes that holds weights, to mount into engines; default: pods get the affinity alone.",
)
@click.option("--image", help="Image of the container that waits for the weights; needs --host-path.")
@click.option(
    "--compile-cache/--no-compile-cache",
    default=False,
    show_default=True,
    help="Let vLLM keep what it compiles in a folder of its namespace below --host-path, if it runs as root.",
)
@private_source_option()
@click.option("--host", default="0.0.0.0", show_default=True, help="Address on which the webhook is served.")
@port_option("--port", 8443, "Port of the webhook")
@context_option
@http_options("0.0.0.0")
@log_options
def webhook(**given: Any) -> None:
    """Let pods prefer nodes that hold their weights, and start from them.

    The API server asks about each pod that is created in a namespace with the label vllm-autoscaler.io/weights=enabled.
    Every pod is allowed, whatever happens.
    """
    if given["trust"] and not given["secret"]:
        raise click.UsageError("--trust needs --secret, which holds the CA")
    if not given["trust"] and not (given["cert"] and given["key"]):
        raise click.UsageError("--cert and --key are missing; only --trust does without them")
    from pydantic import ValidationError

    from autoscaler.app.logging import configure_log
    from autoscaler.config.settings import HttpSettings, KubeSettings, TlsFiles, WebhookSettings

    try:
        from autoscaler.app import webhook as app
    except ImportError as error:
        if error.name is None or error.name.startswith("autoscaler"):
            raise
        message = f"the webhook needs {error.name}, which is not installed: pip install 'vllm-autoscaler[webhook]'"
        raise click.UsageError(message) from error
    try:
        settings = WebhookSettings(
            host=given["host"],
            port=given["port"],
            tls=TlsFiles(cert=given["cert"], key=given["key"]),
            host_path=given["host_path"] or "",
            image=given["image"] or "",
            private_sources=given["private_source"],
            compile_cache=given["compile_cache"],
            secret=given["secret"] or "",
            namespace=given["namespace"],
            service=given["service"],
            configuration=given["configuration"],
            http=HttpSettings(host=given["http_host"], port=given["http_port"]),
            kube=KubeSettings(context=given["context"]),
        )
    except ValidationError as error:
        raise click.UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    configure_log(given["log_format"], given["log_level"])
    run_to_end(app.trust(settings) if given["trust"] else app.webhook(settings), endless=not given["trust"])
