"""Formatting of the figures of a comparison, for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autoscaler.core.model.money import dollars
from autoscaler.lab.compare.result import OFFLINE_PLAN, OURS, Comparison, PolicyRun
from autoscaler.lab.replay.case import Goal

UNKNOWN = "–"


def share(value: float) -> str:
    """Format a fraction as a percentage, with more digits close to 100%."""
    if math.isnan(value):
        return UNKNOWN
    if value == 1:
        return "100%"
    digits = 1 if value < 0.9 else 2 if value < 0.999 else 3
    shown = math.floor(value * 100 * 10**digits + 1e-6) / 10**digits  # 99.996% is not 100%
    return f"{shown:.{digits}f}%"


def seconds(value: float) -> str:
    """Format a duration."""
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "never"
    if value == 0:
        return "0"
    if value < 0.001:
        return f"{value * 1000:.3g} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:,.0f} min" if value < 7200 else f"{value / 3600:,.1f} h"


def duration(minutes: float) -> str:
    """Format minutes: `12 min`, `3.4 h`."""
    if math.isnan(minutes):
        return UNKNOWN
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"


def amount(value: float) -> str:
    """Format a quantity with three digits, without exponent."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(value: float, noun: str) -> str:
    """Format a count: `1 request`, `12,345 requests`."""
    return f"{value:,.10g} {noun}{'' if value == 1 else 's'}"


def per_second(value: float) -> str:
    return f"{amount(value)}/s" if math.isfinite(value) else UNKNOWN


def ratio(value: float) -> str:
    if math.isnan(value):
        return UNKNOWN
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def label(run: PolicyRun) -> str:
    """Return the name of a run: `keda-queue (tuned)`, `keda-queue (default)`, `offline-plan (knows the trace)`."""
    if run.name == OFFLINE_PLAN:
        return f"{run.name} (knows the trace)"
    kinds = {"tuned": run.tuned, "tuned before": run.before, "default": run.default, "own rule": run.own}
    return " ".join([run.name, *(f"({kind})" for kind, is_it in kinds.items() if is_it)])


def setting(run: PolicyRun) -> str:
    """Format the setting of a run: `threshold 5, window_s 60`."""
    return ", ".join(
        f"{name} {amount(value)}" if isinstance(value, float) else f"{name} {value}"
        for name, value in run.params.items()
    )


def objective(goal: Goal) -> str:
    """Format a goal: `99% within TTFT 1 s and ITL 100 ms`, `no objective`."""
    parts = [f"TTFT {seconds(goal.ttft_s)}"] if math.isfinite(goal.ttft_s) else []
    parts += [f"ITL {seconds(goal.itl_s)}"] if math.isfinite(goal.itl_s) else []
    return f"{goal.attainment * 100:g}% within {' and '.join(parts)}" if parts else "no objective"


def fleet(comparison: Comparison) -> str:
    """Format models and GPUs, as a continuation: `, 27 models on 8 GPUs`; "" for one model without a limit."""
    parts = [f"{comparison.models} models"] if comparison.models > 1 else []
    parts += [f"on {count(comparison.gpus, 'GPU')}"] if math.isfinite(comparison.gpus) else []
    return f", {' '.join(parts)}" if parts else ""


def length(comparison: Comparison) -> str:
    """Format the length of the scored part: `6.0 h`, `6.0 h after 6.0 h to learn from`."""
    learned = f" after {seconds(comparison.learned_s)} to learn from" if comparison.learned_s else ""
    return seconds(comparison.duration_s) + learned


def cold_start(comparison: Comparison) -> str:
    """Format cold starts: `cold start 60 s, 240 s on a fresh node`."""
    fresh = (
        f", {seconds(comparison.cold_start_uncached_s)} on a fresh node" if comparison.cold_start_uncached_s > 0 else ""
    )
    share = comparison.weights_on
    weights = "" if math.isnan(share) else f", weights on {100 * share:.0f}% of the nodes"
    return f"cold start {seconds(comparison.cold_start_s)}{fresh}{weights}"


def gpu_price(comparison: Comparison) -> str:
    """Format the price of a GPU: `a GPU at $6.88 an hour`, `no cost: ...`."""
    price = comparison.gpu_price
    return f"no cost: {price.why}" if math.isnan(price.usd) else f"a GPU at {dollars(price.usd)} an hour"


def printable(text: str) -> str:
    """Replace control characters, which file names may contain, by "?"."""
    return "".join(character if character.isprintable() else "?" for character in text)


@dataclass(frozen=True)
class TableColumn:
    """One column of the table."""

    title: str
    explained: str
    write: Callable[[Comparison, PolicyRun], str]
    number: bool = True


