"""Options of the command line: how each is written, read and refused, and the groups of them that commands share.

Only `click` is imported here; what needs more imports it when it is used, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from autoscaler.config.settings import PrometheusSettings, ScrapeSettings

Command = TypeVar("Command", bound=Callable[..., Any])

EXISTING = click.Path(exists=True, path_type=Path)
READABLE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"-?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})", re.ASCII)
OBJECT_NAMES = "at most 253 characters of a-z, 0-9, - and ."


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds, written as in policies: `500ms`, `5s`, `2m`; above zero, at most a day where nothing else is said.

    least_s: None: anything above zero.
    """

    name = "duration"

    def __init__(self, most_s: int = 86_400, least_s: int | None = None) -> None:
        self._most_s = most_s
        self._least_s = least_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from autoscaler.config.values import read_duration

        try:
            duration_s = read_duration(value)
            enough = duration_s > 0 if self._least_s is None else duration_s >= self._least_s
            if not (enough and duration_s <= self._most_s):
                raise ValueError("out of bounds")
        except ValueError as error:
            least = "above 0" if self._least_s is None else f"at least {self._least_s}s"
            most = f"{self._most_s // 3600}h" if self._most_s >= 3600 else f"{self._most_s}s"
            allowed = f"a duration such as 500ms, 5s or 2m, {least} and at most {most}"
            self.fail(f"{error}, found {value!r}; allowed: {allowed}", param, ctx)
        return duration_s


class Number(click.FloatRange):
    """Plain decimal number in a range; NaN, which is neither below nor above anything, is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if value == "nan":
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        if isinstance(value, str) and not _DECIMAL.fullmatch(value):
            self.fail(f"not a number, found {value[:100]!r}; allowed: {self._describe_range()}", param, ctx)
        return float(super().convert(value, param, ctx))


class WholeNumber(click.IntRange):
    """Whole number in a range, in plain decimals: Python would also take `1_0` and digits of other scripts."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and not _WHOLE.fullmatch(value):
            self.fail(f"not a whole number, found {value[:100]!r}; allowed: {self._describe_range()}", param, ctx)
        return int(super().convert(value, param, ctx))


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


class WorkloadName(click.ParamType):  # type: ignore[type-arg]
    """`NAMESPACE/NAME`."""

    name = "namespace/name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        namespace, _, name = value.partition("/")
        if not (is_object_name(namespace) and is_object_name(name)):
            self.fail(
                f"not a workload, found {value[:100]!r}; allowed: NAMESPACE/NAME, each of {OBJECT_NAMES}", param, ctx
            )
        return namespace, name


def is_object_name(text: str) -> bool:
    return len(text) <= 253 and re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", text, re.ASCII) is not None


class GatewayNamespace(ObjectName):
    """Name of a namespace, or * for all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return "*" if value == "*" else super().convert(value, param, ctx)


class OwnFile(click.ParamType):  # type: ignore[type-arg]
    """File that is written, and may be there already."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        named = value not in ("", "-") and not path.is_dir()
        if not named or not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            allowed = "a file in a folder that exists and is writable"
            self.fail(f"{value!r} cannot be written; allowed: {allowed}", param, ctx)
        return path


class Price(click.ParamType):  # type: ignore[type-arg]
    """`PRODUCT=USD`."""

    name = "product=usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        product, equals, price = value.partition("=")
        usd = float(price) if _DECIMAL.fullmatch(price) else -1.0
        if not (product and equals and 0 <= usd < 1e6):
            self.fail(f"{value!r} is not a price: write PRODUCT=USD, for example NVIDIA-H100-80GB-HBM3=2.5", param, ctx)
        return product, usd


class MetricName(click.ParamType):  # type: ignore[type-arg]
    """Beginning of the name of a metric."""

    name = "prefix"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,63}", value):
            self.fail(
                f"{value[:100]!r} begins no metric's name; allowed: 1 to 64 of a-z, A-Z, 0-9, _ and :", param, ctx
            )
        return str(value)


class NamespaceFile(click.ParamType):  # type: ignore[type-arg]
    """`NAMESPACE=FILE`."""

    name = "namespace=file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        if isinstance(value, tuple):
            return value
        namespace, equals, file = value.partition("=")
        if not (equals and is_object_name(namespace)):
            self.fail(
                f"{value[:100]!r} is not of the form NAMESPACE=FILE, for example team-a=/etc/tokens/a", param, ctx
            )
        return namespace, READABLE_FILE.convert(file, param, ctx)


class Matchers(click.ParamType):  # type: ignore[type-arg]
    """Label matchers of PromQL."""

    name = "matchers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from autoscaler.config.matchers import ALLOWED, read_matchers

        try:
            return read_matchers(value)
        except ValueError as error:
            self.fail(f"{error}; allowed: {ALLOWED}", param, ctx)


