"""The start that the next replica of a workload would have here and now, and the phases of the pods that are starting.

`learn` writes the phases of pods that became ready into the ledger. `find` reads it for the node that the next replica
would get, and for each starting pod.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autoscaler.core.model.fleet import Fleet, NodeGroup, PendingCause
from autoscaler.core.model.phases import NOT_STARTING, PHASES, SKEW_S, Phase, PodStarts, Starts
from autoscaler.core.model.types import TickInput
from autoscaler.core.model.weights import PodCache
from autoscaler.core.readings.pod_deltas import PodDeltas
from autoscaler.core.starts.ledger import ON_OLD_NODE, TOTAL, Ledger, select, split
from autoscaler.core.starts.start_prior import SLOTS, WEIGHTS_ABSENT, WEIGHTS_HELD, expect, identity
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

YOUNG_NODE_S = 600.0  # a node that was created this long before a pod may still be coming up
WAITED_S = 30.0  # a pod that waits this long for a young node waits until it is up
REQUESTED_NODE_S = 7200.0
"""A node requested ahead of a replica was created at most this long before its pod: no chain begins earlier."""

QUEUED_S = 60.0
"""A pod that waits longer for a node that existed before waits for what other pods hold: that is no part of a start.
Where nothing tells when nodes were created, such a wait counts for as long as the rest of the start, at most."""

FIRST_TOKEN_S = 600.0  # a later first token says how long no request came

LEARNED_STARTS = 3
"""After this many starts a phase that takes too long is known as such."""

LATE = 2.0
"""A phase that takes longer than this many of its 90th percentiles does not end by waiting."""

LATE_S = 60.0  # at least
OUTLIER, OUTLIER_S = 3.0, 20.0  # a phase counts for at most this many of its 90th percentiles, and these for at least

OUTLIER_START_S = 60.0
"""A whole start counts for at most `OUTLIER` mean ones, and these for at least this: a single long one may be a
fault."""

ENGINE_PHASES = np.array([Phase.WEIGHTS, Phase.ENGINE, Phase.READY])
_IS_OF_ENGINE, _IS_BEFORE_ENGINE = (
    np.isin(np.arange(PHASES), phases)[:, None] for phases in (ENGINE_PHASES, [Phase.IMAGE, Phase.CONTAINER])
)
"""Phases between the start of the engine's container and readiness. Nothing tells where one of them ends."""


def learn(inp: TickInput, ledger: Ledger, fresh: BoolColumn, took_s: FloatColumn, awaited_node: BoolColumn) -> Ledger:
    """Add the quickest start of each workload among the pods that became ready since the last tick.

    The ledger must be that of `expect_next` of this tick. fresh: bool[P], those pods. took_s: float64[P], from created
    to ready. awaited_node: bool[P], pods for which a node was created.
    """
    pods = np.flatnonzero(fresh)
    fleet, known = inp.fleet, _pod_starts(inp.fleet)
    order = np.lexsort((took_s[pods], fleet.pod_workload[pods]))
    rows, first = np.unique(fleet.pod_workload[pods][order], return_index=True)
    pods = pods[order][first]
    new_node = _on_new_node(fleet, known, awaited_node)[pods]
    cache = _pod_cache(fleet)[pods]
    bare = new_node | _pulled_on_requested_node(inp, known, rows, pods)
    p50_s, p90_s = (
        select(each, rows, cache, new_node, bare) for each in (ledger.expected.p50_s, ledger.expected.p90_s)
    )

    # Clocks differ, so times may not ascend. No phase is longer than the whole start.
    created_s, ready_s = fleet.pod_created_s[pods], fleet.pod_ready_s[pods]
    scheduled_s = np.minimum(np.fmax(fleet.pod_scheduled_s[pods], created_s), ready_s)
    started_s = np.minimum(np.fmax(fleet.pod_started_s[pods], scheduled_s), ready_s)
    waited_s, until_runs_s, until_ready_s = scheduled_s - created_s, started_s - scheduled_s, ready_s - started_s
    phases_s = np.full((PHASES, len(pods)), np.nan)
    phases_s[Phase.NODE] = np.where(new_node, waited_s, np.nan)
    is_told = ~np.isnan(known.node_created_s[pods])
    is_queued = is_told & (waited_s > QUEUED_S)
    counts_s = np.where(is_told, QUEUED_S, np.maximum(ready_s - scheduled_s, QUEUED_S))
    phases_s[Phase.SCHEDULE] = np.where(new_node | is_queued, np.nan, np.minimum(waited_s, counts_s))
    fetch_s = np.minimum(np.nan_to_num(known.weights_s[pods]), until_runs_s)
    before_s = until_runs_s - fetch_s
    parts = [Phase.IMAGE, Phase.CONTAINER]
    parts_s = split(before_s, p50_s[parts], p90_s[parts])
    image_s = np.where(np.isnan(known.image_s[pods]), parts_s[0], np.minimum(known.image_s[pods], before_s))
    phases_s[Phase.IMAGE], phases_s[Phase.CONTAINER] = image_s, before_s - image_s
    phases_s[ENGINE_PHASES] = _split_engine(until_ready_s, fetch_s, p50_s, p90_s)
    phases_s[Phase.WEIGHTS] += fetch_s

    is_learned = ledger.starts[rows] >= LEARNED_STARTS
    most_s = np.where(is_learned, OUTLIER * np.maximum(p90_s, OUTLIER_S), np.inf)
    phases_s = np.where(phases_s > most_s, most_s, phases_s)
    longest_s = OUTLIER * np.maximum(ledger.expected.mean_s[rows], OUTLIER_START_S)
    phases_s *= np.fmin(longest_s / np.maximum(np.nansum(phases_s, axis=0), longest_s), 1.0)  # NaN: nothing is stated
    weights_prior_s = select(ledger.expected.basis, rows, cache, new_node)[Phase.WEIGHTS]
    of_start = [cache, weights_prior_s, ledger.expected.basis[SLOTS, rows], _pod_groups(fleet, pods), bare]
    return ledger.add(rows, phases_s, np.array(of_start, dtype=np.float64))


