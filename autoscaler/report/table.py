"""The report on the terminal: the verdict, the totals of each column, and the services with most to gain."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.core.model.money import UnitCosts, dollars
from autoscaler.core.table.columns import IntColumn
from autoscaler.lab.report.format import UNKNOWN, amount, count, printable, share
from autoscaler.report.columns import ACTUAL
from autoscaler.report.document import cost, total
from autoscaler.report.report import Report
from autoscaler.report.verdict import judge, judged_services, needed_gpu_hours, sentence

MOST_ROWS = 10


def print_report(report: Report, console: Console) -> None:
    """Print the report."""
    console.print(Text(sentence(judge(report)), style="bold"))
    console.print(_totals(report))
    console.print(_services(report))
    for note in report.notes:
        console.print(Text(printable(f"note: {note}")))


def duration(minutes: float) -> str:
    """Format minutes: `12 min`, `3.4 h`."""
    if math.isnan(minutes):
        return UNKNOWN
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"


def hour(time_s: float) -> str:
    return UNKNOWN if math.isnan(time_s) else datetime.fromtimestamp(time_s, UTC).strftime("%a %d %b %H:00 UTC")


def most_to_gain(report: Report) -> IntColumn:
    """Return the rows of the services in the order of what they would gain: GPU-hours beyond need, or lacking."""
    was, need = report.entry(ACTUAL).outcome.gpu_hours, needed_gpu_hours(report)
    gain = np.abs(np.nan_to_num(was - need)) * np.where(judged_services(report), 1.0, 1e-6)
    return np.argsort(-gain, kind="stable")


def _totals(report: Report) -> Table:
    table = Table(title=Text(f"All {count(len(report.services), 'service')}"), title_justify="left")
    names = (
        "",
        "GPU-hours",
        "cost",
        "per M tok / 1k req",
        "attainment",
        "in breach",
        "changes",
        "flaps",
        "starts",
        "loaded",
        "idle",
    )
    for name in names:
        table.add_column(name, justify="right" if name else "left")
    for entry in report.entries:
        sums = {key: math.nan if value is None else value for key, value in total(entry.outcome).items()}
        money = cost(report, entry)
        table.add_row(
            entry.course.title,
            amount(sums["gpu_hours"]),
            (dollars(money.usd) if money.priced else UNKNOWN) + "*" * bool(money.unpriced or money.too_high),
            " / ".join(dollars(sums[key]) for key in UnitCosts._fields),
            share(sums["attainment"]),
            duration(sums["breach_min"]),
            *(amount(sums[key]) for key in ("changes", "flaps", "cold_starts")),
            *(f"{amount(sums[key])} h" for key in ("loaded_h", "idle_h")),
        )
    was = cost(report, report.entry(ACTUAL))
    if was.unpriced or was.too_high:
        table.caption, table.caption_justify = Text(printable(f"* {was.say()}")), "left"
    return table


def _services(report: Report) -> Table:
    order = most_to_gain(report)
    table = Table(title=Text("Most to gain"), title_justify="left")
    table.add_column("service", overflow="fold")
    for entry in report.entries:
        for name in ("GPU-hours", "attainment"):
            table.add_column(f"{entry.course.title}\n{name}", justify="right")
    table.add_column("worst hour, as it was")
    judged = judged_services(report)
    for row in order[:MOST_ROWS].tolist():
        cells = []
        for entry in report.entries:
            cells += [amount(float(entry.outcome.gpu_hours[row])), share(float(entry.outcome.attainment[row]))]
        was = report.entry(ACTUAL).outcome
        mark = "" if judged[row] else " †"
        table.add_row(Text(printable(str(report.services[row]) + mark)), *cells, hour(float(was.worst_s[row])))
    left = len(order) - MOST_ROWS
    parts = [f"and {count(left, 'service')} more"] if left > 0 else []
    parts += ["† not judged: seen for less than half of the span, no request, or not well modelled"] * (
        not judged.all()
    )
    table.caption, table.caption_justify = "; ".join(parts), "left"
    return table
