"""A proof on the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.sim.proof.report.words import (
    COLUMNS,
    amount,
    cold_start,
    fleet,
    in_order,
    length,
    objective,
    verdict,
    verdict_before,
)
from autoscaler.sim.proof.result import OURS, PLANNED, Proof


def print_proof(proof: Proof, console: Console) -> None:
    """Print the table of one trace: rows that missed the goal are dim."""
    copies = f" × {proof.scale:g}" if proof.scale != 1 else ""
    table = Table(
        title=f"{proof.trace}{copies}: {proof.requests:,} requests in {length(proof)}{fleet(proof)}, "
        f"profile {proof.profile}, {objective(proof.goal)}, {cold_start(proof)}, seed {proof.seed}",
        caption=f"clairvoyant bound: {amount(proof.clairvoyant_gpu_hours)} GPU-hours{_with_neighbours(proof)}",
        title_justify="left",
        caption_justify="left",
    )
    for column in COLUMNS:
        table.add_column(column.title, justify="right" if column.number else "left", no_wrap=True)
    for run in in_order(proof):
        style = {OURS: "bold", PLANNED: "italic"}.get(run.name, "dim" if proof.misses(run) else "")
        table.add_row(*(Text(column.write(proof, run)) for column in COLUMNS), style=style)
    console.print(table)
    for sentence in filter(None, (verdict(proof), verdict_before(proof))):
        console.print(Text(sentence))
    for note in proof.notes:
        console.print(Text(f"note: {note}"))


def _with_neighbours(proof: Proof) -> str:
    """Say what the bound, which knows no neighbours, is with them; nothing where that is not known."""
    if math.isnan(proof.estimate_gpu_hours):
        return ""
    return f"; with requests that slow each other down about {amount(proof.estimate_gpu_hours)}"
