"""Cold starts of simulated replicas, and the share of time that each phase takes.

A case states the mean duration of a start on a node with image and weights, and on a new node. The phases of
`sim.engine.cold_start`, at their medians for the weights of the profile, give only the proportions.
"""

from __future__ import annotations

import math

import numpy as np

from autoscaler.lab.replay.case import Case
from autoscaler.lab.replay.engine.gpu_pool import Machine
from autoscaler.sim.engine.cold_start import ColdStart, Start

SIGMAS = 3.0  # starts are cut at this many standard deviations


def draw_duration_factor(rng: np.random.Generator, spread: float) -> float:
    """Draw the duration of a start relative to the mean: lognormal with mean 1, cut at `SIGMAS` on both sides."""
    return math.exp(spread * min(max(rng.normal(), -SIGMAS), SIGMAS) - spread**2 / 2)


def least_duration_factor(spread: float) -> float:
    """Return the smallest factor that `draw_duration_factor` returns."""
    return math.exp(-spread * SIGMAS - spread**2 / 2)


class CaseColdStarts:
    """The cold starts of one case. A `duration_factor` multiplies the mean: 1 is the mean, 0 serves at once.

    A start on a node with image and weights takes `cold_start_s`. What such a node had before is done for others first:
    the node comes up, the image is pulled, the weights are fetched. These three add `cold_start_uncached_s` less
    `cold_start_s`, in proportion to their medians. Each is done once for a node, whoever needs it first.
    """

    def __init__(self, case: Case) -> None:
        self._model = case.trace.name
        self._cached_s = case.cold_start_s
        bytes_, devices = case.profile.weight_bytes, max(round(case.gpus_per_replica), 1)
        cold = ColdStart()
        self._held = cold.median_start(bytes_, devices, node_asleep=False, image_cached=True, weights_cached=True)
        fetch_s = bytes_ / cold.fetch.median_bytes_per_s
        parts_s = cold.node.median_s, cold.image.median_s, fetch_s
        self.prepares_nodes = not math.isnan(case.cold_start_uncached_s)
        more_s = case.cold_start_uncached_s - case.cold_start_s if self.prepares_nodes else 0.0
        self.node_s, self._image_s, self.fetch_s = (part_s * more_s / sum(parts_s) for part_s in parts_s)

    def begin(self, node: Machine, now_s: float, duration_factor: float) -> Start:
        """Return the times of the start of a replica that is placed now, and record on the node when it is up and has
        image and weights.

        Where a node that does not keep weights holds none, each start fetches them.
        """
        held = self._held.stretched_to(self._cached_s * duration_factor)
        if not self.prepares_nodes:
            return held.shifted(now_s)
        if math.isnan(node.up_s):
            node.up_s = now_s + self.node_s * duration_factor
        start = held.shifted(max(now_s, node.up_s))
        node.image_s = min(node.image_s, start.started_s + self._image_s * duration_factor)
        started_s = max(start.started_s, node.image_s)
        serving_s = max(started_s, self._weights_s(node, started_s, duration_factor)) + held.serving_s - held.started_s
        return Start(start.scheduled_s, started_s, serving_s, serving_s + held.ready_s - held.serving_s)

    def _weights_s(self, node: Machine, started_s: float, duration_factor: float) -> float:
        """Return when the weights are complete on a node whose container starts now."""
        if node.holds:
            return -math.inf
        if self._model in node.models:
            return node.models[self._model]
        complete_s = started_s + self.fetch_s * duration_factor
        if node.holds is None:
            node.models[self._model] = complete_s
        return complete_s

    def restart_s(self, duration_factor: float) -> float:
        """Return the duration of a start with image and weights on the node, in seconds."""
        return self._cached_s * duration_factor
