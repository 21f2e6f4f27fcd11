"""Prometheus text format: labels and numbers as client libraries print them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.utils import floatToGoString


def labels(values: Mapping[str, str]) -> str:
    """Return `{a="1",b="2"}` in the given order, escaped; "" without labels."""
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in values.items())
    return f"{{{pairs}}}" if pairs else ""


def number(value: float) -> str:
    """Return a sample's value as the Python client prints it: 26.0, 1.5e-05, 2.216321024e+09."""
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
