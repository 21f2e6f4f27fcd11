"""Where enough is known to shrink, and since when."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.types import Observation, TickInput
from autoscaler.core.observe.progress import GIVEN_UP_S
from autoscaler.core.planner import scale_to_zero
from autoscaler.core.state import Memory
from autoscaler.core.table.columns import BoolColumn, FloatColumn

VIEW_AGE_S = 20.0
"""A view of the cluster that is older has missed several signs of life, which come every 5 s: nothing shrinks on it."""


def follow(inp: TickInput, observation: Observation, memory: Memory) -> tuple[BoolColumn, Memory]:
    """Say who is trusted, bool[W], and since when each workload has been watched.

    A short gap (one slow scrape, a pod that has just become ready) does not start the watch anew; one longer than the
    age at which inputs expire does, and so does a restart: then a full stabilization window passes before it shrinks.
    """
    trusted, before = trust(inp, observation), memory.workloads
    unbroken = inp.now_s - before.last_trusted_s <= inp.spec.max_input_age_s  # False where it never was
    return trusted, memory.noting(
        trusted_since_s=np.where(trusted & ~unbroken, inp.now_s, before.trusted_since_s),
        last_trusted_s=np.where(trusted, inp.now_s, before.last_trusted_s),
    )


def trust(inp: TickInput, observation: Observation) -> BoolColumn:
    """Say where enough is known to shrink: every ready pod was heard, and the cluster view is fresh. bool[W].

    A pod whose requests do not move is not believed for some minutes: it may compute a long prompt.

    A workload without ready pods has nobody to hear; the view of the cluster, and the gateway's word, are all there is.
    """
    view_age_s = inp.now_s - inp.fleet.time_s
    heard = (observation.reporting >= observation.ready) & (view_age_s <= oldest_view_s(inp))
    heard &= ~(observation.stuck_s < GIVEN_UP_S)  # True where none is stuck
    return heard & ((observation.ready > 0) | ~scale_to_zero.gateway_is_silent(inp, observation))


def oldest_view_s(inp: TickInput) -> FloatColumn:
    """Return how old the view of the cluster may be for a workload to shrink; float64[W], seconds."""
    return np.fmin(inp.spec.max_input_age_s, VIEW_AGE_S)


def until_s(inp: TickInput, observation: Observation) -> FloatColumn:
    """Return the moment until which what is known is fresh enough to shrink on; float64[W]."""
    readings_s = inp.now_s - np.fmax(observation.age_s, 0.0) + inp.spec.max_input_age_s
    return np.fmin(readings_s, inp.fleet.time_s + oldest_view_s(inp))
