"""Trust in the inputs of a workload: whether enough is known to shrink, and since when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe import load
from autoscaler.core.readings.progress import UNTRUSTED_S
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient

VIEW_AGE_S = 20.0
"""A view of the cluster that is older has missed several signs of life, which come every 5 s: nothing shrinks on it."""


@dataclass(frozen=True)
class Freshness(Columns):
    """Since when the inputs of each workload are trusted; float64[W]."""

    trusted_since_s: Transient[TimestampColumn]  # since when it is watched without a long gap in trust
    last_trusted_s: Transient[TimestampColumn]  # time of the last trusted tick; NaN: none


def update(inp: TickInput, observation: Observation, before: Freshness) -> tuple[BoolColumn, Freshness]:
    """Say which workloads are trusted, bool[W], and since when each has been watched.

    A short gap (one slow scrape, a pod that has just become ready) does not restart the watch. A gap longer than the
    age at which inputs expire does, and so does a restart: then a full stabilization window passes before it shrinks.
    """
    trusted = trust(inp, observation)
    unbroken = inp.now_s - before.last_trusted_s <= inp.spec.max_input_age_s  # False where it never was
    return trusted, Freshness(
        trusted_since_s=np.where(trusted & ~unbroken, inp.now_s, before.trusted_since_s),
        last_trusted_s=np.where(trusted, inp.now_s, before.last_trusted_s),
    )


def trust(inp: TickInput, observation: Observation) -> BoolColumn:
    """Return where enough is known to shrink: every ready pod was heard, and the cluster view is fresh. bool[W].

    A pod whose requests do not move is not believed for some minutes: it may compute a long prompt.

    A workload without ready pods has none to hear. Then the view of the cluster and the gateway are all there is.
    """
    view_age_s = inp.now_s - inp.fleet.time_s
    heard = (observation.reporting >= observation.ready) & (view_age_s <= oldest_view_s(inp))
    heard &= ~(observation.stuck_s < UNTRUSTED_S)  # True where none is stuck
    return heard & ((observation.ready > 0) | ~load.is_gateway_silent(inp, observation))


def oldest_view_s(inp: TickInput) -> FloatColumn:
    """Return how old the view of the cluster may be for a workload to shrink; float64[W], seconds."""
    return np.fmin(inp.spec.max_input_age_s, VIEW_AGE_S)


def until_s(inp: TickInput, observation: Observation) -> FloatColumn:
    """Return the moment until which what is known is fresh enough to shrink on; float64[W]."""
    readings_s = inp.now_s - np.fmax(observation.age_s, 0.0) + inp.spec.max_input_age_s
    return np.fmin(readings_s, inp.fleet.time_s + oldest_view_s(inp))
