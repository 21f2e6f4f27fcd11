"""How long requests stay, and how long users wait, from histograms of the engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.adapters.prometheus.range.latency_queries import ITL, REQUEST, TTFT
from autoscaler.adapters.prometheus.range.service_queries import ServiceName
from autoscaler.core.model.spec import Spec
from autoscaler.core.table.columns import Columns, FloatColumn
from autoscaler.core.table.histogram import Histogram, quantile

LEAST_REQUESTS = 20.0
"""Observations below which a histogram says nothing."""

LONGEST_SHARE = 1e-4
"""Rounding of growth across resets leaves traces of requests; a bucket with a smaller share of all counts as empty."""


@dataclass(frozen=True)
class Durations(Columns):
    """Time from the arrival of a request to its last token; float64[W], seconds, NaN: no histogram."""

    p50_s: FloatColumn
    p90_s: FloatColumn
    p99_s: FloatColumn
    mean_s: FloatColumn  # by the middle of each bucket
    variation: FloatColumn  # standard deviation over mean
    longest_s: FloatColumn  # upper bound of the longest answers; inf: beyond the last bucket


@dataclass(frozen=True)
class ReachedLatency(Columns):
    """Latency reached beside the objective; float64[W], NaN: unknown."""

    ttft_p50_s: FloatColumn
    ttft_p99_s: FloatColumn
    ttft_objective_s: FloatColumn
    itl_p50_s: FloatColumn
    itl_p99_s: FloatColumn
    itl_objective_s: FloatColumn
    ttft_slack: FloatColumn  # objective over what the promised share of requests reached; below 1: it was missed
    itl_slack: FloatColumn


Latencies = Mapping[str, Mapping[ServiceName, Histogram]]


def measure_durations(services: Sequence[ServiceName], latencies: Latencies) -> Durations:
    """Return how long the requests of each service stayed."""
    rows = [_durations(latencies[REQUEST].get(name)) for name in services]
    return Durations(*np.array(rows, np.float64).reshape(-1, 6).T)


def measure_tolerance(services: Sequence[ServiceName], latencies: Latencies, spec: Spec) -> ReachedLatency:
    """Return what users waited for, beside the objectives of each policy."""
    ttft, itl = (
        np.array(
            [
                [quantile_of(latencies[kind].get(name), q) for q in (0.5, 0.99, float(spec.attainment[row]))]
                for row, name in enumerate(services)
            ],
            np.float64,
        ).reshape(-1, 3)
        for kind in (TTFT, ITL)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return ReachedLatency(
            ttft[:, 0],
            ttft[:, 1],
            spec.ttft_objective_s,
            itl[:, 0],
            itl[:, 1],
            spec.itl_objective_s,
            spec.ttft_objective_s / ttft[:, 2],
            spec.itl_objective_s / itl[:, 2],
        )


def quantile_of(histogram: Histogram | None, q: float) -> float:
    """Return a quantile; NaN: no histogram, or too few observations."""
    if histogram is None or histogram.counts[-1] < LEAST_REQUESTS:
        return np.nan
    return float(quantile(q, histogram.bounds, histogram.counts))


def _durations(histogram: Histogram | None) -> tuple[float, ...]:
    if histogram is None or histogram.counts[-1] < LEAST_REQUESTS or np.isinf(histogram.bounds[0]):
        return (np.nan,) * 6
    bounds, total = histogram.bounds, histogram.counts[-1]
    within = np.diff(histogram.counts, prepend=0.0)
    low = np.concatenate([[0.0], bounds[:-1]])
    # Beyond the last finite bound nothing is known but that bound.
    middle = np.where(np.isinf(bounds), low, (low + bounds) / 2)
    mean = float(np.dot(middle, within) / total)
    spread = float(np.sqrt(max(np.dot((middle - mean) ** 2, within) / total, 0.0)))
    longest = float(bounds[np.flatnonzero(within > LONGEST_SHARE * total)[-1]])
    return (*(quantile_of(histogram, q) for q in (0.5, 0.9, 0.99)), mean, spread / mean if mean else np.nan, longest)
