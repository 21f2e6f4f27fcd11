"""Validation of a case before its run: field ranges, a reachable goal, an ordered trace."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoscaler.lab.replay.case import Case, Goal
from autoscaler.sim.engine.profiles import Profile

CHOICES = {"router": ("least-requests", "round-robin"), "removal": ("youngest", "replica-set")}


class UnreachableGoal(ValueError):
    """An objective that no replica of the profile can meet."""


def check_case(case: Case) -> None:
    """Raise ValueError if a case cannot be run. The message states the problem, the value found and what is allowed.

    Raises UnreachableGoal, a ValueError, if no number of replicas of the profile can meet the goal.
    """
    least = {"cold_start_s": 0.0, "cold_start_spread": 0.0, "drain_s": 0.0, "gpus_per_replica": 0.0}
    for name, bound in least.items():
        value = getattr(case, name)
        if not (math.isfinite(value) and value >= bound):
            raise ValueError(f"{name} is {value:g}; it must be a finite number, {bound:g} or more")
    uncached_s = case.cold_start_uncached_s
    if not (math.isnan(uncached_s) or case.cold_start_s <= uncached_s < math.inf):
        raise ValueError(
            f"a cold start takes {uncached_s:g} s on a fresh node; it must be at least the {case.cold_start_s:g} s of "
            "any other"
        )
    share = case.weights_on
    if not (math.isnan(share) or (0 <= share <= 1 and not math.isnan(uncached_s))):
        raise ValueError(
            f"weights_on is {share:g}; allowed: 0 to 1, with cold_start_uncached_s: otherwise every node has them"
        )
    if math.isnan(uncached_s):
        ahead = [name for name in ("requests_nodes", "fetches_weights") if getattr(case, name)]
        if ahead:
            raise ValueError(f"{ahead[0]} needs cold_start_uncached_s: otherwise every node is up and has the weights")
    for name in ("scrape_s", "patience_s", "crash_every_s", "router_weight", "node_idle_s"):
        finite = name in ("scrape_s", "router_weight")
        if not getattr(case, name) > 0 or (finite and math.isinf(getattr(case, name))):
            raise ValueError(f"{name} is {getattr(case, name):g}; it must be above 0")
    for name, allowed in CHOICES.items():
        if getattr(case, name) not in allowed:
            raise ValueError(f"{name} is {getattr(case, name)!r}; allowed: {', '.join(allowed)}")
    if case.max_replicas < 1:
        raise ValueError(f"max_replicas is {case.max_replicas}; it must be at least 1")
    if not 0 <= case.start_replicas <= case.max_replicas:
        raise ValueError(f"start_replicas is {case.start_replicas}; allowed: 0 to max_replicas ({case.max_replicas})")
    if not 0 <= case.counted_from_s < case.trace.duration_s:
        last = f"0 to before the end of the trace, {case.trace.duration_s:g} s"
        raise ValueError(f"counted_from_s is {case.counted_from_s:g}; allowed: {last}")
    profile = case.profile
    for name in ("step_s", "sequence_s", "kv_token_s", "prompt_token_s"):
        value = getattr(profile, name)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} of the profile is {value:g}; it must be a finite number, 0 or more")
    if not profile.step_s + profile.sequence_s > 0:
        raise ValueError("step_s and sequence_s of the profile are 0, so that a step takes no time")
    _check_goal(profile, case.goal)
    _check_trace(case)


def check_variants(cases: Sequence[Case]) -> None:
    """Raise ValueError if cases of one service differ in what belongs to its clients or its router."""
    first = cases[0]
    for name, differs in {
        "trace": any(case.trace is not first.trace for case in cases),
        "patience_s": any(case.patience_s != first.patience_s for case in cases),
        "router": any(case.router != first.router for case in cases),
    }.items():
        if differs:
            raise ValueError(f"variants of service {first.service} differ in {name}; they serve the same requests")


def _check_goal(profile: Profile, goal: Goal) -> None:
    idle_s = profile.step_s + profile.sequence_s
    if goal.itl_s < idle_s:
        raise UnreachableGoal(f"ITL {_time(goal.itl_s)} is below the step time of this profile ({_time(idle_s)})")
    first_s = profile.step_s + profile.prompt_token_s
    if goal.ttft_s < first_s:
        raise UnreachableGoal(
            f"TTFT {_time(goal.ttft_s)} is below the time this profile takes for one token ({_time(first_s)})"
        )
    if not 0 < goal.attainment <= 1:
        raise ValueError(f"attainment is {goal.attainment:g}; it must be above 0 and at most 1")


def _check_trace(case: Case) -> None:
    trace = case.trace
    count = len(trace.arrival_s)
    if not len(trace.prompt_tokens) == len(trace.output_tokens) == count:
        raise ValueError(
            f"trace {trace.name} has {count} arrivals, {len(trace.prompt_tokens)} prompts and "
            f"{len(trace.output_tokens)} outputs"
        )
    if not (math.isfinite(trace.duration_s) and trace.duration_s > 0):
        raise ValueError(f"duration_s of trace {trace.name} is {trace.duration_s:g}; it must be a number above 0")
    longest = case.profile.max_model_len
    wrong = {
        "arrives before the one before it": np.diff(trace.arrival_s, prepend=0.0) < 0,
        f"arrives outside of 0..{trace.duration_s:g} s": ~(trace.arrival_s <= trace.duration_s),
        "has no prompt token": trace.prompt_tokens < 1,
        "has no output token": trace.output_tokens < 1,
        f"has more tokens than max_model_len {longest}": trace.prompt_tokens + trace.output_tokens > longest,
    }
    for problem, rows in wrong.items():
        if rows.any():
            row = int(np.argmax(rows))
            raise ValueError(
                f"request {row} of trace {trace.name} {problem}: arrival {trace.arrival_s[row]:g} s, "
                f"{trace.prompt_tokens[row]} + {trace.output_tokens[row]} tokens ({int(rows.sum())} such requests)"
            )


def _time(value_s: float) -> str:
    return f"{value_s * 1000:.3g} ms" if value_s < 1 else f"{value_s:.3g} s"