def learn_first_tokens(inp: TickInput, ledger: Ledger, serving: BoolColumn, deltas: PodDeltas) -> Ledger:
    """Add the time from ready to the first token. serving: bool[P], pods that are ready."""
    first = serving & deltas.is_new & (deltas.now.of("first_tokens") > 0) & ~(deltas.before.of("first_tokens") > 0)
    took_s = deltas.now.time_s - inp.fleet.pod_ready_s
    pods = np.flatnonzero(first & (took_s <= FIRST_TOKEN_S) & (took_s >= -SKEW_S))
    if not len(pods):
        return ledger
    rows, of_row = np.unique(inp.fleet.pod_workload[pods], return_inverse=True)
    quickest_s = np.full(len(rows), np.inf)
    np.minimum.at(quickest_s, of_row, np.maximum(took_s[pods], 0.0))
    return ledger.set_first_token(rows, quickest_s)


class NextNode(NamedTuple):
    """The node that the next replica of each workload would get."""

    cache: IntColumn  # int64[W], PodCache
    is_new: BoolColumn  # bool[W], it has to be created
    is_known: BoolColumn  # bool[W], whether it has to be is known
    group: FloatColumn  # float64[W], identity of its node group; 0: unknown


def expect_next(inp: TickInput, ledger: Ledger) -> tuple[Ledger, NextNode]:
    """Return the ledger with the quantiles of the next start of each workload, and the node for which they are."""
    node = _find_next_node(inp.fleet)
    return ledger.expect(expect(inp.fleet, inp.spec.cold_start_s), node.group), node


def find(inp: TickInput, ledger: Ledger, node: NextNode, seen_ready: BoolColumn, awaited_node: BoolColumn) -> Starts:
    """Return the next start of each workload, and the phases of the pods that are starting.

    ledger, node: results of `expect_next`. seen_ready: bool[P], pods that have been ready, so they do not start.
    awaited_node: bool[P], pods for which a node was created.
    """
    cache, new_node, is_known, _ = node
    rows = np.arange(len(cache))
    expected, seen = ledger.expected, ledger.starts
    p50_s, p90_s = (select(each, rows, cache, new_node) for each in (expected.p50_s, expected.p90_s))
    by_cache = [sum_up(expected.p50_s[slots], expected.p90_s[slots]) for slots in ON_OLD_NODE]
    is_starting = ~inp.fleet.pod_ready & ~inp.fleet.pod_terminating & ~seen_ready
    starting = np.flatnonzero(is_starting & (inp.fleet.starts is not None))
    phase, since_s, usual_s, late, left_s = _of_pods(inp, ledger, starting, awaited_node)
    count = len(inp.fleet.pods)

    def on_pods(values: FloatColumn | IntColumn | BoolColumn, other: float) -> FloatColumn:
        column = np.full(count, other)
        column[starting] = values
        return column

    return Starts(
        known=np.asarray(is_known & ((seen > 0) | (cache != PodCache.UNKNOWN))),
        seen=seen.astype(np.float64),
        cache=cache,
        new_node=new_node,
        p50_s=p50_s,
        p90_s=p90_s,
        by_cache_p50_s=np.array([p50 for p50, _ in by_cache]),
        by_cache_p90_s=np.array([p90 for _, p90 in by_cache]),
        mean_s=expected.mean_s,
        node_s=expected.p90_s[Phase.NODE],
        image_s=expected.p50_s[Phase.IMAGE],
        fetch_s=np.maximum(expected.p90_s[WEIGHTS_ABSENT] - expected.p50_s[WEIGHTS_HELD], 0.0),
        pod_phase=on_pods(phase, NOT_STARTING).astype(np.int64),
        pod_phase_s=on_pods(since_s, np.nan),
        pod_usual_s=on_pods(usual_s, np.nan),
        pod_late=on_pods(late, 0.0) > 0,
        pod_left_s=on_pods(left_s, np.nan),
    )


