"""The start that the next replica would have, by phase, and the starts under way, as plain values and in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.explain.claims import NOTHING, Words, tell
from autoscaler.core.explain.format import Told, seconds
from autoscaler.core.explain.row import TickRow
from autoscaler.core.model.phases import NOT_STARTING, Phase, Starts
from autoscaler.core.model.weights import PodCache

MAX_PODS = 20  # starting pods of a workload that are told one by one

_DOING = {
    Phase.NODE: "its node is being created",
    Phase.SCHEDULE: "it waits to be scheduled",
    Phase.IMAGE: "its image is being pulled",
    Phase.CONTAINER: "its container is being created",
    Phase.WEIGHTS: "its weights are loading",
    Phase.ENGINE: "its engine is loading and starting",
    Phase.READY: "its probe has not succeeded",
    Phase.FIRST_TOKEN: "it waits for its first request",
}


class StartQuantiles(NamedTuple):
    """A time in seconds. NaN: unknown."""

    p50_s: float
    p90_s: float


class StartingPod(NamedTuple):
    """A pod that is starting."""

    pod: str
    phase: str  # published name of its Phase
    for_s: float  # seconds since that phase began; NaN: unknown
    usual_s: float  # median of that phase; NaN: not learned
    left_s: float  # seconds until it should be ready; NaN: not learned
    late: bool  # nothing counts on it any more


@dataclass(frozen=True)
class NextStart:
    """The start that the next replica of a workload would have now."""

    takes_s: float  # seconds until it serves
    by_phase: bool  # its phases tell that; False: all starts together do, or the policy
    starts: int  # that were learned from
    weights: str  # published name of the PodCache of its node
    new_node: bool  # a node has to be created for it
    phases: dict[str, StartQuantiles]  # by published name; empty: no start was seen
    by_weights: dict[str, StartQuantiles]  # of the whole start on a node that exists, by published name of its PodCache
    starting: tuple[StartingPod, ...]  # those that began first


def next_start(row: TickRow) -> NextStart:
    """Return the next start of a workload and its starts under way."""
    starts, place = row.decision.starts, row.row
    seen = int(starts.seen[place])
    reports = bool(starts.cache[place] != PodCache.UNKNOWN)
    told = PodCache if reports else (PodCache.UNKNOWN,)
    return NextStart(
        takes_s=row.observed("cold_start_s"),
        by_phase=bool(starts.known[place]),
        starts=seen,
        weights=PodCache(int(starts.cache[place])).published,
        new_node=bool(starts.new_node[place]),
        phases={phase.published: _quantiles(starts.p50_s, starts.p90_s, phase, place) for phase in Phase}
        if seen
        else {},
        by_weights={
            state.published: _quantiles(starts.by_cache_p50_s, starts.by_cache_p90_s, state, place) for state in told
        }
        if seen or reports
        else {},
        starting=_starting(row, starts),
    )


def takes(row: TickRow) -> Words:
    """Word how long a new replica takes: that it is assumed, until a start was seen."""
    verb = "takes" if row.decision.starts.seen[row.row] > 0 else "is assumed to take"
    return tell("{takes} {cold_start_s}", takes=verb, cold_start_s=seconds(row.observed("cold_start_s")))


def late_words(row: TickRow) -> Words:
    """Word what the pod does that is late for the longest; nothing: none is late by its phase."""
    starts = row.decision.starts
    late = np.flatnonzero(starts.pod_late & (row.inp.fleet.pod_workload == row.row))
    if not len(late):
        return NOTHING
    pod = late[np.argmax(starts.pod_phase_s[late])]
    phase = Phase(int(starts.pod_phase[pod]))
    return tell(
        "{stuck_phase} for {stuck_phase_s}, usually {usual_phase_s}",
        stuck_phase=Told(_DOING[phase], phase.published),
        stuck_phase_s=seconds(float(starts.pod_phase_s[pod])),
        usual_phase_s=seconds(float(starts.pod_usual_s[pod])),
    )


def _quantiles(p50_s: np.ndarray, p90_s: np.ndarray, slot: int, row: int) -> StartQuantiles:
    return StartQuantiles(float(p50_s[slot, row]), float(p90_s[slot, row]))


def _starting(row: TickRow, starts: Starts) -> tuple[StartingPod, ...]:
    fleet = row.inp.fleet
    pods = np.flatnonzero((starts.pod_phase != NOT_STARTING) & (fleet.pod_workload == row.row))
    order = pods[np.argsort(fleet.pod_created_s[pods], kind="stable")][:MAX_PODS]
    return tuple(
        StartingPod(
            fleet.pods[pod].name,
            Phase(int(starts.pod_phase[pod])).published,
            _positive(starts.pod_phase_s[pod]),
            float(starts.pod_usual_s[pod]),
            float(starts.pod_left_s[pod]),
            bool(starts.pod_late[pod]),
        )
        for pod in order.tolist()
    )


def _positive(value: float) -> float:
    return math.nan if math.isnan(value) else max(float(value), 0.0)
