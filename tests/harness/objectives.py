"""Objectives for sources under test."""

from __future__ import annotations

import numpy as np

from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import Objectives
from autoscaler.core.table.columns import FloatColumn

NONE = float("nan")


def objectives(
    fleet: Fleet, ttft_s: float | FloatColumn = NONE, itl_s: float | FloatColumn = NONE, max_age_s: float = NONE
) -> Objectives:
    """Objectives of the workloads of a fleet: one number for all, or one for each; by default nothing."""
    rows = len(fleet.workloads)
    return Objectives(*(np.broadcast_to(each, rows).astype(float) for each in (ttft_s, itl_s, max_age_s)))
