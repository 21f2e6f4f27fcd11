"""Prices of devices as OpenCost and Kubecost export them, and how the nodes of services are paid for.

`node_gpu_hourly_cost` is the cost of one GPU of a node, with the labels instance, node, instance_type, region,
provider_id, arch and uid; `kubecost_node_is_spot` has the same. A node without GPUs has 0. Source: OpenCost,
pkg/costmodel/metrics.go. The way of paying also comes from labels of nodes, which kube-state-metrics shows where
`--metric-labels-allowlist` names them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from autoscaler.adapters.prometheus.duplicates import cluster_of
from autoscaler.adapters.prometheus.promql.expressions import by, or_join
from autoscaler.adapters.prometheus.promql.gpus import GPU_PRESENCE
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, Identity
from autoscaler.adapters.prometheus.promql.matchers import NAMESPACE_ORDER
from autoscaler.adapters.prometheus.promql.pod_groups import group_labels, with_group_label
from autoscaler.adapters.prometheus.range.fair_query import as_stored, query_fairly
from autoscaler.adapters.prometheus.range.reader import RangeReader, Rows
from autoscaler.adapters.prometheus.range.service_queries import ServiceName, believed, moments_s
from autoscaler.catalog.devices import find_device, find_instance
from autoscaler.catalog.node_labels import (
    CAPACITY_TYPES,
    ON_DEMAND_UNLESS_STATED,
    RESERVATION_LABELS,
    capacity_type,
)
from autoscaler.catalog.series import POD_LABELS, Labels
from autoscaler.config.findings import name_some, shown
from autoscaler.config.prices import key_of
from autoscaler.core.model.fleet import ON_DEMAND, SPOT

COST, IS_SPOT = "node_gpu_hourly_cost", "kubecost_node_is_spot"
POD_NODES, NODE_LABELS = "kube_pod_info", "kube_node_labels"
MOST_PROBLEMS = 10
LEAST_USD, MOST_USD = 0.001, 1000.0
"""A GPU's price in an hour that is believed. List prices lie between 0.1 and 15 USD."""

MOST_APART = 0.01
"""Part by which several sources may differ and still say the same."""

SOURCE = ("job", *NAMESPACE_ORDER)
"""Labels that tell who exports prices. Two replicas of one exporter are one source."""

HOSTS = ("exported_node", "node", "exported_instance", "instance")
"""Labels by which OpenCost names a node; the first where the scrape has moved its own labels."""

Node = tuple[str, ...]  # its cluster and its name
Source = tuple[str, ...]  # values of the labels in SOURCE


class NodeCosts(NamedTuple):
    """The prices of nodes that were read, and problems."""

    prices: Mapping[str, Mapping[str, float]]  # by cluster, then USD for an hour of a whole device by `key_of`
    problems: tuple[str, ...]  # values and sources that are not believed, and products that are not known


