"""The planner's knowledge of one workload: its figures, and a line for each question of an operator.

The planner decides in `autoscaler.core.planner`; this module only words it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.explain.claims import Words, tell
from autoscaler.core.explain.format import count, number, percent, seconds, window
from autoscaler.core.measure.replica_speed import MIN_BUSY_S
from autoscaler.core.measure.step_time import MIN_READINGS
from autoscaler.core.model.types import Decision, Recommender, Signal, TickInput
from autoscaler.core.planner.strategies import IS_SEASONAL, STRATEGIES

NOTEWORTHY = 5e-4
"""Share of requests that miss at any number of replicas from which a line says so."""

SHORTEST_TOKEN_S = 1e-7
"""No engine computes a token in less time. A smaller value is noise, and no limit."""


@dataclass(frozen=True)
class PlannerLine:
    """One line about the planner."""

    name: str  # one of planner, load, headroom, strategy, shadow, budget, replica, confidence
    text: str  # without a full stop


@dataclass(frozen=True)
class Figures:
    """The planner in numbers; NaN: not known."""

    demand_replicas: float  # the load: replicas that the arriving requests keep busy
    recommended_replicas: float  # NaN: the planner has no opinion
    headroom_replicas: float  # recommended replicas minus the load
    strategy_replicas: float  # that the selected strategy recommends, before any limit of the initial fleet
    base_replicas: float  # of the recommended ones, for the load of the last cold starts; the others are headroom
    requests_per_s: float  # requests like the present ones that keep one replica busy
    idle_gap_s: float  # between two tokens of a replica that serves a single request
    prompt_tokens_per_s: float  # that keep one replica busy; NaN: they do not show in the gaps between tokens
    generation_tokens_per_s: float  # likewise
    readings: float  # of single pods, from which the speed of a replica was learned
    observed_s: float  # seconds of traffic on which the strategies were compared
    warm_up_s: float  # seconds of traffic before which the initial fleet is kept
    average_s: float  # time constant of the load average that the selected strategy follows
    hold_cold_starts: float  # for which it holds a peak of that average
    peak_expires_in_s: float  # until it drops the peak that needs so many; NaN: that peak is the present one
    margin_fraction: float  # of the load average, which the strategy adds
    margin_roots: float  # times the square root of the load average, which it adds
    constant_replicas: float  # that it recommends at all times; 0: it follows the load
    budget_fraction: float  # of requests may miss their objective by the policy: the error budget
    window_s: float  # over which it is kept
    allowed_fraction: float  # of requests the strategy may miss now, beyond the unavoidable
    shadow_missed_fraction: float  # of requests the strategy would have missed so far, beyond the unavoidable
    unavoidable_fraction: float  # of requests miss at any number of replicas
    missed_fraction: float  # of requests missed within about that window; NaN: not counted
    used_budgets: float  # that, in error budgets: above 1 the budget is exceeded


def read(inp: TickInput, decision: Decision, row: int) -> Figures:
    """Read the figures of one row."""

    def plan(name: str) -> float:
        return float(getattr(decision.plan, name)[row])

    load, recommended = plan("demand"), float(decision.recommendations[Signal.PLANNER, row])
    strategy, missed = plan("strategy"), plan("missed_fraction")
    budget = float(inp.spec.error_budget[row])
    selected = None if math.isnan(strategy) else STRATEGIES[int(strategy)]
    return Figures(
        demand_replicas=load,
        recommended_replicas=recommended,
        headroom_replicas=recommended - load,
        strategy_replicas=plan("strategy_replicas"),
        base_replicas=min(recommended, plan("base_replicas")),
        requests_per_s=_rate(plan("work_s")),
        idle_gap_s=plan("idle_gap_s"),
        prompt_tokens_per_s=_rate(plan("prompt_token_s")),
        generation_tokens_per_s=_generated_per_s(plan("output_token_s"), plan("idle_gap_s"), plan("slots")),
        readings=plan("readings"),
        observed_s=plan("observed_s"),
        warm_up_s=plan("warm_up_s"),
        average_s=selected.average_s if selected else math.nan,
        hold_cold_starts=selected.hold if selected else math.nan,
        peak_expires_in_s=plan("peak_expires_in_s"),
        margin_fraction=selected.margin_share if selected else math.nan,
        margin_roots=selected.margin_roots if selected else math.nan,
        constant_replicas=plan("constant_count"),
        budget_fraction=budget,
        window_s=float(inp.spec.budget_window_s[row]),
        allowed_fraction=plan("allowed_fraction"),
        shadow_missed_fraction=plan("shadow_missed_fraction"),
        unavoidable_fraction=plan("unavoidable_fraction"),
        missed_fraction=missed,
        used_budgets=missed / budget if budget > 0 else math.nan,
    )


def lines(known: Figures, inp: TickInput, decision: Decision, row: int) -> tuple[PlannerLine, ...]:
    """Word the basis of the planner's recommendation for one row, and how sure it is; no line without a policy."""
    spec = inp.spec
    recommender = Recommender(int(decision.recommender[row]))
    speaks = recommender.plans
    if recommender is Recommender.NO_POLICY:
        return ()
    mean_s, is_seen = float(decision.starts.mean_s[row]), decision.starts.seen[row] > 0
    cold_start = f"{seconds(mean_s)} on average" if is_seen else f"an assumed {seconds(mean_s)}"
    texts = {
        "planner": "" if speaks else _why_silent(recommender, known, inp, row),
        "load": _load(known, float(decision.observation.ready[row])),
        "headroom": _headroom(known, float(spec.max_replicas[row])) if speaks else "",
        "strategy": _strategy(known, float(decision.plan.strategy[row]), cold_start) if speaks else "",
        "shadow": _shadow(known) if speaks else "",
        "budget": _budget(known, inp, decision, row),
        "replica": _replica(known),
        "confidence": _confidence(known),
    }
    return tuple(PlannerLine(name, text) for name, text in texts.items() if text)


