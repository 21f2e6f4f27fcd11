"""Schedule the links of pre-warm windows backward from their begin, each by its own lead.

This is backward scheduling, as lead-time offsetting in material requirements planning (Orlicky, 1975): a window is the
gross requirement, replicas that are decided already and places on present nodes are the inventory, and each link is
released one lead before the next one starts.

Nothing is ordered here: `Chain.places` is the number of replicas for which nodes should be on request now, and the
adapter makes the cluster agree with it. So a link that is not needed any more disappears, and a new process orders
nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.allocate.allocate import is_ours
from autoscaler.core.chain.places import find_lacking
from autoscaler.core.model.chain import Chain, Link
from autoscaler.core.model.types import TickInput
from autoscaler.core.table.columns import BoolColumn, Columns, FloatColumn, IntColumn, TimestampColumn

LOOKAHEAD_S = 7200.0
"""Windows are planned from so long before their replicas are requested: longer than any node or fetch takes."""

SAME_S = 60.0
"""Two times of a begin that differ by less are one begin: the wall clock was set."""

MOST_PLACES = 100
"""Most replicas of one workload for which nodes are requested at once."""


@dataclass(frozen=True)
class ChainState(Columns):
    """The table of this stage; float64[W]."""

    places: FloatColumn  # replicas for which nodes were requested; NaN, 0: none
    until_s: TimestampColumn  # begin of the last window for which they were


class _Windows(NamedTuple):
    """Windows that begin soon and lack replicas, by workload and slot of the schedule; every field [W, K]."""

    is_next: BoolColumn  # False: the slot has no such window, and its other fields are of no use
    more: FloatColumn  # replicas beyond those that are decided
    due_s: FloatColumn
    replica_s: FloatColumn  # start of the link `REPLICA`


def plan_links(
    inp: TickInput, decided: FloatColumn, lead_s: FloatColumn, before: ChainState
) -> tuple[Chain, ChainState]:
    """Return the links of the next window of each workload, and the replicas for which nodes are needed now.

    decided: float64[W], replicas of this tick. lead_s: float64[L, W], of each link; 0: the link is not needed.

    Places stay requested until replicas take them or the window begins, even if a new node already has room: without
    them its autoscaler would remove it again. Replicas that are decided, for whatever reason, count as taken.
    """
    windows = _find_next(inp, decided, lead_s[Link.REPLICA])
    if not windows.is_next.any():
        return Chain.none(len(decided), lead_s), ChainState.blank(len(decided))
    weights_s = windows.replica_s - lead_s[Link.WEIGHTS][:, None]
    node_s = weights_s - lead_s[Link.NODE][:, None]
    lacking = np.zeros(windows.more.shape)
    requested = windows.is_next & (False if inp.requests_nodes is None else inp.requests_nodes[:, None])
    if requested.any():
        found = find_lacking(inp.fleet, inp.spec, decided, windows.more, windows.due_s)
        lacking = np.where(requested, found, 0.0)
    held = (before.places > 0)[:, None] & requested & (windows.due_s <= (before.until_s + SAME_S)[:, None])
    runs = windows.is_next & (held | (node_s <= inp.now_s))
    kept = np.where(held, before.places[:, None], 0.0)
    by_window = np.where(runs, np.minimum(np.minimum(np.fmax(lacking, kept), windows.more), MOST_PLACES), 0.0)
    places = by_window.max(axis=1)

    row = np.arange(len(decided))
    slot = np.where(windows.is_next, windows.due_s, np.inf).argmin(axis=1)
    known = windows.is_next[row, slot]
    needs_node = (lacking > 0)[row, slot] | (by_window > 0)[row, slot]
    starts_s = np.array([node_s[row, slot], weights_s[row, slot], windows.replica_s[row, slot]])
    starts_s[Link.NODE] = np.where(needs_node, starts_s[Link.NODE], np.nan)
    starts_s[Link.WEIGHTS] = np.where(lead_s[Link.WEIGHTS] > 0, starts_s[Link.WEIGHTS], np.nan)
    chain = Chain(
        due_s=np.where(known, windows.due_s[row, slot], np.nan),
        replicas=np.where(known, decided + windows.more[row, slot], np.nan),
        window=np.where(known, _names(inp)[row, slot], -1),
        starts_s=np.where(known, starts_s, np.nan),
        lacking=np.where(known, lacking[row, slot], np.nan),
        lead_s=lead_s,
        places=places,
    )
    until_s = np.where(by_window > 0, windows.due_s, -np.inf).max(axis=1)
    return chain, ChainState(places, np.where(places > 0, until_s, np.nan))


def _find_next(inp: TickInput, decided: FloatColumn, lead_s: FloatColumn) -> _Windows:
    """Find the windows that begin soon and lack replicas. lead_s: float64[W], of the link `REPLICA`."""
    schedule = inp.schedule
    replicas = np.minimum(schedule.replicas, inp.spec.max_replicas[:, None])
    replica_s = schedule.start_s - np.where(np.isnan(schedule.lead_s), lead_s[:, None], schedule.lead_s)
    more = replicas - decided[:, None]
    soon = (schedule.start_s > inp.now_s) & (replica_s - inp.now_s <= LOOKAHEAD_S)
    return _Windows(soon & (more > 0) & is_ours(inp)[:, None], more, schedule.start_s, replica_s)


def _names(inp: TickInput) -> IntColumn:
    """Return the names of windows as indices, int64[W, K]; -1: it has none."""
    if inp.schedule.name is None:
        return np.full(inp.schedule.start_s.shape, -1)
    return inp.schedule.name
