"""Compare each claim of a sentence with the columns of its decision, by a reading of its own.

A claim has a name and a value. The value must be that of the only column with this name, or that of `VALUES`; words
without a value must hold by `WHEN`. Which claims are due, and that they fit together, is checked by signal and stage.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from autoscaler.core.explain.claims import SentenceClaim, Words
from autoscaler.core.explain.format import ListedNames
from autoscaler.core.explain.sentence import Explanation
from autoscaler.core.model.fleet import PendingCause
from autoscaler.core.model.phases import Phase
from autoscaler.core.model.quotas import Quotas
from autoscaler.core.model.types import Decision, Recommender, Signal, Stage, TickInput
from autoscaler.core.planner.strategies import IS_SEASONAL, STRATEGIES, Strategy
from autoscaler.core.table.columns import FloatColumn

SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0, "days": 86_400.0}
ROUNDING = 0.02  # of a replica, in the planner
PRE_WARM_STAGES = (Stage.TOLERANCE, Stage.STABILIZATION, Stage.RATE_LIMIT)
"""Stages that a pre-warm schedule passes."""

SUBJECTS = {
    Signal.CONCURRENCY: ("concurrency", "requests", "concurrency"),
    Signal.PREFILL: ("the prefill rate", "tokens/s", "prefill_tokens_per_s"),
    Signal.DECODE: ("the decode rate", "tokens/s", "decode_tokens_per_s"),
    Signal.KV_CACHE: ("the KV cache", "", ""),
    Signal.TTFT: ("TTFT", "", ""),
    Signal.ITL: ("ITL", "", ""),
    Signal.REJECTIONS: ("the rejection rate", "", ""),
    Signal.SCHEDULE: ("the pre-warm schedule", "", ""),
    Signal.PLANNER: ("the planner", "", ""),
    Signal.WAKE: ("wake-up", "", ""),
}
"""Subject of the sentence, unit of a replica's capacity and its column, by signal."""

RATES = {Signal.PREFILL: ("prompt_tokens_per_s", "prompt"), Signal.DECODE: ("generation_tokens_per_s", "generated")}
WEIGHED = (Signal.CONCURRENCY, Signal.PREFILL, Signal.DECODE, Signal.KV_CACHE, Signal.TTFT)

CHECKED_TOGETHER = {"verb", "problem", "absent_pods", "cause", "paying", "served_first", "pools", "shared_gpus"}
"""Claims that are compared with others of their clause."""

Value = float | str | ListedNames
Said = dict[str, Value]  # values of claims by name


class Row(NamedTuple):
    """One workload of one tick, where a stage or, with DEMAND, all else is told."""

    inp: TickInput
    decision: Decision
    row: int
    at: Stage = Stage.DEMAND

    def __getattr__(self, name: str) -> float:
        """Read a column: of the observation, else of the decision, else of the planner, else of the policy."""
        tables = (self.decision.observation, self.decision, self.decision.plan, self.inp.spec)
        return float(next(getattr(table, name) for table in tables if hasattr(table, name))[self.row])

    def spec(self, name: str) -> float:
        return float(getattr(self.inp.spec, name)[self.row])

    def capacity(self, name: str) -> float:
        return float(getattr(self.decision.capacity, name)[self.row])

    def recommended(self, signal: Signal) -> float:
        return float(self.decision.recommendations[signal, self.row])

    def stage(self, stage: int) -> float:
        return float(self.decision.stages[stage, self.row])

    def count_pods(self, pods: np.ndarray) -> float:
        return float(np.sum((self.inp.fleet.pod_workload == self.row) & pods))

    @property
    def desired(self) -> float:
        return float(self.decision.replicas[self.row])

    @property
    def planned(self) -> float:
        return float(self.decision.plan.replicas[self.row])

    @property
    def budget(self) -> float:
        return 1 - self.attainment

    @property
    def strategy_number(self) -> int:
        return int(self.decision.plan.strategy[self.row])

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[self.strategy_number]

    @property
    def signal(self) -> Signal | None:
        known = {signal: self.recommended(signal) for signal in Signal if not math.isnan(self.recommended(signal))}
        return max(known, key=lambda signal: known[signal]) if known else None

    @property
    def partner(self) -> Row:
        return self._replace(row=int(self.inp.pairs.partner[self.row]))


def or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def changed(row: Row, stage: Stage) -> bool:
    before, after = (
        math.ceil(value - 1e-6) if math.isfinite(value) else value for value in (row.stage(stage - 1), row.stage(stage))
    )
    return before != after and not (math.isnan(before) and math.isnan(after))


def check(inp: TickInput, decision: Decision, at: int, explanation: Explanation, leading: bool = True) -> Counter[str]:
    """Assert that every claim of an explanation holds. Returns the names of its claims."""
    row, words = Row(inp, decision, at), explanation.words
    assert str(words) == explanation.sentence
    _all_numbers_are_claims(words)
    follower = "This replica of the daemon does not hold the lease and does not act. It would "
    verb = "keep" if decision.replicas[at] == inp.fleet.present_replicas[at] else "scale"
    assert words.claims[0] == SentenceClaim("verb", *2 * (f"{verb.title()}s" if leading else follower + verb,))
    if math.isnan(row.max_replicas):
        assert decision.recommender[at] == Recommender.NO_POLICY
        return Counter({"no policy": 1})
    told, of_stages = Counter[str](), []
    for stage, claims in by_stage(explanation):
        reason = explanation.steps[stage].words
        assert str(reason) == explanation.steps[stage].reason
        assert not stage or bool(reason) == changed(row, stage), f"the stage {stage.name} of {words}"
        if stage and reason:
            assert len(claims) == len(reason.claims) > 0, f"the stage {stage.name} of {words}"
            of_stages += claims
        if claims:
            check_claims(row._replace(at=stage), claims)
        told += Counter(claim.name for claim in claims)
    in_order = {id(claim): place for place, claim in enumerate(words.claims)}
    places = [in_order[id(claim)] for claim in of_stages]
    assert places == sorted(places), f"the order of stages in {words}"
    return told


def by_stage(explanation: Explanation) -> Iterator[tuple[Stage, list[SentenceClaim]]]:
    """Return the claims of a sentence by the stage that they are about; with DEMAND those about none."""
    others = list(explanation.words.claims)
    for stage, step in zip(Stage, explanation.steps, strict=True):
        own = {id(claim) for claim in step.words.claims}
        yield stage, [claim for claim in others if id(claim) in own]
        others = [claim for claim in others if id(claim) not in own]
    yield Stage.DEMAND, others


