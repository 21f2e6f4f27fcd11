"""Cold starts: the time until a new pod serves, drawn phase by phase for each pod.

Medians are in the range of published starts: node 80-120 s and more, image 60-180 s, boot 10-30 s, compile and warm-up
10-60 s, weights by size and bandwidth. See the cold-start studies of Tensorfuse, KAITO, Bento and the vLLM blog. They
vary by an order of magnitude between clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np


@dataclass(frozen=True)
class PhaseDuration:
    """A lognormal duration."""

    median_s: float
    sigma: float = 0.25

    def draw(self, rng: np.random.Generator) -> float:
        return self.median_s * math.exp(rng.normal(0.0, self.sigma)) if self.median_s > 0 else 0.0


@dataclass(frozen=True)
class Bandwidth:
    """A lognormal bandwidth."""

    median_bytes_per_s: float
    sigma: float = 0.25

    def draw_s(self, rng: np.random.Generator, size_bytes: float) -> float:
        """Draw the time to transfer `size_bytes`, in seconds."""
        return size_bytes / (self.median_bytes_per_s * math.exp(rng.normal(0.0, self.sigma)))


@dataclass(frozen=True)
class Start:
    """The times of one start: seconds after the pod was bound to its node, or seconds of a clock."""

    scheduled_s: float  # the node is up
    started_s: float  # the container runs; the port is closed
    serving_s: float  # the port is open
    ready_s: float  # the probe has succeeded

    def stretched_to(self, ready_s: float) -> Start:
        """Return the start scaled to end at `ready_s`; every phase keeps its share."""
        factor = ready_s / self.ready_s
        return Start(self.scheduled_s * factor, self.started_s * factor, self.serving_s * factor, ready_s)

    def shifted(self, bound_s: float) -> Start:
        """Return the start shifted to a clock on which the pod was bound at `bound_s`."""
        return Start(
            bound_s + self.scheduled_s, bound_s + self.started_s, bound_s + self.serving_s, bound_s + self.ready_s
        )

    def delayed_by_node(self, up_s: float, image_s: float, weights_s: float = -math.inf) -> Start:
        """Return the start delayed by its node; later phases wait.

        up_s, image_s: times at which the node is up and has the image. weights_s: time at which the pod that fetches
        the weights serves.
        """
        scheduled_s = max(self.scheduled_s, up_s)
        started_s = max(self.started_s + (scheduled_s - self.scheduled_s), image_s)
        serving_s = max(self.serving_s + (started_s - self.started_s), weights_s)
        return Start(scheduled_s, started_s, serving_s, self.ready_s + (serving_s - self.serving_s))


@dataclass(frozen=True)
class ColdStart:
    """The phases of a start."""

    node: PhaseDuration = PhaseDuration(100.0)  # a sleeping node comes up, with driver and device plugin
    image: PhaseDuration = PhaseDuration(60.0)  # unless the node has the image
    boot: PhaseDuration = PhaseDuration(12.0)  # process, imports, configuration
    fetch: Bandwidth = Bandwidth(1.5e9)  # weights to the node, unless it has them
    load: Bandwidth = Bandwidth(3e9)  # weights from the node into one device; devices load in parallel
    warm_up: PhaseDuration = PhaseDuration(18.0)  # compile with a warm cache, CUDA graphs, profiling
    probe: PhaseDuration = PhaseDuration(3.0)
    wake: Bandwidth = Bandwidth(10e9)  # weights between the memory of the host and one device, in a sleep of level 1

    def draw(
        self,
        rng: np.random.Generator,
        weight_bytes: float,
        devices: int,
        *,
        node_asleep: bool,
        image_cached: bool,
        weights_cached: bool,
    ) -> Start:
        """Draw one start of an engine with `weight_bytes` of weights on `devices` devices."""
        scheduled_s = self.node.draw(rng) if node_asleep else 0.5
        started_s = scheduled_s + 1.0 + (0.0 if image_cached else self.image.draw(rng))
        fetch_s = 0.0 if weights_cached else self.fetch.draw_s(rng, weight_bytes)
        serving_s = started_s + fetch_s + self.restart_s(rng, weight_bytes, devices)
        return Start(scheduled_s, started_s, serving_s, serving_s + self.probe.draw(rng))

    def median_start(
        self, weight_bytes: float, devices: int, *, node_asleep: bool, image_cached: bool, weights_cached: bool
    ) -> Start:
        """Return the start with every phase at its median."""
        calm = replace(self, **{each.name: replace(getattr(self, each.name), sigma=0.0) for each in fields(self)})
        return calm.draw(
            np.random.default_rng(0),
            weight_bytes,
            devices,
            node_asleep=node_asleep,
            image_cached=image_cached,
            weights_cached=weights_cached,
        )

    def wake_s(self, weight_bytes: float, devices: int) -> float:
        """Return the time to move weights between host and devices, each in parallel, in seconds."""
        return weight_bytes / devices / self.wake.median_bytes_per_s

    def reload_s(self, weight_bytes: float, devices: int) -> float:
        """Return the time to load weights again into a running engine, in seconds."""
        return weight_bytes / devices / self.load.median_bytes_per_s

    def restart_s(self, rng: np.random.Generator, weight_bytes: float, devices: int) -> float:
        """Draw the time of a container from start to open port, with image and weights on its node, in seconds."""
        return self.boot.draw(rng) + self.load.draw_s(rng, weight_bytes / devices) + self.warm_up.draw(rng)
