"""The command line. Exit codes: 0 done, 1 it found a problem, 2 bad usage or configuration.

Only `click` is imported here; each command imports what it needs, so that `--help` answers at once.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from autoscaler.config.settings import PrometheusSettings, Settings

Command = TypeVar("Command", bound=Callable[..., Any])

EXISTING = click.Path(exists=True, path_type=Path)
READABLE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OBJECT_NAMES = "letters a-z, digits, - and ., at most 253"


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds, written as in policies: `500ms`, `5s`, `2m`; above zero, at most a day."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from autoscaler.config.values import read_duration

        try:
            duration_s = read_duration(value)
            if not 0 < duration_s <= 86_400:
                raise ValueError("out of bounds")
        except ValueError as error:
            self.fail(f"{error}, found {value!r}; allowed: 500ms, 5s, 2m and the like, at most 24h", param, ctx)
        return duration_s


class Address(click.ParamType):  # type: ignore[type-arg]
    """URL of a server. A user, a password and a query are not repeated in errors."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parts = urlsplit(value)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            public = value.partition("?")[0].rpartition("@")[2][:100]
            self.fail(f"not the URL of a server, found {public!r}; allowed: http://host:port/path", param, ctx)
        return str(value)


class ObjectName(click.ParamType):  # type: ignore[type-arg]
    """Name of an object of Kubernetes."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_object_name(value):
            self.fail(f"not a name, found {value[:100]!r}; allowed: {OBJECT_NAMES}", param, ctx)
        return str(value)


def is_object_name(text: str) -> bool:
    return len(text) <= 253 and re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", text, re.ASCII) is not None


class Price(click.ParamType):  # type: ignore[type-arg]
    """`PRODUCT=USD`."""

    name = "product=usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        product, equals, price = value.partition("=")
        try:
            usd = float(price)
        except ValueError:
            usd = -1.0
        if not (product and equals and 0 <= usd < 1e6):
            self.fail(f"{value!r} is not a price: write PRODUCT=USD, as NVIDIA-H100-80GB-HBM3=2.5", param, ctx)
        return product, usd


class Header(click.ParamType):  # type: ignore[type-arg]
    """`Name: value`."""

    name = "name: value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, colon, content = value.partition(":")
        if not colon or not name.strip():
            self.fail(f"{value!r} is not a header: write 'Name: value'", param, ctx)
        return name.strip(), content.strip()


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Apply several click options as one decorator."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


prometheus_options = options(
    click.option("--prometheus", type=Address(), metavar="URL", help="Prometheus, or what speaks its query API."),
    click.option("--prometheus-header", type=Header(), multiple=True, help="Sent with each query: 'X-Scope-OrgID: a'."),
    click.option("--prometheus-token-file", type=READABLE_FILE, help="Bearer token; read again when it changes."),
    click.option("--prometheus-username", help="Basic authentication."),
    click.option("--prometheus-password-file", type=READABLE_FILE),
    click.option("--prometheus-ca", type=READABLE_FILE, help="CA that signed the server's certificate."),
    click.option("--prometheus-cert", type=READABLE_FILE, help="Client certificate."),
    click.option("--prometheus-key", type=READABLE_FILE),
    click.option("--prometheus-timeout", type=Duration(), default="10s", show_default=True),
    click.option("--rate-window", type=Duration(), default="2m", show_default=True, help="At least four scrapes."),
)
policy_options = options(
    click.option("--policies", "--policy", type=EXISTING, multiple=True, help="File or folder; default: the shipped."),
    click.option("--default-policy", default="interactive", show_default=True, help="For workloads that name none."),
)
price_option = click.option("--price", type=Price(), multiple=True, help="Of a GPU-hour, for choosing among variants.")
cluster_options = options(
    click.option("--namespace", type=ObjectName(), multiple=True, help="Namespace to watch; default: all."),
    click.option("--context", help="Context of the kubeconfig; default: in the cluster, else the current one."),
)
http_options = options(
    click.option("--http-host", default="0.0.0.0", show_default=True),
    click.option("--http-port", type=click.IntRange(0, 65535), default=8080, show_default=True),
)
log_options = options(
    click.option("--log-format", type=click.Choice(["json", "console"]), default="json", show_default=True),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
    ),
)


@click.group(context_settings={"auto_envvar_prefix": "VLLM_AUTOSCALER", "help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vllm-autoscaler", prog_name="vllm-autoscaler")
def main() -> None:
    """Decide how many replicas each LLM inference Deployment should have, and make it so."""


@main.command()
@click.option("--mode", type=click.Choice(["direct", "keda", "dry-run"]), required=True, help="Who changes replicas.")
@prometheus_options
@click.option("--scrape/--no-scrape", default=None, help="Read the pods directly; default: without --prometheus.")
@click.option("--dcgm", type=Address(), metavar="URL", multiple=True, help="DCGM exporter to read directly.")
@click.option("--gateway", type=Address(), metavar="URL", multiple=True, help="Metrics of a gateway to read directly.")
@policy_options
@cluster_options
@price_option
@click.option("--period", type=Duration(), default="5s", show_default=True, help="From tick to tick.")
@click.option("--lease/--no-lease", default=True, show_default=True, help="Leader election among replicas.")
@click.option("--lease-name", type=ObjectName(), default="vllm-autoscaler", show_default=True)
@click.option("--lease-namespace", type=ObjectName(), default="vllm-autoscaler", show_default=True)
@click.option("--grpc-host", default="0.0.0.0", show_default=True)
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=6000, show_default=True)
@click.option("--grpc-cert", type=READABLE_FILE, help="Serve gRPC over TLS with this certificate.")
@click.option("--grpc-key", type=READABLE_FILE)
@click.option("--grpc-ca", type=READABLE_FILE, help="Ask clients for a certificate signed by this CA (mTLS).")
@http_options
@log_options
def run(**given: Any) -> None:
    """Run the daemon in the cluster."""
    from autoscaler import app

    settings = _settings(given)
    app.configure_log(given["log_format"], given["log_level"])
    _main(app.run(settings))


@main.command("dry-run")
@prometheus_options
@policy_options
@cluster_options
@price_option
@click.option("--cluster/--no-cluster", default=False, help="Follow the real objects of a cluster as well.")
@click.option("--period", type=Duration(), default="15s", show_default=True, help="From tick to tick.")
@click.option("--json", "as_json", is_flag=True, help="One line per decision instead of the table.")
@click.option("--once", is_flag=True, help="Decide once, print, and end.")
@click.option("--http-host", default="127.0.0.1", show_default=True)
@click.option("--http-port", type=click.IntRange(0, 65535), default=8080, show_default=True)
def dry_run(as_json: bool, once: bool, cluster: bool, **given: Any) -> None:
    """Show what would be done, from nothing but metrics. Changes nothing."""
    from autoscaler import app

    if not given["prometheus"]:
        raise click.UsageError("--prometheus URL is missing: dry-run reads metrics from there")
    settings = _settings({**given, "mode": "dry-run", "cluster": cluster, "lease": False, "once": once})
    app.configure_log("console", "error")
    _main(app.dry_run(settings, as_json=as_json, once=once))


@main.command()
@click.option("--duration", type=Duration(), help="Real time after which it ends; default: until Ctrl-C.")
@click.option(
    "--speed", type=click.FloatRange(1, 600), default=60.0, show_default=True, help="Simulated per real time."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of traffic and cold starts.")
@click.option(
    "--json", "as_json", is_flag=True, help="End by itself (after 60s unless --duration) with a JSON summary."
)
@click.option("--http-port", type=click.IntRange(0, 65535), default=8080, show_default=True)
def demo(duration: float | None, speed: float, seed: int, as_json: bool, http_port: int) -> None:
    """Run the whole daemon on an embedded fleet of simulated vLLM replicas."""
    from autoscaler import app

    app.configure_log("console", "error" if as_json else "info")
    if duration is None and as_json:
        duration = 60.0
    _main(app.demo(duration_s=duration, speed=speed, seed=seed, as_json=as_json, http_port=http_port))


@main.command()
@click.argument("workload", metavar="NAMESPACE/NAME")
@click.option(
    "--url", type=Address(), default="http://127.0.0.1:8080", show_default=True, help="Where the daemon serves HTTP."
)
def explain(workload: str, url: str) -> None:
    """Print why a workload has the replicas it has."""
    from autoscaler import app

    namespace, _, name = workload.partition("/")
    if not (is_object_name(namespace) and is_object_name(name)):
        raise click.UsageError(f"{workload[:200]!r} is not a workload: write NAMESPACE/NAME, each of {OBJECT_NAMES}")
    _main(app.explain(url, namespace, name))


@main.command()
@click.argument("files", nargs=-1, required=True, type=EXISTING)
@policy_options
def check(files: tuple[Path, ...], policies: tuple[Path, ...], default_policy: str) -> None:
    """Validate policies and manifests; exit 1 with file, line, key, value and what is allowed."""
    from autoscaler import app

    raise SystemExit(app.check(files, policies, default_policy))


def _settings(given: dict[str, Any]) -> Settings:
    """Make settings of options. Bad combinations end with code 2 and a sentence."""
    from pydantic import ValidationError

    from autoscaler.config.settings import (
        HttpSettings,
        KedaSettings,
        KubeSettings,
        LeaseSettings,
        Mode,
        ScrapeSettings,
        Settings,
        TlsFiles,
    )

    mode = Mode(given["mode"])
    try:
        prometheus = _prometheus(given)
        scrape = given.get("scrape")
        if scrape is None:
            scrape = prometheus is None
        if prometheus is None and not scrape:
            raise click.UsageError("no source of metrics: give --prometheus URL, --scrape, or both")
        dcgm, gateways = given.get("dcgm", ()), given.get("gateway", ())
        in_cluster = given.get("cluster", True)
        keda_tls = TlsFiles(**_tls(given, "grpc"))
        return Settings(
            mode=mode,
            period_s=given["period"],
            policies=given["policies"],
            default_policy=given["default_policy"],
            prices=given["price"],
            prometheus=prometheus,
            scrape=ScrapeSettings(pods=scrape, dcgm=dcgm, gateways=gateways) if scrape or dcgm or gateways else None,
            kube=KubeSettings(namespaces=given["namespace"], context=given["context"]) if in_cluster else None,
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


def _prometheus(given: dict[str, Any]) -> PrometheusSettings | None:
    if not given["prometheus"]:
        _without(given, "prometheus")
        return None
    from autoscaler.config.settings import PrometheusSettings, TlsFiles

    return PrometheusSettings(
        url=given["prometheus"],
        headers=given["prometheus_header"],
        token_file=given["prometheus_token_file"],
        username=given["prometheus_username"],
        password_file=given["prometheus_password_file"],
        tls=TlsFiles(**_tls(given, "prometheus")),
        timeout_s=given["prometheus_timeout"],
        rate_window_s=given["rate_window"],
    )


def _tls(given: dict[str, Any], prefix: str) -> dict[str, Path | None]:
    """Pick certificate options; those that go together must come together."""
    files = {part: given.get(f"{prefix}_{part}") for part in ("ca", "cert", "key")}
    if (files["cert"] is None) != (files["key"] is None):
        missing = f"--{prefix}-{'key' if files['cert'] else 'cert'}"
        raise click.UsageError(f"{missing} is missing: --{prefix}-cert and --{prefix}-key go together")
    return files


def _without(given: dict[str, Any], server: str) -> None:
    """Refuse options of a server that is not given: they would be ignored silently."""
    context = click.get_current_context()
    for name in given:
        if name.startswith(f"{server}_") and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} without --{server} URL")


def _main(work: Coroutine[Any, Any, int | None]) -> None:
    """Run to the end. Ctrl-C and SIGTERM end it cleanly; expected trouble is one line and code 2."""
    from autoscaler import app

    try:
        code = asyncio.run(app.until_signalled(work))
    except app.StartError as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    sys.exit(code or 0)
