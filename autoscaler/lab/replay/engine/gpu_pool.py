"""The GPUs shared by the replicas of a run: assigned first come, first served, and reassigned as soon as they are free.

GPUs belong to nodes. A new node has neither image nor weights. After the first placement it has the image, and the
weights of that replica's model. Or a share of the nodes holds all weights from the start, and the others none.

Nodes are created for replicas that find no room, and for requested places, as by placeholders: these take free room
before a node is created for them, yield to every replica, and keep their node from being removed. A node that has been
empty for `node_idle_s` is removed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autoscaler.lab.replay.case import Case, FreePlaces

NODE_GPUS = 8.0  # the usual server has eight
ROUNDING_GPUS = 1e-9  # sums of GPU fractions are not exact


@dataclass(eq=False)
class Machine:
    """A machine with GPUs. Fragmentation within a node is not modelled."""

    free_gpus: float
    id: int = 0
    gpus: float = 0.0
    created_s: float = 0.0
    up_s: float = math.nan  # NaN: its first replica says how long it takes to come up
    image_s: float = math.inf  # time at which it has the image, seconds
    # models whose weights are on its disk: the time from which they are complete, seconds
    models: dict[str, float] = field(default_factory=dict)
    holds: bool | None = None  # whether it always holds the weights of every model, or never; None: those of `models`
    empty_since_s: float = 0.0  # since when it holds neither replicas nor requested places
    is_held: bool = False  # by requested places

    def has_weights(self, model: str, now_s: float) -> bool:
        """Return whether the weights are complete on its disk."""
        return self.models.get(model, math.inf) <= now_s if self.holds is None else self.holds

    def is_up(self, now_s: float) -> bool:
        return self.up_s <= now_s


@dataclass(frozen=True)
class MachinePlace:
    """The node of a replica, and what the node already had."""

    node: Machine
    weights_cached: bool


@dataclass(eq=False)
class GpuClaim:
    """A request for the GPUs of one replica. `on_assigned` is called with the time and the placement."""

    model: str
    gpus: float
    on_assigned: Callable[[float, MachinePlace], None]
    node: Machine | None = None  # set while the GPUs are assigned


class _Requested(NamedTuple):
    """Places that should be free or be created."""

    gpus: float  # of each
    places: int
    draw_node_s: Callable[[], float]  # draws how long a node takes to come up


class GpuPool:
    """GPUs of one kind. A claim that finds too few free GPUs waits, and later claims wait behind it.

    The strict order prevents that small replicas starve a large one. Replicas of one run have one size, so it leaves no
    GPU idle.
    """

    def __init__(
        self,
        gpus: float = math.inf,
        node_gpus: float = NODE_GPUS,
        weights_on: float = math.nan,
        keeps_fetched: bool = False,
        node_idle_s: float = math.inf,
    ) -> None:
        """weights_on: share of nodes that hold all weights; NaN: each has those that its replicas fetched.

        keeps_fetched: other nodes keep what is fetched to them, too.
        """
        self.gpus = gpus
        self._weights_on = weights_on
        self._keeps_fetched = keeps_fetched
        self._node_idle_s = node_idle_s
        self.largest_gpus = min(gpus, node_gpus)  # largest claim
        self.nodes: list[Machine] = []  # that exist
        self._removed: list[tuple[float, float, float]] = []  # nodes that are gone: created, removed, GPUs
        self._created = 0  # nodes so far
        self._unused_gpus = gpus  # GPUs of nodes that do not exist
        self._waiting: deque[GpuClaim] = deque()
        self._requested: dict[Hashable, _Requested] = {}

    @classmethod
    def for_cases(cls, cases: Sequence[Case], gpus: float = math.inf) -> GpuPool:
        """Make a pool of nodes with `NODE_GPUS` GPUs, or larger ones if a replica of a case needs them."""
        largest_gpus = max(NODE_GPUS, *(case.gpus_per_replica for case in cases))
        if not cases:
            return cls(gpus, largest_gpus)
        first = cases[0]
        return cls(gpus, largest_gpus, first.weights_on, first.fetches_weights, first.node_idle_s)

    def count_fitting(self, gpus_per_replica: float) -> float:
        """Return the number of replicas of one size that fit into the empty pool; infinity for an unlimited pool."""
        if math.isinf(self.gpus):
            return math.inf
        nodes, rest_gpus = divmod(self.gpus + ROUNDING_GPUS, self.largest_gpus)
        each, last = (math.floor((gpus + ROUNDING_GPUS) / gpus_per_replica) for gpus in (self.largest_gpus, rest_gpus))
        return nodes * each + last

    @property
    def has_waiting(self) -> bool:
        """Whether a claim waits."""
        return bool(self._waiting)

    @property
    def free_gpus(self) -> float:
        return self._unused_gpus + sum(node.free_gpus for node in self.nodes)

    def places(self, model: str, gpus: float, now_s: float) -> FreePlaces:
        """Return the room for replicas of a model that need this many GPUs. Claims that wait come first."""
        up = self.up_nodes(now_s)
        each = [0 if self._waiting else _count_places(node.free_gpus, gpus) for node in up]
        holding = [node.has_weights(model, now_s) for node in up]
        held = sum(free for free, holds in zip(each, holding, strict=True) if holds)
        up_gpus = sum(node.gpus for node in up)
        coming_gpus = sum(node.gpus for node in self.nodes) - up_gpus
        return FreePlaces(sum(each), held, sum(holding), up_gpus, self._unused_gpus + coming_gpus)

    def up_nodes(self, now_s: float) -> list[Machine]:
        """Return the nodes that are up."""
        self._remove_idle(now_s)
        return [node for node in self.nodes if node.is_up(now_s)]

    def node_gpu_s(self, from_s: float, end_s: float) -> float:
        """Return the GPU-seconds of all nodes between two times, from their creation until they are removed."""
        spans = [*self._removed, *((node.created_s, self._idle_end_s(node), node.gpus) for node in self.nodes)]
        return sum(max(min(end, end_s) - max(begin, from_s), 0.0) * gpus for begin, end, gpus in spans)

    def request_places(
        self, owner: Hashable, gpus: float, places: int, now_s: float, draw_node_s: Callable[[], float]
    ) -> None:
        """Keep places requested, in place of what this owner requested before. Nodes are created for those that lack
        room.
        """
        if places:
            self._requested[owner] = _Requested(gpus, places, draw_node_s)
        elif self._requested.pop(owner, None) is None:
            return
        self._remove_idle(now_s)
        self._hold_requested(now_s)

    def request(self, claim: GpuClaim, now_s: float) -> None:
        """Assign GPUs to a claim, at once if no claim waits and there is room, else in its turn."""
        self._remove_idle(now_s)
        self._waiting.append(claim)
        self._assign(now_s)

    def release_gpus(self, claim: GpuClaim, now_s: float) -> None:
        """Free the GPUs of a claim and assign them to waiting claims; a waiting claim is withdrawn."""
        if claim.node is None:
            self._waiting.remove(claim)
        else:
            claim.node.free_gpus += claim.gpus
            claim.node.empty_since_s = now_s
            claim.node = None
        self._assign(now_s)

    def _create(self, now_s: float, gpus: float, up_s: float = math.nan) -> Machine:
        self._unused_gpus -= gpus
        node = Machine(gpus, self._created, gpus, now_s, up_s, holds=self._holds(self._created), empty_since_s=now_s)
        self._created += 1
        self.nodes.append(node)
        return node

    def _holds(self, place: int) -> bool | None:
        """Tell whether the next node holds all weights: such nodes are spread evenly over the others."""
        if math.isnan(self._weights_on):
            return None
        holds = math.floor((place + 1) * self._weights_on + 1e-9) > math.floor(place * self._weights_on + 1e-9)
        return True if holds else None if self._keeps_fetched else False

    def _idle_end_s(self, node: Machine) -> float:
        """Return when a node is removed if nothing comes to it; infinity: it is in use."""
        in_use = node.is_held or node.free_gpus < node.gpus - ROUNDING_GPUS
        return math.inf if in_use else node.empty_since_s + self._node_idle_s

    def _remove_idle(self, now_s: float) -> None:
        """Remove nodes that were empty for long enough."""
        for node in [node for node in self.nodes if self._idle_end_s(node) <= now_s]:
            self.nodes.remove(node)
            self._removed.append((node.created_s, self._idle_end_s(node), node.gpus))
            self._unused_gpus += node.gpus

    def _hold_requested(self, now_s: float) -> None:
        """Give requested places free room, and create nodes for those that find none."""
        left = {node: node.free_gpus for node in self.nodes}
        was_held = {node for node in self.nodes if node.is_held}
        for node in self.nodes:
            node.is_held = False
        for requested in self._requested.values():
            missing = requested.places
            while missing > 0:
                found = next((each for each in left if _count_places(left[each], requested.gpus)), None)
                size_gpus = min(self.largest_gpus, self._unused_gpus)
                if found is None and not _count_places(size_gpus, requested.gpus):
                    break
                if found is None:
                    found = self._create(now_s, size_gpus, now_s + requested.draw_node_s())
                    left[found] = found.free_gpus
                taken = min(missing, _count_places(left[found], requested.gpus))
                left[found] -= taken * requested.gpus
                missing -= taken
                found.is_held = True
        for node in was_held:
            if not node.is_held:
                node.empty_since_s = now_s

    def _assign(self, now_s: float) -> None:
        while self._waiting and (node := self._find_node(self._waiting[0], now_s)):
            claim = self._waiting.popleft()
            place = MachinePlace(node, node.has_weights(claim.model, now_s))
            node.free_gpus -= claim.gpus
            claim.node = node
            claim.on_assigned(now_s, place)
            if node.holds is None:
                node.models.setdefault(claim.model, now_s)
        if self._requested:
            self._hold_requested(now_s)

    def _find_node(self, claim: GpuClaim, now_s: float) -> Machine | None:
        """Return a node with room, preferring nodes with the weights, then the fullest; else a new node."""
        room = [node for node in self.nodes if node.free_gpus >= claim.gpus - ROUNDING_GPUS]
        if room:
            return min(room, key=lambda node: (not node.has_weights(claim.model, now_s), node.free_gpus))
        size_gpus = min(self.largest_gpus, self._unused_gpus)
        return None if size_gpus < claim.gpus - ROUNDING_GPUS else self._create(now_s, size_gpus)


def _count_places(free_gpus: float, gpus: float) -> int:
    return math.floor(free_gpus / gpus + ROUNDING_GPUS)
