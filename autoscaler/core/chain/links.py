"""Schedule the links of pre-warm windows backward from their begin, each by its own lead.

This is backward scheduling, as lead-time offsetting in material requirements planning (Orlicky, 1975): a window is the
gross requirement, replicas that are decided already and places on present nodes are the inventory, and each link is
released one lead before the next one starts.

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

from autoscaler.core.allocate.allocate import is_ours
from autoscaler.core.chain.places import find_places
from autoscaler.core.model.chain import Chain, Link
from autoscaler.core.model.types import TickInput
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, TimestampColumn

LOOKAHEAD_S = 7200.0
"""Windows are planned from so long before their replicas are requested: longer than any node or fetch takes."""

SAME_S = 60.0
"""Two times of a begin that differ by less are one begin: the wall clock was set."""

MOST_PLACES = 100
"""Most replicas of one workload for which places are requested at once."""


@dataclass(frozen=True)
class ChainState(Columns):
    """The table of this stage; float64[W]."""

    places: FloatColumn  # replicas for which places were requested since one lacked a node; NaN, 0: none
    until_s: TimestampColumn  # begin of the last window for which they were


class _Windows(NamedTuple):
    """Windows that begin soon and lack replicas, by workload and slot of the schedule; every field [W, K]."""

    is_next: BoolColumn  # False: the slot has no such window, and its other fields are of no use
    more: FloatColumn  # replicas beyond those that are decided
    due_s: FloatColumn


def plan_links(
    inp: TickInput, decided: FloatColumn, lead_s: FloatColumn, requested_lead_s: FloatColumn, before: ChainState
) -> tuple[Chain, ChainState]:
    """Return the links of the next window of each workload, and the replicas for which places are requested now.

    decided: float64[W], replicas of this tick. lead_s: float64[L, W], of each link; 0: the link is not needed.
    requested_lead_s: float64[L, W], likewise if nodes are requested.

    Places stay requested until replicas take them or the window begins, even if a new node already has room: without
    them its autoscaler would remove it again. Replicas that are decided, for whatever reason, count as taken.
    """
    windows = _find_next(inp, decided, np.fmax(lead_s, requested_lead_s)[Link.REPLICA])
    if not windows.is_next.any():
        return Chain.none(len(decided), lead_s), ChainState.blank(len(decided))
    lacking, free = np.zeros(windows.more.shape), np.zeros(windows.more.shape)
    requested = windows.is_next & (False if inp.requests_nodes is None else inp.requests_nodes[:, None])
    if requested.any():
        found = find_places(inp.fleet, inp.spec, decided, windows.more, windows.due_s)
        free, lacking = (np.where(requested, each, 0.0) for each in found)
    held = (before.places > 0)[:, None] & requested & (windows.due_s <= (before.until_s + SAME_S)[:, None])
    own_s = np.where(held | (lacking > 0), requested_lead_s[:, :, None], lead_s[:, :, None])  # float64[L, W, K]
    replica_s = windows.due_s - np.where(np.isnan(inp.schedule.lead_s), own_s[Link.REPLICA], inp.schedule.lead_s)
    weights_s = replica_s - own_s[Link.WEIGHTS]
    node_s = weights_s - own_s[Link.NODE]
    kept = np.where(held, before.places[:, None], 0.0)
    wanted = np.minimum(np.minimum(np.fmax(free + lacking, kept), windows.more), MOST_PLACES)
    begun = windows.is_next & (held | (node_s <= inp.now_s)) & (np.fmax(lacking, kept) > 0)
    until_s = np.where(begun, windows.due_s, -np.inf).max(axis=1)
    counted = windows.is_next & requested & (windows.due_s <= _latest_due(inp, until_s)[:, None])
    places = np.where(counted, wanted, 0.0).max(axis=1)

    row = np.arange(len(decided))
    slot = np.where(windows.is_next, windows.due_s, np.inf).argmin(axis=1)
    known = windows.is_next[row, slot]
    needs_node = ((lacking > 0) | begun)[row, slot]
    starts_s = np.array([node_s[row, slot], weights_s[row, slot], replica_s[row, slot]])
    starts_s[Link.NODE] = np.where(needs_node, starts_s[Link.NODE], np.nan)
    chosen_s = own_s[:, row, slot]
    starts_s[Link.WEIGHTS] = np.where(chosen_s[Link.WEIGHTS] > 0, starts_s[Link.WEIGHTS], np.nan)
    chain = Chain(
        due_s=np.where(known, windows.due_s[row, slot], np.nan),
        replicas=np.where(known, decided + windows.more[row, slot], np.nan),
        window=np.where(known, _names(inp)[row, slot], -1),
        starts_s=np.where(known, starts_s, np.nan),
        lacking=np.where(known, lacking[row, slot], np.nan),
        lead_s=np.where(known, chosen_s, lead_s),
        places=places,
    )
    own = np.where(begun, wanted, 0.0).max(axis=1)
    return chain, ChainState(own, np.where(own > 0, until_s, np.nan))


def _find_next(inp: TickInput, decided: FloatColumn, lead_s: FloatColumn) -> _Windows:
    """Find the windows that begin soon and lack replicas. lead_s: float64[W], the longest of the link `REPLICA`."""
    schedule = inp.schedule
    replicas = np.minimum(schedule.replicas, inp.spec.max_replicas[:, None])
    replica_s = schedule.start_s - np.where(np.isnan(schedule.lead_s), lead_s[:, None], schedule.lead_s)
    more = replicas - decided[:, None]
    soon = (schedule.start_s > inp.now_s) & (replica_s - inp.now_s <= LOOKAHEAD_S)
    return _Windows(soon & (more > 0) & is_ours(inp)[:, None], more, schedule.start_s)


def _latest_due(inp: TickInput, due_s: FloatColumn) -> FloatColumn:
    """Return the last window for which a node is on request in the pool of each workload; float64[W], -infinity: none.

    due_s: float64[W], likewise for the workload alone. Pools that share a node group count as one.
    """
    pool, admitted = inp.fleet.pool, inp.fleet.groups.admitted
    by_pool = np.full(len(inp.fleet.pools) + 1, -np.inf)  # the last: of unknown pools
    np.fmax.at(by_pool, pool, due_s)
    by_group = np.where(admitted, by_pool[:-1, None], -np.inf).max(axis=0, initial=-np.inf)
    shared = np.where(admitted, by_group, -np.inf).max(axis=1, initial=-np.inf)
    return np.where(pool >= 0, np.append(shared, -np.inf)[pool], -np.inf)


def _names(inp: TickInput) -> IntColumn:
    """Return the names of windows as indices, int64[W, K]; -1: it has none."""
    if inp.schedule.name is None:
        return np.full(inp.schedule.start_s.shape, -1)
    return inp.schedule.name
