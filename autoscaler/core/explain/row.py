"""One workload of one tick, by name: the columns that the sentence and the lines of the planner read."""

from __future__ import annotations

import numpy as np

from autoscaler.core.explain import planner_lines
from autoscaler.core.model.types import Decision, Recommender, Signal, Stage, TickInput
from autoscaler.core.observe import load
from autoscaler.core.table.columns import BoolColumn, FloatColumn, ceil_replicas


def is_changed(before: FloatColumn, after: FloatColumn) -> BoolColumn:
    """Return True where a stage changed the count.

    Rounding up to whole replicas is no change, so counts are compared after it.
    """
    return np.asarray((ceil_replicas(before) != ceil_replicas(after)) & ~(np.isnan(before) & np.isnan(after)))


class TickRow:
    """One row of a tick."""

    def __init__(self, inp: TickInput, decision: Decision, row: int) -> None:
        self.inp, self.decision, self.row = inp, decision, row
        self.figures = planner_lines.read(inp, decision, row)
        counts = np.append(self.observed("replicas"), decision.stages[:, row])
        self._changed = is_changed(counts[:-1], counts[1:]).tolist()

    def observed(self, column: str) -> float:
        return float(getattr(self.decision.observation, column)[self.row])

    def spec(self, column: str) -> float:
        return float(getattr(self.inp.spec, column)[self.row])

    def capacity(self, column: str) -> float:
        return float(getattr(self.decision.capacity, column)[self.row])

    def planned(self, column: str) -> float:
        return float(getattr(self.decision.plan, column)[self.row])

    @property
    def slots(self) -> float:
        """The requests that a replica runs at once, as engines or command lines state; infinity: unknown."""
        fleet = self.inp.fleet
        return float(load.slots(fleet, load.with_stated_slots(fleet, self.inp.samples.pods))[self.row])

    @property
    def recommender(self) -> Recommender:
        """The recommender that speaks for the workload."""
        return Recommender(int(self.decision.recommender[self.row]))

    @property
    def idle_after_s(self) -> float:
        return float(self.decision.idle_after_s[self.row])

    @property
    def kept_for_s(self) -> float:
        return float(self.decision.kept_for_s[self.row])

    @property
    def kept_window_s(self) -> float:
        return float(self.decision.kept_window_s[self.row])

    @property
    def view_age_s(self) -> float:
        """Seconds since the view of the cluster was known to be true."""
        return self.inp.now_s - self.inp.fleet.time_s

    def recommended(self, signal: Signal) -> float:
        return float(self.decision.recommendations[signal, self.row])

    def after(self, stage: Stage) -> float:
        return float(self.decision.stages[stage, self.row])

    def before(self, stage: Stage) -> float:
        return float(self.decision.stages[stage - 1, self.row]) if stage else self.observed("replicas")

    def changed(self, stage: Stage) -> bool:
        return bool(self._changed[stage])
