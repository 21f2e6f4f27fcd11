"""Building blocks of PromQL: selectors, aggregations and alternatives joined by `or`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoscaler.adapters.prometheus.promql.labels import PART, Identity
from autoscaler.adapters.prometheus.promql.pod_groups import LabelPairs, group_labels, with_group_label
from autoscaler.catalog.series import POD_LABELS, Series

QUANTILE = 0.95


@dataclass(frozen=True)
class QuantileQuery:
    """How quantiles are queried: over which window, and per group of pods or per pod."""

    window_s: float
    pairs: LabelPairs | None = None  # labels that name pods, see `pod_groups`; None: a quantile per pod


def in_namespaces(series: str) -> str:
    """Return an expression that copies the namespace of each pod to the label `namespace`."""
    for namespace, _ in reversed(POD_LABELS):
        if namespace != "namespace":
            series = f'label_replace({series}, "namespace", "$1", "{namespace}", "(.+)")'
    return series


def sum_by_pod(row: Series, series: str, identity: Identity) -> str:
    """Sum the series of each pod; series that repeat one number count once."""
    return f"sum {by(*identity)} (max {by(*identity, *row.distinct_labels)} ({series}))"


def keep_all(vectors: Sequence[str]) -> str:
    """Join vectors and keep all series: a plain `or` drops a series whose labels its left side has."""
    labelled = (f'label_replace({vector}, "{PART}", "{number}", "", "")' for number, vector in enumerate(vectors[1:]))
    return or_join([vectors[0], *labelled])


def sum_by_group(vector: str, identity: Identity, pairs: LabelPairs | None, *more: str) -> str:
    """Sum series per group of pods, or per pod if `pairs` is None. more: further labels to group by."""
    if pairs is None:
        return f"sum {by(*identity, *more)} ({vector})"
    return f"sum {by(*group_labels(identity, pairs), *more)} ({with_group_label(vector, identity, pairs)})"


def selectors(row: Series, name: str) -> tuple[str, ...]:
    """Return selectors for the series of a row under one name. No series matches two of them."""
    matchers = [
        f'{label}="{allowed[0]}"' if len(allowed) == 1 else f'{label}=~"{"|".join(allowed)}"'
        for label, allowed in row.where
    ]
    alternatives = [matchers]
    if row.foreign is not None:
        mark, own = row.foreign
        alternatives = [[f'{own}!=""', *matchers], [f'{own}="",{mark}=""', *matchers]]
    return tuple(f"{name}{{{','.join(each)}}}" if each else name for each in alternatives)


def scaled(expression: str, scale: float) -> str:
    return expression if scale == 1 else f"({expression} * {scale!r})"


def by(*labels: str) -> str:
    return f"by ({', '.join(dict.fromkeys(labels))})"


def or_join(alternatives: Iterable[str]) -> str:
    """Join expressions by `or`."""
    return " or ".join(alternatives)


def duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
