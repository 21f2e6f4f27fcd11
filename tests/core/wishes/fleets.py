"""Fleets of nodes and models for plans of weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoscaler.core.table.columns import BoolColumn
from autoscaler.core.wishes.parts import Demands, DiskNodes, Models
from autoscaler.core.wishes.plan import WishPlan, plan


class Case(NamedTuple):
    models: Models
    demands: Demands
    nodes: DiskNodes
    held: BoolColumn
    before: BoolColumn

    def plan(self, before: BoolColumn | None = None) -> WishPlan:
        return plan(self.models, self.demands, self.nodes, self.held, self.before if before is None else before)

    def shuffled(self, seed: int) -> tuple[Case, np.ndarray, np.ndarray]:
        """Return the case with its models, demands and nodes in another order, and the new orders."""
        random = np.random.default_rng(seed)
        m, d, n = (random.permutation(len(each)) for each in (self.models.tie, self.demands.tie, self.nodes.tie))
        place_m, place_d, place_n = np.argsort(m), np.argsort(d), np.argsort(n)
        rows, at, pods = self.demands.running
        demands = Demands(
            place_m[self.demands.model[d]],
            self.demands.needed[d],
            self.demands.spare[d],
            self.demands.kind[d],
            self.demands.tie[d],
            (place_d[rows], place_n[at], pods),
            self.demands.namespace[d],
        )
        models = Models(*(each[m] for each in vars(self.models).values()))
        nodes = self.nodes
        nodes = DiskNodes(
            nodes.budget_bytes[n],
            nodes.zone[n],
            nodes.is_open[n],
            nodes.admits[:, n],
            nodes.free[:, n],
            nodes.tie[n],
        )
        return Case(models, demands, nodes, self.held[np.ix_(m, n)], self.before[np.ix_(m, n)]), m, n


def ties(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 1 << 63, count, dtype=np.uint64)


def case(
    sizes: list[float],
    needed: list[float],
    budgets: list[float],
    *,
    free: list[list[float]] | None = None,
    zones: list[int] | None = None,
    spare: list[float] | None = None,
    pinned: list[int] | None = None,
    priority: list[float] | None = None,
    held: list[tuple[int, int]] | None = None,
    before: list[tuple[int, int]] | None = None,
    running: list[tuple[int, int, float]] | None = None,
    closed: list[int] | None = None,
    namespaces: list[int] | None = None,
) -> Case:
    """Return a case with one demand for each model. free: places by model and node; default: one on each node.

    namespaces: of the demands; default: one for all.
    """
    count, nodes = len(sizes), len(budgets)
    places = np.array(free if free is not None else np.ones((count, nodes)), dtype=np.float64).reshape(count, nodes)
    pairs = np.zeros((2, count, nodes), dtype=bool)
    for matrix, found in zip(pairs, (held, before), strict=True):
        for model, node in found or ():
            matrix[model, node] = True
    rows, at, pods = zip(*running, strict=True) if running else ((), (), ())
    return Case(
        Models(
            np.array(sizes, dtype=np.float64),
            np.isin(np.arange(count), pinned or []),
            np.array(priority or np.zeros(count), dtype=np.float64),
            ties(count, 1),
        ),
        Demands(
            np.arange(count),
            np.array(needed, dtype=np.float64),
            np.array(spare or np.zeros(count), dtype=np.float64),
            np.arange(count),
            ties(count, 2),
            (np.array(rows, dtype=np.int64), np.array(at, dtype=np.int64), np.array(pods, dtype=np.float64)),
            np.array(namespaces or np.zeros(count), dtype=np.int64),
        ),
        DiskNodes(
            np.array(budgets, dtype=np.float64),
            np.array(zones or np.zeros(nodes), dtype=np.int64),
            ~np.isin(np.arange(nodes), closed or []),
            np.ones((count, nodes), dtype=bool),
            places,
            ties(nodes, 3),
        ),
        *pairs,
    )


def bytes_used(seen: Case, found: WishPlan) -> np.ndarray:
    return seen.models.size_bytes @ found.copies


def fleet(models: int, nodes: int, seed: int = 0, kinds: int = 8) -> Case:
    """Return a large fleet: nodes of eight GPUs in three zones, models from 2 to 140 GB, half of the GPUs in use."""
    random = np.random.default_rng(seed)
    sizes = random.choice([2e9, 16e9, 65e9, 140e9], models)
    needed = np.maximum(random.poisson(6, models), 1).astype(np.float64)
    admits = random.random((kinds, nodes)) < 0.4
    free = random.integers(0, 9, nodes) * admits.astype(np.float64)
    kind = random.integers(0, kinds, models)
    rows = np.repeat(np.arange(models), 3)
    at = np.array([random.choice(np.flatnonzero(admits[each])) for each in kind[rows]])
    running = rows, at, np.ones(len(rows))
    none = np.zeros((models, nodes), dtype=bool)
    return Case(
        Models(sizes, random.random(models) < 0.02, random.integers(0, 4, models) * 100.0, ties(models, seed + 1)),
        Demands(np.arange(models), needed, np.ceil(needed / 2), kind, ties(models, seed + 2), running, kind % 3),
        DiskNodes(
            np.full(nodes, 1e12),
            np.arange(nodes) % 3,
            np.ones(nodes, dtype=bool),
            admits,
            free,
            ties(nodes, seed + 3),
        ),
        none,
        none,
    )
