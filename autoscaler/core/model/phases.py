"""The phases of a cold start, and what the cluster tells about them for each pod."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from autoscaler.core.table.columns import Columns, FloatColumn


class Phase(IntEnum):
    """Phases of a cold start, in their order; the rows of tables of phases. Each begins where the one before ends."""

    NODE = 0  # a node is created for the pod, until the pod is bound to it; 0 s on a node that existed before
    SCHEDULE = 1  # the pod waits to be bound to a node that existed before
    IMAGE = 2  # images are pulled; 0 s if the node has them
    CONTAINER = 3  # sandbox, volumes and other init containers, until the engine's container runs
    WEIGHTS = 4  # the weights are fetched to the node, unless it has them, and loaded into the GPUs
    ENGINE = 5  # the engine's process starts, compiles and warms up
    READY = 6  # the engine answers, but its readiness probe has not succeeded yet
    FIRST_TOKEN = 7  # the pod is ready, but has not generated a token; most of it is the wait for a request


PHASES = len(Phase)


@dataclass(frozen=True)
class PodStarts(Columns):
    """What the cluster tells about the start of each pod, beside its conditions; float64[P], NaN: unknown."""

    node_created_s: FloatColumn  # time at which its node was created
    image_s: FloatColumn  # seconds for which its images were pulled; 0: its node had them
    pulling_since_s: FloatColumn  # time since which an image is being pulled; NaN: none is
    weights_s: FloatColumn  # seconds that its init containers for weights have run; NaN: it has none, or none has ended
    fetching_since_s: FloatColumn  # time since which such an init container runs; NaN: none does
