"""What this process itself wrote lately, so that its own changes are told from those of others."""

from __future__ import annotations

from collections import deque

from autoscaler.adapters.kube.client import field_manager
from autoscaler.ports import Clock

REMEMBERED_WRITES = 4  # per workload; a write shows in the watch long before four more follow
REMEMBERED_S = 120.0


class OwnWrites:
    """Counts that were sent to the API server. Noted before they are sent: the watch may be faster than the answer."""

    def __init__(self, clock: Clock, installation: str = "") -> None:
        """installation: of the replicas of the daemon that write by turns."""
        self.manager = field_manager(installation)
        self._clock = clock
        self._writes: dict[str, deque[tuple[float, int]]] = {}

    def note(self, uid: str, replicas: int) -> None:
        """Remember that `replicas` is about to be written to the object with `uid`."""
        self._writes.setdefault(uid, deque(maxlen=REMEMBERED_WRITES)).append((self._clock.now_s(), replicas))

    def explain(self, uid: str, replicas: int) -> bool:
        """Say whether a write of ours accounts for `replicas` standing there now."""
        since_s = self._clock.now_s() - REMEMBERED_S
        return any(count == replicas and at_s >= since_s for at_s, count in self._writes.get(uid, ()))

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._writes.pop(uid, None)
