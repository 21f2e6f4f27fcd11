"""Results of studies: printed, and kept in a file with one line per case, which an interrupted study continues."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Sequence
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


Cases = Iterable[tuple[list[Any], Callable[[], dict[str, Any]]]]
"""What identifies each case of a study, and what measures it."""


def print_results(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    list_cases: Callable[[argparse.Namespace], Cases],
    table: Callable[[dict[str, dict[str, Any]]], str],
) -> int:
    """Run a study by its arguments, and print its table, or its results as JSON. Returns the exit code.

    Cases with a kept result are not measured again.
    list_cases: raises ValueError or OSError for arguments that cannot be used.
    """
    parser.add_argument("--out", type=Path, help="file of kept results, which is continued")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    given = parser.parse_args(arguments)
    try:
        results = _run(list_cases(given), given.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(json.dumps(results) if given.json else table(results), end="\n" if given.json else "")
    return 0


def _run(cases: Cases, kept: Path | None) -> dict[str, dict[str, Any]]:
    known, results = read_results(kept) if kept else {}, {}
    for parts, measure in cases:
        key = json.dumps(parts)
        if key not in known:
            known[key] = measure()
            if kept:
                append_result(kept, {"key": key, "result": known[key]})
        results[key] = known[key]
    return results
