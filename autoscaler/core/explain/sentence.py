"""Words for a decision: the one place where columns become sentences. The page, the event, the log line, the API,
`explain` and the live table all print what is made here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.core.explain import planner_lines
from autoscaler.core.explain.format import count, number, percent, seconds
from autoscaler.core.model import names
from autoscaler.core.model.fleet import Blocked, Pool
from autoscaler.core.model.types import Decision, Signal, Stage, TickInput
from autoscaler.core.observe.freshness import oldest_view_s
from autoscaler.core.observe.pending import lacking
from autoscaler.core.observe.progress import GIVEN_UP_S
from autoscaler.core.observe.workloads import chance_s
from autoscaler.core.planner.error_budget import BUDGET_S
from autoscaler.core.planner.strategies import MOST_BUSY, NEARLY
from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero, whole

MOMENT_S = 60.0
"""A level over so long, or less, is that of this moment."""

MOST_POOLS_NAMED = 4
"""The sentence names at most so many of the pools that share nodes."""

KEPT = 1.005
"""Share of the error budget, as it is printed, up to which it is kept."""

SURE = 0.5
"""Confidence below which a learned capacity is called a guess."""


@dataclass(frozen=True)
class Step:
    """One stage on the way from demand to decision."""

    stage: str  # lower-case name of the Stage
    replicas: float  # NaN: nothing known
    reason: str  # "" where the stage changed nothing


@dataclass(frozen=True)
class Explanation:
    """Why one workload has the count it has. Plain values, ready for JSON (NaN becomes null at the rim)."""

    workload: str  # "namespace/name"
    policy: str
    current: int  # spec.replicas
    wanted: int  # the decision
    ready: int
    signal: str  # name of the Signal that asked the most; "": none had an opinion
    bound: str  # name of the last Stage that changed the count; "": none did
    asks: dict[str, float]  # by signal, NaN left out
    steps: tuple[Step, ...]
    forecast: tuple[planner_lines.Line, ...]  # what the forecast goes by; empty: no rules are judged
    inputs: dict[str, float]  # observation, capacity and forecast in numbers, NaN where unknown
    sentence: str  # one sentence for people


def explain(
    inp: TickInput, decision: Decision, policies: Sequence[str], problems: Mapping[int, str], row: int
) -> Explanation:
    """Put one row of a decision into words.

    policies: [W], name of the policy in force. problems: by row, why there is none, or what else is wrong with its
    declarations. Reads columns only; costs some 100 us, so it is done for rows that changed or were asked for.
    """
    seen = _Row(inp, decision, row)
    signal = strongest_signal(decision, row)
    steps = tuple(
        Step(names.STAGES[stage], seen.after(stage), _reason(stage, seen) if seen.changed(stage) else "")
        for stage in Stage
    )
    changing = [step.stage for step in steps if step.reason and step.stage != names.STAGES[Stage.DEMAND]]
    wanted, current = int(decision.replicas[row]), int(inp.fleet.replicas[row])
    return Explanation(
        workload=str(inp.fleet.workloads[row].ref),
        policy=policies[row],
        current=current,
        wanted=wanted,
        ready=int(decision.observation.ready[row]),
        signal=names.SIGNALS[signal] if signal is not None else "",
        bound=changing[-1] if changing else "",
        asks={names.SIGNALS[s]: float(decision.asks[s, row]) for s in Signal if not np.isnan(decision.asks[s, row])},
        steps=steps,
        forecast=planner_lines.lines(seen.figures, inp, decision, row),
        inputs=seen.inputs(),
        sentence=_sentence(seen, signal, steps, current, wanted, problems.get(row, "")),
    )


def strongest_signal(decision: Decision, row: int) -> Signal | None:
    """Return the signal that asks for the most; None where none has an opinion."""
    asks = decision.asks[:, row]
    return Signal(int(np.nanargmax(asks))) if not np.isnan(asks).all() else None


def binding_stages(decision: Decision) -> FloatColumn:
    """Return for each workload the last stage after demand that changed the count; float64[W], NaN: none did."""
    stage = np.arange(1, len(Stage), dtype=np.float64)[:, None]
    changed = _changed(decision.stages[:-1], decision.stages[1:])
    return np.asarray(np.fmax.reduce(np.where(changed, stage, np.nan), axis=0))


def _changed(before: FloatColumn, after: FloatColumn) -> BoolColumn:
    """Say where a stage changed the count. From demand to whole replicas is rounding, not a limit: fractions are
    compared by the replicas they fill."""
    return np.asarray((whole(before) != whole(after)) & ~(np.isnan(before) & np.isnan(after)))


class _Row:
    """One row of a tick, by name."""

    def __init__(self, inp: TickInput, decision: Decision, row: int) -> None:
        self.inp, self.decision, self.row = inp, decision, row
        self.figures = planner_lines.read(inp, decision, row)

    def seen(self, name: str) -> float:
        return float(getattr(self.decision.observation, name)[self.row])

    def spec(self, name: str) -> float:
        return float(getattr(self.inp.spec, name)[self.row])

    def capacity(self, name: str) -> float:
        return float(getattr(self.decision.capacity, name)[self.row])

    @property
    def idle_after_s(self) -> float:
        return float(self.decision.idle_after_s[self.row])

    @property
    def kept_for_s(self) -> float:
        return float(self.decision.kept_for_s[self.row])

    def ask(self, signal: Signal) -> float:
        return float(self.decision.asks[signal, self.row])

    def after(self, stage: Stage) -> float:
        return float(self.decision.stages[stage, self.row])

    def before(self, stage: Stage) -> float:
        return float(self.decision.stages[stage - 1, self.row]) if stage else self.seen("replicas")

    def changed(self, stage: Stage) -> bool:
        return bool(_changed(np.array(self.before(stage)), np.array(self.after(stage))))

    def inputs(self) -> dict[str, float]:
        observation = {name: self.seen(column) for name, column in names.OBSERVED.items()}
        capacity = {name: self.capacity(column) for name, column in names.CAPACITY.items()}
        planner = {name: float(getattr(self.figures, figure)) for name, figure in names.PLANNER.items()}
        view_age_s, idle_s = self.inp.now_s - self.inp.fleet.time_s, float(self.decision.idle_s[self.row])
        others = {"fleet_age_s": view_age_s, "kept_for_s": self.kept_for_s, "idle_s": idle_s}
        return observation | capacity | planner | others


def _sentence(
    row: _Row, signal: Signal | None, steps: tuple[Step, ...], current: int, wanted: int, problem: str
) -> str:
    if math.isnan(row.spec("max_replicas")):
        return f"Keeps {count(current)}: {problem or 'no valid policy is in force for it'}."
    verb = "Keeps" if wanted == current else f"Scales {'up' if wanted > current else 'down'} from {current} to"
    because = _SIGNAL_WORDS[signal](row) if signal is not None else ""
    if wanted == 0 < current and row.after(Stage.IDLE) == 0:  # and not by what the pool can give
        allowed = ", which the error budget allows" if math.isinf(row.spec("idle_after_s")) else ""
        work = "no request waited at the gateway" if row.seen("ready") == 0 else "there was no work"
        rest = f"{work} for {seconds(row.idle_after_s)}{allowed}"
        because = ", and ".join(filter(None, (because, rest)))
    standstill = _stuck(row), _apart(row), _stuck_at_gateway(row)
    reasons = [because, *(step.reason for step in steps[1:]), _obstacle(row), *standstill]
    but = f" But {problem}." if problem else ""
    return f"{verb} {count(wanted)}: " + "; ".join(filter(None, reasons)) + f"{_age(row, signal)}.{but}"


def _age(row: _Row, signal: Signal | None) -> str:
    """Say how old the oldest reading is that speaks; demand may be as old as the last judgement of the rules."""
    age_s = row.seen("age_s")
    if signal is Signal.PLANNER:
        judged_s = float(row.decision.plan.updated_s[row.row])
        age_s = max(age_s, row.inp.now_s - judged_s) if not math.isnan(judged_s) else age_s
    return "" if math.isnan(age_s) else f" (inputs up to {seconds(max(age_s, 0.0))} old)"


def _stuck(row: _Row) -> str:
    """Say how many replicas show requests that do not move, and what is made of them; "" where none does."""
    stuck, reporting = row.seen("stuck"), row.seen("reporting")
    if not stuck > 0:
        return ""
    requests, since = count(row.seen("stuck_requests"), "request"), seconds(row.seen("stuck_s"))
    several = stuck > 1
    shows = f"{number(stuck)} of {count(reporting)} {'show' if several else 'shows'} {requests} without any progress"
    cause = f"{'they are' if several else 'it is'} stuck, or {'their' if several else 'its'} gauges are stale"
    each = "each of them" if several else "it"
    instead = f"another serves in place of {each}" if row.seen("replaced") > 0 else "order no more than one replica"
    return f"{shows} for {since}: {cause}, so these requests count for nothing and {instead}"


def _apart(row: _Row) -> str:
    """Say which replicas have queues that others cannot take; "" where none has."""
    apart = row.seen("apart")
    if not apart > 0:
        return ""
    waiting, since = count(row.seen("apart_requests"), "request"), seconds(row.seen("apart_s"))
    has, part = ("have", "parts of them are") if apart > 1 else ("has", "a part of it is")
    return (
        f"{number(apart)} of {count(row.seen('reporting'))} {has} a queue, {waiting} in all, that has not shrunk for "
        f"{since} while most others have none: {part} stuck, or requests are not spread, and other replicas cannot "
        "take them, so that the queue does not count"
    )


def _stuck_at_gateway(row: _Row) -> str:
    if not row.seen("gateway_stuck") > 0:
        return ""
    waiting = count(row.seen("gateway_waiting"), "request")
    return (
        f"no engine does anything while {waiting} wait at the gateway: that queue is stuck or stale, and does not count"
    )


def _asks(row: _Row, signal: Signal) -> str:
    return f"asks for {number(row.ask(signal))}"


def _concurrency(row: _Row) -> str:
    gateway = row.seen("gateway_waiting")
    held = f" and {number(gateway)} at the gateway" if gateway > 0 else ""
    draining, wait_s = row.seen("draining_requests"), row.seen("queue_wait_s")
    held += f" and {number(draining)} on pods that stop serving" if draining > 0 else ""
    worst = f" (up to {seconds(wait_s)} in the worst replica)" if wait_s > 0 else ""
    load = f"{number(row.seen('running'))} running, {number(row.seen('waiting'))} waiting{worst}{held}{_witnesses(row)}"
    guess = " (a guess)" if row.capacity("confidence") < SURE else ""
    usage = f", target utilization {row.spec('target_usage'):.0%}" if row.spec("target_usage") < 1 else ""
    each = f"{number(row.capacity('concurrency'))} per replica{guess}{usage}"
    ask = number(row.ask(Signal.CONCURRENCY))
    if (stuck := row.seen("replaced")) > 0:
        ask += f" with {number(stuck)} stuck among them"
    return f"{load} ask for {ask} at {each}"


def _witnesses(row: _Row) -> str:
    """Say whose load this is, where the ask is for more replicas than those it was read from."""
    read, ready, asleep = row.seen("reporting"), row.seen("ready") - row.seen("joining"), row.seen("asleep")
    silent = f" on {number(read)} of {number(ready)} replicas" if read < ready else ""
    return f"{silent}{f', with {count(asleep)} asleep,' if asleep > 0 else ''}"


def _latency(row: _Row, signal: Signal, name: str, seen: str, objective: str) -> str:
    return f"{name} {seconds(row.seen(seen))} against {seconds(row.spec(objective))} {_asks(row, signal)}"


def _rate(row: _Row, signal: Signal, name: str, seen: str, each: str) -> str:
    draining = row.seen(f"draining_{seen}")
    beside = f" and {number(draining)} on pods that stop serving" if draining > 0 else ""
    tokens = f"{number(row.seen(seen))} {name} tokens/s{beside}"
    return f"{tokens} ask for {number(row.ask(signal))} at {number(row.capacity(each))} per replica"


def _forecast(row: _Row) -> str:
    if row.figures.asked_replicas == 0:
        floor = row.spec("min_replicas")
        return f"nothing is in flight, and the forecast needs at most {count(floor) if floor > 1 else 'one replica'}"
    demand, asked = count(row.figures.demand_replicas), number(row.figures.asked_replicas)
    if row.figures.headroom_replicas < 0:
        at_most = row.figures.asked_replicas >= row.spec("max_replicas")
        limit = "which is the maximum" if at_most else f"for demand over {seconds(row.figures.level_s)}"
        return f"what arrives would keep {demand} busy, and {asked} are asked for, {limit}"
    if why := _more_than_arrives(row):
        return f"what arrives keeps {demand} busy, and {asked} are asked for, because {why}"
    if (stuck := row.seen("replaced")) > 0:
        asked += f" with {number(stuck)} stuck among them"
    missed = _missed(row.figures)
    are, serve = ("is", "serves") if asked == "1" else ("are", "serve")
    because = f"{are} asked for{missed}" if missed else f"{serve} it within the error budget at the lowest cost"
    said = f"what arrives keeps {demand} busy, and {asked} {because}"
    more = row.figures.demand_replicas < row.figures.asked_replicas - 1
    held = "; a peak is held" if missed else ", for a peak that is held"
    return f"{said}{held} {end}" if more and (end := _end(row.figures)) else said


def _missed(known: planner_lines.Figures) -> str:
    """Say how much was missed, really or on paper, where that is more than may be; "" where the promise is kept."""
    may = percent(known.promised_fraction)
    if known.missed_fraction > KEPT * known.promised_fraction:
        missed, since = percent(known.missed_fraction), seconds(min(known.watched_s, BUDGET_S))
        allowed = f", so {percent(known.allowed_fraction)} are allowed now" if known.allowed_fraction >= 0 else ""
        return f": {missed} of requests missed in {since} and {may} may{allowed}"
    if known.paper_missed_fraction > KEPT * known.promised_fraction:
        return f", which would have missed {percent(known.paper_missed_fraction)} of requests so far; {may} may"
    return ""


def _end(known: planner_lines.Figures) -> str:
    """Say until when the peak is held that asks for so many; "" where the load of this moment does, or no load."""
    if known.asked_replicas <= known.least_replicas:
        return ""
    if known.held_s >= 0:
        return f"for {seconds(known.held_s)} more"
    return f"until its average over {seconds(known.level_s)} has fallen" if known.level_s > MOMENT_S else ""


def _more_than_arrives(row: _Row) -> str:
    """Say why the rule in force asks for more than what arrives and its margin need; "" where it does not."""
    known = row.figures
    demand = max(known.demand_replicas, 0.0)
    level = demand * (1 + known.margin_fraction) + known.margin_roots * math.sqrt(demand)
    more = known.asked_replicas - 1 >= level / MOST_BUSY - NEARLY
    by_rule = max(row.spec("min_replicas"), 1.0) < known.asked_replicas <= known.rule_replicas
    if not (more and by_rule):
        return ""
    if known.asked_replicas <= known.least_replicas:
        constant = f"a constant {number(known.asked_replicas)}"
        return f"{constant} would have cost least so far, misses beyond the budget included"
    held = f"its peak is held for {count(known.held_cold_starts, 'cold start')}"
    held += f" ({end})" if (end := _end(known)) else ""
    # While all that was found is kept, the load is said to need no less than that: what is above it was not found.
    found = known.watched_s < known.kept_s and not known.needed_replicas < known.asked_replicas
    return (
        f"it started with so many (kept for {seconds(known.kept_s - known.watched_s)} more) or {held}"
        if found
        else held
    )


def _wake(row: _Row) -> str:
    if not row.seen("stuck") > 0:
        return f"requests wait and no replica serves, which {_asks(row, Signal.WAKE)}"
    left_s = float(chance_s(row.decision.observation.cold_start_s)[row.row]) - row.seen("stuck_s")
    end = f" (for {seconds(left_s)} more)" if left_s > 0 else ""
    return f"requests wait and no replica serves them, which {_asks(row, Signal.WAKE)}{end}"


def _schedule(row: _Row) -> str:
    windows = row.inp.schedule
    asking = (windows.replicas[row.row] == row.ask(Signal.SCHEDULE)) & (row.inp.now_s < windows.until_s[row.row])
    # Two windows may ask for as many: the open one ends first.
    left_s = float(np.fmin.reduce(np.where(asking, windows.until_s[row.row], np.nan), initial=np.nan)) - row.inp.now_s
    end = f" (for {seconds(left_s)} more)" if left_s > 0 else ""
    return f"a pre-warm window {_asks(row, Signal.SCHEDULE)}{end}"


_SIGNAL_WORDS: dict[Signal, Callable[[_Row], str]] = {
    Signal.CONCURRENCY: _concurrency,
    Signal.PREFILL: lambda r: _rate(r, Signal.PREFILL, "prompt", "prompt_tokens_per_s", "prefill_tokens_per_s"),
    Signal.DECODE: lambda r: _rate(r, Signal.DECODE, "generated", "generation_tokens_per_s", "decode_tokens_per_s"),
    Signal.KV_CACHE: lambda r: (
        f"KV cache {r.seen('kv_usage'):.0%} full against {r.spec('kv_target_usage'):.0%} {_asks(r, Signal.KV_CACHE)}"
    ),
    Signal.TTFT: lambda r: _latency(r, Signal.TTFT, "p95 of TTFT", "ttft_s", "ttft_objective_s"),
    Signal.ITL: lambda r: _latency(r, Signal.ITL, "p95 of ITL", "itl_s", "itl_objective_s"),
    Signal.REJECTIONS: lambda r: (
        f"{r.seen('rejections_per_s'):.3g} requests/s refused by the engine ask for {number(r.ask(Signal.REJECTIONS))}"
    ),
    Signal.SCHEDULE: _schedule,
    Signal.PLANNER: _forecast,
    Signal.WAKE: _wake,
}


def _reason(stage: Stage, row: _Row) -> str:
    """Say what a stage did, with the numbers it did it by."""
    before, after = row.before(stage), row.after(stage)
    match stage:
        case Stage.DEMAND:
            return "the strongest signal"
        case Stage.UNKNOWN:
            why = "the forecast is not ready yet, and no queue is long" if after < before else _doubt(row)
            return f"{why}, so it holds {number(after)}"
        case Stage.BURST:
            cold_start, tolerated = seconds(row.seen("cold_start_s")), seconds(row.spec("max_wait_s"))
            return (
                f"only the part of the queue that is left after one cold start of {cold_start} and would wait longer "
                f"than {tolerated} counts, so {number(after)} will do"
            )
        case Stage.TOLERANCE:
            if after == row.ask(Signal.SCHEDULE):
                return f"the pre-warm window needs {number(after)}"
            return f"the change is within {row.spec('tolerance'):.0%} of {number(after)}, too small to act on"
        case Stage.STABILIZATION:
            which = "down_stabilization_s" if after > before else "up_stabilization_s"
            end = f" for {seconds(row.kept_for_s)} more" if row.kept_for_s > 0 else ""
            return f"stabilization over {seconds(row.spec(which))} keeps {number(after)}{end}"
        case Stage.IDLE:
            return f"one replica stays{_awake_for(row)}"
        case Stage.RATE_LIMIT:
            which = "down_period_s" if after > before else "up_period_s"
            return f"one step per {seconds(row.spec(which))} allows {number(after)}"
        case Stage.BOUNDS:
            if row.spec("max_replicas") < after < before:
                step = f"one step per {seconds(row.spec('down_period_s'))} allows {number(after)}"
                return f"the maximum is {number(row.spec('max_replicas'))}, and {step} while the load is unknown"
            return f"the {'minimum' if after > before else 'maximum'} is {number(after)}"
        case Stage.VARIANT:
            share = "takes over load from" if after > before else "leaves load to"
            kept = f"{'needs' if after > before else 'keeps'} {number(after)}"
            return f"it {share} other variants of {row.inp.fleet.workloads[row.row].service} and {kept}"
        case Stage.ALLOCATION:
            reserve = ", the rest would be a reserve" if after >= row.decision.needed[row.row] else ""
            if after == row.seen("replicas") and (row.seen("missing") or _lack(row)):
                return f"no more than {number(after)} are ordered while some of them do not come"
            fits = float(row.inp.fleet.obstacles.fits[row.row])
            if after == fits < before and not _is_shared(row):
                return f"the nodes that admit it can hold {number(after)} of {number(before)}{_grows(row)}"
            return f"{_short(row)} {number(after)} of {number(before)}{reserve}{_grows(row)}"
        case Stage.OWNER:
            return _owner(row, after)


def _owner(row: _Row, after: float) -> str:
    """Say why a count is not what was decided: it is somebody else's, or is held, or was refused."""
    fleet = row.inp.fleet
    if fleet.other_owner[row.row]:
        return f"{fleet.other_owner[row.row]} owns the count"
    if fleet.paused[row.row]:
        return "it is paused"
    if fleet.held is not None and fleet.held.reason[row.row]:
        return f"{fleet.held.reason[row.row]}, so {number(after)} will stand"
    return _refusal(row)


