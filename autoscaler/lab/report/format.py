"""How the numbers of a proof are written for people, alike in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from autoscaler.lab.compare.result import OFFLINE_PLAN, OURS, Comparison, PolicyRun
from autoscaler.lab.replay.case import Goal

UNKNOWN = "–"


def share(value: float) -> str:
    """Write a share as a percentage, with as many digits as its distance from 100% asks for."""
    if math.isnan(value):
        return UNKNOWN
    if value == 1:
        return "100%"
    digits = 1 if value < 0.9 else 2 if value < 0.999 else 3
    shown = math.floor(value * 100 * 10**digits + 1e-6) / 10**digits  # 99.996% is not 100%
    return f"{shown:.{digits}f}%"


def seconds(value: float) -> str:
    """Write a latency or a stretch of time."""
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


def amount(value: float) -> str:
    """Write a quantity: three digits, never a power of ten."""
    if not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(value: float, noun: str) -> str:
    """Write how many there are: `1 request`, `12,345 requests`."""
    return f"{value:,.10g} {noun}{'' if value == 1 else 's'}"


def per_second(value: float) -> str:
    return f"{amount(value)}/s" if math.isfinite(value) else UNKNOWN


def ratio(value: float) -> str:
    if math.isnan(value):
        return UNKNOWN
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def label(run: PolicyRun) -> str:
    """Name a run: `keda-queue (tuned)`, `keda-queue (default)`, `planned (knows the trace)`."""
    if run.name == OFFLINE_PLAN:
        return f"{run.name} (knows the trace)"
    kinds = {"tuned": run.tuned, "tuned before": run.before, "default": run.default}
    return " ".join([run.name, *(f"({kind})" for kind, is_it in kinds.items() if is_it)])


def setting(run: PolicyRun) -> str:
    """Write the setting of a run: `threshold 5, window_s 60`."""
    return ", ".join(
        f"{name} {amount(value)}" if isinstance(value, float) else f"{name} {value}"
        for name, value in run.params.items()
    )


def objective(goal: Goal) -> str:
    """Write a goal: `99% within TTFT 1 s and ITL 100 ms`, `no objective`."""
    parts = [f"TTFT {seconds(goal.ttft_s)}"] if math.isfinite(goal.ttft_s) else []
    parts += [f"ITL {seconds(goal.itl_s)}"] if math.isfinite(goal.itl_s) else []
    return f"{goal.attainment * 100:g}% within {' and '.join(parts)}" if parts else "no objective"


def fleet(comparison: Comparison) -> str:
    """Write what runs together, to go on after: `, 27 models on 8 GPUs`; "": one model without a limit."""
    parts = [f"{comparison.models} models"] if comparison.models > 1 else []
    parts += [f"on {count(comparison.gpus, 'GPU')}"] if math.isfinite(comparison.gpus) else []
    return f", {' '.join(parts)}" if parts else ""


def length(comparison: Comparison) -> str:
    """Write how long the trace is that counts: `6.0 h`, `6.0 h after 6.0 h to learn from`."""
    learned = f" after {seconds(comparison.learned_s)} to learn from" if comparison.learned_s else ""
    return seconds(comparison.duration_s) + learned


def cold_start(comparison: Comparison) -> str:
    """Write how long starts take: `cold start 60 s, 240 s on a fresh node`."""
    fresh = (
        f", {seconds(comparison.cold_start_uncached_s)} on a fresh node" if comparison.cold_start_uncached_s > 0 else ""
    )
    return f"cold start {seconds(comparison.cold_start_s)}{fresh}"


def printable(text: str) -> str:
    """Return the text without what would steer a terminal, as names of files may."""
    return "".join(character if character.isprintable() else "?" for character in text)


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    title: str
    explained: str
    write: Callable[[Comparison, PolicyRun], str]
    number: bool = True


COLUMNS = (
    Column(
        "policy",
        "the scaler; default: as documented; tuned: its best setting on this trace; tuned before: its best setting "
        "on the part that is only learned from",
        lambda _, run: label(run),
        False,
    ),
    Column("attainment", "share of requests within both objectives", lambda _, run: share(run.score.attainment)),
    Column("TTFT met", "share of requests within the TTFT objective", lambda _, run: share(run.score.attainment_ttft)),
    Column("ITL met", "share of requests within the ITL objective", lambda _, run: share(run.score.attainment_itl)),
    Column("goodput", "requests per second within both objectives", lambda _, run: per_second(run.score.goodput_rps)),
    Column("GPU-hours", "from when a replica has its GPUs until it ends", lambda _, run: amount(run.score.gpu_hours)),
    Column(
        "ratio",
        "GPU-hours over the clairvoyant bound",
        lambda comparison, run: ratio(comparison.ratio(run.score.gpu_hours)),
    ),
    Column(
        "TTFT p50", "half of the requests got their first token sooner", lambda _, run: seconds(run.score.ttft_p50_s)
    ),
    Column("p95", "95% of the requests got their first token sooner", lambda _, run: seconds(run.score.ttft_p95_s)),
    Column("p99", "99% of the requests got their first token sooner", lambda _, run: seconds(run.score.ttft_p99_s)),
    Column("ups", "times the count was raised", lambda _, run: f"{run.score.scale_ups:,}"),
    Column("downs", "times the count was lowered", lambda _, run: f"{run.score.scale_downs:,}"),
    Column("flaps", "reversals within ten minutes", lambda _, run: f"{run.score.flaps:,}"),
    Column(
        "in breach",
        "time in which the objective was met less often than promised, summed over models",
        lambda _, run: seconds(run.score.breach_s),
    ),
)


def in_order(comparison: Comparison) -> list[PolicyRun]:
    """Return ours first, then who met the goal by GPU-hours, then who missed it by how near, then the rest."""

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
    """Say in one sentence how the shipped policy did beside the best baseline that met the goal; "": it did not run."""
    ours = next((run for run in comparison.runs if run.name == OURS), None)
    if ours is None:
        return ""
    said = f"ours: {share(ours.score.attainment)} at {amount(ours.score.gpu_hours)} GPU-hours"
    said += "" if comparison.meets_goal(ours) else f", which misses the goal of {share(comparison.goal.attainment)}"
    plan = comparison.offline_plan
    if plan is not None and comparison.meets_goal(plan) and plan.score.gpu_hours > 0:
        said += f", {ratio(ours.score.gpu_hours / plan.score.gpu_hours)} the plan that knows the trace"
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
    return f"{said}. Excess over the clairvoyant bound, the ratio minus one: {mine:.2f} against {its:.2f}."


def learned_verdict(comparison: Comparison) -> str:
    """Say how the baseline did that an owner without hindsight would have chosen; "": none was tuned so."""
    best = comparison.best_learned_baseline()
    if best is None or best.before is None:
        return ""
    chosen = f"{best.name} ({setting(best)})" if best.params else best.name
    missed = "" if comparison.meets_goal(best) else f", which misses the goal of {share(comparison.goal.attainment)}"
    return (
        f"Judged by the first {seconds(comparison.learned_s)}, the best was {chosen}: {share(best.before.attainment)} "
        f"at {amount(best.before.gpu_hours)} GPU-hours there, {share(best.score.attainment)} at "
        f"{amount(best.score.gpu_hours)} from then on{missed}."
    )