def check_claims(row: Row, claims: list[SentenceClaim]) -> None:
    """Assert that the claims about a stage, or with DEMAND all others, hold."""
    for claim in claims:
        _same_words(claim)
        if claim.name in WHEN and claim.value == claim.words:
            assert WHEN[claim.name](row), f"{claim.words!r} holds"
        elif claim.name not in CHECKED_TOGETHER:
            _same(claim, VALUES[claim.name](row) if claim.name in VALUES else getattr(row, claim.name))
    said: Said = {claim.name: claim.value for claim in claims}
    if row.at:
        STAGES[row.at](row, said)
        return
    assert ("signal" in said) == (row.signal is not None)
    if row.signal is not None:
        SIGNALS[row.signal](row, said)
        is_overruled = row.decision.recommender[row.row] == Recommender.OVERRULED_BY_QUEUE and row.signal in WEIGHED
        assert len(said.keys() & {"overruled", "longest_wait_s", "max_wait_s"}) == 3 * is_overruled
        assert not is_overruled or row.queue_wait_s > row.max_wait_s
    _others(row, said)
    _absent(row, [claim.value for claim in claims if claim.name in ("absent_pods", "cause")])


def _all_numbers_are_claims(words: Words) -> None:
    """Assert that no number stands in words that claim nothing."""
    for part in words.parts:
        assert isinstance(part, SentenceClaim) or not re.search(r"\d", part.replace("p95", "")), part


def _same(claim: SentenceClaim, value: Value) -> None:
    if isinstance(value, float) and isinstance(claim.value, float | int):
        is_same = claim.value == value or math.isclose(claim.value, value, rel_tol=1e-6, abs_tol=1e-6)
    else:
        is_same = claim.value == value
    assert is_same, f"the sentence says {claim}, the column {value}"


def _same_words(claim: SentenceClaim) -> None:
    """Assert that the words tell the value: a number with three digits, or each name."""
    if isinstance(claim.value, ListedNames):
        names = [*claim.value.named, *([f"{claim.value.others} others"] * (claim.value.others > 0))]
        assert claim.words == " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    elif isinstance(claim.value, str):
        assert claim.words == claim.value or claim.name in ("cause", "stuck_phase")
    else:
        match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(%| [a-z ]+)?", claim.words.replace("a day", "1 day"))
        assert match, claim
        unit = (match[2] or "").strip()
        value = claim.value / (0.01 if unit == "%" else SECONDS[unit] if claim.name.endswith("_s") and unit else 1.0)
        is_whole = abs(value) >= 100 or (unit == "%" and "." not in match[1])
        assert abs(float(match[1]) - value) <= max(0.0051 * abs(value), 0.51 if is_whole else 1.01e-4), claim


def exactly(row: Row, said: Said, *names: str) -> None:
    """Assert that these claims are made where, and only where, they hold by `WHEN`."""
    for name in names:
        assert (name in said) == bool(WHEN[name](row)), name


def only(condition: bool, value: Value) -> Value:
    """Return what is told, which holds under a condition alone."""
    assert condition
    return value


# --- signals


def _of_all(row: Row, value: float) -> float:
    """Scale a sum over the pods that report up to all that serve."""
    stuck, reporting = or_zero(row.stuck), row.reporting
    if reporting <= stuck:
        all_sleep = row.ready == 0 and row.asleep > 0
        return value if stuck > 0 or all_sleep else math.nan
    return value * (row.ready - row.newly_ready - stuck) / (reporting - stuck)


def _adds_up(row: Row, said: Said, load: float) -> None:
    """Assert that the recommendation is for this load, with those that serve nothing on top."""
    exactly(row, said, "read_from", "serving", "asleep_on_top", "stuck_on_top", "target_usage", "assumed")
    assert {"each", "unit"} <= said.keys()
    awake = load / (row.capacity(SUBJECTS[row.signal][2]) * row.target_usage)
    stuck, replaced = or_zero(row.stuck), or_zero(row.stuck_replaced)
    least = max(awake, 1.0) if replaced > 0 else awake
    more = row.asleep - row.wakeable if awake > row.ready - stuck else 0.0
    assert math.isclose(row.recommended(row.signal), least + more + replaced, rel_tol=1e-6, abs_tol=1e-9)


def _is_assumed(row: Row) -> bool:
    pods = row.inp.fleet.pod_workload == row.row
    stated = row.inp.samples.pods.max_running[pods].tolist()
    stated += [] if row.inp.fleet.pod_slots is None else row.inp.fleet.pod_slots[pods].tolist()
    is_guess = row.capacity("confidence") < 0.5 and row.capacity("concurrency") not in stated
    return row.signal is Signal.CONCURRENCY and is_guess


def _at_gateway(row: Row) -> float:
    return 0.0 if row.gateway_stuck > 0 else or_zero(row.gateway_waiting)


def _concurrency(row: Row, said: Said) -> None:
    if "idle" in said:
        assert said["recommended"] == 0
        return exactly(row, said, "read_from", "serving")
    exactly(row, said, "queue_wait_s", "no_answer", "no_speed", "gateway_waiting", "draining_requests")
    assert {"running", "waiting"} <= said.keys()
    requests = _of_all(row, row.running + row.waiting) + or_zero(row.draining_requests)
    _adds_up(row, said, requests + _at_gateway(row))


def _rate(row: Row, said: Said) -> None:
    column = RATES[row.signal][0]
    draining = or_zero(getattr(row, f"draining_{column}"))
    assert {"rate", "kind"} <= said.keys()
    assert ("draining_rate" in said) == ("pods" in said) == (draining > 0)
    _adds_up(row, said, _of_all(row, getattr(row, column)) + draining)


def _above(column: str, limit: str | None, *names: str) -> Callable[[Row, Said], None]:
    def test(row: Row, said: Said) -> None:
        exactly(row, said, "asleep_on_top", "stuck_on_top")
        assert {*names} <= said.keys()
        assert getattr(row, column) > (getattr(row, limit) if limit else 0.0)

    return test


def _schedule_end(row: Row) -> float:
    windows, now_s, ends = row.inp.schedule, row.inp.now_s, []
    columns = (windows.start_s, windows.until_s, windows.replicas, windows.lead_s)
    for start_s, until_s, replicas, stated_lead_s in zip(*(column[row.row] for column in columns), strict=True):
        lead_s = row.cold_start_s if math.isnan(stated_lead_s) else stated_lead_s
        if start_s - lead_s <= now_s < until_s and replicas == row.recommended(Signal.SCHEDULE):
            ends.append(until_s - now_s)
    return max(ends)


