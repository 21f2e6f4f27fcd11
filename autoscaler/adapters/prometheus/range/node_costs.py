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
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from autoscaler.adapters.prometheus.promql.expressions import by, or_join
from autoscaler.adapters.prometheus.promql.gpus import GPU_PRESENCE
from autoscaler.adapters.prometheus.promql.labels import CLUSTER_LABELS, Identity
from autoscaler.adapters.prometheus.promql.pod_groups import group_labels, with_group_label
from autoscaler.adapters.prometheus.range.reader import RangeReader
from autoscaler.adapters.prometheus.range.service_queries import ServiceName, moments_s, service_of
from autoscaler.catalog.devices import find_device, find_instance
from autoscaler.catalog.node_labels import (
    CAPACITY_TYPES,
    ON_DEMAND_UNLESS_STATED,
    RESERVATION_LABELS,
    capacity_type,
)
from autoscaler.catalog.series import POD_LABELS, Labels
from autoscaler.config.findings import shown
from autoscaler.config.prices import MOST_USD, key_of
from autoscaler.core.model.fleet import ON_DEMAND, SPOT

COST, IS_SPOT = "node_gpu_hourly_cost", "kubecost_node_is_spot"
POD_NODES, NODE_LABELS = "kube_pod_info", "kube_node_labels"
MOST_PROBLEMS = 5
HOSTS = ("exported_node", "node", "exported_instance", "instance")
"""Labels by which OpenCost names a node; the first where the scrape has moved its own labels."""


class NodeCosts(NamedTuple):
    """The prices of nodes that were read, and problems."""

    prices: dict[str, float]  # USD for an hour of a whole device, by `key_of`
    problems: tuple[str, ...]  # values that are not believed, and products that are not known


def read_node_costs(reader: RangeReader, span_s: tuple[float, float]) -> NodeCosts:
    """Return the mean price of each product over its nodes and the span. Raises Unavailable.

    A price is that of spot nodes and of others, and under the plain name of the product that of all its nodes.
    """
    rows = reader.query(f"max {by(*HOSTS, 'instance_type', *CLUSTER_LABELS)} ({COST})", *span_s, moments_s(span_s))
    if not rows:
        return NodeCosts({}, ())
    spot = {
        _node(row["metric"]): bool(row["values"][-1, 1] > 0)
        for row in reader.query(f"max {by(*HOSTS, *CLUSTER_LABELS)} ({IS_SPOT})", *span_s, moments_s(span_s))
    }
    products = _products(reader, span_s)
    found: defaultdict[str, list[float]] = defaultdict(list)
    problems: dict[str, None] = {}
    for row in rows:
        labels, node, costs = row["metric"], _node(row["metric"]), row["values"][:, 1]
        kind = labels.get("instance_type", "")
        product = kind if find_instance(kind) is not None else products.get(node, "")
        if (costs == 0).all() and not product:
            continue  # a node without GPUs
        believed = (costs > 0) & (costs <= MOST_USD)  # False for NaN
        if not believed.all():
            odd = float(costs[~believed][-1])
            allowed = f"above 0, at most {MOST_USD:,.0f}"
            problems[f"{COST} of {shown(node[-1])} is {odd:g}, which is not believed; allowed: {allowed}"] = None
        if not believed.any():
            continue
        if not product or find_device(product) is None:
            problems[f"{COST} of {shown(node[-1])} is of no known device: its instance type is {shown(kind)}"] = None
            continue
        usd = float(costs[believed].mean())
        found[product].append(usd)
        if node in spot:
            found[key_of(product, SPOT if spot[node] else ON_DEMAND)].append(usd)
    more = len(problems) - MOST_PROBLEMS
    said = (*list(problems)[:MOST_PROBLEMS], *([f"{COST}: {more} more problems of this kind"] if more > 0 else []))
    return NodeCosts({key: math.fsum(costs) / len(costs) for key, costs in found.items()}, said)


def read_capacity_types(reader: RangeReader, span_s: tuple[float, float]) -> dict[ServiceName, str]:
    """Return how the nodes of each service were paid for at any time of the span. Raises Unavailable.

    Labels of nodes go before OpenCost. Several ways are joined as in `Pool.capacity_type`. A service of which nothing
    is known is left out.
    """
    pod: Identity = (*chain.from_iterable(POD_LABELS), *CLUSTER_LABELS)
    pods, place = f"max {by(*pod, 'node')} ({POD_NODES})", ("node", *CLUSTER_LABELS)

    def read(nodes: str, carried: tuple[str, ...]) -> Iterator[tuple[ServiceName, Labels]]:
        joined = (
            f"{pods} * on ({', '.join(place)}) group_left ({', '.join(carried)}) max {by(*place, *carried)} ({nodes})"
        )
        query = f"count {by(*group_labels(pod, POD_LABELS), *carried)} ({with_group_label(joined, pod, POD_LABELS)})"
        for row in reader.query(query, *span_s, moments_s(span_s)):
            name = service_of(row["metric"])
            if name.name:
                yield name, row["metric"]

    labelled: defaultdict[ServiceName, set[str]] = defaultdict(set)
    for name, labels in read(NODE_LABELS, tuple(_LABELS)):
        labelled[name].add(capacity_type({key: labels[ours] for ours, key in _LABELS.items() if labels.get(ours)}))
    known = {name: paid for name, paid in labelled.items() if "" not in paid}
    told: defaultdict[ServiceName, set[str]] = defaultdict(set)
    for nodes, paid_for in (
        (f"{IS_SPOT} * 0 + 1 and {IS_SPOT} > 0", SPOT),
        (f"{IS_SPOT} + 1 and {IS_SPOT} == 0", ON_DEMAND),
    ):
        for name, _ in read(nodes, ()):
            told[name].add(paid_for)
    return {name: " or ".join(sorted(paid)) for name, paid in ({**told, **known}).items()}


def metric_label(key: str) -> str:
    """Return the name that kube-state-metrics gives a label of an object."""
    snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", key).lower()
    return f"label_{re.sub(r'[^a-z0-9_]', '_', snake)}"


_LABELS = {metric_label(key): key for key in (*CAPACITY_TYPES, *RESERVATION_LABELS, *ON_DEMAND_UNLESS_STATED)}


def _node(labels: Labels, hosts: tuple[str, ...] = HOSTS) -> tuple[str, ...]:
    """Return what tells a node from others."""
    host = next((labels[name] for name in hosts if labels.get(name)), "")
    return (*(labels.get(name, "") for name in CLUSTER_LABELS), host.partition(":")[0])


def _products(reader: RangeReader, span_s: tuple[float, float]) -> dict[tuple[str, ...], str]:
    """Return the product of each node's devices as DCGM names it."""
    hosts = ("Hostname", "hostname", "node")
    query = or_join(f"max {by(*hosts, 'modelName', *CLUSTER_LABELS)} ({name})" for name in GPU_PRESENCE)
    found = {}
    for row in reader.query(query, *span_s, moments_s(span_s)):
        for host in hosts:
            found[_node(row["metric"], (host,))] = row["metric"].get("modelName", "").replace(" ", "-")
    return found
