"""Which model is read whole next, to compare its checksums: pure, with the time as an argument."""

from __future__ import annotations

from collections.abc import Collection

RECHECK_S = 86_400.0  # between two models that are read once more: disks lose bits
SUSPECT_S = 3600.0  # between two checks of one model that peers refuse


class CheckSchedule:
    """Each model once after the start, those that a peer refuses, and then one a day: the one that waits longest."""

    def __init__(self, now_s: float, recheck_s: float = RECHECK_S) -> None:
        self._checked: dict[str, float] = {}  # when the checksums of a model were right, in this process
        self._suspected: dict[str, float] = {}  # when a peer last refused a model
        self._recheck_s = recheck_s
        self._rechecked_s = now_s

    def keep(self, keys: Collection[str]) -> None:
        """Forget models that are not there any more."""
        self._checked = {key: at_s for key, at_s in self._checked.items() if key in keys}
        self._suspected = {key: at_s for key, at_s in self._suspected.items() if key in keys}

    def suspect(self, key: str, now_s: float) -> None:
        """Have a model checked soon, because a peer got other bytes. One that keeps on saying so changes nothing."""
        if key in self._checked and now_s - self._suspected.get(key, -SUSPECT_S) >= SUSPECT_S:
            self._suspected[key] = now_s
            del self._checked[key]

    def passed(self, key: str, now_s: float) -> None:
        """Note that all checksums of a model are right."""
        self._checked[key] = now_s

    def next(self, keys: Collection[str], now_s: float) -> str | None:
        """Return the model to check now; None: there is none."""
        fresh = next((key for key in keys if key not in self._checked), None)
        if fresh is not None or not keys or now_s - self._rechecked_s < self._recheck_s:
            return fresh
        self._rechecked_s = now_s
        return min(keys, key=lambda key: self._checked[key])