class Header(click.ParamType):  # type: ignore[type-arg]
    """`Name: value`."""

    name = "name: value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, colon, content = value.partition(":")
        if not colon or not name.strip() or any(each in value.strip() for each in "\r\n\0"):
            self.fail(
                "no colon in it, or more than one line: write 'Name: value' (not shown: it may be a secret)", param, ctx
            )
        return name.strip(), content.strip()


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Apply several click options as one decorator."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


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
        "--prometheus-timeout", type=Duration(), default="10s", show_default=True, help="Time limit for one query."
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
    type=Duration(least_s=10),
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
price_option = click.option(
    "--price", type=Price(), multiple=True, help="Price of a GPU-hour, used to choose among variants."
)
history_option = click.option(
    "--history/--no-history",
    default=True,
    show_default=True,
    help="At the start, learn from the last 3 hours in Prometheus where no saved state can be used.",
)
cluster_options = options(
    click.option(
        "--namespace",
        type=ObjectName(),
        multiple=True,
        help="Namespace of workloads, may be repeated; default: all.",
    ),
    click.option(
        "--context", help="Context of the kubeconfig; default: the pod's own cluster, else the current context."
    ),
)
http_port_option = click.option(
    "--http-port",
    type=WholeNumber(0, 65535),
    default=8080,
    show_default=True,
    help="Port for the page, the API and the daemon's own metrics; 0: any free port.",
)


def http_options(host: str) -> Callable[[Command], Command]:
    """Return where HTTP is served, on `host` unless told otherwise."""
    address = click.option("--http-host", default=host, show_default=True, help="Address on which HTTP is served.")
    return options(address, http_port_option)


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


def prometheus_settings(given: dict[str, Any]) -> PrometheusSettings | None:
    """Make settings of `prometheus_options`, and of `rate_window_option` where a command has it.

    None: no server is given. Raises click.UsageError, or ValidationError.
    """
    if not given["prometheus"]:
        refuse_unused(given, ("prometheus_", "rate_window"), "without --prometheus URL")
        return None
    from autoscaler.config.settings import PrometheusSettings, TlsFiles

    window = {"rate_window_s": given["rate_window"]} if "rate_window" in given else {}  # history has no use for it
    return PrometheusSettings(
        url=given["prometheus"],
        headers=given["prometheus_header"],
        token_file=given["prometheus_token_file"],
        username=given["prometheus_username"],
        password_file=given["prometheus_password_file"],
        tls=TlsFiles(**tls_files(given, "prometheus")),
        timeout_s=given["prometheus_timeout"],
        selector=given["prometheus_selector"],
        metric_prefixes=given["metric_prefix"],
        **window,
    )


def scrape_settings(given: dict[str, Any], scrape: bool) -> ScrapeSettings | None:
    """Make settings of `scrape_options`; None: nothing is read directly. Raises as `prometheus_settings`."""
    dcgm, gateways = given.get("dcgm", ()), given.get("gateway", ())
    if not gateways:
        refuse_unused(given, ("gateway_token",), "without --gateway URL")
    if not scrape:
        refuse_unused(given, ("scrape_token",), "without --scrape")
    if not (scrape or dcgm or gateways):
        refuse_unused(given, ("scrape_",), "without --scrape, --dcgm or --gateway")
        return None
    from autoscaler.config.settings import ScrapeSettings, TlsFiles

    return ScrapeSettings(
        pods=scrape,
        dcgm=dcgm,
        gateways=gateways,
        tls=TlsFiles(**tls_files(given, "scrape")),
        verify=given.get("scrape_verify", "full"),
        tokens=given.get("scrape_token", ()),
        gateway_token_file=given.get("gateway_token_file"),
        metric_prefixes=given.get("metric_prefix", ()),
    )


def tls_files(given: dict[str, Any], prefix: str) -> dict[str, Path | None]:
    """Pick certificate options; those that go together must come together."""
    files = {part: given.get(f"{prefix}_{part}") for part in ("ca", "cert", "key")}
    if (files["cert"] is None) != (files["key"] is None):
        missing = f"--{prefix}-{'key' if files['cert'] else 'cert'}"
        raise click.UsageError(f"{missing} is missing: --{prefix}-cert and --{prefix}-key go together")
    return files


def refuse_unused(given: dict[str, Any], beginnings: tuple[str, ...], where: str) -> None:
    """Refuse options that mean nothing with or without another one, as `where` says: they would be ignored silently.

    What the environment says is for all calls alike, and may be ignored by some.
    """
    context = click.get_current_context()
    for name in given:
        if name.startswith(beginnings) and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect {where}")
