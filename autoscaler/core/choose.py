"""The switch between the two recommenders: which of them speaks for each workload.

The planner weighs the load in its own way, and the same load against a learned capacity would only add to it. So while
the planner speaks, the reactive signals that it weighs are left out. A queue in which requests wait for longer than the
policy allows shows that the planner is wrong; then all signals speak. The stage BURST decides what it is worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.measure.step_time import MIN_READINGS
from autoscaler.core.model.types import Choice, Recommendation, Recommender, Signal, TickInput, Weighed
from autoscaler.core.observe import load
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.planner.strategies import UPDATE_INTERVAL_S
from autoscaler.core.table.columns import (
    BoolColumn,
    Columns,
    FloatColumn,
    IntColumn,
    TimestampColumn,
    Transient,
    ceil_replicas,
)

PLANNER_DUE_S = (MIN_READINGS + 1) * UPDATE_INTERVAL_S
"""Within this long the planner recommends for engines that are read and busy, even for a single one that is new."""

FIRST_READINGS_S = 15.0
"""A replica is read twice within this many seconds of becoming ready."""

WEIGHED, UNWEIGHED = (
    np.array([signal for signal in Signal if signal.weighed is weighed]) for weighed in (Weighed.ALWAYS, Weighed.NEVER)
)


@dataclass(frozen=True)
class ChoiceState(Columns):
    """The table of this stage; float64[W]."""

    last_planned_s: Transient[TimestampColumn]
    """Last moment at which the planner recommended, the load was unknown, or no replica served."""


def choose(
    inp: TickInput,
    observed: Observed,
    reactive: Recommendation,
    planner: Recommendation,
    weighs_itl: BoolColumn,
    before: ChoiceState,
) -> tuple[Choice, ChoiceState]:
    """Choose which recommender speaks for each workload.

    weighs_itl: bool[W], the planner counts the requests that met the ITL objective.
    """
    has_policy = ~np.isnan(inp.spec.max_replicas)
    signals = np.where(has_policy, np.fmax(reactive.signals, planner.signals), np.nan)
    load_known, planned = ~np.isnan(signals[Signal.CONCURRENCY]), ~np.isnan(signals[Signal.PLANNER])
    last_planned_s = _update_last_planned(inp, observed, planned | ~load_known, before.last_planned_s)
    unplanned_s = inp.now_s - last_planned_s
    due = ~planned & (unplanned_s < PLANNER_DUE_S)
    recommender = _choose(inp, observed, has_policy, planned, due)

    alone, unweighed = recommender == Recommender.PLANNER, strongest(signals[UNWEIGHED])
    # The weighed signals follow a queue with every reading, so they claim no base replicas and are in no window.
    beside = ceil_replicas(np.fmax(unweighed, np.where(weighs_itl, np.nan, signals[Signal.ITL])))
    signals[WEIGHED] = np.where(alone, np.nan, signals[WEIGHED])
    signals[Signal.ITL] = np.where(alone & weighs_itl, np.nan, signals[Signal.ITL])
    choice = Choice(
        recommender=recommender,
        signals=signals,
        replicas=strongest(signals),
        base_replicas=np.where(planned, np.fmax(planner.base_replicas, beside), np.inf),
        beside=beside,
        unweighed=unweighed,
        load_known=load_known,
        unplanned_s=unplanned_s,
    )
    return choice, ChoiceState(last_planned_s)


def strongest(signals: FloatColumn) -> FloatColumn:
    """Return the largest recommendation of each workload, float64[W]; NaN: there is none."""
    return np.asarray(np.fmax.reduce(signals, axis=0))


def _choose(
    inp: TickInput, observed: Observed, has_policy: BoolColumn, planned: BoolColumn, due: BoolColumn
) -> IntColumn:
    """Return the Recommender of each workload. due: bool[W], the planner is silent, but not for long."""
    overruled = load.has_late_queue(inp, observed.observation)
    cases = [
        (~has_policy, Recommender.NO_POLICY),
        (planned & overruled, Recommender.OVERRULED_BY_QUEUE),
        (planned, Recommender.PLANNER),
        (inp.spec.has_stated_capacity, Recommender.STATED),
        (due & _is_warming_up(inp, observed), Recommender.WARMING_UP),
    ]
    conditions, recommenders = zip(*cases, strict=True)
    return np.asarray(np.select(conditions, recommenders, Recommender.REACTIVE), dtype=np.int64)


def _is_warming_up(inp: TickInput, observed: Observed) -> BoolColumn:
    """Return where the planner can recommend soon, and no request waits for too long until then. bool[W].

    This takes a minute or two after a restart or a gap in the readings. The reactive signals rest on a guess at what a
    replica can do; the size of the running fleet is the better guess.
    """
    observation = observed.observation
    promises = ~np.isnan(inp.spec.first_token_limit_s)
    samples, pod_workload = observed.pods.samples, inp.fleet.pod_workload
    work = samples.gaps
    if inp.pairs is not None:
        work = np.where(inp.pairs.prefill[pod_workload], samples.prompt_tokens, work)
    counts_work = inp.fleet.pod_ready & ~np.isnan(work)
    readable = np.bincount(pod_workload[counts_work], minlength=len(promises)) > 0
    # A first reading has no rate to tell the wait by. Then a queue counts if it fills slots, not for its prompts alone.
    # The first replicas take in what waited for them: their second reading tells how fast. A pod that does not
    # tell since when it is ready may serve for long.
    settled = inp.fleet.pod_ready & ~(inp.now_s - inp.fleet.pod_ready_s <= FIRST_READINGS_S)
    is_settled = np.bincount(pod_workload[settled], minlength=len(promises)) > 0
    full = np.isnan(observation.queue_wait_s) & load.has_queue(observation.running, observation.waiting) & is_settled
    pressed = full | load.has_late_queue(inp, observation) | (load.at_gateway(observation) > 0)
    return np.asarray(promises & readable & ~pressed)


def _update_last_planned(
    inp: TickInput, observed: Observed, renews: BoolColumn, before: TimestampColumn
) -> TimestampColumn:
    """Return when the planner last recommended, the load was unknown, or no replica served; float64[W].

    The first replicas of a workload, and those that wake it from zero, are read for as long as all others.
    """
    observation = observed.observation
    renews = renews | np.isnan(observed.last_tick_s) | ~(observation.ready - observation.newly_ready > 0)
    return np.where(renews, inp.now_s, before)