def _wake(row: Row, said: Said) -> None:
    if "stuck_beside" in said:
        assert "chance_left_s" in said
        assert row.recommended(Signal.WAKE) == row.stuck_min_replicas == row.stuck + 1
    else:
        assert {"come", "missing"} <= said.keys()


def _comes(row: Row) -> Value:
    if row.gateway_waiting > 0 or row.waiting > 0:
        return "wait"
    return only(row.gateway_arrivals_per_s > 0, "arrive")


def _not_serving(row: Row) -> str:
    """Name the pods with requests that do not serve: that one of them leaves, that one is not ready, or both."""
    fleet, pods = row.inp.fleet, row.inp.samples.pods
    own = (fleet.pod_workload == row.row) & ~(fleet.pod_ready & ~fleet.pod_terminating) & (pods.running > 0)
    words = [
        *(["stop serving"] if (own & fleet.pod_terminating).any() else []),
        *(["are not ready"] if (own & ~fleet.pod_terminating).any() else []),
    ]
    return f"pods that {' or '.join(words)}"


# --- the planner


def _carrying(load: float) -> float:
    """The replicas that carry a load: by 0.93 of their time, or by what many have to spare."""
    return min(load / 0.93, (0.08 + math.sqrt(0.08**2 + load)) ** 2)


def _of(row: Row, load: float) -> float:
    """The replicas that the strategy adds up to for a load, without its constant count."""
    added = load * row.strategy.margin_share + row.strategy.margin_roots * math.sqrt(load)
    return math.ceil(_carrying(load + added) - ROUNDING - 1e-6)


def _busy(row: Row) -> float:
    return max(row.demand, 0.0)


def _exceeds_load(row: Row) -> bool:
    return row.planned - 1 >= _carrying(_busy(row)) - ROUNDING - 1e-9


def _constant(row: Row) -> Value:
    return only(row.planned <= row.constant_count, row.constant_count if _is_cut(row) else row.planned)


def _is_cut(row: Row) -> bool:
    return row.constant_count > row.planned == row.max_replicas


def _seasonal(row: Row) -> Value:
    load = float(np.fmax(row.day_ago_load, row.week_ago_load))
    is_season = IS_SEASONAL[row.strategy_number] and _exceeds_load(row)
    return only(is_season and _of(row, load) >= row.planned, load)


def _unavoidable(row: Row) -> float:
    return or_zero(row.unavoidable_fraction)


def _predicted(row: Row) -> float:
    return row.shadow_missed_fraction + _unavoidable(row)


def _allowed(row: Row) -> float:
    return row.allowed_fraction + _unavoidable(row)


def _as_planned(row: Row) -> bool:
    return row.planned >= row.strategy_replicas


def _is_within(row: Row) -> bool:
    return max(row.missed_fraction, _predicted(row)) <= 1.006 * row.budget and _as_planned(row)


def _planner(row: Row, said: Said) -> None:
    if "idle" in said:
        assert said["recommended"] == 0
        return
    assert row.recommended(Signal.PLANNER) > 0 and "demand" in said
    exactly(row, said, "idle_replicas")
    reasons = said.keys() & WHY
    assert len(reasons) <= 1
    if not reasons:
        # Nothing but the load and its rounding up to whole replicas speaks for this count, or it is the least there is.
        replicas, least = row.planned, max(row.min_replicas, 1.0)
        assert replicas == row.strategy_replicas and replicas >= _busy(row)
        assert replicas - 1 < _carrying(_busy(row)) or replicas <= least
    if "constant_replicas" in said:
        exactly(row, said, "beyond", "surges")
    verdicts = said.keys() & {"both", "missed_so_far", "predicted_to_miss", "no_prediction", "none_counted"}
    assert len(verdicts) == bool(said.keys() & {"missed_fraction", "predicted_fraction"})
    assert ("missed_fraction" in said) == bool(verdicts & {"both", "missed_so_far", "no_prediction"})
    assert ("predicted_fraction" in said) == bool(verdicts & {"both", "predicted_to_miss", "none_counted"})
    assert not verdicts or {"budget_fraction", "budget_window_s"} <= said.keys()
    if "missed_so_far" in said:
        exactly(row, said, "unavoidable_fraction", "allowed_fraction")


WHY = {
    *("too_late", "most", "least", "strategy_replicas", "lower_over_s", "constant_replicas", "peak_expires_in_s"),
    *("warm_up_left_s", "peaked_over_s", "seasonal_load", "margin_fraction", "margin_roots"),
}
"""Reasons for a count that the load alone does not explain."""

SIGNALS: dict[Signal, Callable[[Row, Said], None]] = {
    Signal.CONCURRENCY: _concurrency,
    Signal.PREFILL: _rate,
    Signal.DECODE: _rate,
    Signal.KV_CACHE: _above("kv_usage", "kv_target_usage", "kv_usage", "kv_target_usage"),
    Signal.TTFT: _above("ttft_s", "ttft_objective_s", "quantile_s", "objective_s"),
    Signal.ITL: _above("itl_s", "itl_objective_s", "quantile_s", "objective_s"),
    Signal.REJECTIONS: _above("rejections_per_s", None, "rejections_per_s", "rate_window_s"),
    Signal.SCHEDULE: lambda row, said: only("window_left_s" in said, ""),
    Signal.PLANNER: _planner,
    Signal.WAKE: _wake,
}


# --- stages


def _unknown(row: Row, said: Said) -> None:
    whys = ("max_wait_s", "fleet_age_s", "prompt_left_s", "reporting", "gateway_silent_s")
    assert len(said.keys() & {*whys, "none_known", "none_ready", "no_signal"}) == 1
    assert {"keeps", "after"} <= said.keys()
    assert ("max_wait_s" in said) == (row.stage(Stage.UNKNOWN) < row.stage(Stage.DEMAND))
    if "max_wait_s" in said:
        assert row.decision.recommender[row.row] == Recommender.WARMING_UP
        assert math.isnan(row.recommended(Signal.PLANNER))
        assert not row.queue_wait_s > row.max_wait_s
    if "reporting" in said:
        assert "ready" in said and row.reporting < row.ready


