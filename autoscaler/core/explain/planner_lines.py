"""The forecast of one workload for people: its figures, and a named line for each thing one asks of it.

What a forecast is and how it comes about is in `rules` and `forecast`; nothing is decided here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.core.explain.format import count, number, percent, seconds
from autoscaler.core.model.types import Decision, Recommender, Signal, TickInput
from autoscaler.core.planner.error_budget import BUDGET_S
from autoscaler.core.planner.select import WARM_UP_S
from autoscaler.core.planner.step_time import MIN_READINGS
from autoscaler.core.planner.strategies import Strategy, describe

WORTH_TELLING = 5e-4
"""Share of requests; fewer that miss on any number of replicas are not told."""

SHORTEST_TOKEN_S = 1e-7
"""No engine computes a token in less: a slope so flat is noise, and no limit."""


UNKNOWN = Strategy(*(math.nan,) * 5)
"""Of no rule."""


@dataclass(frozen=True)
class Line:
    """One thing to know of a forecast."""

    name: str  # one of demand, headroom, rule, paper, budget, replica, confidence, silent
    text: str  # without a full stop


@dataclass(frozen=True)
class Figures:
    """The forecast in numbers; NaN: not known."""

    demand_replicas: float  # replicas that what arrives now keeps busy
    asked_replicas: float  # replicas that are asked for; NaN: the forecast has no opinion
    headroom_replicas: float  # those, less the demand
    rule_replicas: float  # that the rule in force asks for by itself: more where the young are calm
    needed_replicas: float  # of those asked for, for the load of the last cold starts; the others are a reserve
    requests_per_s: float  # as they come now, that would keep a replica busy all the time
    idle_gap_s: float  # between two tokens of the only request of a replica
    prompt_tokens_per_s: float  # that would do so, by how gaps grow with them; NaN: no growth was seen
    generation_tokens_per_s: float  # likewise
    readings: float  # of single pods, from which these were learned
    watched_s: float  # seconds of demand on which rules were judged
    kept_s: float  # before so many all replicas that were found are kept
    level_s: float  # of the rule in force: time constant of the level it follows
    held_cold_starts: float  # for which it holds a peak
    held_s: float  # for which it will hold the peak that asks for so many; NaN: it is that of now
    margin_fraction: float  # of the level, which it adds
    margin_roots: float  # square roots of the level, which it adds
    least_replicas: float  # that it asks for whatever comes; 0: it is no constant count
    promised_fraction: float  # of requests may miss their objective by the policy: the error budget
    allowed_fraction: float  # of requests may miss under the rule in force, after what was burnt or saved
    paper_missed_fraction: float  # would have missed under the rule in force, on paper
    unavoidable_fraction: float  # misses however many replicas there are
    missed_fraction: float  # really missed within about a day; NaN: nobody counted
    burnt_budgets: float  # that, in error budgets: above 1 the promise is broken


def read(inp: TickInput, decision: Decision, row: int) -> Figures:
    """Gather the figures of one row."""

    def plan(name: str) -> float:
        return float(getattr(decision.plan, name)[row])

    demand, asked = plan("demand"), float(decision.recommendations[Signal.PLANNER, row])
    rule, missed = plan("strategy"), plan("missed_fraction")
    promised = float(inp.spec.error_budget[row])
    in_force = UNKNOWN if math.isnan(rule) else describe(int(rule))
    return Figures(
        demand_replicas=demand,
        asked_replicas=asked,
        headroom_replicas=asked - demand,
        rule_replicas=plan("strategy_replicas"),
        needed_replicas=min(asked, plan("base_replicas")),
        requests_per_s=_rate(plan("work_s")),
        idle_gap_s=plan("idle_gap_s"),
        prompt_tokens_per_s=_rate(plan("prompt_token_s")),
        generation_tokens_per_s=_generated_per_s(plan("output_token_s"), plan("idle_gap_s"), plan("slots")),
        readings=plan("readings"),
        watched_s=plan("observed_s"),
        kept_s=plan("warm_up_s"),
        level_s=in_force.average_s,
        held_cold_starts=in_force.hold,
        held_s=plan("peak_expires_in_s"),
        margin_fraction=in_force.margin_share,
        margin_roots=in_force.margin_roots,
        least_replicas=in_force.min_replicas,
        promised_fraction=promised,
        allowed_fraction=plan("allowed_fraction"),
        paper_missed_fraction=plan("shadow_missed_fraction"),
        unavoidable_fraction=plan("unavoidable_fraction"),
        missed_fraction=missed,
        burnt_budgets=missed / promised if promised > 0 else math.nan,
    )


def lines(known: Figures, inp: TickInput, decision: Decision, row: int) -> tuple[Line, ...]:
    """Say of one row what the forecast goes by and how sure it is; nothing where no policy is in force."""
    spec = inp.spec
    recommender = Recommender(int(decision.recommender[row]))
    speaks = recommender.plans
    if recommender is Recommender.NO_POLICY:
        return ()
    cold_start_s = float(decision.observation.cold_start_s[row])
    said = {
        "silent": "" if speaks else _why_silent(recommender, known, inp, row),
        "demand": _demand(known, float(decision.observation.ready[row])),
        "headroom": _headroom(known, float(spec.max_replicas[row])) if speaks else "",
        "rule": _rule(known, cold_start_s) if speaks else "",
        "paper": _paper(known) if speaks else "",
        "budget": _budget(known, inp, decision, row),
        "replica": _replica(known),
        "confidence": _confidence(known),
    }
    return tuple(Line(name, text) for name, text in said.items() if text)


def _generated_per_s(token_s: float, idle_gap_s: float, slots: float) -> float:
    """Return generated tokens/s of a busy replica; with all its slots taken, one token of each comes every gap.

    12,500 tokens/s by the slope alone; 4 slots and 10 ms between tokens write 4 / (10 ms + 4 / 12,500) = 388.
    """
    of_slots = slots / (idle_gap_s + slots * float(np.fmax(token_s, 0.0))) if slots > 0 else math.nan
    limits = [limit for limit in (_rate(token_s), of_slots) if not math.isnan(limit)]
    return min(limits, default=math.nan)


def _rate(token_s: float) -> float:
    return 1 / token_s if token_s > SHORTEST_TOKEN_S else math.nan


def _why_silent(recommender: Recommender, known: Figures, inp: TickInput, row: int) -> str:
    spec = inp.spec
    if recommender is Recommender.STATED:
        return "no forecast: the policy states what a replica can do, and that is used instead"
    if math.isnan(spec.first_token_limit_s[row]):
        return "no forecast: the policy promises no TTFT by which rules could be judged"
    if missing := _missing(inp, row):
        return f"no forecast: {missing}, missing in the metrics of its pods"
    if not known.readings >= MIN_READINGS:
        readings = _times(known.readings, "reading") if known.readings > 0 else "no reading"
        needed = f"{number(MIN_READINGS)} are needed to know how fast one is"
        return f"no forecast yet: {readings} of busy replicas; {needed}"
    return "no forecast: the arrival rate is not known right now"


_INPUTS = {
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
    "finished": "ended requests",
    "first_tokens": "first tokens",
    "gap_s": "the time between tokens",
    "gaps": "how many gaps between tokens there were",
}
"""By column of `PodSamples`, what has to be read so that there is a forecast."""


def _missing(inp: TickInput, row: int) -> str:
    """Name the inputs that no pod tells of those that answer; "": none, or nobody answers."""
    pods = inp.samples.pods
    answer = (inp.fleet.pod_workload == row) & ~np.isnan(pods.running)
    if not answer.any():
        return ""
    missing = [word for column, word in _INPUTS.items() if np.isnan(getattr(pods, column)[answer]).all()]
    return ", ".join(missing)


def _demand(known: Figures, ready: float) -> str:
    if math.isnan(known.demand_replicas):
        return ""
    keeps = "would keep" if known.demand_replicas > ready else "keeps"
    return f"what arrives now {keeps} {count(known.demand_replicas)} busy"


def _headroom(known: Figures, most: float) -> str:
    if math.isnan(known.headroom_replicas):
        return ""
    asked, demand = number(known.asked_replicas), number(known.demand_replicas)
    if known.headroom_replicas < 0:
        if known.asked_replicas == 0:
            return ""
        limit = ", which is the maximum" if known.asked_replicas >= most else ""
        return f"{count(-known.headroom_replicas)} too few: {asked} asked for{limit}, {demand} would be busy"
    said = f"{count(known.headroom_replicas)}: {asked} asked for, minus {demand} kept busy"
    if not known.needed_replicas < known.asked_replicas:
        return said
    return f"{said}; the load of the last minutes needs {number(known.needed_replicas)}"


def _rule(known: Figures, cold_start_s: float) -> str:
    if math.isnan(known.level_s):
        return ""
    cold_starts = f"{_times(known.held_cold_starts, 'cold start')} of {seconds(cold_start_s)}"
    share = f"adds {percent(known.margin_fraction)}"
    margin = share if known.margin_fraction else f"adds {_times(known.margin_roots, 'square root')} of it"
    sizing = f"follows demand over {seconds(known.level_s)}, holds its peak for {cold_starts}, {margin}"
    if known.least_replicas > 0:
        sizing = f"keeps {count(known.least_replicas)} at all times, and more while the peak of demand over "
        sizing += f"{seconds(known.level_s)} in the last {cold_starts} needs more"
    careful = f"; in the first {seconds(WARM_UP_S)} only the fastest level with the longest hold is followed"
    why = careful if known.watched_s < WARM_UP_S else ""
    if known.watched_s < known.kept_s:
        why += f"; all replicas it started with are kept for {seconds(known.kept_s)}"
    if 0 < known.asked_replicas < known.rule_replicas:
        by_rule = number(known.rule_replicas)
        why += f"; that would be {by_rule}, but while traffic is calm no more are asked for than it started "
        why += "with or its peak needs"
    return f"{sizing}{why}"


def _paper(known: Figures) -> str:
    if math.isnan(known.paper_missed_fraction) or math.isnan(known.allowed_fraction):
        return ""
    missed, allowed = percent(known.paper_missed_fraction), percent(known.allowed_fraction)
    return f"that rule would have missed {missed} of requests so far, {allowed} are allowed now"


def _uncountable(known: Figures, inp: TickInput, decision: Decision, row: int) -> bool:
    """Say whether requests end of which nobody can say whether they missed.

    On paper some arrived; or no engine tells its gaps, without which nothing is put on paper.
    """
    if not math.isnan(known.paper_missed_fraction):
        return True
    if known.readings > 0 or not decision.observation.finished_per_s[row] > 0:
        return False
    return bool(np.isnan(inp.samples.pods.gaps[inp.fleet.pod_workload == row]).all())


def _budget(known: Figures, inp: TickInput, decision: Decision, row: int) -> str:
    if math.isnan(known.promised_fraction):
        return ""
    promised = f"{percent(known.promised_fraction)} of requests may miss"
    if math.isnan(known.missed_fraction):
        uncountable = _uncountable(known, inp, decision, row)
        return f"{promised}; {'those that do are not counted' if uncountable else 'no request was counted yet'}"
    when = "of the last day did" if known.watched_s >= BUDGET_S else "of those counted did"
    if 0 < known.watched_s < BUDGET_S:
        when = f"did in {seconds(known.watched_s)} of demand watched"
    burnt = "" if math.isnan(known.burnt_budgets) else f": {percent(known.burnt_budgets)} of the budget is burnt"
    anyway = known.unavoidable_fraction
    always = f"; {percent(anyway)} miss on any number of replicas" if anyway >= WORTH_TELLING else ""
    always += ", more than may: the promise is out of reach" if anyway > known.promised_fraction else ""
    return f"{promised}, {percent(known.missed_fraction)} {when}{burnt}{always}"


def _replica(known: Figures) -> str:
    if math.isnan(known.idle_gap_s):
        return ""
    fill = (
        f"{number(known.requests_per_s)} requests/s, as they come now, fill one; " if known.requests_per_s > 0 else ""
    )
    rates = (("prompt", known.prompt_tokens_per_s), ("generated", known.generation_tokens_per_s))
    full = [f"{number(rate)} {kind}" for kind, rate in rates if not math.isnan(rate)]
    tokens = f"; its limit is {' or '.join(full)} tokens/s" if full else ""
    return f"{fill}{seconds(known.idle_gap_s)} between tokens when idle{tokens}"


def _confidence(known: Figures) -> str:
    readings = f"{_times(known.readings, 'reading')} of busy replicas" if known.readings > 0 else ""
    watched = f"{seconds(known.watched_s)} of demand watched" if known.watched_s > 0 else ""
    return ", ".join(part for part in (readings, watched) if part)


def _times(value: float, thing: str) -> str:
    return f"{number(value)} {thing}{'s' * (value != 1)}"
