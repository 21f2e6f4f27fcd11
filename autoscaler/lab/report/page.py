"""The HTML page of comparisons: one file without external requests, readable in light and dark mode.

Everything is drawn here; the script only highlights one policy at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from autoscaler.lab.compare.result import OURS, Comparison, PolicyRun
from autoscaler.lab.report import charts
from autoscaler.lab.report.format import (
    COLUMNS,
    COST_COLUMNS,
    amount,
    cold_start,
    count,
    fleet,
    label,
    learned_verdict,
    length,
    objective,
    ratio,
    setting,
    share,
    sorted_runs,
    verdict,
)

LEGEND = (("desired", "desired"), ("ready", "ready"), ("running", "running requests"), ("waiting", "waiting requests"))


def page(comparisons: Sequence[Comparison]) -> str:
    """Return the HTML document."""
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    title = "Comparison: " + ", ".join(dict.fromkeys(comparison.trace for comparison in comparisons))
    body = "\n".join(_article(comparison) for comparison in comparisons)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


def _article(comparison: Comparison) -> str:
    order = sorted_runs(comparison)
    classes = charts.css_classes([run.name for run in comparison.rows])
    copies = f" × {comparison.scale:g}" if comparison.scale != 1 else ""
    facts = (
        f"{count(comparison.requests, 'request')} in {length(comparison)}{fleet(comparison)} · "
        f"profile {comparison.profile} · {objective(comparison.goal)} · {cold_start(comparison)} · "
        f"seed {comparison.seed}"
    )
    return f"""<article>
<header><h1>{escape(comparison.trace + copies)}</h1><p class="muted">{escape(facts)}</p></header>
{_tiles(comparison)}
<p class="card verdict">{escape(" ".join(filter(None, (verdict(comparison), learned_verdict(comparison)))))}</p>
<section class="card"><h2>Every policy</h2><div class="scroll">{_table(comparison, order, classes)}</div></section>
<section class="card"><h2>The frontier</h2>
<p class="muted">Up and to the left is better. A ring is a policy as it ran, a dotted ring its best setting with \
hindsight; dots are the other settings that were tried, and a curve joins those that no other setting of the same \
policy beats. An arrow marks a policy that costs more than the axis shows.{_explain_plan(comparison)}</p>
<div class="scroll wide">{charts.frontier(comparison)}</div>{_legend(comparison, classes)}</section>
<section class="card"><h2>Over the trace</h2>{_line_legend()}{_timelines(comparison, order)}</section>
{_notes(comparison)}
</article>"""


def _explain_plan(comparison: Comparison) -> str:
    if comparison.offline_plan is None:
        return ""
    return (
        " The offline plan knows the whole trace in advance: it shows what can be achieved where the bound "
        "is out of reach."
    )


def _tiles(comparison: Comparison) -> str:
    ours = next((run for run in comparison.runs if run.name == OURS), None)
    best = comparison.best_baseline()
    tiles = [("GPU-hours, lower bound", amount(comparison.lower_bound_gpu_hours), "")]
    if not math.isnan(comparison.estimate_gpu_hours):
        tiles.append(("GPU-hours, lower bound with interference, estimated", amount(comparison.estimate_gpu_hours), ""))
    if comparison.offline_plan:
        state = "missed" if comparison.misses_goal(comparison.offline_plan) else ""
        tiles.append(("GPU-hours, offline plan", amount(comparison.offline_plan.score.gpu_hours), state))
    if ours:
        state = "missed" if comparison.misses_goal(ours) else ""
        tiles.insert(0, ("attainment, ours", share(ours.score.attainment), state))
        tiles.insert(1, ("GPU-hours, ours", amount(ours.score.gpu_hours), ""))
        if not math.isnan(comparison.gpu_price.usd):
            tiles += [(f"{column.title}, ours", column.write(comparison, ours), "") for column in COST_COLUMNS]
        tiles.append(("times the bound, ours", ratio(comparison.ratio(ours.score.gpu_hours)), ""))
    if best:
        tiles.append((f"times the bound, {label(best)}", ratio(comparison.ratio(best.score.gpu_hours)), ""))
    cells = (
        f'<div data-state="{state}"><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>'
        for name, value, state in tiles
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def _table(comparison: Comparison, order: Sequence[PolicyRun], classes: dict[str, str]) -> str:
    head = "".join(
        f'<th scope="col"{_number(column.number)} title="{escape(column.explained)}">{escape(column.title)}</th>'
        for column in COLUMNS
    )
    rows = []
    for run in order:
        first, *others = COLUMNS
        name = f'<i class="swatch {classes[run.name]}"></i>{escape(first.write(comparison, run))}'
        params = f'<span class="params">{escape(setting(run))}</span>' if run.params else ""
        cells = "".join(
            f"<td{_number(column.number)}>{escape(column.write(comparison, run))}</td>" for column in others
        )
        kind = ("ours " * (run.name == OURS) + "missed" * comparison.misses_goal(run)).strip()
        rows.append(
            f'<tr class="{kind}" data-policy="{escape(run.name)}"><th scope="row">{name}{params}</th>{cells}</tr>'
        )
    caption = "Pale rows miss the goal." if any(comparison.misses_goal(run) for run in order) else ""
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _number(number: bool) -> str:
    return ' class="number"' if number else ""


def _legend(comparison: Comparison, classes: dict[str, str]) -> str:
    names = dict.fromkeys([OURS, *sorted(run.name for run in comparison.rows)])
    chips = (
        f'<button type="button" data-policy="{escape(name)}"><i class="swatch {classes[name]}"></i>'
        f"{escape(name)}</button>"
        for name in names
        if any(run.name == name for run in comparison.rows)
    )
    return f'<p class="legend">{"".join(chips)}</p>'


def _line_legend() -> str:
    parts = (f'<span><i class="swatch {kind}"></i>{escape(caption)}</span>' for kind, caption in LEGEND)
    return f'<p class="legend">{"".join(parts)}</p>'


def _timelines(comparison: Comparison, order: Sequence[PolicyRun]) -> str:
    """Draw all timelines on one scale, side by side where there is room."""
    shown = [run for run in order if len(run.timeline)]
    top = charts.replica_axis_top(comparison)
    figures = (
        f'<figure data-policy="{escape(run.name)}"><figcaption><b>{escape(label(run))}</b> '
        f'<span class="muted">{share(run.score.attainment)}, {amount(run.score.gpu_hours)} GPU-hours</span>'
        f"</figcaption>"
        f"{charts.timeline(comparison, run, top)}</figure>"
        for run in shown
    )
    return f'<div class="timelines">{"".join(figures)}</div>'


def _notes(comparison: Comparison) -> str:
    if not comparison.notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    return f'<section class="card"><h2>Notes</h2><ul>{items}</ul></section>'