def _burst(row: Row, said: Said) -> None:
    grows = row.stage(Stage.BURST) > row.stage(Stage.UNKNOWN)
    assert said.keys() == {"takes", "cold_start_s", "queue_wait_s" if grows else "max_wait_s", "after"}
    if grows:
        assert row.queue_wait_s > row.max_wait_s
    else:
        assert row.waiting > 0 or row.gateway_waiting > 0


def _tolerance(row: Row, said: Said) -> None:
    if "scheduled" not in said:
        current = row.replicas
        assert said.keys() == {"before", "tolerance", "after"}
        assert row.stage(Stage.TOLERANCE) == current
        assert abs(row.stage(Stage.BURST) - current) <= row.tolerance * current + 1e-6


def _stabilization(row: Row, said: Said) -> None:
    before, after = row.stage(Stage.TOLERANCE), row.stage(Stage.STABILIZATION)
    if "scheduled" in said:
        return
    if "in_use" not in said:
        assert ("up_stabilization_s" in said) == (after < before)
        assert after < before or len(said.keys() & {"cold_start_window_s", "kept_window_s"}) == 1
        assert ("kept_for_s" in said) == (after > before and row.kept_for_s > 0)
    assert "after" in said


def _idle(row: Row, said: Said) -> None:
    if "timeout" in said:
        assert "idle_after_s" in said
        return
    assert (row.stage(Stage.STABILIZATION), row.stage(Stage.IDLE)) == (0, 1)
    whys = {"never_idle", "no_gateway", "no_timeout", "gateway_silent_s", "idle_after_s"}
    assert "one" in said and len(said.keys() & whys) == 1
    exactly(row, said, "never_idle")
    assert "idle_after_s" not in said or not row.idle_s >= row.idle_after_s


def _way(row: Row) -> str:
    return "up" if row.at is Stage.RATE_LIMIT and row.stage(Stage.RATE_LIMIT) < row.stage(Stage.IDLE) else "down"


def _rate_limit(row: Row, said: Said) -> None:
    if "scheduled" not in said:
        assert said.keys() == {"way", "period_s", "after"}
        assert not all(math.isnan(row.spec(f"{_way(row)}_step_{kind}")) for kind in ("fraction", "replicas"))


def _bounds(row: Row, said: Said) -> None:
    after = row.stage(Stage.BOUNDS)
    if "bound" in said:
        assert after == row.spec("min_replicas" if said["bound"] == "minimum" else "max_replicas")
        assert "after" in said
    else:
        assert said.keys() == {"max_replicas", "way", "period_s", "after"}
        assert row.max_replicas < after < row.stage(Stage.RATE_LIMIT)


def _pair(row: Row, said: Said) -> None:
    assert {"role", "partner", "partner_replicas", "after"} <= said.keys()
    assert row.at is not Stage.PAIR or row.stage(Stage.PAIR) > row.stage(Stage.BOUNDS)
    exactly(row, said, "leaves")
    if "leaves" not in said:
        exactly(row, said, "least_decode", "most_decode")


def _decode_limits(row: Row, column: str) -> list[float]:
    return [side.spec(f"{column}_decode_per_prefill") for side in (row, row.partner)]


def _spot_floors(row: Row) -> FloatColumn:
    """Return the floors that the variants of a service state; none where no variant is known to be on spot nodes."""
    variants = row.inp.variants
    floors = row.inp.spec.on_demand_floor[variants.service == variants.service[row.row]]
    return floors[~np.isnan(floors)] if variants.may_be_spot is not None else floors[:0]


def _variant(row: Row, said: Said) -> None:
    assert {"service", "after"} <= said.keys()
    exactly(row, said, "takes_over", "gives_up", "exchange", "on_demand_replicas")


def _guarantee(row: Row, said: Said) -> None:
    """Check who has guaranteed headroom and who pays for it: the ends of the sentence agree with the allocation."""
    spec, base, allocated = row.inp.spec, row.decision.base_replicas, row.decision.stages[Stage.ALLOCATION]
    rows = [workload.ref.label for workload in row.inp.fleet.workloads]
    names = said.get("paying", said.get("served_first", ListedNames((), 0)))
    assert len(said.keys() & {"paying", "headroom_replicas", "headroom_share"}) in (0, 3)
    for other in map(rows.index, names.named):
        assert row.inp.fleet.pool[other] == row.inp.fleet.pool[row.row]
        high, low = (row.row, other) if "paying" in said else (other, row.row)
        assert spec.priority[high] > spec.priority[low] and spec.headroom_share[high] > 0
        assert allocated[high] > max(base[high], spec.min_replicas[high])
        assert allocated[low] < base[low] and spec.can_wait(row.decision.observation.cold_start_s)[low]


def _allocation(row: Row, said: Said) -> None:
    after, before, fleet = row.stage(Stage.ALLOCATION), row.stage(Stage.SLEEP), row.inp.fleet
    if "quota" in said:
        _quota(row, said)
    if "held_because" in said:
        assert after > row.stage(Stage.VARIANT) and "after" in said
        return
    assert after < before
    kinds = said.keys() & {"nowhere", "halted", "fits", "quota", "pool", "pools"}
    assert (len(kinds) == 1 and "before" in said) or kinds == {"halted"}
    assert ("after" in said) == ("fits" not in said or after > said["fits"])
    assert "fits" not in said or said["fits"] < before
    if kinds & {"quota", "pool", "pools"} and "unstarted" not in said:
        exactly(row, said, "headroom")
    if kinds & {"fits", "pool", "pools"} and "unstarted" not in said:
        assert said.get("grows", "") == fleet.pools[int(fleet.pool[row.row])].grows
    if "pool" in said:
        # One replica more would not fit, or it would and is not claimed.
        taking = np.where(np.isnan(row.decision.unfollowed_s), before_partners(row), fleet.replicas)
        allocated = np.nansum((taking * fleet.gpus_per_replica)[fleet.pool == fleet.pool[row.row]])
        is_full = allocated + fleet.gpus_per_replica[row.row] > said["pool_gpus"]
        assert is_full != ("unstarted" in said or "free_gpus" in said)
    if "pools" in said:
        names = [_name_pool(row, number) for number in range(len(fleet.pools))]
        named = [names.index(name) for name in said["pools"].named]
        assert int(fleet.pool[row.row]) in named
        assert said["shared_gpus"] == fleet.groups.gpus[fleet.groups.admitted[named].any(axis=0)].sum()
    _guarantee(row, said)


def _name_pool(row: Row, number: int) -> str:
    pool = row.inp.fleet.pools[number]
    return f"{pool.product or pool.resource}" + (f" ({pool.nodes})" if pool.nodes else "")


