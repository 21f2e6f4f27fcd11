"""Services that may be one under two names: one was last seen when another was first seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.report.document import moment
from autoscaler.report.load import FleetLoad

NEAR_S = 3600.0
"""Between the end of one name and the begin of another. A rename by hand overlaps, or leaves a hole of minutes."""

MOST_SAID = 10


def say_renames(load: FleetLoad, services: Sequence[ServiceName], models: Sequence[str]) -> tuple[str, ...]:
    """Return a note for each service that ended within the span where another of its namespace and model began."""
    span, near = load.span, NEAR_S / load.span.step_s
    ran = load.seen & (load.pods > 0)  # a name that is gone counts as seen, with no replica
    first = np.argmax(ran, axis=0)
    last = span.steps - np.argmax(ran[::-1], axis=0)
    ends, begins = ran.any(axis=0) & (last < span.steps - near), ran.any(axis=0) & (first > near)
    found = []
    for old in np.flatnonzero(ends).tolist():
        near_end = np.flatnonzero(begins & (np.abs(first - last[old]) <= near)).tolist()
        new = [w for w in near_end if w != old and _is_alike(services[old], services[w]) and models[w] == models[old]]
        if new:
            at = moment(span.start_s + float(last[old]) * span.step_s)
            names = " or ".join(str(services[w]) for w in new[:3])
            guess = "if it was renamed, each has a part of its history"
            found.append(f"{services[old]} had its last replica at {at}, and {names} the first then: {guess}")
    rest = len(found) - MOST_SAID
    return (*found[:MOST_SAID], *([f"{rest} more services ended where others began"] if rest > 0 else []))


def _is_alike(one: ServiceName, other: ServiceName) -> bool:
    return (one.cluster, one.namespace) == (other.cluster, other.namespace)
