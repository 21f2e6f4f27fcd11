"""The table of a comparison on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.lab.compare.result import OFFLINE_PLAN, OURS, Comparison
from autoscaler.lab.report.format import (
    TableColumn,
    amount,
    cold_start,
    columns_of,
    count,
    fleet,
    gpu_price,
    learned_verdict,
    length,
    objective,
    printable,
    sorted_runs,
    verdict,
)

OMITTED_FIRST = (
    "per M tok / 1k req",
    "flaps",
    "p95",
    "TTFT p50",
    "downs",
    "ups",
    "cost",
    "ITL met",
    "TTFT met",
    "goodput",
    "in breach",
    "p99",
)
"""Columns that a narrow terminal omits, in this order."""


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table of one trace. Rows that missed the goal are dim. Columns that do not fit are omitted."""
    known = columns = list(columns_of(comparison))
    table = _table(comparison, columns)
    unbounded = console.options.update(width=10_000)
    for title in OMITTED_FIRST:
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
        columns = [column for column in columns if column.title != title]
        table = _table(comparison, columns)
    console.print(table)
    if len(columns) < len(known):
        left = ", ".join(column.title for column in known if column not in columns)
        console.print(Text(f"left out, as the terminal is narrow: {left}"))
    for sentence in filter(None, (verdict(comparison), learned_verdict(comparison))):
        console.print(Text(sentence))
    for note in comparison.notes:
        console.print(Text(printable(f"note: {note}")))


def _with_interference(comparison: Comparison) -> str:
    """Return the estimate with interference between requests, as a continuation; "" if unknown."""
    if math.isnan(comparison.estimate_gpu_hours):
        return ""
    return f"; with interference between requests about {amount(comparison.estimate_gpu_hours)}"


def _table(comparison: Comparison, columns: Sequence[TableColumn]) -> Table:
    copies = f" × {comparison.scale:g}" if comparison.scale != 1 else ""
    title = (
        f"{printable(comparison.trace)}{copies}: {count(comparison.requests, 'request')} in {length(comparison)}"
        f"{fleet(comparison)}, profile {printable(comparison.profile)}, {objective(comparison.goal)}, "
        f"{cold_start(comparison)}, seed {comparison.seed}"
    )
    table = Table(
        title=Text(title),
        caption=f"lower bound: {amount(comparison.lower_bound_gpu_hours)} GPU-hours"
        f"{_with_interference(comparison)}; {gpu_price(comparison)}",
        title_justify="left",
        caption_justify="left",
    )
    for column in columns:
        # If nothing more can be omitted, names wrap and figures do not.
        table.add_column(
            column.title, justify="right" if column.number else "left", no_wrap=column.number, overflow="fold"
        )
    for run in sorted_runs(comparison):
        style = {OURS: "bold", OFFLINE_PLAN: "italic"}.get(run.name, "") + " dim" * comparison.misses_goal(run)
        table.add_row(*(Text(column.write(comparison, run)) for column in columns), style=style)
    return table
