"""One rule on paper, in plain Python: the slow second source for `autoscaler.core.planner.shadow_fleets`.

It keeps all that it ever predicted and looks back, where the product keeps a few slots. Readings come as often as rules
are judged, and a cold start takes at most as many of them as there are slots.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autoscaler.core.planner import miss_curve, strategies
from autoscaler.core.planner.interval import TOLERATED
from autoscaler.core.planner.select import Rules
from autoscaler.core.planner.shadow_fleets import FADE_S, SETTLED_S
from autoscaler.core.planner.strategies import EVERY_S, MOST_BUSY, NEARLY, describe


@dataclass
class Paper:
    """A fleet that follows one rule, and lives through the demand that was measured."""

    rule: int
    cold_start_s: float
    ttft_objective_s: float
    floor: float
    ceiling: float
    watched_s: float = 0.0
    found: float = 0.0  # replicas that served when its demand was first known
    kept: float = 0.0  # of which so many are not given up yet
    backlog: float = 0.0  # replica-seconds
    cost: float = 0.0  # likewise
    queued: float = 0.0  # requests that missed in the queue
    loaded: list[float] = field(default_factory=lambda: [0.0] * miss_curve.BINS)  # the others, by load
    missed: float = 0.0  # requests
    demands: list[float] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)

    def live(self, after: Rules, arrived: float, replicas: float, room_s: float = 0.0) -> None:
        """Live through the step that ended in `after`, in which so many replicas really served.

        room_s: work that a replica takes up before requests wait.

        One whose demand is not known costs nothing, and nobody knows what waits after it.
        """
        demand = float(after.traffic.demand[0])
        if math.isnan(demand):
            self.backlog = 0.0
            if not self.levels:
                return
        elif self.predicted:
            self._serve(demand, arrived, after, replicas, room_s)
        level_s, hold, *_ = describe(self.rule)
        self.demands += [] if math.isnan(demand) else [demand]
        self.levels.append(self._mean(level_s))
        self.found = self.found or replicas
        self.predicted.append(max(self.levels[-1 - hold * self._reach() :]))
        young = self.watched_s < max(1200.0, strategies.LONGEST_HOLD * self.cold_start_s)
        self.kept = max(self.floor, self.found) if young else self.floor

    def asked(self, predicted: float, floor: float | None = None) -> float:
        _, _, share, root, count = describe(self.rule)
        wanted = predicted + share * predicted + root * math.sqrt(predicted)
        least = max(self.kept if floor is None else floor, count)
        return min(max(math.ceil(wanted / MOST_BUSY - NEARLY), least), self.ceiling)

    def _mean(self, over_s: float) -> float:
        """Demand so far, a mean in which a moment weighs less the older it is."""
        weights = [math.exp(-age * EVERY_S / over_s) for age in reversed(range(len(self.demands)))]
        return sum(w * d for w, d in zip(weights, self.demands, strict=True)) / sum(weights)

    def _reach(self) -> int:
        return math.ceil(self.cold_start_s / EVERY_S)

    def _serve(self, demand: float, arrived: float, after: Rules, replicas: float, room_s: float) -> None:
        floor = max(self.floor, replicas) if self.watched_s < SETTLED_S else self.floor
        self.watched_s += EVERY_S
        all_the_while = min(self.predicted[-1 - self._reach() :])  # what was asked for so long has come
        ready = self.asked(all_the_while, floor)
        self.backlog = max(self.backlog + (demand - MOST_BUSY * ready) * EVERY_S, 0.0)
        place = min(int(demand / ready * miss_curve.BINS), miss_curve.BINS - 1)
        waits = self.backlog > (TOLERATED * self.ttft_objective_s * MOST_BUSY + room_s) * ready
        fade = math.exp(-EVERY_S / FADE_S)
        self.queued = self.queued * fade + (arrived if waits else 0.0)
        self.loaded = [requests * fade for requests in self.loaded]
        self.loaded[place] += 0.0 if waits else arrived
        counts = after.loads.missed, after.loads.seen, after.loads.prefill_late, after.loads.prefill_judged
        shares = miss_curve.by_load(*counts)[0][:, 0].tolist()
        self.missed = self.queued + sum(n * share for n, share in zip(self.loaded, shares, strict=True))
        self.cost = self.cost * fade + self.asked(self.predicted[-1]) * EVERY_S
