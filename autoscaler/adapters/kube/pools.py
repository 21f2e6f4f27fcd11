"""Accelerators by resource and product: how many the nodes have, and which pool a workload draws from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autoscaler.adapters.kube.objects import Node
from autoscaler.adapters.kube.template import PRODUCT_LABELS, Facts
from autoscaler.config.accelerators import is_accelerator
from autoscaler.core.fleet import Pool
from autoscaler.ports import Clock

PROVISIONED_LABEL = "karpenter.sh/nodepool"  # nodes that come when pods ask for them: their number is no limit
PRODUCT_LIMIT = 128  # characters of a product's name


HELD_S = 600.0
"""A node that offers less than before is believed after so long: while its kubelet or device plugin starts anew it
offers nothing, its product label may be missing, and what runs there runs on."""


class _Node(NamedTuple):
    gpus: dict[str, int]  # by resource
    labels: tuple[tuple[str, str], ...]  # those that name a product, the most trusted first
    provisioned: bool

    @property
    def product(self) -> str:
        return self.labels[0][1] if self.labels else ""

    def at_least(self, other: _Node) -> _Node:
        """Return this node with all that the other offers more."""
        gpus = {name: max(self.gpus.get(name, 0), other.gpus.get(name, 0)) for name in self.gpus | other.gpus}
        return self._replace(gpus=gpus, labels=self.labels or other.labels)


class NodeTable:
    """Receives nodes. Cordoned and not-ready ones count as well: what runs there still holds its GPUs, and a control
    plane that loses sight of nodes must not shrink anybody."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version = 0
        self._nodes: dict[str, _Node] = {}
        self._less: dict[str, tuple[float, _Node]] = {}  # since when, and what, nodes offer that offered more before

    def settle(self) -> int:
        """Believe what was less for `HELD_S`; return a number that grows when what is offered changes."""
        now_s = self._clock.now_s()
        for name, (since_s, node) in list(self._less.items()):
            if now_s - since_s >= HELD_S:
                self._keep(name, node)
                del self._less[name]
        return self._version

    def put(self, seen: Node, /) -> None:
        name, labels = seen.metadata.name, seen.metadata.labels or {}
        node = _Node(
            gpus=_gpus(seen.status.allocatable),
            labels=tuple((label, labels[label][:PRODUCT_LIMIT]) for label in PRODUCT_LABELS if labels.get(label)),
            provisioned=PROVISIONED_LABEL in labels,
        )
        before = self._nodes.get(name, node._replace(gpus=_gpus(seen.status.capacity)))
        offered = node.at_least(before)
        if offered == node:
            self._less.pop(name, None)
        else:
            since_s, _ = self._less.get(name, (self._clock.now_s(), node))
            self._less[name] = since_s, node
        self._keep(name, offered)

    def remove(self, namespace: str, name: str, /) -> None:
        self._less.pop(name, None)
        if self._nodes.pop(name, None) is not None:
            self._version += 1

    def _keep(self, name: str, node: _Node) -> None:
        if self._nodes.get(name) != node:
            self._nodes[name] = node
            self._version += 1

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
            for resource, count in node.gpus.items():
                products = offered.setdefault(resource, {})
                more = math.nan if node.provisioned else float(count)
                products[node.product] = products.get(node.product, 0.0) + more
        return offered

    def _product(self, resource: str, demanded: tuple[str, str] | None) -> str:
        """Return the name by which nodes call the product that a template demands, or the only one there is."""
        named = {
            node.product
            for node in self._nodes.values()
            if resource in node.gpus and (demanded is None or demanded in node.labels)
        }
        if len(named) == 1:
            return named.pop()
        return demanded[1][:PRODUCT_LIMIT] if demanded else ""


def _gpus(offered: Mapping[str, str | int | float] | None) -> dict[str, int]:
    return {
        name: int(count) for name, count in (offered or {}).items() if is_accelerator(name) and str(count).isdigit()
    }


def _limit(pool: Pool, offered: Mapping[str, float], anywhere: set[str]) -> float:
    """Return the devices of a pool. None at all means nodes that are still to come: no limit known."""
    if pool.resource in anywhere and len(offered) > 1:
        return math.nan
    return (offered.get(pool.product, 0.0) if pool.product else sum(offered.values())) or math.nan
