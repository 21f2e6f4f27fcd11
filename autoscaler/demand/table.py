"""The model of demand on the terminal: the verdict, one table of the seven inputs, the answers, and the drafts."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoscaler.core.table.columns import IntColumn
from autoscaler.demand.model import DemandModel
from autoscaler.demand.words import answers, say_without, verdict
from autoscaler.lab.report.format import amount, count, printable, seconds, share
from autoscaler.report.gpu_use import say_use
from autoscaler.report.table import gpu_lines

MOST_ROWS = 10
"""Services whose answers are printed; the others are in the document."""

INPUTS = (
    "",
    "floor",
    "usual",
    "high",
    "queue",
    "bursts",
    "noise",
    "TTFT p99",
    "tokens out",
    "active",
    "stay p50",
    "p99",
)
ANSWERS = ("Floor", "Bursts", "Residency", "Waiting")


def print_demand(demand: DemandModel, console: Console) -> None:
    """Print the model. The table has numbers for names, so that it fits into 80 columns; the answers have both."""
    order = by_gpu_hours(demand)
    console.print(Text(verdict(demand), style="bold"))
    console.print(_inputs(demand, order))
    for number, w in enumerate(order[:MOST_ROWS].tolist(), 1):
        console.print(Text("\n" + printable(f"{number}. {demand.services[w]}"), style="bold"))
        for title, answer in zip(ANSWERS, answers(demand, w), strict=True):
            _print_inside(console, Text.assemble((f"{title}: ", "bold"), printable(answer)))
        if demand.drafts:
            _print_draft(demand, w, console)
    for line in (*gpu_lines(demand.report), *say_use(demand.report.gpu_use, demand.report.use_from)):
        console.print(Text(printable(line)))
    for note in (*demand.report.notes, *demand.notes):
        console.print(Text(printable(f"note: {note}")))


def by_gpu_hours(demand: DemandModel) -> IntColumn:
    """Return the services, the one with most GPU-hours first."""
    gpu_hours = np.nan_to_num(demand.report.entry("actual").outcome.gpu_hours)
    return np.argsort(-gpu_hours, kind="stable")


def _inputs(demand: DemandModel, order: IntColumn) -> Table:
    c, q, b, t = demand.concurrency, demand.queue, demand.burst_profile, demand.tolerance
    title = f"Requests at once and what became of them, {count(len(demand.services), 'service')}"
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1, 0, 0))
    for name in INPUTS:
        table.add_column(name, justify="right")
    for number, w in enumerate(order[:MOST_ROWS].tolist(), 1):
        table.add_row(
            f"{number}.",
            *(amount(float(values[w])) for values in (c.floor, c.median, c.high)),
            f"{q.queued_min[w]:.0f}m",
            *(f"{values[w]:.0f}" for values in (b.bursts, b.noise)),
            seconds(float(t.ttft_p99_s[w])),
            amount(float(demand.mix.output_tokens[w])),
            share(float(demand.residency.ratio[w])),
            *(seconds(float(values[w])) for values in (demand.durations.p50_s, demand.durations.p99_s)),
        )
    left = len(order) - MOST_ROWS
    if left > 0:
        table.caption, table.caption_justify = f"and {count(left, 'service')} more in the document", "left"
    return table


def _print_draft(demand: DemandModel, w: int, console: Console) -> None:
    draft = demand.drafts[w]
    if not draft.offered:
        _print_inside(console, Text.assemble(("No draft: ", "bold"), printable(draft.refusal + ".")))
        return
    constant = "" if math.isnan(draft.gpu_hours_constant) else f", a constant count {amount(draft.gpu_hours_constant)}"
    said = (
        f"{amount(draft.gpu_hours)} GPU-hours at {share(draft.attainment)} on the half of the history that it has not "
        f"seen; today's policy {amount(draft.gpu_hours_today)} at {share(draft.attainment_today)}{constant}."
    )
    _print_inside(console, Text.assemble(("Draft: ", "bold"), said))
    for line in draft.lines:
        said = f"{line.field}: {line.value} (today {line.today}): {line.reason}; {say_without(draft, line)}"
        _print_inside(console, Text(printable(said)), 4)
    for kept in draft.kept:
        _print_inside(console, Text(kept), 4)


def _print_inside(console: Console, text: Text, indent: int = 2) -> None:
    """Print a text whose lines are all indented."""
    console.print(Padding(text, (0, 0, 0, indent), expand=False))
