"""Allocation: share the load among the variants of a service, and the GPUs of each pool among workloads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.allocate import pools, sleep
from autoscaler.core.allocate.answers import AnswerState, Standing, apply_holds, count_kept, count_taking, judge
from autoscaler.core.allocate.mixes import Mixes
from autoscaler.core.allocate.pairs import PairRows
from autoscaler.core.allocate.pools import GpuDemands
from autoscaler.core.allocate.retries import Failures
from autoscaler.core.allocate.sleep import SleepState
from autoscaler.core.model.fleet import Fleet
from autoscaler.core.model.observation import Observation
from autoscaler.core.model.types import Capacity, Stage, TickInput
from autoscaler.core.observe import arrivals
from autoscaler.core.observe.pending import has_gpus
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.stabilize.pipeline import OwnTarget
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, Transient, or_zero, replace

IDLE_COLD_STARTS = 10
"""A workload without work for this many cold starts yields its replica to others of its priority."""


@dataclass(frozen=True)
class AllocateState(Columns):
    """The table of this stage; float64[W]."""

    overpaid: Transient[FloatColumn]  # of its service beyond the cheapest mix, in its currency; NaN: none
    answers: AnswerState
    failures: Failures
    sleep: SleepState


class _Sharing(NamedTuple):
    """The facts by which desired replicas get GPUs."""

    inp: TickInput
    observed: Observed
    standing: Standing
    demands: GpuDemands  # without the replicas that are desired

    def share(self, desired: FloatColumn, base: FloatColumn) -> FloatColumn:
        """Return the allocation of pools and quotas; float64[W]. desired, base: float64[W], replicas."""
        fleet, claims = self.inp.fleet, self.observed.claims
        follows = apply_holds(desired, fleet)
        present, unfollowed = fleet.replicas, self.standing.lasts(follows, fleet)
        kept = np.fmax(np.where(unfollowed & (follows < present), present, 0.0), count_kept(desired, fleet))
        if fleet.former is not None:  # what serves is not cut because a later template needs more
            kept = np.fmax(kept, np.minimum(or_zero(follows), np.fmin(fleet.former, self.observed.observation.ready)))
        claims = replace(claims, replicas=np.fmin(claims.replicas, np.where(unfollowed, present, np.inf)))
        return pools.share(fleet, self.inp.spec, claims, self.demands._replace(desired=follows, base=base, kept=kept))


def allocate(
    inp: TickInput, observed: Observed, known_capacity: Capacity, target: OwnTarget, before: AllocateState
) -> tuple[FloatColumn, FloatColumn, FloatColumn, AllocateState]:
    """Turn the target of each workload into the count that it gets.

    Returns four values: all stages, float64[G, W]; the base replicas in the last of them, float64[W]; the seconds for
    which the HPA has not followed the answer, float64[W], NaN: it follows; and the state after this tick.

    To the stages of `target` it adds, in this order: the count that the other side of a pair needs; the count of each
    variant, without and with exchanges; the replicas that are kept asleep; the allocation of its pool; and the count
    that the other side's allocation leaves. The last stage is the present count where another owner sets it.

    Base replicas that a pool cannot allocate are requested from the other variants of the service, once. Headroom and
    exchanges are not.
    """
    ours = inp.fleet.is_ours
    has_policy = ours & ~np.isnan(inp.spec.max_replicas)
    pairs = PairRows.of(inp, has_policy)
    standing, answers = judge(inp.fleet, inp.now_s, before.answers)
    idle_s = target.idle_s if pairs is None else pairs.least_of_both(target.idle_s)
    sharing = _Sharing(inp, observed, standing, _demands(inp, observed, has_policy, idle_s))
    requests_each = known_capacity.concurrency * inp.spec.target_usage
    mixes, failures = Mixes.of(inp, observed, requests_each, target.informed & has_policy, before.failures)

    paired, base = target.stages[Stage.BOUNDS], target.base_replicas
    if pairs is not None:
        paired, base = pairs.raise_smaller(paired), pairs.raise_smaller(base)
    mixed = mixes.choose(paired, base, sharing.share)
    taking = count_taking(mixed.allocated, standing.for_s, inp.fleet)
    exchanged, overpaid = mixes.exchange(mixed, taking, before.overpaid)
    allocated = mixed.allocated
    reserved, sleep_state = sleep.add(inp, observed, exchanged, before.sleep)
    if (reserved > mixed.chosen).any():
        allocated = sharing.share(reserved, mixed.base)
    partnered = allocated
    if pairs is not None:
        partnered = pairs.cut_together(
            reserved,
            allocated,
            observed.trusted,
            inp.fleet,
            lambda fewer: sharing.share(fewer, np.fmin(mixed.base, fewer)),
        )
        allocated = pairs.keep_sides(allocated, partnered)

    stages = target.stages.copy()
    stages[Stage.PAIR], stages[Stage.VARIANT], stages[Stage.EXCHANGE] = paired, mixed.chosen, exchanged
    stages[Stage.SLEEP] = reserved
    for stage, count in ((Stage.ALLOCATION, allocated), (Stage.PARTNER, partnered)):
        stages[stage] = np.where(count < apply_holds(reserved, inp.fleet), count, reserved)
    answer = np.where(ours & ~is_refused(inp, partnered), partnered, observed.observation.replicas)
    stages[Stage.OWNER] = answer
    unfollowed_s = np.where(standing.lasts(answer, inp.fleet), standing.for_s, np.nan)
    answers = replace(answers, replicas=np.where(ours, answer, np.nan))
    return stages, mixed.base, unfollowed_s, AllocateState(overpaid, answers, failures, sleep_state)


def _demands(inp: TickInput, observed: Observed, has_policy: BoolColumn, idle_s: FloatColumn) -> GpuDemands:
    """Return what workloads have and may have, without the replicas that they desire."""
    none, cold_start_s = np.zeros(len(idle_s)), observed.observation.cold_start_s
    return GpuDemands(
        desired=none,
        base=none,
        kept=none,
        scheduled=count_scheduled(inp.fleet),
        trusted=observed.trusted,
        ours=has_policy,
        idle=is_idle(inp, observed.observation, idle_s),
        can_wait=inp.spec.can_wait(cold_start_s),
        arrivals_per_s=arrivals.recent_per_s(observed.arrivals, cold_start_s),
    )


def is_refused(inp: TickInput, desired: FloatColumn) -> BoolColumn:
    """Return True where the API server refused this count lately, and the next try is not due. bool[W].

    desired: float64[W], replicas. A count nearer to the current one is not refused yet.
    """
    current, obstacles = inp.fleet.replicas, inp.fleet.obstacles
    grows = obstacles.refused_replicas > current
    as_far = np.where(grows, desired >= obstacles.refused_replicas, desired <= obstacles.refused_replicas)
    return np.asarray(as_far & (desired != current) & (inp.now_s < obstacles.retry_at_s))


def count_scheduled(fleet: Fleet) -> FloatColumn:
    """Return how many replicas have GPUs, or are about to get them; float64[W]."""
    return np.bincount(fleet.pod_workload[has_gpus(fleet)], minlength=len(fleet.workloads)).astype(np.float64)


def is_idle(inp: TickInput, observation: Observation, idle_s: FloatColumn) -> BoolColumn:
    """Return True where a workload had no work for many cold starts, may go to zero, and can be woken. bool[W].

    A policy that rules out zero keeps its floor, however long the workload is idle.
    """
    long_idle = idle_s >= IDLE_COLD_STARTS * observation.cold_start_s
    has_gateway = ~np.isnan(observation.gateway_waiting)
    return np.asarray(long_idle & has_gateway & ~np.isnan(inp.spec.idle_after_s))
