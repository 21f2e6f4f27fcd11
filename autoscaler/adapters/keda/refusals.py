"""Which ScaledObjects KEDA is refused for, and why. Only calls tell: a request may say other than the cluster does."""

from __future__ import annotations

from typing import NamedTuple

from autoscaler.core.model.fleet import WorkloadRef
from autoscaler.ports import Clock

MAX_REFUSED = 1000  # ScaledObjects that are remembered; beyond, the longest known are forgotten
ANSWERED_S = 60.0  # a refusal counts when no call was answered for so long: KEDA asks several times a minute
KEPT_S = 600.0  # it is forgotten when it did not happen again for so long

Key = tuple[str, str]  # namespace and name of a ScaledObject


class _Refusal(NamedTuple):
    target: WorkloadRef | None  # None: no such ScaledObject is known
    text: str
    last_s: float


class Refusals:
    """Remembers refusals that last. One caller that asks wrongly beside KEDA makes none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[Key, _Refusal] = {}
        self._answered_s: dict[Key, float] = {}  # of those that are known, so as many as there are ScaledObjects

    def refuse(self, key: Key, target: WorkloadRef | None, text: str) -> None:
        """Note that a call for the value was refused."""
        now_s = self._clock.now_s()
        if now_s - self._answered_s.get(key, -ANSWERED_S) < ANSWERED_S:
            return
        self._answered_s.pop(key, None)
        if key not in self._refused and len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = _Refusal(target, text, now_s)

    def admit(self, key: Key) -> None:
        """Note that a call was right."""
        self._answered_s[key] = self._clock.now_s()
        self._refused.pop(key, None)

    def of(self, ref: WorkloadRef) -> str:
        """Say why KEDA is refused for a workload; "": it is not."""
        return self.by_workload().get(ref, "") if self._refused else ""

    def by_workload(self) -> dict[WorkloadRef, str]:
        return {
            refusal.target: f"KEDA is refused: {refusal.text}"
            for refusal in self._lasting().values()
            if refusal.target is not None
        }

    def unknown(self) -> list[str]:
        """Return why KEDA is refused for ScaledObjects that no workload is known of."""
        return [refusal.text for refusal in self._lasting().values() if refusal.target is None]

    def _lasting(self) -> dict[Key, _Refusal]:
        oldest_s = self._clock.now_s() - KEPT_S
        if any(refusal.last_s < oldest_s for refusal in self._refused.values()):
            self._refused = {key: refusal for key, refusal in self._refused.items() if refusal.last_s >= oldest_s}
        return self._refused
