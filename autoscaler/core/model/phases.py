"""The phases of a cold start, and what the cluster tells about them for each pod."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.published import PublishedEnum
from autoscaler.core.model.weights import PodCache
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn


class Phase(PublishedEnum):
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
SKEW_S = 5.0  # clocks of nodes and of the control plane differ by less


@dataclass(frozen=True)
class PodStarts(Columns):
    """Times of the start of each pod that its conditions do not tell; float64[P], NaN: unknown."""

    node_created_s: FloatColumn  # time at which its node was created
    image_s: FloatColumn  # seconds for which its images were pulled; 0: its node had them
    pulling_since_s: FloatColumn  # time since which an image is being pulled; NaN: none is
    weights_s: FloatColumn  # seconds that its init containers for weights have run; NaN: it has none, or none has ended
    fetching_since_s: FloatColumn  # time since which such an init container runs; NaN: none does


NOT_STARTING = -1  # in place of a phase


@dataclass(frozen=True)
class Starts:
    """The start that the next replica of each workload would have now, and the starts that are under way."""

    known: BoolColumn  # bool[W], phases tell the next start; False: it is that of all starts together, or as stated
    seen: FloatColumn  # float64[W], starts that were learned from, up to those that the ledger keeps
    cache: IntColumn  # int64[W], PodCache of the node that the next replica will get
    new_node: BoolColumn  # bool[W], a node has to be created for it
    p50_s: FloatColumn  # float64[PHASES, W], median of each phase of the next start
    p90_s: FloatColumn  # float64[PHASES, W]
    by_cache_p50_s: FloatColumn  # float64[C, W], median of all phases until ready on a node that exists, by PodCache
    by_cache_p90_s: FloatColumn  # float64[C, W]
    mean_s: FloatColumn  # float64[W], mean of a start, whichever node it gets: what the planner counts with
    node_s: FloatColumn  # float64[W], 90th percentile of the time until a node that is created for a pod takes it
    image_s: FloatColumn  # float64[W], median of the time to pull images to a node that has none
    fetch_s: FloatColumn  # float64[W], 90th percentile of the time to fetch the weights to a node
    pod_phase: IntColumn  # int64[P], Phase of the starting pods that cause no other; NOT_STARTING: it is none of them
    pod_phase_s: FloatColumn  # float64[P], seconds since that phase began; NaN: unknown
    pod_usual_s: FloatColumn  # float64[P], median of that phase; NaN: not learned
    pod_late: BoolColumn  # bool[P], it takes far longer than it ever should: nothing counts on it
    pod_left_s: FloatColumn  # float64[P], seconds until the pod should be ready; NaN: not learned

    @classmethod
    def unknown(cls, rows: int, pods: int) -> Starts:
        """Return that nothing was learned of the starts of this many workloads and pods."""
        no, none, phases = np.zeros(rows, dtype=bool), np.zeros(rows), np.full((PHASES, rows), np.nan)
        by_cache, of_pod = np.full((len(PodCache), rows), np.nan), np.full(pods, np.nan)
        return cls(
            known=no,
            seen=none,
            cache=none.astype(np.int64),
            new_node=no,
            p50_s=phases,
            p90_s=phases,
            by_cache_p50_s=by_cache,
            by_cache_p90_s=by_cache,
            mean_s=phases[0],
            node_s=phases[0],
            image_s=phases[0],
            fetch_s=phases[0],
            pod_phase=np.full(pods, NOT_STARTING),
            pod_phase_s=of_pod,
            pod_usual_s=of_pod,
            pod_late=np.zeros(pods, dtype=bool),
            pod_left_s=of_pod,
        )
