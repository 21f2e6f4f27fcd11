"""The annotations of workloads, and their allowed values. Tenants write them, so they are untrusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from autoscaler.catalog.engines import ENGINES
from autoscaler.config.policy.schema import OVERRIDES
from autoscaler.config.policy.windows import WindowsKind
from autoscaler.config.values import NAME, FieldKind, Integer, Number, OneOf, Pattern, ValueKind
from autoscaler.config.weights.source import SCHEMES as SOURCE_SCHEMES
from autoscaler.config.weights.source import InvalidSourceError, parse
from autoscaler.config.yaml import read_scalar
from autoscaler.core.model.pairs import ROLES

PREFIX = "vllm-autoscaler.io/"
WINDOWS = "windows"  # replaces the pre-warm windows of the policy
ZERO_UNTIL = "zero-until"  # ends a zero that somebody has set
OVERRIDE = "override."  # followed by the path of a policy field: vllm-autoscaler.io/override.objective.ttft

# Short forms of the most common overrides.
SHORT_OVERRIDES: Mapping[str, str] = MappingProxyType(
    {
        "min-replicas": "replicas.min",
        "max-replicas": "replicas.max",
        "on-demand-floor": "replicas.onDemandFloor",
        "weights-gb": "capacity.weightsGb",
    }
)

SCHEMES = ("http", "https")
MODEL = Pattern(r"[\x21-\x7e]{1,256}", "1 to 256 printable ASCII characters without blanks")

WEIGHTS = f"{PREFIX}weights"
"""The source of a model's weights: of a workload, or of its pod template, where pods have it too."""


class Source(FieldKind):
    """The source of a model, as `config.weights.source` reads it."""

    allowed = f"hf://ORGANISATION/NAME@REVISION, {', '.join(f'{scheme}://' for scheme in SOURCE_SCHEMES[1:])}"

    def read(self, value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("not text")
        try:
            return str(parse(value))
        except InvalidSourceError as error:
            raise ValueError(error.why) from error

    def show(self, value: str) -> str:
        return value


class Moment(FieldKind):
    """A moment, as RFC 3339 writes it. Its value is Unix time."""

    allowed = "a time with a time zone, such as 2027-05-03T07:30:00Z or 2027-05-03T09:30:00+02:00"
    _FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)", re.ASCII)

    def read(self, value: object) -> float:
        if not isinstance(value, str) or not self._FORM.fullmatch(value):
            raise ValueError("not a time")
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError) as error:  # no day of the calendar, or beyond its ends
            raise ValueError("not a time") from error

    def show(self, value: float) -> str:
        return datetime.fromtimestamp(value, UTC).isoformat()


# Annotations of many scrape configurations, used if ours are absent.
PROMETHEUS_ANNOTATIONS: Mapping[str, str] = MappingProxyType(
    {
        "prometheus.io/port": "metrics-port",
        "prometheus.io/scheme": "metrics-scheme",
        "prometheus.io/path": "metrics-path",
    }
)

# Annotations that are no overrides, by name after the prefix.
ANNOTATIONS: Mapping[str, ValueKind] = MappingProxyType(
    {
        "policy": Pattern(rf"({NAME.expression})?", f"{NAME.allowed}; empty: the default policy"),
        "service": Pattern(r"[A-Za-z0-9]([-_./A-Za-z0-9]{0,126}[A-Za-z0-9])?", "1 to 128 letters, digits and - _ . /"),
        "role": OneOf(ROLES),
        "model": MODEL,
        "engine": OneOf(tuple(ENGINES)),
        "metrics-port": Integer(1, 65_535),
        "metrics-scheme": OneOf(SCHEMES),
        "metrics-path": Pattern(r"/[-._~/A-Za-z0-9]{0,255}", "a path: / and at most 255 letters, digits and - . _ ~ /"),
        "paused": OneOf(("true", "false")),
        ZERO_UNTIL: Moment(),
        "weights": Source(),
        "weights-pinned": OneOf(("true", "false")),
        WINDOWS: WindowsKind(),
    }
)


def names() -> list[str]:
    """List all annotations without their prefix."""
    return [*ANNOTATIONS, *SHORT_OVERRIDES, *(f"{OVERRIDE}{path}" for path in OVERRIDES)]


def read_prometheus_annotations(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of `PROMETHEUS_ANNOTATIONS` by the names of ours. Invalid values are ignored."""
    found = {}
    for name, ours in PROMETHEUS_ANNOTATIONS.items():
        if name in annotations:
            with suppress(ValueError):
                found[ours] = read(ours, annotations[name])
    return found


def override_path(name: str) -> str:
    """Return the policy field that an annotation overrides, such as "replicas.max"; "" for none.

    name: without the prefix.
    """
    path = SHORT_OVERRIDES.get(name, name.removeprefix(OVERRIDE) if name.startswith(OVERRIDE) else "")
    return path if path in OVERRIDES else ""


def read(name: str, text: str) -> Any:
    """Read the value of one of `ANNOTATIONS`. Raises ValueError with the problem only."""
    kind = ANNOTATIONS[name]
    return kind.read(read_scalar(text) if isinstance(kind, Integer | Number) else text)
