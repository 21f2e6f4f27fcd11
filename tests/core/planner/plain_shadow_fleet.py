"""One shadow fleet in plain Python: the slow second source for `autoscaler.core.planner.shadow_fleets`.

It keeps every held peak and looks back, where the product keeps a few spans. It expects one reading per update, and a
cold start of at most as many updates as there are spans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from autoscaler.core.measure import miss_curve
from autoscaler.core.measure.capacity import SPARE_ROOTS
from autoscaler.core.measure.interval import MAX_QUEUE_SHARE
from autoscaler.core.measure.miss_curve import MAX_UTILIZATION
from autoscaler.core.planner import strategies
from autoscaler.core.planner.select import StrategyState
from autoscaler.core.planner.shadow_fleets import FADE_S, REAL_FLEET_S
from autoscaler.core.planner.strategies import ROUNDING_TOLERANCE, STRATEGIES, UPDATE_INTERVAL_S


@dataclass
class PlainShadowFleet:
    """A fleet that follows one strategy and serves the demand that was measured."""

    strategy: int
    cold_start_s: float
    first_token_limit_s: float
    floor: float
    ceiling: float
    kept_asleep: float = 0.0
    wake_s: float = 0.0
    observed_s: float = 0.0
    initial_fleet: float = 0.0  # replicas that served when demand was first known
    kept: float = 0.0  # replicas that it does not give up yet
    backlog: float = 0.0  # replica-seconds
    cost: float = 0.0  # replica-seconds
    queue_missed: float = 0.0  # requests that missed in the queue
    queue_sum: float = 0.0  # the other requests, each times the mean queue at its load
    missed: float = 0.0  # requests
    demands: list[float] = field(default_factory=list)
    averages: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)

    def update(self, after: StrategyState, arrivals: float, replicas: float, batch_room_s: float = 0.0) -> None:
        """Serve the interval that ended in `after`, in which `replicas` really served.

        batch_room_s: work that a replica takes in before requests wait. An interval of unknown demand costs nothing,
        and nothing is known of the queue after it.
        """
        demand = float(after.offered_load.demand[0])
        if math.isnan(demand):
            self.backlog = 0.0
            if not self.averages:
                return
        elif self.peaks:
            self._serve(demand, arrivals, after, replicas, batch_room_s)
        average_s, hold = STRATEGIES[self.strategy].average_s, STRATEGIES[self.strategy].hold
        self.demands += [] if math.isnan(demand) else [demand]
        self.averages.append(self._average(average_s))
        self.initial_fleet = self.initial_fleet or replicas
        self.peaks.append(max(self.averages[-1 - hold * self._cold_start_updates() :]))
        is_warming_up = self.observed_s < strategies.LONGEST_HOLD * self.cold_start_s
        self.kept = max(self.floor, self.initial_fleet) if is_warming_up else self.floor

    def compute_replicas(self, peak: float, floor: float | None = None) -> float:
        _, share, roots, count = STRATEGIES[self.strategy]
        busy = peak + share * peak + roots * math.sqrt(peak)
        least = max(self.kept if floor is None else floor, count)
        carrying = min(busy / MAX_UTILIZATION, (SPARE_ROOTS / 2 + math.sqrt(SPARE_ROOTS**2 / 4 + busy)) ** 2)
        return min(max(math.ceil(carrying - ROUNDING_TOLERANCE), least), self.ceiling)

    def _average(self, over_s: float) -> float:
        """Return the mean of all demand so far, weighted by its age."""
        weights = [math.exp(-age * UPDATE_INTERVAL_S / over_s) for age in reversed(range(len(self.demands)))]
        return sum(w * d for w, d in zip(weights, self.demands, strict=True)) / sum(weights)

    def _cold_start_updates(self) -> int:
        return math.ceil(self.cold_start_s / UPDATE_INTERVAL_S)

    def _serve(
        self, demand: float, arrivals: float, after: StrategyState, replicas: float, batch_room_s: float
    ) -> None:
        floor = max(self.floor, replicas) if self.observed_s < REAL_FLEET_S else self.floor
        self.observed_s += UPDATE_INTERVAL_S
        lowest = min(self.peaks[-1 - self._cold_start_updates() :])  # replicas requested for a cold start are ready
        ready = self.compute_replicas(lowest, floor)
        wake_updates = max(math.ceil(self.wake_s / UPDATE_INTERVAL_S), 1)
        woken = self.compute_replicas(min(self.peaks[-1 - wake_updates :]), floor)
        ready = max(ready, min(woken, ready + self.kept_asleep))
        carried = max(MAX_UTILIZATION * ready, ready - SPARE_ROOTS * math.sqrt(ready))
        self.backlog = max(self.backlog + (demand - carried) * UPDATE_INTERVAL_S, 0.0)
        load = min(demand / ready, MAX_UTILIZATION)
        max_queue_s = MAX_QUEUE_SHARE * self.first_token_limit_s
        is_late = self.backlog > max_queue_s * carried + batch_room_s * ready
        fade = math.exp(-UPDATE_INTERVAL_S / FADE_S)
        self.queue_missed = self.queue_missed * fade + (arrivals if is_late else 0.0)
        self.queue_sum = self.queue_sum * fade + (0.0 if is_late else arrivals * load**2 / (1 - load))
        counts, no_prompts = after.miss_counts, np.zeros(1)
        unavoidable = miss_curve.estimate_unavoidable(counts.missed, counts.counted, no_prompts, no_prompts)
        steepness = float(miss_curve.fit_steepness(counts.missed, counts.counted, unavoidable)[0])
        self.missed = self.queue_missed + steepness * self.queue_sum
        self.cost = self.cost * fade + self.compute_replicas(self.peaks[-1]) * UPDATE_INTERVAL_S
