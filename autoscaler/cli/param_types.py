"""Types of option values: how each is written, read and refused.

Only `click` is imported at the top; a type that needs more imports it on use, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

EXISTING = click.Path(exists=True, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
READABLE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"-?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})", re.ASCII)
_DAYS = re.compile(r"(?P<number>\d{1,6})(?P<unit>[dw])(?P<rest>.*)", re.ASCII)
OBJECT_NAMES = "at most 253 characters of a-z, 0-9, - and ."


class DurationParam(click.ParamType):  # type: ignore[type-arg]
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


class SpanParam(DurationParam):
    """Seconds, written as a duration, or in days and weeks: `14d`, `2w`, `1d12h`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and (found := _DAYS.fullmatch(value)):
            days_s = 86_400.0 * int(found["number"]) * (7 if found["unit"] == "w" else 1)
            rest = super().convert(found["rest"], param, ctx) if found["rest"] else 0.0
            if not 0 < days_s + rest <= self._most_s:
                most = f"{self._most_s // 86_400}d"
                self.fail(f"out of bounds, found {value!r}; allowed: above 0 and at most {most}", param, ctx)
            return days_s + rest
        return super().convert(value, param, ctx)


class NumberParam(click.FloatRange):
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


class LabelKey(click.ParamType):  # type: ignore[type-arg]
    """Key of a label of Kubernetes."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if len(value) > 317 or not _LABEL_KEY.fullmatch(value):
            self.fail(f"not a label, found {value[:100]!r}; allowed: such as team or example.com/team", param, ctx)
        return str(value)


_LABEL_KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


class PeerAddress(click.ParamType):  # type: ignore[type-arg]
    """`ADDRESS:PORT` of an agent."""

    name = "address:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        import ipaddress

        host, _, port = value.rpartition(":")
        try:
            address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            if not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
                raise ValueError
        except ValueError:
            allowed = "10.0.0.1:8474, [fd00::1]:8474"
            self.fail(f"not an address with its port, found {value[:100]!r}; allowed: {allowed}", param, ctx)
        return f"[{address}]:{int(port)}" if address.version == 6 else f"{address}:{int(port)}"


class WorkloadName(click.ParamType):  # type: ignore[type-arg]
    """`NAMESPACE/NAME`."""

    name = "namespace/name"
    kind = "workload"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        namespace, _, name = value.partition("/")
        if not (is_object_name(namespace) and is_object_name(name)):
            self.fail(
                f"not a {self.kind}, found {value[:100]!r}; allowed: NAMESPACE/NAME, each of {OBJECT_NAMES}", param, ctx
            )
        return namespace, name


def is_object_name(text: str) -> bool:
    return len(text) <= 253 and re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", text, re.ASCII) is not None


class ServiceParam(WorkloadName):
    """`NAMESPACE/NAME` of a Service."""

    kind = "Service"


class PolicyForParam(click.ParamType):  # type: ignore[type-arg]
    """`NAMESPACE[/NAME]=POLICY`, with * in place of any characters."""

    name = "namespace/name=policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        services, _, policy = value.rpartition("=")
        if not re.fullmatch(r"[-.a-z0-9*]{1,253}(/[-.a-z0-9*]{1,253})?", services, re.ASCII) or not policy:
            allowed = "NAMESPACE=POLICY or NAMESPACE/NAME=POLICY, with * for any characters, such as chat/*-large=batch"
            self.fail(f"{value[:100]!r} names no services and policy; allowed: {allowed}", param, ctx)
        return services, policy


class GatewayNamespace(ObjectName):
    """Name of a namespace, or * for all."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return "*" if value == "*" else super().convert(value, param, ctx)


class TargetKind(click.ParamType):  # type: ignore[type-arg]
    """`PLURAL.GROUP`, or none."""

    name = "plural.group"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from autoscaler.catalog.scale_targets import NO_KINDS, RESOURCE_NAME

        if value != NO_KINDS and not RESOURCE_NAME.fullmatch(value):
            allowed = f"<plural>.<group> of `kubectl api-resources`, such as rollouts.argoproj.io, or {NO_KINDS}"
            self.fail(f"not a kind, found {value[:100]!r}; allowed: {allowed}", param, ctx)
        return str(value)


