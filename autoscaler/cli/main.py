"""The command line. Exit codes: 0 done, 1 it found a problem, 2 bad usage or configuration, 128 + signal if cut short.

Only `click` is imported here; each command imports what it needs, so that `--help` answers at once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoscaler.cli.lab import replay, simulate
from autoscaler.cli.options import (
    READABLE_FILE,
    Address,
    Duration,
    Number,
    ObjectName,
    OwnFile,
    WholeNumber,
    WorkloadName,
    cluster_options,
    gateway_namespace_option,
    history_option,
    http_options,
    http_port_option,
    log_options,
    policy_options,
    price_option,
    prometheus_options,
    prometheus_settings,
    rate_window_option,
    refuse_unused,
    scrape_options,
    scrape_settings,
    tls_files,
)

if TYPE_CHECKING:
    from autoscaler.config.settings import Settings


@click.group(context_settings={"auto_envvar_prefix": "VLLM_AUTOSCALER", "help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-autoscaler", prog_name="vllm-autoscaler")
def main() -> None:
    """Decide how many replicas each LLM inference Deployment should have, and make it so.

    Every option can also be set in the environment as VLLM_AUTOSCALER_COMMAND_OPTION, such as
    VLLM_AUTOSCALER_RUN_HTTP_PORT.
    """


main.add_command(simulate)
main.add_command(replay)


@main.command()
@click.option(
    "--mode",
    type=click.Choice(["direct", "keda", "dry-run"]),
    required=True,
    help="Who changes the replica count: the daemon, KEDA, or nobody.",
)
@prometheus_options
@rate_window_option
@gateway_namespace_option
@scrape_options
@policy_options
@cluster_options
@price_option
@click.option("--period", type=Duration(), default="5s", show_default=True, help="Time between ticks.")
@click.option("--lease/--no-lease", default=True, show_default=True, help="Elect a leader among the daemon's replicas.")
@click.option(
    "--lease-name", type=ObjectName(), default="vllm-autoscaler", show_default=True, help="Name of the Lease object."
)
@click.option(
    "--lease-namespace",
    type=ObjectName(),
    default="vllm-autoscaler",
    show_default=True,
    help="Namespace of the Lease object.",
)
@history_option
@click.option(
    "--state", type=OwnFile(), help="File that keeps what was learned across restarts; one file for each process."
)
@click.option(
    "--grpc-host", default="0.0.0.0", show_default=True, help="Address on which gRPC is served; with --mode keda."
)
@click.option(
    "--grpc-port",
    type=WholeNumber(0, 65535),
    default=6000,
    show_default=True,
    help="Port of the gRPC server; 0: any free port.",
)
@click.option("--grpc-cert", type=READABLE_FILE, help="Serve gRPC over TLS with this certificate; needs --grpc-key.")
@click.option("--grpc-key", type=READABLE_FILE, help="Private key of that certificate.")
@click.option("--grpc-ca", type=READABLE_FILE, help="Require clients to have a certificate signed by this CA (mTLS).")
@http_options("0.0.0.0")
@log_options
def run(**given: Any) -> None:
    """Run the daemon in the cluster."""
    from autoscaler.app import wiring

    settings = _settings(given)
    wiring.configure_log(given["log_format"], given["log_level"])
    _main(wiring.run(settings), endless=True)


@main.command("dry-run")
@prometheus_options
@rate_window_option
@gateway_namespace_option
@policy_options
@cluster_options
@price_option
@click.option(
    "--cluster/--no-cluster",
    default=False,
    help="Take workloads from the annotated objects of the cluster instead of the labels of metrics.",
)
@history_option
@click.option("--period", type=Duration(), default="15s", show_default=True, help="Time between ticks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per decision instead of the table.")
@click.option("--once", is_flag=True, help="Decide once without history or a page, print the decision and exit.")
@http_options("127.0.0.1")
def dry_run(as_json: bool, once: bool, cluster: bool, **given: Any) -> None:
    """Show what the daemon would do, from metrics alone. Changes nothing."""
    from autoscaler.app import wiring

    if not given["prometheus"]:
        raise click.UsageError("--prometheus URL is missing: dry-run reads metrics from there")
    if not cluster:
        refuse_unused(given, ("context",), "without --cluster")
    settings = _settings({**given, "mode": "dry-run", "cluster": cluster, "lease": False, "once": once})
    wiring.configure_log("console", "error")
    _main(wiring.dry_run(settings, as_json=as_json, once=once), endless=not once)


@main.command(short_help="Try the daemon on simulated vLLM replicas.")
@click.option("--duration", type=Duration(), help="Real time to run; default: until Ctrl-C.")
@click.option(
    "--speed",
    type=Number(1, 600),
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
@http_port_option
def demo(duration: float | None, speed: float, seed: int, as_json: bool, http_port: int) -> None:
    """Run the whole daemon against a built-in fleet of simulated vLLM replicas."""
    from autoscaler.app import wiring

    wiring.configure_log("console", "error" if as_json else "info")
    if duration is None and as_json:
        duration = 60.0
    work = wiring.demo(duration_s=duration, speed=speed, seed=seed, as_json=as_json, http_port=http_port)
    _main(work, endless=True)


@main.command()
@click.argument("workload", type=WorkloadName(), metavar="NAMESPACE/NAME")
@click.option(
    "--url",
    type=Address(),
    default="http://127.0.0.1:8080",
    show_default=True,
    help="Address at which the daemon serves HTTP.",
)
def explain(workload: tuple[str, str], url: str) -> None:
    """Explain why a workload has its current number of replicas."""
    from autoscaler.app import wiring

    _main(wiring.explain(url, *workload), endless=False)


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@policy_options
def check(files: tuple[Path, ...], policies: tuple[Path, ...], default_policy: str) -> None:
    """Validate policies and manifests; - is standard input.

    Each error names file, line, key, value and what is allowed; the exit code is then 1.
    """
    from autoscaler.app import wiring

    _end(lambda: wiring.check(files, policies, default_policy))


def _settings(given: dict[str, Any]) -> Settings:
    """Make settings of options. Bad combinations end with code 2 and a sentence."""
    from pydantic import ValidationError

    from autoscaler.config.settings import (
        HttpSettings,
        KedaSettings,
        KubeSettings,
        LeaseSettings,
        Mode,
        Settings,
        TlsFiles,
    )

    mode = Mode(given["mode"])
    try:
        prometheus = prometheus_settings(given)
        scrape = given.get("scrape")
        if scrape is None:
            scrape = prometheus is None
        if prometheus is None and not scrape:
            raise click.UsageError("no source of metrics: give --prometheus URL, --scrape, or both")
        in_cluster = given.get("cluster", True)
        if mode is not Mode.KEDA:
            refuse_unused(given, ("grpc_",), "without --mode keda")
        keda_tls = TlsFiles(**tls_files(given, "grpc"))
        return Settings(
            mode=mode,
            period_s=given["period"],
            policies=given["policies"],
            default_policy=given["default_policy"],
            gateway_namespaces=given["gateway_namespace"],
            namespaces=given["namespace"],
            prices=given["price"],
            history=given["history"],
            state=given.get("state"),
            prometheus=prometheus,
            scrape=scrape_settings(given, scrape),
            kube=KubeSettings(context=given["context"]) if in_cluster else None,
            lease=LeaseSettings(
                enabled=given["lease"] and mode is not Mode.DRY_RUN,
                **{n: given[f"lease_{n}"] for n in ("name", "namespace") if f"lease_{n}" in given},
            ),
            keda=KedaSettings(host=given["grpc_host"], port=given["grpc_port"], tls=keda_tls)
            if mode is Mode.KEDA
            else None,
            http=None if given.get("once") else HttpSettings(host=given["http_host"], port=given["http_port"]),
        )
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}, found {fault['input']!r}" for fault in error.errors()
        )
        raise click.UsageError("; ".join(faults)) from None


def _main(work: Coroutine[Any, Any, int | None], *, endless: bool) -> None:
    """Run to the end. Ctrl-C and SIGTERM end it cleanly; endless: they are how it is meant to end."""
    from autoscaler.app import wiring

    _end(lambda: asyncio.run(wiring.until_signalled(work, endless=endless)))


def _end(work: Callable[[], int]) -> None:
    """Do the work and exit with its code; expected trouble is one line and code 2."""
    from autoscaler.app import wiring

    try:
        code = work()
    except wiring.StartError as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)
