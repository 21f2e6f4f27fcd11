"""Building blocks of PromQL: selectors, aggregations, joins of alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoscaler.adapters.prometheus.promql.labels import PART, Identity
from autoscaler.adapters.prometheus.promql.pod_groups import Pairs, group_labels, grouped
from autoscaler.catalog.series import POD_LABELS, Series

QUANTILE = 0.95


@dataclass(frozen=True)
class Quantiles:
    """How quantiles are asked for: over a window, of groups of pods or of each pod alone."""

    window_s: float
    pairs: Pairs | None = None  # what names pods, see `groups`; None: each pod alone


def in_namespaces(series: str) -> str:
    """Return an expression for the same series with their pods' namespaces under `namespace`, whatever named them."""
    for namespace, _ in reversed(POD_LABELS):
        if namespace != "namespace":
            series = f'label_replace({series}, "namespace", "$1", "{namespace}", "(.+)")'
    return series


def summed(row: Series, series: str, identity: Identity) -> str:
    """Add up the series of each pod, those once that repeat one number."""
    return f"sum {by(*identity)} (max {by(*identity, *row.apart)} ({series}))"


def keep_all(vectors: Sequence[str]) -> str:
    """Join vectors so that all their series stay: `or` drops a series whose labels its left side has."""
    labelled = (f'label_replace({vector}, "{PART}", "{number}", "", "")' for number, vector in enumerate(vectors[1:]))
    return either([vectors[0], *labelled])


def pooled(vector: str, identity: Identity, pairs: Pairs | None, *more: str) -> str:
    """Add up series for each group of pods, or for each pod. more: labels that keep series apart."""
    if pairs is None:
        return f"sum {by(*identity, *more)} ({vector})"
    return f"sum {by(*group_labels(identity, pairs), *more)} ({grouped(vector, identity, pairs)})"


def selectors(row: Series, name: str) -> tuple[str, ...]:
    """Return the selectors for the series of a row under one name; no series passes two of them."""
    matchers = [
        f'{label}="{allowed[0]}"' if len(allowed) == 1 else f'{label}=~"{"|".join(allowed)}"'
        for label, allowed in row.where
    ]
    ways = [matchers]
    if row.foreign is not None:
        mark, own = row.foreign
        ways = [[f'{own}!=""', *ways[0]], [f'{own}="",{mark}=""', *ways[0]]]
    return tuple(f"{name}{{{','.join(way)}}}" if way else name for way in ways)


def scaled(expression: str, scale: float) -> str:
    return expression if scale == 1 else f"({expression} * {scale!r})"


def by(*labels: str) -> str:
    return f"by ({', '.join(dict.fromkeys(labels))})"


def either(alternatives: Iterable[str]) -> str:
    return " or ".join(alternatives)


def duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
