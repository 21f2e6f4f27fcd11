"""Computes the columns of one pod from the samples of one scrape, by the table of its engine. It has no state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from autoscaler.adapters.scrape.exposition import Exposition, Sample
from autoscaler.catalog.engines import HISTOGRAMS, LIMITS, ROUNDED_UP, START_TIME, WITHIN, Engine
from autoscaler.catalog.evaluate import read
from autoscaler.catalog.series import Readings, Series, beside_of, names_of
from autoscaler.core.table.histogram import Histogram, bound_above, count_within, merge

MAX_BUCKETS = 256  # per histogram; engines have some 25


def sample_names(engine: Engine) -> frozenset[bytes]:
    """Return the names of all samples that are read from an engine."""
    names = {START_TIME}
    for column, readings in engine.readings.items():
        suffix = "_bucket" if column in HISTOGRAMS else ""
        names.update(name + suffix for name in names_of(readings))
        names.update(beside_of(readings))
    return frozenset(name.encode() for name in names)


def drop_foreign_models(engine: Engine, exposition: Exposition, serves: Callable[[str], bool]) -> list[str]:
    """Drop the series of models that the pod does not serve; return the names of these models, sorted.

    serves: returns whether the pod may report a model.
    """
    label = engine.served_label
    if not label:
        return []
    named = {labels.get(label, "") for samples in exposition.series.values() for labels, _ in samples}
    foreign = {name for name in named if not serves(name)}
    if foreign:
        for name, samples in exposition.series.items():
            exposition.series[name] = [each for each in samples if each[0].get(label, "") not in foreign]
    return sorted(foreign)


def gauges_and_counters(engine: Engine, exposition: Exposition) -> dict[str, float]:
    """Return the columns that are single numbers; NaN if not reported or impossible."""
    values = {}
    for column, readings in engine.readings.items():
        if column not in HISTOGRAMS:
            value = read(readings, exposition.series)
            values[column] = value if value <= LIMITS.get(column, math.inf) else math.nan
    return values


def histograms(engine: Engine, exposition: Exposition) -> dict[str, Histogram]:
    """Return the histograms, by column, that are present and complete."""
    found = {}
    for readings, columns in engine.histograms.items():
        complete = histogram(readings, exposition)
        if complete is not None:
            found.update(dict.fromkeys(columns, complete))
    return found


def count_within_objectives(found: Mapping[str, Histogram], objectives_s: Mapping[str, float]) -> dict[str, float]:
    """Return the columns that count requests within an objective; NaN without an objective.

    found: as returned by `histograms`. objectives_s: by column of `Objectives`.
    """
    counted = {}
    for column, objective in WITHIN.items():
        if column in found:
            limit_s, (bounds, counts) = objectives_s[objective], found[column]
            limit_s = bound_above(limit_s, bounds) if column in ROUNDED_UP else limit_s
            counted[column] = float(count_within(limit_s, bounds, counts))
    return counted


def histogram(readings: Readings, exposition: Exposition) -> Histogram | None:
    """Return the sum of the first alternative that is present and complete, or None."""
    for row in readings:
        buckets = exposition.series.get(f"{row.name}_bucket")
        if row.beside and row.beside not in exposition.series:
            continue
        if buckets and (found := _fold(row, buckets)) is not None:
            return Histogram(found.bounds * row.scale, found.counts)
    return None


def start_time_s(exposition: Exposition) -> float:
    """Return the start of the process, Unix time; NaN if unknown, as with several API server processes."""
    samples = exposition.series.get(START_TIME, [])
    return samples[0][1] if len(samples) == 1 else math.nan


def _fold(row: Series, buckets: list[Sample]) -> Histogram | None:
    """Add the histograms of engines and ranks; None if one is malformed, because the sum would be too small."""
    found: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    for labels, count in buckets:
        if not row.accepts(labels):
            continue
        key, bound = labels.bucket
        if math.isnan(bound) or not 0 <= count < math.inf:
            return None
        counts = found.setdefault(key, {})
        counts[bound] = count
        if len(counts) > MAX_BUCKETS:
            return None
    distinct = row.distinct_labels
    groups: dict[tuple[str, ...], list[Histogram]] = {}
    for key, counts in found.items():
        rest = dict(key)
        groups.setdefault(tuple(rest.get(label, "") for label in distinct), []).append(_histogram(counts))
    return merge([max(group, key=_total) for group in groups.values()])


def _histogram(counts: dict[float, float]) -> Histogram:
    bounds = sorted(counts)
    return Histogram(np.array(bounds), np.array([counts[bound] for bound in bounds]))


def _total(histogram: Histogram) -> float:
    return float(histogram.counts[-1])