COLUMNS = (
    TableColumn(
        "policy",
        "the scaler; default: as documented; tuned: its best setting on this trace; tuned before: its best setting "
        "on the part that is only learned from",
        lambda _, run: label(run),
        False,
    ),
    TableColumn("attainment", "share of requests within both objectives", lambda _, run: share(run.score.attainment)),
    TableColumn(
        "TTFT met", "share of requests within the TTFT objective", lambda _, run: share(run.score.attainment_ttft)
    ),
    TableColumn(
        "ITL met", "share of requests within the ITL objective", lambda _, run: share(run.score.attainment_itl)
    ),
    TableColumn(
        "goodput", "requests per second within both objectives", lambda _, run: per_second(run.score.goodput_rps)
    ),
    TableColumn(
        "GPU-hours", "from when a replica has its GPUs until it ends", lambda _, run: amount(run.score.gpu_hours)
    ),
    TableColumn(
        "ratio",
        "GPU-hours over the lower bound",
        lambda comparison, run: ratio(comparison.ratio(run.score.gpu_hours)),
    ),
    TableColumn(
        "TTFT p50", "half of the requests got their first token sooner", lambda _, run: seconds(run.score.ttft_p50_s)
    ),
    TableColumn(
        "p95", "95% of the requests got their first token sooner", lambda _, run: seconds(run.score.ttft_p95_s)
    ),
    TableColumn(
        "p99", "99% of the requests got their first token sooner", lambda _, run: seconds(run.score.ttft_p99_s)
    ),
    TableColumn("ups", "times the count was raised", lambda _, run: f"{run.score.scale_ups:,}"),
    TableColumn("downs", "times the count was lowered", lambda _, run: f"{run.score.scale_downs:,}"),
    TableColumn("flaps", "changes undone within one cold start", lambda _, run: f"{run.score.flaps:,}"),
    TableColumn(
        "in breach",
        "time in which the objective was met less often than promised, summed over models",
        lambda _, run: seconds(run.score.breach_s),
    ),
)

COST_COLUMNS = (
    TableColumn("cost", "GPU-hours at the price of a GPU", lambda comparison, run: dollars(comparison.cost(run)[0])),
    TableColumn(
        "per M tok / 1k req",
        "that cost over a million generated tokens, and over a thousand answered requests",
        lambda comparison, run: " / ".join(map(dollars, comparison.cost(run)[1])),
    ),
)


def columns_of(comparison: Comparison) -> tuple[TableColumn, ...]:
    """Return the columns of a table: those of costs only where a price is known."""
    return COLUMNS if math.isnan(comparison.gpu_price.usd) else (*COLUMNS, *COST_COLUMNS)


def sorted_runs(comparison: Comparison) -> list[PolicyRun]:
    """Return ours first, then runs that met the goal by GPU-hours, then misses by attainment, then unknown ones."""

    def place(run: PolicyRun) -> tuple[bool, bool, bool, float]:
        meets, misses_goal = comparison.meets_goal(run), comparison.misses_goal(run)
        return (
            run.name != OURS,
            not meets,
            not misses_goal,
            -run.score.attainment if misses_goal else run.score.gpu_hours,
        )

    return sorted(comparison.rows, key=place)


def verdict(comparison: Comparison) -> str:
    """Compare the shipped policy with the best baseline that met the goal, in one sentence; "" if it did not run."""
    ours = next((run for run in comparison.runs if run.name == OURS), None)
    if ours is None:
        return ""
    if contradiction := comparison.contradiction():
        measured, simulated = (
            f"{seconds(run.score.ttft_p50_s)} and {share(run.score.attainment)}" for run in contradiction
        )
        return (
            f"No verdict: this profile does not describe your replicas. Median time to first token and attainment were "
            f"{measured}; simulated with the same counts they are {simulated}. Run `vllm-autoscaler simulate fit`."
        )
    said = f"ours: {share(ours.score.attainment)} at {amount(ours.score.gpu_hours)} GPU-hours"
    said += "" if comparison.meets_goal(ours) else f", which misses the goal of {share(comparison.goal.attainment)}"
    plan = comparison.offline_plan
    if plan is not None and comparison.meets_goal(plan) and plan.score.gpu_hours > 0:
        said += f", {ratio(ours.score.gpu_hours / plan.score.gpu_hours)} the offline plan"
    if not comparison.baselines:
        return f"{said}."
    best = comparison.best_baseline()
    if best is None:
        return f"{said}. No baseline met the goal."
    said += f". Best baseline that met the goal: {label(best)}, {share(best.score.attainment)} at "
    said += f"{amount(best.score.gpu_hours)} GPU-hours"
    mine, its = (comparison.ratio(run.score.gpu_hours) - 1 for run in (ours, best))
    if math.isnan(mine):
        return f"{said}."
    return f"{said}. Excess over the lower bound, the ratio minus one: {mine:.2f} against {its:.2f}."


def learned_verdict(comparison: Comparison) -> str:
    """Describe the baseline that the learning part suggests, in one sentence; "" if none was tuned on it."""
    best = comparison.best_learned_baseline()
    if best is None or best.before is None or comparison.contradiction():
        return ""
    chosen = f"{best.name} ({setting(best)})" if best.params else best.name
    missed = "" if comparison.meets_goal(best) else f", which misses the goal of {share(comparison.goal.attainment)}"
    return (
        f"Judged by the first {seconds(comparison.learned_s)}, the best was {chosen}: {share(best.before.attainment)} "
        f"at {amount(best.before.gpu_hours)} GPU-hours there, {share(best.score.attainment)} at "
        f"{amount(best.score.gpu_hours)} from then on{missed}."
    )
