"""The columns that need no rule of the user: what really happened, this policy, and the least constant count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoscaler.core.measure.interval import Interval, IntervalStats, WorkTotals
from autoscaler.core.measure.miss_curve import MissCounts
from autoscaler.core.measure.offered_load import OfferedLoad
from autoscaler.core.model.spec import Spec
from autoscaler.core.planner.scale_to_zero import IdleTimeouts, count_wake_ups, find_shortest_timeout
from autoscaler.core.planner.select import StrategyState, serve_interval
from autoscaler.core.table.columns import BoolColumn, FloatColumn, or_zero, replace
from autoscaler.report.fluid import Course, FleetView, FluidQueue, Reserve
from autoscaler.report.load import FleetLoad, Profiles

ACTUAL, POLICY, CONSTANT = "actual", "policy", "constant"


def actual(load: FleetLoad, profiles: Profiles) -> Course:
    """Return what really happened. Where no histogram shows misses, they are those of the model (`repeat_actual`)."""
    modelled = repeat_actual(load, profiles)
    measured = load.missed_share * load.arrivals
    has_histogram = ~np.isnan(load.missed_share).all(axis=0)
    missed = np.where(has_histogram, or_zero(measured), modelled.missed)
    everywhere = np.ones(load.shape[1], bool)
    return Course(ACTUAL, "as it was", load.ordered, load.pods, load.waiting, missed.astype(np.float32), everywhere)


def repeat_actual(load: FleetLoad, profiles: Profiles) -> Course:
    """Return what the model makes of the real counts. Compared with the real course it shows the error of the model."""
    steps, services = load.shape
    queue = FluidQueue(np.zeros(services))
    missed, waiting = np.zeros((2, steps, services), np.float32)
    for step in range(steps):
        ready = load.pods[step].astype(np.float64)
        missed[step] = queue.serve(
            load.demand[step].astype(np.float64), load.arrivals[step], ready, profiles, load.span.step_s
        )
        waiting[step] = queue.count_waiting(load.work_s[step], profiles)
    everywhere = np.ones(services, bool)
    return Course(ACTUAL, "as it was, by the model", load.ordered, load.pods, waiting, missed, everywhere)


class PolicyColumn:
    """This policy: the planner, started at the beginning of the span, with the speed of replicas known.

    It sees its own fleet: the misses of its own queue count against its error budget. With `idleAfter: auto` it goes to
    zero only where a gateway is known to hold requests.
    """

    name, title = POLICY, "this policy"

    def __init__(
        self,
        load: FleetLoad,
        profiles: Profiles,
        spec: Spec,
        past: IdleTimeouts | None = None,
        holds: BoolColumn | bool = False,
    ) -> None:
        """past: the wake-ups so far; None: none. holds: bool[W], a gateway holds requests at zero."""
        services = load.shape[1]
        self._rests_by_budget = np.isinf(spec.idle_after_s) & holds
        self._timeouts = past or IdleTimeouts.blank(services)
        self._load, self._profiles, self._spec = load, profiles, spec
        most = load.ordered.max(axis=0, initial=0.0)
        self._ceiling = np.fmax(np.fmax(spec.max_replicas, 1.0), most)  # a policy's ceiling may be below what ran
        self._floor = np.fmin(np.fmax(spec.min_replicas, 1.0), self._ceiling)
        none = MissCounts.blank(services)
        self._state = replace(
            StrategyState.blank(services),
            miss_counts=replace(none, unavoidable=profiles.unavoidable),
            first_token_limit_s=spec.first_token_limit_s,
            itl_objective_s=spec.itl_objective_s,
        )
        self._reserve = Reserve.of(spec)
        self._idle_s = np.zeros(services)
        self._period_s, self._at_begin = np.full(services, np.inf), np.zeros(services)  # of the limit on shrinkage
        self._waiting = np.zeros(services)

    def decide(self, view: FleetView) -> FloatColumn:
        return np.asarray(np.fmax(self._plan(view), self._window_floor(view.step)))

    def _window_floor(self, step: int) -> FloatColumn:
        """Return the replicas that open windows ask for; NaN: none."""
        floors = self._load.floors
        return np.full(len(self._ceiling), np.nan) if floors is None else np.minimum(floors[step], self._ceiling)

    def _plan(self, view: FleetView) -> FloatColumn:
        """Return the counts without pre-warm windows."""
        if view.step == 0:
            return view.wanted
        step = view.step - 1
        stats, interval = self._stats(view, step)
        work_s = self._load.work_s[step].astype(np.float64)
        known = ~np.isnan(work_s) & self._load.seen[step]
        demand = np.where(known, view.demand, np.nan)
        self._state = replace(self._state, offered_load=OfferedLoad(or_zero(work_s), 1.0 * known, demand))
        self._state = serve_interval(self._state, stats, interval, view.time_s)
        self._waiting = view.waiting
        wanted = np.where(np.isnan(self._state.replicas), view.wanted, self._state.replicas)
        wanted = np.where(known, wanted, np.fmax(wanted, view.wanted))  # missing data never shrinks
        return self._limit(self._rest(wanted, view, self._load.seen[step]), view)

    def _stats(self, view: FleetView, step: int) -> tuple[IntervalStats, Interval]:
        """Return what its own fleet would have shown of a step, and the load of it."""
        spec, p, services = self._spec, self._profiles, len(view.wanted)
        arrivals = view.arrivals_per_s * view.step_s
        missed = view.missed_share * arrivals
        totals = replace(
            WorkTotals.filled(services, 0.0),
            queue_growth=view.waiting - self._waiting,
            ttft_counted=arrivals,
            ttft_missed=missed,
        )
        stats = IntervalStats(
            totals=totals,
            replicas=view.ready,
            ordered=view.wanted,
            mean_replicas=view.ready,
            waiting=view.waiting,
            cold_start_s=p.cold_start_s,
            kept_asleep=self._reserve.replicas,
            wake_s=self._reserve.wake_s,
            first_token_limit_s=spec.first_token_limit_s,
            itl_objective_s=spec.itl_objective_s,
            budget_share=spec.error_budget,
            window_s=spec.budget_window_s,
            prefill=np.zeros(services, bool),
            floor=self._floor,
            window_floor=self._window_floor(step),
            ceiling=self._ceiling,
        )
        observed_s = np.where(self._load.seen[step] & (view.ready > 0), view.step_s, 0.0)
        return stats, Interval(observed_s, view.demand, arrivals, p.steepness, p.batch_room_s)

    def _rest(self, wanted: FloatColumn, view: FleetView, seen: BoolColumn) -> FloatColumn:
        """Go to zero after the idle time that the policy states, and come back with the first request."""
        is_idle = (view.arrivals_per_s <= 0) & (view.waiting <= 0) & seen
        before, self._idle_s = self._idle_s, np.where(is_idle, self._idle_s + view.step_s, 0.0)
        idle_after_s = self._spec.idle_after_s
        if self._rests_by_budget.any():
            idle_after_s = np.where(self._rests_by_budget, self._shortest_s(view, seen, before), idle_after_s)
        rests = np.isfinite(idle_after_s) & (self._idle_s >= idle_after_s)
        return np.where(rests, 0.0, np.fmax(wanted, self._floor))

    def _shortest_s(self, view: FleetView, seen: BoolColumn, rested_s: FloatColumn) -> FloatColumn:
        """Return the idle time that `auto` selects, as the planner does; float64[W], NaN: none."""
        start_s, step_s = self._profiles.cold_start_s, np.where(seen, view.step_s, 0.0)
        self._timeouts = count_wake_ups(self._timeouts, step_s, view.arrivals_per_s * step_s, rested_s, start_s)
        return find_shortest_timeout(self._timeouts, self._spec.attainment, start_s, self._idle_s)

    def _limit(self, wanted: FloatColumn, view: FleetView) -> FloatColumn:
        """Shrink in the steps that the policy allows, in periods that follow each other; float64[W]."""
        spec = self._spec
        begins = self._period_s >= spec.down_period_s
        self._period_s = np.where(begins, 0.0, self._period_s) + view.step_s
        self._at_begin = np.where(begins, view.wanted, np.fmax(self._at_begin, view.wanted))
        step = np.fmax(np.floor(self._at_begin * spec.down_step_fraction), spec.down_step_replicas)
        step = np.fmax(step, 1.0) * np.maximum(view.step_s / spec.down_period_s, 1.0)
        least = np.where(np.isnan(step) | (wanted == 0), 0.0, self._at_begin - np.floor(step))
        return np.asarray(np.minimum(np.maximum(wanted, least), self._ceiling))


def count_past_wake_ups(load: FleetLoad, profiles: Profiles) -> IdleTimeouts:
    """Count what each idle time would have cost over the span, as `idleAfter: auto` does."""
    found, rested_s = IdleTimeouts.blank(load.shape[1]), np.zeros(load.shape[1])
    for arrivals, seen in zip(load.arrivals, load.seen, strict=True):
        step_s, arrived = (np.where(seen, each, 0.0) for each in (load.span.step_s, arrivals))
        found = count_wake_ups(found, step_s, arrived, rested_s, profiles.cold_start_s)
        rested_s = np.where(seen & (arrived <= 0), rested_s + step_s, 0.0)
    return found


class ConstantColumn:
    """One count for the whole span."""

    name, title = CONSTANT, "least constant count"

    def __init__(self, counts: FloatColumn) -> None:
        self._counts = counts

    def decide(self, view: FleetView) -> FloatColumn:
        return self._counts


def find_constant_counts(
    load: FleetLoad, profiles: Profiles, attainment: FloatColumn, progress: Callable[[float], None] = lambda _: None
) -> FloatColumn:
    """Return the least constant count that keeps the attainment of each service; float64[W], NaN: none found.

    By bisection: more replicas never miss more. 0 where nothing ever arrived.
    """
    asked = load.arrivals.sum(axis=0, dtype=np.float64)
    peak = np.ceil(2 * load.demand.max(axis=0, initial=0.0)) + 2.0
    most = np.fmax(peak, load.ordered.max(axis=0, initial=0.0)).astype(np.float64)
    low, high = np.zeros_like(most), most.copy()
    enough = asked <= 0
    rounds = int(np.ceil(np.log2(max(most.max(initial=1.0), 2.0)))) + 1
    for number in range(rounds):
        middle = np.floor((low + high) / 2)
        missed = _missed_by(middle, load, profiles)
        met = missed <= (1 - attainment) * asked + 1e-9
        open_ = high - low > 1
        high, low = np.where(met & open_, middle, high), np.where(~met & open_, middle, low)
        progress((number + 1) / rounds)
    found = _missed_by(high, load, profiles) <= (1 - attainment) * asked + 1e-9
    return np.where(enough, 0.0, np.where(found, high, np.nan))


def _missed_by(counts: FloatColumn, load: FleetLoad, profiles: Profiles) -> FloatColumn:
    queue, total = FluidQueue(np.zeros_like(counts)), np.zeros_like(counts)
    for demand, arrivals in zip(load.demand, load.arrivals, strict=True):
        total += queue.serve(demand.astype(np.float64), arrivals, counts, profiles, load.span.step_s)
    return total
