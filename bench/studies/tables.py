"""The table, the summary and the chart of the results of `bench/studies/policies.py`.

A result is a document of `simulate --json` with, by policy, its excess over the bound and whether it met the goal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from autoscaler.lab.compare.result import OURS
from autoscaler.lab.report.format import amount, seconds, share
from bench.studies.dots import Dot, dots, standalone

# 97.5% quantile of Student's t by degrees of freedom; beyond, the normal distribution is close enough.
STUDENT = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half width of the 95% confidence interval over seeds; NaN for the width of a single seed."""
    count = len(values)
    if count < 2:
        return (values[0] if values else math.nan), math.nan
    student = STUDENT[count - 1] if count - 1 < len(STUDENT) else 1.96
    return float(np.mean(values)), float(student * np.std(values, ddof=1) / math.sqrt(count))


def group_by_case(results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, float, list[dict[str, Any]]]]:
    """Yield trace, cold start and the results of all seeds of every case."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, result in results.items():
        groups.setdefault(json.dumps(json.loads(key)[:-1]), []).append(result)
    for key, of_seeds in groups.items():
        name, _, _, _, cold_start_s, *_ = json.loads(key)
        yield name, cold_start_s, of_seeds


def best_baseline(results: Sequence[dict[str, Any]]) -> str | None:
    """Return the baseline with the least mean excess among those that met the goal with every seed, or None."""
    names = [name for name in results[0]["excess"] if name != OURS and all(each["meets"][name] for each in results)]
    return min(names, key=lambda name: np.mean([each["excess"][name] for each in results]), default=None)


def closest_baseline(results: Sequence[dict[str, Any]]) -> tuple[str, float]:
    """Return the tuned baseline with the highest worst attainment, and that attainment."""
    names = [name for name in results[0]["excess"] if name != OURS]
    worst = {name: min(_policy(each, name)["attainment"] for each in results) for name in names}
    best = max(names, key=lambda name: worst[name])
    return best, worst[best]


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the table and the summary as Markdown."""
    titles = ["trace", "length", "mean of the bound", "cold start", "seeds", "ours: attainment", "ours: excess"]
    titles += ["best tuned baseline", "its attainment", "its excess", "ours / its", "estimate: excess", "plan: excess"]
    learned = any("before" in result for result in results.values())
    titles += ["best baseline, tuned before", "its attainment", "its excess"] if learned else []
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, cold_start_s, of_seeds in group_by_case(results):
        ours, wide = confidence_interval([each["excess"][OURS] for each in of_seeds])
        attained = min(_policy(each, OURS)["attainment"] for each in of_seeds)
        best = best_baseline(of_seeds)
        missed = "" if all(each["meets"][OURS] for each in of_seeds) else " (misses)"
        row = [
            name,
            seconds(float(np.mean([each["duration_s"] for each in of_seeds]))),
            amount(float(np.mean([each["clairvoyant_mean"] for each in of_seeds]))),
            f"{cold_start_s:g} s",
            str(len(of_seeds)),
            f"{share(attained)}{missed}",
            _with_interval(ours, wide),
        ]
        if best is None:
            near, its_attained = closest_baseline(of_seeds)
            row += [f"none met the goal; nearest {near}", share(its_attained), "", ""]
        else:
            its, its_wide = confidence_interval([each["excess"][best] for each in of_seeds])
            its_attained = min(_policy(each, best)["attainment"] for each in of_seeds)
            row += [best, share(its_attained), _with_interval(its, its_wide), f"{ours / its:.2f}" if its > 0 else "–"]
        row += _plan_columns(of_seeds) + (_learned_columns(of_seeds) if learned else [])
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(
        [*lines, "", *summarize_runs(list(results.values())), "", *table_by_baseline(list(results.values())), ""]
    )