class ByteCount(click.ParamType):  # type: ignore[type-arg]
    """Bytes: `500GB`, `200MB`, `1.5TiB`."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        size = _read_bytes(value)
        if not size:
            self.fail(f"not a number of bytes, found {value[:100]!r}; allowed: 500GB, 200MB, 1.5TiB", param, ctx)
        return size


class FreeSpace(click.ParamType):  # type: ignore[type-arg]
    """Bytes, or a share of the disk: `50GB`, `5%`. Returns both, one of them 0."""

    name = "bytes or percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        if value.endswith("%") and _DECIMAL.fullmatch(value[:-1]) and 0 <= float(value[:-1]) < 100:
            return 0.0, float(value[:-1]) / 100
        size = _read_bytes(value)
        if not size:
            self.fail(f"not free space, found {value[:100]!r}; allowed: 5%, 50GB", param, ctx)
        return size, 0.0


def _read_bytes(text: str) -> float:
    """Return a number of bytes; 0: the text is none."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([kMGTP]?)(i?)B?", text, re.ASCII)
    if match is None or (match[3] and not match[2]):
        return 0.0
    return float(match[1]) * float(1024 if match[3] else 1000) ** " kMGTP".index(match[2] or " ")


class AllowedSource(click.ParamType):  # type: ignore[type-arg]
    """Pattern of sources of weights: `hf://my-org/*`."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from autoscaler.config.weights.allowed import ALLOWED, SourcePattern

        if isinstance(value, SourcePattern):
            return value
        try:
            return SourcePattern(value)
        except ValueError as error:
            self.fail(f"{error}; allowed: {ALLOWED}", param, ctx)


class PrivateSource(click.ParamType):  # type: ignore[type-arg]
    """Pattern of sources with the namespaces that they serve: `hf://my-org/*=team-a,team-b`."""

    name = "pattern=namespaces"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from autoscaler.config.weights.allowed import PRIVATE, PrivateSources

        if isinstance(value, PrivateSources):
            return value
        try:
            return PrivateSources.parse(value)
        except ValueError as error:
            self.fail(f"{error}; allowed: {PRIVATE}", param, ctx)


class HostPath(click.ParamType):  # type: ignore[type-arg]
    """Absolute path of a folder of the nodes, without `..`, as Kubernetes demands of a hostPath."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"(/(?!\.\.?(/|$))[^/\x00-\x1f\x7f]{1,255}){1,32}", value):
            self.fail(f"no path, found {value[:100]!r}; allowed: /FOLDER/FOLDER, without . and ..", param, ctx)
        return str(value)


class NodeGroupMax(click.ParamType):  # type: ignore[type-arg]
    """`LABEL=VALUE:NODES`."""

    name = "label=value:nodes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"([-./\w]{1,317}=[-.\w]{1,63}):(\d{1,6})", value, re.ASCII)
        if match is None:
            allowed = "LABEL=VALUE:NODES, for example cloud.google.com/gke-nodepool=l4:12"
            self.fail(f"not the largest size of a node group, found {value[:100]!r}; allowed: {allowed}", param, ctx)
        return match[1], int(match[2])


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


class PriceParam(click.ParamType):  # type: ignore[type-arg]
    """`PRODUCT[@TYPE]=USD`."""

    name = "product=usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        from autoscaler.config.findings import unknown
        from autoscaler.config.prices import CAPACITY_TYPES, MOST_USD

        key, equals, price = value.rpartition("=")
        product, at, paid = key.partition("@")
        usd = float(price) if _DECIMAL.fullmatch(price) else -1.0
        if not (product and equals and 0 <= usd <= MOST_USD):
            allowed = (
                f"write PRODUCT=USD or PRODUCT@TYPE=USD with 0 to {MOST_USD:,.0f} USD for an hour of a whole device"
            )
            self.fail(f"{value[:100]!r} is not a price: {allowed}, for example NVIDIA-H100-80GB-HBM3=2.5", param, ctx)
        if at and paid not in CAPACITY_TYPES:
            why, allowed = unknown("no capacity type", CAPACITY_TYPES, paid)
            self.fail(f"{paid[:100]!r}: {why}; allowed: {allowed}", param, ctx)
        return key, usd


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


class Out(click.Path):
    """File that is written; neither nothing nor `-` is the name of one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("", "-"):
            allowed = "./- for a file of this name" if value else "a name"
            self.fail(f"not the name of a file, found {value!r}; allowed: {allowed}, /dev/stdout", param, ctx)
        return super().convert(value, param, ctx)


OUT = Out(dir_okay=False, path_type=Path)


class MomentParam(click.ParamType):  # type: ignore[type-arg]
    """Unix time, written as `2026-03-01T08:00:00Z`, with any offset, or `-6h`: this long before now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from autoscaler.config.values import read_duration

        now = datetime.now(UTC)
        try:
            if value == "now":
                return now.timestamp()
            if value.startswith("-"):
                return (now - timedelta(seconds=read_duration(value[1:]))).timestamp()
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment.astimezone(UTC).timestamp()
        except (ValueError, OverflowError):  # no time, or none of the years 1 to 9999
            self.fail(f"not a time, found {value[:50]!r}; allowed: 2026-03-01T08:00:00Z, -6h, now", param, ctx)
        self.fail(
            f"a time without a time zone, found {value[:50]!r}; allowed: 2026-03-01T08:00:00Z, -6h, now", param, ctx
        )