def before_partners(row: Row) -> FloatColumn:
    """Return the counts, with those of pairs as they were allocated before both sides were cut together."""
    allocated, partner = (row.decision.stages[stage] for stage in (Stage.ALLOCATION, Stage.PARTNER))
    return np.where(partner < allocated, allocated, row.decision.replicas)


def gpus_of(row: Row, tenants: list[int], quotas: Quotas, replicas: FloatColumn) -> float:
    return float(np.nansum((replicas * row.inp.fleet.gpus_per_replica)[np.isin(quotas.tenant, tenants)]))


def own_quota(row: Row) -> tuple[Quotas, int]:
    """Return the kind and the number of the quota of the workload. Each tenant has one of its own here."""
    (quotas,) = [quotas for quotas in row.inp.fleet.quotas if quotas.tenant[row.row] >= 0]
    (own,) = quotas.charged[int(quotas.tenant[row.row])].nonzero()[0].tolist()
    return quotas, own


def _of_quota(column: str) -> Callable[[Row], float]:
    return lambda row: float(getattr(own_quota(row)[0], column)[own_quota(row)[1]])


def _name_quotas(row: Row, numbers: list[int]) -> ListedNames:
    quotas = [own_quota(row)[0].quotas[number] for number in numbers]
    return ListedNames(tuple(f"{quota.source} {quota.flavor}".strip() for quota in quotas), 0)


def _cohort(row: Row) -> ListedNames:
    return ListedNames((f"cohort {own_quota(row)[0].quotas[own_quota(row)[1]].cohort}",), 0)


def _has_cohort(row: Row) -> bool:
    return bool(own_quota(row)[0].quotas[own_quota(row)[1]].cohort)


def _over(row: Row, replicas: FloatColumn) -> float:
    """Return the GPUs beyond its quota that this many replicas take."""
    quotas, own = own_quota(row)
    used = gpus_of(row, [int(quotas.tenant[row.row])], quotas, replicas) + quotas.used_by_others[own]
    return max(float(used - quotas.nominal[own]), 0.0)


def _in_cohort(row: Row, gains: FloatColumn) -> list[int]:
    """Return the quotas of the workload's cohort, or its own alone, whose tenants' replicas gain by these counts."""
    quotas, own = own_quota(row)
    linked = [
        number
        for number, quota in enumerate(quotas.quotas)
        if number == own or (quota.cohort and quota.cohort == quotas.quotas[own].cohort)
    ]
    tenant = {number: int(quotas.charged[:, number].argmax()) for number in linked}
    return [number for number in linked if gpus_of(row, [tenant[number]], quotas, gains) > 0]


def _takers(row: Row) -> ListedNames:
    gains = row.decision.replicas - row.inp.fleet.replicas
    return _name_quotas(row, [quota for quota in _in_cohort(row, gains) if quota != own_quota(row)[1]])


def _leaving(row: Row) -> FloatColumn:
    """Return the replicas of other workloads that drain or are to leave."""
    leaving = row.decision.observation.terminating + np.fmax(row.inp.fleet.replicas - row.decision.replicas, 0.0)
    return np.where(np.arange(len(leaving)) == row.row, 0.0, leaving)


def _returning_gpus(row: Row) -> float:
    quotas, lenders = own_quota(row)[0], _in_cohort(row, _leaving(row))
    tenants = [int(quotas.charged[:, number].argmax()) for number in lenders]
    waiting = row.desired - row.ready - row.asleep - row.starting
    return min(gpus_of(row, tenants, quotas, _leaving(row)), waiting * row.inp.fleet.gpus_per_replica[row.row])


def _drain_s(row: Row) -> float:
    quotas, lenders = own_quota(row)[0], _in_cohort(row, _leaving(row))
    tenants = [int(quotas.charged[:, number].argmax()) for number in lenders]
    return float(row.inp.fleet.drain_s[np.isin(quotas.tenant, tenants) & (_leaving(row) > 0)].max())


def _quota(row: Row, said: Said) -> None:
    quotas, own = own_quota(row)
    assert {"nominal_gpus", "resource"} <= said.keys()
    exactly(row, said, "others_gpus", "borrowed_gpus", "lender")
    if "held_because" in said:
        return
    assert len(said.keys() & {"full_cohort", "borrowing_limit"}) == _has_cohort(row)
    allocated = gpus_of(row, [int(quotas.tenant[row.row])], quotas, before_partners(row))
    allocated += quotas.used_by_others[own] + row.inp.fleet.gpus_per_replica[row.row]
    if "full_cohort" not in said:
        assert allocated > quotas.nominal[own] + (quotas.borrowing_limit[own] if _has_cohort(row) else 0.0)


