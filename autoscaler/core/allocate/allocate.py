"""Allocation: share the load among the variants of a service, and the GPUs of each pool among workloads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.core.allocate import pools, retries, variants
from autoscaler.core.allocate.answers import AnswerState, apply_holds, count_kept, count_taking, judge
from autoscaler.core.allocate.pairs import PairRows
from autoscaler.core.allocate.retries import Failures
from autoscaler.core.model.fleet import WITHOUT_ROOM, Fleet
from autoscaler.core.model.tenants import fit_replicas, place_tenants
from autoscaler.core.model.types import Capacity, Observation, Stage, TickInput
from autoscaler.core.observe import arrivals
from autoscaler.core.observe.pending import count_pending_replicas, count_pods, count_undecided, has_gpus
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.stabilize.pipeline import Target
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, Transient, replace

IDLE_COLD_STARTS = 10
"""A workload without work for so many cold starts yields its replica to others of its priority."""


MAX_INTERVAL_S = 60.0
"""A mix of variants is known to have been too dear for at most so long between two ticks."""


@dataclass(frozen=True)
class AllocateState(Columns):
    """The table of this stage; float64[W]."""

    overpaid: Transient[
        FloatColumn
    ]  # by its service, beyond the cheapest mix of variants, in their currency; NaN: none
    answers: AnswerState
    failures: Failures


def allocate(
    inp: TickInput, observed: Observed, known_capacity: Capacity, target: Target, before: AllocateState
) -> tuple[FloatColumn, FloatColumn, FloatColumn, AllocateState]:
    """Turn the target of each workload into the count that it gets.

    Returns all stages, float64[G, W], the base replicas in the last of them, float64[W], and the seconds for which the
    HPA has not followed the answer, float64[W]; NaN: it follows. To the stages of `target` it adds the count that the
    other side of a pair needs, the count of each variant, without and with exchanges, the allocation of its pool, and
    the count that the other side's allocation leaves. The present count follows where another owner sets it. Base
    replicas that a pool cannot allocate are requested from the other variants of the service, once. Headroom and
    exchanges are not.
    """
    observation, claims = observed.observation, observed.claims
    ours = is_ours(inp)
    has_policy = ours & ~np.isnan(inp.spec.max_replicas)
    requests_each = known_capacity.concurrency * inp.spec.target_usage
    pairs = PairRows.of(inp, has_policy)
    idle_s = target.idle_s if pairs is None else pairs.least_of_both(target.idle_s)
    idle, scheduled = is_idle(inp, observation, idle_s), count_scheduled(inp.fleet)
    arrivals_per_s = arrivals.recent_per_s(observed.arrivals, observation.cold_start_s)
    waiting = count_pending_replicas(observation)
    # A load moves to a dearer variant only once no node comes for the cheaper one.
    undecided = np.fmin(count_undecided(inp.fleet, inp.now_s), waiting)
    not_running = waiting - undecided + observation.missing_pods
    starting = observation.starting + undecided
    movable = target.informed & has_policy
    standing, answers = judge(inp.fleet, inp.now_s, before.answers)

    def choose(
        desired: FloatColumn, base: FloatColumn, vacant: FloatColumn
    ) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
        """Return counts by variant, the base replicas among them, and the allocation.

        vacant: float64[W], further replicas for which there are GPUs; infinity: not known.
        """
        if inp.variants is not None:
            running = variants.Running(inp.fleet.replicas, not_running, starting, vacant)
            desired, base = (
                variants.choose(count, running, requests_each, movable, inp.variants, inp.spec)
                for count in (desired, base)
            )
        # Load that moves from one variant to another takes base replicas there too.
        base = np.fmin(base, desired)
        return desired, base, share(desired, base)

    def share(desired: FloatColumn, base: FloatColumn) -> FloatColumn:
        follows = apply_holds(desired, inp.fleet)
        present, stands = inp.fleet.replicas, standing.holds(follows, inp.fleet)
        return pools.share(
            follows,
            base,
            inp.fleet,
            inp.spec,
            replace(claims, replicas=np.fmin(claims.replicas, np.where(stands, present, np.inf))),
            observed.trusted,
            has_policy,
            idle,
            scheduled,
            arrivals_per_s,
            np.fmax(np.where(stands & (follows < present), present, 0.0), count_kept(desired, inp.fleet)),
        )

    vacant, paused, failures = _find_vacant(inp, observed, waiting, undecided, before.failures)
    required, required_base = (
        each if pairs is None else pairs.raise_smaller(each)
        for each in (target.stages[Stage.BOUNDS], target.base_replicas)
    )
    paired = required
    desired, base, allocated = choose(required, required_base, vacant)
    if inp.variants is not None and (short := (allocated < base) & (inp.variants.service >= 0)).any():
        vacant = np.where(short & ~paused, np.fmax(allocated - (inp.fleet.replicas - not_running), 0.0), vacant)
        of_service = np.isin(inp.variants.service, inp.variants.service[short])
        required = np.where(of_service, np.fmax(allocated, base), desired)
        desired, base, allocated = choose(required, base, vacant)
    exchanged, overpaid = desired, before.overpaid
    if inp.variants is not None:
        exchanged, overpaid = variants.exchange(
            required,
            desired,
            variants.Running(
                inp.fleet.replicas,
                not_running,
                starting,
                np.fmin(vacant, _count_free(inp.fleet, count_taking(allocated, standing.for_s, inp.fleet))),
            ),
            requests_each,
            movable & (allocated >= desired),
            inp.variants,
            inp.spec,
            observation.cold_start_s,
            np.minimum(observed.elapsed_s(inp.now_s), MAX_INTERVAL_S),
            before.overpaid,
        )
        if (exchanged > desired).any():
            allocated = share(exchanged, base)
    alone, is_paired = allocated, np.zeros(len(allocated), dtype=bool)
    if pairs is not None:
        is_paired[np.append(pairs.prefill, pairs.decode)] = True
        allocated = pairs.cut_together(
            exchanged, allocated, observed.trusted, inp.fleet, lambda fewer: share(fewer, np.fmin(base, fewer))
        )
    stages = target.stages.copy()
    stages[Stage.PAIR], stages[Stage.VARIANT], stages[Stage.EXCHANGE] = paired, desired, exchanged
    for stage, count in (
        (Stage.ALLOCATION, np.where(is_paired, alone, allocated)),
        (Stage.PARTNER, allocated),
    ):
        is_cut = count < apply_holds(exchanged, inp.fleet)
        stages[stage] = np.where(is_cut, count, exchanged)
    stages[Stage.OWNER] = np.where(ours & ~is_refused(inp, allocated), allocated, observation.replicas)
    answer = stages[Stage.OWNER]
    unfollowed_s = np.where(standing.holds(answer, inp.fleet), standing.for_s, np.nan)
    answers = replace(answers, replicas=np.where(ours, answer, np.nan))
    return stages, base, unfollowed_s, AllocateState(overpaid, answers, failures)


def _find_vacant(
    inp: TickInput, observed: Observed, waiting: FloatColumn, undecided: FloatColumn, before: Failures
) -> tuple[FloatColumn, BoolColumn, Failures]:
    """Return whether each variant may get further replicas (0 or infinity), and where failed ones forbid it.

    waiting, undecided: float64[W], pending replicas, and those of them for which a node may still come.
    """
    observation, cannot_grow = observed.observation, observed.claims.cannot_grow
    sized = ~np.isnan(np.append(inp.fleet.pool_gpus, np.nan)[inp.fleet.pool])
    without_room = np.where(sized, count_pods(inp.fleet, *WITHOUT_ROOM), 0.0)  # free GPUs tell when to try again
    failed = (waiting - undecided > without_room) | cannot_grow
    paused, failures = retries.update(inp.now_s, failed, observation.ready, before)
    return np.where((observation.pending > undecided) | cannot_grow | paused, 0.0, np.inf), paused, failures


def _count_free(fleet: Fleet, taken: FloatColumn) -> FloatColumn:
    """Return the further replicas for which each workload's pool and quotas have free GPUs; float64[W].

    Infinity: not known. taken: float64[W], replicas that take GPUs.
    """
    known = (fleet.gpus_per_replica > 0) & np.isfinite(fleet.gpus_per_replica)
    if not known.any():
        return np.full(len(taken), np.inf)
    gpus = np.where(known, np.fmax(taken, fleet.replicas) * fleet.gpus_per_replica, 0.0)
    in_quotas = fit_replicas(
        [limit.copy_with(gpus)[0] for limit in place_tenants(fleet.quotas)], fleet.gpus_per_replica
    )
    known &= fleet.pool >= 0
    left = fleet.pool_gpus - np.bincount(fleet.pool[known], gpus[known], len(fleet.pools))
    free = np.floor(np.fmax(left, 0.0)[np.fmax(fleet.pool, 0)] / np.where(known, fleet.gpus_per_replica, 1.0))
    return np.fmin(in_quotas, np.where(known & ~np.isnan(free), free, np.inf))


def is_ours(inp: TickInput) -> BoolColumn:
    """Return True where the daemon sets the count: the workload is not paused and has no other owner. bool[W]."""
    return np.asarray(~inp.fleet.paused & np.array([not owner for owner in inp.fleet.other_owner], dtype=bool))


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
