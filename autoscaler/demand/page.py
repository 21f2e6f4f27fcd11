"""The model of demand as a page: the verdict, when to buy, the tiers, and each service with draft and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autoscaler.config.values import show_duration
from autoscaler.core.table.columns import FloatColumn, or_zero
from autoscaler.demand import charts
from autoscaler.demand.draft import Draft
from autoscaler.demand.model import DemandModel
from autoscaler.demand.purchase import Purchase
from autoscaler.demand.purchase_page import purchase_cards
from autoscaler.demand.shape import bands
from autoscaler.demand.table import ANSWERS, by_gpu_hours
from autoscaler.demand.words import answers, figures_without, verdict
from autoscaler.lab.report.format import UNKNOWN, amount, count, seconds, share
from autoscaler.report import html
from autoscaler.report.charts import ChartLine
from autoscaler.report.document import moment
from autoscaler.report.gpu_page import gpu_use, gpus, teams
from autoscaler.report.html import escape
from autoscaler.report.verdict import seen_of

MOST_SERVICES = 100
"""Services that are drawn; the page then has some 3 MB. All others are in the JSON."""

LOW, MIDDLE, HIGH = "column-2", "column-0", "column-1"


def page(demand: DemandModel, purchase: Purchase) -> str:
    """Return the HTML document."""
    report, span = demand.report, demand.report.load.span
    facts = (
        f"{moment(span.start_s)} to {moment(span.end_s)}, {seen_of(report.seen_days, report.span_days)} · "
        f"{report.server} · hours of {demand.zone.key} · steps of {seconds(report.step_s)}"
    )
    order = by_gpu_hours(demand).tolist()
    left = len(order) - MOST_SERVICES
    notes = [*report.notes, *demand.notes, *([f"{count(left, 'service')} more are in the JSON"] if left > 0 else [])]
    parts = [*purchase_cards(purchase), _tiers(demand), teams(report), gpus(report), gpu_use(report)]
    parts += [_service(demand, w) for w in order[:MOST_SERVICES]]
    title = f"The shape of demand of {count(len(demand.services), 'service')}"
    return html.document(title, facts, verdict(demand), [*parts, html.notes(notes)])


def _tiers(demand: DemandModel) -> str:
    head = [("policy", ""), ("services", ""), ("priority", ""), ("GPU-hours", "share of all"), ("requests", "likewise")]

    def rows() -> Iterator[str]:
        for tier in demand.tiers:
            waits = "can wait for a cold start" if tier.can_wait else "cannot wait for a cold start"
            texts = (f"{tier.services:,}", amount(tier.priority), share(tier.gpu_hours), share(tier.requests))
            yield html.row(tier.policy, texts, waits)

    return html.section("Mix by tier", html.table(head, rows()), "What the services of each policy take together.")


def _service(demand: DemandModel, w: int) -> str:
    said = "".join(
        f"<li><b>{title}</b>: {escape(answer)}</li>" for title, answer in zip(ANSWERS, answers(demand, w), strict=True)
    )
    pictures = "".join(figure for figure in _figures(demand, w) if figure)
    draft = _draft(demand.drafts[w]) if demand.drafts else ""
    body = f'<ul>{said}</ul>{draft}<div class="timelines">{pictures}</div>'
    seen = demand.report.seen_share[w]
    about = f"policy {demand.report.policies[w]}, seen in {share(float(seen))} of the span"
    return html.section(str(demand.services[w]), body, about)


def _draft(draft: Draft) -> str:
    if not draft.offered:
        return f"<p>No draft: {escape(draft.refusal)}.</p>"
    constant = "" if math.isnan(draft.gpu_hours_constant) else f", a constant count {amount(draft.gpu_hours_constant)}"
    caption = (
        f"On the half of the history that it has not seen: {amount(draft.gpu_hours)} GPU-hours at "
        f"{share(draft.attainment)}; today's policy {amount(draft.gpu_hours_today)} at {share(draft.attainment_today)}"
        f"{constant}."
    )
    head = [("line of the draft", ""), ("value", ""), ("today", ""), ("the draft without it", "replayed")]

    def rows() -> Iterator[str]:
        for line in draft.lines:
            without = UNKNOWN if math.isnan(line.saved_gpu_hours) else figures_without(draft, line)
            yield html.row(line.field, (line.value, line.today, without), line.reason)

    return html.table(head, rows(), caption) + "".join(f'<p class="small">{escape(kept)}.</p>' for kept in draft.kept)


def _figures(demand: DemandModel, w: int) -> Iterator[str]:
    """Yield the pictures of the inputs, each with its number and what it is from."""
    c, q, b, t, m = demand.concurrency, demand.queue, demand.burst_profile, demand.tolerance, demand.mix
    r, d, load, hours = demand.residency, demand.durations, demand.report.load, demand.hours
    seen = f"{c.hours[w]:.0f} hours seen"
    concurrency = hours.concurrency[:, w : w + 1]
    for kind, of, kinds, draw in (
        ("hour", hours.hour, 24, charts.by_hour),
        ("weekday", hours.weekday, 7, charts.by_weekday),
    ):
        low, middle, high = bands(hours, concurrency, of, kinds)[:, :, 0]
        lines = [ChartLine(MIDDLE, middle), ChartLine(HIGH, high), ChartLine(LOW, low)]
        floor = f"floor {amount(float(c.floor[w]))}, high {amount(float(c.high[w]))} requests at once"
        drawn = draw(f"Concurrency by {kind}", "requests", lines)
        yield _figure(
            f"Concurrency by {kind}", floor, f"{seen}; 5, 50 and 95 % of the hours; running and waiting", drawn
        )

    depth = np.where(load.seen[:, w], or_zero(load.waiting[:, w]) / np.maximum(load.pods[:, w], 1.0), np.nan)
    at_s = np.asarray(load.span.start_s + hours.starts * load.span.step_s, np.float64)
    queue = ChartLine(HIGH, np.fmax.reduceat(depth, hours.starts).astype(np.float64))
    said = f"{q.queued_min[w]:.0f} min with a queue, deepest {amount(float(q.deepest[w]))} for each replica"
    breach = "" if math.isnan(q.breach_depth[w]) else f", a breach from {amount(float(q.breach_depth[w]))}"
    drawn = charts.course("Queue depth", "waiting", at_s, queue, float(q.breach_depth[w]))
    yield _figure("Queue", said + breach, "deepest of each hour, for each replica; waiting, and misses", drawn)

    cold_s = float(demand.report.profiles.cold_start_s[w])
    points = [(burst.duration_s / 60, burst.height) for burst in demand.bursts[w]]
    said = (
        f"{count(float(b.bursts[w]), 'burst')}, {b.noise[w]:.0f} shorter than a start of {show_duration(round(cold_s))}"
    )
    drawn = charts.dots("Bursts", "times", points, cold_s / 60)
    yield _figure("Bursts", said, "length, and height over the three hours around; arrivals", drawn)

    rows = [
        *_of_objective("TTFT", t.ttft_p50_s[w], t.ttft_p99_s[w], t.ttft_objective_s[w]),
        *_of_objective("ITL", t.itl_p50_s[w], t.itl_p99_s[w], t.itl_objective_s[w]),
    ]
    slack = f"slack {amount(float(t.ttft_slack[w]))} times for TTFT, {amount(float(t.itl_slack[w]))} for ITL"
    drawn = charts.bars("Latency over its objective", rows, 1.0) if rows else ""
    yield _figure("Latency", slack, "reached, over the objective; histograms", drawn)

    rows = [("prompt", float(m.prompt_tokens[w]), amount(float(m.prompt_tokens[w])))]
    rows += [("output", float(m.output_tokens[w]), amount(float(m.output_tokens[w])))]
    drawn = charts.bars("Tokens of a request", rows)
    yield _figure("Mix", f"{amount(float(m.requests[w]))} requests", "tokens of a mean request; counters", drawn)

    loaded, active = _by_hour_of_day(demand, w)
    said = f"{amount(float(r.loaded_h[w]))} replica-hours loaded, {share(float(r.ratio[w]))} of them active"
    said += _of_dcgm(demand, w)
    drawn = charts.by_hour("Residency by hour", "replicas", [ChartLine(MIDDLE, loaded), ChartLine(HIGH, active)])
    yield _figure("Residency", said, "loaded and active replicas; pods, token gaps, DCGM", drawn)

    rows = [(name, float(value), seconds(float(value))) for name, value in _stays(demand, w) if not math.isnan(value)]
    said = f"half within {seconds(float(d.p50_s[w]))}, variation {amount(float(d.variation[w]))}"
    drawn = charts.bars("Duration of requests", rows) if rows else ""
    yield _figure("Duration", said, "from arrival to last token; histogram of requests", drawn)


def _figure(title: str, number: str, evidence: str, drawn: str) -> str:
    """Return a picture with its number and its evidence. drawn: SVG, "": nothing is known."""
    drawn = drawn or f'<p class="muted">Not known: no {"histogram" if "histogram" in evidence else "reading"}.</p>'
    caption = f'<b>{title}</b> {escape(number)} <span class="muted">{escape(evidence)}</span>'
    return f"<figure><figcaption>{caption}</figcaption>{drawn}</figure>"


def _of_objective(name: str, p50_s: float, p99_s: float, objective_s: float) -> list[tuple[str, float, str]]:
    """Return bars of what was reached over the objective; []: no histogram, or no objective."""
    if math.isnan(p50_s) or math.isnan(objective_s):
        return []
    pairs = (("p50", float(p50_s)), ("p99", float(p99_s)))
    return [(f"{name} {q}", value / objective_s, f"{seconds(value)} of {seconds(objective_s)}") for q, value in pairs]


def _by_hour_of_day(demand: DemandModel, w: int) -> tuple[FloatColumn, FloatColumn]:
    """Return the mean loaded and active replicas of each hour of the day; float64[24] both, NaN: never seen."""
    load, hours = demand.report.load, demand.hours
    seen = load.seen[:, w]
    pods = np.where(seen, load.pods[:, w], 0.0).astype(np.float64)
    parts = (pods, pods * np.minimum(or_zero(load.busy[:, w]), 1.0), seen.astype(np.float64))
    sums = [np.bincount(hours.hour, np.add.reduceat(part, hours.starts), 24) for part in parts]
    with np.errstate(invalid="ignore", divide="ignore"):
        loaded, active = (np.asarray(total / sums[2]) for total in sums[:2])
    return loaded, active


def _of_dcgm(demand: DemandModel, w: int) -> str:
    story = demand.report.gpus
    if story is None or not story.hours.judged_h[w]:
        return ""
    hours = story.hours
    return (
        f"; by DCGM {amount(float(hours.active_h[w]))} of {amount(float(hours.loaded_h[w]))} replica-hours "
        "with a full framebuffer"
    )


def _stays(demand: DemandModel, w: int) -> tuple[tuple[str, float], ...]:
    d = demand.durations
    named = (("p50", d.p50_s), ("p90", d.p90_s), ("p99", d.p99_s), ("longest", d.longest_s))
    return tuple((name, float(values[w])) for name, values in named)
