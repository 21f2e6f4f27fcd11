"""ScaledObjects for which KEDA's calls are refused, and why.

Only calls tell, because a request may differ from the ScaledObject in the cluster.
"""

from __future__ import annotations

from typing import NamedTuple

from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Clock

MAX_REFUSED = 1000  # ScaledObjects that are remembered; beyond it the oldest are forgotten
ANSWERED_S = 60.0  # a refusal counts if no call was answered for this time: KEDA calls several times a minute
EXPIRES_S = 600.0  # a refusal is forgotten if it was not repeated for this time

Key = tuple[str, str]  # namespace and name of a ScaledObject


class _Refusal(NamedTuple):
    target: WorkloadRef | None  # None: no such ScaledObject is known
    text: str
    last_s: float


class Refusals:
    """Remembers lasting refusals. Wrong calls of clients other than KEDA do not count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[Key, _Refusal] = {}
        self._answered_s: dict[Key, float] = {}  # of known ScaledObjects only, so their number is bounded

    def add(self, key: Key, target: WorkloadRef | None, text: str) -> None:
        """Note that a call for the value was refused."""
        now_s = self._clock.now_s()
        if now_s - self._answered_s.get(key, -ANSWERED_S) < ANSWERED_S:
            return
        self._answered_s.pop(key, None)
        if key not in self._refused and len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = _Refusal(target, text, now_s)

    def clear(self, key: Key) -> None:
        """Note that a call was answered."""
        self._answered_s[key] = self._clock.now_s()
        self._refused.pop(key, None)

    def by_workload(self) -> dict[WorkloadRef, str]:
        """Return why KEDA's calls are refused, by the workload that they are for."""
        return {
            refusal.target: f"KEDA is refused: {refusal.text}"
            for refusal in self._lasting().values()
            if refusal.target is not None
        }

    def unknown(self) -> list[str]:
        """Return why calls for unknown ScaledObjects are refused, one line each."""
        return [refusal.text for refusal in self._lasting().values() if refusal.target is None]

    def _lasting(self) -> dict[Key, _Refusal]:
        oldest_s = self._clock.now_s() - EXPIRES_S
        if any(refusal.last_s < oldest_s for refusal in self._refused.values()):
            self._refused = {key: refusal for key, refusal in self._refused.items() if refusal.last_s >= oldest_s}
        return self._refused
