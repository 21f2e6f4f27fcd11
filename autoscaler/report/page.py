"""The HTML page of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from autoscaler.core.model.money import dollars
from autoscaler.lab.report.format import UNKNOWN, amount, count, duration, seconds, share
from autoscaler.report import charts, html
from autoscaler.report.charts import DAY_S, HOUR_S, ChartLine
from autoscaler.report.columns import ACTUAL, POLICY
from autoscaler.report.document import assumptions, moment, total
from autoscaler.report.gpu_page import gpu_use, gpus, teams
from autoscaler.report.html import escape
from autoscaler.report.outcome import ServiceFigures, gpus_by_hour
from autoscaler.report.report import LEAST_SEEN, Entry, FleetReport
from autoscaler.report.sampled import describe
from autoscaler.report.table import cost_of, doubts, hour, left_out, most_to_gain, without_counts
from autoscaler.report.verdict import judge, judged_services, needed_gpu_hours, seen_of, sentence

MOST_GAIN = 10
GAIN = "GPU-hours beyond what the objective needs, or short of it."
MOST_ROWS = 1000
MOST_DAYS = 200
"""Services whose day is drawn; the page of 200 has some 2 MB."""


def _worst(outcome: ServiceFigures, row: int) -> str:
    at_s = float(outcome.worst_s[row])
    return UNKNOWN if math.isnan(at_s) else f"{hour(at_s)}: {share(float(outcome.worst_share[row]))}"


FIGURES: tuple[tuple[str, str, Callable[[ServiceFigures, int], str]], ...] = (
    ("GPU-hours", "from the order of a replica until it ends", lambda o, row: amount(o.gpu_hours[row])),
    ("cost", "at the prices that are known", lambda o, row: dollars(o.usd[row])),
    ("per M tokens", "cost of a million generated tokens", lambda o, row: dollars(o.usd_per_million_tokens[row])),
    ("replicas", "mean and most", lambda o, row: f"{amount(o.mean_replicas[row])} / {amount(o.max_replicas[row])}"),
    ("attainment", "share of requests within their objective", lambda o, row: share(o.attainment[row])),
    ("in breach", "time below the promised attainment", lambda o, row: duration(o.breach_min[row])),
    ("changes", "of the count", lambda o, row: amount(o.changes[row])),
    ("flaps", "changes undone within a cold start", lambda o, row: amount(o.flaps[row])),
    ("cold starts", "replicas that were started", lambda o, row: amount(o.cold_starts[row])),
    ("loaded", "replica-hours with the model in GPU memory", lambda o, row: f"{amount(o.loaded_h[row])} h"),
    ("idle", "those of them in which a replica had nothing to compute", lambda o, row: f"{amount(o.idle_h[row])} h"),
    ("worst hour", "the hour with the most missed requests, and its attainment", _worst),
)
"""Title, explanation and text of each figure of a service."""


def page(report: FleetReport) -> str:
    """Return the HTML document."""
    (team, *others) = set(report.teams) or {""}
    of_team = f" of team {team}" if team and not others else ""
    title = f"What the counts of {count(len(report.services), 'service')}{of_team} cost and missed"
    parts = (_totals, _by_hour, _gain, teams, gpus, gpu_use, _all, _days, _sample, _method)
    return html.document(title, _facts(report), sentence(judge(report)), [part(report) for part in parts])


def _facts(report: FleetReport) -> str:
    span = report.load.span
    policies = ", ".join(sorted(set(report.policies)))
    return (
        f"{moment(span.start_s)} to {moment(span.end_s)}, {seen_of(report.seen_days, report.span_days)} · "
        f"{report.server} · policy {policies} · read in steps of {seconds(report.step_s)}"
    )


def _legend(report: FleetReport) -> str:
    parts = (
        f'<span><i class="swatch column-{number}"></i>{escape(entry.course.title)}</span>'
        for number, entry in enumerate(report.entries)
    )
    return f'<p class="legend">{"".join(parts)}</p>'


def _totals(report: FleetReport) -> str:
    head = [
        ("", ""),
        ("GPU-hours", "from the order of a replica until it ends"),
        ("cost", "sums leave out services without a price"),
        ("attainment", "share of requests within their objective"),
        ("in breach", "minutes below the promised attainment, summed over services"),
        ("changes", "of a count"),
        ("flaps", "changes undone within a cold start"),
        ("cold starts", "replicas that were started"),
        ("loaded", "replica-hours with the model in GPU memory"),
        ("idle", "those of them in which a replica had nothing to compute"),
    ]

    def rows() -> Iterator[str]:
        for number, entry in enumerate(report.entries):
            sums = {key: math.nan if value is None else value for key, value in total(entry.outcome).items()}
            cost = cost_of(report, entry)
            if said := without_counts(entry):
                cost += f" ({said})"
            name = f'<i class="swatch column-{number}"></i>{escape(entry.course.title)}'
            yield (
                f'<tr class="{"ours" if entry.name == POLICY else ""}"><th scope="row">{name}</th>'
                + html.cells(
                    (
                        amount(sums["gpu_hours"]),
                        cost,
                        share(sums["attainment"]),
                        duration(sums["breach_min"]),
                        *(amount(sums[key]) for key in ("changes", "flaps", "cold_starts")),
                        *(f"{amount(sums[key])} h" for key in ("loaded_h", "idle_h")),
                    )
                )
                + "</tr>"
            )

    others = int((~judged_services(report)).sum())
    about = f"Sums include {count(others, 'service')} that could not be judged." if others else ""
    return html.section("All services", html.table(head, rows(), left_out(report)), about)


def _by_hour(report: FleetReport) -> str:
    lines, at_s = [], np.empty(0)
    for number, entry in enumerate(report.entries):
        at_s, gpus = gpus_by_hour(entry.course, report.load, report.facts)
        lines.append(ChartLine(f"column-{number}", gpus))
    if not len(at_s):
        return ""
    drawn = charts.gpus_by_hour(at_s, lines)
    about = "Times are UTC. A service is left out of hours in which it was not seen, and of lines without its counts."
    return html.section("GPUs by hour", f'{_legend(report)}<div class="scroll wide">{drawn}</div>', about)


def _gain(report: FleetReport) -> str:
    """Return the services with most to gain, or all if they are few."""
    order, judged = most_to_gain(report).tolist(), judged_services(report)
    if len(order) <= MOST_GAIN:
        return html.section("Every service, most to gain first", _figures(report, order), f"By {GAIN}")
    rows = [row for row in order if judged[row]][:MOST_GAIN]
    if not rows:
        return ""
    return html.section("Most to gain", _figures(report, rows), f"The services with the most {GAIN}")


def _all(report: FleetReport) -> str:
    if len(report.services) <= MOST_GAIN:
        return ""
    rows = sorted(range(len(report.services)), key=lambda row: report.services[row])[:MOST_ROWS]
    left = len(report.services) - len(rows)
    about = f"{count(left, 'service')} more are in the JSON." if left else ""
    return html.section("Every service", _figures(report, rows), about)


def _figures(report: FleetReport, rows: Sequence[int]) -> str:
    """Return a table with a group of rows for each service, one for each column that has counts."""
    judged, need = judged_services(report), needed_gpu_hours(report)
    head = [("service", ""), ("", ""), *((name, about) for name, about, _ in FIGURES)]

    def written() -> Iterator[str]:
        for row in rows:
            has = [each for each in enumerate(report.entries) if not math.isnan(each[1].outcome.gpu_hours[row])]
            needs = (
                f"needs {amount(need[row])} GPU-hours" if not math.isnan(need[row]) else "no counts met its objective"
            )
            policy = f"policy {report.policies[row]}" if len(set(report.policies)) > 1 else ""
            facts = ", ".join(filter(None, (report.facts.model[row], policy, needs)))
            mark = "" if judged[row] else f'<div class="small doubt">{escape(_why_not(report, row))}</div>'
            name = f'{escape(str(report.services[row]))}<div class="small">{escape(facts)}</div>{mark}'
            first = f'<th scope="rowgroup" class="wrap" rowspan="{len(has)}">{name}</th>'
            for number, entry in has:
                swatch = f'<i class="swatch column-{number}"></i>{escape(entry.course.title)}'
                kind = "group" if first else ""
                yield f'<tr class="{kind}">{first}<td>{swatch}</td>{html.cells(_texts(entry, row))}</tr>'
                first = ""

    return html.table(head, written())


def _texts(entry: Entry, row: int) -> list[str]:
    return [write(entry.outcome, row) for _, _, write in FIGURES]


def _why_not(report: FleetReport, row: int) -> str:
    """Return why a service is not judged."""
    if report.doubts[row]:
        return f"not well modelled: {report.doubts[row]}"
    if report.seen_share[row] < LEAST_SEEN:
        return f"seen in {100 * report.seen_share[row]:.0f}% of the span only"
    return "no request came"


def _days(report: FleetReport) -> str:
    rows = most_to_gain(report).tolist()[:MOST_DAYS]
    left = len(report.services) - len(rows)
    figures = "".join(_day(report, row) for row in rows)
    about = (
        "For each service the day with its worst hour, else with its highest load: replicas, and requests that wait. "
        "The queue of the real counts is the measured one. Lines have gaps where the service was not seen."
        + (f" {count(left, 'service')} more are not drawn." if left else "")
    )
    return html.section("A day of each service", f'{_legend(report)}<div class="timelines">{figures}</div>', about)


def _day(report: FleetReport, row: int) -> str:
    load, was = report.load, report.entry(ACTUAL).outcome
    ends_s = load.span.ends_s
    middle_s = was.worst_s[row]
    if math.isnan(middle_s):
        middle_s = ends_s[int(np.argmax(load.demand[:, row]))]
    start_s = min(max(middle_s // DAY_S * DAY_S, load.span.start_s), max(load.span.end_s - DAY_S, load.span.start_s))
    steps = np.flatnonzero((ends_s > start_s) & (ends_s <= start_s + DAY_S))
    if len(steps) < 2:
        return ""
    has = [number for number, entry in enumerate(report.entries) if not math.isnan(entry.outcome.gpu_hours[row])]
    seen = load.seen[steps, row]
    counts, queues = (
        [
            ChartLine(
                f"column-{number}", np.where(seen, getattr(report.entries[number].course, name)[steps, row], np.nan)
            )
            for number in has
        ]
        for name in ("wanted", "waiting")
    )
    drawn = charts.day(ends_s[steps] - load.span.step_s, counts, queues)
    name = escape(str(report.services[row]))
    caption = f'<b>{name}</b> <span class="muted">from {escape(hour(start_s // HOUR_S * HOUR_S))}</span>'
    return f"<figure><figcaption>{caption}</figcaption>{drawn}</figure>"


def _sample(report: FleetReport) -> str:
    """Return what request-by-request replay of some hours shows of the errors."""
    if not report.sampled:
        return ""
    names = ("requests", "attainment", "TTFT p50", "TTFT p95", "mean ITL", "waiting", "this policy: fluid", "replayed")
    head = [("service and hour", ""), *((name, "") for name in names)]

    def rows() -> Iterator[str]:
        for each in report.sampled:
            pairs = (
                (share, each.measured.attainment_ttft, each.replayed.attainment_ttft),
                (seconds, each.measured.ttft_p50_s, each.replayed.ttft_p50_s),
                (seconds, each.measured.ttft_p95_s, each.replayed.ttft_p95_s),
                (seconds, each.measured_itl_s, each.replayed_itl_s),
                (amount, each.measured_waiting, each.replayed_waiting),
            )
            doubt = f'<div class="small doubt">{escape(each.doubt)}</div>' if each.doubt else ""
            name = f"{escape(str(report.services[each.row]))}, {each.kind}: {escape(hour(each.start_s))}{doubt}"
            cells = [f"{each.requests:,}", *(f"{write(was)} → {write(made)}" for write, was, made in pairs)]
            cells += [share(each.fluid_attainment), share(each.policy_attainment)]
            yield f'<tr><th scope="row" class="wrap">{name}</th>{html.cells(cells)}</tr>'

    about = (
        "Some hours of the dearest services, replayed on simulated engines with the speed that was learned. Measured → "
        "replayed with the real counts: the error of the simulation. This policy, fluid and replayed: the error of the "
        "figures above. A service beyond the limits of the reference is not well modelled and not judged."
    )
    return html.section("Request by request", html.table(head, rows()), about)


def _method(report: FleetReport) -> str:
    said = [
        "“As it was” is measured: replicas that reported, with those that started where something told of them, and "
        "misses as the engines counted them.",
        "“This policy” and “least constant count” are computed by the planner's own arithmetic of queues on the load "
        f"that arrived, in steps of {seconds(report.load.span.step_s)}. The policy starts with the real counts and "
        "knows nothing of the days to come. "
        "The constant count was found with hindsight.",
        *filter(None, (describe(report.sampled),)),
        *doubts(report),
        "A service needs the GPU-hours of the cheaper of both, if it met the objective.",
        "Loaded is the time of replicas with the model in memory, idle the part of it in which they had nothing to "
        "compute.",
    ]
    assumed: dict[str, int] = {}
    for row in range(len(report.services)):
        for text in assumptions(report, row):
            assumed[text] = assumed.get(text, 0) + 1
    said += [f"Assumed for {count(number, 'service')}: {text}." for text, number in assumed.items()]
    reasons: dict[str, int] = {}
    for reason in filter(None, report.facts.reasons):
        reasons[reason] = reasons.get(reason, 0) + 1
    said += [f"{count(number, 'service')}: {text}." for text, number in reasons.items()]
    return html.notes((*said, *report.notes))
