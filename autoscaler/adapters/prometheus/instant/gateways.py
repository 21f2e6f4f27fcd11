"""What is seen in front of the workloads, out of answers: gateways by their table, and the policies' own expressions.

A partial answer may lack some of a gateway's replicas, so its zeros are unknown; what it does hold is held at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.adapters.gateways import WorkloadNames
from autoscaler.adapters.prometheus.decode import Vector, parse_labels
from autoscaler.adapters.prometheus.duplicates import Cluster, cluster_of
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, METRIC
from autoscaler.catalog.gateways import Key
from autoscaler.catalog.series import SeriesByName
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.table.columns import FloatColumn

# Labels by which a policy's own expression may name a workload, besides the model: those of kube-state-metrics.
_NAMES = ("deployment", "statefulset", "leaderworkerset", "workload", "service")
_IN_NAMESPACE = tuple(Key(name=name, namespace="namespace") for name in _NAMES)
_ANYWHERE = tuple(Key(name=name) for name in _NAMES)
_BY_MODEL = (Key(model="model_name"), Key(model="model"))


@dataclass(frozen=True)
class FrontQuery:
    """A policy's `wakeUp.query`: above 0 for a workload, somebody waits for it."""

    policy: str
    query: str
    default: bool = False  # the policy is also that of workloads that name none


def by_metric(vector: Vector, limit: int) -> SeriesByName:
    """Sort the first `limit` series by their label `metric`, which the queries of `queries.front_*` set."""
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    for raw, value in zip(vector.labels[:limit], vector.values[:limit].tolist(), strict=True):
        if vector.partial and value == 0:
            continue
        labels = parse_labels(raw)
        series.setdefault(labels.pop(METRIC, ""), []).append((labels, value))
    return series


def clusters_of(series: SeriesByName) -> dict[tuple[str, str], set[Cluster]]:
    """Return, by metric, the clusters whose gateways say something of one name; none where each is of one cluster."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], set[Cluster]] = {}
    for metric, rows in series.items():
        for labels, _ in rows:
            if cluster := cluster_of(labels):
                rest = frozenset(item for item in labels.items() if item[0] not in CLUSTER_LABELS)
                found.setdefault((metric, rest), set()).add(cluster)
    return {(metric, ""): clusters for (metric, _), clusters in found.items() if len(clusters) > 1}


def read_wakeup(fleet: Fleet, names: WorkloadNames, query: FrontQuery, vector: Vector) -> tuple[FloatColumn, list[str]]:
    """Bring the answer to a policy's expression onto the workloads under that policy.

    Returns float64[W], requests waiting, NaN where nothing is said; and problems, one line each. A series is matched
    by namespace and name, or by model. A value without labels counts for the only workload of the policy, else not.
    """
    column = np.full(len(fleet.workloads), np.nan)
    members = [row for row, workload in enumerate(fleet.workloads) if _under(workload.policy, query)]
    if not members or not len(vector.values):
        return column, []
    inside, matched, problems = set(members), False, []
    for raw, value in zip(vector.labels, vector.values.tolist(), strict=True):
        if not 0 <= value < math.inf or (vector.partial and value == 0):  # NaN fails as well
            continue
        labels = parse_labels(raw)
        labels.pop("__name__", None)
        if labels:
            rows = [row for row in _find(names, labels) if row in inside]
        elif len(members) == 1:
            rows = members
        else:
            rows = []
            problems.append(
                f"a value without labels, but the policy has {len(members)} workloads; "
                "keep namespace and deployment, or model_name, in the expression"
            )
        for row in rows:
            matched = True
            column[row] = np.nan_to_num(column[row]) + value / len(rows)
    if not matched and not problems:
        problems.append(
            f"none of {len(vector.values)} series is about a workload of the policy; "
            f"the labels that count are namespace with {', '.join(_NAMES)}, or model_name"
        )
    return column, problems


def _under(policy: str, query: FrontQuery) -> bool:
    return policy == query.policy or (query.default and not policy)


def _find(names: WorkloadNames, labels: dict[str, str]) -> Sequence[int]:
    if found := names.rows(_IN_NAMESPACE if labels.get("namespace") else _ANYWHERE, labels):
        return found
    return names.rows(_BY_MODEL, labels)
