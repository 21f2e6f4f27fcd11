"""The pre-warm windows of policies over a history: replicas that must be there, whatever the planner wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autoscaler.config.policy.recurrence import Recurrence
from autoscaler.config.policy.schedule import Window, windows_at
from autoscaler.config.policy.schema import Policy
from autoscaler.core.table.columns import FloatColumn
from autoscaler.report.load import FleetLoad


def with_windows(load: FleetLoad, policies: Sequence[Policy], cold_start_s: FloatColumn) -> FleetLoad:
    """Return the load with the replicas that the windows of each service's policy ask for.

    policies: [W]. cold_start_s: float64[W], the lead of windows that state none.
    """
    windows = [(w, window) for w, policy in enumerate(policies) for window in policy.spec.prewarm]
    if not windows:
        return load
    span, ends_s, floors = load.span, load.span.ends_s, np.full(load.shape, np.nan, np.float32)
    leads_s = [float(cold_start_s[w]) if window.lead is None else window.lead for w, window in windows]
    found = {
        each: [*_occurrences(each, span.start_s, span.end_s + max(leads_s))]
        for each in {window.recurrence for _, window in windows}
    }
    for (w, window), lead_s in zip(windows, leads_s, strict=True):
        for open_s, until_s in found[window.recurrence]:
            first = int(np.searchsorted(ends_s, open_s - lead_s, "right"))
            last = int(np.searchsorted(ends_s, until_s, "left")) + 1
            floors[first:last, w] = np.fmax(floors[first:last, w], window.replicas)
    return replace(load, floors=floors)


def _occurrences(recurrence: Recurrence, start_s: float, end_s: float) -> Iterator[Window]:
    """Yield the windows that are open between two Unix times."""
    at_s = start_s
    while True:
        opened, following = windows_at(recurrence, at_s)
        window = opened or following
        if window.start_s >= end_s:
            return
        yield window
        at_s = window.until_s
