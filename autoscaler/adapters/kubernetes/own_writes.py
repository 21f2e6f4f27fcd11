"""What this process itself wrote lately, so that its own changes are told from those of others; what was refused."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from autoscaler.adapters.kubernetes.api.client import field_manager
from autoscaler.ports import Clock

REMEMBERED_WRITES = 4  # per workload; a write shows in the watch long before four more follow
REMEMBERED_S = 120.0


FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
"""Until a refused count is asked for again; doubles with each refusal in a row."""

FORGOTTEN_S = 3600.0
"""A refusal that was not repeated for so long holds no more: nobody asked for so many again."""


class Refusal(NamedTuple):
    """A count that the API server refused for what it is: by an admission policy, a quota, or a missing right."""

    replicas: int
    retry_s: float  # moment from which on it may be asked for again
    wait_s: float  # how long that was put off
    words: str  # of the API server


class OwnWrites:
    """Counts that were sent to the API server. Noted before they are sent: the watch may be faster than the answer."""

    def __init__(self, clock: Clock, installation: str = "") -> None:
        """installation: of the replicas of the daemon that write by turns."""
        self.manager = field_manager(installation)
        self.clock = clock
        self._refusals: dict[str, Refusal] = {}
        self._writes: dict[str, deque[tuple[float, int]]] = {}

    def note(self, uid: str, replicas: int) -> None:
        """Remember that `replicas` is about to be written to the object with `uid`."""
        self._writes.setdefault(uid, deque(maxlen=REMEMBERED_WRITES)).append((self.clock.now_s(), replicas))

    def explain(self, uid: str, replicas: int) -> bool:
        """Say whether a write of ours accounts for `replicas` standing there now."""
        since_s = self.clock.now_s() - REMEMBERED_S
        return any(count == replicas and at_s >= since_s for at_s, count in self._writes.get(uid, ()))

    def refused(self, uid: str, replicas: int, words: str) -> None:
        """Remember that the API server refused a count, and put off the next try: twice as long as the last."""
        before = self._refusals.get(uid)
        wait_s = min(2 * before.wait_s, LONGEST_RETRY_S) if before is not None else FIRST_RETRY_S
        self._refusals[uid] = Refusal(replicas, self.clock.now_s() + wait_s, wait_s, words)

    def accepted(self, uid: str) -> None:
        """Forget what was refused: a write went through, or the object is another one now."""
        self._refusals.pop(uid, None)

    def refusals(self) -> dict[str, Refusal]:
        """Return what was refused lately, by uid."""
        now_s = self.clock.now_s()
        for uid in [uid for uid, each in self._refusals.items() if now_s - each.retry_s > FORGOTTEN_S]:
            del self._refusals[uid]
        return self._refusals

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._writes.pop(uid, None)
        self._refusals.pop(uid, None)
