"""A proof on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.lab.compare.result import OURS, PLANNED, Proof
from autoscaler.lab.report.words import (
    COLUMNS,
    Column,
    amount,
    cold_start,
    count,
    fleet,
    in_order,
    length,
    objective,
    printable,
    verdict,
    verdict_before,
)

FIRST_TO_GO = ("flaps", "p95", "TTFT p50", "downs", "ups", "ITL met", "TTFT met", "goodput", "in breach", "p99")
"""Columns that a narrow terminal does without, in this order."""


def print_proof(proof: Proof, console: Console) -> None:
    """Print the table of one trace: rows that missed the goal are dim. What does not fit the console is left out."""
    columns = list(COLUMNS)
    table = _table(proof, columns)
    unbounded = console.options.update(width=10_000)
    for title in FIRST_TO_GO:
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
        columns = [column for column in columns if column.title != title]
        table = _table(proof, columns)
    console.print(table)
    if len(columns) < len(COLUMNS):
        left = ", ".join(column.title for column in COLUMNS if column not in columns)
        console.print(Text(f"left out, as the terminal is narrow: {left}"))
    for sentence in filter(None, (verdict(proof), verdict_before(proof))):
        console.print(Text(sentence))
    for note in proof.notes:
        console.print(Text(printable(f"note: {note}")))


def _with_neighbours(proof: Proof) -> str:
    """Say what the bound, which knows no neighbours, is with them; nothing where that is not known."""
    if math.isnan(proof.estimate_gpu_hours):
        return ""
    return f"; with requests that slow each other down about {amount(proof.estimate_gpu_hours)}"


def _table(proof: Proof, columns: Sequence[Column]) -> Table:
    copies = f" × {proof.scale:g}" if proof.scale != 1 else ""
    title = (
        f"{printable(proof.trace)}{copies}: {count(proof.requests, 'request')} in {length(proof)}{fleet(proof)}, "
        f"profile {printable(proof.profile)}, {objective(proof.goal)}, {cold_start(proof)}, seed {proof.seed}"
    )
    table = Table(
        title=Text(title),
        caption=f"clairvoyant bound: {amount(proof.clairvoyant_gpu_hours)} GPU-hours{_with_neighbours(proof)}",
        title_justify="left",
        caption_justify="left",
    )
    for column in columns:
        # Where all else is left out, names are broken into lines, and never figures.
        table.add_column(
            column.title, justify="right" if column.number else "left", no_wrap=column.number, overflow="fold"
        )
    for run in in_order(proof):
        style = {OURS: "bold", PLANNED: "italic"}.get(run.name, "") + " dim" * proof.misses(run)
        table.add_row(*(Text(column.write(proof, run)) for column in columns), style=style)
    return table
