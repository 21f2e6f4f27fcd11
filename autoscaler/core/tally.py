"""The tally: what each workload served between two ticks, for totals, records and reports. Nothing decides by it.

What it held is in `gpu_totals`.

Requests and tokens are the growth of the counters of pods that both ticks have read, as they are: unlike the
observation it neither smooths nor estimates. A counter that fell was reset, and has counted from 0 since.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.model.spec import Spec
from autoscaler.core.model.types import Decision, TickInput
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, find_ids, moved, or_zero, replace

COUNTED = (
    *("finished", "first_tokens", "ttft_met", "itl_judged", "itl_met", "prompt_tokens", "generation_tokens"),
    *("gap_s", "gaps"),
)
MINUTE_S = 60.0
LONGEST_S = 300.0
"""Longest time between two ticks that is counted. What happened in a longer one, such as a suspended process, is not
known."""


@dataclass(frozen=True)
class Tally(Columns):
    """Sums of each workload over a time; float64[W]."""

    seconds: FloatColumn
    changes: FloatColumn  # of the decided count
    arrived: FloatColumn  # requests: those that ended, and the growth of those in flight
    finished: FloatColumn
    first_tokens: FloatColumn
    ttft_judged: FloatColumn  # first tokens of which it is known whether they came in time
    ttft_met: FloatColumn
    itl_judged: FloatColumn
    itl_met: FloatColumn
    prompt_tokens: FloatColumn
    generation_tokens: FloatColumn
    gap_s: FloatColumn  # seconds between tokens
    gaps: FloatColumn  # between two tokens
    kv_s: FloatColumn  # KV-cache usage of a pod, 0..1, times seconds, summed over pods
    running_s: FloatColumn  # requests that run, times seconds
    waiting_s: FloatColumn
    breach_s: FloatColumn  # seconds of the minutes in which fewer requests met their objectives than the policy asks

    @classmethod
    def blank(cls, rows: int) -> Tally:
        return cls.filled(rows, 0.0)

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: column + getattr(other, name) for name, column in vars(self).items()})


@dataclass(frozen=True)
class TallyState:
    """What the next tick is compared with."""

    inp: TickInput
    decided: FloatColumn  # float64[W], replicas
    minute: Tally  # since the last full minute


def advance(before: TallyState | None, inp: TickInput, decision: Decision) -> tuple[TallyState, Tally]:
    """Return the tally of the time since the tick before, on the rows of `inp`; all zero at the first tick."""
    rows = len(inp.fleet.workloads)
    if before is None:
        return TallyState(inp, decision.replicas, Tally.blank(rows)), Tally.blank(rows)
    since = _since(before, inp, decision.replicas)
    minute = moved(before.minute, before.inp.fleet.workload_id, inp.fleet.workload_id) + since
    is_full = minute.seconds >= MINUTE_S - 1.0  # a tick may come a little early
    breach_s = np.where(is_full & _is_breach(minute, inp.spec), minute.seconds, 0.0)
    rest = Tally(**{name: np.where(is_full, 0.0, column) for name, column in vars(minute).items()})
    return TallyState(inp, decision.replicas, rest), replace(since, breach_s=breach_s)


def _since(before: TallyState, inp: TickInput, decided: FloatColumn) -> Tally:
    """Return the tally of the time between two ticks, without breaches."""
    fleet, rows = inp.fleet, len(inp.fleet.workloads)
    row, known = find_ids(fleet.workload_id, before.inp.fleet.workload_id)
    elapsed_s = inp.now_s - before.inp.now_s
    seconds = np.where(known & (0 < elapsed_s <= LONGEST_S), elapsed_s, 0.0)
    counted = seconds > 0

    def then(column: FloatColumn) -> FloatColumn:
        return np.where(known, column[row] if len(column) else 0.0, 0.0)

    grown = {name: np.where(counted, column, 0.0) for name, column in _grow(before.inp, inp).items()}
    in_flight = np.where(counted, _in_flight(inp) - then(_in_flight(before.inp)), 0.0)
    return Tally(
        seconds=seconds,
        changes=(known & (decided != then(before.decided))).astype(np.float64),
        arrived=np.maximum(grown["finished"] + in_flight, 0.0),
        kv_s=seconds * _sum(inp, inp.samples.pods.kv_usage),
        running_s=seconds * _sum(inp, inp.samples.pods.running),
        waiting_s=seconds * (_sum(inp, inp.samples.pods.waiting) + or_zero(inp.samples.gateways.waiting)),
        breach_s=np.zeros(rows),
        **grown,
    )


def _grow(before: TickInput, inp: TickInput) -> dict[str, FloatColumn]:
    """Return the growth of the counters of each workload; float64[W] by name.

    A pod that does not tell how many requests met an objective is judged by none.
    """
    pod, known = find_ids(inp.fleet.pod_id, before.fleet.pod_id)
    grown: dict[str, FloatColumn] = {}
    for name in COUNTED:
        now, was = getattr(inp.samples.pods, name), getattr(before.samples.pods, name)
        more = now - np.where(known, was[pod] if len(was) else np.nan, np.nan)
        grown[name] = np.where(more < 0, now, more)
    grown["ttft_judged"] = np.where(np.isnan(grown["ttft_met"]), np.nan, grown["first_tokens"])
    grown["itl_judged"] = np.where(np.isnan(grown["itl_met"]), np.nan, grown["itl_judged"])
    return {name: _sum(inp, of_pods) for name, of_pods in grown.items()}


def _in_flight(inp: TickInput) -> FloatColumn:
    return _sum(inp, inp.samples.pods.running) + _sum(inp, inp.samples.pods.waiting)


def _sum(inp: TickInput, of_pods: FloatColumn) -> FloatColumn:
    rows = len(inp.fleet.workloads)
    return np.bincount(inp.fleet.pod_workload, or_zero(of_pods), rows).astype(np.float64)


def _is_breach(minute: Tally, spec: Spec) -> BoolColumn:
    """Return where fewer requests met an objective than the policy asks, or none was served while some waited."""
    late = minute.ttft_met < spec.attainment * minute.ttft_judged
    slow = minute.itl_met < spec.attainment * minute.itl_judged
    unserved = (minute.first_tokens == 0) & (minute.waiting_s > 0) & ~np.isnan(spec.attainment)
    has_ttft, has_itl = ~np.isnan(spec.ttft_objective_s), ~np.isnan(spec.itl_objective_s)
    return np.asarray((has_ttft & late) | (has_itl & slow) | unserved)
