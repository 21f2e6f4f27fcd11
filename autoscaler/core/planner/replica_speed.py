"""What readings teach of an engine: how fast a replica is, and how many requests it can run.

The line that is drawn through the readings is in `speed`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.planner import step_time
from autoscaler.core.planner.pod_work import Tally
from autoscaler.core.planner.step_time import Speed
from autoscaler.core.table.columns import Columns, FloatColumn, replace

FULL = 0.9
"""Of the most requests that were ever seen in a replica: with a queue behind it so many fill it."""

SLOTS_FADE_S = 50 * 86_400.0
"""Time constant with which the most requests are forgotten: an engine may be started again with fewer slots."""

COMPUTING = 0.7
"""Busy share of its time from which a queue is put down to computing, not to a lack of slots."""


@dataclass(frozen=True)
class Engine(Columns):
    """What was learned of those of a workload; float64[W] unless stated."""

    steps: FloatColumn  # float64[speed.SUMS, W], what readings taught, fading
    readings: FloatColumn  # of pods, that taught them, not fading
    shortest_gap_s: FloatColumn  # between tokens, of any pod; NaN: none seen
    most_running: FloatColumn  # requests, of the fullest pod ever, fading slowly
    slots: FloatColumn  # requests that a replica can run; NaN: never seen full

    @classmethod
    def blank(cls, rows: int) -> Engine:
        none, unknown = np.zeros(rows), np.full(rows, np.nan)
        return cls(np.zeros((step_time.SUMS, rows)), none, unknown, none, unknown)


def learn(engine: Engine, tally: Tally, step_s: FloatColumn) -> tuple[Engine, Speed]:
    """Add what was read since then; also returns how fast replicas are by that."""
    steps = engine.steps * np.exp(-step_s / step_time.FADE_S) + tally.lessons
    readings = engine.readings + tally.readings
    shortest_gap_s = step_time.shortest(engine.shortest_gap_s, tally.shortest_gap_s, step_s)
    learned = step_time.fit(steps, readings, shortest_gap_s)
    most_running = np.fmax(engine.most_running * np.exp(-step_s / SLOTS_FADE_S), tally.most_running)
    slots = _count_slots(engine.slots, most_running, tally, learned.idle_gap_s)
    return Engine(steps, readings, shortest_gap_s, most_running, slots), learned


def see_slots(engine: Engine, tally: Tally) -> Engine:
    """Learn slots alone from what was read since, between two lessons."""
    most_running = np.fmax(engine.most_running, tally.most_running)
    slots = _count_slots(engine.slots, most_running, tally, speed_of(engine).idle_gap_s)
    return replace(engine, most_running=most_running, slots=slots)


def speed_of(engine: Engine) -> Speed:
    """Return how fast replicas are, as far as it is known."""
    return step_time.fit(engine.steps, engine.readings, engine.shortest_gap_s)


def _count_slots(slots: FloatColumn, most_running: FloatColumn, tally: Tally, idle_gap_s: FloatColumn) -> FloatColumn:
    """Learn how many requests a replica can run, from those that had a queue and ran as many as any ever did.

    A queue alone says little: who computes all the time has one, too, and for a moment one waits for the token budget
    of a step.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        spare = idle_gap_s * tally.gaps / tally.gap_s > 1 - COMPUTING
    slots = np.where(spare & (tally.full_running >= FULL * most_running), most_running, slots)
    slots = np.where((slots < FULL * most_running) | (slots < 1), np.nan, slots)  # it ran more without a queue
    return np.where(np.isnan(tally.slots), slots, tally.slots)
