"""Variants whose replicas did not run: when they may get further replicas again.

Load moves at once from replicas that a quota refuses, that crash or that a queue holds back to another variant. They
are gone then, so nothing else would tell that further ones would fail as well. The pause is as long as the failures
have gone on so far, so it doubles with each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, TimestampColumn, Transient

FIRST_PAUSE_S, MAX_PAUSE_S = 60.0, 3600.0


@dataclass(frozen=True)
class Failures(Columns):
    """Failures of each workload since a replica of it last became ready; float64[W]."""

    since_s: Transient[TimestampColumn]  # the first one; NaN: none
    last_s: Transient[TimestampColumn]  # the last one
    ready: Transient[FloatColumn]  # ready replicas at the last one


def update(now_s: float, failed: BoolColumn, ready: FloatColumn, before: Failures) -> tuple[BoolColumn, Failures]:
    """Return the workloads that get no load of other variants now, bool[W].

    failed: bool[W], some replicas do not run, and it is not for a lack of free GPUs.
    """
    recovered = ready > before.ready
    since_s = np.where(recovered, np.nan, before.since_s)
    since_s = np.where(failed, np.fmin(since_s, now_s), since_s)
    last_s = np.where(failed, now_s, np.where(recovered, np.nan, before.last_s))
    paused = now_s - last_s < np.clip(last_s - since_s, FIRST_PAUSE_S, MAX_PAUSE_S)
    return np.asarray(paused), Failures(since_s, last_s, np.where(failed, ready, before.ready))
