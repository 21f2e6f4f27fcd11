"""Goals of a study: options, judgements of each row, and the table. A row has one result for each seed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self

from bench.studies.judged import OURS

LEAST_ATTAINMENT = 0.99
FIRST_HOUR_POINTS = 0.005  # most attainment of the first hour below that of the constant count

Result = dict[str, Any]  # the figures of a run by who decides: `ours`, `constant`, a rival, the plan
Rows = Mapping[Any, Sequence[Result]]  # by row, a named tuple


class Judgement(NamedTuple):
    """One goal of one row. `beyond` is by how much it is missed, in the unit of the value; at most 0: it is met."""

    goal: str
    value: float
    limit: float
    beyond: float

    @classmethod
    def at_most(cls, goal: str, value: float, limit: float) -> Self:
        return cls(goal, value, limit, value - limit)

    @classmethod
    def at_least(cls, goal: str, value: float, limit: float) -> Self:
        return cls(goal, value, limit, limit - value)


Judge = Callable[[Any, Sequence[Result]], list[Judgement]]
Column = Callable[[Any, Sequence[Result]], str]  # makes the cell of a row


def mean_of(results: Sequence[Result], who: str, what: str) -> float:
    return fmean(each[who][what] for each in results)


def lowest(results: Sequence[Result], who: str, what: str) -> float:
    return float(min(each[who][what] for each in results))


def ratio_to(results: Sequence[Result], who: str, what: str) -> float:
    """Return the GPU-hours of ours compared with those of another."""
    return mean_of(results, OURS, what) / max(mean_of(results, who, what), 1e-9)


def misses(judged: Iterable[Judgement]) -> str:
    """Return the missed goals and by how much."""
    words = []
    for each in judged:
        if each.beyond > 1e-9:
            points = each.goal.startswith("attainment") or each.goal == "first hour"
            by = f"{100 * each.beyond:.2f} points" if points else f"{each.beyond:.2f}"
            words.append(f"{each.goal} by {by}")
    return ", ".join(words)


# Options.


def options(
    description: str, cold_starts_s: Sequence[float], beside: Sequence[str], at_first: Sequence[str]
) -> argparse.ArgumentParser:
    """Return a parser with the options that all such studies have.

    beside: what may run in addition to the shipped policy. at_first: what of it runs by default.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument(
        "--cold-starts", type=float, nargs="+", default=[*cold_starts_s], metavar="SECONDS", help="mean cold starts"
    )
    parser.add_argument(
        *("--beside", "--rivals"),
        nargs="+",
        choices=("none", *beside),
        default=[*at_first],
        metavar="NAME",
        help="what runs in addition to the shipped policy, or none",
    )
    parser.add_argument("--profile", default="8b-h100-3g", help="profile of a replica")
    parser.add_argument("--out", type=Path, help="file of results, which is continued")
    parser.add_argument("--kept", action="store_true", help="run nothing, and show what is kept")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return parser


# The table.


def show(rows: Rows, judge: Judge, columns: Mapping[str, Column], as_json: bool) -> None:
    """Print the rows, each judged, as a table with these columns or as JSON."""
    judged = {row: judge(row, results) for row, results in rows.items()}
    if as_json:
        goals = {row: [each._asdict() for each in found] for row, found in judged.items()}
        print(json.dumps([{**row._asdict(), "runs": rows[row], "goals": goals[row]} for row in rows]))
        return
    titles = [*columns, "missed goals"]
    print(f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), sep="\n")
    for row, results in rows.items():
        cells = [make(row, results) for make in columns.values()]
        print(f"| {' | '.join([*cells, misses(judged[row]) or 'none'])} |")
    met = sum(not misses(found) for found in judged.values())
    print(f"\nAll goals are met in {met} of {len(rows)} rows.")


def share_column(what: str) -> Column:
    """Return the column of a share of requests of ours, the lowest of the seeds; empty where a run has none."""
    return lambda _, results: f"{lowest(results, OURS, what):.2%}" if what in results[0][OURS] else ""


def version_column(_: Any, results: Sequence[Result]) -> str:
    """Return the cell of the versions of the code that decided: the first digits of their checksums."""
    return " ".join(sorted({each[OURS]["code"][:4] for each in results}))


def mean_column(what: str, style: str, who: str = OURS) -> Column:
    return lambda _, results: f"{mean_of(results, who, what):{style}}"


def ratio_column(who: str, what: str) -> Column:
    """Return the column of the GPU-hours of ours compared with those of another; empty where a run has none."""
    return lambda _, results: f"{ratio_to(results, who, what):.2f}" if what in results[0].get(who, {}) else ""


def columns_beside(rows: Rows, names: Sequence[str]) -> dict[str, Column]:
    """Return a column with attainment and GPU-hours of each of the names that ran in any row."""

    def column(name: str) -> Column:
        def cell(_: Any, results: Sequence[Result]) -> str:
            ran = [each for each in results if name in each]
            return f"{lowest(ran, name, 'attainment'):.2%}, {mean_of(ran, name, 'gpu_hours'):.4g}" if ran else ""

        return cell

    return {name: column(name) for name in names if any(name in each for some in rows.values() for each in some)}
