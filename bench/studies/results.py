"""Kept results of studies: a file with one line per case, which an interrupted study continues."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_results(file: Path) -> dict[str, dict[str, Any]]:
    """Return the results of earlier runs; a truncated line is skipped."""
    results: dict[str, dict[str, Any]] = {}
    if file.exists():
        for line in file.read_text("utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            results[entry["key"]] = entry["result"]
    return results


def append_result(file: Path, entry: dict[str, Any]) -> None:
    """Append a line, after ending a truncated one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as stream:
        if stream.tell():
            stream.seek(-1, os.SEEK_END)
            if stream.read() != b"\n":
                stream.write(b"\n")
        stream.write(json.dumps(entry).encode() + b"\n")
