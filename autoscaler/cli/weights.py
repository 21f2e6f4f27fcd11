"""`weights`: models on this machine's disk."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from autoscaler.cli.options import context_option, http_options, log_options, name_option, options, source_rule_options
from autoscaler.cli.param_types import (
    READABLE_FILE,
    AllowedSource,
    ByteCount,
    DurationParam,
    FreeSpace,
    HostPath,
    ObjectName,
    PeerAddress,
    ServiceParam,
)
from autoscaler.cli.process import exit_with, run_to_end

root_option = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for weights on a local disk. Engines use its subfolder hub as HF_HUB_CACHE.",
)
sources_argument = click.argument("sources", nargs=-1, required=True)

limit_options = options(
    click.option(
        "--max-bytes", type=ByteCount(), metavar="BYTES", help="Most for all weights: 500GB; default: the disk."
    ),
    click.option(
        "--min-free",
        type=FreeSpace(),
        default="5%",
        show_default=True,
        metavar="BYTES|PERCENT",
        help="Space of the disk that stays free: 5%, 50GB.",
    ),
)
fetch_options = options(
    click.option(
        "--hub", default="https://huggingface.co", show_default=True, envvar="HF_ENDPOINT", help="URL of the hub."
    ),
    click.option("--token-file", type=READABLE_FILE, help="File with the hub's token; default: HF_TOKEN."),
    click.option("--allow-pickled", is_flag=True, help="Fetch weights that may run code when an engine loads them."),
    click.option("--rate", type=ByteCount(), metavar="BYTES", help="Most bytes per second: 200MB; default: no limit."),
    click.option(
        "--workers",
        type=click.IntRange(1, 64),
        default=8,
        show_default=True,
        help="Ranges of 8 MiB at a time; each takes 13 MiB of memory.",
    ),
)


own_source_option = click.option(
    "--allow-source",
    type=AllowedSource(),
    multiple=True,
    help="Sources that may be fetched: hf://my-org/*, s3://models/**; may be repeated; default: all.",
)

FILE = click.Path(dir_okay=False, path_type=Path)
peer_options = options(
    click.option(
        "--peer-token-file",
        type=FILE,
        help="File with the token that all agents share and sign their requests with; default: agents share nothing.",
    ),
    click.option(
        "--peer-service",
        type=ServiceParam(),
        help="Headless Service of the agents, as NAMESPACE/NAME; its port `peers` is where they share models.",
    ),
    click.option("--peer", type=PeerAddress(), multiple=True, help="An agent, where there is no Service; repeated."),
    click.option("--peer-host", default="", help="Address on which models are shared; default: all."),
    click.option(
        "--peer-port",
        type=click.IntRange(0, 65535),
        default=8474,
        show_default=True,
        help="Port on which models are shared; 0: any.",
    ),
    click.option(
        "--peer-rate",
        type=ByteCount(),
        metavar="BYTES",
        help="Most bytes per second to other agents; default: no limit.",
    ),
    click.option("--peer-tls-cert", type=FILE, help="Certificate of this agent, for TLS in both directions."),
    click.option("--peer-tls-key", type=FILE, help="Key of the certificate."),
    click.option("--peer-tls-ca", type=FILE, help="Authority that signed the certificates of all agents."),
)


def _app(name: str = "weights") -> ModuleType:
    try:
        app = import_module(f"autoscaler.app.{name}")
    except ImportError as error:
        if error.name is None or error.name.startswith("autoscaler"):
            raise
        message = f"weights need {error.name}, which is not installed: pip install 'vllm-autoscaler[weights]'"
        raise click.UsageError(message) from error
    return app


@click.group()
def weights() -> None:
    """Fetch, list, verify and remove models on this machine's disk.

    A source is hf://ORGANISATION/NAME@REVISION, s3://, gs://, az:// with bucket and prefix, https:// or file://. Object
    stores take credentials and endpoints from the environment variables of their own tools.
    """


@weights.command()
@sources_argument
@root_option
@limit_options
@fetch_options
@own_source_option
@click.option(
    "--wait",
    type=DurationParam(),
    default="1h",
    show_default=True,
    help="Time to wait while another process fetches into the folder.",
)
def pull(sources: tuple[str, ...], root: Path, wait: float, **given: Any) -> None:
    """Fetch models, verify every file, and publish each as a whole. Files that are there are not fetched again."""
    app = _app()

    fetching = app.FetchOptions(given, app.own_rules(given))
    run_to_end(app.pull(root, app.limits(given), sources, fetching, wait), endless=False)


node_options = options(
    root_option,
    click.option(
        "--wishes",
        type=READABLE_FILE,
        help="YAML list of sources, the most urgent first, read again when it changes; default: what the daemon wishes "
        "on --node.",
    ),
    click.option(
        "--node",
        type=ObjectName(),
        help="Name of this machine's node, whose pods are watched and which is labelled; default: no API server is "
        "used.",
    ),
    name_option(
        "--namespace", "vllm-autoscaler", "Namespace of the daemon, which holds the ConfigMaps with its wishes."
    ),
    context_option,
    click.option(
        "--as-node",
        is_flag=True,
        help="Read pods as the user of --node, which sees those of this node alone: Kubernetes 1.36 and a right to "
        "impersonate it.",
    ),
    click.option(
        "--max-cache-bytes",
        type=ByteCount(),
        default="50GB",
        show_default=True,
        metavar="BYTES",
        help="Most for the compile caches of engines, within --max-bytes.",
    ),
    limit_options,
    fetch_options,
    source_rule_options(),
)


@weights.command()
@node_options
@peer_options
@http_options("0.0.0.0")
@log_options
def agent(**given: Any) -> None:
    """Keep the weights that are wished on this node: fetch, verify, evict, and report them as labels of the node."""
    app = _app("weights_agent")
    from autoscaler.app.logging import configure_log

    configure_log(given["log_format"], given["log_level"])
    run_to_end(app.run(given), endless=True)


@weights.command()
@node_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(as_json: bool, **given: Any) -> None:
    """Print what the agent would fetch and evict now, and change nothing."""
    app = _app("weights_agent")

    run_to_end(app.plan(given, as_json), endless=False)


@weights.command("ls")
@root_option
def show(root: Path) -> None:
    """List the models that are complete, with size and the path that engines load; then those that an agent awaits."""
    app = _app()

    exit_with(lambda: app.show(root))


@weights.command()
@click.argument("sources", nargs=-1)
@root_option
def verify(sources: tuple[str, ...], root: Path) -> None:
    """Read models whole, and compare sizes and checksums; without a source: all."""
    app = _app()

    exit_with(lambda: app.verify(root, sources))


@weights.command()
@click.argument("source")
@root_option
@click.option(
    "--into",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    required=True,
    help="Folder of the pod, from which its engine loads.",
)
@click.option(
    "--timeout",
    type=DurationParam(),
    default="5m",
    show_default=True,
    help="Time in which nothing arrives from the node's agent, before the pod fetches the model for itself.",
)
@fetch_options
@own_source_option
def wait(source: str, root: Path, into: Path, timeout: float, **given: Any) -> None:
    """Wait until the node has a model, as an init container of an engine: link to it, or else fetch it for this pod."""
    app = _app()
    from autoscaler.app import weights_wait

    fetching = app.FetchOptions(given, app.own_rules(given))
    run_to_end(weights_wait.wait(root, into, source, timeout, fetching), endless=False)


@weights.command()
@click.argument("source")
@click.option(
    "--container", type=ObjectName(), default="vllm", show_default=True, help="Name of the engine's container."
)
@click.option(
    "--host-path",
    type=HostPath(),
    default="/mnt/disks/ssd0/weights",
    show_default=True,
    help="Folder of the nodes that holds weights.",
)
@click.option("--image", default="vllm-autoscaler", show_default=True, help="Image of the container that waits.")
def snippet(source: str, container: str, host_path: str, image: str) -> None:
    """Print a patch with which pods prefer nodes that hold a model, and start from the weights there."""
    from autoscaler.app import weights_snippet as app

    exit_with(lambda: app.snippet(source, container, host_path, image))


@weights.command("rm")
@sources_argument
@root_option
def remove(sources: tuple[str, ...], root: Path) -> None:
    """Remove models. Do not remove what an engine is loading."""
    app = _app()

    exit_with(lambda: app.remove(root, sources))
