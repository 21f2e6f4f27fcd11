"""Transfers of this agent, and of others that fetch the same: kept in memory, bounded, forgotten after some seconds."""

from __future__ import annotations

import secrets
from collections.abc import Callable

MAX_MODELS = 256
MAX_ASKERS = 64  # of one model
FETCHING_S = 15.0  # after the last range, or the last attempt to get one
ASKED_S = 15.0  # after the last question


class _Fetch:
    def __init__(self) -> None:
        self.touched_s = 0.0
        self.bytes = 0
        self.claimed: set[str] = set()


class Activity:
    """Transfers of this agent, and of those that asked it."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """clock_s: returns seconds that never go back."""
        self.id = secrets.token_hex(8)
        self._clock_s = clock_s
        self._fetches: dict[str, _Fetch] = {}
        self._askers: dict[str, dict[str, float]] = {}

    def touch(self, key: str, received: int = 0, claimed: str = "") -> None:
        """Record that this agent fetches a model. claimed: checksum of a file that it fetches from the source."""
        now_s = self._clock_s()
        fetch = self._fetches.get(key)
        if fetch is None or now_s - fetch.touched_s > FETCHING_S:
            self._fetches = {name: each for name, each in self._fetches.items() if now_s - each.touched_s <= FETCHING_S}
            fetch = self._fetches[key] = _Fetch()
        fetch.touched_s = now_s
        fetch.bytes += received
        if claimed:
            fetch.claimed.add(claimed)

    def fetch(self, key: str) -> tuple[bool, int, frozenset[str]]:
        """Return whether this agent fetches a model, the bytes it received, and the files that it claims."""
        found = self._fetches.get(key)
        if found is None or self._clock_s() - found.touched_s > FETCHING_S:
            return False, 0, frozenset()
        return True, found.bytes, frozenset(found.claimed)

    def note_asker(self, key: str, address: str) -> None:
        """Record the address of an agent that fetches a model."""
        now_s = self._clock_s()
        askers = self._askers.get(key)
        if askers is None:
            if len(self._askers) >= MAX_MODELS:
                self._askers = {name: each for name, each in self._askers.items() if _living(each, now_s)}
            if len(self._askers) >= MAX_MODELS:
                return
            askers = self._askers[key] = {}
        if len(askers) >= MAX_ASKERS:
            self._askers[key] = askers = _living(askers, now_s)
        if len(askers) < MAX_ASKERS or address in askers:
            askers[address] = now_s + ASKED_S

    def askers(self, key: str) -> tuple[str, ...]:
        """Return the addresses of agents that fetch a model."""
        return tuple(_living(self._askers.get(key, {}), self._clock_s()))


def _living(askers: dict[str, float], now_s: float) -> dict[str, float]:
    return {address: until_s for address, until_s in askers.items() if until_s > now_s}
