"""The shares of namespaces in a node, so that the models of one do not take the room of another's.

Everybody may annotate workloads. Where a node admits pods of several namespaces with models, those of one get at most
half of its labels. What it holds beyond half of the disk makes way for needed models of another that holds less, and
spare copies beyond half are not made. Pinned models stay. A model of several namespaces counts in each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.wishes.parts import MOST_COPIES, Demands, DiskNodes, Models

NAMESPACE_SHARE = 0.5


class Shares:
    """The share of each node that the models of each namespace take."""

    def __init__(self, models: Models, demands: Demands, nodes: DiskNodes) -> None:
        self._models, self._demands = models, demands
        names, self._of_row = np.unique(demands.namespace, return_inverse=True)
        owners: list[set[int]] = [set() for _ in models.tie]
        for model, namespace in zip(demands.model.tolist(), self._of_row.tolist(), strict=True):
            owners[model].add(namespace)
        self._owners = [sorted(each) for each in owners]
        shape = len(names), len(nodes.tie)
        admitted = np.zeros(shape, dtype=bool)
        namespace, kind = np.unique([self._of_row, demands.kind], axis=1)
        np.logical_or.at(admitted, namespace, nodes.admits[kind])
        share = np.where(admitted.sum(axis=0) > 1, NAMESPACE_SHARE, 1.0)
        self._most_bytes: FloatColumn = nodes.budget_bytes * share
        self._most_copies: IntColumn = (MOST_COPIES * share).astype(np.int64)
        self._bytes = np.zeros(shape)  # of all copies, by namespace and node
        self._copies = np.zeros(shape, dtype=np.int64)
        self._exceeding = np.zeros(len(nodes.tie), dtype=np.int64)  # namespaces beyond their share

    def turns(self) -> IntColumn:
        """Return the turn of each model: namespaces take turns among models of one priority. int64[M]."""
        models = self._models
        taken: dict[tuple[bool, float, int], int] = {}
        found = np.zeros(len(models.tie), dtype=np.int64)
        for model in np.lexsort((models.tie, -models.priority, ~models.is_pinned)).tolist():
            rank = bool(models.is_pinned[model]), float(models.priority[model])
            own = [taken.get((*rank, each), 0) for each in self._owners[model]]
            found[model] = min(own, default=0)
            for each, turn in zip(self._owners[model], own, strict=True):
                taken[*rank, each] = turn + 1
        return found

    def note(self, model: int, node: int, change: int) -> None:
        """Note a copy that comes (1) or goes (-1)."""
        for namespace in self._owners[model]:
            before = self._exceeds(namespace, node)
            self._bytes[namespace, node] += change * self._models.size_bytes[model]
            self._copies[namespace, node] += change
            self._exceeding[node] += int(self._exceeds(namespace, node)) - int(before)

    @property
    def is_exceeded(self) -> BoolColumn:
        """The nodes on which a namespace holds more than its share; bool[N]."""
        return np.asarray(self._exceeding > 0)

    def has_label(self, row: int) -> BoolColumn:
        """Return the nodes that may hold one more model of a demand's namespace; bool[N]."""
        return np.asarray(self._copies[self._of_row[row]] < self._most_copies)

    def has_bytes(self, row: int) -> BoolColumn:
        """Return the nodes on which a spare copy stays within its namespace's share, or is its only one; bool[N]."""
        own = self._bytes[self._of_row[row]]
        size = self._models.size_bytes[self._demands.model[row]]
        return np.asarray((own + size <= self._most_bytes) | (own == 0.0))

    def for_a_label(self, row: int, node: int, movable: Sequence[int]) -> list[int] | None:
        """Return the copies that must go so that a demand's namespace has a label left; None: too few of them may."""
        own = int(self._of_row[row])
        lacking = int(self._copies[own, node]) + 1 - int(self._most_copies[node])
        found = [model for model in movable if own in self._owners[model]][: max(lacking, 0)]
        return found if len(found) >= lacking else None

    def excess(self, row: int, node: int, gone: Sequence[int], candidates: Sequence[int]) -> list[int]:
        """Return the candidates beyond the shares of their namespaces, if a demand stays within its own with its model.

        gone: copies of the node that go before.
        """
        own = int(self._of_row[row])
        size = self._models.size_bytes[self._demands.model[row]]
        if not self._exceeding[node] or self._bytes[own, node] + size > self._most_bytes[node]:
            return []
        left = self._bytes[:, node].copy()
        for model in gone:
            left[self._owners[model]] -= self._models.size_bytes[model]
        found = []
        for model in candidates:
            owners = self._owners[model]
            is_beyond = own not in owners and (left[owners] > self._most_bytes[node]).all()
            if is_beyond and not self._models.is_pinned[model]:
                found.append(model)
                left[owners] -= self._models.size_bytes[model]
        return found

    def without_label(self, node: int, present: Sequence[int]) -> list[int]:
        """Return the copies of a node for which namespaces have no labels. present: the first to go first."""
        left = self._copies[:, node].copy()
        found = []
        for model in present:
            owners = self._owners[model]
            if owners and (left[owners] > self._most_copies[node]).all():
                found.append(model)
                left[owners] -= 1
        return found

    def _exceeds(self, namespace: int, node: int) -> bool:
        is_large = self._bytes[namespace, node] > self._most_bytes[node]
        return bool(is_large or self._copies[namespace, node] > self._most_copies[node])
