#!/usr/bin/env python3
"""Run a folder of small public reports against this checkout, and say which come out right.

    tools/cases.py FOLDER [NAME ...]    all cases, or those whose name begins with one of these

A case is a folder FOLDER/*/NAME with a `run.sh`. It prints PASS and FAIL lines, or values, which cases.toml judges.
The output of each is kept in test-artefacts/cases. Cases run one after the other: they share ports. They were written
when some published names differed from those of the code, so a copy runs in which these are replaced.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "test-artefacts" / "cases"
LIMIT_S = 1800.0  # on a busy machine too

FORMER = {
    **{"apart": "queue_outliers", "apart_requests": "queue_outlier_requests", "apart_s": "queue_outlier_s"},
    **{"full": "saturated", "full_running": "saturated_running", "full_tokens_per_s": "saturated_tokens_per_s"},
    **{"replaced": "stuck_replaced", "stand_in": "stuck_min_replicas", "pledged_s": "starting_replica_s"},
    **{"blocked": "pending", "missing": "missing_pods", "joining": "newly_ready", "batch": "batch_size"},
    **{"loaded": "gpu_loaded", "active": "gpu_active", "burnt_budgets": "used_budgets"},
    **{"rival": "other_owner", "fate": "outcome", "grant": "allocation", "clairvoyant": "lower_bound"},
    **{"clairvoyant_ratio": "lower_bound_ratio", "planned": "offline_plan", "rule": "strategy", "paper": "shadow"},
    **{
        f"forecast_{before}": f"planner_{now}"
        for before, now in (
            ("demand_replicas", "demand_replicas"),
            ("asked_replicas", "recommended_replicas"),
            ("headroom_replicas", "headroom_replicas"),
            ("rule_replicas", "strategy_replicas"),
            ("needed_replicas", "base_replicas"),
            ("requests_per_s", "requests_per_s"),
            ("idle_gap_s", "idle_gap_s"),
            ("prompt_tokens_per_s", "prompt_tokens_per_s"),
            ("generation_tokens_per_s", "generation_tokens_per_s"),
            ("readings", "readings"),
            ("watched_s", "observed_s"),
            ("kept_s", "warm_up_s"),
            ("level_s", "average_s"),
            ("held_cold_starts", "hold_cold_starts"),
            ("held_s", "peak_expires_in_s"),
            ("margin_fraction", "margin_fraction"),
            ("margin_roots", "margin_roots"),
            ("least_replicas", "constant_replicas"),
            ("promised_fraction", "budget_fraction"),
            ("window_s", "window_s"),
            ("allowed_fraction", "allowed_fraction"),
            ("paper_missed_fraction", "shadow_missed_fraction"),
            ("unavoidable_fraction", "unavoidable_fraction"),
            ("missed_fraction", "missed_fraction"),
            ("burnt_budgets", "used_budgets"),
        )
    },
}
"""Former and present published names."""

MOVED = {
    r"autoscaler\.adapters\.kubernetes\.api\.objects": "autoscaler.adapters.kubernetes.api.target_objects",
    r"(?<=objects import )Target\b": "TargetObject as Target",
}
"""Former and present places of code that cases import."""

AMBIGUOUS = ("full", "missing", "batch", "replaced", "planned", "rule", "paper")
"""Those of them that are also words or names of something else: replaced only where a mapping is read by them."""


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


def rename(source: str) -> str:
    """Return the source of a case with the present names."""
    for former, present in MOVED.items():
        source = re.sub(former, present, source)
    plain = "|".join(name for name in FORMER if name not in AMBIGUOUS)
    source = re.sub(
        rf"""(?<![=\w])(["'])({plain})\1""", lambda found: f"{found[1]}{FORMER[found[2]]}{found[1]}", source
    )
    read = rf"""((?:\[|\.get\())(["'])({"|".join(AMBIGUOUS)})\2"""
    source = re.sub(read, lambda found: f"{found[1]}{found[2]}{FORMER[found[3]]}{found[2]}", source)
    return re.sub(r"""(== *)(["'])forecast\2""", r"\1\2planner\2", source)


def copy(folder: Path, to: Path) -> None:
    """Copy the cases with the present published names."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("__pycache__"))
    for file in to.glob("**/*.py"):
        file.write_text(rename(file.read_text("utf-8")), "utf-8")


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
    copy(folder, KEPT / "sources")
    failed = 0
    for case in cases:
        start_s = monotonic()
        output = run(KEPT / "sources" / case.relative_to(folder))
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
