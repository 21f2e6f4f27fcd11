"""Findings about files: VA11xx."""

from __future__ import annotations

from autoscaler.catalog.findings.kinds import ERROR, NOTE, FindingKind

ROWS: tuple[FindingKind, ...] = (
    FindingKind(
        "VA1101",
        ERROR,
        "document cannot be read",
        "Nothing in the document is checked.",
        "It is not valid YAML, or larger or deeper than what is read, or it has merge keys or custom tags.",
        "Write plain YAML; render templates first (`helm template`, `kustomize build`).",
        "docs/reference/limits.md",
    ),
    FindingKind(
        "VA1102",
        NOTE,
        "finding suppressed without a reason",
        "The annotation has no effect.",
        "An annotation `preflight.vllm-autoscaler.io/VA1203` is empty.",
        "State the reason as its value.",
        "this page",
    ),
)
