"""Replica counts that this process wrote lately, and counts that the API server did not take as they were sent."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.client import field_manager
from autoscaler.ports import Clock

WRITES_LIMIT = 4  # remembered for each workload; the watch shows a write long before four more follow
REMEMBERED_S = 120.0

FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
"""Time until a refused count is sent again. It doubles with each refusal in a row."""

REFUSAL_EXPIRES_S = 3600.0
"""A refusal is forgotten this long after its retry time, if the count was not requested again."""


class Refusal(NamedTuple):
    """A count that was refused, or stored otherwise: by an admission policy, a quota or a missing permission."""

    replicas: int
    stored: int  # the count that the object had afterwards
    retry_s: float  # moment from which it may be sent again
    wait_s: float  # the length of this pause
    message: str  # of the API server


class OwnWrites:
    """Remembers counts before they are sent, because the watch may deliver a change before the answer arrives."""

    def __init__(self, clock: Clock, installation: str = "") -> None:
        """installation: shared by the replicas of the daemon, which write in turn."""
        self.manager = field_manager(installation)
        self.clock = clock
        self._refusals: dict[str, Refusal] = {}
        self._writes: dict[str, deque[tuple[float, int]]] = {}

    def add(self, uid: str, replicas: int) -> None:
        """Remember that `replicas` is about to be written to the object with this uid."""
        self._writes.setdefault(uid, deque(maxlen=WRITES_LIMIT)).append((self.clock.now_s(), replicas))

    def has_written(self, uid: str, replicas: int) -> bool:
        """Return whether this process wrote `replicas` lately."""
        since_s = self.clock.now_s() - REMEMBERED_S
        return any(count == replicas and at_s >= since_s for at_s, count in self._writes.get(uid, ()))

    def add_refusal(self, uid: str, replicas: int, stored: int, message: str) -> None:
        """Remember that a count was not taken as sent, and wait twice as long as before the last try.

        stored: the count that the object has now. While nothing else changes, the next try may fail as well.
        """
        before = self._refusals.get(uid)
        wait_s = min(2 * before.wait_s, LONGEST_RETRY_S) if before is not None else FIRST_RETRY_S
        self._refusals[uid] = Refusal(replicas, stored, self.clock.now_s() + wait_s, wait_s, message)

    def clear_refusal(self, uid: str, except_stored: int | None = None) -> None:
        """Forget a refusal, because a write succeeded or the object has changed.

        except_stored: only the count has changed, to this one; the refusal that left this count is kept.
        """
        refusal = self._refusals.get(uid)
        if refusal is not None and refusal.stored != except_stored:
            del self._refusals[uid]

    def refusals(self) -> dict[str, Refusal]:
        """Return the recent refusals by uid."""
        now_s = self.clock.now_s()
        for uid in [uid for uid, refusal in self._refusals.items() if now_s - refusal.retry_s > REFUSAL_EXPIRES_S]:
            del self._refusals[uid]
        return self._refusals

    def forget(self, uid: str) -> None:
        """Forget an object that was deleted."""
        self._writes.pop(uid, None)
        self._refusals.pop(uid, None)
