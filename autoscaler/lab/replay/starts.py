"""How long replicas of a study take to start, and how the phases share that time.

A case says how long starts take on average; the phases of `engine.coldstart`, at their medians for the weights of the
profile, say only in which proportion. So a study with a mean of 60 s and the demo's cluster tell of the same phases.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.shared_gpus import Place
from autoscaler.sim.engine.coldstart import ColdStart, Start

SIGMAS = 3.0  # no start is drawn further from the usual one


def draw_pace(rng: np.random.Generator, spread: float) -> float:
    """Draw how long a start takes beside the mean: lognormal, 1 on average, cut at `SIGMAS` on both sides."""
    return math.exp(spread * min(max(rng.normal(), -SIGMAS), SIGMAS) - spread**2 / 2)


def least_pace(spread: float) -> float:
    """Return the shortest that `draw_pace` gives."""
    return math.exp(-spread * SIGMAS - spread**2 / 2)


class Starts:
    """The starts of one case. `pace` is how long one takes beside the mean: 1 is the mean, 0 serves at once."""

    def __init__(self, case: Case) -> None:
        self._model = case.trace.name
        self._weight_bytes = case.profile.weight_bytes
        self._devices = max(round(case.gpus_per_replica), 1)
        self._cached_s = case.cold_start_s
        self._shapes = {
            (fresh, cached): self._usual(fresh, cached)
            for fresh, cached in ((False, True), (False, False), (True, False))
        }
        self._mean_s = dict.fromkeys(self._shapes, case.cold_start_s)
        self._missing = not math.isnan(case.cold_start_uncached_s)
        if self._missing:
            # Weights alone take their share of what a node lacks that was never used.
            more_s = case.cold_start_uncached_s - case.cold_start_s
            least_s, most_s = self._shapes[False, True].ready_s, self._shapes[True, False].ready_s
            for key, shape in self._shapes.items():
                self._mean_s[key] = case.cold_start_s + more_s * (shape.ready_s - least_s) / (most_s - least_s)

    def at(self, place: Place, now_s: float, pace: float) -> Start:
        """Return the moments of the start of a replica that is placed now, and let its node know when it has what.

        Who comes to a node that is still fetching waits for the one who fetches: nobody is ready before that one. Who
        must fetch weights of its own begins with that once the node has the image.
        """
        if not self._missing:
            return self._shapes[False, True].lasting(self._cached_s * pace).after(now_s)
        key, node, model = (place.fresh, place.weights_cached), place.node, self._model
        start = self._shapes[key].lasting(self._mean_s[key] * pace).after(now_s)
        if place.fresh:
            node.up_s, node.image_s = start.scheduled_s, start.started_s
        elif not place.weights_cached:
            start = start.on(node.up_s, node.image_s)
        if not place.weights_cached:
            node.models[model] = start.ready_s
        return Start(
            max(start.scheduled_s, node.up_s),
            max(start.started_s, node.image_s),
            max(start.serving_s, node.models[model]),
            max(start.ready_s, node.models[model]),
        )

    def again_s(self, pace: float) -> float:
        """Return how long a start takes where everything is there."""
        return self._cached_s * pace

    def _usual(self, fresh: bool, cached: bool) -> Start:
        return ColdStart().usual(
            self._weight_bytes, self._devices, node_asleep=fresh, image_cached=not fresh, weights_cached=cached
        )
