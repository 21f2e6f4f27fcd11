#!/usr/bin/env python3
"""Change one operator or number of the core at a time, and say which changes no test of the same room notices.

    tools/mutants.py [--count 80] [--seed 1] [--room planner] [--select "not long and not integration"] [--these 3 17]

Each mutant is a copy of one file in which one comparison, operator, number or bound is another. The tests of its room
run against it: first those of the file of the same name, then the fast ones, then the slow ones, until one fails.
A survivor is a line whose change breaks no claim of its room: it wants a test there, says the same as before, or is
not needed.
The sample depends on seed and source alone, so two selections of tests are compared on the same mutants.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = Path("autoscaler") / "core"
LIMIT_S = 200  # of processor time, for the tests of a room; a change that makes a loop endless is noticed by this
PARTS = ("autoscaler", "tests", "bench", "docs", "policies", "charts", "manifests", "tools", "pyproject.toml")

OTHER: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
SWAPPED = {
    **{"maximum": "minimum", "minimum": "maximum", "fmax": "fmin", "fmin": "fmax", "max": "min", "min": "max"},
    **{"nanmax": "nanmin", "nanmin": "nanmax", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any"},
}


@dataclass(frozen=True)
class Mutant:
    path: Path  # from the root of the repository
    line: int
    before: str
    after: str
    source: str  # the whole changed file

    @property
    def room(self) -> str:
        return room_of(self.path)


def room_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Return what may stand in place of an expression."""
    changed = copy.copy(node)
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in OTHER:
            changed.ops = [OTHER[type(op)](), *rest]  # type: ignore[attr-defined]
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            changed.op = OTHER[type(op)]()  # type: ignore[attr-defined]
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            changed = operand
        case ast.Constant(value=bool(value)):
            changed.value = not value  # type: ignore[attr-defined]
        case ast.Constant(value=int(value) | float(value)):
            changed.value = value + 1  # type: ignore[attr-defined]
        case ast.Attribute(attr=name) if name in SWAPPED:
            changed.attr = SWAPPED[name]  # type: ignore[attr-defined]
        case ast.Name(id=name) if name in SWAPPED:
            changed.id = SWAPPED[name]  # type: ignore[attr-defined]
        case _:
            return
    yield changed


def expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Return all expressions that decide: no annotation, no part of a formatted string, no `strict` of zip."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr):
                yield child
            if isinstance(child, ast.AST):
                yield from expressions(child)


def mutants(path: Path) -> Iterator[Mutant]:
    text = (ROOT / path).read_text("utf-8")
    lines = text.encode().splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    for node in expressions(ast.parse(text)):
        for changed in changes(node):
            begin, end = (
                begins[at - 1] + column
                for at, column in (
                    (node.lineno, node.col_offset),
                    (node.end_lineno or node.lineno, node.end_col_offset or 0),
                )
            )
            whole, after = text.encode(), f"({ast.unparse(changed)})"
            source = (whole[:begin] + after.encode() + whole[end:]).decode()
            yield Mutant(path, node.lineno, ast.unparse(node), after[1:-1], source)


def sample(count: int, seed: int, room: str) -> list[Mutant]:
    paths = sorted(path.relative_to(ROOT) for path in (ROOT / CORE).rglob("*.py"))
    every = [mutant for path in paths if room in ("", room_of(path)) for mutant in mutants(path)]
    return random.Random(seed).sample(every, min(count, len(every)))


def tests_of(mutant: Mutant) -> Iterator[list[str]]:
    """Return what to run, the quickest first: files or folders, and a tier."""
    folder = Path("tests") / "core" / mutant.room
    near = list(ROOT.glob(f"tests/core/**/test_{mutant.path.stem}.py"))
    whole = [folder] if (ROOT / folder).is_dir() else [Path("tests/core") / f"test_{mutant.room}.py"]
    for paths, tier in ((near, "not slow"), (whole, "not slow"), (whole, "slow")):
        if found := [str(path.relative_to(ROOT) if path.is_absolute() else path) for path in paths]:
            yield [*found, "-m", tier]


def limit_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))


def outcome(mutant: Mutant, copied: Path, select: str, options: list[str]) -> str:
    """Run tests against a mutant in a copy of the repository; return `caught`, `survived` or `too long`."""
    file = copied / mutant.path
    before = file.read_text("utf-8")
    file.write_text(mutant.source, "utf-8")
    try:
        for *paths, _, tier in tests_of(mutant):
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *paths, *options]
            command += ["-m", f"({select}) and {tier}"]
            environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(
                command, cwd=copied, env=environment, capture_output=True, preexec_fn=limit_time, check=False
            )
            if done.returncode < 0:
                return "too long"
            if done.returncode not in (0, 5):  # 5: no test is selected
                return "caught"
    finally:
        file.write_text(before, "utf-8")
    return "survived"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", default="", help="a folder or module of autoscaler/core; all when left out")
    parser.add_argument("--select", default="not long and not integration and not keda", help="pytest's -m")
    parser.add_argument("--these", type=int, nargs="*", help="numbers of the sample, as it prints them")
    parser.add_argument("options", nargs="*", help="options of pytest, after --")
    given = parser.parse_args()
    chosen = list(enumerate(sample(given.count, given.seed, given.room), 1))
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            copied = Path(folder) / part
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copied, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / part, copied)
        for number, mutant in chosen:
            if given.these is None or number in given.these:
                came = outcome(mutant, Path(folder), given.select, given.options)
                counted[came] += 1
                print(
                    f"{number:4} {came:8} {mutant.path}:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True
                )
    print(", ".join(f"{count} {came}" for came, count in sorted(counted.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
