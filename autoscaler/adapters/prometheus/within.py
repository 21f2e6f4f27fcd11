"""Requests within an objective, counted by the server from its histograms: which buckets, and in which query.

A histogram has some 20 buckets for each pod, of which an objective needs the one or two around it. Fetched are not even
these: the server interpolates between them, so each objective costs one series for each pod, however it lies. Which
bounds there are is asked now and then, for operators may set their own. Asking and joining do not belong here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, parse_labels
from autoscaler.adapters.prometheus.queries import Identity, bucket_expression
from autoscaler.config.series import Readings
from autoscaler.core.columns import FloatColumn
from autoscaler.core.histogram import Part, part_within

MAX_BOUNDS = 256  # of one histogram, over all versions of an engine
MAX_OBJECTIVES = 12  # of one histogram: each is a query of every tick
MAX_SERIES = 320_000  # of one histogram in one tick, so that large fleets with many objectives stay within their time
COMMON_FRACTION = 0.5  # bounds that as many of the series have are not of a few pods that were configured otherwise

_BOUND = re.compile(r"[0-9.eE+-]{1,24}")  # what may stand in a query


@dataclass(frozen=True)
class Bounds:
    """The finite bounds that the histograms of all pods have, together."""

    values_s: FloatColumn  # float64[B], ascending
    series: FloatColumn  # float64[B], how many have it
    spellings: tuple[tuple[str, ...], ...]  # [B], as the label `le` may be written

    @classmethod
    def none(cls) -> Bounds:
        """No histogram is known."""
        return cls(np.empty(0), np.empty(0), ())


def read_bounds(vector: Vector, scale: float) -> Bounds:
    """Return the bounds in the answer to `queries.bounds_query`; what is no number is left out.

    scale: of the histogram's unit to seconds.
    """
    found: dict[float, dict[str, float]] = {}
    for labels, count in zip(vector.labels, vector.values.tolist(), strict=True):
        text = parse_labels(labels).get("le", "")
        if _BOUND.fullmatch(text) and math.isfinite(bound := _number(text)) and count > 0:
            found.setdefault(bound, {})[text] = count
    bounds = sorted(found)
    return Bounds(
        values_s=np.array(bounds) * scale,
        series=np.array([sum(found[bound].values()) for bound in bounds]),
        # Both usual spellings beside those seen: a server that was upgraded a minute ago writes the other one.
        spellings=tuple(tuple(sorted({*found[bound], f"{bound:g}", repr(bound)})) for bound in bounds),
    )


def commonest(objectives_s: FloatColumn, pods: int) -> tuple[list[float], int]:
    """Return the objectives to count for, at most as many as a tick can bear, and how many workloads have another.

    objectives_s: float64[W], NaN: none.
    """
    values, workloads = np.unique(objectives_s[np.isfinite(objectives_s)], return_counts=True)
    most = max(min(MAX_OBJECTIVES, MAX_SERIES // max(pods, 1)), 1)
    order = np.argsort(-workloads, kind="stable")
    return values[order[:most]].tolist(), int(workloads[order[most:]].sum())


def within_expression(readings: Readings, identity: Identity, objective_s: float, bounds: Bounds) -> str:
    """Return an expression for how many observations were within an objective, a series for each pod; "": no bounds.

    Of pods with bounds of their own each gets the count by its own: first by the closest bounds that any pod has, then,
    for pods that lack these, by the closest that most have. A pod with neither stays unknown.
    """
    parts = []
    for least in (0.0, COMMON_FRACTION):
        usual = bounds.series >= least * np.max(bounds.series, initial=0.0)
        part = part_within(objective_s, bounds.values_s[usual])
        if part is not None and part not in parts:
            parts.append(part)
    return " or ".join(filter(None, (_interpolated(readings, identity, part, bounds) for part in parts)))


def _interpolated(readings: Readings, identity: Identity, part: Part, bounds: Bounds) -> str:
    """Compile `core.histogram.count_within` for one part of a histogram."""
    spelled = dict(zip(bounds.values_s.tolist(), bounds.spellings, strict=True))

    def weighed(bound_s: float, fraction: float) -> str:
        bucket = bucket_expression(readings, spelled[bound_s], identity)
        return f"({bucket})" if fraction == 1 else f"({bucket}) * {fraction!r}"

    below = weighed(part.below, 1 - part.fraction) if part.below in spelled else ""
    above = weighed(part.above, part.fraction) if part.fraction else ""
    return " + ".join(filter(None, (below, above)))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
