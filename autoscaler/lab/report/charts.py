"""Charts of a comparison: the frontier of all policies, and the timeline of each.

Colours and strokes are classes of page.css: `series-0` to `series-14` for baselines, `ours` for the shipped policy,
`offline-plan` for the offline plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from autoscaler.lab.compare.result import OFFLINE_PLAN, OURS, Comparison, Point, PolicyRun
from autoscaler.lab.replay.score import downsample
from autoscaler.lab.report.format import amount, label, share
from autoscaler.lab.report.svg import Scale, area, element, line_path, nice_ticks, number, step_path, text, time_ticks

SERIES = 15  # number of colours for baselines and history; further ones repeat
NINES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)
LEAST_MISS = 1e-5  # attainment closer to 1 is drawn as 1
MOST_HOURS = 3.0  # right end of the axis, as a multiple of the most expensive relevant run
COLUMNS = 700  # drawn points of a timeline
WIDTH, LEFT, RIGHT = 960.0, 58.0, 16.0
LETTER_PX = 6.5  # approximate width of a letter in a label
NARROW, NARROW_LEFT = 590.0, 86.0  # for charts side by side, whose text is large on a phone


def css_classes(names: Sequence[str]) -> dict[str, str]:
    """Assign a CSS class to each policy, the same in every chart."""
    others = [name for name in dict.fromkeys(names) if name not in (OURS, OFFLINE_PLAN)]
    return {
        OURS: OURS,
        OFFLINE_PLAN: OFFLINE_PLAN,
        **{name: f"series-{index % SERIES}" for index, name in enumerate(others)},
    }


def frontier(comparison: Comparison) -> str:
    """Draw attainment against GPU-hours, with a curve through the undominated settings of each policy.

    The attainment axis is by nines: 90%, 99% and 99.9% are equally far apart. Runs that cost several times as much as
    ours and the best baseline lie at the right edge. Settings that do, or that cost more than any run, are left out, as
    are runs of unknown attainment.
    """
    top, bottom, height = 34.0, 44.0, 450.0
    runs = [run for run in comparison.rows if math.isfinite(run.score.attainment)]
    if not runs:
        return ""
    points = {name: list(comparison.frontier.get(name, ())) for name in dict.fromkeys(run.name for run in runs)}
    for run in runs:
        points[run.name].append(Point(run.params, run.score.attainment, run.score.gpu_hours))
    known = [point for each in points.values() for point in each]
    dearest = min(
        1.15 * max(run.score.gpu_hours for run in runs),
        MOST_HOURS * max(run.score.gpu_hours for run in _fitting(comparison)),
    )
    marks = {
        "lower bound": comparison.lower_bound_gpu_hours,
        "with interference, estimated": comparison.estimate_gpu_hours,
    }
    marks = {caption: hours for caption, hours in marks.items() if hours > 0}  # NaN: unknown
    shown = [*(point.gpu_hours for point in known if point.gpu_hours <= dearest), *marks.values()]
    ticks = nice_ticks(min(shown) * 0.95, max(shown) * 1.02, 8)
    x = Scale(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    drawn = [point.attainment for point in known if point.gpu_hours <= dearest]
    worst = min(comparison.goal.attainment, *drawn, *(run.score.attainment for run in runs))
    levels = [nine for nine in NINES if nine >= max((n for n in NINES if n <= worst), default=0.0)]
    y = Scale(_nines(levels[0]), _nines(levels[-1]), height - bottom, top)

    parts = [_y_line(x, y(_nines(level)), f"{level * 100:g}%") for level in levels]
    parts += [x_label(x, tick, height - bottom + 18, amount(tick)) for tick in ticks]
    parts.append(text("GPU-hours", WIDTH - RIGHT, height - 6, class_="label", text_anchor="end"))
    parts.append(text("attainment", 0, 11, class_="label"))
    goal_y = y(min(max(_nines(comparison.goal.attainment), y.low), y.high))
    parts.append(element("line", class_="limit", x1=LEFT, x2=WIDTH - RIGHT, y1=goal_y, y2=goal_y))
    parts.append(text("goal", x.end_px, goal_y - 5, class_="label limit-label", text_anchor="end"))
    heights = top - 9, height - bottom - 6  # heights of the labels, as the lines may lie side by side
    for (caption, hours), said_y in zip(marks.items(), heights, strict=False):
        parts.append(element("line", class_="bound", x1=x(hours), x2=x(hours), y1=top, y2=height - bottom))
        room = x(hours) + 4 + LETTER_PX * len(caption) <= WIDTH
        beside = {} if room else {"text_anchor": "end"}
        parts.append(text(caption, x(hours) + (4 if room else -4), said_y, class_="label", **beside))
    chosen = {name: [run for run in runs if run.name == name] for name in points}
    classes = css_classes([run.name for run in comparison.rows])
    for name in sorted(points, key=lambda name: name == OURS):  # ours on top
        parts.append(
            _curve(name, classes[name], [p for p in points[name] if p.gpu_hours <= dearest], chosen[name], x, y)
        )
    return picture("Attainment against GPU-hours", height, parts)


def _curve(name: str, css_class: str, points: list[Point], runs: list[PolicyRun], x: Scale, y: Scale) -> str:
    def at(attainment: float) -> float:
        return y(min(max(_nines(attainment), y.low), y.high))

    best = _undominated(points)
    path = line_path([x(point.gpu_hours) for point in best], [at(point.attainment) for point in best])
    drawn = [element("path", class_=f"line {css_class}", d=path)] if len(best) > 1 else []
    for point in points:
        caption = f"{name}: {share(point.attainment)} at {amount(point.gpu_hours)} GPU-hours{_params(point.params)}"
        title = f"<title>{escape(caption)}</title>"
        drawn.append(
            element("circle", title, class_=f"point {css_class}", cx=x(point.gpu_hours), cy=at(point.attainment), r=2.6)
        )
    for run in runs:
        caption = f"{label(run)}: {share(run.score.attainment)} at {amount(run.score.gpu_hours)} GPU-hours"
        radius = 7.0 if name == OURS else 5.5
        drawn.append(
            element(
                "circle",
                f"<title>{escape(caption)}</title>",
                class_=f"chosen {css_class}{' tuned' if run.tuned else ''}",
                cx=x(min(run.score.gpu_hours, x.high)),
                cy=at(run.score.attainment),
                r=radius,
            )
        )
        if run.score.gpu_hours > x.high:
            drawn.append(text("→", x.end_px - 9, at(run.score.attainment) + 4, class_="label", text_anchor="end"))
    return element("g", *drawn, class_="curve", data_policy=name)


def timeline(comparison: Comparison, run: PolicyRun, most_replicas: float) -> str:
    """Draw one run over time: desired and ready replicas, and below them running and waiting requests.

    most_replicas: top of the replica axis, shared by all runs so that areas compare; higher values are cut off.
    """
    rows = downsample(run.timeline, COLUMNS)
    if not len(rows):
        return ""
    tall, low, gap, top, axis = 96.0, 46.0, 18.0, 12.0, 22.0
    height = top + tall + gap + low + axis
    x = Scale(0.0, max(comparison.duration_s, float(rows[-1, 0])), NARROW_LEFT, NARROW - RIGHT)
    at = [x(time_s) for time_s in rows[:, 0].tolist()]
    replicas = Scale(0.0, max(most_replicas, 1.0), top + tall, top)
    load = rows[:, 3] + rows[:, 4]
    held = Scale(0.0, max(float(load.max()), 1.0), height - axis, height - axis - low)

    parts = draw_axis(x, replicas, "replicas")
    ready = [replicas(min(value, replicas.high)) for value in rows[:, 2].tolist()]
    wanted = step_path(at, [replicas(min(value, replicas.high)) for value in rows[:, 1].tolist()])
    parts.append(element("path", class_="area ready", d=step_path(at, ready, replicas(0.0))))
    parts.append(element("path", class_="line ready", d=step_path(at, ready)))
    parts.append(element("path", class_="line desired", d=wanted))
    parts += draw_axis(x, held, "requests")
    running = line_path(at, [held(value) for value in rows[:, 3].tolist()])
    above = [held(value) for value in load.tolist()]
    back = line_path(at[::-1], [held(value) for value in rows[::-1, 3].tolist()])
    parts.append(element("path", class_="area running", d=area(running, at, held(0.0))))
    parts.append(element("path", class_="area waiting", d=f"{line_path(at, above)}L{back[1:]}Z"))
    for time_s, caption in time_ticks(x.high, x.end_px - x.start_px):
        parts.append(x_label(x, time_s, height - 4, caption))
    return picture(f"Replicas and load of {label(run)}", height, parts, NARROW)


def replica_axis_top(comparison: Comparison) -> float:
    """Return a top of the replica axis that fits all relevant runs; an extreme baseline is cut off."""
    tops = [float(run.timeline[:, 1:3].max()) for run in _fitting(comparison) if len(run.timeline)]
    return nice_ticks(0.0, max(tops, default=1.0), 4)[-1]


def _fitting(comparison: Comparison) -> list[PolicyRun]:
    """Return the runs that determine the axes: all but baselines, and the best baseline if one met the goal."""
    best = comparison.best_baseline()
    return [run for run in comparison.rows if run is best or run not in comparison.baselines] or list(comparison.rows)


def draw_axis(x: Scale, y: Scale, unit: str) -> list[str]:
    """Draw the ends of an axis, with the unit below the upper end."""
    named = text(unit, x.start_px - 8, y.end_px + 20, class_="label", text_anchor="end")
    return [*(_y_line(x, y(value), amount(value)) for value in (0.0, y.high)), named]


def _y_line(x: Scale, at: float, caption: str) -> str:
    line = element("line", class_="grid", x1=x.start_px, x2=x.end_px, y1=at, y2=at)
    return line + text(caption, x.start_px - 8, at + 4, class_="label", text_anchor="end")


def x_label(x: Scale, value: float, y: float, caption: str) -> str:
    """Label a time or a cost; at the right edge, the text ends with the chart."""
    if x(value) > x.end_px - RIGHT:
        return text(caption, x.end_px + RIGHT, y, class_="label", text_anchor="end")
    return text(caption, x(value), y, class_="label", text_anchor="middle")


def picture(title: str, height: float, parts: Sequence[str], width: float = WIDTH) -> str:
    """Combine elements into one SVG."""
    return element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        class_="chart",
        role="img",
        aria_label=title,
    )


def _nines(attainment: float) -> float:
    return -math.log10(max(1.0 - attainment, LEAST_MISS))


def _undominated(points: Sequence[Point]) -> list[Point]:
    """Return the settings that no other setting of the policy dominates, by GPU-hours."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.gpu_hours, -point.attainment)):
        if not best or point.attainment > best[-1].attainment:
            best.append(point)
    return best


def _params(params: Mapping[str, float | int | str]) -> str:
    return f" ({', '.join(f'{name} {value}' for name, value in params.items())})" if params else ""
