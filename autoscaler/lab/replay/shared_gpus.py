"""The GPUs that the replicas of a run share: given in the order of asking, handed on as soon as they come free.

They stand in nodes. A node that was never used has neither image nor weights; once a replica was placed on it, it has
the image, and the weights of that replica's model.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoscaler.lab.replay.case import Case

NODE_GPUS = 8.0  # as in the usual servers of eight
ROUNDING_GPUS = 1e-9  # slices are shares of a GPU, whose sums are not exact


@dataclass(eq=False)
class Node:
    """A machine with GPUs, packed without loss."""

    free_gpus: float
    up_s: float = 0.0
    image_s: float = 0.0  # when it has the image
    models: dict[str, float] = field(default_factory=dict)  # whose weights it has, and since when they serve


@dataclass(frozen=True)
class Place:
    """Where a replica was placed, and what it found there."""

    node: Node
    fresh: bool  # the first ever on this node
    weights_cached: bool


@dataclass(eq=False)
class Claim:
    """GPUs that one replica asks for; `granted` is told when and where it has them."""

    model: str
    gpus: float
    granted: Callable[[float, Place], None]
    node: Node | None = None  # while it has them


class GpuPool:
    """GPUs of one kind. Whoever finds too few free waits, and those who come later wait behind.

    Strict order keeps a large replica from waiting for ever behind small ones; replicas of one run are of one size, so
    it leaves nothing idle.
    """

    def __init__(self, gpus: float = math.inf, node_gpus: float = NODE_GPUS) -> None:
        self.gpus = gpus
        self.largest_gpus = min(gpus, node_gpus)  # of one replica
        self.nodes: list[Node] = []  # those in use so far
        self._unused_gpus = gpus  # in nodes that were never used
        self._waiting: deque[Claim] = deque()

    @classmethod
    def holding(cls, cases: Sequence[Case], gpus: float = math.inf) -> GpuPool:
        """Make a pool of usual nodes, or of larger ones where a replica of one of the cases needs them."""
        return cls(gpus, max(NODE_GPUS, *(case.gpus_per_replica for case in cases)))

    def fitting(self, gpus_per_replica: float) -> float:
        """Return how many replicas of one size find room if nobody else does; infinity: as many as are asked for."""
        if math.isinf(self.gpus):
            return math.inf
        nodes, rest_gpus = divmod(self.gpus + ROUNDING_GPUS, self.largest_gpus)
        each, last = (math.floor((gpus + ROUNDING_GPUS) / gpus_per_replica) for gpus in (self.largest_gpus, rest_gpus))
        return nodes * each + last

    @property
    def short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    @property
    def free_gpus(self) -> float:
        return self._unused_gpus + sum(node.free_gpus for node in self.nodes)

    def ask(self, claim: Claim, now_s: float) -> None:
        """Grant a claim at once, if nobody waits and there is room, else as soon as its turn comes."""
        self._waiting.append(claim)
        self._hand_out(now_s)

    def give_back(self, claim: Claim, now_s: float) -> None:
        """Take the GPUs of a claim, and hand them on; of one that still waits, forget it."""
        if claim.node is None:
            self._waiting.remove(claim)
        else:
            claim.node.free_gpus += claim.gpus
            claim.node = None
        self._hand_out(now_s)

    def _hand_out(self, now_s: float) -> None:
        while self._waiting and (node := self._room(self._waiting[0])):
            claim = self._waiting.popleft()
            place = Place(node, fresh=not node.models, weights_cached=claim.model in node.models)
            node.free_gpus -= claim.gpus
            node.models.setdefault(claim.model, now_s)
            claim.node = node
            claim.granted(now_s, place)

    def _room(self, claim: Claim) -> Node | None:
        """Return a node with room, best one with the weights, then the fullest; else one that was never used."""
        room = [node for node in self.nodes if node.free_gpus >= claim.gpus - ROUNDING_GPUS]
        if room:
            return min(room, key=lambda node: (claim.model not in node.models, node.free_gpus))
        size_gpus = min(self.largest_gpus, self._unused_gpus)
        if size_gpus < claim.gpus - ROUNDING_GPUS:
            return None
        self._unused_gpus -= size_gpus
        self.nodes.append(Node(size_gpus))
        return self.nodes[-1]
