"""The order in which single replicas get GPUs. It does not depend on how many GPUs there are.

Floors come first, then base replicas, then headroom. Within each of these, higher priorities come first. At equal
priority the workload with the fewest GPUs for its weight comes first (Adams' divisor method), so each first replica
comes before any second. First replicas go to the workloads with the most requests: they would miss the most.
Other ties are won by a replica that has GPUs, and then by what does not change from tick to tick.

Floors and base replicas within the nominal GPUs of their owner come before those that borrow. Headroom is divided in
the same way. So an owner takes back at once what it needs, but no base replica is taken for its headroom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autoscaler.core.supply.placement import ROUNDING_GPUS
from autoscaler.core.supply.running import Running
from autoscaler.core.supply.tenants import Nominal
from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn

HEADROOM = 2
"""The stage after floors and base replicas."""


@dataclass(frozen=True)
class Requests:
    """Replicas that workloads request of pools or quotas that are short, by workload; every field [W]."""

    id: IntColumn  # int64[W], unique and stable
    pool: IntColumn  # int64[W]; -1: it limits nothing
    gpus_each: FloatColumn  # float64[W], of one replica, above 0
    reserved: FloatColumn  # float64[W], replicas that stay in any case
    floor: FloatColumn  # float64[W], replicas that the policy states
    base: FloatColumn  # float64[W], replicas for the present load; the rest is headroom
    most: FloatColumn  # float64[W], replicas requested
    scheduled: FloatColumn  # float64[W], replicas that have GPUs
    confined: FloatColumn  # float64[W], those of them on nodes that accept no new pod
    priority: FloatColumn  # float64[W]
    weight: FloatColumn  # float64[W], above 0
    urgency: FloatColumn  # float64[W], of a first replica
    guaranteed_gpus: FloatColumn  # float64[W], of headroom in its pool before base replicas of those that can wait
    can_wait: BoolColumn  # bool[W], a replica that starts when a request arrives serves it in time
    idle: BoolColumn  # bool[W], yields to workloads of its pool and priority
    running: Running  # their replicas that run
    nominal: tuple[Nominal, ...] = ()  # GPUs that owners may use beyond the reserved replicas, without borrowing


class Slots(NamedTuple):
    """Single replicas in the order in which they get GPUs; every field [L]."""

    row: IntColumn  # int64[L], of the workload
    number: IntColumn  # int64[L], replicas that the workload has before this one
    gpus: FloatColumn  # float64[L], that need a place; 0 for a replica on a node that accepts no new pod

    def in_order(self, place: IntColumn) -> Slots:
        """Return the slots in another order."""
        return Slots(self.row[place], self.number[place], self.gpus[place])


def order(requests: Requests) -> Slots:
    """Return all requested replicas beyond the reserved ones, in order. Those of one workload keep their order."""
    row, number = _list_replicas(requests)
    stage = (number >= requests.floor[row]).astype(np.int64)
    stage += number >= np.fmax(requests.base, requests.floor)[row]
    levels, level = np.unique(-requests.priority, return_inverse=True)
    share = np.where(number > 0, number * (requests.gpus_each / requests.weight)[row], _rank_first(requests)[row])
    # The last key comes first. The rows are in an order that breaks ties, and a stable sort keeps it.
    place = _sort(number >= requests.scheduled[row])
    place = place[_sort(share[place])]
    place = place[_sort((stage * len(levels) + level[row])[place])]
    gpus = np.where(number < requests.confined[row], 0.0, requests.gpus_each[row])
    slots, stage = Slots(row, number.astype(np.int64), gpus).in_order(place), stage[place]
    if requests.idle.any():
        slots = slots.in_order(_let_idle_yield(requests, slots, stage, level[slots.row]))
    borrows = np.zeros(len(place), dtype=bool)
    if requests.nominal:
        borrows = _find_borrowers(requests, slots)  # an idle replica borrows in the stage at whose place it is
        place = _sort(np.where(stage == HEADROOM, HEADROOM * 2 + borrows, stage + HEADROOM * borrows))
        slots, borrows = slots.in_order(place), borrows[place]
    if requests.guaranteed_gpus.any():
        slots = slots.in_order(_guarantee_headroom(requests, slots, level[slots.row], borrows))
    return slots


def _sort(keys: BoolColumn | IntColumn | FloatColumn) -> IntColumn:
    """Return the places of these keys in ascending order; equal ones keep theirs. Short integers are sorted faster."""
    short = np.iinfo(np.int16)
    is_short = keys.dtype.kind in "bi" and short.min <= keys.min(initial=0) and keys.max(initial=0) <= short.max
    return np.argsort(keys.astype(np.int16) if is_short else keys, kind="stable")


def _list_replicas(requests: Requests) -> tuple[IntColumn, FloatColumn]:
    """Return the workload of each replica, and how many replicas it has before this one; int64[L] and float64[L].

    Workloads that tie are in a stable order: by weight, by size, and by id.
    """
    count = np.ceil(np.fmax(requests.most - requests.reserved, 0.0)).astype(np.int64)
    tied = np.lexsort((requests.id, requests.gpus_each, -requests.weight))
    row, before = np.repeat(tied, count[tied]), np.cumsum(count[tied]) - count[tied]
    return row, requests.reserved[row] + np.arange(len(row)) - np.repeat(before, count[tied])


def _rank_first(requests: Requests) -> FloatColumn:
    """Return the order of first replicas as numbers below 0; float64[W].

    Requests per GPU change with every tick. They decide on first replicas only, or others would move to and fro.
    """
    most_urgent = np.lexsort(
        (
            requests.id,
            requests.gpus_each,
            -requests.weight,
            requests.scheduled == 0,
            -requests.urgency * requests.weight,
        )
    )
    rank = np.empty(len(most_urgent))
    rank[most_urgent] = np.arange(-len(most_urgent), 0)
    return rank


def _let_idle_yield(requests: Requests, slots: Slots, stage: IntColumn, level: IntColumn) -> IntColumn:
    """Return the order with floors and base replicas of idle workloads after those of others with their priority.

    They only change places with replicas of the same pool. So no other pool and no other priority gets a GPU by this.
    """
    idle = requests.idle[slots.row] & (stage < HEADROOM)
    among = requests.pool[slots.row] * (1 + level.max(initial=0)) + level
    return _change_places(slots, np.arange(len(idle)), among, 2 * (stage == HEADROOM) + idle)


def _guarantee_headroom(requests: Requests, slots: Slots, level: IntColumn, borrows: BoolColumn) -> IntColumn:
    """Return the order with guaranteed headroom before base replicas of lower priorities that can wait, in its pool.

    They only change places with each other, so nothing else comes later: no headroom, no base replica of the same
    priority or a higher one, and none whose requests would miss their objective while they wait for a new replica.
    All guaranteed headroom of a pool together is at most the largest amount that is stated.
    """
    each, most = requests.gpus_each[slots.row], requests.guaranteed_gpus[slots.row]
    beyond = slots.number - np.fmax(requests.base, requests.floor)[slots.row]  # replicas of headroom before this one
    guaranteed = (beyond >= 0) & ((beyond + 1) * each <= most + ROUNDING_GPUS) & ~requests.idle[slots.row]
    candidates = np.flatnonzero(guaranteed)
    candidates = candidates[_sort(requests.pool[slots.row[candidates]])]
    pool, gpus = requests.pool[slots.row[candidates]], np.cumsum(each[candidates])
    before = np.append(0.0, gpus)[np.searchsorted(pool, pool)]
    guaranteed[candidates[gpus - before > most[candidates] + ROUNDING_GPUS]] = False
    pays = (beyond < 0) & (slots.number >= requests.floor[slots.row]) & requests.can_wait[slots.row]
    moving = np.flatnonzero(guaranteed | pays)
    among = 2 * requests.pool[slots.row[moving]] + borrows[moving]
    return _change_places(slots, moving, among, 2 * level[moving] + guaranteed[moving])


def _change_places(slots: Slots, moving: IntColumn, among: IntColumn, key: IntColumn) -> IntColumn:
    """Return the order in which some replicas have changed places, so that they are in order of a key.

    moving: the replicas, as indices. among: those of one number change places with each other. Others keep theirs.
    A replica takes the place at which these had GPUs for it and for all those before it.
    """
    before = moving[_sort(among)]
    after = moving[_sort(among * (1 + key.max(initial=0)) + key)]
    ends = np.cumsum(slots.gpus[before])
    covering = np.searchsorted(ends, np.cumsum(slots.gpus[after]) - ROUNDING_GPUS)
    place = np.arange(len(slots.row))
    place[after] = before[np.fmin(covering, len(before) - 1)]
    return _sort(place)


def _find_borrowers(requests: Requests, slots: Slots) -> BoolColumn:
    """Return which replicas are beyond the nominal GPUs of their owner; bool[L].

    The replicas of an owner keep their order, so whether one borrows depends on no other owner, and not on how many
    GPUs there are.
    """
    gpus, borrows = requests.gpus_each[slots.row], np.zeros(len(slots.row), dtype=bool)
    for nominal in requests.nominal:
        owner = nominal.owner[slots.row]
        together = _sort(owner)
        ends, starts = np.cumsum(gpus[together]), np.searchsorted(owner[together], np.arange(len(nominal.gpus)))
        before = np.append(0.0, ends)[starts]
        most = np.append(before + nominal.gpus, np.inf)[owner[together]]
        borrows[together] |= ends > most + ROUNDING_GPUS
    return borrows