def next_start_s(starts: Starts, otherwise_s: FloatColumn) -> FloatColumn:
    """Return the seconds from the request for a replica until it is ready, where it would run now; float64[W].

    otherwise_s: float64[W], where phases do not tell it.
    """
    _, p90_s = sum_up(starts.p50_s[TOTAL], starts.p90_s[TOTAL])
    return np.where(starts.known, p90_s, otherwise_s)


def sum_up(p50_s: FloatColumn, p90_s: FloatColumn) -> tuple[FloatColumn, FloatColumn]:
    """Return both quantiles of several phases: medians add up, and distances from them as of independent ones."""
    total_s = np.asarray(p50_s.sum(axis=0))
    return total_s, np.asarray(total_s + np.sqrt(((p90_s - p50_s) ** 2).sum(axis=0)))


def _split_engine(total_s: FloatColumn, fetched_s: FloatColumn, p50_s: FloatColumn, p90_s: FloatColumn) -> FloatColumn:
    """Divide the time from the start of the engine's container until ready; float64[3, N].

    fetched_s: float64[N], seconds that init containers have spent on the weights before; 0: none.
    """
    p50_s, p90_s = p50_s[ENGINE_PHASES].copy(), p90_s[ENGINE_PHASES].copy()
    left = np.where(fetched_s > 0, np.maximum(1 - fetched_s / p50_s[0], 0.1), 1.0)
    p50_s[0], p90_s[0] = p50_s[0] * left, p90_s[0] * left
    return split(total_s, p50_s, p90_s)


def _of_pods(
    inp: TickInput, ledger: Ledger, pods: IntColumn, awaited_node: BoolColumn
) -> tuple[FloatColumn, FloatColumn, FloatColumn, BoolColumn, FloatColumn]:
    """Return phase, seconds in it, its median, whether it is late, and the seconds left until ready; [N] each."""
    fleet = inp.fleet
    known = _pod_starts(fleet)
    rows, now_s = fleet.pod_workload[pods], inp.now_s
    created_s, scheduled_s, started_s = (
        each[pods] for each in (fleet.pod_created_s, fleet.pod_scheduled_s, fleet.pod_started_s)
    )
    pulling_s, fetching_s = known.pulling_since_s[pods], known.fetching_since_s[pods]
    comes = fleet.pod_pending[pods] == PendingCause.NODE_COMING
    runs, is_bound = ~np.isnan(started_s), ~np.isnan(scheduled_s)
    fetches, pulls = ~runs & ~np.isnan(fetching_s), ~runs & ~np.isnan(pulling_s)
    conditions = [runs, fetches, pulls, is_bound, comes]
    phase = np.select(
        conditions, [Phase.ENGINE, Phase.WEIGHTS, Phase.IMAGE, Phase.CONTAINER, Phase.NODE], Phase.SCHEDULE
    )
    begun_s = np.select(conditions, [started_s, fetching_s, pulling_s, scheduled_s, created_s], created_s)
    since_s = np.maximum(now_s - np.maximum(begun_s, created_s), 0.0)  # clocks differ

    new_node = _on_new_node(fleet, known, awaited_node)[pods] | comes
    cache = _pod_cache(fleet)[pods]
    p50_s, p90_s = (
        select(each, rows, cache, new_node, new_node | pulls) for each in (ledger.expected.p50_s, ledger.expected.p90_s)
    )
    fetched_s = np.nan_to_num(known.weights_s[pods])
    left = np.where(fetched_s > 0, np.maximum(1 - fetched_s / np.maximum(p50_s[Phase.WEIGHTS], 1e-3), 0.1), 1.0)
    p50_s[Phase.WEIGHTS], p90_s[Phase.WEIGHTS] = p50_s[Phase.WEIGHTS] * left, p90_s[Phase.WEIGHTS] * left

    order = np.arange(PHASES)[:, None]
    present = np.where(runs, _IS_OF_ENGINE, order == phase)
    # A pod that is bound and says no more is pulling, or creates its container.
    present = np.where(~runs & (phase == Phase.CONTAINER), _IS_BEFORE_ENGINE, present)
    later = (order > np.where(runs, Phase.READY, phase)) & (order != Phase.FIRST_TOKEN)
    later = np.where((order == Phase.CONTAINER) & fetches, True, later)
    spread_s = (p90_s - p50_s) ** 2
    usual_s = (p50_s * present).sum(axis=0)
    most_s = usual_s + np.sqrt((spread_s * present).sum(axis=0))
    left_s = np.maximum(usual_s - since_s, 0.0) + (p50_s * later).sum(axis=0)
    left_s += np.sqrt((spread_s * (present | later)).sum(axis=0))

    is_learned = ledger.starts[rows] >= LEARNED_STARTS
    late = is_learned & is_bound & (since_s > np.maximum(LATE * most_s, LATE_S))
    is_seen = ledger.starts[rows] > 0
    return phase, since_s, np.where(is_seen, usual_s, np.nan), late, np.where(is_seen, left_s, np.nan)


