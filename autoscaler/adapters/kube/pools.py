"""GPUs by resource and product: how many the nodes have, and which pool a workload draws from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kube.objects import Node
from autoscaler.adapters.kube.targets import PRODUCT_LABELS, Facts, is_gpu
from autoscaler.core.fleet import Pool

PROVISIONED_LABEL = "karpenter.sh/nodepool"  # nodes that come when pods ask for them: their number is no limit
PRODUCT_LIMIT = 128  # characters of a product's name


class _Node(NamedTuple):
    gpus: tuple[tuple[str, int], ...]  # by resource
    labels: tuple[tuple[str, str], ...]  # those that name a product, the most trusted first
    provisioned: bool

    @property
    def product(self) -> str:
        return self.labels[0][1] if self.labels else ""


class NodeTable:
    """Receives nodes. Cordoned and not-ready ones count as well: what runs there still holds its GPUs, and a control
    plane that loses sight of nodes must not shrink anybody."""

    def __init__(self) -> None:
        self.version = 0
        self._nodes: dict[str, _Node] = {}

    def put(self, seen: Node, /) -> None:
        labels = seen.metadata.labels or {}
        node = _Node(
            gpus=tuple(
                (name, int(count))
                for name, count in sorted((seen.status.allocatable or {}).items())
                if is_gpu(name) and str(count).isdigit()
            ),
            labels=tuple((label, labels[label][:PRODUCT_LIMIT]) for label in PRODUCT_LABELS if labels.get(label)),
            provisioned=PROVISIONED_LABEL in labels,
        )
        if self._nodes.get(seen.metadata.name) != node:
            self._nodes[seen.metadata.name] = node
            self.version += 1

    def remove(self, namespace: str, name: str, /) -> None:
        if self._nodes.pop(name, None) is not None:
            self.version += 1

    def pools(self, wanted: Sequence[Facts]) -> tuple[list[int], tuple[Pool, ...], list[float]]:
        """Return the pool of each workload (-1: unknown), the pools, and their GPUs (NaN: no limit known).

        A template without a product may run on any; where nodes offer several, what it takes from which is not known,
        so pools of that resource are then not shared out.
        """
        products: dict[tuple[str, tuple[str, str] | None], str] = {}
        pools: dict[Pool, int] = {}
        rows = []
        for facts in wanted:
            if not facts.resource:
                rows.append(-1)
                continue
            need = facts.resource, facts.product
            if need not in products:
                products[need] = self._product(*need)
            rows.append(pools.setdefault(Pool(facts.resource, products[need]), len(pools)))
        offered = self._offered()
        anywhere = {pool.resource for pool in pools if not pool.product}
        return rows, tuple(pools), [_limit(pool, offered.get(pool.resource, {}), anywhere) for pool in pools]

    def _offered(self) -> dict[str, dict[str, float]]:
        """Return devices by resource and product; NaN where nodes are made on demand."""
        offered: dict[str, dict[str, float]] = {}
        for node in self._nodes.values():
            for resource, count in node.gpus:
                products = offered.setdefault(resource, {})
                more = math.nan if node.provisioned else float(count)
                products[node.product] = products.get(node.product, 0.0) + more
        return offered

    def _product(self, resource: str, demanded: tuple[str, str] | None) -> str:
        """Return the name by which nodes call the product that a template demands, or the only one there is."""
        named = {
            node.product
            for node in self._nodes.values()
            if any(resource == name for name, _ in node.gpus) and (demanded is None or demanded in node.labels)
        }
        if len(named) == 1:
            return named.pop()
        return demanded[1][:PRODUCT_LIMIT] if demanded else ""


def _limit(pool: Pool, offered: Mapping[str, float], anywhere: set[str]) -> float:
    """Return the devices of a pool. None at all means nodes that are still to come: no limit known."""
    if pool.resource in anywhere and len(offered) > 1:
        return math.nan
    return (offered.get(pool.product, 0.0) if pool.product else sum(offered.values())) or math.nan
