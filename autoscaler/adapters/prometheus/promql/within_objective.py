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
from autoscaler.adapters.prometheus.promql.engines import bucket_expression
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.catalog.engines import ROUNDED_UP
from autoscaler.catalog.series import Readings
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import Part, part_within

MAX_BOUNDS = 256  # of one histogram, over all versions of an engine
MAX_OBJECTIVES = 12  # of one histogram: each is a query of every tick
MAX_SERIES = 320_000  # of one histogram in one tick, so that large fleets with many objectives stay within their time
MAX_CONFIGURATIONS = 4  # different sets of bounds that are told apart
MAX_CUTS = 3  # pairs of bounds tried for one objective; VictoriaMetrics refuses queries of more than 16 KiB
MAX_SURE = 24  # bounds up to an objective that are looked at for the pods which have none of these pairs

_BOUND = re.compile(r"[0-9.eE+-]{1,24}")  # what may stand in a query


@dataclass(frozen=True)
class Bounds:
    """The finite bounds that the histograms of all pods have, together."""

    values_s: FloatColumn  # float64[B], ascending
    series: FloatColumn  # float64[B], how many have it
    spellings: tuple[tuple[str, ...], ...]  # [B], as the label `le` may be written
    histograms: float  # how many there are: all series have the last bound, +Inf

    @classmethod
    def none(cls) -> Bounds:
        """No histogram is known."""
        return cls(np.empty(0), np.empty(0), (), 0.0)


def read_bounds(vector: Vector, scale: float) -> Bounds:
    """Return the bounds in the answer to `queries.bounds_query`; what is not a number is left out.

    scale: of the histogram's unit to seconds.
    """
    found: dict[float, dict[str, float]] = {}
    histograms = 0.0
    for labels, count in zip(vector.labels, vector.values.tolist(), strict=True):
        text = parse_labels(labels).get("le", "")
        if text == "+Inf":
            histograms = count
        elif _BOUND.fullmatch(text) and math.isfinite(bound := _number(text)) and count > 0:
            found.setdefault(bound, {})[text] = count
    bounds = sorted(found)
    return Bounds(
        values_s=np.array(bounds) * scale,
        series=np.array([sum(found[bound].values()) for bound in bounds]),
        # Both usual spellings beside those seen: a server that was upgraded a minute ago writes the other one.
        spellings=tuple(tuple(sorted({*found[bound], f"{bound:g}", repr(bound)})) for bound in bounds),
        histograms=histograms,
    )


def commonest(objectives_s: FloatColumn, pods: int) -> tuple[list[float], int]:
    """Return the objectives to count for, at most as many as a tick can bear, and how many workloads have another.

    objectives_s: float64[W], NaN: none.
    """
    values, workloads = np.unique(objectives_s[np.isfinite(objectives_s)], return_counts=True)
    most = max(min(MAX_OBJECTIVES, MAX_SERIES // max(pods, 1)), 1)
    order = np.argsort(-workloads, kind="stable")
    return values[order[:most]].tolist(), int(workloads[order[most:]].sum())


def count_expression(column: str, readings: Readings, identity: Identity, objective_s: float, bounds: Bounds) -> str:
    """Return an expression for a column of `config.engines.WITHIN`, a series for each pod; "": nothing to ask."""
    express = rounded_up_expression if column in ROUNDED_UP else within_expression
    return express(readings, identity, objective_s, bounds)


def within_expression(readings: Readings, identity: Identity, objective_s: float, bounds: Bounds) -> str:
    """Return an expression for how many observations were within an objective, a series for each pod; "": no bounds.

    Where all pods have the same bounds it is what `core.histogram.count_within` computes. Where operators set bounds of
    their own, or versions differ, each pod gets the count by the closest bounds that it has of a few likely pairs; a
    pod that has none of them counts what is certainly within: the most that any of its buckets up to the objective has.
    """
    cuts = _cuts(objective_s, bounds)
    expressions = [_interpolated(readings, identity, part, bounds) for part in cuts]
    alike = bool(np.all(bounds.series == bounds.histograms))
    sure = int(np.searchsorted(bounds.values_s, objective_s, side="right"))  # so many bounds are within
    if sure and not (alike and cuts):
        nearest = bounds.spellings[sure - 1 : sure] if alike else bounds.spellings[max(sure - MAX_SURE, 0) : sure]
        spellings = [text for spelled in nearest for text in spelled]
        expressions.append(bucket_expression(readings, spellings, identity))
    return " or ".join(expressions)


def rounded_up_expression(readings: Readings, identity: Identity, objective_s: float, bounds: Bounds) -> str:
    """Return an expression for how many observations were not beyond an objective for certain; "": no bound is so high.

    It counts up to `core.histogram.bound_above`; where bounds differ, up to the lowest such bound that a pod has.
    """
    above = bounds.spellings[int(np.searchsorted(bounds.values_s, objective_s)) :]
    alike = bool(np.all(bounds.series == bounds.histograms))
    few = above[: 1 if alike else MAX_CUTS]
    return " or ".join(bucket_expression(readings, spelled, identity) for spelled in few)


def _cuts(objective_s: float, bounds: Bounds) -> list[Part]:
    """Return how an objective may lie among the bounds of one pod, the closest bounds first.

    Bounds that equally many series have are likely to be those of one configuration, those that all have of each.
    """
    numbers, having = np.unique(bounds.series, return_counts=True)
    usual = [np.ones(len(bounds.series), dtype=bool)]
    for number in numbers[np.argsort(-having, kind="stable")][:MAX_CONFIGURATIONS]:
        usual += [bounds.series >= number, (bounds.series == number) | (bounds.series == bounds.histograms)]
    parts = {part_within(objective_s, bounds.values_s[mask]) for mask in usual}
    whole = {part for part in parts if part is not None and objective_s <= part.above}
    return sorted(whole, key=lambda part: part.above - part.below)[:MAX_CUTS]


def _interpolated(readings: Readings, identity: Identity, part: Part, bounds: Bounds) -> str:
    """Compile one part of a histogram: whole buckets, and a fraction of the next."""
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
