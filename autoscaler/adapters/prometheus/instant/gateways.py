"""Reads requests in front of the workloads: from gateways by their table, and from the queries of policies.

A partial answer may lack replicas of a gateway, so its zeros are unknown. Its other values are lower bounds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.adapters.gateways import TrustedNamespaces, WorkloadLookup, read_gateways
from autoscaler.adapters.prometheus.decode import Vector, clean, parse_labels
from autoscaler.adapters.prometheus.duplicates import NamedCluster, cluster_of, describe_clusters
from autoscaler.adapters.prometheus.instant.query_round import QueryRound
from autoscaler.adapters.prometheus.promql.gateways import gateway_arrivals_query, gateway_queue_query
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, METRIC
from autoscaler.adapters.turns import in_turns
from autoscaler.catalog.gateways import GATEWAY_NAMESPACES, Key
from autoscaler.catalog.series import SeriesByName
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.samples import GatewaySamples
from autoscaler.core.table.columns import FloatColumn

MAX_WAKE_UP_QUERIES = 32
MAX_GATEWAY_SERIES = 50_000  # per answer; a mesh may have far more destinations than there are workloads

# Labels by which a policy's query may name a workload, besides the model: those of kube-state-metrics.
_NAMES = ("deployment", "statefulset", "leaderworkerset", "workload", "service")
_IN_NAMESPACE = tuple(Key(name=name, namespace="namespace") for name in _NAMES)
_ANYWHERE = tuple(Key(name=name) for name in _NAMES)
_BY_MODEL = (Key(model="model_name"), Key(model="model"))


@dataclass(frozen=True)
class WakeUpQuery:
    """The `wakeUp.query` of a policy: a value above 0 for a workload means that requests wait for it."""

    policy: str
    query: str
    default: bool = False  # the policy also applies to workloads that name none


class GatewayReader:
    """Reads what waits and arrives in front of the workloads, at each tick."""

    def __init__(
        self,
        wake_up_queries: Callable[[], tuple[WakeUpQuery, ...]],
        trusted_namespaces: tuple[str, ...],
    ) -> None:
        """trusted_namespaces: in addition to `GATEWAY_NAMESPACES`."""
        self._wake_up_queries = wake_up_queries
        self._trusted_namespaces = (*GATEWAY_NAMESPACES, *trusted_namespaces)

    async def read(self, query_round: QueryRound, at_s: float, fleet: Fleet) -> GatewaySamples:
        """Return the requests held and arriving for each workload. at_s: Unix time by the server's clock."""
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_query(query_round, at_s, "gateway queues", gateway_queue_query()))
            arrivals = group.create_task(_query(query_round, at_s, "gateway arrivals", gateway_arrivals_query()))
            wake_ups = group.create_task(self._read_wake_ups(query_round, at_s, fleet))
        held = wake_ups.result()
        arrivals_per_s = np.full(len(fleet.workloads), np.nan)
        if waiting.result() or arrivals.result():
            trusted = TrustedNamespaces(self._trusted_namespaces)
            gateway_held, arrivals_per_s = read_gateways(fleet, waiting.result(), arrivals.result(), trusted)
            if problem := trusted.problem():
                query_round.note("gateways", clean(problem))
            if clusters := find_gateway_clusters({**waiting.result(), **arrivals.result()}):
                query_round.note("gateways", describe_clusters("metric", clusters))
            held = np.fmax(held, gateway_held)  # a policy's query may read the same gauge, so they are not added
        known = ~np.isnan(held) | ~np.isnan(arrivals_per_s)
        return GatewaySamples(np.where(known, query_round.started_s, np.nan), held, arrivals_per_s)

    async def _read_wake_ups(self, query_round: QueryRound, at_s: float, fleet: Fleet) -> FloatColumn:
        """Run the query of each policy that has one."""
        held = np.full(len(fleet.workloads), np.nan)
        queries = self._wake_up_queries()
        if len(queries) > MAX_WAKE_UP_QUERIES:
            problem = f"{len(queries)} policies have one; only the first {MAX_WAKE_UP_QUERIES} count"
            query_round.note("wakeUp.query", problem)
            queries = queries[:MAX_WAKE_UP_QUERIES]
        if not queries:
            return held
        lookup = WorkloadLookup(fleet)

        async def read(query: WakeUpQuery) -> FloatColumn:
            name = f"wakeUp.query of policy {clean(query.policy)}"
            answer = await query_round.query(name, query.query, at_s, is_ours=False)
            if answer is None:
                return np.full(len(fleet.workloads), np.nan)
            column, problems = read_wake_up(fleet, lookup, query, answer.vector)
            for problem in problems:
                query_round.note(name, problem)
            return column

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(query)) for query in queries]
        for task in tasks:
            held = np.fmax(held, task.result())
        return held


