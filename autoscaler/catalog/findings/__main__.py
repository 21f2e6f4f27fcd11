"""Writes the pages of findings: `python -m autoscaler.catalog.findings docs/reference/findings`."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from autoscaler.catalog.findings import FINDINGS
from autoscaler.catalog.findings.kinds import FILES, TITLES


def pages() -> dict[str, str]:
    """Return the pages by file name: one section for each finding, and the index."""
    made: dict[str, str] = {}
    index = [
        "# Findings",
        "",
        (
            "What [`vllm-autoscaler preflight`](../../how-to/preflight.md) and `check` find. The severity is the"
            " usual one. An object is left out of a finding by the annotation `preflight.vllm-autoscaler.io/VA1203`"
            " with the reason as its value. The table is `autoscaler/catalog/findings/`, of which these pages are"
            " made."
        ),
        "",
        "| finding | severity | subject |",
        "|---|---|---|",
    ]
    for group, rows in groupby(FINDINGS, lambda row: row.id[:4]):
        file = f"{FILES[group]}.md"
        lines = [f"# {TITLES[group]}", ""]
        for row in rows:
            index.append(f"| [{row.id}]({file}#{row.id.lower()}) | {row.severity} | {row.subject} |")
            lines += [
                f"## {row.id}",
                "",
                f"**{row.subject[:1].upper()}{row.subject[1:]}** ({row.severity})",
                "",
                f"* Symptom: {row.symptom}",
                f"* Cause: {row.cause}",
                f"* Cure: {row.cure}",
                f"* Sources: {row.sources}",
                "",
            ]
        made[file] = "\n".join(lines)
    made["README.md"] = "\n".join(index) + "\n"
    return made


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")
