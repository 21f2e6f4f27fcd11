"""When a model that could not be fetched is tried again: each cause has a first pause, which doubles up to a most."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

from autoscaler.weights.problems import WeightsCause, WeightsError

PAUSES_S = {
    WeightsCause.BUSY: (2.0, 10.0),
    WeightsCause.CHANGED: (5.0, 300.0),
    WeightsCause.CORRUPT: (300.0, 3600.0),  # every attempt fetches the file twice
    WeightsCause.DISK: (5.0, 300.0),
    WeightsCause.NO_SPACE: (10.0, 300.0),
    WeightsCause.UNREACHABLE: (5.0, 300.0),
}
OTHER_PAUSE_S = (60.0, 900.0)  # nothing changes until a person acts
JITTER = 0.2


class Attempt(NamedTuple):
    """The last failure of one model."""

    cause: WeightsCause
    text: str
    failures: int  # in a row, of the same cause
    next_s: float  # moment of the next attempt


class Attempts:
    """Models that failed, by key."""

    def __init__(self, pace: float = 1.0) -> None:
        """pace: factor of all pauses."""
        self._pace = pace
        self._failed: dict[str, Attempt] = {}

    def fail(self, key: str, error: WeightsError, now_s: float) -> Attempt:
        """Record a failure."""
        last = self._failed.get(key)
        failures = last.failures + 1 if last is not None and last.cause is error.cause else 1
        first_s, most_s = PAUSES_S.get(error.cause, OTHER_PAUSE_S)
        pause_s = min(first_s * 2.0 ** min(failures - 1, 16), most_s) * self._pace * random.uniform(1.0, 1.0 + JITTER)
        self._failed[key] = Attempt(error.cause, str(error), failures, now_s + pause_s)
        return self._failed[key]

    def succeed(self, key: str) -> None:
        """Forget the failures of a model."""
        self._failed.pop(key, None)

    def keep(self, keys: Iterable[str]) -> None:
        """Forget all other models."""
        kept = set(keys)
        self._failed = {key: attempt for key, attempt in self._failed.items() if key in kept}

    def get(self, key: str) -> Attempt | None:
        """Return the last failure of a model; None: there is none."""
        return self._failed.get(key)

    def is_due(self, key: str, now_s: float) -> bool:
        """Tell whether a model may be tried now."""
        attempt = self._failed.get(key)
        return attempt is None or attempt.next_s <= now_s

    def next_s(self, keys: Iterable[str], now_s: float) -> float:
        """Return the next moment at which one of these models may be tried again; infinity: there is none."""
        moments = (self._failed[key].next_s for key in keys if key in self._failed)
        return min((moment for moment in moments if moment > now_s), default=float("inf"))

    def retry(self, cause: WeightsCause) -> None:
        """Let models that failed for a cause be tried at once: it may have gone."""
        for key, attempt in self._failed.items():
            if attempt.cause is cause:
                self._failed[key] = attempt._replace(next_s=float("-inf"))
