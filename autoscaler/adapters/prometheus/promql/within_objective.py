"""Expressions for the number of requests within an objective, computed by the server from histogram buckets.

A histogram has some 20 buckets per pod, of which an objective needs the one or two around it. The server interpolates
between them, so each objective costs one series per pod. The bounds are queried now and then, because operators may
configure their own.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from autoscaler.adapters.prometheus.decode import Vector, parse_labels
from autoscaler.adapters.prometheus.promql.engines import BOUND, PER_NAMESPACE, Over, bucket_expression
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.catalog.engines import ROUNDED_UP
from autoscaler.catalog.series import Readings
from autoscaler.core.table.columns import FloatColumn
from autoscaler.core.table.histogram import LimitPosition, find_limit

MAX_BOUNDS = 256  # per histogram, over all versions of an engine
MAX_OBJECTIVES = 12  # per histogram; each is a query at every tick
MAX_SERIES = 320_000  # per histogram and tick; bounds the time that large fleets with many objectives take
MAX_CONFIGURATIONS = 4  # different sets of bounds that are distinguished
MAX_PARTS = 3  # pairs of bounds tried for one objective; VictoriaMetrics refuses queries of more than 16 KiB
MAX_SURE = 24  # bounds below an objective that are tried for pods with none of these pairs

_BOUND = re.compile(BOUND)


@dataclass(frozen=True)
class Bounds:
    """The finite bounds of the histograms of all pods."""

    values_s: FloatColumn  # float64[B], ascending
    series: FloatColumn  # float64[B], number of histograms with this bound
    spaces: FloatColumn  # float64[B], number of namespaces with such histograms
    spellings: tuple[tuple[str, ...], ...]  # [B], texts of the label `le`
    histograms: float  # number of histograms: each has the bound +Inf

    @classmethod
    def none(cls) -> Bounds:
        """Return bounds of no histogram."""
        return cls(np.empty(0), np.empty(0), np.empty(0), (), 0.0)


def read_bounds(vector: Vector, scale: float) -> Bounds:
    """Return the bounds in the answer to `bounds_query`; bounds that are not numbers are left out.

    scale: seconds per unit of the histogram.
    """
    found: dict[float, dict[str, float]] = {}
    histograms = 0.0
    for labels, count in zip(vector.labels, vector.values.tolist(), strict=True):
        text = parse_labels(labels).get("le", "")
        if text == "+Inf":
            histograms = count % PER_NAMESPACE
        elif _BOUND.fullmatch(text) and math.isfinite(bound := _number(text)) and count > 0:
            found.setdefault(bound, {})[text] = count
    bounds = sorted(found)
    counts = np.array([sum(found[bound].values()) for bound in bounds], np.float64)
    return Bounds(
        values_s=np.array(bounds) * scale,
        series=counts % PER_NAMESPACE,
        spaces=counts // PER_NAMESPACE,
        # A server that was just upgraded uses the other usual text, so both are added.
        spellings=tuple(tuple(sorted({*found[bound], f"{bound:g}", repr(bound)})) for bound in bounds),
        histograms=histograms,
    )


def most_common(objectives_s: FloatColumn, pods: int) -> tuple[list[float], int]:
    """Return the most common objectives, as many as one tick may query, and the number of workloads left out.

    objectives_s: float64[W], NaN for none.
    """
    values, workloads = np.unique(objectives_s[np.isfinite(objectives_s)], return_counts=True)
    most = max(min(MAX_OBJECTIVES, MAX_SERIES // max(pods, 1)), 1)
    order = np.argsort(-workloads, kind="stable")
    return values[order[:most]].tolist(), int(workloads[order[most:]].sum())


def count_expression(
    column: str,
    readings: Readings,
    identity: Identity,
    objective_s: float,
    bounds: Bounds,
    over: Over | None = None,
) -> str:
    """Return an expression for a column of `catalog.engines.WITHIN`, one series per pod; "" if no bound is usable.

    over: a function over the samples of each bucket in a window; None: the last samples.
    """
    express = rounded_up_expression if column in ROUNDED_UP else within_expression
    return express(readings, identity, objective_s, bounds, over)


def within_expression(
    readings: Readings, identity: Identity, objective_s: float, bounds: Bounds, over: Over | None = None
) -> str:
    """Return an expression for the observations within an objective, one series per pod; "" without bounds.

    If all pods have the same bounds, it computes the same as `core.table.histogram.count_within`. Otherwise several
    likely pairs of bounds are tried, the closest first, and each pod uses the first pair that it has. A pod without any
    of them counts only observations that are certainly within: its highest bucket below the objective.
    """
    parts = _candidate_parts(objective_s, bounds)
    expressions = [_interpolated(readings, identity, part, bounds, over) for part in parts]
    same_bounds = bool(np.all(bounds.series == bounds.histograms))
    sure = int(np.searchsorted(bounds.values_s, objective_s, side="right"))  # number of bounds within the objective
    if sure and not (same_bounds and parts):
        nearest = _nearest(bounds.spaces[:sure][::-1], 1 if same_bounds else MAX_SURE)
        spellings = [text for place in nearest[::-1] for text in bounds.spellings[sure - 1 - place]]
        expressions.append(bucket_expression(readings, spellings, identity, over))
    return " or ".join(expressions)


def rounded_up_expression(
    readings: Readings, identity: Identity, objective_s: float, bounds: Bounds, over: Over | None = None
) -> str:
    """Return an expression for the observations not certainly beyond an objective; "" if no bound is that high.

    It counts up to `core.table.histogram.bound_above`; if bounds differ, up to the lowest such bound of each pod.
    """
    first = int(np.searchsorted(bounds.values_s, objective_s))
    same_bounds = bool(np.all(bounds.series == bounds.histograms))
    few = [
        bounds.spellings[first + place] for place in _nearest(bounds.spaces[first:], 1 if same_bounds else MAX_PARTS)
    ]
    return " or ".join(bucket_expression(readings, spelled, identity, over) for spelled in few)


def _nearest(spaces: FloatColumn, most: int) -> list[int]:
    """Return the first candidates, and in place of the last of them the first that most namespaces have.

    So the pods of one namespace, whatever they show, displace nothing that is usual.
    """
    places = list(range(min(most, len(spaces))))
    usual = int(np.argmax(spaces)) if places else -1
    return places if usual < len(places) else [*places[:-1], usual]


def _candidate_parts(objective_s: float, bounds: Bounds) -> list[LimitPosition]:
    """Return likely pairs of bounds around an objective, the closest first.

    Bounds with equally many series likely belong to one configuration. Bounds that all series have belong to each.
    """
    numbers, having = np.unique(bounds.series, return_counts=True)
    usual = [np.ones(len(bounds.series), dtype=bool), bounds.spaces == bounds.spaces.max(initial=0)]
    for number in numbers[np.argsort(-having, kind="stable")][:MAX_CONFIGURATIONS]:
        usual += [bounds.series >= number, (bounds.series == number) | (bounds.series == bounds.histograms)]
    parts = {find_limit(objective_s, bounds.values_s[mask]) for mask in usual}
    whole = {part for part in parts if part is not None and objective_s <= part.above}
    closest = sorted(whole, key=lambda part: part.above - part.below)
    spaces = dict(zip(bounds.values_s.tolist(), bounds.spaces.tolist(), strict=True))
    of_parts = [min(spaces[each] for each in (part.below, part.above) if each in spaces) for part in closest]
    return [closest[place] for place in _nearest(np.array(of_parts), MAX_PARTS)]


def _interpolated(
    readings: Readings, identity: Identity, part: LimitPosition, bounds: Bounds, over: Over | None
) -> str:
    """Compile the sum of the buckets below an objective and a fraction of the next bucket."""
    spelled = dict(zip(bounds.values_s.tolist(), bounds.spellings, strict=True))

    def weighted(bound_s: float, fraction: float) -> str:
        bucket = bucket_expression(readings, spelled[bound_s], identity, over)
        return f"({bucket})" if fraction == 1 else f"({bucket}) * {fraction!r}"

    below = weighted(part.below, 1 - part.fraction) if part.below in spelled else ""
    above = weighted(part.above, part.fraction) if part.fraction else ""
    return " + ".join(filter(None, (below, above)))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
