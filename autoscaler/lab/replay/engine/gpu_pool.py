"""The GPUs shared by the replicas of a run: assigned first come, first served, and reassigned as soon as they are free.

GPUs belong to nodes. A node that was never used has neither image nor weights. After the first placement, it has the
image, and the weights of that replica's model. Or a share of the nodes always holds all weights, and the others never.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoscaler.lab.replay.case import Case, FreePlaces

NODE_GPUS = 8.0  # the usual server has eight
ROUNDING_GPUS = 1e-9  # sums of GPU fractions are not exact


@dataclass(eq=False)
class Node:
    """A machine with GPUs. Fragmentation within a node is not modelled."""

    free_gpus: float
    up_s: float = 0.0
    image_s: float = 0.0  # time at which it has the image, seconds
    # models whose weights it has: the time at which they are loaded, seconds
    models: dict[str, float] = field(default_factory=dict)
    holds: bool | None = None  # whether it always holds the weights of every model, or never; None: those of `models`

    def has_weights(self, model: str) -> bool:
        return model in self.models if self.holds is None else self.holds


@dataclass(frozen=True)
class Placement:
    """The node of a replica, and what the node already had."""

    node: Node
    fresh: bool  # the first replica on this node
    weights_cached: bool


@dataclass(eq=False)
class GpuClaim:
    """A request for the GPUs of one replica. `on_assigned` is called with the time and the placement."""

    model: str
    gpus: float
    on_assigned: Callable[[float, Placement], None]
    node: Node | None = None  # set while the GPUs are assigned


class GpuPool:
    """GPUs of one kind. A claim that finds too few free GPUs waits, and later claims wait behind it.

    The strict order prevents that small replicas starve a large one. Replicas of one run have one size, so it leaves no
    GPU idle.
    """

    def __init__(self, gpus: float = math.inf, node_gpus: float = NODE_GPUS, weights_on: float = math.nan) -> None:
        """weights_on: share of nodes that hold all weights; NaN: each has those that its replicas fetched."""
        self.gpus = gpus
        self._weights_on = weights_on
        self.largest_gpus = min(gpus, node_gpus)  # largest claim
        self.nodes: list[Node] = []  # nodes used so far
        self._unused_gpus = gpus  # GPUs of unused nodes
        self._waiting: deque[GpuClaim] = deque()

    @classmethod
    def for_cases(cls, cases: Sequence[Case], gpus: float = math.inf) -> GpuPool:
        """Make a pool of nodes with `NODE_GPUS` GPUs, or larger ones if a replica of a case needs them."""
        largest_gpus = max(NODE_GPUS, *(case.gpus_per_replica for case in cases))
        return cls(gpus, largest_gpus, cases[0].weights_on if cases else math.nan)

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

    def places(self, model: str, gpus: float) -> FreePlaces:
        """Return the room for replicas of a model that need so many GPUs. Claims that wait come first."""
        each = [0 if self._waiting else math.floor(node.free_gpus / gpus + ROUNDING_GPUS) for node in self.nodes]
        holding = [node.has_weights(model) for node in self.nodes]
        held = sum(free for free, holds in zip(each, holding, strict=True) if holds)
        return FreePlaces(sum(each), held, sum(holding), self._unused_gpus)

    def request(self, claim: GpuClaim, now_s: float) -> None:
        """Assign GPUs to a claim, at once if no claim waits and there is room, else in its turn."""
        self._waiting.append(claim)
        self._assign(now_s)

    def release_gpus(self, claim: GpuClaim, now_s: float) -> None:
        """Free the GPUs of a claim and assign them to waiting claims; a waiting claim is withdrawn."""
        if claim.node is None:
            self._waiting.remove(claim)
        else:
            claim.node.free_gpus += claim.gpus
            claim.node = None
        self._assign(now_s)

    def _holds(self, place: int) -> bool | None:
        """Tell whether the next node holds all weights: such nodes are spread evenly over the others."""
        if math.isnan(self._weights_on):
            return None
        return math.floor((place + 1) * self._weights_on + 1e-9) > math.floor(place * self._weights_on + 1e-9)

    def _assign(self, now_s: float) -> None:
        while self._waiting and (node := self._find_node(self._waiting[0])):
            claim = self._waiting.popleft()
            place = Placement(node, fresh=not node.models, weights_cached=node.has_weights(claim.model))
            node.free_gpus -= claim.gpus
            node.models.setdefault(claim.model, now_s)
            claim.node = node
            claim.on_assigned(now_s, place)

    def _find_node(self, claim: GpuClaim) -> Node | None:
        """Return a node with room, preferring nodes with the weights, then the fullest; else an unused node."""
        room = [node for node in self.nodes if node.free_gpus >= claim.gpus - ROUNDING_GPUS]
        if room:
            return min(room, key=lambda node: (not node.has_weights(claim.model), node.free_gpus))
        size_gpus = min(self.largest_gpus, self._unused_gpus)
        if size_gpus < claim.gpus - ROUNDING_GPUS:
            return None
        self._unused_gpus -= size_gpus
        self.nodes.append(Node(size_gpus, holds=self._holds(len(self.nodes))))
        return self.nodes[-1]
