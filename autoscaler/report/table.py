"""The report on the terminal: the verdict, the totals of each column, and the services with most to gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.core.model.money import UnitCosts, dollars
from autoscaler.core.table.columns import IntColumn
from autoscaler.lab.report.format import UNKNOWN, amount, count, duration, printable, share
from autoscaler.report.columns import ACTUAL, CONSTANT
from autoscaler.report.document import cost, total
from autoscaler.report.gpu_use import say_use
from autoscaler.report.report import Entry, FleetReport
from autoscaler.report.sampled import describe
from autoscaler.report.teams import TeamFigures, team_figures
from autoscaler.report.verdict import judge, judged_services, needed_gpu_hours, sentence

MOST_ROWS = 10


def print_report(report: FleetReport, console: Console) -> None:
    """Print the report."""
    console.print(Text(sentence(judge(report)), style="bold"))
    console.print(_totals(report))
    console.print(_services(report))
    if found := team_figures(report):
        console.print(_teams(found))
    if said := describe(report.sampled):
        console.print(Text(said))
    for line in (*gpu_lines(report), *say_use(report.gpu_use, report.use_from)):
        console.print(Text(printable(line)))
    for note in (*doubts(report), *report.notes):
        console.print(Text(printable(f"note: {note}")))


def gpu_lines(report: FleetReport) -> list[str]:
    """Say what the GPUs of the services with most loaded and idle hours did, and one change for each."""
    story = report.gpus
    if story is None:
        return []
    order = np.argsort(-story.hours.idle_h, kind="stable")[:MOST_ROWS].tolist()
    return [
        f"{report.services[row]}: " + ". ".join(filter(None, (said, story.proposals[row].words)))
        for row in order
        if (said := story.sentence(row))
    ]


def doubts(report: FleetReport) -> list[str]:
    """Return a line for each service that is not well modelled."""
    named = zip(report.services, report.doubts, strict=True)
    return [f"{name} is not well modelled: {doubt}" for name, doubt in named if doubt]


def hour(time_s: float) -> str:
    return UNKNOWN if math.isnan(time_s) else datetime.fromtimestamp(time_s, UTC).strftime("%a %d %b %H:00")


def most_to_gain(report: FleetReport) -> IntColumn:
    """Return the rows of the services in the order of what they would gain: GPU-hours beyond need, or lacking."""
    was, need = report.entry(ACTUAL).outcome.gpu_hours, needed_gpu_hours(report)
    gain = np.abs(np.nan_to_num(was - need)) * np.where(judged_services(report), 1.0, 1e-6)
    return np.argsort(-gain, kind="stable")


def _totals(report: FleetReport) -> Table:
    """Return the figures of all services, a column for each way of deciding counts."""
    table = Table(title=Text(f"All {count(len(report.services), 'service')}"), title_justify="left")
    table.add_column("")
    sums = [total(entry.outcome) for entry in report.entries]
    for entry in report.entries:
        table.add_column(entry.course.title, justify="right")
    for title, write in FIGURES:
        table.add_row(title, *(write({k: math.nan if v is None else v for k, v in each.items()}) for each in sums))
        if title == "GPU-hours":
            table.add_row("cost", *(cost_of(report, entry) for entry in report.entries))
    without = [f"{entry.course.title}: {said}" for entry in report.entries if (said := without_counts(entry))]
    if said := "; ".join(filter(None, (left_out(report), *without))):
        table.caption, table.caption_justify = Text(printable(said)), "left"
    return table


def cost_of(report: FleetReport, entry: Entry) -> str:
    """Format what a column costs in all; – where no price is known, and a star where one is missing or too high."""
    money = cost(report, entry)
    return (dollars(money.usd) if money.priced else UNKNOWN) + "*" * bool(money.unpriced or money.too_high)


def without_counts(entry: Entry) -> str:
    """Return which services a column leaves out of its sums; "": none."""
    services = int(np.isnan(entry.outcome.gpu_hours).sum())
    if not services:
        return ""
    if entry.name == CONSTANT:
        return f"{count(services, 'service')} left out, as no constant count met the objective"
    return f"{count(services, 'service')} without a rule left out"


def left_out(report: FleetReport) -> str:
    """Return what the star of `cost_of` means, and what the cost of tokens leaves out; "": nothing."""
    entry = report.entry(ACTUAL)
    was, untold = cost(report, entry), int(total(entry.outcome)["without_tokens"])
    said = [f"* {was.say()}"] if was.unpriced or was.too_high else []
    said += [f"cost of tokens without {count(untold, 'service')} whose engines tell no generated tokens"] * bool(untold)
    return "; ".join(said)


def _teams(found: Sequence[TeamFigures]) -> Table:
    table = Table(title=Text("Teams"), title_justify="left")
    for name in ("team", "GPU-hours", "cost", "attainment", "what to change"):
        table.add_column(name, justify="left" if name in ("team", "what to change") else "right", overflow="fold")
    for each in found[:MOST_ROWS]:
        usd = (dollars(each.cost.usd) if each.cost.priced else UNKNOWN) + "*" * bool(each.cost.unpriced)
        changes = Text("\n".join(printable(change) for change in each.changes))
        table.add_row(Text(printable(each.team)), amount(each.gpu_hours), usd, share(each.attainment), changes)
    left = len(found) - MOST_ROWS
    table.caption = f"{count(left, 'team')} more in the JSON" if left > 0 else None
    return table


FIGURES: tuple[tuple[str, Callable[[Mapping[str, float]], str]], ...] = (
    ("GPU-hours", lambda sums: amount(sums["gpu_hours"])),
    ("per M tok / 1k req", lambda sums: " / ".join(dollars(sums[key]) for key in UnitCosts._fields)),
    ("attainment", lambda sums: share(sums["attainment"])),
    ("in breach", lambda sums: duration(sums["breach_min"])),
    ("changes of count", lambda sums: amount(sums["changes"])),
    ("flaps", lambda sums: amount(sums["flaps"])),
    ("cold starts", lambda sums: amount(sums["cold_starts"])),
    ("replicas loaded", lambda sums: f"{amount(sums['loaded_h'])} h"),
    ("of which idle", lambda sums: f"{amount(sums['idle_h'])} h"),
)


def _services(report: FleetReport) -> Table:
    order = most_to_gain(report)
    title = "Most to gain" if len(order) > MOST_ROWS else "Every service, most to gain first"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("service", overflow="fold")
    short = " / ".join(entry.course.title for entry in report.entries)
    for name in ("GPU-hours", "attainment"):
        table.add_column(name, justify="right")
    table.add_column("worst hour, as it was", overflow="fold")
    judged, was = judged_services(report), report.entry(ACTUAL).outcome
    for row in order[:MOST_ROWS].tolist():
        hours, met = (
            " / ".join(write(float(getattr(entry.outcome, name)[row])) for entry in report.entries)
            for name, write in (("gpu_hours", amount), ("attainment", share))
        )
        mark = "" if judged[row] else " †"
        table.add_row(Text(printable(str(report.services[row]) + mark)), hours, met, hour(float(was.worst_s[row])))
    parts = [short]
    parts += [f"{count(len(order) - MOST_ROWS, 'service')} more"] if len(order) > MOST_ROWS else []
    parts += ["† not judged"] if not judged[order[:MOST_ROWS]].all() else []
    table.caption, table.caption_justify = "; ".join(parts), "left"
    return table
