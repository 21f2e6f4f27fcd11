"""Queries for native histograms, which are one series without buckets.

Prometheus can convert histograms at the scrape (`convert_classic_histograms_to_nhcb`); then no `_bucket`, `_sum` or
`_count` is left. Native histograms are queried only if there are any, because other servers lack the functions.
Source: Prometheus 3.14 `docs/querying/functions.md`; tested with 2.42, which has them without custom buckets.
"""

from __future__ import annotations

from autoscaler.adapters.prometheus.promql.engines import SampleQuery, for_identity
from autoscaler.adapters.prometheus.promql.expressions import (
    QUANTILE,
    QuantileQuery,
    duration,
    or_join,
    scaled,
    selectors,
    sum_by_group,
    sum_by_pod,
)
from autoscaler.adapters.prometheus.promql.labels import Identity
from autoscaler.catalog.engines import QUANTILES, ROUNDED_UP, WITHIN, Engine
from autoscaler.catalog.series import Readings, Series

_FUNCTIONS = {"_count": "histogram_count", "_sum": "histogram_sum"}
_ROUNDED = frozenset({"prefill_judged"})  # the total of a column in ROUNDED_UP, which needs bucket bounds


def native_queries(
    engine: Engine, identity: Identity, quantiles: QuantileQuery, apart: Identity = ()
) -> tuple[SampleQuery, ...]:
    """Return the queries for the columns from native histograms, except columns of objectives. See `engine_queries`."""
    engine = for_identity(engine, identity)
    queries: list[SampleQuery] = []
    for column, readings in engine.readings.items():
        if column in WITHIN or column in _ROUNDED or column in QUANTILES:
            continue
        parts = [
            scaled(sum_by_pod(row, _whole(row, suffix, function), (*identity, *apart)), row.scale)
            for row in readings
            for suffix, function in _FUNCTIONS.items()
            if row.name.endswith(suffix)
        ]
        if parts:
            queries.append(SampleQuery(column, or_join(parts)))
    return (*queries, *native_quantile_queries(engine, identity, quantiles))


def native_quantile_queries(engine: Engine, identity: Identity, quantiles: QuantileQuery) -> tuple[SampleQuery, ...]:
    """Return the queries for the quantiles of native histograms."""
    engine = for_identity(engine, identity)
    return tuple(
        SampleQuery(column, _quantile(readings, identity, quantiles), grouped=quantiles.pairs is not None)
        for column, readings in engine.readings.items()
        if column in QUANTILES
    )


def native_count(column: str, readings: Readings, identity: Identity, objective_s: float) -> str:
    """Return an expression for the observations within an objective; "" if the column needs bucket bounds."""
    if column in ROUNDED_UP:
        return ""

    def within(text: str, most: float) -> str:
        # Without observations the fraction is NaN; the count within is then 0.
        counted = f"histogram_fraction(-Inf, {most!r}, {text}) * histogram_count({text}) >= 0"
        return f"{counted} or histogram_count({text}) == 0"

    return or_join(
        sum_by_pod(row, or_join(within(text, objective_s / row.scale) for text in selectors(row, row.name)), identity)
        for row in readings
    )


def _whole(row: Series, suffix: str, function: str) -> str:
    return or_join(f"{function}({text})" for text in selectors(row, row.name.removesuffix(suffix)))


def _quantile(readings: Readings, identity: Identity, quantiles: QuantileQuery) -> str:
    window = duration(quantiles.window_s)

    def rates(row: Series) -> str:
        return or_join(f"rate({text}[{window}])" for text in selectors(row, row.name))

    return or_join(
        scaled(f"histogram_quantile({QUANTILE:g}, {sum_by_group(rates(row), identity, quantiles.pairs)})", row.scale)
        for row in readings
    )