def _refusal(row: _Row) -> str:
    """Say which count the API server refused, and when it is asked for again."""
    told = row.inp.fleet.obstacles
    if math.isinf(told.refused[row.row]):
        return f"its HPA cannot change the count{_in_their_words(row)}"
    refused, left_s = count(float(told.refused[row.row])), float(told.retry_s[row.row]) - row.inp.now_s
    again = f"refuses {refused}, and is asked again in {seconds(left_s)}" if left_s > 0 else f"last refused {refused}"
    return f"the API server {again}{_in_their_words(row)}"


def absent(inp: TickInput, decision: Decision, row: int) -> str:
    """Say how many replicas of one workload do not come, and why; "" where all come."""
    return _absent(_Row(inp, decision, row))


def _obstacle(row: _Row) -> str:
    """Say how many replicas do not come, and why; "" where all come, or the reason was given."""
    if said := _absent(row):
        return said
    if np.isnan(row.inp.fleet.obstacles.refused[row.row]) or row.changed(Stage.OWNER):
        return ""
    return _refusal(row)


def _absent(row: _Row) -> str:
    fleet, parts = row.inp.fleet, []
    missing = row.seen("missing")
    if missing > 0:
        parts.append(f"{count(missing)} {'does' if missing == 1 else 'do'} not exist")
    lack = _lack(row)
    if lack > 0:
        blocked = fleet.pod_blocked[(fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating]
        unplaced = np.isin(blocked, (Blocked.UNSCHEDULABLE, Blocked.GATED)).any()
        one, several = ("waits for a node", "wait for a node") if unplaced else ("does not start", "do not start")
        parts.append(f"{count(lack)} {one if lack == 1 else several}")
    return " and ".join(parts) + _in_their_words(row) if parts else ""


def _lack(row: _Row) -> float:
    return float(lacking(row.decision.observation)[row.row])


def _in_their_words(row: _Row) -> str:
    words = row.inp.fleet.obstacles.words[row.row]
    return f": {words}" if words else ""


def _awake_for(row: _Row) -> str:
    """Say why a workload that may go to zero does not; "" where it may not."""
    if math.isnan(row.spec("idle_after_s")):
        return ""
    if row.seen("gateway_silent_s") > row.spec("max_input_age_s"):
        return f", because {_silent(row)}"
    if not math.isnan(row.idle_after_s):
        left_s = row.idle_after_s - float(row.decision.idle_s[row.row])
        end = f", {seconds(left_s)} from now" if left_s > 0 else ""
        return f" until there has been no work for {seconds(row.idle_after_s)}{end}"
    if math.isnan(row.seen("gateway_waiting")):
        return ", because no gateway is known to hold requests at zero"
    return ", because as far as is known the error budget does not cover the requests that would wait for its return"


def _doubt(row: _Row) -> str:
    """Say why inputs are not trusted, or that nobody has an opinion."""
    view_age_s = row.inp.now_s - row.inp.fleet.time_s
    if not view_age_s <= float(oldest_view_s(row.inp)[row.row]):
        return f"the view of the cluster is {seconds(view_age_s)} old"
    if row.seen("stuck_s") < GIVEN_UP_S:
        left = seconds(GIVEN_UP_S - row.seen("stuck_s"))
        return f"a replica without progress may compute a long prompt (for {left} more)"
    if row.seen("reporting") < row.seen("ready"):
        return f"only {row.seen('reporting'):.0f} of {row.seen('ready'):.0f} ready replicas report"
    if row.seen("ready") == 0 and row.seen("gateway_silent_s") > row.spec("max_input_age_s"):
        return _silent(row)
    if row.seen("replicas") == 0:
        return "no request is known to wait"
    if row.seen("ready") == 0:
        return "no replica is ready to report the load"
    return "no signal says how many replicas are needed"


def _silent(row: _Row) -> str:
    return f"its gateway has not reported for {seconds(row.seen('gateway_silent_s'))}"


def _short(row: _Row) -> str:
    """Name the GPUs that are too few, up to a verb: those of the workload's pool, or of several that overlap."""
    fleet = row.inp.fleet
    own = int(fleet.pool[row.row])
    gpus = or_zero(row.decision.stages[Stage.ALLOCATION] * fleet.gpus_per_replica)
    given = np.bincount(np.fmax(fleet.pool, 0), np.where(fleet.pool >= 0, gpus, 0.0), len(fleet.pools))
    left = float(fleet.pool_gpus[own] - given[own])
    shortest = None
    for joint in (joint for joint in fleet.joint if own in joint.pools):
        more = float(joint.gpus - given[list(joint.pools)].sum())
        if more < left or math.isnan(left):
            shortest, left = joint, more
    if shortest is None:
        return f"the pool of {number(float(fleet.pool_gpus[own]))} {_name(fleet.pools[own])} gives"
    names = [_name(fleet.pools[index]) for index in shortest.pools[:MOST_POOLS_NAMED]]
    names += [f"{len(shortest.pools) - len(names)} others"] if len(shortest.pools) > len(names) else []
    together = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"the {number(shortest.gpus)} GPUs that {together} have together give"


def _name(pool: Pool) -> str:
    return f"{pool.product or pool.resource}" + (f" ({pool.nodes})" if pool.nodes else "")


def _is_shared(row: _Row) -> bool:
    """Say whether others draw on the pool too."""
    return int(np.sum(row.inp.fleet.pool == row.inp.fleet.pool[row.row])) > 1


def _grows(row: _Row) -> str:
    """Say that today's nodes are taken for the limit, though more may be added."""
    label = row.inp.fleet.pools[int(row.inp.fleet.pool[row.row])].grows
    return f", for today's nodes count as the limit, although {label} may get more" if label else ""