def nowhere(row: Row) -> bool:
    """Return whether no group of nodes admits a replica, and no autoscaler is known to create one."""
    fleet = row.inp.fleet
    own = int(fleet.pool[row.row])
    if own < 0 or not fleet.groups.groups or fleet.groups.admitted[own].any():
        return False
    causes = fleet.pod_pending[(fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating]
    return bool((causes == PendingCause.NO_NODE).any()) or not (fleet.groups.can_add > 0).any()


def _owned_left_s(row: Row) -> float:
    foreign = row.inp.fleet.foreign
    return math.nan if foreign is None else float(foreign.owned_until_s[row.row]) - row.inp.now_s


def _owner(row: Row, said: Said) -> None:
    assert len(said.keys() & {"owner", "paused", "held_because", "hpa_refuses", "refuses"}) == 1
    assert "held_because" not in said or "after" in said
    if said.keys() & {"owner", "paused"}:
        assert row.desired == row.replicas
    if "owner" in said:
        exactly(row, said, "for_ever")
    _refused(row, said)


def _refused(row: Row, said: Said) -> None:
    if "refuses" in said:
        assert "refused_replicas" in said
        exactly(row, said, "retry_in_s")
    if said.keys() & {"refuses", "hpa_refuses", "missing_pods", "absent_pods"}:
        exactly(row, said, "message")


STAGES: dict[Stage, Callable[[Row, Said], None]] = {
    Stage.UNKNOWN: _unknown,
    Stage.BURST: _burst,
    Stage.TOLERANCE: _tolerance,
    Stage.STABILIZATION: _stabilization,
    Stage.IDLE: _idle,
    Stage.RATE_LIMIT: _rate_limit,
    Stage.BOUNDS: _bounds,
    Stage.PAIR: _pair,
    Stage.VARIANT: _variant,
    Stage.EXCHANGE: _variant,
    Stage.SLEEP: lambda row, said: only(said.keys() == {"kept_asleep", "after"}, ""),
    Stage.ALLOCATION: _allocation,
    Stage.PARTNER: _pair,
    Stage.OWNER: _owner,
}


# --- pods that do not serve, and other clauses


def _others(row: Row, said: Said) -> None:
    """Assert that every group of pods that does not serve has its claims, and every other clause all of them."""
    exactly(row, said, "missing_pods", "stuck", "queue_outliers", "uncounted_requests", "metrics_age_s")
    exactly(row, said, "asleep", "waking")
    assert not row.queue_outliers > row.reporting / 2
    if "no_work" in said:
        assert {"idle_after_s", "whose"} <= said.keys()
        assert row.idle_s >= row.idle_after_s
        assert row.desired == row.stage(Stage.IDLE) == 0
    if "holder" in said:
        assert row.stage(Stage.OWNER) == row.stage(Stage.PARTNER) == row.replicas
        exactly(row, said, "for_ever")
    if "reset_by" in said:
        assert {"reset_from", "reset_to"} <= said.keys()
        exactly(row, said, "undone")
    if "stuck" in said:
        assert {"reporting", "stuck_requests", "stuck_s"} <= said.keys()
        assert len(said.keys() & {"another", "stand_in", "no_other"}) == 1
    if "queue_outliers" in said:
        assert {"queue_outlier_s", "queue_outlier_requests"} <= said.keys()
    if "waking" in said:
        assert "wake_s" in said
    _refused(row, said)


def _late_pods(row: Row) -> np.ndarray:
    return np.flatnonzero(row.decision.starts.pod_late & (row.inp.fleet.pod_workload == row.row))


def _latest(column: str) -> Callable[[Row], float]:
    """Read a column of the pod that is the longest in a phase for which it is late."""
    starts = lambda row: row.decision.starts  # noqa: E731
    return lambda row: float(
        getattr(starts(row), column)[max(_late_pods(row), key=lambda pod: starts(row).pod_phase_s[pod])]
    )


def _absent(row: Row, groups: list[Value]) -> None:
    """Assert that the pods that cannot start are told by cause. groups: their numbers and causes in turn."""
    fleet = row.inp.fleet
    pods = (fleet.pod_workload == row.row) & ~fleet.pod_ready & ~fleet.pod_terminating
    causes = [why for why in PendingCause if why not in (PendingCause.NONE, PendingCause.NODE_COMING)]
    expected = Counter({why.name: int(np.sum(fleet.pod_pending[pods] == why)) for why in causes})
    expected["NONE"] = round(or_zero(row.pending)) - sum(expected.values())
    beyond = row.count_pods(~fleet.pod_terminating) - (0.0 if nowhere(row) else float(fleet.obstacles.fits[row.row]))
    for why in ("UNSCHEDULABLE", "NO_NODE"):
        moved = int(min(expected[why], max(beyond - expected["IMPOSSIBLE"], 0.0)))
        expected[why] -= moved
        expected["IMPOSSIBLE"] += moved
    assert Counter(dict(zip(groups[1::2], groups[::2], strict=True))) == +expected


def _age_s(row: Row) -> float:
    age_s = row.age_s
    if row.signal is Signal.PLANNER:
        age_s = float(np.fmax(age_s, row.inp.now_s - row.last_updated_s))
    return max(age_s, 0.0) if not math.isnan(age_s) else age_s


def _retry_in_s(row: Row) -> float:
    return float(row.inp.fleet.obstacles.retry_at_s[row.row] - row.inp.now_s)


def _node_pods(row: Row) -> float:
    fleet = row.inp.fleet
    is_coming = (fleet.pod_pending == PendingCause.NODE_COMING) & ~fleet.pod_ready & ~fleet.pod_terminating
    return min(row.count_pods(is_coming), row.starting)


VALUES: dict[str, Callable[[Row], Value]] = {
    "current": lambda row: float(row.inp.fleet.present_replicas[row.row]),
    "desired": lambda row: row.desired,
    "direction": lambda row: "up" if row.desired > row.inp.fleet.present_replicas[row.row] else "down",
    "metrics_age_s": _age_s,
    # signals
    "signal": lambda row: SUBJECTS[row.signal][0],
    "recommended": lambda row: float(np.nanmax(row.decision.recommendations[:, row.row])),
    "overruled": lambda row: row.recommended(Signal.PLANNER),
    "longest_wait_s": lambda row: row.queue_wait_s,
    "rate": lambda row: getattr(row, RATES[row.signal][0]),
    "kind": lambda row: RATES[row.signal][1],
    "draining_rate": lambda row: getattr(row, f"draining_{RATES[row.signal][0]}"),
    "pods": _not_serving,
    "each": lambda row: row.capacity(SUBJECTS[row.signal][2]),
    "unit": lambda row: SUBJECTS[row.signal][1],
    "read_from": lambda row: row.reporting,
    "serving": lambda row: row.ready - row.newly_ready,
    "asleep_on_top": lambda row: row.asleep,
    "stuck_on_top": lambda row: row.stuck_replaced,
    "stuck_beside": lambda row: row.stuck,
    "quantile_s": lambda row: getattr(row, f"{row.signal.name.lower()}_s"),
    "objective_s": lambda row: row.spec(f"{row.signal.name.lower()}_objective_s"),
    "rate_window_s": lambda row: 30.0,
    "window_left_s": _schedule_end,
    "chance_left_s": lambda row: min(2 * row.cold_start_s + 120, 1800) - row.stuck_s,
    "come": _comes,
    "missing": lambda row: "ready" if row.ready == 0 else only(row.reporting == 0, "awake"),
    # the planner
    "idle_replicas": lambda row: row.recommended(Signal.PLANNER) - row.planned,
    "strategy_replicas": lambda row: only(not _as_planned(row), row.strategy_replicas),
    "lower_over_s": lambda row: only(row.planned < _busy(row), row.strategy.average_s),
    "constant_replicas": _constant,
    "peak_expires_in_s": lambda row: only(_exceeds_load(row) and row.peak_expires_in_s >= 0, row.peak_expires_in_s),
    "warm_up_left_s": lambda row: only(
        _exceeds_load(row) and row.observed_s < row.warm_up_s and row.planned <= row.initial_fleet,
        row.warm_up_s - row.observed_s,
    ),
    "peaked_over_s": lambda row: only(_exceeds_load(row) and math.isnan(row.peak_expires_in_s), row.strategy.average_s),
    "hold_cold_starts": lambda row: row.strategy.hold,
    "surge_counts_s": lambda row: only(row.surge_counts_s < row.observed_s, row.surge_counts_s),
    "surge_lasts_s": lambda row: only(row.surge_counts_s >= row.observed_s, row.observed_s),
    "seasonal_load": _seasonal,
    "ago": lambda row: "a week" if not row.day_ago_load >= or_zero(row.week_ago_load) else "a day",
    "margin_fraction": lambda row: only(_exceeds_load(row), row.strategy.margin_share),
    "margin_roots": lambda row: only(_exceeds_load(row), row.strategy.margin_roots),
    "budget_fraction": lambda row: row.budget,
    "budget_window_s": lambda row: row.window_s,
    "seen_window_s": lambda row: only(row.observed_s >= row.window_s, row.window_s),
    "predicted_fraction": _predicted,
    "unavoidable_fraction": _unavoidable,
    "allowed_fraction": _allowed,
    "allows": lambda row: "so it now allows" if _allowed(row) < row.budget - 1e-12 else "and it still allows",
    # stages
    "before": lambda row: row.stage(row.at - 1),
    "after": lambda row: row.stage(row.at),
    "keeps": lambda row: "stays at" if row.stage(row.at) == row.replicas else "goes no further than",
    "fleet_age_s": lambda row: only(
        row.inp.now_s - row.inp.fleet.time_s > min(20.0, row.max_input_age_s),
        row.inp.now_s - row.inp.fleet.time_s,
    ),
    "gateway_silent_s": lambda row: only(row.gateway_silent_s > row.max_input_age_s, row.gateway_silent_s),
    "prompt_left_s": lambda row: 180.0 - row.stuck_s,
    "takes": lambda row: "takes" if row.decision.starts.seen[row.row] > 0 else "is assumed to take",
    "cold_start_window_s": lambda row: only(
        Recommender(int(row.decision.recommender[row.row])).plans and row.kept_window_s == row.cold_start_s,
        row.cold_start_s,
    ),
    "scheduled": lambda row: only(row.at in PRE_WARM_STAGES, row.recommended(Signal.SCHEDULE)),
    "idle_left_s": lambda row: only(row.idle_s > 0, row.idle_after_s - row.idle_s),
    "way": _way,
    "period_s": lambda row: row.spec(f"{_way(row)}_period_s"),
    "bound": lambda row: "minimum" if row.stage(Stage.BOUNDS) > row.stage(Stage.RATE_LIMIT) else "maximum",
    "role": lambda row: row.inp.fleet.workloads[row.partner.row].role,
    "partner": lambda row: row.inp.fleet.workloads[row.partner.row].ref.name,
    "partner_replicas": lambda row: row.partner.stage(row.at),
    "least_decode": lambda row: float(np.fmax.reduce(_decode_limits(row, "min"))),
    "most_decode": lambda row: float(
        np.fmax(np.fmin.reduce(_decode_limits(row, "max")), np.fmax.reduce(_decode_limits(row, "min")))
    ),
    "service": lambda row: row.inp.fleet.workloads[row.row].service,
    "on_demand_replicas": lambda row: float(_spot_floors(row).max()),
    "kept_asleep": lambda row: row.stage(Stage.SLEEP) - row.stage(Stage.EXCHANGE),
    "held_because": lambda row: row.inp.fleet.hpa_limits.reason[row.row],
    "fits": lambda row: float(row.inp.fleet.obstacles.fits[row.row]),
    "grows": lambda row: row.inp.fleet.pools[int(row.inp.fleet.pool[row.row])].grows,
    "pool": lambda row: _name_pool(row, int(row.inp.fleet.pool[row.row])),
    "pool_gpus": lambda row: float(row.inp.fleet.pool_gpus[row.inp.fleet.pool[row.row]]),
    "free_gpus": lambda row: float(row.inp.fleet.gpus_per_replica[row.row]),
    "headroom_replicas": lambda row: row.stage(Stage.ALLOCATION) - max(row.base_replicas, row.min_replicas),
    "nominal_gpus": _of_quota("nominal"),
    "others_gpus": _of_quota("used_by_others"),
    "borrowing_limit": _of_quota("borrowing_limit"),
    "resource": lambda row: own_quota(row)[0].quotas[own_quota(row)[1]].resource,
    "quota": lambda row: _name_quotas(row, [own_quota(row)[1]]),
    "lender": _cohort,
    "full_cohort": _cohort,
    "borrowed_gpus": lambda row: _over(row, row.decision.replicas),
    "given_back_gpus": lambda row: _over(row, row.inp.fleet.replicas) - _over(row, row.decision.replicas),
    "takers": _takers,
    "owner": lambda row: row.inp.fleet.other_owner[row.row],
    "holder": lambda row: row.inp.fleet.other_owner[row.row],
    "owned_left_s": _owned_left_s,
    # other clauses
    "no_work": lambda row: "there was no work" if row.ready > 0 else "no request waited at the gateway",
    "whose": lambda row: (
        "of the policy" if math.isfinite(row.spec("idle_after_s")) else "the shortest that the error budget allows"
    ),
    "reset_by": lambda row: row.inp.fleet.foreign.reset_by[row.row] or "an update that left the count out",
    "reset_from": lambda row: float(row.inp.fleet.replicas[row.row]),
    "reset_to": lambda row: float(row.inp.fleet.foreign.reset_to[row.row]),
    "refuses": lambda row: "refuses" if _retry_in_s(row) > 0 else "last refused",
    "refused_replicas": lambda row: float(row.inp.fleet.obstacles.refused_replicas[row.row]),
    "retry_in_s": _retry_in_s,
    "message": lambda row: row.inp.fleet.obstacles.messages[row.row],
    "stuck_phase": lambda row: Phase(int(_latest("pod_phase")(row))).published,
    "stuck_phase_s": _latest("pod_phase_s"),
    "usual_phase_s": _latest("pod_usual_s"),
    "node_pods": _node_pods,
    "waking": lambda row: row.count_pods(row.decision.sleep_orders.wake),
    "not_woken": lambda row: row.asleep - row.wakeable,
    "falling_asleep": lambda row: row.count_pods(row.decision.sleep_orders.sleep & ~row.decision.sleep_orders.asleep),
    "returning_gpus": _returning_gpus,
    "lenders": lambda row: _name_quotas(row, _in_cohort(row, _leaving(row))),
    "drain_s": _drain_s,
    "uncounted_requests": lambda row: row.gateway_waiting,
}
"""What a claim tells that is no column, by name."""

WHEN: dict[str, Callable[[Row], bool]] = {
    # signals
    "idle": lambda row: (
        or_zero(row.running) == or_zero(row.waiting) == 0
        and not row.draining_requests > 0
        and (row.signal is Signal.PLANNER or _at_gateway(row) == 0)
    ),
    "read_from": lambda row: row.reporting < row.ready - row.newly_ready,
    "serving": lambda row: row.reporting < row.ready - row.newly_ready,
    "asleep_on_top": lambda row: row.asleep > 0,
    "stuck_on_top": lambda row: row.stuck_replaced > 0,
    "target_usage": lambda row: row.target_usage < 1,
    "assumed": _is_assumed,
    "queue_wait_s": lambda row: row.queue_wait_s > 0,
    "no_answer": lambda row: row.waiting > 0 and math.isnan(row.queue_wait_s) and not row.output_tokens > 0,
    "no_speed": lambda row: row.waiting > 0 and math.isnan(row.queue_wait_s) and row.output_tokens > 0,
    "gateway_waiting": lambda row: _at_gateway(row) > 0,
    "draining_requests": lambda row: row.draining_requests > 0,
    # the planner
    "idle_replicas": lambda row: row.recommended(Signal.PLANNER) > row.planned,
    "too_late": lambda row: row.planned > row.strategy_replicas,
    "most": lambda row: row.planned == row.max_replicas and _of(row, _busy(row)) > row.planned,
    "least": lambda row: row.planned == row.min_replicas,
    "beyond": _is_cut,
    "surges": lambda row: row.surges > 1,
    "so_far": lambda row: not row.observed_s > 0,
    "both": _is_within,
    "missed_so_far": lambda row: row.missed_fraction > row.budget,
    "predicted_to_miss": lambda row: _predicted(row) > row.budget and _as_planned(row),
    "no_prediction": lambda row: math.isnan(_predicted(row)) or not _as_planned(row),
    "none_counted": lambda row: math.isnan(row.missed_fraction),
    "unavoidable_fraction": lambda row: _unavoidable(row) > row.budget,
    "allowed_fraction": lambda row: not _unavoidable(row) > row.budget and not math.isnan(row.allowed_fraction),
    # stages
    "none_known": lambda row: row.replicas == 0 and not row.gateway_waiting > 0,
    "none_ready": lambda row: row.ready == 0,
    "no_signal": lambda row: (
        math.isnan(row.recommended(Signal.CONCURRENCY)) and math.isnan(row.recommended(Signal.PLANNER))
    ),
    "in_use": lambda row: (
        row.stage(Stage.TOLERANCE) < row.stage(Stage.STABILIZATION) <= row.inp.fleet.replicas[row.row]
        and (row.running > 0 or row.draining_requests > 0)
    ),
    "timeout": lambda row: (
        row.idle_s >= row.idle_after_s and row.ready == row.gateway_waiting == row.stage(Stage.IDLE) == 0
    ),
    "one": lambda row: row.stage(Stage.IDLE) == 1,
    "never_idle": lambda row: math.isnan(row.spec("idle_after_s")),
    "no_gateway": lambda row: math.isinf(row.spec("idle_after_s")) and math.isnan(row.gateway_waiting),
    "no_timeout": lambda row: math.isinf(row.spec("idle_after_s")) and math.isnan(row.idle_after_s),
    "leaves": lambda row: row.at is Stage.PARTNER and row.stage(Stage.PARTNER) > row.stage(Stage.ALLOCATION),
    "least_decode": lambda row: not np.isnan(_decode_limits(row, "min")).all(),
    "most_decode": lambda row: not np.isnan(_decode_limits(row, "max")).all(),
    "takes_over": lambda row: row.at is Stage.VARIANT and row.stage(Stage.VARIANT) > row.stage(Stage.BOUNDS),
    "gives_up": lambda row: row.at is Stage.VARIANT and row.stage(Stage.VARIANT) < row.stage(Stage.BOUNDS),
    "exchange": lambda row: row.at is Stage.EXCHANGE and row.stage(Stage.EXCHANGE) > row.stage(Stage.VARIANT),
    "on_demand_replicas": lambda row: len(_spot_floors(row)) > 0,
    "nowhere": nowhere,
    "halted": lambda row: (
        row.stage(Stage.ALLOCATION) == row.replicas < row.stage(Stage.VARIANT)
        and (row.missing_pods > 0 or row.pending > 0)
    ),
    "headroom": lambda row: row.stage(Stage.ALLOCATION) >= row.base_replicas,
    "unstarted": lambda row: True,  # checked with the GPUs of the pool
    "others_gpus": lambda row: own_quota(row)[0].used_by_others[own_quota(row)[1]] > 0,
    "borrowed_gpus": lambda row: _has_cohort(row) and _over(row, row.decision.replicas) > 0,
    "lender": lambda row: _has_cohort(row) and _over(row, row.decision.replicas) > 0,
    "paused": lambda row: row.inp.fleet.paused[row.row],
    "for_ever": lambda row: _owned_left_s(row) == math.inf,
    "hpa_refuses": lambda row: math.isinf(row.inp.fleet.obstacles.refused_replicas[row.row]),
    "retry_in_s": lambda row: _retry_in_s(row) > 0,
    "message": lambda row: bool(row.inp.fleet.obstacles.messages[row.row]),
    # other clauses
    "undone": lambda row: row.desired > row.inp.fleet.foreign.reset_to[row.row],
    "missing_pods": lambda row: row.missing_pods > 0,
    "endless": lambda row: not len(_late_pods(row)),
    "asleep": lambda row: row.asleep > 0,
    "waking": lambda row: row.count_pods(row.decision.sleep_orders.wake) > 0,
    "stuck": lambda row: row.stuck > 0,
    "another": lambda row: row.stuck_replaced == row.stuck,
    "stand_in": lambda row: row.stuck_min_replicas == row.stuck + 1,
    "no_other": lambda row: row.stuck_replaced == 0 and math.isnan(row.stuck_min_replicas),
    "queue_outliers": lambda row: row.queue_outliers > 0,
    "uncounted_requests": lambda row: row.gateway_stuck > 0,
    "metrics_age_s": lambda row: not math.isnan(_age_s(row)),
}
"""When words without a value hold, and when a claim is due, by name."""
