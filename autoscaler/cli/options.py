"""Groups of options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from autoscaler.cli.param_types import (
    EXISTING,
    FOLDER,
    READABLE_FILE,
    Address,
    AllowedSource,
    DurationParam,
    GatewayNamespace,
    Header,
    LabelKey,
    Matchers,
    MetricName,
    NamespaceFile,
    NodeGroupMax,
    ObjectName,
    PriceParam,
    PrivateSource,
    TargetKind,
    WholeNumber,
)

Command = TypeVar("Command", bound=Callable[..., Any])


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Apply several click options as one decorator."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def name_option(option: str, default: str, about: str) -> Callable[[Command], Command]:
    """Return an option that names an object of Kubernetes."""
    return click.option(option, type=ObjectName(), default=default, show_default=True, help=about)


def port_option(option: str, default: int, about: str) -> Callable[[Command], Command]:
    """Return an option for a port that is served."""
    about = f"{about}; 0: any free port."
    return click.option(option, type=WholeNumber(0, 65535), default=default, show_default=True, help=about)


def team_label_option(about: str) -> Callable[[Command], Command]:
    """Return an option for the label that names teams."""
    return click.option("--team-label", type=LabelKey(), default="team", show_default=True, help=about)


context_option = click.option(
    "--context", help="Context of the kubeconfig; default: the pod's own cluster, else the current context."
)
prometheus_options = options(
    click.option("--prometheus", type=Address(), metavar="URL", help="Prometheus, or any server with its query API."),
    click.option(
        "--prometheus-header", type=Header(), multiple=True, help="Header sent with each query: 'X-Scope-OrgID: a'."
    ),
    click.option(
        "--prometheus-token-file", type=READABLE_FILE, help="File with a bearer token; read again when it changes."
    ),
    click.option("--prometheus-username", help="User name for basic authentication."),
    click.option(
        "--prometheus-password-file", type=READABLE_FILE, help="File with the password for basic authentication."
    ),
    click.option("--prometheus-ca", type=READABLE_FILE, help="CA certificate that signed the server's certificate."),
    click.option("--prometheus-cert", type=READABLE_FILE, help="Client certificate; needs --prometheus-key."),
    click.option("--prometheus-key", type=READABLE_FILE, help="Private key of the client certificate."),
    click.option(
        "--prometheus-selector",
        type=Matchers(),
        default="",
        metavar="MATCHERS",
        help="Label matchers put into every query, such as 'cluster=\"prod\"' where a server has several clusters.",
    ),
    click.option(
        "--metric-prefix",
        type=MetricName(),
        multiple=True,
        help="What stands before the engines' names of metrics; kserve_ and ray_ are found by themselves.",
    ),
    click.option(
        "--prometheus-timeout", type=DurationParam(), default="10s", show_default=True, help="Time limit for one query."
    ),
)
scrape_options = options(
    click.option(
        "--scrape/--no-scrape",
        default=None,
        help="Read metrics from the pods themselves; default: only without --prometheus.",
    ),
    click.option("--dcgm", type=Address(), metavar="URL", multiple=True, help="DCGM exporter to read directly."),
    click.option(
        "--gateway",
        type=Address(),
        metavar="URL",
        multiple=True,
        help="Metrics endpoint of a gateway to read directly.",
    ),
    click.option(
        "--scrape-ca", type=READABLE_FILE, help="CA certificate that signed those of servers that are read directly."
    ),
    click.option("--scrape-cert", type=READABLE_FILE, help="Client certificate for them; needs --scrape-key."),
    click.option("--scrape-key", type=READABLE_FILE, help="Private key of the client certificate."),
    click.option(
        "--scrape-verify",
        type=click.Choice(["full", "ca", "none"]),
        default="full",
        show_default=True,
        help="Certificates that are accepted: signed and for the address, signed by the CA, or any.",
    ),
    click.option(
        "--scrape-token",
        type=NamespaceFile(),
        multiple=True,
        help="File with the bearer token for the pods of a namespace; sent over https alone.",
    ),
    click.option(
        "--gateway-token-file", type=READABLE_FILE, help="File with a bearer token for gateways; sent over https alone."
    ),
)
rate_window_option = click.option(
    "--rate-window",
    type=DurationParam(least_s=10),
    default="2m",
    show_default=True,
    help="Window for rates and quantiles; at least four scrape intervals.",
)
policy_options = options(
    click.option(
        "--policies",
        "--policy",
        type=EXISTING,
        multiple=True,
        help="File or folder with policies; default: the shipped policies.",
    ),
    click.option(
        "--default-policy", default="interactive", show_default=True, help="Policy of workloads that name none."
    ),
)
gateway_namespace_option = click.option(
    "--gateway-namespace",
    type=GatewayNamespace(),
    multiple=True,
    help="Namespace whose gateways are believed about workloads of other namespaces, besides the usual gateway "
    "namespaces; * for all.",
)


def _refuse_two_prices(
    ctx: click.Context, param: click.Parameter, prices: tuple[tuple[str, float], ...]
) -> tuple[tuple[str, float], ...]:
    """Return the prices, unless one device has two."""
    stated = dict(prices)
    for device, usd in prices:
        if stated[device] != usd:
            raise click.BadParameter(
                f"{device} has two prices, {usd:g} and {stated[device]:g}; allowed: one", ctx, param
            )
    return prices


price_option = click.option(
    "--price",
    type=PriceParam(),
    multiple=True,
    callback=_refuse_two_prices,
    help="Price of an hour of a device; PRODUCT is any name of the whole device, such as NVIDIA-L4, nvidia-l4 or "
    "g6.xlarge. PRODUCT@spot, @on-demand or @reserved is the price on such nodes. Others have list prices of 2026.",
)
price_file_option = click.option(
    "--price-file",
    type=READABLE_FILE,
    help="File with such prices; --price goes before it.",
)
price_options = options(price_option, price_file_option)
history_option = click.option(
    "--history/--no-history",
    default=True,
    show_default=True,
    help="At the start, learn from Prometheus: the last 3 hours where no saved state can be used, and the load of the "
    "last week where it is not known.",
)
cluster_options = options(
    click.option(
        "--namespace",
        type=ObjectName(),
        multiple=True,
        help="Namespace of workloads, may be repeated; default: all.",
    ),
    click.option(
        "--system-namespace",
        type=ObjectName(),
        multiple=True,
        help="Namespace whose workloads are scaled although its name begins with kube-, or the daemon runs there; may "
        "be repeated. So are those of each --namespace. manifests/direct/scale-policy.yaml needs its name too.",
    ),
    click.option(
        "--target-kind",
        type=TargetKind(),
        multiple=True,
        help="Custom kind that may be scaled, such as rollouts.argoproj.io, may be repeated; none: Deployments and "
        "StatefulSets only; default: all known kinds that the cluster serves and the daemon may list.",
    ),
    click.option(
        "--node-group-max",
        type=NodeGroupMax(),
        multiple=True,
        help="Most nodes with a label that an autoscaler may create, such as cloud.google.com/gke-nodepool=l4:12, may "
        "be repeated; default: as Karpenter and cluster-autoscaler say, else today's nodes.",
    ),
    team_label_option("Label of workloads, their pods or namespaces that names their team."),
    click.option(
        "--quotas",
        type=READABLE_FILE,
        help="File with quotas of GPUs, for workloads that no ResourceQuota and no ClusterQueue of Kueue charges; read "
        "again when it changes.",
    ),
    context_option,
)
record_options = options(
    click.option(
        "--record",
        type=FOLDER,
        metavar="DIR",
        help="Folder of the record: every decision, and what is needed to compute it again; one for each process.",
    ),
    click.option(
        "--record-mb",
        type=WholeNumber(10, 1_000_000),
        default=100,
        show_default=True,
        help="Most megabytes of the record. The oldest inputs are removed first, then the oldest decisions.",
    ),
    click.option(
        "--record-days", type=WholeNumber(1, 366), default=7, show_default=True, help="Days that the record keeps."
    ),
)
team_options = options(
    click.option("--team", multiple=True, metavar="NAME", help="Only services of this team, may be repeated."),
    team_label_option("Label of workloads, pods or namespaces that names their team, as kube-state-metrics shows it."),
)
http_port_option = port_option("--http-port", 8080, "Port for the page, the API and the daemon's own metrics")


def http_options(host: str) -> Callable[[Command], Command]:
    """Return options for the HTTP address; its default host is `host`."""
    address = click.option("--http-host", default=host, show_default=True, help="Address on which HTTP is served.")
    return options(address, http_port_option)


grpc_options = options(
    click.option("--grpc-host", default="0.0.0.0", show_default=True, help="Address on which gRPC is served for KEDA."),
    port_option("--grpc-port", 6000, "Port of the gRPC server"),
    click.option(
        "--grpc-cert", type=READABLE_FILE, help="Serve gRPC over TLS with this certificate; needs --grpc-key."
    ),
    click.option("--grpc-key", type=READABLE_FILE, help="Private key of that certificate."),
    click.option(
        "--grpc-ca", type=READABLE_FILE, help="Require clients to have a certificate signed by this CA (mTLS)."
    ),
)
log_options = options(
    click.option(
        "--log-format",
        type=click.Choice(["json", "console"]),
        default="json",
        show_default=True,
        help="Format of log lines.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Least severe level that is logged.",
    ),
)


def refuse_unused(given: dict[str, Any], beginnings: tuple[str, ...], where: str) -> None:
    """Refuse options without effect, with `where` as the condition: they would be ignored silently.

    Options from the environment apply to all commands, and a command may ignore them.
    """
    for name in given:
        if name.startswith(beginnings) and is_given(name):
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect {where}")


def is_given(name: str) -> bool:
    """Return whether the command line itself has this option of the present command."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def source_rule_options(prefix: str = "") -> Callable[[Command], Command]:
    """Return the options that say which sources are fetched on behalf of workloads. prefix: "weights-"."""
    return options(
        click.option(
            f"--{prefix}allow-source",
            type=AllowedSource(),
            multiple=True,
            help="Sources that may be fetched: hf://my-org/*, s3://models/**; may be repeated; default: hf://**.",
        ),
        private_source_option(prefix),
    )


def private_source_option(prefix: str = "") -> Callable[[Command], Command]:
    """Return the option that names sources with credentials, and the namespaces that they serve."""
    return click.option(
        f"--{prefix}private-source",
        type=PrivateSource(),
        multiple=True,
        help="Sources that are fetched with the agents' credentials, and the namespaces that they serve: "
        "hf://my-org/*=team-a,team-b, or =* for all; may be repeated. Others are fetched without credentials. Agents, "
        "webhook and daemon need the same.",
    )
