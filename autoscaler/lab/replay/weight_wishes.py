"""The plan of weights in replay runs: the daemon's own (`core.wishes`), over the nodes of the simulated pool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.wishes.parts import Demands, DiskNodes, Models, TieColumn
from autoscaler.core.wishes.plan import plan
from autoscaler.core.wishes.wants import Peaks, add_expected, needed_replicas
from autoscaler.lab.replay.case import Case, View

PLAN_S = 30.0  # between two plans, as in the daemon
DISK_BYTES = 8e12  # of a node
ROUNDING = 1e-9  # sums of GPU fractions are not exact


class WeightWishes:
    """Plans which nodes should hold which weights, and lets their agents fetch them."""

    def __init__(self, cases: Sequence[Case]) -> None:
        names = [case.trace.name for case in cases]
        models = sorted(set(names))
        self._model = np.array([models.index(name) for name in names])
        self._sizes = np.zeros(len(models))
        np.maximum.at(self._sizes, self._model, [case.profile.weight_bytes for case in cases])
        self._gpus = [case.gpus_per_replica for case in cases]
        self._peaks = Peaks.none()
        self._wished: list[set[int]] = [set() for _ in models]  # nodes, by their ids
        self._due_s = 0.0

    def update(self, inp: TickInput, decision: Decision, views: Sequence[View], wall_s: float) -> None:
        """Plan again when it is due, and let nodes fetch what they should hold."""
        if inp.now_s < self._due_s:
            return
        self._due_s = inp.now_s + PLAN_S
        needed = needed_replicas(inp, decision)
        self._peaks = self._peaks.update(inp.fleet.workload_id, needed, wall_s)
        needed = add_expected(inp, decision, needed)
        by_row = [view.nodes for view in views]
        ids = [node.id for node in by_row[0]]
        shape = len(views), len(ids)
        free = [
            [math.floor(node.free_gpus / gpus + ROUNDING) for node in nodes]
            for nodes, gpus in zip(by_row, self._gpus, strict=True)
        ]
        own = np.array([[node.replicas for node in nodes] for nodes in by_row], dtype=np.float64).reshape(shape)
        rows, places = np.nonzero(own)
        held, priority = np.zeros((len(self._sizes), len(ids)), dtype=bool), np.full(len(self._sizes), -np.inf)
        for model, nodes in zip(self._model.tolist(), by_row, strict=True):
            held[model] |= np.array([node.holds_weights for node in nodes], dtype=bool)
        np.fmax.at(priority, self._model, inp.spec.priority)
        before = np.array([[node in wished for node in ids] for wished in self._wished], dtype=bool)
        found = plan(
            Models(self._sizes, np.zeros(len(self._sizes), dtype=bool), priority, _ties(len(self._sizes))),
            Demands(
                self._model,
                needed,
                self._peaks.spare(needed),
                np.arange(len(views)),
                _ties(len(views)),
                (rows, places, own[rows, places]),
                np.zeros(len(views), dtype=np.int64),
            ),
            DiskNodes(
                np.full(len(ids), DISK_BYTES),
                np.zeros(len(ids), dtype=np.int64),
                np.ones(len(ids), dtype=bool),
                np.ones(shape, dtype=bool),
                np.array(free, dtype=np.float64).reshape(shape),
                _ties(len(ids)),
            ),
            held,
            before.reshape(held.shape),
        )
        self._wished = [{ids[place] for place in np.flatnonzero(copies)} for copies in found.copies]
        for model, view in zip(self._model.tolist(), views, strict=True):
            view.fetch_weights(sorted(self._wished[model]))


def _ties(count: int) -> TieColumn:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
