"""Schedule the links of pre-warm windows and of forecast rises backward from their begin, each by its own lead.

This is backward scheduling, as lead-time offsetting in material requirements planning (Orlicky, 1975): a window is the
gross requirement, replicas that are decided already and places on present nodes are the inventory, and each link is
released one lead before the next one starts.

A rise of the load of a day or a week ago is a need like a window, but its replicas are left to the planner. It ends
with its bin. If the load has not come by then, the forecast expects it no longer, and its links are gone.

Nothing is ordered here: `Chain.places` is the number of replicas for which places should be on request now, and the
adapter makes the cluster agree with it. So a link that is not needed any more disappears, and a new process orders
nothing twice.

A request takes free places before an autoscaler creates a node for it. So once a replica of a pool lacks a place, the
others that count on free places there are requested with it: 3 replicas that find 1 free place have 3 requests, and
get 2 nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.chain.places import find_places
from autoscaler.core.model.chain import Cause, Chain, Link
from autoscaler.core.model.forecast import Forecast
from autoscaler.core.model.types import TickInput
from autoscaler.core.observe.workloads import Observed
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, TimestampColumn, or_zero

LOOKAHEAD_S = 7200.0
"""Windows are planned from this long before their replicas are requested: longer than any node or fetch takes."""

SAME_S = 60.0
"""Two times of a begin that differ by less are one begin: the wall clock was set."""


@dataclass(frozen=True)
class ChainState(Columns):
    """The table of this stage; float64[W]."""

    places: FloatColumn  # replicas for which places were requested since one lacked a node; NaN, 0: none
    until_s: TimestampColumn  # begin of the last need for which they were


class Leads(NamedTuple):
    """How long each link takes."""

    here_s: FloatColumn  # float64[L, W]; 0: the link is not needed
    requested_s: FloatColumn  # float64[L, W], likewise if nodes are requested
    planner_s: FloatColumn  # float64[W], how long before a rise the planner recommends its replicas; NaN: not known

    @classmethod
    def of(cls, observed: Observed) -> Leads:
        return cls(observed.link_s, observed.requested_link_s, observed.starts.mean_s)


class _Needs(NamedTuple):
    """Windows and rises that begin soon and lack replicas, by workload and slot; every field [W, K]."""

    is_next: BoolColumn  # False: the slot has no such need, and its other fields are of no use
    more: FloatColumn  # replicas beyond those that are decided
    due_s: FloatColumn
    lead_s: FloatColumn  # that a window states for its replicas; NaN: none
    cause: IntColumn  # Cause
    name: IntColumn  # index into `Schedule.names`; -1: it has none


def plan_links(
    inp: TickInput, decided: FloatColumn, forecast: Forecast, leads: Leads, before: ChainState
) -> tuple[Chain, ChainState]:
    """Return the links of the next need of each workload, and the replicas for which places are requested now.

    decided: float64[W], replicas of this tick.

    Places stay requested until replicas take them or the need begins, even if a new node already has room: without
    them its autoscaler would remove it again. Replicas that are decided, for whatever reason, count as taken.
    """
    lead_s, requested_lead_s, _ = leads
    needs = _join(
        _find_windows(inp, decided, np.fmax(lead_s, requested_lead_s)[Link.REPLICA]),
        _find_rises(inp, decided, forecast),
    )
    if not needs.is_next.any():
        return Chain.none(len(decided), lead_s), ChainState.blank(len(decided))
    free, lacking, admitted = np.zeros((3, *needs.more.shape))
    requested = needs.is_next & (False if inp.requests_nodes is None else inp.requests_nodes[:, None])
    if requested.any():
        found = find_places(inp.fleet, inp.spec, decided, needs.more, needs.due_s)
        free, lacking, admitted = (np.where(requested, each, 0.0) for each in found)
    held = (before.places > 0)[:, None] & requested & (needs.due_s <= (before.until_s + SAME_S)[:, None])
    own_s = np.where(held | (lacking > 0), requested_lead_s[:, :, None], lead_s[:, :, None])  # float64[L, W, K]
    replica_s = needs.due_s - _replica_lead_s(needs, own_s[Link.REPLICA], leads.planner_s)
    weights_s = replica_s - own_s[Link.WEIGHTS]
    node_s = weights_s - own_s[Link.NODE]
    kept = np.where(held, before.places[:, None], 0.0)
    wanted = np.minimum(np.fmax(free + lacking, kept), admitted)
    begun = needs.is_next & (held | (node_s <= inp.now_s)) & (np.fmax(lacking, kept) > 0)
    until_s = np.where(begun, needs.due_s, -np.inf).max(axis=1)
    counted = needs.is_next & requested & (needs.due_s <= _latest_due(inp, until_s)[:, None])
    places = np.where(counted, wanted, 0.0).max(axis=1)

    row = np.arange(len(decided))
    needs_node, needs_weights = (lacking > 0) | begun, own_s[Link.WEIGHTS] > 0
    is_shown = needs.is_next & ((needs.cause == Cause.WINDOW) | needs_node | needs_weights)
    slot = np.where(is_shown, needs.due_s, np.inf).argmin(axis=1)
    known = is_shown[row, slot]
    starts_s = np.array(
        [
            np.where(needs_node, node_s, np.nan)[row, slot],
            np.where(needs_weights, weights_s, np.nan)[row, slot],
            np.where(needs.cause == Cause.WINDOW, replica_s, np.nan)[row, slot],
        ]
    )
    chain = Chain(
        due_s=np.where(known, needs.due_s[row, slot], np.nan),
        replicas=np.where(known, decided + needs.more[row, slot], np.nan),
        cause=np.where(known, needs.cause[row, slot], Cause.WINDOW),
        window=np.where(known, needs.name[row, slot], -1),
        starts_s=np.where(known, starts_s, np.nan),
        lacking=np.where(known, lacking[row, slot], np.nan),
        lead_s=np.where(known, own_s[:, row, slot], lead_s),
        places=places,
    )
    own = np.where(begun, wanted, 0.0).max(axis=1)
    return chain, ChainState(own, np.where(own > 0, until_s, np.nan))


def _find_windows(inp: TickInput, decided: FloatColumn, lead_s: FloatColumn) -> _Needs:
    """Find the windows that begin soon and lack replicas. lead_s: float64[W], the longest of the link `REPLICA`."""
    schedule = inp.schedule
    replicas = np.minimum(schedule.replicas, inp.spec.max_replicas[:, None])
    replica_s = schedule.start_s - np.where(np.isnan(schedule.lead_s), lead_s[:, None], schedule.lead_s)
    more = replicas - decided[:, None]
    soon = (schedule.start_s > inp.now_s) & (replica_s - inp.now_s <= LOOKAHEAD_S)
    is_next = soon & (more > 0) & inp.fleet.is_ours[:, None]
    cause = np.full(more.shape, int(Cause.WINDOW))
    name = np.full(more.shape, -1) if schedule.name is None else schedule.name
    return _Needs(is_next, more, schedule.start_s, schedule.lead_s, cause, name)


def _find_rises(inp: TickInput, decided: FloatColumn, forecast: Forecast) -> _Needs | None:
    """Find the bins of the forecast that need more replicas than are decided, and than any bin before them.

    None where nothing can be ready before the replicas. A stated capacity is not the one that the planner counts with.
    """
    may_request = False if inp.requests_nodes is None else inp.requests_nodes
    can_prepare = inp.fleet.is_ours & ~inp.spec.has_stated_capacity & (may_request | inp.fetches_weights)
    if not can_prepare.any():
        return None
    replicas = np.where(forecast.until_s > inp.now_s, or_zero(forecast.replicas), 0.0)
    replicas = np.minimum(replicas, inp.spec.max_replicas)
    before = np.fmax.accumulate(np.vstack([decided, replicas[:-1]]), axis=0)
    is_next = ((replicas > before) & can_prepare).T
    return _Needs(
        is_next,
        np.where(is_next, (replicas - decided).T, 0.0),
        forecast.due_s.T,
        np.full(is_next.shape, np.nan),
        np.where(forecast.is_weekly.T, Cause.WEEK_AGO, Cause.DAY_AGO),
        np.full(is_next.shape, -1),
    )


def _join(windows: _Needs, rises: _Needs | None) -> _Needs:
    """Return windows and rises as slots of one table. Slots that no workload uses are left out."""
    if rises is None:
        return windows
    used = rises.is_next.any(axis=0)
    return _Needs(*(np.hstack([each, more[:, used]]) for each, more in zip(windows, rises, strict=True)))


def _replica_lead_s(needs: _Needs, own_s: FloatColumn, planner_s: FloatColumn) -> FloatColumn:
    """Return how long before its need a replica is requested; float64[W, K]. own_s: float64[W, K], its start."""
    lead_s = np.where(np.isnan(needs.lead_s), own_s, needs.lead_s)
    return np.where(needs.cause == Cause.WINDOW, lead_s, np.fmax(own_s, planner_s[:, None]))


def _latest_due(inp: TickInput, due_s: FloatColumn) -> FloatColumn:
    """Return the last need for which a node is on request in the pool of each workload; float64[W], -infinity: none.

    due_s: float64[W], likewise for the workload alone. Pools that share a node group count as one.
    """
    pool, admitted = inp.fleet.pool, inp.fleet.groups.admitted
    by_pool = np.full(len(inp.fleet.pools) + 1, -np.inf)  # the last: of unknown pools
    np.fmax.at(by_pool, pool, due_s)
    by_group = np.where(admitted, by_pool[:-1, None], -np.inf).max(axis=0, initial=-np.inf)
    shared = np.where(admitted, by_group, -np.inf).max(axis=1, initial=-np.inf)
    return np.append(shared, -np.inf)[pool]
