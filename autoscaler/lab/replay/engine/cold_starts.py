"""Cold starts of simulated replicas, and the share of time that each phase takes.

A case states the mean duration of a start. The phases of `sim.engine.cold_start`, at their medians for the weights of
the profile, give only the proportions. So a case with a mean of 60 s has the same phases as the demo's cluster.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.engine.gpu_pool import Placement
from autoscaler.sim.engine.cold_start import ColdStart, Start

SIGMAS = 3.0  # starts are cut at this many standard deviations


def draw_duration_factor(rng: np.random.Generator, spread: float) -> float:
    """Draw the duration of a start relative to the mean: lognormal with mean 1, cut at `SIGMAS` on both sides."""
    return math.exp(spread * min(max(rng.normal(), -SIGMAS), SIGMAS) - spread**2 / 2)


def least_duration_factor(spread: float) -> float:
    """Return the smallest factor that `draw_duration_factor` returns."""
    return math.exp(-spread * SIGMAS - spread**2 / 2)


class ColdStarts:
    """The cold starts of one case. A `duration_factor` multiplies the mean: 1 is the mean, 0 serves at once."""

    def __init__(self, case: Case) -> None:
        self._model = case.trace.name
        self._weight_bytes = case.profile.weight_bytes
        self._devices = max(round(case.gpus_per_replica), 1)
        self._cached_s = case.cold_start_s
        self._shapes = {
            (fresh, cached): self._median_start(fresh, cached)
            for fresh, cached in ((False, True), (False, False), (True, True), (True, False))
        }
        self._mean_s = dict.fromkeys(self._shapes, case.cold_start_s)
        self._missing = not math.isnan(case.cold_start_uncached_s)
        if self._missing:
            # With image but without weights, a start takes its share of the extra time of a fresh node.
            more_s = case.cold_start_uncached_s - case.cold_start_s
            least_s, most_s = self._shapes[False, True].ready_s, self._shapes[True, False].ready_s
            for key, shape in self._shapes.items():
                self._mean_s[key] = case.cold_start_s + more_s * (shape.ready_s - least_s) / (most_s - least_s)

    def begin(self, place: Placement, now_s: float, duration_factor: float) -> Start:
        """Return the times of the start of a replica that is placed now, and record on the node when image and weights
        arrive.

        A replica on a node that still fetches weights waits for the replica that fetches them, and is ready no sooner.
        A replica that fetches weights of its own starts to do so once the node has the image. Where
        nodes hold weights always or never, none waits for those of another.
        """
        if not self._missing:
            return self._shapes[False, True].stretched_to(self._cached_s * duration_factor).shifted(now_s)
        key, node, model = (place.fresh, place.weights_cached), place.node, self._model
        start = self._shapes[key].stretched_to(self._mean_s[key] * duration_factor).shifted(now_s)
        if place.fresh:
            node.up_s, node.image_s = start.scheduled_s, start.started_s
        elif not place.weights_cached or node.holds:
            start = start.delayed_by_node(node.up_s, node.image_s)
        if node.holds is not None:
            return start
        if not place.weights_cached:
            node.models[model] = start.ready_s
        return Start(
            max(start.scheduled_s, node.up_s),
            max(start.started_s, node.image_s),
            max(start.serving_s, node.models[model]),
            max(start.ready_s, node.models[model]),
        )

    def restart_s(self, duration_factor: float) -> float:
        """Return the duration of a start with image and weights on the node, in seconds."""
        return self._cached_s * duration_factor

    def _median_start(self, fresh: bool, cached: bool) -> Start:
        return ColdStart().median_start(
            self._weight_bytes, self._devices, node_asleep=fresh, image_cached=not fresh, weights_cached=cached
        )
