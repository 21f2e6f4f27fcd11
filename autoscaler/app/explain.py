"""`explain`: one workload's explanation, from a running daemon."""

from __future__ import annotations

import sys

from autoscaler.adapters.standard_output import printing
from autoscaler.adapters.web import client


async def explain(url: str, namespace: str, name: str, kind: str = "") -> int:
    """Ask a running daemon for one workload's explanation and print it."""
    try:
        lines = await client.explanation(url, namespace, name, kind)
    except client.NoExplanation as refused:
        print(f"error: {refused}", file=sys.stderr)
        return 1
    with printing():
        print(*lines, sep="\n")
    return 0
