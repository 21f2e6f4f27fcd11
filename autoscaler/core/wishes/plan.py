"""Plan which nodes should hold which weights: a generalized assignment of copies to disks, repaired greedily.

Each copy of a model on a node covers the places for its replicas there, and takes bytes of the node's disk. The optimum
is NP-hard (generalized assignment; weighted coverage with knapsacks), and a fresh optimum would move copies with each
change. So the plan of before is kept and repaired: models take nodes one after another, pinned ones first, and prefer
nodes that hold them already. A copy goes only if another model needs its room, or if it is neither fetched nor needed.
Sources: Shmoys and Tardos (1993) for the problem; Khuller, Moss and Naor (1999) for greedy budgeted coverage; Thaler
and Ravishankar (1998), rendezvous hashing, for ties that do not depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.core.table.columns import BoolColumn, FloatColumn, IntColumn
from autoscaler.core.wishes.parts import MOST_COPIES, Demands, DiskNodes, Models, TieColumn
from autoscaler.core.wishes.shares import Shares

COPIES, ZONES = 2, 2
"""A model has this many copies, in this many failure domains, where there is room: one may be lost."""

ROUNDS = 8
"""Most repairs of one plan. Each further one happens only if spare copies have made way for needed ones."""

EPSILON = 1e-6  # of places

MOST_IN_ZONE = 31  # copies that are told apart
ONE_IN_ZONE = np.uint64(1 << 58)
NEVER = np.uint64((1 << 64) - 1)
MOST_KNOWN_PLACES = 4_000_000  # numbers that are kept while a plan is made: 32 MB


@dataclass(frozen=True)
class WishPlan:
    """The copies that nodes should hold."""

    copies: BoolColumn  # bool[M, N]
    is_needed: BoolColumn  # bool[M, N], the others are spare
    missing: FloatColumn  # float64[D], needed places that no node holds the weights for; as far as places exist
    order: IntColumn  # int64[M], rows of models, those that nodes should fetch first at the front


def plan(models: Models, demands: Demands, nodes: DiskNodes, held: BoolColumn, before: BoolColumn) -> WishPlan:
    """Plan the copies. held: bool[M, N], nodes hold these weights. before: bool[M, N], the last plan.

    The same arguments give the same plan, whatever the order of rows. With the last plan as `before`, and all else
    unchanged, nothing changes.
    """
    repair = _Repair(models, demands, nodes, held, before)
    for _ in range(ROUNDS):
        changes = repair.changes
        repair.add_needed()
        repair.add_spare()
        repair.drop_surplus()
        if repair.changes == changes:
            break
    return WishPlan(repair.copies, repair.needed_copies(), repair.missing(), repair.order)


class _Repair:
    """A plan that is being repaired."""

    def __init__(
        self, models: Models, demands: Demands, nodes: DiskNodes, held: BoolColumn, before: BoolColumn
    ) -> None:
        self.changes = 0
        self._removals = 0
        self._without_room = np.full(len(demands.model), -1)  # by demand: `_removals` when no node had room
        self._models, self._demands, self._nodes, self._held = models, demands, nodes, held
        self._shares = Shares(models, demands, nodes)
        self.order = np.lexsort((models.tie, self._shares.turns(), -models.priority, ~models.is_pinned))
        rank = np.empty(len(self.order), dtype=np.int64)
        rank[self.order] = np.arange(len(self.order))
        self._rank = rank
        self._rows = np.lexsort((demands.tie, -demands.needed, rank[demands.model])).tolist()
        self._of_model: list[list[int]] = [[] for _ in rank]
        for row in self._rows:
            self._of_model[demands.model[row]].append(row)
        self._running = _by_row(demands)
        self._in_use = np.zeros(held.shape, dtype=bool)  # bool[M, N], pods that run there use these weights
        self._in_use[demands.model[demands.running[0]], demands.running[1]] = True
        self._zone_count = int(nodes.zone.max(initial=0)) + 1
        self._known_places: dict[int, FloatColumn] = {}
        eligible = np.zeros(held.shape, dtype=bool)
        has_copies: BoolColumn = np.any(before, axis=1)
        for row in np.flatnonzero(has_copies[demands.model]).tolist():
            eligible[demands.model[row]] |= nodes.admits[demands.kind[row]]
        self.copies = before & eligible & (models.size_bytes[:, None] <= nodes.budget_bytes)
        self._at = [row.nonzero()[0].tolist() for row in self.copies]  # nodes of the copies of each model
        self._open = nodes.admits & nodes.is_open
        self._spare = np.zeros_like(self.copies)
        self._soft = np.zeros(len(nodes.zone))  # bytes of spare copies
        self._soft_count = np.zeros(len(nodes.zone), dtype=np.int64)
        self._firm_copies = np.zeros_like(self.copies)  # of pinned models, those that are not spare
        of, at = self.copies.nonzero()
        bytes_, count = models.size_bytes[of], len(nodes.zone)
        is_firm = self._in_use[of, at] & ~models.is_pinned[of]
        # Bytes of firm copies, and of others in use. Without any copy, counts are whole numbers.
        self._firm = np.bincount(at, bytes_ * is_firm, count).astype(np.float64)
        self._used = np.bincount(at, bytes_, count).astype(np.float64)
        self._count = np.bincount(at, minlength=count)
        for model in np.flatnonzero(self.copies.any(axis=1)).tolist():
            self._note(model)
        for model, node in zip(of.tolist(), at.tolist(), strict=True):
            self._shares.note(model, node, 1)
        self._fit_budgets()

    def add_needed(self) -> None:
        """Add copies where needed places lack one, pinned models first. Spare copies make way for them."""
        for row in self._rows:
            model = self._demands.model[row]
            places = self._places(row)
            lacking = self._demands.needed[row] - places[self._at[model]].sum()
            if lacking <= EPSILON:
                continue
            hard = self._firm if self._models.is_pinned[model] else self._used - self._soft
            room = self._nodes.budget_bytes - hard >= self._models.size_bytes[model]
            room &= self._count - self._soft_count < MOST_COPIES
            room |= self._shares.is_exceeded
            added = False
            for node in self._by_preference(model, places, self._is_open(row, model) & (places > 0) & room):
                if self._make_room(row, node):
                    self._add(model, node)
                    added = True
                    lacking -= places[node]
                    if lacking <= EPSILON:
                        break
            if added:
                self._note(model)

    def add_spare(self) -> None:
        """Add spare copies where there is room: one for each model, then wanted places, copies and zones."""
        for lacks in (self._lacks_all, self._lacks_places, self._lacks_copies, self._lacks_zones):
            for row in self._rows:
                if self._without_room[row] == self._removals:
                    continue
                model = self._demands.model[row]
                places = self._places(row)
                helpful = lacks(row, places, self._at[model])
                if helpful is None:
                    continue
                room = self._nodes.budget_bytes - self._used >= self._models.size_bytes[model]
                candidates = self._is_candidate(row, model) & room
                if not candidates.any():
                    self._without_room[row] = self._removals
                    continue
                added = False
                for node in self._by_preference(model, places, candidates & helpful):
                    self._add(model, node)
                    added = True
                    if lacks(row, places, self._at[model]) is None:
                        break
                if added:
                    self._note(model)

    def drop_surplus(self) -> None:
        """Drop copies that no node has fetched yet and that nothing wants any more."""
        unfetched = self.copies & ~self._held & self._spare
        for model in np.flatnonzero(unfetched.any(axis=1)).tolist():
            nodes = np.flatnonzero(unfetched[model])
            if len(self._at[model]) <= COPIES:
                continue
            dropped = [node for node in nodes[np.argsort(self._ties(model, nodes))].tolist() if self._drop(model, node)]
            if dropped:
                self._note(model)

    def needed_copies(self) -> BoolColumn:
        """Return the copies that cover needed places, those that nodes hold first."""
        found = np.zeros_like(self.copies)
        for row in self._rows:
            model = self._demands.model[row]
            nodes = np.array(self._at[model], dtype=np.int64)
            places = self._places(row)[nodes]
            order = np.lexsort((self._ties(model, nodes), -places, ~self._held[model, nodes]))
            nodes, places = nodes[order], places[order]
            before = np.cumsum(places) - places
            found[model, nodes[(places > 0) & (before < self._demands.needed[row] - EPSILON)]] = True
        return found

    def missing(self) -> FloatColumn:
        """Return the needed places without a copy, of those that there are."""
        found = np.zeros(len(self._demands.model))
        for row in self._rows:
            places = self._places(row)
            needed = min(float(self._demands.needed[row]), float(places.sum()))
            found[row] = max(needed - float(places[self._at[self._demands.model[row]]].sum()), 0.0)
        return found

    def _lacks_all(self, row: int, places: FloatColumn, at: Sequence[int]) -> BoolColumn | None:
        """Return the nodes of which one should get the first copy of a model; None: it has copies.

        at: nodes of its copies.
        """
        return None if at else self._nodes.is_open

    def _lacks_places(self, row: int, places: FloatColumn, at: Sequence[int]) -> BoolColumn | None:
        """Return the nodes with places that a demand wants beyond those with copies; None: it has enough."""
        wanted = self._demands.needed[row] + self._demands.spare[row]
        return None if places[at].sum() >= wanted - EPSILON else places > 0

    def _lacks_copies(self, row: int, places: FloatColumn, at: Sequence[int]) -> BoolColumn | None:
        """Return the nodes of which one should get a further copy; None: the loss of a node leaves a copy."""
        return None if len(at) >= COPIES else self._nodes.is_open

    def _lacks_zones(self, row: int, places: FloatColumn, at: Sequence[int]) -> BoolColumn | None:
        """Return the nodes of other zones of which one should get a copy; None: the loss of a zone leaves a copy."""
        zones = self._zones_of(at)
        if len(zones) >= ZONES:
            return None
        is_other = np.ones(self._zone_count, dtype=bool)
        is_other[list(zones)] = False
        return is_other[self._nodes.zone]

    def _zones_of(self, nodes: Sequence[int]) -> set[int]:
        return set(self._nodes.zone[nodes].tolist()) if nodes else set()

    def _is_worse(self, model: int, node: int) -> bool:
        """Return whether something would be lacking without the copy of a model on a node."""
        left = [each for each in self._at[model] if each != node]
        if len(left) < COPIES or len(self._zones_of(left)) < min(ZONES, len(self._zones_of(self._at[model]))):
            return True
        # A workload whose pods do not fit on the node loses nothing, however many places it lacks.
        return any(
            self._places(row)[node] > 0 and self._lacks_places(row, self._places(row), left) is not None
            for row in self._of_model[model]
        )

    def _is_candidate(self, row: int, model: int) -> BoolColumn:
        """Return the nodes that could get a copy for a demand beside all others, if there is room."""
        candidates: BoolColumn = self._is_open(row, model) & (self._count < MOST_COPIES)
        return candidates & self._shares.has_label(row) & self._shares.has_bytes(row)

    def _is_open(self, row: int, model: int) -> BoolColumn:
        """Return the nodes that take new pods of a demand, and have no copy of its model."""
        candidates: BoolColumn = self._open[self._demands.kind[row]] & ~self.copies[model]
        return candidates

    def _places(self, row: int) -> FloatColumn:
        """Return the places of a demand on each node: those free now, and those of its own pods."""
        if row in self._known_places:
            return self._known_places[row]
        places: FloatColumn = self._nodes.free[self._demands.kind[row]]
        own = self._running.get(row)
        if own is not None:
            places = places.copy()
            np.add.at(places, own[0], own[1])
            if len(self._known_places) * len(places) < MOST_KNOWN_PLACES:
                self._known_places[row] = places
        return places

    def _ties(self, model: int, nodes: IntColumn) -> TieColumn:
        """Return a hash of a model and each of these nodes: their own hashes, multiplied (Knuth, 1973, 6.4)."""
        mixed: TieColumn = (self._nodes.tie[nodes] ^ self._models.tie[model]) * np.uint64(0x9E3779B97F4A7C15)
        return mixed

    def _by_preference(self, model: int, places: FloatColumn, candidates: BoolColumn) -> Iterator[int]:
        """Yield candidates: holders first, then those of the zones with the fewest copies.

        Among equals come those with the most places, the fewest copies, and the lowest hash. The caller adds a copy to
        each node that is yielded.
        """
        nodes = candidates.nonzero()[0]
        if not len(nodes):
            return
        zones = self._nodes.zone[nodes]
        copies = np.bincount(self._nodes.zone[np.array(self._at[model], dtype=np.int64)], minlength=self._zone_count)
        # The parts of a key, from the highest bit: no holder, copies in the zone, places, copies on the node, hash.
        key = self._ties(model, nodes) >> np.uint64(18)
        key |= np.minimum(self._count[nodes], 63).astype(np.uint64) << np.uint64(46)
        key |= (np.uint64(63) - np.minimum(places[nodes], 63).astype(np.uint64)) << np.uint64(52)
        key |= np.minimum(copies[zones], MOST_IN_ZONE).astype(np.uint64) << np.uint64(58)
        key |= (~self._held[model, nodes]).astype(np.uint64) << np.uint64(63)
        for _ in range(len(nodes)):
            place = int(key.argmin())
            yield int(nodes[place])
            key[place] = NEVER
            zone = zones[place]
            copies[zone] += 1
            if copies[zone] <= MOST_IN_ZONE:
                key[(zones == zone) & (key != NEVER)] += ONE_IN_ZONE

    def _make_room(self, row: int, node: int) -> bool:
        """Remove copies of a node that must make way for a needed one, as few as possible. Return whether it fits."""
        missing_bytes = self._used[node] + self._models.size_bytes[self._demands.model[row]]
        missing_bytes -= self._nodes.budget_bytes[node]
        missing_labels = self._count[node] + 1 - MOST_COPIES
        movable, removed = self._movable(row, node), list[int]()
        first = self._shares.for_a_label(row, node, movable)
        if first is None:
            return False
        for place, other in enumerate([*first, *(each for each in movable if each not in first)]):
            if missing_bytes <= 0 and missing_labels <= 0 and place >= len(first):
                break
            removed.append(other)
            missing_bytes -= self._models.size_bytes[other]
            missing_labels -= 1
        if missing_bytes > 0 or missing_labels > 0:
            return False
        for other in removed:
            self._remove(other, node)
            self._note(other)
        return True

    def _movable(self, row: int, node: int) -> list[int]:
        """Return the copies of a node that make way for a needed one, those that go first at the front."""
        present = np.flatnonzero(self.copies[:, node] & ~self._in_use[:, node])
        is_soft = self._spare[present, node]
        last = np.lexsort((-self._rank[present], self._held[present, node], ~is_soft))
        soft, hard = (present[last][is_soft[last] == each].tolist() for each in (True, False))
        if self._models.is_pinned[self._demands.model[row]]:
            return [*soft, *(model for model in hard if not self._models.is_pinned[model])]
        return [*soft, *self._shares.excess(row, node, soft, hard)]

    def _fit_budgets(self) -> None:
        """Remove copies of nodes that have no longer room for all of them: spare ones first, then the last by rank."""
        over = (self._used > self._nodes.budget_bytes) | (self._count > MOST_COPIES)
        for node in self._in_order(over):
            present = np.flatnonzero(self.copies[:, node])
            last = np.lexsort((-self._rank[present], self._held[present, node], ~self._spare[present, node]))
            for model in present[last].tolist():
                if self._used[node] <= self._nodes.budget_bytes[node] and self._count[node] <= MOST_COPIES:
                    break
                self._remove(model, node)
                self._note(model)
        for node in self._in_order(self._shares.is_exceeded):
            present = np.flatnonzero(self.copies[:, node])
            last = np.lexsort((-self._rank[present], self._held[present, node], ~self._spare[present, node]))
            for model in self._shares.without_label(node, present[last].tolist()):
                self._remove(model, node)
                self._note(model)

    def _in_order(self, chosen: BoolColumn) -> list[int]:
        """Return these nodes in an order that does not depend on that of the rows. chosen: bool[N]."""
        nodes = np.flatnonzero(chosen)
        found: list[int] = nodes[np.argsort(self._nodes.tie[nodes])].tolist()
        return found

    def _drop(self, model: int, node: int) -> bool:
        if self._is_worse(model, node):
            return False
        self._remove(model, node)
        return True

    def _add(self, model: int, node: int) -> None:
        self._set(model, node, True)

    def _remove(self, model: int, node: int) -> None:
        self._set(model, node, False)

    def _set(self, model: int, node: int, has_copy: bool) -> None:
        sign = 1 if has_copy else -1
        self.copies[model, node] = has_copy
        if has_copy:
            self._at[model].append(node)
        else:
            self._at[model].remove(node)
            self._removals += 1
        self._used[node] += sign * self._models.size_bytes[model]
        self._count[node] += sign
        self._shares.note(model, node, sign)
        if self._in_use[model, node] and not self._models.is_pinned[model]:
            self._firm[node] += sign * self._models.size_bytes[model]
        self.changes += 1

    def _note(self, model: int) -> None:
        """Update which copies of a model are spare, after a change of its copies."""
        nodes = np.array(self._at[model], dtype=np.int64)
        is_spare = np.ones(len(nodes), dtype=bool)
        for row in self._of_model[model]:
            places = self._places(row)[nodes]
            is_spare &= (places <= places.sum() - self._demands.needed[row] + EPSILON) | (places == 0)
        is_spare &= ~self._in_use[model, nodes]  # no agent removes them, wanted or not
        size = self._models.size_bytes[model]
        self._soft[self._spare[model]] -= size
        self._soft_count[self._spare[model]] -= 1
        self._spare[model] = False
        self._spare[model, nodes[is_spare]] = True
        self._soft[nodes[is_spare]] += size
        self._soft_count[nodes[is_spare]] += 1
        if self._models.is_pinned[model]:
            self._firm[self._firm_copies[model]] -= size
            self._firm_copies[model] = False
            self._firm_copies[model, nodes[~is_spare]] = True
            self._firm[nodes[~is_spare]] += size


def _by_row(demands: Demands) -> dict[int, tuple[IntColumn, FloatColumn]]:
    """Return the nodes with pods of each demand, and their pods."""
    rows, nodes, pods = demands.running
    order = np.argsort(rows, kind="stable")
    ends = np.searchsorted(rows[order], np.arange(len(demands.model) + 1))
    return {
        row: (nodes[order[begin:end]], pods[order[begin:end]])
        for row, (begin, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
        if end > begin
    }
