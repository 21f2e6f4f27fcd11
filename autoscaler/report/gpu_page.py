"""The parts of a page about GPUs and teams: what GPUs did, what they were used for, and the figures of each team."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autoscaler.core.gpu_use import GpuState
from autoscaler.core.model.diagnosis import STATES, UNKNOWN
from autoscaler.core.model.money import dollars
from autoscaler.lab.report.format import UNKNOWN as DASH
from autoscaler.lab.report.format import amount, count, duration, share
from autoscaler.report import html
from autoscaler.report.gpu_use import TITLES, by_namespace
from autoscaler.report.html import escape
from autoscaler.report.report import FleetReport
from autoscaler.report.teams import team_figures

MOST_SERVICES = 200
MOST_NAMESPACES = 100
MOST_CAUSES = 3


def gpus(report: FleetReport) -> str:
    """Return what the GPUs of each service did; "": DCGM showed none."""
    story = report.gpus
    if story is None:
        return ""
    states = [*(state for state in STATES if state != UNKNOWN), UNKNOWN]
    order = np.argsort(-story.hours.idle_h, kind="stable")[:MOST_SERVICES].tolist()
    head = [("service", ""), *((state.replace("_", " "), "replica-hours") for state in states), ("in words", "")]

    def rows() -> Iterator[str]:
        for row in order:
            hours, proposal = story.by_state(row), story.proposals[row]
            texts = [amount(hours[state]) if hours[state] else "" for state in states]
            is_refused = bool(proposal.tried) and not proposal.effect  # the lines of what was tried say why
            lines = (story.sentence(row), "No change is offered." if is_refused else proposal.words)
            said = "".join(f"<div>{escape(line)}</div>" for line in lines)
            said += "".join(f'<div class="muted">{escape(each.line)}</div>' for each in proposal.tried)
            consider = f'<td class="wrap">{said}</td>'
            name = html.row(str(report.services[row]), texts)
            yield name.removesuffix("</tr>") + consider + "</tr>"

    left = len(report.services) - len(order)
    about = (
        "Replica-hours by what their GPUs did, by the daemon's own rules. Activity alone never changes a count. A "
        "change is something to consider. Each was replayed on this history, or the reason says why it was not; one is "
        "offered that keeps what is promised and saves most."
        + (f" {count(left, 'service')} more are in the JSON." if left > 0 else "")
    )
    return html.section("What the GPUs did", html.table(head, rows()), about)


def gpu_use(report: FleetReport) -> str:
    """Return what GPUs were used for, by namespace; "": nothing tells."""
    found = list(by_namespace(report.gpu_use).items())
    if not found:
        return ""
    states = [state for state in GpuState if any(use.states.get(state.published) for _, use in found)]
    head = [
        ("namespace", ""),
        *((state.title, "GPU-hours") for state in states),
        ("idle", "GPU-hours of all states but serving and unknown"),
        ("idle, cost", "at the prices that are known"),
        ("kept by", "the decisions that kept idle GPUs, GPU-hours"),
    ]

    def rows() -> Iterator[str]:
        for namespace, use in found[:MOST_NAMESPACES]:
            texts = [amount(use.states.get(state.published, 0.0)) for state in states]
            cost = use.cost
            usd = (dollars(cost.usd) if cost.priced else DASH) + "*" * bool(cost.unpriced)
            idle = use.idle_words(report.use_from) or DASH
            causes = sorted(use.causes.items(), key=lambda each: (-each[1], each[0]))[:MOST_CAUSES]
            kept = ", ".join(f"{TITLES.get(name, name)} {amount(hours)}" for name, hours in causes)
            row = html.row(namespace or DASH, [*texts, idle, usd])
            yield row.removesuffix("</tr>") + f'<td class="wrap">{escape(kept)}</td></tr>'

    left = len(found) - MOST_NAMESPACES
    about = f"GPU-hours, {report.use_from}." + (
        f" {count(left, 'namespace')} more are in the JSON." if left > 0 else ""
    )
    star = "* without what has no price" if any(use.cost.unpriced for _, use in found) else ""
    return html.section("What GPUs were used for", html.table(head, rows(), star), about)


def teams(report: FleetReport) -> str:
    """Return the figures of each team; "": no label names one."""
    found = team_figures(report)
    if not found:
        return ""
    head = [
        ("team", ""),
        ("services", ""),
        ("GPU-hours", "from the order of a replica until it ends"),
        ("cost", "sums leave out services without a price"),
        ("attainment", "share of requests within their objective"),
        ("in breach", "minutes below the promised attainment, summed over services"),
        ("loaded", "replica-hours with the model in GPU memory"),
        ("idle", "those of them in which a replica had nothing to compute"),
        ("what to change", ""),
    ]

    def rows() -> Iterator[str]:
        for each in found:
            usd = (dollars(each.cost.usd) if each.cost.priced else DASH) + "*" * bool(each.cost.unpriced)
            texts = (
                f"{each.services:,}",
                amount(each.gpu_hours),
                usd,
                share(each.attainment),
                duration(each.breach_min),
                f"{amount(each.loaded_h)} h",
                f"{amount(each.idle_h)} h",
            )
            changes = "".join(f"<div>{escape(change)}</div>" for change in each.changes)
            yield html.row(each.team, texts).removesuffix("</tr>") + f'<td class="wrap">{changes}</td></tr>'

    star = "* without what has no price" if any(each.cost.unpriced for each in found) else ""
    return html.section("Teams", html.table(head, rows(), star), "As it was. Savings are those of the replay.")
