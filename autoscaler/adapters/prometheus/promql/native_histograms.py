"""Queries for native histograms, those with custom buckets among them: one series each, without buckets beside it.

Prometheus converts histograms to them at the scrape (`convert_classic_histograms_to_nhcb`), and no `_bucket`, `_sum` or
`_count` is left. They are asked for only where there are any: other servers do not know the functions.
Source: Prometheus 3.14 `docs/querying/functions.md`; tried with 2.42, which has them without custom buckets.
"""

from __future__ import annotations

from autoscaler.adapters.prometheus.promql.engines import PodQuery, by_identity
from autoscaler.adapters.prometheus.promql.expressions import (
    QUANTILE,
    Quantiles,
    duration,
    either,
    pooled,
    scaled,
    selectors,
    summed,
)
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.catalog.engines import QUANTILES, ROUNDED_UP, WITHIN, Engine
from autoscaler.catalog.series import Readings, Series

_FUNCTIONS = {"_count": "histogram_count", "_sum": "histogram_sum"}
_ROUNDED = frozenset({"prefill_judged"})  # counted beside a column of ROUNDED_UP, which needs the bounds of buckets


def native_queries(engine: Engine, identity: Identity, quantiles: Quantiles) -> tuple[PodQuery, ...]:
    """Return the queries for the columns that native histograms fill, but for those of objectives."""
    engine = by_identity(engine, identity)
    queries: list[PodQuery] = []
    for column, readings in engine.readings.items():
        if column in WITHIN or column in _ROUNDED or column in QUANTILES:
            continue
        parts = [
            scaled(summed(row, _whole(row, suffix, function), identity), row.scale)
            for row in readings
            for suffix, function in _FUNCTIONS.items()
            if row.name.endswith(suffix)
        ]
        if parts:
            queries.append(PodQuery(column, either(parts)))
    return (*queries, *native_quantile_queries(engine, identity, quantiles))


def native_quantile_queries(engine: Engine, identity: Identity, quantiles: Quantiles) -> tuple[PodQuery, ...]:
    """Return the queries for the quantiles of native histograms."""
    engine = by_identity(engine, identity)
    return tuple(
        PodQuery(column, _quantile(readings, identity, quantiles), grouped=quantiles.pairs is not None)
        for column, readings in engine.readings.items()
        if column in QUANTILES
    )


def native_count(column: str, readings: Readings, identity: Identity, objective_s: float) -> str:
    """Return an expression for how many observations were within an objective; "": the column needs buckets."""
    if column in ROUNDED_UP:
        return ""

    def within(text: str, most: float) -> str:
        # Of no observation the fraction is NaN, and none was within.
        counted = f"histogram_fraction(-Inf, {most!r}, {text}) * histogram_count({text}) >= 0"
        return f"{counted} or histogram_count({text}) == 0"

    return either(
        summed(row, either(within(text, objective_s / row.scale) for text in selectors(row, row.name)), identity)
        for row in readings
    )


def _whole(row: Series, suffix: str, function: str) -> str:
    return either(f"{function}({text})" for text in selectors(row, row.name.removesuffix(suffix)))


def _quantile(readings: Readings, identity: Identity, quantiles: Quantiles) -> str:
    window = duration(quantiles.window_s)

    def rates(row: Series) -> str:
        return either(f"rate({text}[{window}])" for text in selectors(row, row.name))

    return either(
        scaled(f"histogram_quantile({QUANTILE:g}, {pooled(rates(row), identity, quantiles.pairs)})", row.scale)
        for row in readings
    )