def read_node_costs(reader: RangeReader, span_s: tuple[float, float]) -> NodeCosts:
    """Return the mean price of each product over its nodes and the span, in each cluster. Raises Unavailable.

    A price is that of spot nodes and of others, and under the plain name of the product that of all its nodes. Any
    scraped pod may export prices, so one on which the sources of a cluster do not agree is not believed.
    """
    problems: dict[str, None] = {}

    def read(function: str, series: str, *labels: str) -> Rows:
        query, counted = f"{function} {by(*labels)} ({series})", as_stored(series, *labels)
        return query_fairly(reader, query, *span_s, moments_s(span_s), problems, counted)

    labels = (*HOSTS, "instance_type", *CLUSTER_LABELS, *SOURCE)
    rows = read("max", COST, *labels)
    if not rows:
        return NodeCosts({}, ())
    least = {_key(row["metric"], labels): dict(row["values"].tolist()) for row in read("min", COST, *labels)}
    spot = _spot_nodes(read("max", IS_SPOT, *HOSTS, *CLUSTER_LABELS), read("min", IS_SPOT, *HOSTS, *CLUSTER_LABELS))
    products = _products(reader, span_s, problems)
    found: defaultdict[tuple[str, str], defaultdict[Source, list[float]]] = defaultdict(lambda: defaultdict(list))
    sources: defaultdict[str, set[Source]] = defaultdict(set)
    for row in rows:
        labels_of, node, (at_s, costs) = row["metric"], _node(row["metric"]), row["values"].T
        named = cluster_of(labels_of)
        cluster, source = named.name if named else "", _key(labels_of, SOURCE)
        kind = labels_of.get("instance_type", "")
        product = kind if find_instance(kind) is not None else products.get(node, "")
        if (costs == 0).all() and not product:
            continue  # a node without GPUs
        sources[cluster].add(source)
        others = least.get(_key(labels_of, labels), {})
        same = costs <= np.array([others.get(each, math.nan) for each in at_s.tolist()]) * (1 + MOST_APART)
        possible = (costs >= LEAST_USD) & (costs <= MOST_USD)  # False for NaN
        if not possible.all():
            odd, allowed = float(costs[~possible][-1]), f"{LEAST_USD:g} to {MOST_USD:,.0f}"
            problems[f"{COST} of {shown(node[-1])} is {odd:g}, which is not believed; allowed: {allowed}"] = None
        elif not same.all():
            problems[f"{COST} of {shown(node[-1])} has several values at one time, and none is believed"] = None
        if not (possible & same).any():
            continue
        if not product or find_device(product) is None:
            problems[f"{COST} of {shown(node[-1])} is of no known device: its instance type is {shown(kind)}"] = None
            continue
        usd = float(costs[possible & same].mean())
        for paid in ("", *([SPOT if spot[node] else ON_DEMAND] if node in spot else ())):
            found[cluster, key_of(product, paid)][source].append(usd)
    prices, untrue = _agreed(found, sources)
    more = len(problems) - MOST_PROBLEMS
    said = (*list(problems)[:MOST_PROBLEMS], *([f"{COST}: {more} more problems of this kind"] if more > 0 else []))
    return NodeCosts(prices, (*untrue, *said))


def _agreed(
    found: Mapping[tuple[str, str], Mapping[Source, list[float]]], sources: Mapping[str, set[Source]]
) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
    """Return the prices that all sources of a cluster tell alike, by cluster, and where they do not."""
    prices: defaultdict[str, dict[str, float]] = defaultdict(dict)
    unlike: defaultdict[str, list[str]] = defaultdict(list)
    for (cluster, key), told in found.items():
        means = [math.fsum(costs) / len(costs) for costs in told.values()]
        if len(means) == len(sources[cluster]) and max(means) <= min(means) * (1 + MOST_APART):
            prices[cluster][key] = math.fsum(means) / len(means)
        else:
            unlike[cluster].append(key)
    said = [
        f"{COST}{_of(clusters)} has sources that differ ({named}), so none is believed about "
        f"{name_some([*dict.fromkeys(key for cluster in clusters for key in unlike[cluster])])}: "
        "state prices with --price, or scrape one exporter alone"
        for named, clusters in _by_sources(unlike, sources).items()
    ]
    said += [
        f"prices of GPUs{_of(clusters)} come from {named}" for named, clusters in _by_sources(prices, sources).items()
    ]
    return dict(prices), tuple(said)


def _by_sources(clusters: Iterable[str], sources: Mapping[str, set[Source]]) -> dict[str, list[str]]:
    """Return the clusters by the names of their sources: a pod may write of as many clusters as it likes."""
    found: dict[str, list[str]] = {}
    for cluster in clusters:
        found.setdefault(_names(sources[cluster]), []).append(cluster)
    return found


def _of(clusters: Sequence[str]) -> str:
    if clusters == [""]:
        return ""
    return f" of cluster{'s' * (len(clusters) > 1)} {name_some(sorted(clusters))}"


def _names(sources: Iterable[Source]) -> str:
    """Name the jobs of sources, and their namespaces."""
    named = ("/".join(filter(None, (next(filter(None, spaces), ""), job))) for job, *spaces in sources)
    return name_some(sorted({each or "a scrape without labels" for each in named}))


def _spot_nodes(most: Rows, least: Rows) -> dict[Node, bool]:
    """Return which nodes are spot, as all that tell of them say at the end; others are not in it."""
    said: defaultdict[Node, set[float]] = defaultdict(set)
    for row in (*most, *least):
        said[_node(row["metric"])].add(float(row["values"][-1, 1]))
    return {node: values == {1.0} for node, values in said.items() if values in ({0.0}, {1.0})}