def _generated_per_s(token_s: float, idle_gap_s: float, slots: float) -> float:
    """Return the generated tokens/s of a busy replica: with all slots taken, each writes one token per gap.

    12,500 tokens/s by the slope alone; 4 slots and 10 ms between tokens write 4 / (10 ms + 4 / 12,500) = 388.
    """
    of_slots = slots / (idle_gap_s + slots * float(np.fmax(token_s, 0.0))) if slots > 0 else math.nan
    limits = [limit for limit in (_rate(token_s), of_slots) if not math.isnan(limit)]
    return min(limits, default=math.nan)


def _rate(token_s: float) -> float:
    return 1 / token_s if token_s > SHORTEST_TOKEN_S else math.nan


def _why_silent(recommender: Recommender, known: Figures, inp: TickInput, row: int) -> str:
    if recommender is Recommender.STATED:
        return "no recommendation: the policy states what a replica can do"
    if math.isnan(inp.spec.first_token_limit_s[row]):
        return "no recommendation: the policy limits neither TTFT nor the time in the queue"
    if missing := _missing(inp, row):
        return f"no recommendation: the metrics of its pods lack {missing}"
    if _is_prefill(inp, row):
        if math.isnan(known.prompt_tokens_per_s):
            busy = f"{seconds(MIN_BUSY_S)} of busy replicas"
            return f"no recommendation yet: {busy} show how many prompt tokens one computes"
    elif not known.readings >= MIN_READINGS:
        readings = _times(known.readings, "reading") if known.readings > 0 else "no reading"
        return f"no recommendation yet: {readings} of busy replicas, {number(MIN_READINGS)} show how fast one is"
    return "no recommendation: the arrival rate is not known right now"


_INPUTS = {
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
    "finished": "finished requests",
    "first_tokens": "first tokens",
    "gap_s": "the time between tokens",
    "gaps": "the number of gaps between tokens",
}
"""Columns of `PodSamples` that the planner needs."""


_GAPS = ("gap_s", "gaps")
"""Those of them that the work of a prefill workload does not show in."""


def _is_prefill(inp: TickInput, row: int) -> bool:
    return inp.pairs is not None and bool(inp.pairs.prefill[row])


def _missing(inp: TickInput, row: int) -> str:
    """Name the inputs that every answering pod lacks; "": none, or no pod answers."""
    pods = inp.samples.pods
    answer = (inp.fleet.pod_workload == row) & ~np.isnan(pods.running)
    if not answer.any():
        return ""
    inputs = {column: word for column, word in _INPUTS.items() if column not in _GAPS or not _is_prefill(inp, row)}
    missing = [word for column, word in inputs.items() if np.isnan(getattr(pods, column)[answer]).all()]
    return ", ".join(missing)


def _load(known: Figures, ready: float) -> str:
    if math.isnan(known.demand_replicas):
        return ""
    keep = "would keep" if known.demand_replicas > ready else "keep"
    return f"arriving requests {keep} {count(known.demand_replicas)} busy"


def _headroom(known: Figures, most: float) -> str:
    if math.isnan(known.headroom_replicas):
        return ""
    recommended, load = number(known.recommended_replicas), number(known.demand_replicas)
    if known.headroom_replicas < 0:
        if known.recommended_replicas == 0:
            return ""
        limit = ", the maximum," if known.recommended_replicas >= most else ""
        return f"{count(-known.headroom_replicas)} too few: {recommended} recommended{limit} for a load of {load}"
    headroom = f"{count(known.headroom_replicas)}: {recommended} recommended for a load of {load}"
    if not known.base_replicas < known.recommended_replicas:
        return headroom
    return f"{headroom}; {number(known.base_replicas)} of them are base replicas"


