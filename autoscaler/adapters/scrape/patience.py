"""How long one reading waits for the pods of a namespace, so that those of one delay no decision for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from autoscaler.config.settings import ScrapeSettings

Item = TypeVar("Item")


class Patience:
    """The slow pods of each namespace in one reading."""

    def __init__(self, settings: ScrapeSettings, namespaces: Iterable[str]) -> None:
        """namespaces: of all pods. A namespace without others has all the time of a reading."""
        self._slow_s = settings.timeout_s / 2
        self._most = max(settings.concurrency // 2, 1) if len(set(namespaces)) > 1 else None
        self._slow: Counter[str] = Counter()

    @staticmethod
    def in_turns(items: Iterable[Item], key: Callable[[Item], tuple[bool, str]]) -> list[Item]:
        """Return items in an order in which namespaces take turns. key: whether it comes late, and its namespace."""
        turns: Counter[tuple[bool, str]] = Counter()
        order = []
        for item in items:
            late, namespace = key(item)
            order.append((late, turns[late, namespace], item))
            turns[late, namespace] += 1
        return [item for *_, item in sorted(order, key=lambda each: each[:2])]

    def note(self, namespace: str, duration_s: float) -> None:
        """Note how long a pod took, whether it answered or not."""
        self._slow[namespace] += duration_s > self._slow_s

    def refusal(self, namespace: str) -> str:
        """Return why no further pod of a namespace is asked in this reading; "": it is."""
        if self._most is None or self._slow[namespace] < self._most:
            return ""
        return f"not asked in this reading: {self._most} pods of its namespace took longer than {self._slow_s:g} s"