def read_capacity_types(
    reader: RangeReader, span_s: tuple[float, float], problems: dict[str, None]
) -> dict[ServiceName, str]:
    """Return how the nodes of each service were paid for at any time of the span. Raises Unavailable.

    Labels of nodes go before OpenCost. Several ways are joined as in `Pool.capacity_type`. A service of which nothing
    is known is left out, and so is one on a node of which series differ: any scraped pod may write of nodes.
    """
    pod: Identity = (*chain.from_iterable(POD_LABELS), *CLUSTER_LABELS)
    pods, place = f"max {by(*pod, 'node')} ({POD_NODES})", ("node", *CLUSTER_LABELS)

    def read(nodes: str, carried: tuple[str, ...]) -> Iterator[tuple[ServiceName, Labels]]:
        joined = f"{pods} * on ({', '.join(place)}) group_left ({', '.join(carried)}) ({nodes})"
        query = f"count {by(*group_labels(pod, POD_LABELS), *carried)} ({with_group_label(joined, pod, POD_LABELS)})"
        rows = query_fairly(reader, query, *span_s, moments_s(span_s), problems)
        for name, row in believed(rows, lambda row: _key(row["metric"], carried), problems):
            if name.name:
                yield name, row["metric"]

    labelled: defaultdict[ServiceName, set[str]] = defaultdict(set)
    alike = f"group {by(*place, *_LABELS)} ({NODE_LABELS})"
    number = f"count {by(*place)} ({alike})"
    for name, labels in read(f"{alike} and on ({', '.join(place)}) ({number} == 1) or {number} > 1", tuple(_LABELS)):
        labelled[name].add(capacity_type({key: labels[ours] for ours, key in _LABELS.items() if labels.get(ours)}))
    told: defaultdict[ServiceName, set[str]] = defaultdict(set)
    most, least = (f"{function} {by(*place)} ({IS_SPOT})" for function in ("max", "min"))
    for nodes, paid_for in (
        (f"{most} == 1 and {least} == 1", SPOT),
        (f"{most} == 0 and {least} == 0", ON_DEMAND),
        (f"{most} != {least}", ""),  # NaN, too
    ):
        for name, _ in read(nodes, ()):
            told[name].add(paid_for)
    known = ((name, paid) for each in (told, labelled) for name, paid in each.items() if "" not in paid)
    return {name: " or ".join(sorted(paid)) for name, paid in known}


def metric_label(key: str) -> str:
    """Return the name that kube-state-metrics gives a label of an object."""
    snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", key).lower()
    return f"label_{re.sub(r'[^a-z0-9_]', '_', snake)}"


_LABELS = {metric_label(key): key for key in (*CAPACITY_TYPES, *RESERVATION_LABELS, *ON_DEMAND_UNLESS_STATED)}


def _node(labels: Labels, hosts: tuple[str, ...] = HOSTS) -> Node:
    """Return what tells a node from others."""
    host = next((labels[name] for name in hosts if labels.get(name)), "")
    return (*_key(labels, CLUSTER_LABELS), host.partition(":")[0])


def _key(labels: Labels, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in names)


def _products(reader: RangeReader, span_s: tuple[float, float], problems: dict[str, None]) -> dict[Node, str]:
    """Return the product of each node's devices as DCGM names it, if it names one alone."""
    hosts = ("Hostname", "hostname", "node")
    labels = (*hosts, "modelName", *CLUSTER_LABELS)
    query = or_join(f"max {by(*labels)} ({name})" for name in GPU_PRESENCE)
    counted = or_join(as_stored(name, *labels) for name in GPU_PRESENCE)
    found: defaultdict[Node, set[str]] = defaultdict(set)
    for row in query_fairly(reader, query, *span_s, moments_s(span_s), problems, counted):
        for host in hosts:
            found[_node(row["metric"], (host,))].add(row["metric"].get("modelName", "").replace(" ", "-"))
    return {node: models.pop() for node, models in found.items() if len(models) == 1}
