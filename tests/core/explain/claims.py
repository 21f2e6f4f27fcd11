"""Check each claim of a sentence against the columns of its decision, by a reading of its own.

A grammar takes the sentence apart. Each clause must match one pattern, whose check compares every number and reason in
it with the input and the decision. Nothing of `autoscaler.core.explain` is used.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.quotas import Quotas
from autoscaler.core.model.types import Decision, Recommender, Signal, Stage, TickInput
from autoscaler.core.planner.strategies import CONSTANT_COUNTS, IS_SEASONAL, STRATEGIES, Strategy
from autoscaler.core.table.columns import FloatColumn
from tests.core.planner.planned import PEAK_STRATEGIES

NUMBER = r"(-?\d+(?:\.\d+)?)"
TIME = r"(\d+(?:\.\d+)? (?:ms|s|min|h))"
SHARE = r"(\d+(?:\.\d+)?)%"
SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
ROUNDING = 0.02  # of a replica, in the planner
FOLLOWER = "This replica of the daemon does not hold the lease and does not act. It would "
PENDING = {
    "pending (unschedulable)": PendingCause.UNSCHEDULABLE,
    "pending (unschedulable, and the cluster autoscaler creates no node)": PendingCause.NO_NODE,
    "queued (waiting for admission)": PendingCause.QUEUED,
    "queued (scheduling gate)": PendingCause.SCHEDULING_GATED,
    "crashing (image cannot be pulled)": PendingCause.IMAGE_PULL,
    "crashing (container configuration is invalid)": PendingCause.CONFIG_ERROR,
    "crashing (crash loop)": PendingCause.CRASH_LOOP,
    "crashing (out of memory)": PendingCause.OUT_OF_MEMORY,
    "crashing (pods before them ended before they were ready)": PendingCause.LOST_STARTS,
    "pending (no scheduler has placed them)": PendingCause.NOT_SCHEDULED,
}
IMPOSSIBLE = "impossible to schedule (more than the nodes can hold)"
STUCK_STARTING = "stuck starting (for longer than any cold start)"


NO_RATE = "none of their replicas is known to generate tokens"
TAKES = f"(takes|is assumed to take) {TIME}"


class Row(NamedTuple):
    """One workload of one tick."""

    inp: TickInput
    decision: Decision
    row: int

    def seen(self, name: str) -> float:
        return float(getattr(self.decision.observation, name)[self.row])

    def spec(self, name: str) -> float:
        return float(getattr(self.inp.spec, name)[self.row])

    def capacity(self, name: str) -> float:
        return float(getattr(self.decision.capacity, name)[self.row])

    def plan(self, name: str) -> float:
        return float(getattr(self.decision.plan, name)[self.row])

    def recommended(self, signal: Signal) -> float:
        return float(self.decision.recommendations[signal, self.row])

    def stage(self, stage: int) -> float:
        return float(self.decision.stages[stage, self.row])

    @property
    def budget(self) -> float:
        return 1 - self.spec("attainment")

    @property
    def words(self) -> str:
        return self.inp.fleet.obstacles.messages[self.row]


def same(text: str, value: float) -> None:
    """Assert that a number with three digits stands for a value."""
    rounding = max(0.0051 * abs(value), 0.51 if abs(value) >= 100 else 0.0, 1.01e-4)
    assert abs(float(text) - value) <= rounding, f"the sentence says {text}, the column {value}"


def same_time(text: str, value: float) -> None:
    number, unit = text.split()
    same(number, value / SECONDS[unit])


def same_share(text: str, value: float) -> None:
    same(text, 100 * value)


def whole(value: float) -> float:
    return math.ceil(value - 1e-6) if math.isfinite(value) else value


def changed(row: Row, stage: Stage) -> bool:
    before, after = whole(row.stage(stage - 1)), whole(row.stage(stage))
    return before != after and not (math.isnan(before) and math.isnan(after))


def or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


PRE_WARM = "pre-warm"
PRE_WARM_STAGES = (Stage.TOLERANCE, Stage.STABILIZATION, Stage.RATE_LIMIT)
"""Stages that a pre-warm schedule passes."""

SIGNALS = (
    "concurrency",
    "no_concurrency",
    "token_rate",
    "kv_cache",
    "latency",
    "rejections",
    "schedule",
    "wake",
    "stand_in",
    "planner",
    "planner_idle",
)
"""Kinds of clauses that name the strongest signal."""

Acting = Stage | str | None
Check = Callable[[Row, "re.Match[str]"], None]
PATTERNS: list[tuple[str, re.Pattern[str], Check, Acting]] = []


def clause(pattern: str, stage: Acting = None) -> Callable[[Check], Check]:
    """Register the check of each clause that the pattern matches. stage: the one that the clause says acted."""

    def register(check: Check) -> Check:
        PATTERNS.append((check.__name__, re.compile(pattern), check, stage))
        return check

    return register


def check(inp: TickInput, decision: Decision, at: int, sentence: str, leading: bool = True) -> Counter[str]:
    """Assert that every claim of a sentence holds. Returns which kinds of clauses it has."""
    row, kinds = Row(inp, decision, at), Counter[str]()
    if not leading:
        assert sentence.startswith(FOLLOWER)
        sentence = re.sub("^(keep|scale)", lambda verb: verb[0].capitalize() + "s", sentence.removeprefix(FOLLOWER))
    match = re.fullmatch(
        rf"(?:(?P<kept>Keeps)|Scales (?P<way>up|down) from (?P<before>\d+) to) (?P<after>\d+) replicas?: "
        rf"(?P<reasons>.*?)(?: \(metrics up to (?P<age>{TIME[1:-1]}) old\))?\.(?: But (?P<problem>.*)\.)?",
        sentence,
    )
    assert match, f"no such sentence: {sentence}"
    current, desired = float(inp.fleet.present_replicas[at]), float(decision.replicas[at])
    assert float(match["after"]) == desired
    assert bool(match["kept"]) == (desired == current)
    if match["before"]:
        assert float(match["before"]) == current
        assert match["way"] == ("up" if desired > current else "down")
    if math.isnan(row.spec("max_replicas")):
        assert decision.recommender[at] == Recommender.NO_POLICY
        return Counter({"no policy": 1})
    _age(row, match["age"])
    stages: list[Acting] = []
    reasons = match["reasons"].split("; ") if match["reasons"] else []
    reasons[:1] = [_without_overruled(row, reason) for reason in reasons[:1]]
    for reason in reasons:
        found = [(*one, hit) for one in PATTERNS if (hit := one[1].fullmatch(reason))]
        assert len(found) == 1, f"{len(found)} patterns match: {reason!r} of {sentence!r}"
        name, _, test, stage, hit = found[0]
        test(row, hit)
        kinds[name] += 1
        if name in ("refused", "hpa_refused") and changed(row, Stage.OWNER):
            stage = Stage.OWNER
        stages += [stage] if stage is not None else []
    expected = [stage for stage in Stage if stage and changed(row, stage)]
    assert len(stages) == len(expected), f"the stages of {sentence!r}"
    for said, did in zip(stages, expected, strict=True):
        assert said is did or (said is PRE_WARM and did in PRE_WARM_STAGES), f"the stages of {sentence!r}"
    spoke = [signal for signal in Signal if not math.isnan(row.recommended(signal))]
    assert sum(kinds[name] for name in SIGNALS) == bool(spoke), f"the signal of {sentence!r}"
    _complete(row, kinds)
    return kinds


def _without_overruled(row: Row, reason: str) -> str:
    """Check that the planner is overruled where the reason says so, and return the rest of the reason."""
    waits = rf"requests wait up to {TIME}, longer than the {TIME} allowed"
    hit = re.fullmatch(rf"(.*), over the planner's {NUMBER}, because {waits}", reason)
    weighed = (Signal.CONCURRENCY, Signal.PREFILL, Signal.DECODE, Signal.KV_CACHE, Signal.TTFT)
    overruled = row.decision.recommender[row.row] == Recommender.OVERRULED_BY_QUEUE and _strongest(row) in weighed
    assert bool(hit) == overruled
    if hit is None:
        return reason
    same(hit[2], row.recommended(Signal.PLANNER))
    same_time(hit[3], row.seen("queue_wait_s"))
    same_time(hit[4], row.spec("max_wait_s"))
    assert row.seen("queue_wait_s") > row.spec("max_wait_s")
    return hit[1]


def _age(row: Row, said: str | None) -> None:
    age_s = row.seen("age_s")
    if _strongest(row) is Signal.PLANNER:
        age_s = float(np.fmax(age_s, row.inp.now_s - row.plan("last_updated_s")))
    if math.isnan(age_s):
        assert said is None
    else:
        assert said is not None
        same_time(said, max(age_s, 0.0))


def _strongest(row: Row) -> Signal | None:
    known = {signal: row.recommended(signal) for signal in Signal if not math.isnan(row.recommended(signal))}
    return max(known, key=lambda signal: known[signal]) if known else None


def _complete(row: Row, kinds: Counter[str]) -> None:
    """Assert that every group of pods that does not serve has a clause."""
    assert bool(kinds["not_running"]) == (row.seen("missing_pods") > 0 or row.seen("pending") > 0)
    coming = (row.inp.fleet.pod_workload == row.row) & (row.inp.fleet.pod_pending == PendingCause.NODE_COMING)
    assert not kinds["node_coming"] or coming.any()
    assert bool(kinds["no_progress"]) == (row.seen("stuck") > 0)
    assert bool(kinds["queue_apart"]) == (row.seen("queue_outliers") > 0)
    assert bool(kinds["queue_at_gateway"]) == (row.seen("gateway_stuck") > 0)


# --- signals


def _speaks(row: Row, signal: Signal, said: str) -> None:
    same(said, row.recommended(signal))
    others = [row.recommended(other) for other in Signal]
    assert row.recommended(signal) == np.nanmax(others)


def _of_all(row: Row, value: float) -> float:
    """Scale a sum over the pods that report up to all that serve."""
    stuck, reporting = or_zero(row.seen("stuck")), row.seen("reporting")
    if reporting <= stuck:
        all_sleep = row.seen("ready") == 0 and row.seen("asleep") > 0
        return value if stuck > 0 or all_sleep else math.nan
    return value * (row.seen("ready") - row.seen("newly_ready") - stuck) / (reporting - stuck)


def _adds_up(row: Row, signal: Signal, awake: float) -> None:
    """Assert that the recommendation is for this many awake replicas, and those that serve nothing on top."""
    stuck, replaced = or_zero(row.seen("stuck")), or_zero(row.seen("stuck_replaced"))
    asleep = row.seen("asleep") - row.seen("wakeable")
    least = max(awake, 1.0) if replaced > 0 else awake
    more = awake > row.seen("ready") - stuck
    expected = least + (asleep if more else 0.0) + replaced
    assert math.isclose(row.recommended(signal), expected, rel_tol=1e-6, abs_tol=1e-9)


UNREAD = rf"(?: on {NUMBER} of {NUMBER} replicas)?"
NOT_SERVING = "pods that (?:stop serving|are not ready|stop serving or are not ready)"
EACH = rf", at (?:(\d+)% of )?(an assumed )?{NUMBER} (?:requests|tokens/s) per replica"
ON_TOP = rf"(?:, with (?:{NUMBER} asleep)?(?: and )?(?:{NUMBER} stuck)?)?"


def _read_from(row: Row, reporting: str | None, ready: str | None) -> None:
    if reporting is None or ready is None:
        assert not row.seen("reporting") < row.seen("ready") - row.seen("newly_ready")
        return
    same(reporting, row.seen("reporting"))
    same(ready, row.seen("ready") - row.seen("newly_ready"))
    assert float(reporting) < float(ready)


def _on_top(row: Row, asleep: str | None, stuck: str | None) -> None:
    same(asleep or "0", row.seen("asleep"))
    same(stuck or "0", or_zero(row.seen("stuck_replaced")))


def _each(row: Row, column: str, usage: str | None, assumed: str | None, each: str) -> float:
    assert abs(float(usage or 100) / 100 - row.spec("target_usage")) <= 0.0051
    pods = row.inp.fleet.pod_workload == row.row
    by_command_line = row.inp.fleet.pod_slots
    stated = row.inp.samples.pods.max_running[pods].tolist()
    stated += [] if by_command_line is None else by_command_line[pods].tolist()
    is_stated = row.capacity(column) in stated
    assert bool(assumed) == (column == "concurrency" and row.capacity("confidence") < 0.5 and not is_stated)
    same(each, row.capacity(column))
    return row.capacity(column) * row.spec("target_usage")


@clause(
    rf"concurrency recommends {NUMBER} for {NUMBER} running(?:,| and) {NUMBER} waiting"
    rf"(?: \((?:up to {TIME} in one replica|for an unknown time, as (no answer has ended yet|{NO_RATE}))\))?"
    rf"(?:(?:,| and) {NUMBER} at the gateway)?(?: and {NUMBER} on {NOT_SERVING})?{UNREAD}{EACH}{ON_TOP}"
)
def concurrency(row: Row, match: re.Match[str]) -> None:
    number, running, waiting, wait, why, gateway, draining, reporting, ready, usage, assumed, each, *top = (
        match.groups()
    )
    _speaks(row, Signal.CONCURRENCY, number)
    same(running, row.seen("running"))
    same(waiting, row.seen("waiting"))
    if why:
        assert row.seen("waiting") > 0
        assert math.isnan(row.seen("queue_wait_s"))
        assert (why == NO_RATE) == (row.seen("output_tokens") > 0)
    elif wait is None:
        assert row.seen("queue_wait_s") == 0 or not row.seen("waiting") > 0
    else:
        same_time(wait, row.seen("queue_wait_s"))
    counted = 0.0 if row.seen("gateway_stuck") > 0 else or_zero(row.seen("gateway_waiting"))
    same(gateway or "0", counted)
    same(draining or "0", or_zero(row.seen("draining_requests")))
    _read_from(row, reporting, ready)
    _on_top(row, *top)
    capacity = _each(row, "concurrency", usage, assumed, each)
    requests = (
        _of_all(row, row.seen("running") + row.seen("waiting")) + or_zero(row.seen("draining_requests")) + counted
    )
    _adds_up(row, Signal.CONCURRENCY, requests / capacity)


@clause(rf"concurrency recommends (0) because no request is in flight{UNREAD}")
def no_concurrency(row: Row, match: re.Match[str]) -> None:
    _speaks(row, Signal.CONCURRENCY, match[1])
    assert row.seen("running") == row.seen("waiting") == 0
    assert not row.seen("draining_requests") > 0
    assert not row.seen("gateway_waiting") > 0 or row.seen("gateway_stuck") > 0
    _read_from(row, match[2], match[3])


@clause(
    rf"the (prefill|decode) rate recommends {NUMBER} for {NUMBER} (prompt|generated) tokens/s"
    rf"(?: and {NUMBER} on {NOT_SERVING})?{UNREAD}{EACH}{ON_TOP}"
)
def token_rate(row: Row, match: re.Match[str]) -> None:
    phase, number, rate, kind, draining, reporting, ready, usage, assumed, each, *top = match.groups()
    signal, column = {
        ("prefill", "prompt"): (Signal.PREFILL, "prompt_tokens_per_s"),
        ("decode", "generated"): (Signal.DECODE, "generation_tokens_per_s"),
    }[phase, kind]
    _speaks(row, signal, number)
    same(rate, row.seen(column))
    same(draining or "0", or_zero(row.seen(f"draining_{column}")))
    _read_from(row, reporting, ready)
    _on_top(row, *top)
    capacity = _each(row, f"{phase}_tokens_per_s", usage, assumed, each)
    load = _of_all(row, row.seen(column)) + or_zero(row.seen(f"draining_{column}"))
    _adds_up(row, signal, load / capacity)


@clause(rf"the KV cache recommends {NUMBER} at (\d+)% usage, target (\d+)%{ON_TOP}")
def kv_cache(row: Row, match: re.Match[str]) -> None:
    number, usage, target, *top = match.groups()
    _speaks(row, Signal.KV_CACHE, number)
    assert abs(float(usage) / 100 - row.seen("kv_usage")) <= 0.0051
    assert abs(float(target) / 100 - row.spec("kv_target_usage")) <= 0.0051
    assert row.seen("kv_usage") > row.spec("kv_target_usage")
    _on_top(row, *top)


@clause(rf"(TTFT|ITL) recommends {NUMBER} at a p95 of {TIME}, objective {TIME}{ON_TOP}")
def latency(row: Row, match: re.Match[str]) -> None:
    name, number, quantile, objective, *top = match.groups()
    signal = Signal[name]
    _speaks(row, signal, number)
    same_time(quantile, row.seen(f"{name.lower()}_s"))
    same_time(objective, row.spec(f"{name.lower()}_objective_s"))
    assert row.seen(f"{name.lower()}_s") > row.spec(f"{name.lower()}_objective_s")
    _on_top(row, *top)


@clause(rf"the rejection rate recommends {NUMBER} for {NUMBER} requests/s refused within the last 30 s{ON_TOP}")
def rejections(row: Row, match: re.Match[str]) -> None:
    number, rate, *top = match.groups()
    _speaks(row, Signal.REJECTIONS, number)
    same(rate, row.seen("rejections_per_s"))
    assert row.seen("rejections_per_s") > 0
    _on_top(row, *top)


@clause(rf"the pre-warm schedule recommends {NUMBER} for {TIME} more")
def schedule(row: Row, match: re.Match[str]) -> None:
    _speaks(row, Signal.SCHEDULE, match[1])
    windows, now_s, ends = row.inp.schedule, row.inp.now_s, []
    columns = (windows.start_s, windows.until_s, windows.replicas, windows.lead_s)
    for start_s, until_s, replicas, stated_lead_s in zip(*(column[row.row] for column in columns), strict=True):
        lead_s = row.seen("cold_start_s") if math.isnan(stated_lead_s) else stated_lead_s
        if start_s - lead_s <= now_s < until_s and replicas == row.recommended(Signal.SCHEDULE):
            ends.append(until_s - now_s)
    same_time(match[2], max(ends))


@clause(rf"wake-up recommends {NUMBER} because requests (wait|arrive) and no replica is (ready|awake)")
def wake(row: Row, match: re.Match[str]) -> None:
    number, comes, serving = match.groups()
    _speaks(row, Signal.WAKE, number)
    if comes == "wait":
        assert row.seen("gateway_waiting") > 0 or row.seen("waiting") > 0
    else:
        assert row.seen("gateway_arrivals_per_s") > 0
    assert row.seen("ready" if serving == "ready" else "reporting") == 0


@clause(rf"wake-up recommends {NUMBER} for {TIME} more, so that one replica serves beside {NUMBER} stuck")
def stand_in(row: Row, match: re.Match[str]) -> None:
    number, left, stuck = match.groups()
    _speaks(row, Signal.WAKE, number)
    assert float(number) == row.seen("stuck_min_replicas") == row.seen("stuck") + 1
    same(stuck, row.seen("stuck"))
    same_time(left, min(2 * row.seen("cold_start_s") + 120, 1800) - row.seen("stuck_s"))


# --- the planner


def _takes(row: Row, verb: str, time: str) -> None:
    same_time(time, row.seen("cold_start_s"))
    assert (verb == "takes") == (row.decision.starts.seen[row.row] > 0)


@clause(r"the planner recommends (0) because no request is in flight")
def planner_idle(row: Row, match: re.Match[str]) -> None:
    _speaks(row, Signal.PLANNER, match[1])
    assert or_zero(row.seen("running")) + or_zero(row.seen("waiting")) == 0
    assert not row.seen("draining_requests") > 0


@clause(
    rf"the planner recommends {NUMBER} for a load of {NUMBER} busy replicas?(?:, with {NUMBER} asleep or stuck)?"
    r"(?:, (because .*|the m..imum))?"
)
def planner(row: Row, match: re.Match[str]) -> None:
    number, load, idle, why = match.groups()
    _speaks(row, Signal.PLANNER, number)
    assert float(number) > 0
    same(load, row.plan("demand"))
    same(idle or "0", row.recommended(Signal.PLANNER) - row.plan("replicas"))
    replicas, busy = row.plan("replicas"), max(row.plan("demand"), 0.0)
    strategy = STRATEGIES[int(row.plan("strategy"))]
    if why is None:
        # Nothing but the load and its rounding up to whole replicas speaks for this count, or it is the least there is.
        assert replicas == row.plan("strategy_replicas")
        assert replicas >= busy
        assert replicas - 1 < _carrying(busy) or replicas <= max(row.spec("min_replicas"), 1.0)
        return
    found = [(pattern, hit) for pattern in _WHY if (hit := re.fullmatch(pattern, why))]
    assert len(found) == 1, why
    pattern, hit = found[0]
    _WHY[pattern](row, hit, replicas, busy, strategy.min_replicas)


def _carrying(load: float) -> float:
    """The replicas that carry a load: by 0.93 of their time, or by what many have to spare."""
    return min(load / 0.93, (0.08 + math.sqrt(0.08**2 + load)) ** 2)


def _of(strategy: Strategy, load: float) -> float:
    """The replicas that a strategy adds up to for a load, without its constant count."""
    added = load * strategy.margin_share + strategy.margin_roots * math.sqrt(load)
    return math.ceil(_carrying(load + added) - ROUNDING - 1e-6)


def _waits(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    assert replicas > row.plan("strategy_replicas")


def _no_headroom(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    same(hit[1], row.plan("strategy_replicas"))
    assert replicas < row.plan("strategy_replicas")


def _maximum(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    strategy = STRATEGIES[int(row.plan("strategy"))]
    assert replicas == row.spec("max_replicas")
    assert _of(strategy, busy) > replicas


def _lower(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    same_time(hit[1], STRATEGIES[int(row.plan("strategy"))].average_s)
    assert replicas < busy


def _minimum(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    assert replicas == row.spec("min_replicas")


def _constant(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    number, beyond, left, surges = hit.groups()
    assert row.plan("strategy") >= PEAK_STRATEGIES
    constant = float(CONSTANT_COUNTS[int(row.plan("strategy")) - PEAK_STRATEGIES])
    same(number, constant if beyond else replicas)
    assert replicas <= constant
    assert bool(beyond) == (constant > replicas == row.spec("max_replicas"))
    if left:
        same_time(left, row.plan("surge_counts_s"))
    same(surges or "0", row.plan("surges") if row.plan("surges") > 1 else 0.0)


def _more_than_load(replicas: float, busy: float) -> None:
    assert replicas - 1 >= _carrying(busy) - ROUNDING - 1e-9


def _held(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    same_time(hit[1], row.plan("peak_expires_in_s"))
    assert row.plan("peak_expires_in_s") >= 0
    _more_than_load(replicas, busy)


def _initial(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    same_time(hit[1], row.plan("warm_up_s") - row.plan("observed_s"))
    assert row.plan("observed_s") < row.plan("warm_up_s")
    assert replicas <= row.plan("initial_fleet")
    _more_than_load(replicas, busy)


def _peaked(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    strategy = STRATEGIES[int(row.plan("strategy"))]
    same_time(hit[1], strategy.average_s)
    same(hit[2], strategy.hold)
    assert math.isnan(row.plan("peak_expires_in_s"))
    _more_than_load(replicas, busy)


def _seasonal(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    assert IS_SEASONAL[int(row.plan("strategy"))]
    load, other = (row.plan(f"{ago}_ago_load") for ago in (("day", "week") if hit[2] == "day" else ("week", "day")))
    same(hit[1], load)
    assert not other > load
    assert _of(STRATEGIES[int(row.plan("strategy"))], load) >= replicas
    _more_than_load(replicas, busy)


def _headroom(row: Row, hit: re.Match[str], replicas: float, busy: float, least: float) -> None:
    strategy = STRATEGIES[int(row.plan("strategy"))]
    if hit[1]:
        same_share(hit[1], strategy.margin_share)
    else:
        same(hit[2], strategy.margin_roots)
    _more_than_load(replicas, busy)


_WHY: dict[str, Callable[[Row, re.Match[str], float, float, float], None]] = {
    "because no replica is removed while requests wait too long": _waits,
    "because no more headroom is added in the first hours of steady traffic "
    rf"\(the strategy alone would recommend {NUMBER}\)": _no_headroom,
    "the maximum": _maximum,
    rf"because the load average over {TIME} is lower": _lower,
    "the minimum": _minimum,
    rf"because a constant count of {NUMBER}(, more than the maximum,)? is the cheapest now, misses included"
    rf"(?: \((?:the only surge counts for {TIME} more|{NUMBER} surges count)\))?": _constant,
    rf"because a peak is held for {TIME} more, in case the load returns": _held,
    rf"because the initial fleet is kept for {TIME} more, until the load is known": _initial,
    rf"because the load average over {TIME} has just peaked, and peaks are held for {NUMBER} cold starts?": _peaked,
    rf"because the load was {NUMBER} busy replicas? around this time a (day|week) ago": _seasonal,
    rf"because its headroom is (?:{SHARE}|{NUMBER} times the square root of the load)": _headroom,
}

WINDOW = rf"(?:a day|{TIME[1:-1]})"
SINCE = rf"(so far|in about {WINDOW}|in {TIME} of traffic)"
BUDGET = rf"the error budget of {SHARE} in ({WINDOW})"


def _in_window(row: Row, window: str) -> None:
    if row.inp.spec.window_s[row.row] == 86_400:
        assert window == "a day"
    else:
        same_time(window, row.inp.spec.window_s[row.row])


def _missed(row: Row, share: str, since: str, time: str | None) -> None:
    same_share(share, row.plan("missed_fraction"))
    observed_s = row.plan("observed_s")
    if since == "so far":
        assert not observed_s > 0
    elif since.startswith("in about "):
        _in_window(row, since.removeprefix("in about "))
        assert observed_s >= row.inp.spec.window_s[row.row]
    else:
        assert time is not None
        same_time(time, observed_s)


def _predicted(row: Row) -> float:
    return row.plan("shadow_missed_fraction") + or_zero(row.plan("unavoidable_fraction"))


@clause(rf"{SHARE} of requests missed {SINCE} and its strategy is predicted to miss {SHARE}, within {BUDGET}")
def within_budget(row: Row, match: re.Match[str]) -> None:
    missed, since, time, predicted, budget, window = match.groups()
    _missed(row, missed, since, time)
    _in_window(row, window)
    same_share(predicted, _predicted(row))
    same_share(budget, row.budget)
    assert row.plan("missed_fraction") <= 1.006 * row.budget
    assert _predicted(row) <= 1.006 * row.budget
    assert row.plan("replicas") >= row.plan("strategy_replicas")


@clause(
    rf"{SHARE} of requests missed {SINCE}, more than {BUDGET}"
    rf"(?:, (so it now|and it still) allows {SHARE}|, and {SHARE} miss at any number of replicas)?"
)
def budget_exceeded(row: Row, match: re.Match[str]) -> None:
    missed, since, time, budget, window, still, allowed, anyway = match.groups()
    _missed(row, missed, since, time)
    _in_window(row, window)
    same_share(budget, row.budget)
    assert row.plan("missed_fraction") > row.budget
    unavoidable = or_zero(row.plan("unavoidable_fraction"))
    assert bool(anyway) == (unavoidable > row.budget)
    if anyway:
        same_share(anyway, unavoidable)
    elif allowed:
        same_share(allowed, row.plan("allowed_fraction") + unavoidable)
        assert (still == "so it now") == (
            row.plan("allowed_fraction") + unavoidable < row.inp.spec.error_budget[row.row]
        )
    else:
        assert math.isnan(row.plan("allowed_fraction"))


@clause(
    rf"its strategy is predicted to miss {SHARE} of requests, more than {BUDGET}, "
    "and each miss beyond it is priced into the choice of strategy"
)
def prediction_exceeds_budget(row: Row, match: re.Match[str]) -> None:
    same_share(match[1], _predicted(row))
    same_share(match[2], row.budget)
    _in_window(row, match[3])
    assert _predicted(row) > row.budget


@clause(rf"{SHARE} of requests missed {SINCE}, {SHARE} may in ({WINDOW}), and nothing is predicted yet")
def no_prediction(row: Row, match: re.Match[str]) -> None:
    _missed(row, match[1], match[2], match[3])
    same_share(match[4], row.budget)
    _in_window(row, match[5])
    assert math.isnan(_predicted(row)) or row.plan("replicas") < row.plan("strategy_replicas")


@clause(
    rf"its strategy is predicted to miss {SHARE} of requests, {SHARE} may in ({WINDOW}), "
    "and no real misses are known yet"
)
def none_judged(row: Row, match: re.Match[str]) -> None:
    same_share(match[1], _predicted(row))
    same_share(match[2], row.budget)
    _in_window(row, match[3])
    assert math.isnan(row.plan("missed_fraction"))


# --- stages


@clause(rf"(.*), so the count (stays at|goes no further than) {NUMBER}", Stage.UNKNOWN)
def unknown(row: Row, match: re.Match[str]) -> None:
    why, verb, number = match.groups()
    same(number, row.stage(Stage.UNKNOWN))
    assert (verb == "stays at") == (float(number) == row.seen("replicas"))
    fleet_age_s = row.inp.now_s - row.inp.fleet.time_s
    ready, reporting = row.seen("ready"), row.seen("reporting")
    if hit := re.fullmatch(rf"the planner is not ready yet and no request is known to wait longer than {TIME}", why):
        same_time(hit[1], row.spec("max_wait_s"))
        assert row.decision.recommender[row.row] == Recommender.WARMING_UP
        assert math.isnan(row.recommended(Signal.PLANNER))
        assert not row.seen("queue_wait_s") > row.spec("max_wait_s")
        assert row.stage(Stage.UNKNOWN) < row.stage(Stage.DEMAND)
        return
    assert not row.stage(Stage.UNKNOWN) < row.stage(Stage.DEMAND)
    if hit := re.fullmatch(rf"the view of the cluster is {TIME} old", why):
        same_time(hit[1], fleet_age_s)
        assert fleet_age_s > min(20.0, row.spec("max_input_age_s"))
    elif hit := re.fullmatch(rf"a replica without progress may compute a long prompt \(for {TIME} more\)", why):
        same_time(hit[1], 180.0 - row.seen("stuck_s"))
    elif hit := re.fullmatch(rf"only {NUMBER} of {NUMBER} ready replicas report", why):
        same(hit[1], reporting)
        same(hit[2], ready)
        assert reporting < ready
    elif hit := re.fullmatch(rf"its gateway has not reported for {TIME}", why):
        same_time(hit[1], row.seen("gateway_silent_s"))
        assert row.seen("gateway_silent_s") > row.spec("max_input_age_s")
    elif why == "no request is known to wait":
        assert row.seen("replicas") == 0
        assert not row.seen("gateway_waiting") > 0
    elif why == "no replica is ready to report the load":
        assert ready == 0
    else:
        assert why == "no signal knows the load"
        assert math.isnan(row.recommended(Signal.CONCURRENCY))
        assert math.isnan(row.recommended(Signal.PLANNER))


@clause(
    rf"a new replica {TAKES} to start, and requests may queue for {TIME}, "
    rf"so the queue needs no more than {NUMBER}",
    Stage.BURST,
)
def burst(row: Row, match: re.Match[str]) -> None:
    _takes(row, match[1], match[2])
    same_time(match[3], row.spec("max_wait_s"))
    same(match[4], row.stage(Stage.BURST))
    assert row.stage(Stage.BURST) < row.stage(Stage.UNKNOWN)
    assert row.seen("waiting") > 0 or row.seen("gateway_waiting") > 0


@clause(
    rf"requests wait up to {TIME}, and their queue outlasts the start of a new replica, which {TAKES}, "
    rf"so it needs {NUMBER}",
    Stage.BURST,
)
def lasting_queue(row: Row, match: re.Match[str]) -> None:
    same_time(match[1], row.seen("queue_wait_s"))
    _takes(row, match[2], match[3])
    same(match[4], row.stage(Stage.BURST))
    assert row.stage(Stage.BURST) > row.stage(Stage.UNKNOWN)
    assert row.seen("queue_wait_s") > row.spec("max_wait_s")


@clause(rf"{NUMBER} is within the tolerance of (\d+)% around {NUMBER}", Stage.TOLERANCE)
def tolerance(row: Row, match: re.Match[str]) -> None:
    before, share, after = match.groups()
    same(before, row.stage(Stage.BURST))
    assert abs(float(share) / 100 - row.spec("tolerance")) <= 0.0051
    same(after, row.stage(Stage.TOLERANCE))
    current = row.seen("replicas")
    assert row.stage(Stage.TOLERANCE) == current
    assert abs(row.stage(Stage.BURST) - current) <= row.spec("tolerance") * current + 1e-6


@clause(rf"scale-down stabilization \(window {TIME}\) keeps {NUMBER}(?: for {TIME} more)?", Stage.STABILIZATION)
def scale_down_stabilization(row: Row, match: re.Match[str]) -> None:
    window, number, left = match.groups()
    same_time(window, float(row.decision.kept_window_s[row.row]))
    same(number, row.stage(Stage.STABILIZATION))
    assert row.stage(Stage.STABILIZATION) > row.stage(Stage.TOLERANCE)
    kept_for_s = float(row.decision.kept_for_s[row.row])
    if left is None:
        assert not kept_for_s > 0
    else:
        same_time(left, kept_for_s)


@clause(
    rf"what was recommended within the last cold start \({TIME}\) keeps {NUMBER}(?: for {TIME} more)?",
    Stage.STABILIZATION,
)
def recommended_lately(row: Row, match: re.Match[str]) -> None:
    assert Recommender(int(row.decision.recommender[row.row])).plans
    same_time(match[1], row.seen("cold_start_s"))
    scale_down_stabilization(row, match)


@clause(rf"the running requests and their KV cache need {NUMBER}", Stage.STABILIZATION)
def in_use(row: Row, match: re.Match[str]) -> None:
    same(match[1], row.stage(Stage.STABILIZATION))
    assert row.stage(Stage.TOLERANCE) < row.stage(Stage.STABILIZATION) <= row.inp.fleet.replicas[row.row]
    seen = row.decision.observation
    assert seen.running[row.row] > 0 or seen.draining_requests[row.row] > 0


@clause(rf"scale-up stabilization \(window {TIME}\) allows {NUMBER}", Stage.STABILIZATION)
def scale_up_stabilization(row: Row, match: re.Match[str]) -> None:
    same_time(match[1], row.spec("up_stabilization_s"))
    same(match[2], row.stage(Stage.STABILIZATION))
    assert row.stage(Stage.STABILIZATION) < row.stage(Stage.TOLERANCE)


@clause(r"one replica stays(.*)", Stage.IDLE)
def stays_awake(row: Row, match: re.Match[str]) -> None:
    why, stated_s = match[1], row.spec("idle_after_s")
    assert (row.stage(Stage.STABILIZATION), row.stage(Stage.IDLE)) == (0, 1)
    idle_after_s, idle_s = float(row.decision.idle_after_s[row.row]), float(row.decision.idle_s[row.row])
    if why == ", because the policy does not scale to zero":
        assert math.isnan(stated_s)
        return
    assert not math.isnan(stated_s)
    if hit := re.fullmatch(rf" until there has been no work for {TIME}(?:, {TIME} from now)?", why):
        same_time(hit[1], idle_after_s)
        if hit[2]:
            same_time(hit[2], idle_after_s - idle_s)
        assert not idle_s >= idle_after_s
    elif hit := re.fullmatch(rf", because its gateway has not reported for {TIME}", why):
        same_time(hit[1], row.seen("gateway_silent_s"))
    elif why == ", because no gateway is known to hold requests at zero":
        assert math.isinf(stated_s)
        assert math.isnan(row.seen("gateway_waiting"))
    else:
        assert why == ", because no idle timeout is known to pay for the start after it within the error budget"
        assert math.isinf(stated_s)
        assert math.isnan(idle_after_s)


@clause(rf"no replica is ready and there was no work for {TIME}, the idle timeout", Stage.IDLE)
def abandoned(row: Row, match: re.Match[str]) -> None:
    same_time(match[1], float(row.decision.idle_after_s[row.row]))
    assert row.decision.idle_s[row.row] >= row.decision.idle_after_s[row.row]
    assert row.seen("ready") == row.seen("gateway_waiting") == row.stage(Stage.IDLE) == 0


@clause(
    rf"(there was no work|no request waited at the gateway) for {TIME}, the idle timeout "
    "(of the policy|the shortest that the error budget allows)"
)
def idle(row: Row, match: re.Match[str]) -> None:
    work, time, whose = match.groups()
    assert (work == "there was no work") == (row.seen("ready") > 0)
    same_time(time, float(row.decision.idle_after_s[row.row]))
    assert row.decision.idle_s[row.row] >= row.decision.idle_after_s[row.row]
    assert (whose == "of the policy") == math.isfinite(row.spec("idle_after_s"))
    assert row.decision.replicas[row.row] == row.stage(Stage.IDLE) == 0


@clause(rf"the scale-(up|down) rate limit \(one step per {TIME}\) allows {NUMBER}", Stage.RATE_LIMIT)
def rate_limit(row: Row, match: re.Match[str]) -> None:
    way, period, number = match.groups()
    same_time(period, row.spec(f"{way}_period_s"))
    same(number, row.stage(Stage.RATE_LIMIT))
    assert (way == "up") == (row.stage(Stage.RATE_LIMIT) < row.stage(Stage.IDLE))
    steps = row.spec(f"{way}_step_fraction"), row.spec(f"{way}_step_replicas")
    assert not all(map(math.isnan, steps))


@clause(rf"the (minimum|maximum) is {NUMBER}", Stage.BOUNDS)
def bounds(row: Row, match: re.Match[str]) -> None:
    same(match[2], row.stage(Stage.BOUNDS))
    assert row.stage(Stage.BOUNDS) == row.spec("min_replicas" if match[1] == "minimum" else "max_replicas")


@clause(
    rf"the maximum is {NUMBER}, but while the load is unknown "
    rf"the scale-down rate limit \(one step per {TIME}\) allows {NUMBER}",
    Stage.BOUNDS,
)
def bounds_in_steps(row: Row, match: re.Match[str]) -> None:
    same(match[1], row.spec("max_replicas"))
    same_time(match[2], row.spec("down_period_s"))
    same(match[3], row.stage(Stage.BOUNDS))
    assert row.spec("max_replicas") < row.stage(Stage.BOUNDS) < row.stage(Stage.RATE_LIMIT)


@clause(rf"its (prefill|decode) workload (\S+) needs {NUMBER}, so the pair needs {NUMBER} here(.*)", Stage.PAIR)
def pair_raised(row: Row, match: re.Match[str]) -> None:
    role, name, needed, here, ratio = match.groups()
    other = _partner(row, role, name, ratio)
    same(needed, other.stage(Stage.PAIR))
    same(here, row.stage(Stage.PAIR))
    assert row.stage(Stage.PAIR) > row.stage(Stage.BOUNDS)


@clause(
    rf"its (prefill|decode) workload (\S+) gets {NUMBER}, "
    rf"(?:so no more than {NUMBER} are of use here(.*)|which leaves GPUs for {NUMBER})",
    Stage.PARTNER,
)
def pair_cut(row: Row, match: re.Match[str]) -> None:
    role, name, gets, fewer, ratio, more = match.groups()
    other = _partner(row, role, name, ratio)
    same(gets, other.stage(Stage.PARTNER))
    same(fewer or more, row.stage(Stage.PARTNER))
    assert (row.stage(Stage.PARTNER) < row.stage(Stage.ALLOCATION)) == (fewer is not None)


def _partner(row: Row, role: str, name: str, ratio: str | None) -> Row:
    """Return the other side of a pair, whose role and name are said. ratio: the words about it; None: none are due."""
    assert row.inp.pairs is not None
    other = row._replace(row=int(row.inp.pairs.partner[row.row]))
    workload = row.inp.fleet.workloads[other.row]
    assert (workload.role, workload.ref.name) == (role, name)
    for word, column, strictest in (("least", "min", np.fmax), ("most", "max", np.fmin)) if ratio is not None else ():
        limits = [each.spec(f"{column}_decode_per_prefill") for each in (row, other)]
        said = re.search(rf"at {word} {NUMBER}", ratio)
        assert bool(said) == (not np.isnan(limits).all())
        if said and word == "least":
            same(said[1], float(strictest.reduce(limits)))
    return other


SPOT_FIRST = rf"(?:, with spot nodes first beyond {NUMBER} on others)?"


def _spot_first(row: Row, beyond: str | None) -> None:
    """Check the preference for spot nodes: the largest floor of the variants, and nothing where none states one."""
    variants = row.inp.variants
    assert variants is not None
    floors = row.inp.spec.on_demand_floor[variants.service == variants.service[row.row]]
    known = floors[~np.isnan(floors)] if variants.may_be_spot is not None else floors[:0]
    assert (beyond is None) == (not len(known))
    if beyond is not None:
        same(beyond, known.max())


@clause(rf"it takes over load from other variants of (\S+) and needs {NUMBER}{SPOT_FIRST}", Stage.VARIANT)
def takes_over(row: Row, match: re.Match[str]) -> None:
    _spot_first(row, match[3])
    assert match[1] == row.inp.fleet.workloads[row.row].service
    same(match[2], row.stage(Stage.VARIANT))
    assert row.stage(Stage.VARIANT) > row.stage(Stage.BOUNDS)


@clause(rf"other variants of (\S+) take over load, so {NUMBER} remain{SPOT_FIRST}", Stage.VARIANT)
def leaves(row: Row, match: re.Match[str]) -> None:
    _spot_first(row, match[3])
    assert match[1] == row.inp.fleet.workloads[row.row].service
    same(match[2], row.stage(Stage.VARIANT))
    assert row.stage(Stage.VARIANT) < row.stage(Stage.BOUNDS)


@clause(rf"it will replace dearer variants of (\S+) and needs {NUMBER}{SPOT_FIRST}", Stage.EXCHANGE)
def replaces(row: Row, match: re.Match[str]) -> None:
    _spot_first(row, match[3])
    assert match[1] == row.inp.fleet.workloads[row.row].service
    same(match[2], row.stage(Stage.EXCHANGE))
    assert row.stage(Stage.EXCHANGE) > row.stage(Stage.VARIANT)


GUARANTEE = (
    rf"(?:, of which {NUMBER} replicas? more than its load needs, as {SHARE} of the pool is guaranteed to headroom "
    r"before base replicas of (\S+(?:(?:,| and) \S+)*?(?: and \d+ others)?)"
    r"|, after the guaranteed headroom of (\S+(?:(?:,| and) \S+)*?(?: and \d+ others)?))?"
)


def _guarantee(row: Row, beyond: str | None, share: str | None, paying: str | None, first: str | None) -> None:
    """Check who has guaranteed headroom and who pays for it: the ends of the sentence agree with the allocation."""
    spec, base, allocated = row.inp.spec, row.decision.base_replicas, row.decision.stages[Stage.ALLOCATION]
    named = [name for name in re.split(r", | and ", paying or first or "") if name and not name.endswith(" others")]
    rows = [each.ref.label for each in row.inp.fleet.workloads]
    for other in (rows.index(name) for name in named):
        assert row.inp.fleet.pool[other] == row.inp.fleet.pool[row.row]
        high, low = (row.row, other) if paying else (other, row.row)
        assert spec.priority[high] > spec.priority[low] and spec.headroom_share[high] > 0
        assert allocated[high] > max(base[high], spec.min_replicas[high])
        assert allocated[low] < base[low] and spec.can_wait(row.decision.observation.cold_start_s)[low]
    if beyond is not None:
        assert share is not None and paying
        same(beyond, allocated[row.row] - max(base[row.row], spec.min_replicas[row.row]))
        same_share(share, spec.headroom_share[row.row])


@clause(
    rf"the pool of {NUMBER} (.+?) allocates {NUMBER} of {NUMBER}(?:, because its last pods did not (start)"
    rf"|(, the rest is headroom)?{GUARANTEE}(?:, because no node has {NUMBER} GPUs left)?"
    r"(?:, by today's nodes, although (.+) may get more)?)",
    Stage.ALLOCATION,
)
def allocation(row: Row, match: re.Match[str]) -> None:
    gpus, names, after, before, unstarted, headroom, beyond, share, paying, first, scattered, grows = match.groups()
    _guarantee(row, beyond, share, paying, first)
    fleet = row.inp.fleet
    own = int(fleet.pool[row.row])
    same(after, row.stage(Stage.ALLOCATION))
    same(before, row.stage(Stage.SLEEP))
    assert float(after) < float(before)
    if not unstarted:
        assert bool(headroom) == (float(after) >= row.decision.base_replicas[row.row])
        assert (grows or "") == fleet.pools[own].grows
    if names.startswith(shared := "GPUs on the node groups of "):
        of_short = [number for number, pool in enumerate(fleet.pools) if pool.nodes in names.removeprefix(shared)]
        assert own in of_short
        same(gpus, float(fleet.groups.gpus[fleet.groups.admitted[of_short].any(axis=0)].sum()))
    else:
        same(gpus, float(fleet.pool_gpus[own]))
        assert names.startswith(fleet.pools[own].product or fleet.pools[own].resource)
        # One replica more would not fit, or it would and is not claimed.
        taking = np.where(np.isnan(row.decision.unfollowed_s), before_partners(row), fleet.replicas)
        allocated = np.nansum((taking * fleet.gpus_per_replica)[fleet.pool == own])
        assert (allocated + fleet.gpus_per_replica[row.row] > float(gpus)) != bool(unstarted or scattered)


def before_partners(row: Row) -> FloatColumn:
    """Return the counts, with those of pairs as they were allocated before both sides were cut together."""
    allocated, partner = (row.decision.stages[stage] for stage in (Stage.ALLOCATION, Stage.PARTNER))
    return np.where(partner < allocated, allocated, row.decision.replicas)


def gpus_of(row: Row, tenants: list[int], quotas: Quotas, replicas: FloatColumn) -> float:
    return float(np.nansum((replicas * row.inp.fleet.gpus_per_replica)[np.isin(quotas.tenant, tenants)]))


def find_quota(row: Row, source: str) -> tuple[Quotas, int]:
    """Return the kind and the number of the only quota with this source. Each tenant has its own quota here."""
    found = [
        (quotas, number)
        for quotas in row.inp.fleet.quotas
        for number, quota in enumerate(quotas.quotas)
        if f"{quota.source} {quota.flavor}".strip() == source
    ]
    assert len(found) == 1
    return found[0]


QUOTA = rf"the quota of {NUMBER} (\S+) \((.+?)(?:, {NUMBER} of them for pods of others)?\)"


@clause(
    rf"{QUOTA}(?: with {NUMBER} borrowed from cohort (.+?))? allocates {NUMBER} of {NUMBER}"
    rf"(?:, cohort (.+?) lends no more|, no more than {NUMBER} may be borrowed)?(?:, {NUMBER} go back to (.+?))?"
    r"(, the rest is headroom)?",
    Stage.ALLOCATION,
)
def quota_allocation(row: Row, match: re.Match[str]) -> None:
    nominal, resource, source, others, borrowed, lender, after, before, cohort, most, back, taker, headroom = (
        match.groups()
    )
    quotas, own = find_quota(row, source)
    tenant = int(quotas.tenant[row.row])
    assert quotas.charged[tenant].nonzero()[0].tolist() == [own]
    assert resource == quotas.quotas[own].resource
    assert {lender, cohort} <= {None, quotas.quotas[own].cohort}
    assert bool(cohort or most) == bool(quotas.quotas[own].cohort)
    same(nominal, float(quotas.nominal[own]))
    same(others or "0", float(quotas.used_by_others[own]))
    same(after, row.stage(Stage.ALLOCATION))
    same(before, row.stage(Stage.SLEEP))
    assert float(after) < float(before)
    assert bool(headroom) == (float(after) >= row.decision.base_replicas[row.row])
    decided, now = (
        gpus_of(row, [tenant], quotas, replicas) + quotas.used_by_others[own]
        for replicas in (row.decision.replicas, row.inp.fleet.replicas)
    )
    over = max(decided - quotas.nominal[own], 0.0)
    same(borrowed or "0", over if quotas.quotas[own].cohort else 0.0)
    one_more = row.inp.fleet.gpus_per_replica[row.row]
    allocated = gpus_of(row, [tenant], quotas, before_partners(row)) + quotas.used_by_others[own]
    if most:
        same(most, float(quotas.borrowing_limit[own]))
        assert allocated + one_more > quotas.nominal[own] + quotas.borrowing_limit[own]
    if not quotas.quotas[own].cohort:
        assert allocated + one_more > quotas.nominal[own]
    if back:
        same(back, max(now - quotas.nominal[own], 0.0) - over)
        for name in re.split(", | and ", taker):
            other = int(quotas.charged[:, find_quota(row, name)[1]].argmax())
            grown, before_it = (
                gpus_of(row, [other], quotas, replicas) for replicas in (row.decision.replicas, row.inp.fleet.replicas)
            )
            assert grown > before_it


@clause(rf"(.+), of which {QUOTA}(?: with {NUMBER} borrowed from cohort .+?)? allocates {NUMBER}", Stage.ALLOCATION)
def held_beyond_quota(row: Row, match: re.Match[str]) -> None:
    held = row.inp.fleet.hpa_limits
    assert held is not None
    assert match[1] == held.reason[row.row]
    same(match[2], float(find_quota(row, match[4])[0].nominal[find_quota(row, match[4])[1]]))
    same(match[7], row.stage(Stage.ALLOCATION))
    assert row.stage(Stage.ALLOCATION) > row.stage(Stage.VARIANT)


@clause(rf"{NUMBER} GPUs come back from (.+?)(?: within {TIME})? as replicas there drain")
def quota_drains(row: Row, match: re.Match[str]) -> None:
    gpus, sources, within = match.groups()
    fleet, decided = row.inp.fleet, row.decision.replicas
    waiting = decided[row.row] - row.seen("ready") - row.seen("asleep") - row.seen("starting")
    leaving = row.decision.observation.terminating + np.fmax(fleet.replicas - decided, 0.0)
    leaving[row.row] = 0.0
    quotas, _ = find_quota(row, re.split(", | and ", sources)[0])
    names = re.split(", | and ", sources)
    of_sources = [int(quotas.charged[:, find_quota(row, name)[1]].argmax()) for name in names]
    there = np.isin(quotas.tenant, of_sources) & (leaving > 0)
    same(gpus, min(gpus_of(row, of_sources, quotas, leaving), waiting * fleet.gpus_per_replica[row.row]))
    if within:
        assert fleet.drain_s is not None
        same_time(within, float(fleet.drain_s[there].max()))


@clause(
    rf"the nodes that admit it hold {NUMBER} of {NUMBER}(?:, so it keeps {NUMBER})?"
    r"(?:, by today's nodes, although (.+) may get more)?",
    Stage.ALLOCATION,
)
def nodes_hold(row: Row, match: re.Match[str]) -> None:
    fits, before, kept, grows = match.groups()
    same(fits, float(row.inp.fleet.obstacles.fits[row.row]))
    same(before, row.stage(Stage.VARIANT))
    assert float(fits) < float(before)
    if kept:
        same(kept, row.stage(Stage.ALLOCATION))
        assert float(kept) > float(fits)
    else:
        assert row.stage(Stage.ALLOCATION) <= float(fits)
    assert (grows or "") == row.inp.fleet.pools[int(row.inp.fleet.pool[row.row])].grows


def nowhere(row: Row) -> bool:
    """Return whether no group of nodes admits a replica, and no autoscaler is known to create one."""
    fleet = row.inp.fleet
    own = int(fleet.pool[row.row])
    if own < 0 or not fleet.groups.groups or fleet.groups.admitted[own].any():
        return False
    causes = fleet.pod_pending[(fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating]
    return bool((causes == PendingCause.NO_NODE).any()) or not (fleet.groups.can_add > 0).any()


@clause(rf"no node can hold a replica, so no more than {NUMBER} of {NUMBER} are requested", Stage.ALLOCATION)
def fits_nowhere(row: Row, match: re.Match[str]) -> None:
    assert nowhere(row)
    same(match[1], row.stage(Stage.ALLOCATION))
    same(match[2], row.stage(Stage.SLEEP))


@clause(rf"no more than {NUMBER} are requested while some of them do not run", Stage.ALLOCATION)
def halted(row: Row, match: re.Match[str]) -> None:
    same(match[1], row.stage(Stage.ALLOCATION))
    assert row.stage(Stage.ALLOCATION) == row.seen("replicas") < row.stage(Stage.VARIANT)
    assert row.seen("missing_pods") > 0 or row.seen("pending") > 0


@clause(rf"(.+), of which the pool of {NUMBER} .+ allocates {NUMBER}", Stage.ALLOCATION)
def held_beyond_pool(row: Row, match: re.Match[str]) -> None:
    held = row.inp.fleet.hpa_limits
    assert held is not None
    assert match[1] == held.reason[row.row]
    same(match[3], row.stage(Stage.ALLOCATION))
    assert row.stage(Stage.ALLOCATION) > row.stage(Stage.VARIANT)


@clause(rf"the pre-warm schedule needs {NUMBER} at once", PRE_WARM)
def pre_warm(row: Row, match: re.Match[str]) -> None:
    same(match[1], row.recommended(Signal.SCHEDULE))


@clause(r"scaling is paused", Stage.OWNER)
def paused(row: Row, match: re.Match[str]) -> None:
    assert row.inp.fleet.paused[row.row]
    assert row.decision.replicas[row.row] == row.seen("replicas")


@clause(rf"(.+) owns the count(?: for {TIME} more|(, until somebody raises it from zero))?", Stage.OWNER)
def other_owner(row: Row, match: re.Match[str]) -> None:
    assert match[1] == row.inp.fleet.other_owner[row.row]
    assert row.decision.replicas[row.row] == row.seen("replicas")
    foreign = row.inp.fleet.foreign
    left_s = math.nan if foreign is None else float(foreign.owned_until_s[row.row]) - row.inp.now_s
    assert bool(match[3]) == (left_s == math.inf)
    if match[2]:
        same_time(match[2], left_s)


@clause(rf"(.+) holds it(?: for {TIME} more|(, until somebody raises it from zero))?")
def holds_it(row: Row, match: re.Match[str]) -> None:
    assert row.stage(Stage.OWNER) == row.stage(Stage.PARTNER)
    other_owner(row, match)


@clause(rf"(.+) reset the count from {NUMBER} to {NUMBER} with its manifest(, which is undone)?")
def reset(row: Row, match: re.Match[str]) -> None:
    foreign = row.inp.fleet.foreign
    assert foreign is not None
    assert match[1] == (foreign.reset_by[row.row] or "an update that left the count out")
    same(match[2], float(row.inp.fleet.replicas[row.row]))
    same(match[3], float(foreign.reset_to[row.row]))
    assert bool(match[4]) == bool(row.decision.replicas[row.row] > foreign.reset_to[row.row])


@clause(rf"(.+), so the count will be {NUMBER}", Stage.OWNER)
def held(row: Row, match: re.Match[str]) -> None:
    held = row.inp.fleet.hpa_limits
    assert held is not None
    assert match[1] == held.reason[row.row]
    same(match[2], row.stage(Stage.OWNER))


# --- pods that do not serve


@clause(
    rf"the API server (?:refuses {NUMBER} replicas?, next try in {TIME}|last refused {NUMBER} replicas?)(?:: (.*))?"
)
def refused(row: Row, match: re.Match[str]) -> None:
    now, left, last, words = match.groups()
    obstacles, left_s = row.inp.fleet.obstacles, row.inp.fleet.obstacles.retry_at_s[row.row] - row.inp.now_s
    same(now or last, float(obstacles.refused_replicas[row.row]))
    assert bool(left) == (left_s > 0)
    if left:
        same_time(left, left_s)
    assert (words or "") == row.words


@clause(r"its HPA cannot change the count(?:: (.*))?")
def hpa_refused(row: Row, match: re.Match[str]) -> None:
    assert math.isinf(row.inp.fleet.obstacles.refused_replicas[row.row])
    assert (match[1] or "") == row.words


ABSENT = (
    r"\d+ (?:replicas? (?:has|have) no pod|"
    r"pods? (?:is|are) (?:pending|queued|crashing|stuck starting|impossible to schedule) \([^)]*\))"
)


@clause(rf"((?:{ABSENT})(?: and {ABSENT})*)(?:: (.*))?")
def not_running(row: Row, match: re.Match[str]) -> None:
    fleet = row.inp.fleet
    parts = re.findall(ABSENT, match[1])
    pods = (fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating
    expected = Counter({what: int(np.sum(fleet.pod_pending[pods] == why)) for what, why in PENDING.items()})
    expected[STUCK_STARTING] = round(row.seen("pending")) - sum(expected.values())
    serve = int(np.sum((fleet.pod_workload == row.row) & ~fleet.pod_terminating))
    beyond = max(0.0, serve - (0.0 if nowhere(row) else float(fleet.obstacles.fits[row.row])))
    for what in ("pending (unschedulable)", "pending (unschedulable, and the cluster autoscaler creates no node)"):
        moved = int(min(expected[what], beyond))
        expected[what], beyond = expected[what] - moved, beyond - moved
        expected[IMPOSSIBLE] += moved
    expected["no pod"] = round(row.seen("missing_pods"))
    found = Counter[str]()
    for part in parts:
        many, what = re.fullmatch(r"(\d+) (?:replica|pod)s? (?:is|are|has|have) (.*)", part).groups()
        found[what] += int(many)
    assert found == +expected
    assert (match[2] or "") == row.words


@clause(rf"{NUMBER} pods? waits? for a node that is being created")
def node_coming(row: Row, match: re.Match[str]) -> None:
    fleet = row.inp.fleet
    pods = (fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating
    same(match[1], min(float(np.sum(fleet.pod_pending[pods] == PendingCause.NODE_COMING)), row.seen("starting")))


@clause(
    rf"{NUMBER} replicas? (?:is|are) asleep(?:, {NUMBER} to wake, which takes {TIME})?"
    rf"(?:, {NUMBER} did not wake in time)?"
)
def asleep(row: Row, match: re.Match[str]) -> None:
    same(match[1], row.seen("asleep"))
    waking = np.sum((row.inp.fleet.pod_workload == row.row) & row.decision.sleep_orders.wake)
    same(match[2] or "0", float(waking))
    if match[3]:
        same_time(match[3], row.seen("wake_s"))
    if match[4]:
        same(match[4], row.seen("asleep") - row.seen("wakeable"))


@clause(rf"{NUMBER} idle replicas? (?:is|are) to sleep")
def falling_asleep(row: Row, match: re.Match[str]) -> None:
    orders = row.decision.sleep_orders
    own = row.inp.fleet.pod_workload == row.row
    same(match[1], float(np.sum(own & orders.sleep & ~orders.asleep)))


@clause(rf"{NUMBER} of {NUMBER} (?:is|are) kept asleep beside those that serve")
def kept_asleep(row: Row, match: re.Match[str]) -> None:
    kept, total = match.groups()
    same(kept, row.stage(Stage.SLEEP) - row.stage(Stage.EXCHANGE))
    same(total, row.stage(Stage.SLEEP))


@clause(
    rf"{NUMBER} of {NUMBER} reporting replicas? (?:has|have) made no progress on {NUMBER} requests? for {TIME} "
    r"\(stuck, or stale metrics\), so (?:its|their) load is not counted and (.*)"
)
def no_progress(row: Row, match: re.Match[str]) -> None:
    stuck, reporting, requests, since, instead = match.groups()
    same(stuck, row.seen("stuck"))
    same(reporting, row.seen("reporting"))
    same(requests, row.seen("stuck_requests"))
    same_time(since, row.seen("stuck_s"))
    if instead == "another replica serves for each":
        assert row.seen("stuck_replaced") == row.seen("stuck")
    elif instead == "one more replica stands in for a while":
        assert row.seen("stuck_min_replicas") == row.seen("stuck") + 1
    else:
        assert re.fullmatch("nothing replaces (it|them)", instead)
        assert row.seen("stuck_replaced") == 0
        assert math.isnan(row.seen("stuck_min_replicas"))


@clause(
    rf"{NUMBER} of {NUMBER} reporting replicas? (?:has|have) a queue that has not shrunk for {TIME} while most others "
    rf"have none \(a stuck rank, or uneven routing\), so {NUMBER} waiting requests? are not counted"
)
def queue_apart(row: Row, match: re.Match[str]) -> None:
    same(match[1], row.seen("queue_outliers"))
    same(match[2], row.seen("reporting"))
    same_time(match[3], row.seen("queue_outlier_s"))
    same(match[4], row.seen("queue_outlier_requests"))
    assert row.seen("queue_outliers") <= row.seen("reporting") / 2


@clause(rf"{NUMBER} requests? at the gateway are not counted, because no engine works: a stuck queue, or stale metrics")
def queue_at_gateway(row: Row, match: re.Match[str]) -> None:
    same(match[1], row.seen("gateway_waiting"))
    assert row.seen("gateway_stuck") == 1
