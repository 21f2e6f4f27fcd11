#!/usr/bin/env python3
"""Run a folder of small public reports against this checkout, and say which come out right.

    tools/cases.py FOLDER [NAME ...]    all cases, or those whose name begins with one of these

A case is a folder FOLDER/*/NAME with a `run.sh`. It prints PASS and FAIL lines, or values, which cases.toml judges.
The output of each is kept in test-artefacts/cases. Cases run one after the other: they share ports.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "test-artefacts" / "cases"
LIMIT_S = 1800.0  # on a busy machine too


def run(case: Path) -> str:
    """Run a case; return all that it printed."""
    environment = {**os.environ, "REPO": str(ROOT), "VENV": str(ROOT / ".venv"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [case / "run.sh"],
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        return f"{(error.output or b'').decode(errors='replace')}\nFAIL it took more than {LIMIT_S:.0f} s\n"
    return done.stdout + (f"\nFAIL it ended with exit code {done.returncode}\n" if done.returncode else "")


def judge(output: str, rules: dict[str, list[str]] | None) -> list[str]:
    """Return what is wrong with the output of a case; nothing: it came out right."""
    wrong = [line for line in output.splitlines() if line.startswith("FAIL")]
    if rules is None:
        judges = re.search(r"^(PASS|FAIL) ", output, re.MULTILINE)
        return wrong if judges else ["it judges nothing, nor does cases.toml"]
    wrong += [f"absent: {text}" for text in rules["right"] if not re.search(text, output)]
    wrong += [f"present: {text}" for text in rules.get("wrong", []) if re.search(text, output)]
    return wrong


def main(folder: Path, names: list[str]) -> int:
    rules = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    cases = [file.parent for file in sorted(folder.glob("*/*/run.sh"))]
    cases = [case for case in cases if not names or case.name.startswith(tuple(names))]
    if not cases:
        print(f"no case in {folder} whose name begins with {' or '.join(names) or 'anything'}", file=sys.stderr)
        return 2
    KEPT.mkdir(parents=True, exist_ok=True)
    failed = 0
    for case in cases:
        start_s = monotonic()
        output = run(case)
        name = f"{case.parent.name}/{case.name}"
        (KEPT / f"{case.parent.name}-{case.name}.txt").write_text(output)
        wrong = judge(output, rules.get(case.parent.name, {}).get(case.name))
        failed += bool(wrong)
        verdict = f"{'wrong' if wrong else 'right'}  {monotonic() - start_s:4.0f} s  {name}"
        print(verdict, *wrong, sep="\n    ", flush=True)
    print(f"{len(cases) - failed} of {len(cases)} cases come out right; outputs are in {KEPT.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