def _find_next_node(fleet: Fleet) -> NextNode:
    count = len(fleet.workloads)
    groups, room = fleet.groups, fleet.obstacles.room
    admitted = np.vstack([groups.admitted, np.zeros((1, len(groups.groups)), dtype=bool)])  # for pool -1
    grows = np.asarray((admitted & (groups.can_add > 0)).any(axis=1))[fleet.pool]
    cache = np.full(count, int(PodCache.UNKNOWN))
    is_known = np.zeros(count, dtype=bool) if room is None else ~np.isnan(room)
    is_full = np.zeros(count, dtype=bool) if room is None else np.asarray(room < 1)
    if fleet.weights is not None and len(fleet.weights.places.workload):
        places = fleet.weights.places
        free, held, absent, holding = (
            np.bincount(places.workload, column, minlength=count)
            for column in (places.free, places.free_held, places.free_absent, places.nodes_held)
        )
        has_places = np.bincount(places.workload, minlength=count) > 0
        prefers = fleet.weights.steered | (2 * held >= free)
        cache = np.where((held >= 1) & prefers, int(PodCache.HELD), cache)
        reports = (held + absent + holding > 0) & (cache != PodCache.HELD)
        cache = np.where(reports, int(PodCache.ABSENT), cache)
        is_full = np.where(has_places, free < 1, is_full)
        is_known |= has_places
    new_node = np.asarray(is_full & grows, dtype=np.bool_)
    only = admitted.sum(axis=1)[fleet.pool] == 1
    identities = np.array([0.0, *_identities(groups.groups)])
    first = admitted.argmax(axis=1)[fleet.pool] if len(groups.groups) else np.zeros(count, dtype=np.int64)
    return NextNode(cache, new_node, is_known, np.where(only, identities[np.where(only, first + 1, 0)], 0.0))


@lru_cache(maxsize=4)
def _identities(groups: tuple[NodeGroup, ...]) -> tuple[float, ...]:
    """Return the identity of each node group, the same in every process."""
    return tuple(
        float(np.float32(identity("|".join((each.product, each.nodes, each.zone, each.capacity_type, each.grows)))))
        for each in groups
    )


def _pod_groups(fleet: Fleet, pods: IntColumn) -> FloatColumn:
    """Return the identity of the node group of some pods; float64[N], 0: unknown."""
    identities, of_node = _identities(fleet.groups.groups), fleet.groups.of_node
    rows = [of_node.get(fleet.pods[pod].node, ()) for pod in pods.tolist()]
    return np.array([identities[each[0]] if len(each) == 1 else 0.0 for each in rows])


def _pod_starts(fleet: Fleet) -> PodStarts:
    return fleet.starts if fleet.starts is not None else PodStarts.filled(len(fleet.pods))


def _pod_cache(fleet: Fleet) -> IntColumn:
    if fleet.weights is None:
        return np.full(len(fleet.pods), int(PodCache.UNKNOWN))
    return fleet.weights.pod_cache


def _pulled_on_requested_node(inp: TickInput, known: PodStarts, rows: IntColumn, pods: IntColumn) -> BoolColumn:
    """Return the pods that pulled their image to a node that was requested ahead of them; bool[N].

    Such a node existed before its pod, but had nothing. Where nodes can be requested, those that are younger than any
    chain count as requested. rows: int64[N], the workloads of these pods.
    """
    if inp.requests_nodes is None:
        return np.zeros(len(pods), dtype=bool)
    is_young = known.node_created_s[pods] >= inp.fleet.pod_created_s[pods] - REQUESTED_NODE_S
    return np.asarray(inp.requests_nodes[rows] & (known.image_s[pods] > 0) & is_young)


def _on_new_node(fleet: Fleet, known: PodStarts, awaited_node: BoolColumn) -> BoolColumn:
    """Return the pods for which a node was created, or that waited for one created just before; bool[P]."""
    waited = fleet.pod_scheduled_s - fleet.pod_created_s >= WAITED_S
    since_s = fleet.pod_created_s - np.where(waited, YOUNG_NODE_S, SKEW_S)
    return np.asarray(awaited_node | (known.node_created_s >= since_s))
