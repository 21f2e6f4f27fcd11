"""The table of what `preflight` and `check` find: identifier, severity, symptom, cause, cure and sources.

The pages in docs/reference/findings/ are made of it: `python -m autoscaler.catalog.findings docs/reference/findings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autoscaler.catalog.findings import autoscaling, cluster, engine, metrics, pod, reading
from autoscaler.catalog.findings.kinds import ERROR, NOTE, SEVERITIES, WARNING, FindingKind

__all__ = ["BY_ID", "ERROR", "FINDINGS", "NOTE", "SEVERITIES", "WARNING", "FindingKind"]

FINDINGS: tuple[FindingKind, ...] = (
    *reading.ROWS,
    *autoscaling.ROWS,
    *engine.ROWS,
    *pod.ROWS,
    *cluster.ROWS,
    *metrics.ROWS,
)
BY_ID: Mapping[str, FindingKind] = MappingProxyType({row.id: row for row in FINDINGS})