def _learned_columns(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the baselines chosen in the learning part, their worst attainment, and their excess."""
    chosen = [each["before"] for each in results if "before" in each]
    if len(chosen) < len(results):
        return ["", "", ""]
    missed = "" if all(each["meets"] for each in chosen) else " (misses)"
    names = ", ".join(sorted({each["name"] for each in chosen}))
    attained = share(min(each["attainment"] for each in chosen))
    return [names, f"{attained}{missed}", _with_interval(*confidence_interval([each["excess"] for each in chosen]))]


def summarize_runs(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the numbers of runs that met the goal, and the relative cost of ours where both did."""
    met = [each for each in results if each["meets"][OURS]]
    yield f"Of {len(results)} runs ours met the goal in {len(met)}."
    best = [(each, best_baseline([each])) for each in results]
    rivals = {"any tuned baseline": [(each, each["excess"][name]) for each, name in best if name]}
    before = [each for each in results if "before" in each]
    if before:
        rivals["the baseline best before"] = [
            (each, each["before"]["excess"]) for each in before if each["before"]["meets"]
        ]
    for said, those in rivals.items():
        ratios = [(1 + each["excess"][OURS]) / (1 + excess) for each, excess in those if each["meets"][OURS]]
        beside = "GPU-hours of ours beside it, where both met, in the geometric mean"
        yield f"- {said}: {len(those)}; {beside}: {_mean(ratios)}."


def table_by_baseline(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of the baselines, each tuned to every run, and with its default setting.

    Columns: runs that met the goal, runs in which ours did too, and the relative cost of ours there. For defaults also
    the sum of points by which the goal was missed.
    """
    beside = "both met | GPU-hours of ours beside it, geometric mean"
    yield f"| baseline | tuned: met of {len(results)} | {beside} | by default: met | points missed | {beside} |"
    yield "|---" * 8 + "|"
    for name in dict.fromkeys(name for each in results for name in each["excess"] if name != OURS):
        tuned = [each for each in results if each["meets"].get(name)]
        excess = [each["excess"] for each in tuned if each["meets"][OURS]]
        ratios = [(1 + each[OURS]) / (1 + each[name]) for each in excess]
        yield f"| {name} | {len(tuned)} | {len(ratios)} | {_mean(ratios)} | {' | '.join(_by_default(results, name))} |"


def _by_default(results: Sequence[dict[str, Any]], name: str) -> list[str]:
    """Return the default columns of a baseline, as in `table_by_baseline`; empty without a default."""
    pairs = [
        (each, entry) for each in results for entry in each["policies"] if entry["name"] == name and entry["default"]
    ]
    if not pairs:
        return ["", "", "", ""]
    short = [each["objective"]["attainment"] - entry["attainment"] for each, entry in pairs]
    ratios = [
        _policy(each, OURS)["gpu_hours"] / entry["gpu_hours"]
        for (each, entry), missed in zip(pairs, short, strict=True)
        if missed <= 0 and each["meets"][OURS]
    ]
    met, points = sum(missed <= 0 for missed in short), sum(max(missed, 0.0) for missed in short) * 100
    return [str(met), f"{points:.0f}", str(len(ratios)), _mean(ratios)]


def _mean(ratios: Sequence[float]) -> str:
    """Format the geometric mean, with the 95% interval of two or more values."""
    if not ratios:
        return "–"
    middle, wide = confidence_interval([math.log(ratio) for ratio in ratios])
    likely = "" if math.isnan(wide) else f", 95%: {math.exp(middle - wide):.2f} to {math.exp(middle + wide):.2f}"
    return f"{math.exp(middle):.3f}{likely}"


def _plan_columns(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the excess of the estimate and of the offline plan; "" if a seed ran without one.

    If the plan misses the goal with a seed, return its attainment instead, and no estimate, which is of schedules that
    meet it.
    """
    bounds = [each["clairvoyant"]["gpu_hours"] for each in results]
    estimates = [each["clairvoyant"].get("estimate_gpu_hours") for each in results]
    plans = [each["planned"] for each in results if each.get("planned")]
    missed = [plan["attainment"] for plan in plans if plan["attainment"] < results[0]["objective"]["attainment"]]
    if missed:
        return ["", f"misses, {share(min(missed))}"]
    of_plan = [plan["gpu_hours"] for plan in plans]
    return [_excess(each, bounds) if len(each) == len(bounds) and all(each) else "" for each in (estimates, of_plan)]


def _excess(gpu_hours: Sequence[float], bounds: Sequence[float]) -> str:
    return _with_interval(
        *confidence_interval([each / bound - 1 for each, bound in zip(gpu_hours, bounds, strict=True)])
    )


def picture(results: dict[str, dict[str, Any]]) -> str:
    """Draw GPU-hours over the bound for ours, a constant count, and the best other baseline of each case."""
    rows = {}
    for name, cold_start_s, of_seeds in group_by_case(results):
        mean = amount(float(np.mean([each["clairvoyant_mean"] for each in of_seeds])))
        moving = [{**each, "excess": {k: v for k, v in each["excess"].items() if k != "static"}} for each in of_seeds]
        shown = {OURS: OURS, "constant count, tuned": "static", "best other baseline, tuned": best_baseline(moving)}
        rows[f"{name}, {mean} replicas, {cold_start_s:g} s"] = {
            said: _dot(of_seeds, policy) for said, policy in shown.items() if policy and policy in of_seeds[0]["excess"]
        }
    explained = "hollow: misses the goal; whiskers: 95% over seeds; replicas: the bound's mean; seconds: cold start"
    return standalone(dots("GPU-hours over the lower bound", rows, f"GPU-hours / lower bound; {explained}"))


def _dot(results: Sequence[dict[str, Any]], policy: str) -> Dot:
    value, wide = confidence_interval([1 + each["excess"][policy] for each in results])
    return Dot(value, value - wide, value + wide, hollow=not all(each["meets"][policy] for each in results))


def _policy(result: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the tuned entry of a baseline, or the entry of ours."""
    entries = [each for each in result["policies"] if each["name"] == name and (each["tuned"] or name == OURS)]
    return dict(entries[0])


def _with_interval(value: float, wide: float) -> str:
    return f"{value:.2f}" if math.isnan(wide) else f"{value:.2f} ± {wide:.2f}"