async def _query(query_round: QueryRound, at_s: float, name: str, expression: str) -> SeriesByName:
    answer = await query_round.query(name, expression, at_s)
    if answer is None:
        return {}
    if (found := len(answer.vector.labels)) > MAX_GATEWAY_SERIES:
        query_round.note(name, f"{found} series; only {MAX_GATEWAY_SERIES} count, for which namespaces take turns")
    return group_by_metric(answer.vector, MAX_GATEWAY_SERIES)


def group_by_metric(vector: Vector, limit: int) -> SeriesByName:
    """Group at most `limit` series by their label `metric`, which the gateway queries set.

    Where there are more, the namespaces that were scraped take turns: a pod may expose as many as it likes.
    """
    series: dict[str, list[tuple[dict[str, str], float]]] = {}
    rows = list(zip(map(parse_labels, vector.labels), vector.values.tolist(), strict=True))
    if len(rows) > limit:
        rows = in_turns(rows, lambda row: row[0].get("namespace", ""))[:limit]
    for labels, value in rows:
        if vector.partial and value == 0:
            continue
        series.setdefault(labels.pop(METRIC, ""), []).append((labels, value))
    return series


def find_gateway_clusters(series: SeriesByName) -> dict[tuple[str, str], set[NamedCluster]]:
    """Return the clusters, by metric, whose gateways report series that differ only in the cluster."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], set[NamedCluster]] = {}
    for metric, rows in series.items():
        for labels, _ in rows:
            if cluster := cluster_of(labels):
                rest = frozenset(item for item in labels.items() if item[0] not in CLUSTER_LABELS)
                found.setdefault((metric, rest), set()).add(cluster)
    return {(metric, ""): clusters for (metric, _), clusters in found.items() if len(clusters) > 1}


def read_wake_up(
    fleet: Fleet, lookup: WorkloadLookup, query: WakeUpQuery, vector: Vector
) -> tuple[FloatColumn, list[str]]:
    """Map the answer to a policy's query onto the workloads of that policy.

    Returns float64[W], waiting requests, NaN for workloads without a series; and problems, one line each. A series is
    matched by namespace and name, or by model. A value without labels counts only if the policy has one workload.
    """
    column = np.full(len(fleet.workloads), np.nan)
    members = [row for row, workload in enumerate(fleet.workloads) if _applies_to(query, workload.policy)]
    if not members or not len(vector.values):
        return column, []
    inside, matched, problems = set(members), False, []
    for raw, value in zip(vector.labels, vector.values.tolist(), strict=True):
        if not 0 <= value < math.inf or (vector.partial and value == 0):  # also false for NaN
            continue
        labels = parse_labels(raw)
        labels.pop("__name__", None)
        if labels:
            rows = [row for row in _find(lookup, labels) if row in inside]
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


def _applies_to(query: WakeUpQuery, policy: str) -> bool:
    return policy == query.policy or (query.default and not policy)


def _find(lookup: WorkloadLookup, labels: dict[str, str]) -> Sequence[int]:
    if found := lookup.rows(_IN_NAMESPACE if labels.get("namespace") else _ANYWHERE, labels):
        return found
    return lookup.rows(_BY_MODEL, labels)