def _strategy(known: Figures, strategy: float, cold_start: str) -> str:
    if math.isnan(strategy):
        return ""
    cold_starts = f"{_times(known.hold_cold_starts, 'cold start')} of {cold_start}"
    average = f"the load average over {seconds(known.average_s)}"
    roots = f"{number(known.margin_roots)} times its square root"
    margin = percent(known.margin_fraction) if known.margin_fraction else roots
    season = ", expects no less than a day and a week ago at this time" if IS_SEASONAL[int(strategy)] else ""
    added = f", adds {margin}" if known.margin_fraction or known.margin_roots else ""
    text = f"follows {average}, holds its peaks for {cold_starts}{season}{added}"
    if known.constant_replicas > 0:
        text = f"keeps {count(known.constant_replicas)}, and more while the peak of {average} in the last "
        text += f"{cold_starts} needs more"
    if known.observed_s < known.warm_up_s:
        text += f"; the initial fleet is kept for {seconds(known.warm_up_s)}"
    if 0 < known.recommended_replicas < known.strategy_replicas:
        alone = number(known.strategy_replicas)
        text += f"; it would recommend {alone}, but no more headroom is added in the first hours of steady traffic"
    return text


def _shadow(known: Figures) -> str:
    if math.isnan(known.shadow_missed_fraction) or math.isnan(known.allowed_fraction):
        return ""
    missed, allowed = percent(known.shadow_missed_fraction), percent(known.allowed_fraction)
    anyway = known.unavoidable_fraction
    beyond = f", beyond the {percent(anyway)} that always miss" if anyway >= NOTEWORTHY else ""
    return f"the strategy would have missed {missed} of requests so far and may miss {allowed} now{beyond}"


def _is_uncountable(known: Figures, inp: TickInput, decision: Decision, row: int) -> bool:
    """Return True where requests finish, but metrics do not show whether they missed.

    Shadow fleets served some; or no engine counts gaps between tokens, without which no shadow fleet runs.
    """
    if not math.isnan(known.shadow_missed_fraction):
        return True
    if known.readings > 0 or not decision.observation.finished_per_s[row] > 0:
        return False
    return bool(np.isnan(inp.samples.pods.gaps[inp.fleet.pod_workload == row]).all())


def _budget(known: Figures, inp: TickInput, decision: Decision, row: int) -> str:
    if math.isnan(known.budget_fraction):
        return ""
    budget = f"{percent(known.budget_fraction)} of requests may miss in {window(known.window_s)}"
    if math.isnan(known.missed_fraction):
        uncountable = _is_uncountable(known, inp, decision, row)
        return f"{budget}; {'misses are not counted' if uncountable else 'no request was counted yet'}"
    used = "" if math.isnan(known.used_budgets) else f": {percent(known.used_budgets)} of the error budget"
    anyway = known.unavoidable_fraction
    always = f"; {percent(anyway)} miss at any number of replicas" if anyway >= NOTEWORTHY else ""
    always += ", more than may: the objective is out of reach" if anyway > known.budget_fraction else ""
    return f"{budget}, {percent(known.missed_fraction)} missed {since(known)}{used}{always}"


def since(known: Figures) -> Words:
    """Word the time in which requests missed: all that is known, or about the window of the error budget."""
    if not known.observed_s > 0:
        return tell("{so_far:so far}")
    if known.observed_s < known.window_s:
        return tell("in {observed_s} of traffic", observed_s=seconds(known.observed_s))
    return tell("in about {seen_window_s}", seen_window_s=window(known.window_s))


def _replica(known: Figures) -> str:
    parts = [f"{number(known.requests_per_s)} requests/s keep one busy"] if known.requests_per_s > 0 else []
    if not math.isnan(known.idle_gap_s):
        parts.append(f"{seconds(known.idle_gap_s)} between tokens when idle")
    elif math.isnan(known.prompt_tokens_per_s):
        return ""
    rates = (("prompt", known.prompt_tokens_per_s), ("generated", known.generation_tokens_per_s))
    limits = [f"{number(rate)} {kind}" for kind, rate in rates if not math.isnan(rate)]
    parts += [f"at most {' or '.join(limits)} tokens/s"] if limits else []
    return "; ".join(parts)


def _confidence(known: Figures) -> str:
    readings = f"{_times(known.readings, 'reading')} of busy replicas" if known.readings > 0 else ""
    observed = f"{seconds(known.observed_s)} of traffic observed" if known.observed_s > 0 else ""
    return ", ".join(part for part in (readings, observed) if part)


def _times(value: float, thing: str) -> str:
    return f"{number(value)} {thing}{'s' * (value != 1)}"
