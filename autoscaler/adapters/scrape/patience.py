"""How long one reading waits for the pods of a namespace, so that those of one delay no decision for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from autoscaler.config.settings import ScrapeSettings


class Patience:
    """The slow pods of each namespace in one reading."""

    def __init__(self, settings: ScrapeSettings, namespaces: Iterable[str]) -> None:
        """namespaces: of all pods. A namespace without others has all the time of a reading."""
        self._slow_s = settings.timeout_s / 2
        self._most = max(settings.concurrency // 2, 1) if len(set(namespaces)) > 1 else None
        self._slow: Counter[str] = Counter()

    def note(self, namespace: str, duration_s: float) -> None:
        """Note how long a pod took, whether it answered or not."""
        self._slow[namespace] += duration_s > self._slow_s

    def refusal(self, namespace: str) -> str:
        """Return why no further pod of a namespace is asked in this reading; "": it is."""
        if self._most is None or self._slow[namespace] < self._most:
            return ""
        return f"not asked in this reading: {self._most} pods of its namespace took longer than {self._slow_s:g} s"
