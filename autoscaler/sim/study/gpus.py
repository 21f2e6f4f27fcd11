"""The GPUs that the replicas of a run share: given in the order of asking, handed on as soon as they come free."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

ROUNDING_GPUS = 1e-9  # slices are shares of a GPU, whose sums are not exact


@dataclass(frozen=True, eq=False)
class Claim:
    """GPUs that one replica asks for; `granted` is told the moment at which it has them."""

    gpus: float
    granted: Callable[[float], None]


class GpuPool:
    """GPUs of one kind, packed without loss. Whoever finds too few free waits, and those who come later wait behind.

    Strict order keeps a large replica from waiting for ever behind small ones; replicas of one run are of one size, so
    it leaves nothing idle.
    """

    def __init__(self, gpus: float = math.inf) -> None:
        self.gpus = gpus
        self.free_gpus = gpus
        self._waiting: deque[Claim] = deque()

    @property
    def short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def ask(self, claim: Claim, now_s: float) -> None:
        """Grant a claim at once, if nobody waits and there is room, else as soon as its turn comes."""
        self._waiting.append(claim)
        self._hand_out(now_s)

    def give_back(self, claim: Claim, now_s: float) -> None:
        """Take the GPUs of a claim that was granted, and hand them on."""
        self.free_gpus += claim.gpus
        self._hand_out(now_s)

    def withdraw(self, claim: Claim, now_s: float) -> None:
        """Forget a claim that waits."""
        self._waiting.remove(claim)
        self._hand_out(now_s)

    def _hand_out(self, now_s: float) -> None:
        while self._waiting and self._waiting[0].gpus <= self.free_gpus + ROUNDING_GPUS:
            claim = self._waiting.popleft()
            self.free_gpus -= claim.gpus
            claim.granted(now_s)
